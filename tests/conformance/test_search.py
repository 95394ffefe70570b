"""Search: the same messages are found with an index and without one."""

from datetime import timedelta, timezone
from typing import Any

import pytest

from redis_history import (
    Conversation,
    Participant,
    SearchHit,
    assistant,
    system,
    user,
)  # fmt: skip
from redis_history.errors import CapabilityError, InvalidInputError
from redis_history.types import AsyncConversationSearchTool
from tests.conformance.conftest import TALK


def ids(hits: list[SearchHit]) -> list[str]:
    return [hit.message.id for hit in hits]


@pytest.mark.proves("found")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("lisbon", {"u1"}),
        ("Where is my suitcase?", {"u1", "a2"}),
        ("porto upgrade", {"t1", "a2", "u2", "zh"}),  # u2 is a question, and zh follows it,
        ('"return flight"', {"u2"}),
        ('"flight return"', {"u1", "u2", "zh"}),
        ("upgr*", {"u2", "zh"}),
        ("find_luggage", {"a1"}),
        ("4711", {"a1", "t1"}),
        ("退票", {"zh"}),
        ("nothing of this", set()),
        ("", set()),
        ("!!! ??? 👍", set()),
    ],
)
async def test_what_is_found(talk: Any, query: str, found: set[str]) -> None:
    hits = await talk.search("c", query, limit=100)
    missing = found - set(ids(hits))
    assert not missing
    if query != "Where is my suitcase?":  # whose plural is found as well where words have stems
        assert set(ids(hits)) == found
    assert "secret" not in ids(hits)
    for hit in hits:
        assert hit.conversation_id == "c"
        assert hit.score > 0
        assert hit.message == await talk.get_message("c", hit.message.id)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.proves("found")
@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, {"u1", "a1", "t1", "a2", "u2", "zh"}),
        ({"roles": ["user"]}, {"u1", "u2"}),
        ({"roles": ["assistant", "tool"]}, {"a1", "t1", "a2"}),
        ({"roles": []}, set()),
        ({"since": "2026-01-03"}, {"a2", "u2", "zh"}),
        ({"since": "2026-01-02T23:59:59.999999Z"}, {"t1", "a2", "u2", "zh"}),
        ({"before": "2026-01-03"}, {"u1", "a1"}),
        ({"since": "2026-01-02", "before": "2026-01-04"}, {"t1"}),
        ({"since": "2026-01-03", "before": "2026-01-03"}, set()),
        ({"since": "2026-01-04", "before": "2026-01-02"}, set()),
        ({"tool_names": ["find_luggage"]}, {"a1"}),
        ({"tool_names": ["find"]}, set()),
        ({"scope": "dm"}, set()),
        ({"participant_ids": ["nobody"]}, set()),
        ({"archived": True}, set()),
        ({"archived": False, "roles": ["tool"]}, {"t1"}),
    ],
)
async def test_filters(talk: Any, filters: dict[str, Any], found: set[str]) -> None:
    assert set(ids(await talk.search("c", "flight porto 4711", limit=100, **filters))) == found


@pytest.mark.proves("found")
async def test_the_answer_to_a_question_need_not_repeat_its_words(store: Any) -> None:
    await store.append("c", user("Which color has the kayak?", id="question"))
    await store.append("c", assistant("Green.", id="answer"))
    await store.append("c", user("Fine.", id="later"))
    await store.append("c", user("The kayak again?", id="open"))
    hits = await store.search("c", "color of the kayak")
    assert ids(hits) == ["question", "answer", "open"]
    assert hits.total == 3
    assert ids(await store.search("c", "kayak", roles=["user"])) == ["open", "question"]
    assert ids(await store.search("c", '"color has"')) == ["question"]


@pytest.mark.proves("found")
async def test_the_answer_is_found_if_times_are_not_in_the_order_of_arrival(store: Any) -> None:
    said = [("Which harbor?", 50), ("The old one.", 30), ("I see.", 60), ("Fine.", 10)]
    await store.append_many("c", [user(text, timestamp=1e9 + at) for text, at in said])
    found = await store.search("c", "harbor")
    assert [hit.message.text for hit in found] == ["Which harbor?", "The old one."]
    assert found.total == 2


