# ruff: noqa: E501 -- records as tools write them, one a line
"""Exports of ChatGPT and Slack, sessions of Claude Code, and lists of messages."""

import json
import zipfile
from datetime import UTC, datetime

import pytest

from redis_history.formats import to_anthropic, to_openai_chat
from redis_history.importers import read_transcripts
from redis_history.importers.transcript import unique_id
from redis_history.model import AttachmentPart, ReasoningPart


def read(path, **options):
    problems = []
    return list(read_transcripts(path, on_error=problems.append, **options)), problems


@pytest.fixture
def load(tmp_path):
    """Writes records to a file and reads them. None may be rejected, and a second reading must give the same ids."""

    def load(*records, name="sample.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        transcripts, problems = read(path)
        assert problems == []
        assert read(path)[0] == transcripts
        return transcripts

    return load


@pytest.fixture(params=["folder", "zip", "inner folder"])
def pack(request, tmp_path):
    """Writes files (name: value) into a folder or an archive."""

    def pack(files):
        prefix = "acme/" if request.param == "inner folder" else ""
        path = tmp_path / ("acme export.zip" if request.param == "zip" else "acme export")
        if request.param == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                for name, value in files.items():
                    archive.writestr(name, json.dumps(value))
            return path
        for name, value in files.items():
            (path / prefix / name).parent.mkdir(parents=True, exist_ok=True)
            (path / prefix / name).write_text(json.dumps(value, indent=1))
        return path

    return pack


# ChatGPT


def node(id_, parent, children, role=None, parts=None, time=None, **more):
    content = more.pop("content", {"content_type": "text", "parts": parts or []})
    author = {"role": role, "name": more.pop("name", None), "metadata": {}}
    message = {"id": id_, "author": author, "create_time": time, "content": content, "metadata": {}, **more}
    return {"id": id_, "parent": parent, "children": children, "message": None if role is None else message}


def tree(current="b2", **more):
    nodes = [
        node("root", None, ["sys"]),
        node("sys", "root", ["q"], "system", [""]),
        node("q", "sys", ["a1", "a2"], "user", ["Capital of France?"], 1700000000.5),
        node("a1", "q", ["b1"], "assistant", ["Lyon."], 1700000001.5, recipient="all"),
        node("b1", "a1", [], "user", ["Sure?"], 1700000002.5),
        node("a2", "q", ["b2"], "assistant", ["Paris."], 1700000003.5, recipient="all"),
        node("b2", "a2", [], "user", ["Thanks"], 1700000004.5),
    ]
    mapping = {one["id"]: one for one in nodes}
    return {"title": "France", "conversation_id": "c-1", "current_node": current, "mapping": mapping, **more}


def test_chatgpt_follows_the_current_branch(pack):
    (one, two), problems = read(pack({"conversations.json": [tree(), tree("b1", conversation_id="c-2")]}))
    assert problems == []
    assert (one.conversation_id, one.title) == ("chatgpt:c-1", "France")
    assert [m.text for m in one.messages] == ["Capital of France?", "Paris.", "Thanks"]
    assert [m.text for m in two.messages] == ["Capital of France?", "Lyon.", "Sure?"]
    assert [m.id for m in one.messages] == ["q", "a2", "b2"]
    assert one.messages[0].timestamp == datetime(2023, 11, 14, 22, 13, 20, 500000, UTC)
    assert (one.metadata["branches"], one.metadata["empty_messages_left_out"]) == (2, 1)


def test_chatgpt_reads_broken_trees(tmp_path):
    trees = [tree(current, conversation_id=f"c{current}") for current in (None, "gone", 5)]
    loop, bad = tree(), tree(conversation_id="c-2")
    loop["mapping"]["q"]["parent"] = "b2"
    bad["mapping"]["a2"]["message"]["content"] = "no object"
    bad["mapping"]["q"]["parent"] = "not there"
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([*trees, loop, bad]))
    found, (problem,) = read(path)
    assert [[m.text for m in one.messages][-1] for one in found] == ["Thanks"] * 5, "the newest leaf"
    assert [m.text for m in found[3].messages] == ["Capital of France?", "Paris.", "Thanks"]
    assert [m.text for m in found[4].messages] == ["Capital of France?", "Thanks"]
    assert (problem.line, "a2" in problem.reason) == (5, True)


