"""docs/examples/migrate.py, on a real server with keys as the old packages write them.

`RedisSession` writes its own. The others are not installed: their keys are written here as their source does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from agents.extensions.memory import RedisSession
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage, message_to_dict

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.formats import to_anthropic
from redis_history.importers import import_messages
from redis_history.integrations.langchain import LangChainHistory
from redis_history.integrations.openai_agents import AgentsSession
from tests.docs.pages import DOCS, ROOT, code, rows, sections
from tests.support.servers import Start, binary

EXAMPLES = DOCS / "examples"
sys.path.insert(0, str(EXAMPLES))
migration = import_module("migrate")

CALL = {"name": "find", "args": {"order": 42}, "id": "call-1", "type": "tool_call"}
SAID: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("Где мой заказ?", id="theirs"),
    AIMessage("", tool_calls=[CALL]),
    ToolMessage("on its way", tool_call_id="call-1"),
    AIMessage([{"type": "text", "text": "On its way."}]),
]
ITEMS: list[Any] = [
    {"role": "user", "content": "Where is it?"},
    {"type": "function_call", "call_id": "call-1", "name": "find", "arguments": '{"order":42}', "id": "fc-1"},
    {"type": "function_call_output", "call_id": "call-1", "output": "on its way"},
    {"role": "user", "content": "Thanks."},
]


@pytest.fixture
def old(own_server: Start) -> Iterator[Any]:
    """A client of a server with search and JSON, as langchain-redis needs it."""
    [search] = (Path(module) for module in binary("redis").modules)
    server = own_server(options=("--loadmodule", str(search.with_name("rejson.so"))))
    with redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as client:
        client.url = server.url
        yield client


@pytest.fixture
def store(old: Any) -> Iterator[HistoryStore]:
    with HistoryStore(old.url, namespace="new") as store:
        yield store


def _brought(layout: str, old: Any, store: HistoryStore, folder: Path, **options: Any) -> tuple[list[str], int, int]:
    """The output of the script, and how many messages of the file were new and known."""
    before = _old_keys(old)
    told = list(migration.migrate(layout, old, folder / "old.jsonl", **options))
    done = import_messages(folder / "old.jsonl", store)
    assert done.problems == 0
    assert _old_keys(old) == before
    return told, done.new, done.duplicates


def _old_keys(old: Any) -> dict[bytes, bytes]:
    with redis.Redis(unix_socket_path=old.url.removeprefix("unix://")) as client:
        return {key: client.dump(key) for key in client.scan_iter(count=1000) if not key.startswith(b"rh")}


def _bare(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Without ids: where the old package had none, the import makes one."""
    return [message.model_copy(update={"id": None}) for message in messages]


def _langchain_community(old: Any, session: str, messages: list[BaseMessage]) -> None:
    for message in messages:
        old.lpush(f"message_store:{session}", json.dumps(message_to_dict(message)))


@pytest.mark.proves("migration")
def test_langchain_community(old: Any, store: HistoryStore, tmp_path: Path) -> None:
    _langchain_community(old, "a:b", SAID)
    _langchain_community(old, "two", SAID[:1])
    assert _brought("langchain-community", old, store, tmp_path) == (["2 conversations, 6 messages"], 6, 0)
    assert _bare(LangChainHistory("a:b", store).messages) == _bare(SAID)
    assert [record.message_count for record in store.list_conversations()] == [1, 5]

    _langchain_community(old, "two", SAID[1:3])  # the old one goes on for a while
    assert _brought("langchain-community", old, store, tmp_path)[1:] == (2, 6)
    assert _bare(LangChainHistory("two", store).messages) == _bare(SAID[:3])