@pytest.mark.proves("found")
async def test_irregular_forms_of_english_words(store: Any) -> None:
    for word in ("went", "going", "bought", "children", "goat"):
        await store.append("c", user(f"They say {word}.", id=word))
    assert {"went", "going"} >= set(ids(await store.search("c", "gone"))) >= {"went"}
    assert set(ids(await store.search("c", "go"))) >= {"went"}
    assert ids(await store.search("c", "buying child")) == ["children", "bought"]
    assert ids(await store.search("c", '"went"')) == ["went"]
    [hit] = await store.search("c", "buy", highlight=True)
    assert hit.highlights[0].marked("[", "]") == "They say [bought]."


@pytest.mark.proves("found")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('"no no"', ["no no no, never", "well, no no"]),
        ('"no no no"', ["no no no, never"]),
        ('"1.0.0"', ["version 1.0.0 is out"]),
        ('"never never"', ["no no no, never", "never"]),  # nothing has the phrase
    ],
)
async def test_a_phrase_with_a_repeated_word(store: Any, query: str, found: list[str]) -> None:
    texts = ["no, one, no", "no no no, never", "never", "version 1.0 is out", "version 1.0.0 is out", "well, no no"]
    await store.append_many("c", [user(text) for text in texts])
    hits = await store.search("c", query)
    assert {hit.message.text for hit in hits} == set(found)
    assert hits.total == len(found)


@pytest.mark.proves("found")
async def test_a_word_is_found_by_a_root_that_has_another_root(stores: Any) -> None:
    pytest.importorskip("Stemmer")
    store = stores(language="german")
    await store.append_many("c", [user("Der Kurs steigt."), user("Das Wetter ist gut.")])
    for query in ("Kurses", "Kurs"):
        [hit] = await store.search("c", query, highlight=True)
        assert [one.marked() for one in hit.highlights] == ["Der **Kurs** steigt."]


@pytest.mark.proves("found")
async def test_words_of_all_scripts(store: Any) -> None:
    texts = [
        "我最近在看一部很好看的电影",
        "we went camping in the woods",
        "ABC电影院 campus",
        "to be or not to be",
        "हिन्दी भाषा",
        "안녕하세요 세계",
        "naïve Straße 3.14 https://example.com/path?x=1 snake_case",
    ]
    await store.append_many("c", [user(text, id=str(number)) for number, text in enumerate(texts, 1)])
    for query, found in (
        ("camp*", "23"), ('"camping"', "2"), ('"went camping"', "2"), ('"camping went"', "2"),
        ('"to be or not to be"', "4"), ("to be", "4"), ("电影", "13"), ("电影院", "13"), ('"电影院"', "3"),
        ("影", "13"), ("院", "3"), ('"好看的电影"', "1"), ('"看电影"', "13"), ("हिन्दी", "5"), ("세계", "6"),
        ("STRASSE naive naïve", "7"), ("snake", "7"),
        ('"path x 1"', "7"), ("3.14", "7"), ("-camping ~woods %we%", "2"), ("w'wo*'", "2"),
    ):  # fmt: skip
        assert sorted(ids(await store.search("c", query))) == [*found], query


async def test_participants_and_scope(store: Any) -> None:
    ann, bob = Participant("user", "a|b", "Ann"), Participant("user", "a", "Bob")
    await store.append("c", user("hello there", id="1", participant=ann, scope="dm"))
    await store.append("c", user("hello too", id="2", participant=bob, scope="channel"))
    assert ids(await store.search("c", "hello", participant_ids=["a|b"])) == ["1"]
    assert ids(await store.search("c", "hello", participant_ids=["a"])) == ["2"]
    assert ids(await store.search("c", "hello", scope="channel")) == ["2"]
    assert ids(await store.search("c", "Ann")) == ["1"], "who speaks can be searched for"


