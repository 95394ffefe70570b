"""Transcripts of Claude Code and lists of chat messages, with the oddities of real ones."""

import json
from datetime import UTC, datetime

import pytest

from redis_history.formats import to_anthropic, to_openai_chat
from redis_history.importers import read_transcripts
from redis_history.importers.transcript import unique_id


@pytest.fixture
def load(tmp_path):
    """Write records to a file and read them back as transcripts; nothing may be left out."""

    def load(*records, name="sample.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
        problems = []
        transcripts = list(read_transcripts(path, on_error=problems.append))
        assert problems == []
        again = list(read_transcripts(path))
        assert again == transcripts, "importing twice must give the same ids"
        return transcripts

    return load


def ids(transcript):
    found = [message.id for message in transcript.messages]
    assert len(set(found)) == len(found)
    return found


# Claude Code


def entry(n, message, kind="user", **more):
    known = {"parentUuid": None, "sessionId": "s-1", "type": kind, "message": message, "uuid": f"u{n}"}
    return {**known, "timestamp": f"2025-06-07T08:09:1{n}.250Z", **more}


def reply(n, *blocks, id_="msg_1"):
    message = {"id": id_, "type": "message", "role": "assistant", "content": list(blocks), "usage": {}}
    return entry(n, message, "assistant")


USE = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
ENTRIES = [
    {"type": "queue-operation", "operation": "dequeue", "timestamp": "2025-06-07T08:09:10.000Z", "sessionId": "s-1"},
    {"type": "summary", "summary": "Listing files", "leafUuid": "x"},
    entry(1, {"role": "user", "content": "Run it"}),
    reply(2, {"type": "text", "text": "I will."}),
    reply(3, USE),
    entry(
        4,
        {"role": "user", "content": [{"tool_use_id": "t1", "type": "tool_result", "content": "no", "is_error": True}]},
        toolUseResult="Error: no",
    ),
    reply(5, {"type": "text", "text": "Aside"}, id_="msg_2") | {"isSidechain": True},
]


@pytest.mark.parametrize("wrapped", [True, False])
def test_claude_code_sessions(load, wrapped):
    records = [{"path": "a/transcript.jsonl", "blob": "d48", "entries": ENTRIES}] if wrapped else ENTRIES
    (transcript,) = load(*records)
    assert transcript.conversation_id == "claude_code:s-1"
    assert transcript.title == "Listing files"
    assert ids(transcript) == ["u1", "u2", "u3", "u4", "u5"]
    assert transcript.metadata["entries_without_message"] == {"queue-operation": 1, "summary": 1}
    assert to_anthropic(transcript.messages, shape="original") == [
        item["message"] for item in ENTRIES if "message" in item
    ]
    asked, first, second, result, aside = transcript.messages
    assert first.metadata["response_id"] == second.metadata["response_id"] == "msg_1", "one reply in two entries"
    assert result.role == "tool"
    assert result.tool_results[0].is_error
    assert result.provider_meta["claude_code"]["toolUseResult"] == "Error: no"
    assert aside.scope == "thread"
    assert asked.timestamp == datetime(2025, 6, 7, 8, 9, 11, 250000, UTC)


def test_a_claude_code_session_that_grew_has_the_same_messages(load):
    (before,) = load(*ENTRIES[:4], name="a.jsonl")
    (after,) = load(*ENTRIES, name="a.jsonl")
    assert after.messages[: len(before.messages)] == before.messages


def test_claude_code_without_a_session_id_is_named_by_its_file(load):
    bare = [{key: value for key, value in item.items() if key != "sessionId"} for item in ENTRIES[2:5]]
    (wrapped,) = load({"path": "a/transcript.jsonl", "blob": "d48", "entries": bare})
    assert wrapped.conversation_id == "claude_code:a/transcript.jsonl@d48"
    (plain,) = load(*bare, name="abc.jsonl")
    assert plain.conversation_id == "claude_code:abc"


# Plain lists of messages

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
CLAUDE = [{"role": "user", "content": "ls"}, {"role": "assistant", "content": [USE]}]


@pytest.mark.parametrize(("messages", "form"), [(CHAT, "openai_chat"), (CLAUDE, "anthropic")])
@pytest.mark.parametrize("shape", ["a record", "a list on a line", "message by message", "a batch", "a document"])
def test_chats(load, tmp_path, shape, messages, form):
    if shape == "a document":
        path = tmp_path / "chat.json"
        path.write_text(json.dumps(messages, indent=2))
        (transcript,) = read_transcripts(path)
    else:
        records = {
            "a record": [{"id": "x", "messages": messages, "tools": []}],
            "a list on a line": [messages],
            "message by message": messages,
            "a batch": [{"custom_id": "x", "method": "POST", "body": {"model": "m", "messages": messages}}],
        }[shape]
        (transcript,) = load(*records)
    assert transcript.form == transcript.format == form
    assert list(transcript.originals) == messages
    assert (to_openai_chat if form == "openai_chat" else to_anthropic)(
        transcript.messages, shape="original"
    ) == messages


def test_a_chat_with_a_system_value_is_anthropic(load):
    (transcript,) = load({"system": "Be brief.", "messages": CHAT})
    assert transcript.form == "anthropic"
    assert [message.role for message in transcript.messages] == ["system", "user", "assistant"]


def test_a_repeated_conversation_id_gets_a_number(load):
    one, two = load({"id": "x", "messages": CHAT}, {"id": "x", "messages": CHAT})
    assert two.conversation_id == f"{one.conversation_id}#2"


def test_long_ids_are_shortened(load):
    one, two = load({"id": "长" * 400 + "a", "messages": CHAT}, {"id": "长" * 400 + "b", "messages": CHAT})
    assert one.conversation_id != two.conversation_id
    assert len(one.conversation_id.encode()) <= 512


@pytest.mark.parametrize(
    "times",
    [["2026-01-01T00:00:01Z", "2026-01-01T00:00:03Z", "2026-01-01T00:00:02Z"], [None, 1700000000.25, 1700000001.5]],
    ids=["one goes back", "one is missing"],
)
def test_messages_get_timestamps_only_if_all_have_ascending_times(load, times):
    rows = [{"role": "user", "content": str(n), "timestamp": time} for n, time in enumerate(times)]
    (transcript,) = load({"messages": rows})
    assert [message.text for message in transcript.messages] == ["0", "1", "2"]
    assert all(message.timestamp is None for message in transcript.messages)
    assert [message.metadata.get("time") for message in transcript.messages] == times


def test_many_equal_ids_take_linear_time():
    class Counting(dict):
        lookups = 0

        def __contains__(self, key):
            self.lookups += 1
            return super().__contains__(key)

    seen = Counting()
    found = {unique_id(name, seen) for name in [*(f"a#{n}" for n in range(1000)), *["a"] * 1000, *["b"] * 1000]}
    assert len(found) == 3000
    assert seen.lookups < 10_000