@pytest.mark.proves("migration")
def test_langchain_redis(old: Any, store: HistoryStore, tmp_path: Path) -> None:
    said = [*SAID[:2], AIMessage("", additional_kwargs={"tool_calls": [
        {"id": "call-1", "type": "function", "function": {"name": "find", "arguments": '{"order":42}'}}
    ]}), *SAID[3:]]  # fmt: skip
    for number, message in reversed(list(enumerate(said))):
        data = {"content": message.content, "additional_kwargs": message.additional_kwargs, "type": message.type}
        if isinstance(message, ToolMessage):
            data |= {"tool_call_id": message.tool_call_id, "status": message.status}
        entry = {"type": message.type, "message_id": f"01K{number}", "data": data, "session_id": "s:1"}
        entry["timestamp"] = 1769860800.25 + number // 2  # two of one moment sort by their ids
        old.execute_command("JSON.SET", f"chat:s:1:01K{number}", "$", json.dumps(entry))
    earlier = {"type": "human", "data": {"content": "Hi", "additional_kwargs": {}, "type": "human"}}
    earlier |= {"session_id": "s:1", "timestamp": 1769860700.5}  # without an id, as up to 0.2.1
    old.execute_command("JSON.SET", "chat:s:1:1769860700.5", "$", json.dumps(earlier))

    assert _brought("langchain-redis", old, store, tmp_path) == (["1 conversations, 6 messages"], 6, 0)
    assert _bare(LangChainHistory("s:1", store).messages) == _bare([HumanMessage("Hi"), *said])
    messages = store.get("s:1")
    assert messages[3].tool_uses[0].input == {"order": 42}
    assert [str(message.timestamp)[11:22] for message in messages[:3]] == ["11:58:20.50", "12:00:00.25", "12:00:00.25"]


@pytest.mark.proves("migration")
async def test_openai_agents(old: Any, store: HistoryStore, tmp_path: Path) -> None:
    async with redis.asyncio.Redis(unix_socket_path=old.url.removeprefix("unix://")) as client:
        session = RedisSession("s:1", redis_client=client)
        await session.add_items(ITEMS)
        await RedisSession("other", redis_client=client, key_prefix="bot[1]").add_items(ITEMS[:1])
        theirs = await session.get_items()
    assert _brought("openai-agents", old, store, tmp_path)[0] == ["1 conversations, 4 messages"]
    assert _brought("openai-agents", old, store, tmp_path, prefix="bot[1]:")[1:] == (1, 0)
    async with AsyncHistoryStore(old.url, namespace="new") as asynchronous:
        assert await AgentsSession("s:1", asynchronous).get_items() == theirs == ITEMS
        assert await AgentsSession("other", asynchronous).get_items() == ITEMS[:1]


def test_agention(old: Any, store: HistoryStore, tmp_path: Path) -> None:
    entries = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Where is it?"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call-1", "name": "find", "input": {"order": 42}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "on its way"}],
            "meta": {"provider": "openai", "call_id": "c1"},
        },
    ]
    old.set("chat-7", json.dumps(entries))
    old.set("chat-8", "no JSON")
    told, new, known = _brought("agention", old, store, tmp_path, prefix="chat-")
    assert told[0].startswith("8 is left out: JSONDecodeError")
    assert (told[1:], new, known) == (["1 conversations, 4 messages"], 4, 0)
    assert [message.role for message in store.get("7")] == ["system", "user", "assistant", "tool"]
    assert to_anthropic(store.get("7"), shape="original") == entries


def test_a_bad_message_costs_itself(old: Any, store: HistoryStore, tmp_path: Path) -> None:
    _langchain_community(old, "s", [HumanMessage("one"), HumanMessage("x" * 5_000_000), HumanMessage("three")])
    told, new, _ = _brought("langchain-community", old, store, tmp_path)
    assert told[0].startswith("message 2 of s is left out:")
    assert new == 2


def test_the_command(old: Any, tmp_path: Path) -> None:
    _langchain_community(old, "s", SAID)
    target = tmp_path / "old.jsonl"
    command = [sys.executable, str(EXAMPLES / "migrate.py"), "langchain-community", old.url, str(target)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.stdout, done.stderr) == ("", "1 conversations, 5 messages\n")
    with HistoryStore("memory://") as store:
        assert import_messages(target, store).new == 5


def test_the_page_names_all_layouts() -> None:
    table = rows(sections(DOCS / "how-to" / "migration.md")["Bring the old conversations"])
    found = {code(row[0]): row[2] for row in table}
    assert set(found) == set(migration.LAYOUTS)
    for name, layout in migration.LAYOUTS.items():
        assert f"`{layout.prefix}<" in found[str(name)] or not layout.prefix
