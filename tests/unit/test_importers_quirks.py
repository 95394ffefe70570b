"""Each quirk that real transcripts have, in small, format by format; the texts are made up."""

import gzip
import json
from datetime import UTC, datetime

import pytest

from redis_history.formats import to_anthropic, to_openai_chat
from redis_history.importers import read_transcripts
from redis_history.model import AttachmentPart, ReasoningPart


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


def call(id_, name="book", arguments='{"a":1}'):
    return {"function": {"arguments": arguments, "name": name}, "id": id_, "type": "function"}


def turn(id_):
    return [
        {"content": None, "role": "assistant", "tool_calls": [call(id_)]},
        {"role": "tool", "tool_call_id": id_, "name": "book", "content": "done"},
    ]


# tau-bench


def test_taubench_repeats_call_ids_and_system_prompts(load):
    prompt = {"role": "system", "content": "policy " * 900}
    traj = [prompt, {"role": "user", "content": "Hi"}, *turn("call_1"), *turn("call_1")]
    records = [{"task_id": 4, "trial": trial, "reward": 1.0, "info": {}, "traj": traj} for trial in (0, 1)]
    one, two = load(*records)
    assert one.conversation_id == "taubench:sample:4:0"
    assert two.conversation_id == "taubench:sample:4:1"
    assert not set(ids(one)) & set(ids(two))
    assert (one.format, one.form, one.metadata["reward"]) == ("taubench", "openai_chat", 1.0)
    assert to_openai_chat(one.messages, shape="original") == traj == list(one.originals)


# tau2-bench


def tau2(messages):
    for index, message in enumerate(messages):
        message |= {"turn_idx": index, "timestamp": f"2024-05-06T07:08:1{index}.123456"}
    return {"id": "sim-1", "task_id": "6", "trial": 0, "messages": messages}


def test_tau2_opens_with_the_assistant_and_has_times(load):
    (transcript,) = load(
        tau2([{"role": "assistant", "content": "Hi!", "tool_calls": None}, {"role": "user", "content": "Hello"}])
    )
    assert transcript.messages[0].role == "assistant"
    assert transcript.messages[0].timestamp == datetime(2024, 5, 6, 7, 8, 10, 123456, UTC)
    assert transcript.messages[0].metadata["time"] == "2024-05-06T07:08:10.123456"


def test_tau2_tool_calls_of_the_user_and_several_in_one_message(load):
    calls = [{"id": f"c{n}", "name": "toggle", "arguments": {"n": n}, "requestor": "user"} for n in (1, 2)]
    results = [{"role": "tool", "id": f"c{n}", "content": "ok", "requestor": "user", "error": n == 2} for n in (1, 2)]
    (transcript,) = load(tau2([{"role": "user", "content": None, "tool_calls": calls}, *results]))
    asking, first, second = transcript.messages
    assert asking.role == "user"
    assert [use.input for use in asking.tool_uses] == [{"n": 1}, {"n": 2}]
    assert asking.tool_uses[0].provider_meta == {"tau2": {"requestor": "user"}}
    assert [first.tool_results[0].is_error, second.tool_results[0].is_error] == [False, True]


def test_tau2_signed_thinking(load):
    block = {"type": "thinking", "thinking": "I check.", "signature": "c2ln" * 400}
    raw = {"id": "msg_1", "stop_reason": "end_turn", "thinking_blocks": [block]}
    (transcript,) = load(tau2([{"role": "assistant", "content": "Hi", "tool_calls": None, "raw_data": raw}]))
    (message,) = transcript.messages
    thought = message.parts[0]
    assert isinstance(thought, ReasoningPart)
    assert (thought.text, thought.signature) == ("I check.", "c2ln" * 400)
    assert message.text == "Hi", "the signature is no text"
    assert message.provider_meta["tau2"]["raw_data"] == {"id": "msg_1", "stop_reason": "end_turn"}


