"""Where in a message the terms are."""

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import Message, Participant, text, tool_result, tool_use, user
from redis_history.store.search.hits import FRAGMENT, FRAGMENTS, highlights
from redis_history.store.search.query import parse_query
from redis_history.store.search.text import searchable


def marked(written: str, query: str, **options: str) -> list[str]:
    return [one.marked("[", "]") for one in highlights(user(written), parse_query(query), **options)]


@pytest.mark.parametrize("stemmer", [True, False])
@pytest.mark.parametrize(
    ("written", "query", "expected"),
    [
        ("We went Camping; they camped.", "camp", "We went [Camping]; they [camped]."),
        ("The “green  tea” was green", '"Green Tea"', "The “[green  tea]” was green"),
        ("woods and woody", "woo*", "[woods] and [woody]"),
        ("ＦＵＬＬ ﬁsh Straße", "full fish STRASSE", "[ＦＵＬＬ] [ﬁsh] [Straße]"),
        ("snake_case is don't", '"snake case" don\'t', "[snake_case] is [don]'t"),
        ("很好看的电影，去电影院。", "电影院", "很好看的[电影]，去[电影院]。"),
        ("很好看的电影，去电影院。", '"看的电影"', "很好[看的电影]，去电影院。"),
        ("ABC电影院 猫", "abc 猫 影", "[ABC]电[影院] [猫]"),
        ("हिन्दी भाषा", "हिन्दी", "[हिन्दी] भाषा"),
        ("the cat", "the", "[the] cat"),
    ],
)
def test_marks(monkeypatch: pytest.MonkeyPatch, stemmer: bool, written: str, query: str, expected: str) -> None:
    if stemmer:
        pytest.importorskip("Stemmer")
    else:
        monkeypatch.setattr("redis_history.store.search.hits.load_stemmer", lambda language: None)
    assert marked(written, query) == [expected]


def test_other_words_are_not_marked() -> None:
    assert marked("universal news of a campus", "camp universe new") in ([], ["[universal] [news] of a campus"])
    assert marked("nothing here", "tea") == []
    assert marked("tea", "!") == []


def test_fragments_are_short_and_few() -> None:
    found = highlights(user(("filler " * 100 + "needle ") * 9), parse_query("needle"))
    assert len(found) == FRAGMENTS
    for one in found:
        assert len(one.text) <= FRAGMENT
        assert one.text.split()[0] == "filler"
        ((start, end),) = one.ranges
        assert one.text[start:end] == "needle"
    (one,) = highlights(user("x" * 20_000 + " needle"), parse_query("needle x*")) or (None,)
    assert one is None or len(one.text) <= FRAGMENT


def test_every_part_of_a_message() -> None:
    message = Message(
        role="assistant",
        parts=(text("one"), tool_use("1", "get_weather", {"city": "Oslo"})),
        participant=Participant("agent", "a", display_name="Ada"),
    )
    (found,) = highlights(message, parse_query("weather oslo ada"))
    assert found.marked("[", "]") == "[Ada]: one\nget_[weather]\n[Oslo]"


@given(st.text(st.characters(), max_size=400), st.text(st.characters(), max_size=40))
def test_ranges_lie_in_the_text(written: str, query: str) -> None:
    message = user(written)
    for one in highlights(message, parse_query(query + " " + written[:10])):
        assert one.text in searchable(message)
        end = 0
        for start, stop in one.ranges:
            assert end <= start < stop <= len(one.text)
            end = stop
        assert one.marked("", "") == one.text


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "Z", "P"]), max_size=60))
def test_what_is_found_is_marked(written: str) -> None:
    plain = written.replace('"', " ")
    query = parse_query(plain.split()[0] if plain.split() else "", "none")
    if query.terms:
        assert highlights(user(plain), query, language="none")


def test_text_without_blanks_takes_as_little_time_as_other_text() -> None:
    """170 ms for each hit in version 0.2, because each character was examined as its own text."""
    written = "很好看的电影，去电影院。" * 1_300
    highlights(user(written), parse_query("电影院"))  # loads tables
    taken = []
    for _ in range(3):
        started = time.process_time()
        assert highlights(user(written), parse_query("电影院"))
        taken.append(time.process_time() - started)
    assert min(taken) < 0.07


def test_highlights_have_no_base64() -> None:
    data = base64.b64encode(bytes(range(256)) * 20).decode()
    for shown in (f"![shot](data:image/png;base64,{data}) the needle", f"{data} the needle"):
        for message in (user(shown), user(tool_result("c", shown))):
            [fragment] = highlights(message, parse_query("needle"))
            assert fragment.marked("<", ">").endswith("the <needle>")
            assert data[:40] not in fragment.text