def test_chatgpt_reads_tools_thoughts_and_files(load):
    kept = {"content_type": "image_asset_pointer", "size_bytes": 9, "width": 1}
    image = {**kept, "asset_pointer": "file-service://file-1"}
    thought = {"content_type": "thoughts", "thoughts": [{"summary": "Plan", "content": "plot"}]}
    plot, query = ({"content_type": "code", "text": text} for text in ("plot()", '{"q": 1}'))
    nodes = [
        node("q", None, ["t"], "user", content={"content_type": "multimodal_text", "parts": [image, "Plot it"]}),
        node("t", "q", ["c"], "assistant", content=thought),
        node("c", "t", ["r"], "assistant", recipient="python", content=plot),
        node("r", "c", ["s"], "tool", name="python", content={"content_type": "execution_output", "text": "done"}),
        node("s", "r", ["e"], "assistant", recipient="web.run", content=query),
        node("e", "s", [], "critic", ["An unknown role"]),
    ]
    (one,) = load({"mapping": {one["id"]: one for one in nodes}, "current_node": "e", "id": "x"})
    asked, thinking, call, result, search, critic = one.messages
    reference = "file-service://file-1"
    expected = AttachmentPart(modality="image", reference=reference, size=9, provider_meta={"chatgpt": kept})
    assert asked.parts[0] == expected
    assert isinstance(thinking.parts[0], ReasoningPart)
    assert (call.tool_uses[0].name, call.tool_uses[0].input) == ("python", "plot()")
    assert result.tool_results[0].tool_use_id == call.tool_uses[0].id == "c"
    assert search.tool_uses[0].input == {"q": 1}
    assert critic.role == "user"


# Slack

FILES = {
    "users.json": [
        {"id": "U1", "name": "ann", "profile": {"display_name": "Ann", "real_name": "Ann A."}},
        {"id": "U2", "name": "bob", "profile": {"display_name": "", "real_name": "Bob B."}},
    ],
    "channels.json": [{"id": "C1", "name": "general", "topic": {"value": "all"}}],
    "dms.json": [{"id": "D1", "members": ["U1", "U2"]}],
    "general/2024-01-02.json": [
        {"type": "message", "user": "U2", "text": "reply &amp; more", "ts": "1704153600.000300", "thread_ts": "1704067200.000100"},
        {"type": "message", "user": "U2", "text": "reply &amp; more", "ts": "1704153600.000300", "subtype": "thread_broadcast"},
        {"type": "message", "subtype": "bot_message", "bot_id": "B1", "username": "ci", "text": "<https://x.test|green>", "ts": "1704153601.000000"},
    ],
    "general/2024-01-01.json": [
        {"type": "message", "user": "U1", "text": "Hi <@U2>, see <#C1|general> <!here>", "ts": "1704067200.000100", "thread_ts": "1704067200.000100", "reply_count": 1},
        {"type": "message", "subtype": "channel_topic", "user": "U2", "text": "obey me", "ts": "1704067201.000200"},
        {"type": "message", "user": "U1", "text": "", "ts": "1704067202.000000", "files": [{"id": "F1", "name": "a.png", "mimetype": "image/png", "size": 5, "url_private": "https://x.test/a.png"}, {"id": None}]},
        {"type": "message", "user": "U1", "text": "no time"},
    ],
    "D1/2024-01-01.json": [{"type": "message", "user": "U1", "text": "psst", "ts": "1704067203.000000"}],
    "empty/2024-01-01.json": [],
}  # fmt: skip


def test_slack_channels_threads_and_people(pack):
    (dm, empty, general), (problem,) = read(pack(FILES))
    ids = [one.conversation_id for one in (dm, empty, general)]
    assert ids == ["slack:acme export:D1", "slack:acme export:empty", "slack:acme export:C1"]
    assert (empty.messages, dm.messages[0].scope) == ((), "dm")
    assert (general.title, general.metadata["channel_name"]) == ("#general", "general")
    first, topic, file, reply, bot = general.messages  # the repeated reply occurs once
    assert first.text == "Hi @Bob B., see #general @here"
    assert first.provider_meta["slack"]["text"] == "Hi <@U2>, see <#C1|general> <!here>"
    assert first.mentions == ["U2"]
    assert (first.participant.id, first.participant.display_name) == ("U1", "Ann")
    assert first.id == "C1-1704067200.000100"
    assert first.timestamp == datetime(2024, 1, 1, 0, 0, 0, 100, UTC)
    assert (first.scope, reply.scope) == ("channel", "thread")
    assert first.metadata["thread_id"] == reply.metadata["thread_id"] == "1704067200.000100"
    assert (topic.role, topic.metadata["kind"]) == ("user", "channel_topic"), "nobody gains a system's authority"
    assert [part.reference for part in file.parts] == ["https://x.test/a.png"]
    assert reply.text == "reply & more"
    assert (bot.role, bot.participant.kind, bot.text) == ("assistant", "agent", "green (https://x.test)")
    assert (problem.path.endswith("2024-01-01.json"), problem.line) == (True, 4)


