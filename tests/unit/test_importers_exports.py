# ruff: noqa: E501 -- records as tools write them, one a line
"""Exports of ChatGPT, Slack and LangChain."""

import json
import zipfile
from datetime import UTC, datetime

import pytest

from redis_history.errors import InvalidInputError
from redis_history.importers import read_transcripts
from redis_history.model import AttachmentPart, ReasoningPart


def read(path, **options):
    problems = []
    return list(read_transcripts(path, on_error=problems.append, **options)), problems


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
    return {
        "title": "France",
        "create_time": 1700000000.0,
        "conversation_id": "c-1",
        "current_node": current,
        "mapping": {one["id"]: one for one in nodes},
        **more,
    }


@pytest.mark.parametrize("shape", ["json", "zip", "folder"])
def test_chatgpt_follows_the_current_branch(tmp_path, shape):
    data = json.dumps([tree(), tree("b1", conversation_id="c-2")], indent=1)
    path = tmp_path / "export"
    if shape == "json":
        path = tmp_path / "conversations.json"
        path.write_text(data)
    elif shape == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("conversations.json", data)
            archive.writestr("chat.html", "<html></html>")
    else:
        path.mkdir()
        (path / "conversations.json").write_text(data)
    (one, two), problems = read(path)
    assert problems == []
    assert one.conversation_id == "chatgpt:c-1"
    assert one.title == "France"
    assert [m.text for m in one.messages] == ["Capital of France?", "Paris.", "Thanks"]
    assert [m.text for m in two.messages] == ["Capital of France?", "Lyon.", "Sure?"]
    assert [m.id for m in one.messages] == ["q", "a2", "b2"]
    assert one.messages[0].timestamp == datetime(2023, 11, 14, 22, 13, 20, 500000, UTC)
    assert one.metadata["branches"] == 2
    assert one.metadata["empty_messages_left_out"] == 1


@pytest.mark.parametrize("current", [None, "gone", 5])
def test_chatgpt_without_a_current_node_ends_at_the_newest_leaf(tmp_path, current):
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([tree(current)]))
    (one,), _ = read(path)
    assert one.messages[-1].text == "Thanks"


def test_chatgpt_reads_broken_trees(tmp_path):
    loop = tree()
    loop["mapping"]["q"]["parent"] = "b2"
    bad = tree(conversation_id="c-2")
    bad["mapping"]["a2"]["message"]["content"] = "no object"
    bad["mapping"]["q"]["parent"] = "not there"
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([loop, bad]))
    (one, two), problems = read(path)
    assert [m.text for m in one.messages] == ["Capital of France?", "Paris.", "Thanks"]
    assert [m.text for m in two.messages] == ["Capital of France?", "Thanks"]
    assert [problem.line for problem in problems] == [2]
    assert "a2" in problems[0].reason


def test_chatgpt_reads_tools_thoughts_and_files(tmp_path):
    said = {"content_type": "image_asset_pointer", "size_bytes": 9, "width": 1}
    image = {**said, "asset_pointer": "file-service://file-1"}
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
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([{"mapping": {one["id"]: one for one in nodes}, "current_node": "e", "id": "x"}]))
    (one,), problems = read(path)
    assert problems == []
    asked, thinking, call, result, search, odd = one.messages
    reference = "file-service://file-1"
    expected = AttachmentPart(modality="image", reference=reference, size=9, provider_meta={"chatgpt": said})
    assert asked.parts[0] == expected
    assert isinstance(thinking.parts[0], ReasoningPart)
    assert (call.tool_uses[0].name, call.tool_uses[0].input) == ("python", "plot()")
    assert result.tool_results[0].tool_use_id == call.tool_uses[0].id == "c"
    assert search.tool_uses[0].input == {"q": 1}
    assert odd.role == "user"


# Slack