async def test_limit_offset_and_token_cap(store: Any) -> None:
    await store.append_many("c", [user("word " + "x" * 36, id=str(n)) for n in range(20)])
    every = ids(await store.search("c", "word", limit=100))
    assert len(set(every)) == 20
    assert ids(await store.search("c", "word")) == every[:10], "10 by default"
    paged = [ids(await store.search("c", "word", limit=6, offset=offset)) for offset in (0, 6, 12, 18)]
    assert [id for page in paged for id in page] == every
    assert await store.search("c", "word", limit=0) == []
    assert len(await store.search("c", "word", limit=100, token_cap=33)) == 3, "11 tokens each"
    assert await store.search("c", "word", token_cap=0) == []
    assert ids(await store.search("c", "word", token_cap=5)) == every[:1], "the best one, though it does not fit"


@pytest.mark.proves("token-cap")
async def test_a_message_that_is_too_long_comes_with_the_passage_that_matches(store: Any) -> None:
    await store.append("c", user("x " * 3_000 + "the needle is here " + "x " * 3_000))
    [hit] = await store.search("c", "needle", token_cap=20, highlight=True)
    assert hit.truncated
    assert "the needle is here" in hit.excerpt
    assert len(hit.excerpt) <= 80
    assert [one.marked("<", ">") for one in hit.highlights] == [hit.excerpt.replace("needle", "<needle>")]
    [whole] = await store.search("c", "needle", token_cap=None)
    assert (whole.truncated, whole.excerpt) == (False, None)
    for wrong in (5, "words"):
        with pytest.raises(InvalidInputError):
            await store.search("c", "needle", token_counter=wrong)


async def test_neighbors_and_highlights(talk: Any) -> None:
    [hit] = await talk.search("c", '"return flight"', context=2, highlight=True)
    assert [one.id for one in hit.before] == ["t1", "a2"]
    assert [one.id for one in hit.after] == ["zh", "s"], "without a time of its own the first one was stamped now"
    assert [one.marked("<", ">") for one in hit.highlights] == ["Great! And can I upgrade my <return flight>?"]
    [first] = await talk.search("c", "lisbon", context=3)
    assert first.before == ()
    assert first.highlights == ()


@pytest.mark.proves("found")
async def test_live_messages_take_no_place_of_the_neighbors_of_archived_ones(store: Any) -> None:
    talk = [user("one"), system("Be kind."), system("Be brief."), user("two"), system("Be fast."), user("three")]
    stored = await store.append_many("c", [*talk, user("four")])
    await store.compact("c", through=stored[5].message, summary="numbers")
    [hit] = await store.search("c", "two", context=1)
    assert hit.archived
    assert [[one.text for one in those] for those in (hit.before, hit.after)] == [["one"], ["three"]]


@pytest.mark.proves("found")
@pytest.mark.smoke
async def test_changes_are_found_at_once(talk: Any) -> None:
    await talk.update_message("c", user("I lost my umbrella.", id="u1"))
    assert ids(await talk.search("c", "lisbon")) == []
    assert ids(await talk.search("c", "umbrella")) == ["u1"]
    await talk.delete_messages("c", ["u1", "a2"])
    assert ids(await talk.search("c", "umbrella suitcase")) in (["t1"], [])
    await talk.restore("c", [user("all anew", id="new")])
    assert ids(await talk.search("c", "anew porto")) == ["new"]
    await talk.clear("c")
    assert await talk.search("c", "anew") == []
    await talk.append("c", user("once more anew", id="again"))
    assert ids(await talk.search("c", "anew")) == ["again"]
    await talk.delete_conversation("c")
    assert await talk.search("c", "anew") == []
    assert ids(await talk.search("other", "suitcase")) == ["secret"]


async def test_messages_written_without_search_are_found(stores: Any) -> None:
    silent, store = stores(search="off"), stores()
    await silent.append_many("c", TALK)
    assert set(ids(await silent.search("c", "lisbon"))) == {"u1"}
    for _ in range(2):  # the second time by the documents that the first time wrote, where there is an index
        assert set(ids(await store.search("c", "lisbon porto"))) == {"u1", "t1", "a2"}
    await silent.update_message("c", user("Madrid", id="u1"))
    assert ids(await store.search("c", "lisbon")) == []
    assert ids(await store.search("c", "madrid")) == ["u1"]


