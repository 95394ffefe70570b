"""Summaries: their form, the checks of answers, and the extractive summarizer."""

import json
from typing import Any

import pytest

from redis_history import Message, Participant, assistant, extractive_summarizer, tool, tool_result, tool_use, user
from redis_history.agents.compaction import summaries
from redis_history.agents.compaction.rendering import chunks, render
from redis_history.errors import ConfigurationError, SummaryError
from redis_history.values import AttachmentPart, ReasoningPart
from redis_history.values.sizes import message_tokens

LONG = [user(f"Message number {number} says that the suitcase is in Porto.") for number in range(40)]


def test_a_summary_has_a_frame() -> None:
    message = summaries.summary_message("Ann lost\nher bag.")
    assert (message.role, message.is_summary) == ("user", True)
    assert message.text == "[Earlier conversation summary: Ann lost\nher bag.]"
    assert summaries.read_summary(message) == "Ann lost\nher bag."
    assert summaries.read_summary(user("Another form.", metadata={"is_summary": True})) == "Another form."
    imitated = summaries.usable(" [Earlier conversation summary: Ann lost her bag.]\n", LONG)
    assert imitated.text == "[Earlier conversation summary: Ann lost her bag.]"


@pytest.mark.parametrize(
    "answer", [None, 7, b"bytes", ["text"], "", " \n", "[Earlier conversation summary: ]", "\ud800"]
)
def test_a_summary_must_be_text(answer: Any) -> None:
    with pytest.raises(SummaryError):
        summaries.usable(answer, LONG)


def test_a_summary_is_shorter_than_what_it_replaces() -> None:
    before = sum(map(message_tokens, LONG))
    with pytest.raises(summaries.NoGainError):
        summaries.usable("x" * 4 * before, LONG)
    assert summaries.usable("x" * (4 * before - 100), LONG)
    with pytest.raises(summaries.SummaryTooLongError) as caught:
        summaries.usable("x" * 400, LONG, 50)
    assert caught.value.tokens > 100
    with pytest.raises(summaries.NoGainError):
        summaries.usable("x", [user("")])
    counted = []
    with pytest.raises(summaries.SummaryTooLongError):
        summaries.usable("word " * 200_000, LONG, tokens_of=lambda message: counted.append(message) or 10**9)
    assert len(counted) == len(LONG), "a tokenizer would need minutes for a megabyte"


# As text


def test_messages_as_text() -> None:
    ann = Participant("user", "u1", "Ann")
    for message, record in (
        (user("Hello", participant=ann), {"role": "user", "name": "Ann", "text": "Hello"}),
        (user("Hello", "there"), {"role": "user", "text": "Hello\nthere"}),
        (
            assistant(ReasoningPart(text="hm"), "Yes.", tool_use("c", "find", {"q": 1})),
            {"role": "assistant", "parts": [{"text": "Yes."}, {"calls": "find", "with": '{"q":1}'}]},
        ),
        (assistant(tool_use("c", "now")), {"role": "assistant", "parts": [{"calls": "now", "with": ""}]}),
        (
            tool(tool_result("c", [{"type": "text", "text": "found"}])),
            {"role": "tool", "parts": [{"tool": "", "result": "found"}]},
        ),
        (
            tool(tool_result("c", {"a": [1]}, is_error=True, name="find")),
            {"role": "tool", "parts": [{"tool": "find", "error": '{"a":[1]}'}]},
        ),
        (user(AttachmentPart(name="a.pdf")), {"role": "user", "parts": [{"file": "a.pdf"}]}),
    ):
        assert json.loads(render(message, 1_000)) == record
    assert render(assistant(ReasoningPart(text="hm")), 1_000) == ""


@pytest.mark.parametrize("unit", ["x", "\x01", "</", "\u2028", '"\\', "🦜"])
@pytest.mark.parametrize("most", [400, 1_000])
def test_a_rendered_message_keeps_its_bound_whatever_must_be_escaped(unit: str, most: int) -> None:
    text = unit * 5_000
    name = Participant("user", "u", "\\" * 100)
    for message in (user(text, participant=name), assistant("ok", tool_use("c", "find", {"q": text}))):
        line = render(message, most)
        assert len(line) <= most
        assert json.loads(line)["text"]


def test_portions_have_all_messages_in_order() -> None:
    portions = list(chunks(LONG, 300))
    assert "\n".join(portions).splitlines() == [render(message, 300) for message in LONG]
    assert all(len(portion) <= 300 for portion in portions)
    assert len(portions) > 5
    assert list(chunks([Message(role="user")], 100)) == []


# Without a model

TALK = [
    user("I lost my suitcase on the flight to Lisbon. It is a red suitcase with a sticker of a whale."),
    assistant("I am sorry. What is the tag number of the suitcase?"),
    user("Yes."),
    user("The tag number of the suitcase is KL 4711."),
    assistant(tool_use("c1", "find_luggage", {"tag": "KL 4711"})),
    tool(tool_result("c1", '{"airport": "OPO", "note": "The suitcase KL 4711 is in Porto."}')),
    assistant("The suitcase KL 4711 is in Porto. It comes to Lisbon tomorrow with the first flight."),
    user("Thank you!"),
    assistant("The weather in Lisbon is sunny."),
] * 2  # fmt: skip


