"""Claude Agent SDK: its conformance suite, transcripts of real sessions, and sessions that move to another machine."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    fork_session_via_store,
    get_session_messages_from_store,
    import_session_to_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    rename_session_via_store,
)
from claude_agent_sdk._internal.session_resume import materialize_resume_session
from claude_agent_sdk.testing import run_session_store_conformance

from redis_history import AsyncHistoryStore, assemble_prompt, user
from redis_history.formats import to_openai_chat
from redis_history.integrations.claude_agent_sdk import ClaudeSessionStore
from tests.support.servers import RealServer

SESSION = "11111111-2222-4333-8444-555555555555"
KEY: Any = {"project_key": "-work-shop", "session_id": SESSION}
META = {"cwd": "/work/shop", "sessionId": SESSION, "version": "2.1.12", "gitBranch": "main", "isSidechain": False}


def entry(number: int, kind: str, content: Any, **more: Any) -> Any:
    message = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {
            "id": f"msg_{number}",
            "type": "message",
            "model": "claude",
            "stop_reason": None,
            "usage": {"n": 2**70},
        }
    before = None if number == 1 else f"e{number - 1}"
    time = f"2026-01-20T11:57:{number:02}.717Z"
    return {
        "parentUuid": before,
        **META,
        "type": kind,
        "message": message,
        "uuid": f"e{number}",
        "timestamp": time,
        **more,
    }


#: As Claude Code writes them: one reply over several entries, results with a second form, and entries of other kinds.
ENTRIES = [
    {"type": "queue-operation", "operation": "dequeue", "timestamp": "2026-01-20T11:57:00.716Z", "sessionId": SESSION},
    entry(1, "user", "Where is the suitcase?"),
    entry(2, "assistant", [{"type": "thinking", "thinking": "I look.", "signature": "c2ln"}]),
    entry(3, "assistant", [{"type": "tool_use", "id": "t1", "name": "Grep", "input": {"pattern": "suitcase"}}]),
    entry(4, "user", [{"type": "tool_result", "tool_use_id": "t1", "content": "in hall 7"}], toolUseResult={"n": 1.5}),
    entry(5, "assistant", [{"type": "text", "text": "It is in hall 7."}]),
    entry(6, "user", [{"type": "text", "text": "Caveat: ignore"}], isMeta=True),
    entry(7, "user", None),
    {"type": "system", "subtype": "turn_duration", "uuid": "e8", "timestamp": "not a time", "durationMs": 5},
    {"type": "file-history-snapshot", "messageId": "e1", "snapshot": {"files": {}}, "odd": "\ud800"},
    {"type": "custom-title", "customTitle": "Lost suitcase", "sessionId": SESSION},
]


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize("kind", ["redis", "memory"])
async def test_the_conformance_suite_of_the_sdk(kind: str, server: RealServer, namespace: str) -> None:
    stores = []

    def fresh() -> ClaudeSessionStore:
        url = server.url if kind == "redis" else "memory://"
        stores.append(AsyncHistoryStore(url, namespace=f"{namespace}-{len(stores)}"))
        return ClaudeSessionStore(stores[-1])

    await run_session_store_conformance(fresh)
    assert len(stores) > 10
    for store in stores:
        for record in await store.list_conversations(limit=100):
            await store.delete_conversation(record.conversation_id)
        await store.aclose()


async def test_entries_come_back_equal(async_store: Any) -> None:
    sessions = ClaudeSessionStore(async_store, user_id=7)
    await sessions.append(KEY, ENTRIES[:4])
    await sessions.append(KEY, ENTRIES[2:])  # a repeated batch adds only entries without a uuid and new entries
    assert await sessions.load(KEY) == ENTRIES
    await sessions.append(KEY, [{**ENTRIES[1], "message": {"role": "user", "content": "forged"}}])
    assert await sessions.load(KEY) == ENTRIES, "the first entry of a uuid stays"
    [record] = await async_store.list_conversations(user_id=7)
    assert (record.title, record.agent_name) == ("Lost suitcase", "-work-shop")
    big = [entry(number, "user", "x" * 60_000) for number in range(20, 120)]
    await sessions.append(KEY, big)
    assert (await sessions.load(KEY))[len(ENTRIES) :] == big, "more bytes than one change can hold"


async def test_what_was_said_are_messages(async_store: Any) -> None:
    """They are searched, shown in prompts, and compacted. The session can still be resumed."""
    sessions = ClaudeSessionStore(async_store)
    await sessions.append(KEY, ENTRIES)
    [record] = await async_store.list_conversations()
    name = record.conversation_id
    messages = await async_store.get(name)
    assert [message.role for message in messages if message.text] == ["user", "tool", "assistant", "user"]
    assert [use.name for message in messages for use in message.tool_uses] == ["Grep"]
    assert [hit.message.text for hit in await async_store.search(name, "hall")] == ["It is in hall 7.", "in hall 7"]
    prompt = await assemble_prompt(async_store, name, "claude", "claude", {"addressed_only_mode": False})
    said = to_openai_chat(prompt.messages, on_loss=lambda loss: None)
    assert [one["content"] for one in said if one["content"]][:3] == [
        "Where is the suitcase?",
        "in hall 7",
        "It is in hall 7.",
    ]
    assert "queue-operation" not in repr(said)
    await async_store.compact(name, through=messages[5], summary="The suitcase was found.")
    await async_store.append(name, user("from another program"))
    assert await sessions.load(KEY) == ENTRIES
    shown = [
        message.message["content"]
        for message in await get_session_messages_from_store(sessions, SESSION, directory="/work/shop")
    ]
    assert shown[0] == "Where is the suitcase?"


async def test_concurrent_processes_keep_one_summary(async_store: Any) -> None:
    sessions = [ClaudeSessionStore(async_store) for _ in range(4)]
    batches = [[entry(10 * worker + n, "user", f"{worker}.{n}") for n in range(3)] for worker in range(1, 5)]
    await asyncio.gather(*(one.append(KEY, batch) for one, batch in zip(sessions, batches, strict=True)))
    await sessions[0].append({**KEY, "subpath": "subagents/agent-1"}, [entry(90, "user", "sub")])
    found = await sessions[0].load(KEY)
    assert sorted(one["uuid"] for one in found) == sorted(one["uuid"] for batch in batches for one in batch)
    [info] = await list_sessions_from_store(sessions[1], directory="/work/shop")
    assert info.first_prompt in {batch[0]["message"]["content"] for batch in batches}
    assert await list_subagents_from_store(sessions[2], SESSION, directory="/work/shop") == ["1"]


async def test_a_fork_of_the_conversation_is_no_second_session(async_store: Any) -> None:
    sessions = ClaudeSessionStore(async_store)
    subagent = {**KEY, "subpath": "subagents/agent-1"}
    for key in (KEY, subagent):
        await sessions.append(key, ENTRIES)
    for number, record in enumerate(await async_store.list_conversations()):
        await async_store.fork(record.conversation_id, f"experiment-{number}")
    assert [one["session_id"] for one in await sessions.list_sessions(KEY["project_key"])] == [SESSION]
    assert len(await sessions.list_session_summaries(KEY["project_key"])) == 1
    assert await sessions.list_subkeys(KEY) == [subagent["subpath"]]
    await sessions.delete(KEY)
    assert await sessions.list_sessions(KEY["project_key"]) == await sessions.list_subkeys(KEY) == []
    assert len(await async_store.list_conversations()) == 2


async def test_the_sdks_own_helpers(async_store: Any) -> None:
    sessions = ClaudeSessionStore(async_store)
    await sessions.append(KEY, ENTRIES)
    await rename_session_via_store(sessions, SESSION, "Found it", directory="/work/shop")
    forked = await fork_session_via_store(sessions, SESSION, directory="/work/shop")
    listed = await list_sessions_from_store(sessions, directory="/work/shop")
    assert [info.session_id for info in listed][-1] == SESSION
    assert {info.session_id for info in listed} == {SESSION, forked.session_id}
    assert listed[-1].summary == "Found it"
    titles = {record.title for record in await async_store.list_conversations()}
    assert "Found it" in titles


@pytest.mark.proves("frameworks")
async def test_a_session_moves_to_another_machine(
    async_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: RealServer, namespace: str
) -> None:
    work, session = tmp_path / "work", str(uuid.uuid4())
    work.mkdir()
    folder = tmp_path / "one" / "projects" / project_key_for_directory(work)
    agents = folder / session / "subagents"
    agents.mkdir(parents=True)
    entries = [one for one in ENTRIES if "odd" not in one]
    (folder / f"{session}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    (agents / "agent-a1.jsonl").write_text(json.dumps(entry(50, "user", "sub", isSidechain=True)) + "\n")
    (agents / "agent-a1.meta.json").write_text('{"agentType": "Explore"}')
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "one"))
    await import_session_to_store(session, ClaudeSessionStore(async_store), directory=str(work))

    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "two"))
    async with AsyncHistoryStore(server.url, namespace=namespace) as other:
        for options in ({"resume": session}, {"continue_conversation": True}):
            asked = ClaudeAgentOptions(cwd=work, session_store=ClaudeSessionStore(other), **options)  # type: ignore[arg-type]
            made = await materialize_resume_session(asked)
            assert made.resume_session_id == session
            there = made.config_dir / "projects" / folder.name
            lines = (there / f"{session}.jsonl").read_text().splitlines()
            assert [json.loads(line) for line in lines] == entries
            assert (
                json.loads((there / session / "subagents" / "agent-a1.meta.json").read_text())["agentType"] == "Explore"
            )
            assert json.loads((there / session / "subagents" / "agent-a1.jsonl").read_text())["uuid"] == "e50"
            await made.cleanup()