def test_tau2_results_files(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(
        json.dumps({"info": {}, "tasks": [], "simulations": [tau2([{"role": "user", "content": "x"}])]}, indent=2)
    )
    assert [transcript.conversation_id for transcript in read_transcripts(path)] == ["tau2:sim-1"]


# Claude Code


def entry(n, message, kind="user", **more):
    time = f"2025-06-07T08:09:1{n}.250Z"
    return {
        "parentUuid": None,
        "sessionId": "s-1",
        "type": kind,
        "message": message,
        "uuid": f"u{n}",
        "timestamp": time,
        **more,
    }


def reply(n, *blocks, id_="msg_1"):
    return entry(
        n, {"id": id_, "type": "message", "role": "assistant", "content": list(blocks), "usage": {}}, "assistant"
    )


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


# mini-swe-agent


def miniswe(times=(1700000000.25, 1700000001.5)):
    answer = {
        "content": "",
        "role": "assistant",
        "tool_calls": [{"index": 0, **call("c", "bash", '{"command": "ls"}')}],
        "function_call": None,
        "reasoning_content": "Look first.",
        "provider_specific_fields": {"reasoning_content": "Look first."},
        "extra": {"response": {"id": "r"}, "cost": 9e-05, "timestamp": times[0]},
    }
    result = {"content": "a.py", "extra": {"returncode": 0, "timestamp": times[1]}, "tool_call_id": "c", "role": "tool"}
    start = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    end = {"role": "exit", "content": "Timeout", "extra": {"exit_status": "Timeout", "submission": ""}}
    return {
        "info": {"config": {}},
        "messages": [*start, answer, result, answer, end],
        "instance_id": "django-1",
        "trajectory_format": "v1",
    }


@pytest.mark.parametrize("wrapped", [True, False])
def test_miniswe_ends_without_a_result_and_with_a_role_of_its_own(load, wrapped):
    traj = miniswe()
    (transcript,) = load({"path": "out/django-1.traj.json", "traj": traj} if wrapped else traj)
    assert transcript.format == "miniswe"
    assert transcript.title == "django-1"
    assert to_openai_chat(transcript.messages, shape="original") == traj["messages"]
    assert transcript.messages[-2].tool_uses
    assert transcript.messages[-1].role == "user"
    assert transcript.messages[2].parts[0] == ReasoningPart(
        text="Look first.", provider_meta={"openai_chat": {"key": "reasoning_content"}}
    )


def test_times_that_some_messages_lack_decide_nothing(load):
    (transcript,) = load(miniswe())
    assert all(message.timestamp is None for message in transcript.messages)
    assert [message.metadata.get("time") for message in transcript.messages][1:4] == [None, 1700000000.25, 1700000001.5]


def test_times_that_go_back_decide_nothing(load):
    rows = [{"role": "user", "content": str(n), "timestamp": f"2026-01-01T00:00:0{n}Z"} for n in (1, 3, 2)]
    (transcript,) = load({"messages": rows})
    assert [message.text for message in transcript.messages] == ["1", "3", "2"]
    assert all(message.timestamp is None for message in transcript.messages)
    assert transcript.messages[2].metadata["time"] == "2026-01-01T00:00:02Z"


# SWE-agent


@pytest.mark.parametrize("wrapped", [True, False])
def test_sweagent_has_result_ids_in_a_list(load, wrapped):
    history = [
        {"role": "system", "content": "s", "agent": "main", "message_type": "system_prompt"},
        {
            "role": "assistant",
            "content": "t",
            "thought": "t",
            "action": "ls",
            "agent": "main",
            "tool_calls": [call("c")],
        },
        {"role": "tool", "content": "a.py", "agent": "main", "message_type": "observation", "tool_call_ids": ["c"]},
    ]
    traj = {
        "history": history,
        "trajectory": [{"action": "ls"}],
        "environment": "repo",
        "info": {"exit_status": "submitted"},
    }
    (transcript,) = load({"path": "demos/a.traj", "traj": traj} if wrapped else traj)
    assert transcript.format == "sweagent"
    assert transcript.messages[2].tool_results[0].tool_use_id == "c"
    assert transcript.metadata["info"] == {"exit_status": "submitted"}
    assert to_openai_chat(transcript.messages, shape="original") == history


# People


def line(n, time, speaker="ann", text="hi", date="2020-02-29", **more):
    fixed = {
        "channel": "garden",
        "file": "f1",
        "n": n,
        "date": date,
        "time": time,
        "kind": "message",
        "speaker": speaker,
    }
    return {**fixed, "text": text, "replies_to": [], **more}


def test_irc_is_one_conversation_for_each_channel_and_file(load):
    rows = [line(0, "12:00"), line(0, "12:01", file="f2"), line(1, "12:01", "|otto|"), line(1, "12:02", file="f2")]
    one, two = load(*rows)
    assert one.conversation_id == "irc:garden:f1"
    assert ids(one) == ["garden/f1/0", "garden/f1/1"]
    assert ids(two) == ["garden/f2/0", "garden/f2/1"]
    assert one.messages[1].timestamp == datetime(2020, 2, 29, 12, 1, tzinfo=UTC)


def test_irc_times_wrap_at_midnight_while_the_date_stays(load):
    (transcript,) = load(line(0, "23:59"), line(1, "00:00"))
    assert [message.id for message in transcript.messages] == ["garden/f1/0", "garden/f1/1"]
    assert all(message.timestamp is None for message in transcript.messages)
    assert [message.metadata["time"] for message in transcript.messages] == ["2020-02-29 23:59", "2020-02-29 00:00"]


@pytest.mark.parametrize("nick", ["|otto|", "Ann|afk", "be`at", "[ivo|out]", "{a*}"])
def test_irc_nicknames_are_kept_as_they_are(load, nick):
    (transcript,) = load(line(0, "12:00", nick))
    assert transcript.messages[0].participant.id == nick


def test_irc_joins_empty_texts_actions_and_replies(load):
    (transcript,) = load(
        line(0, "12:00", text=""),
        line(1, None, None, "=== ann has joined #garden", kind="system", date=None),
        line(2, "12:01", text="waves", kind="action", replies_to=[0]),
        line(3, "12:01", text="!paste"),
    )
    empty, joined, action, command = transcript.messages
    assert (empty.text, empty.parts) == ("", ())
    assert (joined.role, joined.participant) == ("system", None)
    assert action.metadata == {"kind": "action", "replies_to": ["garden/f1/0"], "time": "2020-02-29 12:01"}
    assert command.text == "!paste"
    assert joined.timestamp is None
    assert command.timestamp is None


def test_kdconv_two_people_take_turns(load):
    attrs = [{"attrname": "天气", "attrvalue": "小雨", "name": "天气"}]
    dialogue = {
        "messages": [{"message": "今天下雨吗？"}, {"attrs": attrs, "message": "下午会下。"}],
        "name": "天气",
    }
    (transcript,) = load({"domain": "film", "split": "dev", "i": 7, "dialogue": dialogue})
    assert transcript.conversation_id == "kdconv:film:dev:7"
    assert [message.participant.id for message in transcript.messages] == ["A", "B"]
    assert transcript.messages[1].metadata == {"attrs": attrs}
    assert transcript.title == "天气"


def locomo(name="conv-1"):
    conversation = {
        "speaker_a": "Paula",
        "speaker_b": "Quentin",
        "session_10_date_time": "12:07 am on 3 June, 2021",
        "session_10": [{"speaker": "Quentin", "dia_id": "D10:1", "text": "Good night"}],
        "session_2_date_time": "2:15 pm on 9 March, 2021",
        "session_2": [
            {"speaker": "Paula", "dia_id": "D2:1", "text": "Good morning"},
            {
                "speaker": "Quentin",
                "img_url": ["https://x.test/a.jpg"],
                "blip_caption": "a photo",
                "query": "boat",
                "dia_id": "D2:2",
                "text": "Look",
            },
        ],
        "session_3_date_time": "2:16 pm on 9 March, 2021",
    }
    return {"sample_id": name, "conversation": conversation, "qa": []}


@pytest.mark.parametrize("name", ["locomo.json.gz", "locomo.json", "locomo"])
def test_locomo_is_a_json_list(tmp_path, name):
    data = json.dumps([locomo("conv-1"), locomo("conv-2")], indent=1).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    one, two = read_transcripts(path)
    assert [one.conversation_id, two.conversation_id] == ["locomo:conv-1", "locomo:conv-2"]
    assert ids(one) == ["D2:1", "D2:2", "D10:1"], "sessions in their order, one of them without turns"
    hello, look, bye = one.messages
    assert hello.timestamp == look.timestamp == datetime(2021, 3, 9, 14, 15, tzinfo=UTC)
    assert bye.timestamp == datetime(2021, 6, 3, 0, 7, tzinfo=UTC)
    assert look.parts[1] == AttachmentPart(modality="image", reference="https://x.test/a.jpg")
    assert look.metadata["dia_id"] == "D2:2"
    assert look.metadata["blip_caption"] == "a photo"
    assert look.participant.id == "Quentin"


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


def test_a_conversation_id_that_comes_again_is_told_apart(load):
    one, two = load({"id": "x", "messages": CHAT}, {"id": "x", "messages": CHAT})
    assert two.conversation_id == f"{one.conversation_id}#2"


def test_long_ids_are_cut_to_what_a_store_takes(load):
    one, two = load({"id": "长" * 400 + "a", "messages": CHAT}, {"id": "长" * 400 + "b", "messages": CHAT})
    assert one.conversation_id != two.conversation_id
    assert len(one.conversation_id.encode()) <= 512
