"""The steps of a prompt, one by one, and together over any history."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_history import (
    AttachmentPart,
    HistoryStore,
    Message,
    PromptOptions,
    ReasoningPart,
    TextPart,
    assemble_messages,
    assemble_prompt,
    assistant,
    system,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError, InvalidInputError
from redis_history.values.reasoning_parts import only_reasoning
from redis_history.values.sizes import count_characters, estimate_tokens
from tests.support.prompts import ANN, BOB, CRITIC, HELPER, NOW, holds_pairs, ids, prompt, shown

# Addressed only


NAMED = [
    *("the helper: hi", "hi THE\n  HELPER!", "hi Ｔhe Helper", "ask hex, he knows", "hex's idea", "hexagon or hex"),
    *("请hex帮我", "请小助手帮我", "the h7 thing", "@helper go"),
]
NOT_NAMED = ["the helpers", "bathe helper", "hexagon", "use hex-tools", "un-hex it", "helper"]
MENTIONS = [["helper"], ["@The Helper"], ["<@H7>"]]
NO_MENTIONS = [["someone"], [7, None], "helper"]
ADDRESSED = [
    *map(user, NAMED),
    *(user("hi", metadata={"mentions": mentions}) for mentions in MENTIONS),
    user([text("what"), text("hex?")]),
    user("hi", scope="dm"),
    assistant("Ask the helper.", participant=CRITIC),
    assistant("I said", participant=HELPER),
    system("the rules"),
]
NOT_ADDRESSED = [
    *map(user, NOT_NAMED),
    *(user("hi", metadata={"mentions": mentions}) for mentions in NO_MENTIONS),
    user("hi", scope="channel"),
    assistant("Ask me.", participant=CRITIC),
]


@pytest.mark.parametrize("kept", [True, False])
def test_who_is_addressed(kept: bool) -> None:
    crowd = [user("x", participant=BOB, id="bob"), user("y", participant=ANN, id="ann")]
    for message in ADDRESSED if kept else NOT_ADDRESSED:
        options = {"addressed_only_mode": True, "agent_aliases": ("hex", "H7", "小助手")}
        found = prompt([*crowd, message], **options)
        assert [one.id for one in found.messages] == ([message.id] if kept else []), message
        assert found.report.ids("not_addressed") == ["bob", "ann", *([] if kept else [message.id])]


ROOM = [
    system("The rules.", id="rules"),
    user("The helper should look.", id="named", participant=ANN),
    user("Only for you.", id="dm", participant=ANN, scope="dm"),
    user("Please look.", id="mention", participant=ANN, metadata={"mentions": ["helper"]}),
    user("Please look.", id="alias", participant=ANN, metadata={"mentions": ["@P7"]}),
    assistant(tool_use("c1", "trains"), id="call", participant=HELPER),
    tool(tool_result("c1", "9:30"), id="result", participant=HELPER),
    assistant("A late rule.", id="critic", participant=CRITIC),
    system("A late rule.", id="late"),
    user("Lovely weather.", id="weather", participant=ANN),
    assistant("At 9:30.", id="own", participant=HELPER),
]


def test_the_report_says_why_a_message_is_addressed() -> None:
    found = prompt(ROOM, addressed_only_mode=True, agent_aliases=["P7"])
    assert {one.message_id: one.reason for one in found.report.addressed} == {
        "rules": "system", "named": "named", "dm": "dm", "mention": "mention", "alias": "mention", "call": "own",
        "result": "own", "late": "system", "own": "own",
    }  # fmt: skip
    assert [one.message_id for one in found.report.addressed] == [message.id for message in found.messages]
    assert found.report.ids("not_addressed") == ["critic", "weather"]
    strict = prompt(ROOM, addressed_only_mode="strict", agent_aliases=["P7"])
    assert [message.id for message in strict.messages] == ["mention", "alias", "call", "result", "own"]
    assert {one.reason for one in strict.report.addressed} == {"mention", "own"}
    assert strict.report.ids("not_addressed") == ["rules", "named", "dm", "critic", "late", "weather"]
    assert prompt(ROOM).report.addressed == ()


def test_two_who_talk_need_no_names() -> None:
    talk = [
        user("hi", participant=ANN, id="1"),
        assistant("hello", participant=HELPER, id="2"),
        user("so?", participant=ANN, id="3"),
    ]
    for messages, kept in (
        (talk, ["1", "2", "3"]),
        ([user("hi", id="1"), assistant("hello", id="2")], ["1", "2"]),
        ([*talk, user("and me?", participant=BOB, id="4")], ["2"]),
        ([user("hi", participant=ANN, id="1", scope="channel")], []),
        ([user("hi", id="1", metadata={"mentions": ["bob"]})], []),
    ):
        assert ids(messages, addressed_only_mode=True) == kept
    assert ids(talk, addressed_only_mode="strict") == ["2"]
    also = {"also_addressed": lambda message: message.text == "so?"}
    assert ids([*talk, user("and me?", participant=BOB, id="4")], addressed_only_mode=True, **also) == ["2", "3"]


# Time window


def test_the_time_window() -> None:
    talk = [
        system("rules", id="s", timestamp=NOW - timedelta(days=9)),
        user("sum", id="y", timestamp=NOW - timedelta(days=8), metadata={"is_summary": True}),
        user("old", id="1", timestamp=NOW - timedelta(minutes=30, microseconds=1)),
        user("edge", id="2", timestamp=NOW - timedelta(minutes=30)),
        user("just in", id="2b", timestamp=NOW - timedelta(minutes=30) + timedelta(microseconds=1)),
        user("ahead", id="3", timestamp=NOW + timedelta(hours=1)),
        user("no time", id="4"),
    ]
    assert ids(talk, time_window_minutes=30, now=NOW) == ["s", "y", "2b", "3", "4"]
    assert prompt(talk, time_window_minutes=30, now=NOW).report.ids("time_window") == ["1", "2"]
    assert ids(talk, time_window_minutes=0.5, now=NOW.isoformat()) == ["s", "y", "3", "4"]


def test_a_call_is_as_new_as_its_result() -> None:
    talk = [
        assistant(tool_use("c", "find"), id="call", timestamp=NOW - timedelta(hours=2)),
        tool(tool_result("c"), id="result", timestamp=NOW),
    ]
    assert ids(talk, time_window_minutes=5, now=NOW) == ["call", "result"]


# Pairs


def test_what_has_no_other_half_is_left_out() -> None:
    talk = [
        tool(tool_result("lost"), id="r0"),
        assistant(["Looking.", tool_use("c1", "a"), tool_use("c2", "b")], id="call"),
        tool(tool_result("c1", "1"), id="r1"),
        assistant(tool_use("c3", "a"), id="open"),
    ]
    found = prompt(talk)
    assert [message.id for message in found.messages] == ["call", "r1"]
    assert found.messages[0].parts == (text("Looking."), tool_use("c1", "a"))
    assert [(one.message_id, one.partial) for one in found.report.left_out] == [
        ("r0", False),
        ("call", True),
        ("open", False),
    ]
    assert {one.reason for one in found.report.left_out} == {"pair"}


def test_a_result_belongs_to_the_call_of_its_agent() -> None:
    talk = [
        assistant(tool_use("c", "a"), id="mine", participant=HELPER),
        assistant(tool_use("c", "a"), id="theirs", participant=CRITIC),
        user("meanwhile", id="m"),
        tool(tool_result("c", "for me"), id="r-mine", participant=HELPER),
        tool(tool_result("c", "for them"), id="r-theirs", participant=CRITIC),
    ]
    assert ids(talk) == ["mine", "r-mine", "m"]


# Options and results


@pytest.mark.parametrize(
    "options",
    [
        *({"scope": "room"}, {"token_budget": 0}, {"token_budget": 1.5}, {"rolling_summary_threshold": 0}),
        *({"max_turns_to_load": None}, {"max_turns_to_load": 100_001}, {"addressed_only_mode": 1}),
        *({"time_window_minutes": minutes} for minutes in (0, float("nan"), 1e9)),
        *({"agent_aliases": "hex"}, {"agent_aliases": [""]}, {"agent_aliases": 7}, {"system_prompt": 7}),
        *({"token_counter": 7}, {"also_addressed": 7}, {"maxTurnsToLoad": 7}, {7: 7}, "token_budget", 7),
    ],
)
def test_options_that_make_no_sense(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        assemble_messages([], "a", "A", options)


def test_as_dicts() -> None:
    talk = [system("s"), user("hi", participant=ANN), assistant(tool_use("c", "find")), tool(tool_result("c", "x"))]
    assert prompt([*talk, assistant("Done.")]).to_dicts() == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Ann: hi"},
        {"role": "assistant", "content": "Done."},
    ]


def test_the_scope_of_loaded_messages() -> None:
    talk = [user(str(n), id=str(n), scope="dm" if n % 2 else "thread") for n in range(6)]
    found = assemble_messages(talk, "a", "A", {"scope": "dm", "max_turns_to_load": 2})
    assert [message.id for message in found.messages] == ["3", "5"]
    assert found.report.ids("scope") == ["0", "2", "4"]


@pytest.mark.parametrize("mode", [True, "strict"])
def test_a_pinned_message_is_for_every_agent(mode: Any) -> None:
    talk = [
        user("Answer in French.", id="pin", participant=ANN, metadata={"pinned": True}),
        user("hi", id="other", participant=BOB),
    ]
    found = prompt(talk, addressed_only_mode=mode)
    assert [(one.message_id, one.reason) for one in found.report.addressed] == [("pin", "pinned")]


# Budget


def test_the_budget_is_filled_from_the_newest() -> None:
    talk = [user("x" * 40, id=str(n)) for n in range(10)]  # ten tokens each
    found = prompt(talk, token_budget=35)
    assert [message.id for message in found.messages] == ["7", "8", "9"]
    assert found.report.tokens == 30
    assert not found.report.over_budget
    assert found.report.ids("budget") == [str(n) for n in range(7)]
    assert len(prompt(talk, token_budget=None).messages) == 10


@pytest.mark.proves("prompts")
def test_what_is_always_inside() -> None:
    talk = [
        system("r" * 400, id="s"),
        user("z" * 400, id="y", metadata={"is_summary": True}),
        user("old", id="1"),
        user("x" * 400, id="2"),
    ]
    found = prompt(talk, token_budget=10, system_prompt="You help.")
    assert [message.id for message in found.messages] == ["system_prompt", "s", "y", "2"]
    assert found.report.over_budget
    assert found.report.system_tokens == 103
    assert found.report.summary_tokens == 108
    assert found.report.tokens == 103 + 108 + 100


def test_a_pinned_message_does_not_take_the_place_of_the_newest_turn() -> None:
    talk = [user("x" * 40, id="pin", metadata={"pinned": True}), *(user("x" * 40, id=str(n)) for n in range(3))]
    assert ids(talk, token_budget=15) == ["pin", "2"]
    assert ids([*talk, user(" ", id="empty")], token_budget=15) == ["pin", "2"]
    assert ids(talk, token_budget=30) == ["pin", "1", "2"]


def test_blank_texts_beside_other_parts_are_left_out() -> None:
    """Models write line breaks before their calls, and some APIs reject them."""
    signed = TextPart("", provider_meta={"gemini": {"thought_signature": "c2ln"}})
    call, result, file = tool_use("1", "f"), tool_result("1", "r"), AttachmentPart(reference="https://x.test/a.png")
    talk = [user("", file), assistant("\n\n", signed, call), tool(" ", result), user("so?")]
    found = [message.parts for message in prompt(talk).messages]
    assert found == [(file,), (signed, call), (result,), (TextPart("so?"),)]


def test_a_pair_is_cut_as_a_whole() -> None:
    talk = [
        assistant(tool_use("c", "find", {"q": "x" * 200}), id="call"),
        tool(tool_result("c", "ok"), id="result"),
        user("thanks", id="u"),
    ]
    found = prompt(talk, token_budget=20)
    assert [message.id for message in found.messages] == ["u"]
    assert found.report.ids("budget") == ["call", "result"]
    assert ids(talk[:2], token_budget=20) == ["call", "result"], "the newest turn, as a whole"


def test_a_counter_of_the_caller() -> None:
    talk = [
        user("one two three", id="1", participant=ANN),
        assistant(tool_use("c", "find", {"q": "a b"}), id="2"),
        tool(tool_result("c", [{"type": "text", "text": "x y"}]), id="3"),
    ]
    counted: list[str] = []

    def count(counted_text: str) -> int:
        counted.append(counted_text)
        return len(counted_text.split())

    assert prompt(talk, token_counter=count).report.tokens == 9
    assert counted == ['find\n{"q":"a b"}', '[{"type":"text","text":"x y"}]', "Ann: one two three"]
    with pytest.raises(InvalidInputError, match="token_counter"):
        prompt(talk, token_counter=lambda text: -1)


# Summaries


def test_the_older_turns_are_summarized() -> None:
    talk = [system("rules", id="s"), *(user(f"m{n}", id=str(n)) for n in range(6)), system("note", id="n")]
    talk.insert(3, system("an old note", id="o"))
    given: list[list[str]] = []

    def summarize(messages: Sequence[Message], previous: str | None) -> str:
        given.append([message.id for message in messages])
        return "they talked"

    found = prompt(talk, rolling_summary_threshold=4, summarizer=summarize)
    assert given == [["0", "1"]]
    assert [message.id for message in found.messages] == ["s", "summary", "o", "2", "3", "4", "5", "n"]
    assert found.messages[1].text == "[Earlier conversation summary: they talked]"
    assert found.messages[1].role == "system"
    assert found.messages[1].is_summary
    assert found.report.ids("summarized") == ["0", "1"]
    assert ids(talk, rolling_summary_threshold=6, summarizer=summarize)[1] == "0"
    assert len(given) == 1


def test_an_earlier_summary_is_used_or_absorbed() -> None:
    earlier = user("they met", id="y", metadata={"is_summary": True})
    talk = [user("0", id="0"), earlier, *(user(str(n), id=str(n)) for n in range(1, 5))]
    assert shown(talk)[0] == ("user", "[Earlier conversation summary: they met]")
    given: list[Any] = []

    def summarize(messages: Sequence[Message], previous: str | None) -> str:
        given.extend([*(message.id for message in messages), previous])
        return "they met and talked"

    found = prompt(talk, rolling_summary_threshold=3, summarizer=summarize)
    assert given == ["0", "1", "they met"]
    assert [message.id for message in found.messages] == ["summary", "2", "3", "4"]
    assert found.report.ids("summarized") == ["0", "y", "1"]
    assert found.messages[0].text == "[Earlier conversation summary: they met and talked]"


def test_a_pair_is_not_split_by_a_summary() -> None:
    talk = [
        user("a", id="a"),
        assistant(tool_use("c", "find"), id="call"),
        tool(tool_result("c"), id="result"),
        user("b", id="b"),
    ]
    given: list[list[str]] = []
    for threshold in (1, 2, 3):
        prompt(
            talk,
            rolling_summary_threshold=threshold,
            summarizer=lambda messages, previous: given.append([message.id for message in messages]),
        )
    assert given == [["a", "call", "result"], ["a", "call", "result"], ["a"]]
    kept = ids(talk[:3], rolling_summary_threshold=1, summarizer=lambda messages, previous: "they met")
    assert kept == ["summary", "call", "result"], "the newest turn is not summarized, however long"


def test_what_a_summarizer_may_return() -> None:
    talk = [user(str(n), id=str(n)) for n in range(50)]
    for nothing in (None, "", "  ", "[Earlier conversation summary: ]"):  # the budget decides
        assert len(ids(talk, summarizer=lambda messages, previous, nothing=nothing: nothing)) == len(ids(talk)) == 50
    for wrong in (7, user("a message"), b"bytes"):
        with pytest.raises(InvalidInputError, match="summarizer"):
            prompt(talk, summarizer=lambda messages, previous, wrong=wrong: wrong)
    with pytest.raises(ZeroDivisionError):
        prompt(talk, summarizer=lambda messages, previous: 1 / 0)

    async def asynchronous(messages: Sequence[Message], previous: str | None) -> str:
        return "x"

    with pytest.raises(InvalidInputError, match="AsyncHistoryStore"):
        prompt(talk, summarizer=lambda messages, previous: asynchronous(messages, previous))
    with HistoryStore("memory://") as store, pytest.raises(InvalidInputError, match="AsyncHistoryStore"):
        assemble_prompt(store, "c", "a", "A", {}, asynchronous)


# Any history


_CALLS = st.sampled_from(["c1", "c2", "c3"])
_WHO = st.sampled_from([None, ANN, BOB, HELPER, CRITIC])
_PART = st.one_of(
    st.text(max_size=20).map(text),
    st.builds(tool_use, _CALLS, st.just("find")),
    st.builds(tool_result, _CALLS, st.text(max_size=5)),
    st.just(ReasoningPart("hm")),
)
_MESSAGE = st.builds(
    lambda role, who, parts, flags: Message(role=role, participant=who, parts=tuple(parts), metadata=flags),
    st.sampled_from(["user", "assistant", "system", "tool"]),
    _WHO,
    st.lists(_PART, max_size=4),
    st.sampled_from([{}, {}, {"is_summary": True}, {"mentions": ["helper"]}]),
)


def test_reasoning_goes_with_the_next_item_only() -> None:
    def thought(name: str) -> Message:
        return Message(role="assistant", parts=(ReasoningPart("hm"),), id=name)

    blank = Message(role="assistant", parts=(TextPart(" "),), id="blank")
    answer = assistant("yes", id="answer")
    for said, kept, left_out in (
        ([thought("1"), thought("2"), answer], {"answer": 3}, set()),
        ([thought("1"), blank], {}, {"1", "blank"}),
        ([thought("1"), blank, user("and?", id="u"), answer], {"u": 1, "answer": 1}, {"1", "blank"}),
        ([answer, thought("1")], {"answer": 1}, {"1"}),
    ):
        found = assemble_messages(said, "helper", "The Helper", {"addressed_only_mode": False})
        assert {message.id: len(message.parts) for message in found.messages} == kept
        assert {one.message_id for one in found.report.left_out} == left_out


@pytest.mark.proves("prompts")
@given(
    st.lists(_MESSAGE, max_size=25),
    st.integers(1, 60),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 10)),
)
@settings(max_examples=50)
def test_any_history_gives_a_prompt_that_holds(
    messages: list[Message], budget: int, addressed: bool, threshold: int | None
) -> None:
    options = PromptOptions(token_budget=budget, addressed_only_mode=addressed, rolling_summary_threshold=threshold)
    found = assemble_messages(messages, "helper", "The Helper", options, lambda older, previous: "summary")
    assert found == assemble_messages(messages, "helper", "The Helper", options, lambda older, previous: "summary")
    report = found.report
    assert report.tokens == sum(estimate_tokens(count_characters(message)) for message in found.messages)
    holds_pairs(found.messages)
    assert report.loaded == len(messages)
    # Each message is in the prompt, or left out, or in part both. Reasoning may be in the agent's next message.
    inside = {message.id for message in found.messages} - {"summary"}
    out = {one.message_id for one in report.left_out if not one.partial}
    partial = {one.message_id for one in report.left_out if one.partial}
    known = {message.id for message in messages}
    assert known - {message.id for message in messages if only_reasoning(message)} <= inside | out | partial <= known
    assert len(report.left_out) == len({one.message_id for one in report.left_out})
    for message in found.messages:
        assert message.role in ("user", "assistant", "system", "tool")
    # Messages other than results keep their order. A summary and the system prompt stand first.
    places = {message.id: place for place, message in enumerate(messages)}
    order = [
        places[message.id]
        for message in found.messages
        if message.role != "system" and not message.is_summary and not message.tool_results
    ]
    assert order == sorted(order)
