"""Lists of messages of OpenAI, Anthropic and LangChain."""

import json

import pytest

from redis_history.formats import to_anthropic, to_openai_chat
from redis_history.integrations.importers import read_transcripts


def read(path, **options):
    problems = []
    return list(read_transcripts(path, on_error=problems.append, **options)), problems


@pytest.fixture
def load(tmp_path):
    """Writes records to a file and reads them. All must be accepted, and a second reading must give the same ids."""

    def load(*records, name="sample.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        transcripts, problems = read(path)
        assert problems == []
        assert read(path)[0] == transcripts
        return transcripts

    return load


# Lists of messages

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
CLAUDE = [
    {"role": "user", "content": "ls"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]},
]
SHAPES = {
    "a record": lambda messages: [{"id": "x", "messages": messages, "tools": []}],
    "a list on a line": lambda messages: [messages],
    "message by message": list,
    "a batch": lambda messages: [{"custom_id": "x", "method": "POST", "body": {"model": "m", "messages": messages}}],
}


@pytest.mark.parametrize(("messages", "form"), [(CHAT, "openai_chat"), (CLAUDE, "anthropic")])
@pytest.mark.parametrize("shape", [*SHAPES, "a document"])
def test_chats(load, tmp_path, shape, messages, form):
    if shape == "a document":
        (tmp_path / "chat.json").write_text(json.dumps(messages, indent=2))
        (transcript,), _ = read(tmp_path / "chat.json")
    else:
        (transcript,) = load(*SHAPES[shape](messages))
    assert transcript.format == form
    convert = to_openai_chat if form == "openai_chat" else to_anthropic
    assert convert(transcript.messages, shape="original") == messages


def test_a_chat_with_a_system_value_is_anthropic(load):
    (transcript,) = load({"system": "Be brief.", "messages": CHAT})
    assert transcript.format == "anthropic"
    assert [message.role for message in transcript.messages] == ["system", "user", "assistant"]


@pytest.mark.parametrize("form", ["messages_to_dict", "dumpd", "lines", "record"])
def test_langchain_dumps(load, form):
    messages = pytest.importorskip("langchain_core.messages")
    from langchain_core.load import dumpd

    originals = [
        messages.SystemMessage("Be brief."),
        messages.HumanMessage("Weather?", id="h1", name="ann"),
        messages.AIMessage("", tool_calls=[{"name": "find", "args": {"q": "x"}, "id": "c", "type": "tool_call"}]),
        messages.ToolMessage("rain", tool_call_id="c", status="error"),
    ]
    dicts = [dumpd(message) for message in originals] if form == "dumpd" else messages.messages_to_dict(originals)
    (one,) = load(
        *(dicts if form == "lines" else [{"session_id": "s", "messages": dicts}] if form == "record" else [dicts])
    )
    assert one.format == "langchain"
    assert [message.role for message in one.messages] == ["system", "user", "assistant", "tool"]
    assert one.messages[1].id == "h1"
    assert one.messages[2].tool_uses[0].input == {"q": "x"}
    assert one.messages[3].tool_results[0].is_error


# Ids and times


def test_ids_are_unique_and_short(load):
    one, two = load({"id": "x", "messages": CHAT}, {"id": "x", "messages": CHAT})
    assert two.conversation_id == f"{one.conversation_id}#2"
    one, two = load({"id": "长" * 400 + "a", "messages": CHAT}, {"id": "长" * 400 + "b", "messages": CHAT})
    assert one.conversation_id != two.conversation_id
    assert len(one.conversation_id.encode()) <= 512


@pytest.mark.parametrize(
    "times",
    [["2026-01-01T00:00:01Z", "2026-01-01T00:00:03Z", "2026-01-01T00:00:02Z"], [None, 1700000000.25, 1700000001.5]],
    ids=["one goes back", "one is missing"],
)
def test_messages_get_timestamps_only_if_all_have_ascending_times(load, times):
    (transcript,) = load(
        {"messages": [{"role": "user", "content": str(n), "timestamp": time} for n, time in enumerate(times)]}
    )
    assert [message.text for message in transcript.messages] == ["0", "1", "2"]
    assert all(message.timestamp is None for message in transcript.messages)
    assert [message.metadata.get("time") for message in transcript.messages] == times