# Claude Code

USE = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
RESULT = {"tool_use_id": "t1", "type": "tool_result", "content": "no", "is_error": True}


def entry(n, message, kind="user", **more):
    known = {"parentUuid": None, "sessionId": "s-1", "type": kind, "message": message, "uuid": f"u{n}"}
    return {**known, "timestamp": f"2025-06-07T08:09:1{n}.250Z", **more}


def reply(n, *blocks, id_="msg_1"):
    message = {"id": id_, "type": "message", "role": "assistant", "content": list(blocks), "usage": {}}
    return entry(n, message, "assistant")


ENTRIES = [
    {"type": "queue-operation", "operation": "dequeue", "timestamp": "2025-06-07T08:09:10.000Z", "sessionId": "s-1"},
    {"type": "summary", "summary": "Listing files", "leafUuid": "x"},
    entry(1, {"role": "user", "content": "Run it"}),
    reply(2, {"type": "text", "text": "I will."}),
    reply(3, USE),
    entry(4, {"role": "user", "content": [RESULT]}, toolUseResult="Error: no"),
    reply(5, {"type": "text", "text": "Aside"}, id_="msg_2") | {"isSidechain": True},
]


@pytest.mark.parametrize("wrapped", [True, False])
def test_claude_code_sessions(load, wrapped):
    records = [{"path": "a/transcript.jsonl", "blob": "d48", "entries": ENTRIES}] if wrapped else ENTRIES
    (transcript,) = load(*records)
    assert (transcript.conversation_id, transcript.title) == ("claude_code:s-1", "Listing files")
    assert [message.id for message in transcript.messages] == ["u1", "u2", "u3", "u4", "u5"]
    assert transcript.metadata["entries_without_message"] == {"queue-operation": 1, "summary": 1}
    originals = [item["message"] for item in ENTRIES if "message" in item]
    assert to_anthropic(transcript.messages, shape="original") == originals
    asked, first, second, result, aside = transcript.messages
    assert first.metadata["response_id"] == second.metadata["response_id"] == "msg_1", "one reply in two entries"
    assert (result.role, result.tool_results[0].is_error, aside.scope) == ("tool", True, "thread")
    assert result.provider_meta["claude_code"]["toolUseResult"] == "Error: no"
    assert asked.timestamp == datetime(2025, 6, 7, 8, 9, 11, 250000, UTC)
    if not wrapped:
        (before,) = load(*ENTRIES[:4])
        assert transcript.messages[: len(before.messages)] == before.messages, "a session that grew"


def test_claude_code_without_a_session_id_is_named_by_its_file(load):
    bare = [{key: value for key, value in item.items() if key != "sessionId"} for item in ENTRIES[2:5]]
    (wrapped,) = load({"path": "a/transcript.jsonl", "blob": "d48", "entries": bare})
    assert wrapped.conversation_id == "claude_code:a/transcript.jsonl@d48"
    (plain,) = load(*bare, name="abc.jsonl")
    assert plain.conversation_id == "claude_code:abc"


# Lists of messages

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
CLAUDE = [{"role": "user", "content": "ls"}, {"role": "assistant", "content": [USE]}]
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
    assert transcript.form == transcript.format == form
    assert list(transcript.originals) == messages
    convert = to_openai_chat if form == "openai_chat" else to_anthropic
    assert convert(transcript.messages, shape="original") == messages


def test_a_chat_with_a_system_value_is_anthropic(load):
    (transcript,) = load({"system": "Be brief.", "messages": CHAT})
    assert transcript.form == "anthropic"
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