def test_sentences_are_taken_word_for_word_with_their_speakers() -> None:
    lines = extractive_summarizer(max_tokens=60)(TALK, None).splitlines()
    assert "User: The tag number of the suitcase is KL 4711." in lines
    assert not any("Thank you" in line or "{" in line for line in lines)
    assert len(set(lines)) == len(lines)


def test_an_extract_keeps_names_numbers_and_wishes_of_all_parts_of_a_long_conversation() -> None:
    wanted = [("contract", "Okafor"), ("invoice", "Lindqvist"), ("passport", "Moreau"), ("recipe", "Tanaka")]
    facts = [f"I want the {thing} of Mrs {name} by {day} March." for day, (thing, name) in enumerate(wanted, 11)]
    chat = ["That sounds really great, thank you so much!", "How do you feel about it these days?", "Of course, sure!"]
    messages = [user(fact if at == 5 else chat[at % 3]) for fact in facts for at in range(20)]
    messages += [assistant("I am glad that you feel great about it.")]
    summary = extractive_summarizer(max_tokens=70)(messages, None)
    assert all(fact in summary for fact in facts)


@pytest.mark.parametrize("most", [16, 40, 400, 5000])
def test_the_length_of_an_extract_is_limited(most: int) -> None:
    tools = [one for number in range(300) for one in _calls(f"tool_number_{number}", {"a": "b" * 100})]
    for messages in (TALK, tools, [user("x" * 50_000)], _calls("x" * 64, {}, {}), _calls("x" * 1000, {})):
        summary = extractive_summarizer(max_tokens=most)(messages, None)
        assert 0 < len(summary) <= 4 * most
        assert summaries.usable(summary, messages)
    with pytest.raises(SummaryError):
        extractive_summarizer(max_tokens=most)([user(" "), assistant(ReasoningPart(text="hm")), tool()], None)


def test_the_previous_summary_competes_with_new_sentences() -> None:
    previous = "Ann: My name is Ann Miller and my suitcase is green.\nAnn: The parrot sings operas at night."
    summary = extractive_summarizer(max_tokens=100)(TALK, previous)
    assert summary.startswith("Ann: My name is Ann Miller and my suitcase")
    assert "KL 4711" in summary
    summarize = extractive_summarizer(max_tokens=80)
    for start in range(10):
        summary = summarize([user(f"Task {start} about the engine of ship {start} is done.")] * 3 + TALK, summary)
        assert len(summary) <= 320


def test_languages_without_blanks() -> None:
    messages = [user("我想退票。航班号是八八零一。"), assistant("好的，航班八八零一的退票已经办理。")] * 8
    assert "八八零一" in extractive_summarizer(language="none", max_tokens=30)(messages, None)


def test_data_is_quoted_by_its_beginning() -> None:
    """Results without their calls, and files."""
    messages = [tool(tool_result(f"c{n}", f'{{"price": {n}}}', name="find")) for n in range(40)]
    messages += [user(AttachmentPart(name="a.pdf")), tool(tool_result("c", {"rows": ["x" * 500]}, is_error=True))]
    lines = extractive_summarizer(max_tokens=40)(messages, None).splitlines()
    assert lines == [
        'Tool: [tool: find, result: {"price": 39}]',
        "User: [file: a.pdf]",
        'Tool: [error: {"rows":["' + "x" * 36,
    ]


def _calls(name: str, *inputs: Any, failing: bool = False, **fields: Any) -> list[Message]:
    found = []
    for number, given in enumerate(inputs):
        found.append(assistant(tool_use(f"c{number}", name, given), **fields))
        found.append(tool(tool_result(f"c{number}", '{"ok": 1}', is_error=failing)))
    return found


def test_tool_calls_are_listed() -> None:
    ann = Participant("agent", "a", "Ann")
    messages = [
        *_calls("bash", *({"command": f"ls -l  dir{number}\n"} for number in range(40))),
        *_calls("find", {"city": "Oslo", "day": 3}, {"city": "Rome", "day": 4}, failing=True, participant=ann),
        *_calls("now", None),
    ]
    lines = extractive_summarizer(max_tokens=60)(messages, None).splitlines()
    assert lines == [
        "Assistant called bash 40 times: …; ls -l dir37; ls -l dir38; ls -l dir39",
        'Ann (assistant) called find twice (2 failed): …; {"city":"Rome","day":4}',
        "Assistant called now once",
    ]
    assert summaries.usable("\n".join(lines), messages)


def test_calls_are_listed_after_sentences_if_there_is_room() -> None:
    calls = _calls("bash", *({"command": f"ls -l dir{number}"} for number in range(40)))
    lines = extractive_summarizer()([user("Please have a look at all the directories of this machine."), *calls], None)
    first, second = lines.splitlines()
    assert first == "User: Please have a look at all the directories of this machine."
    assert second.startswith("Assistant called bash 40 times: …; ")
    previous = "Ann: My name is Ann Miller and my suitcase is green."
    assert extractive_summarizer()(calls, previous).startswith(f"{previous}\nAssistant called bash 40 times: ")


def test_bad_options_of_the_extract() -> None:
    with pytest.raises(ConfigurationError, match="max_tokens"):
        extractive_summarizer(max_tokens=3)
    with pytest.raises(ConfigurationError, match="klingon"):
        extractive_summarizer(language="klingon")