USERS = [
    {"id": "U1", "name": "ann", "profile": {"display_name": "Ann", "real_name": "Ann A."}},
    {"id": "U2", "name": "bob", "profile": {"display_name": "", "real_name": "Bob B."}},
]
FILES = {
    "users.json": USERS,
    "channels.json": [{"id": "C1", "name": "general", "topic": {"value": "all"}}],
    "dms.json": [{"id": "D1", "members": ["U1", "U2"]}],
    "general/2024-01-02.json": [
        {"type": "message", "user": "U2", "text": "reply &amp; more", "ts": "1704153600.000300", "thread_ts": "1704067200.000100"},
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


@pytest.fixture(params=["zip", "folder", "inner folder"])
def slack(request, tmp_path):
    path = tmp_path / "acme export"
    prefix = "acme/" if request.param == "inner folder" else ""
    if request.param == "zip":
        path = tmp_path / "acme export.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, value in FILES.items():
                archive.writestr(name, json.dumps(value))
        return path
    for name, value in FILES.items():
        target = path / (prefix + name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value, indent=1))
    return path


def test_slack_channels_threads_and_people(slack):
    (dm, empty, general), problems = read(slack)
    assert [one.conversation_id for one in (dm, empty, general)] == [
        "slack:acme export:D1",
        "slack:acme export:empty",
        "slack:acme export:C1",
    ]
    assert empty.messages == ()
    assert dm.messages[0].scope == "dm"
    assert (general.title, general.metadata["channel_name"]) == ("#general", "general")
    first, topic, file, reply, bot = general.messages
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
    (problem,) = problems
    assert problem.path.endswith("2024-01-01.json")
    assert problem.line == 4


def test_slack_imports_a_repeated_reply_once(tmp_path):
    said = {"type": "message", "subtype": "thread_broadcast", "user": "U1", "text": "x", "ts": "1704067200.000100"}
    (tmp_path / "c").mkdir()
    (tmp_path / "channels.json").write_text("[]")
    (tmp_path / "c" / "2024-01-01.json").write_text(json.dumps([said, said]))
    (one,), _ = read(tmp_path)
    assert len(one.messages) == 1


def test_a_folder_is_read_file_by_file(tmp_path):
    chat = json.dumps({"messages": [{"role": "user", "content": "a"}]})
    (tmp_path / "sub").mkdir()
    for name in ("one.jsonl", "sub/one.jsonl"):
        (tmp_path / name).write_text(chat)
    (tmp_path / "odd.json").write_text('{"what": 1}')
    (tmp_path / "read.me").write_text("not for us")
    found, problems = read(tmp_path)
    assert [one.conversation_id for one in found] == ["openai_chat:one:1", "openai_chat:one:1#2"]
    assert [problem.path for problem in problems] == [str(tmp_path / "odd.json")]
    assert list(read_transcripts(tmp_path, on_error=lambda problem: None)) == found


def test_repeated_conversation_ids_of_a_folder_stay_apart(tmp_path):
    chat = json.dumps({"id": "c", "messages": [{"role": "user", "content": "a"}]})
    for name in ("one.jsonl", "sub/one.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{chat}\n{chat}\n")
    found, _ = read(tmp_path)
    assert len({one.conversation_id for one in found}) == 4


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: zipfile.ZipFile(path, "w").close()])
def test_a_bundle_without_records(tmp_path, make):
    path = tmp_path / "nothing"
    make(path)
    with pytest.raises(InvalidInputError):
        read_transcripts(path)


# LangChain


@pytest.mark.parametrize("form", ["messages_to_dict", "dumpd", "lines", "record"])
def test_langchain_dumps(tmp_path, form):
    messages = pytest.importorskip("langchain_core.messages")
    from langchain_core.load import dumpd

    said = [
        messages.SystemMessage("Be brief."),
        messages.HumanMessage("Weather?", id="h1", name="ann"),
        messages.AIMessage("", tool_calls=[{"name": "find", "args": {"q": "x"}, "id": "c", "type": "tool_call"}]),
        messages.ToolMessage("rain", tool_call_id="c", status="error"),
    ]
    dicts = [dumpd(message) for message in said] if form == "dumpd" else messages.messages_to_dict(said)
    path = tmp_path / "chat.jsonl"
    lines = dicts if form == "lines" else [{"session_id": "s", "messages": dicts}] if form == "record" else [dicts]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (one,), problems = read(path)
    assert problems == []
    assert one.format == "langchain"
    assert [message.role for message in one.messages] == ["system", "user", "assistant", "tool"]
    assert one.messages[1].id == "h1"
    assert one.messages[2].tool_uses[0].input == {"q": "x"}
    assert one.messages[3].tool_results[0].is_error