@pytest.mark.smoke
async def test_all_conversations(talk: Any, stores: Any) -> None:
    if stores.backend == "plain" or stores.custom:
        with pytest.raises(CapabilityError, match="search"):
            await talk.reindex()
    hits = await talk.search_all("suitcase", context=1)
    assert {(hit.conversation_id, hit.message.id) for hit in hits} >= {("other", "secret"), ("c", "u1"), ("c", "a2")}
    for hit in hits:
        assert hit.message == await talk.get_message(hit.conversation_id, hit.message.id)
    assert ids(await talk.search_all("suitcase", roles=["assistant"])) == ["a2"]
    assert await talk.search_all("nothing of that") == []
    assert await talk.search_all("") == []
    window = {"since": "2026-01-01", "before": "2026-01-05"}
    assert ids(await talk.search_all("porto lisbon upgrade tomorrow", roles=["user", "assistant"], **window)) == ["a2"]
    for since in ("2026-01-05", "2030-01-01"):
        assert await talk.search_all("suitcase", since=since, before="2026-01-05") == []
    first = await talk.search_all("suitcase", limit=1)
    assert ids(first) + ids(await talk.search_all("suitcase", offset=1)) == ids(await talk.search_all("suitcase"))
    await talk.delete_conversation("other")
    assert "secret" not in ids(await talk.search_all("suitcase"))


@pytest.mark.proves("search-isolated")
async def test_a_search_over_some_conversations(stores: Any) -> None:
    """Those of an owner, of an agent, or by name; also where the server cannot search. Others are not ranked."""
    store = stores()
    owners = {"a": (1, "rail"), "b": (1, "air"), "c": ("1", "rail"), "d": (None, None)}
    for number, (name, (owner, agent)) in enumerate(owners.items()):
        await store.create_conversation(Conversation(name, user_id=owner, agent_name=agent))
        await store.append_many(name, [user(f"a word of {name}", id=name), *([user("word word word")] * (number == 3))])
    for within, found in (
        ({"user_id": 1}, {"a", "b"}),
        ({"user_id": "1"}, {"c"}),
        ({"agent_name": "rail"}, {"a", "c"}),
        ({"user_id": 1, "agent_name": "rail"}, {"a"}),
        ({"conversation_ids": ["d", "b", "missing", "b"]}, {"b", "d"}),
        ({"conversation_ids": []}, set()),
        ({"user_id": 1, "conversation_ids": ["b", "c"]}, {"b"}),
        ({"user_id": 2}, set()),
    ):
        hits = await store.search_all('word "of"', **within)
        assert {hit.conversation_id for hit in hits} == found
        best = await store.search_all("word", limit=1, **within)
        assert (len(best), best.total) == (min(1, len(found)), len(found) + ("d" in found))
    with pytest.raises(InvalidInputError, match="conversation_ids"):
        await store.search_all("word", conversation_ids="a")


async def test_pages_stay_while_messages_arrive(store: Any) -> None:
    await store.append_many("c", [user(f"word {n}", id=str(n)) for n in range(12)])
    now = (await store.append("other", user("the time of the first page"))).message.timestamp
    pages = []
    for page in range(3):
        hits = await store.search("c", "word", limit=5, offset=5 * page, before=now)
        assert hits.total == 12
        pages += ids(hits)
        await store.append_many("c", [user("word word", id=f"new {page} {n}") for n in range(7)])
    assert sorted(pages, key=int) == [str(n) for n in range(12)]


async def test_messages_from_a_time_that_the_query_names_come_first(store: Any) -> None:
    for month in range(1, 13):
        painted = user(f"we painted {'abcdefghijkl'[month - 1] * 4}", id=f"p{month}", timestamp=f"2023-{month:02}-10")
        await store.append_many("c", [painted, user("so so", timestamp=f"2023-{month:02}-11")])
    assert ids(await store.search("c", "What did they paint?", limit=1)) != ["p3"]
    for query in ("What did they paint in March 2023?", "painted on March 10, 2023", "painted, 2023-03"):
        assert ids(await store.search("c", query, limit=1)) == ["p3"]
    assert ids(await store.search("c", "painted in March 2024", limit=1)) != ["p3"]
    assert len(await store.search("c", "paint in March 2023", limit=50)) == 12
    assert ids(await store.search("c", "painted in March 2023", limit=1, before="2023-03-01")) != ["p3"]


async def test_a_code_is_found_before_messages_with_its_pieces(store: Any) -> None:
    texts = [
        "the step 12 of src main",
        "src/step/main.py line 12",
        "main.py is in src, step by step",
        "12 main steps, py",
    ]
    await store.append_many("c", [user(text, id=str(number)) for number, text in enumerate(texts * 2)])
    assert set(ids(await store.search("c", "what about src/step/main.py", limit=2))) == {"1", "5"}
    await store.append("c", user("call getUserName(x)", id="whole"))
    await store.append("c", user("get the name of the user", id="parts"))
    assert ids(await store.search("c", "getUserName"))[0] == "whole"
    assert set(ids(await store.search("c", "user name", limit=2))) == {"whole", "parts"}


async def test_a_named_writer_comes_first(store: Any) -> None:
    ann, bob, ming = (
        Participant("user", "u-1", "Ann Lee"),
        Participant("user", "bob"),
        Participant("user", "u-3", "王小明"),
    )
    for name, writer in (("a", ann), ("b", bob), ("m", ming)):
        await store.append("c", user("I like camping, 我喜欢电影", id=name, participant=writer))
        await store.append_many("c", [user(f"nothing {n}", id=f"{name}{n}") for n in range(5)])
    for query, first in (
        ("What does Ann like?", "a"), ("What does bob like?", "b"), ("小明喜欢什么电影", "m"), ("was LEE camping", "a"),
    ):  # fmt: skip
        assert ids(await store.search("c", query))[0] == first, query
    assert ids(await store.search("c", "Ann camping", participant_ids=["bob"])) == ["b"]


@pytest.mark.proves("found")
async def test_a_name_counts_only_for_messages_with_a_word(store: Any) -> None:
    ann, bob = Participant("user", "ann"), Participant("user", "bob")
    said = [("Where is bob?", ann), ("Over there.", bob), *[("Hello.", ann)] * 5, ("I see bob.", ann)]
    await store.append_many("c", [user(text, participant=writer) for text, writer in said])
    found = [hit.message.text for hit in await store.search("c", "bob")]
    assert found == ["I see bob.", "Where is bob?", "Over there."]


async def test_days_are_those_of_the_time_zone(talk: Any) -> None:
    reports = [user("A report.", id=f"r{day}", timestamp=f"2026-05-0{day}T20:00:00Z") for day in (7, 8)]
    await talk.append_many("days", reports)
    beijing = timezone(timedelta(hours=8))
    assert ids(await talk.search("days", "the report of 8 May 2026"))[0] == "r8"
    assert ids(await talk.search("days", "the report of 8 May 2026", time_zone=beijing))[0] == "r7"
    assert ids(await talk.search("days", "2026年5月8日的 report", time_zone=beijing))[0] == "r7"
    run = AsyncConversationSearchTool(talk, "days", time_zone=beijing).run(
        {"query": "report of 8 May 2026", "limit": 1}
    )
    assert '"time":"2026-05-07 20:00 UTC"' in await run
    with pytest.raises(InvalidInputError, match="time_zone must be a tzinfo"):
        await talk.search("days", "report", time_zone="Europe/Berlin")


async def test_a_search_for_more_than_servers_give_is_refused(store: Any) -> None:
    await store.append("c", user("needle"))
    assert len(await store.search("c", "needle", limit=999_999, offset=0, token_cap=10**30)) == 1
    for wrong in ({"limit": 2**31}, {"limit": 10**30}, {"offset": 999_991}):
        for call in (store.search("c", "needle", **wrong), store.search_all("needle", **wrong)):
            with pytest.raises(InvalidInputError, match=r"limit \+ offset must be .* 1,000,000"):
                await call
