"""`redis-history import --from`, on a real server with keys of the frameworks' own classes.

agent-framework-redis and google-adk-community need an older redis-py: the keys of these and of langchain-redis are
written here as their source does.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from agent_framework import Content as FrameworkContent
from agent_framework import Message as FrameworkMessage
from agents.extensions.memory import RedisSession
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.genai.types import Content, Part
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from llama_index.core.base.llms.types import ChatMessage
from llama_index.storage.chat_store.redis import RedisChatStore

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.errors import InvalidInputError
from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.importers import FrameworkSource, import_messages
from redis_history.integrations.langchain import LangChainHistory
from redis_history.integrations.llama_index import LlamaIndexChatStore
from redis_history.integrations.openai_agents import AgentsSession
from tests.support.commands import Done, run
from tests.support.servers import Start, binary

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
    {"role": "user", "content": "Thanks."},
]

Import = Callable[..., str]


@pytest.fixture
def old(own_server: Start) -> Iterator[Any]:
    """A client of a server with search and JSON, as langchain-redis needs it."""
    [search] = (Path(module) for module in binary("redis").modules)
    server = own_server(options=("--loadmodule", str(search.with_name("rejson.so"))))
    with redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as client:
        client.url = server.url
        yield client


@pytest.fixture
async def async_store(old: Any) -> AsyncIterator[AsyncHistoryStore]:
    async with AsyncHistoryStore(old.url, namespace="new") as store:
        yield store


@pytest.fixture
def store(old: Any) -> Iterator[HistoryStore]:
    with HistoryStore(old.url, namespace="new") as store:
        yield store


def run_import(old: Any, framework: str, *options: str) -> Done:
    """Runs the command, which must not change an old key."""
    with redis.Redis(unix_socket_path=old.url.removeprefix("unix://")) as client:

        def keys() -> dict[bytes, bytes]:
            return {key: client.dump(key) for key in client.scan_iter(count=1000) if not key.startswith(b"rh")}

        before = keys()
        done = run("--url", old.url, "--namespace", "new", "import", "--from", framework, old.url, *options)
        assert keys() == before
    return done


@pytest.fixture
def counts(old: Any) -> Import:
    """Imports, and returns the counts that the command prints."""
    return lambda *arguments: run_import(old, *arguments).stdout.partition("): ")[2].rstrip()


def bare(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Without ids: the import makes an id where the old package had none yet."""
    return [message.model_copy(update={"id": None}) for message in messages]


def add_with_langchain(old: Any, session: str, messages: list[BaseMessage]) -> None:
    from langchain_community.chat_message_histories import RedisChatMessageHistory

    history = RedisChatMessageHistory(session, url=old.url)
    try:
        history.add_messages(messages)
    finally:
        history.redis_client.close()


@pytest.mark.proves("migration")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_langchain_community(old: Any, store: HistoryStore, counts: Import) -> None:
    add_with_langchain(old, "a:b", SAID)
    add_with_langchain(old, "two", SAID[:1])
    assert counts("langchain", "--dry-run") == "2 conversations, 6 messages"
    assert counts("langchain") == "2 conversations, 6 messages: 6 new, 0 known"
    history = LangChainHistory("a:b", store)
    assert bare(history.messages) == bare(SAID)
    assert [record.message_count for record in store.list_conversations()] == [1, 5]
    assert history.messages[1].id == "theirs"
    history.add_messages(history.messages)  # as after a step of LangGraph
    assert len(history.messages) == 5

    old.lpush("mine:three", '{"type": "human", "data": {"content": "Hi"}}')
    for prefix, expected in (("mine:", "1 new, 0 known"), ("mine", "0 new, 1 known")):
        assert counts("langchain", "--key-prefix", prefix).endswith(expected)
    add_with_langchain(old, "two", SAID[1:3])  # the old one goes on for a while
    assert counts("langchain") == "2 conversations, 8 messages: 2 new, 6 known"
    assert bare(LangChainHistory("two", store).messages) == bare(SAID[:3])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_langchain_community_on_a_server_without_json(own_server: Start) -> None:
    server = own_server("valkey")
    add_with_langchain(server, "order-42", SAID)
    with HistoryStore(server.url) as store:
        assert import_messages(FrameworkSource("langchain", server.url), store).new == len(SAID)


@pytest.mark.proves("migration")
def test_langchain_redis(old: Any, store: HistoryStore, counts: Import) -> None:
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

    for expected in ("6 new, 0 known", "0 new, 6 known"):
        assert counts("langchain") == f"1 conversation, 6 messages: {expected}"
    assert bare(LangChainHistory("s:1", store).messages) == bare([HumanMessage("Hi"), *said])
    messages = store.get("s:1")
    assert messages[3].tool_uses[0].input == {"order": 42}
    assert [str(message.timestamp)[11:22] for message in messages[:3]] == ["11:58:20.50", "12:00:00.25", "12:00:00.25"]


@pytest.mark.proves("migration")
async def test_openai_agents(old: Any, async_store: AsyncHistoryStore, counts: Import) -> None:
    async with redis.asyncio.Redis(unix_socket_path=old.url.removeprefix("unix://")) as client:
        session = RedisSession("s:1", redis_client=client)
        await session.add_items(ITEMS)
        await RedisSession("other", redis_client=client, key_prefix="bot[1]").add_items(ITEMS[:1])
        theirs = await session.get_items()
    for expected in ("5 new, 0 known", "0 new, 5 known"):
        assert counts("openai-agents") == f"1 conversation, 5 messages: {expected}"
    assert counts("openai-agents", "--key-prefix", "bot[1]").endswith("1 new, 0 known")
    assert await AgentsSession("s:1", async_store).get_items() == theirs == ITEMS
    assert await AgentsSession("other", async_store).get_items() == ITEMS[:1]


@pytest.mark.proves("migration")
def test_llama_index(old: Any, store: HistoryStore, counts: Import) -> None:
    said = [ChatMessage(role="user", content="Where?"), ChatMessage(role="assistant", content="Here.")]
    clients = {
        "redis_client": redis.Redis(unix_socket_path=old.url.removeprefix("unix://")),
        "aredis_client": redis.asyncio.Redis(unix_socket_path=old.url.removeprefix("unix://")),
    }
    theirs = RedisChatStore(**clients)
    theirs.set_messages("s", said)
    old.rpush("unrelated", "x", '{"role": "user"}')
    for expected in ("2 new, 0 known", "0 new, 2 known"):
        assert counts("llama-index") == f"1 conversation, 2 messages: {expected}"
    assert counts("llama-index", "--key-prefix", "s").endswith("0 new, 2 known")  # the same session
    assert LlamaIndexChatStore(store).get_messages("s") == theirs.get_messages("s") == said
    assert store.get_conversation("s").title == "Where?"  # type: ignore[union-attr]
    clients["redis_client"].close()


@pytest.mark.proves("migration")
@pytest.mark.parametrize(
    ("key", "session"),
    [
        ("chat_messages:a:b", "a:b"),
        ("chat_messages|v2|~none|app|~none|redis_memory|s1", "s1"),
        (
            "chat_messages|v2|~none|~redis-application-jv4saqlqoa|~none|redis_memory"
            "|~redis-session-knuxi6tvnztsbq4ef4yq",
            "Sitzung Ä/1",
        ),
    ],
)
async def test_agent_framework(
    old: Any, async_store: AsyncHistoryStore, counts: Import, key: str, session: str
) -> None:
    call = FrameworkContent.from_function_call("c1", "find", arguments='{"order": 42}')
    result = FrameworkContent.from_function_result("c1", result="on its way")
    said = [
        FrameworkMessage("user", ["Where?"], message_id="m1"),
        FrameworkMessage("assistant", [call]),
        FrameworkMessage("tool", [result]),
    ]
    old.rpush(key, *(json.dumps(message.to_dict()) for message in said))
    for expected in ("3 new, 0 known", "0 new, 3 known"):
        assert counts("agent-framework") == f"1 conversation, 3 messages: {expected}"
    found = await AgentFrameworkHistory(async_store).get_messages(session)
    assert [one.to_dict() for one in found] == [one.to_dict() for one in said]


@pytest.mark.proves("migration")
async def test_google_adk(old: Any, async_store: AsyncHistoryStore, counts: Import) -> None:
    """The keys of RedisSessionService of google-adk-community 0.5.0, which needs an older redis-py."""
    said = [("user", "Hi", 1000.5, {"own": 1, "user:lang": "en"}), ("bot", "Hello", 1001.0, {"app:motd": "x"})]
    events = [
        Event(
            author=author,
            timestamp=time,
            content=Content(role="user" if author == "user" else "model", parts=[Part(text=text)]),
            actions=EventActions(state_delta=delta),
        )
        for author, text, time, delta in said
    ]
    state = {"first": 0, "own": 1, "user:lang": "en"}
    session = Session(id="1", app_name="shop", user_id="ann", state=state, events=events, last_update_time=1001.0)
    old.sadd("sessions:shop:ann", "1")
    old.set("session:1", session.model_dump_json())
    old.hset("app:shop", "motd", '"x"')
    old.hset("user:shop:ann", "lang", '"en"')
    old.set("session:other", "{}")
    for expected in ("2 new, 0 known", "0 new, 2 known"):
        assert counts("google-adk") == f"3 conversations, 2 messages: {expected}; 1 problem"
    service = AdkSessionService(async_store)
    found = await service.get_session(app_name="shop", user_id="ann", session_id="1")
    assert found.events == events
    assert (found.state, found.last_update_time) == ({**state, "app:motd": "x"}, 1001.0)
    assert (await service.create_session(app_name="shop", user_id="bob")).state == {"app:motd": "x"}
    [listed] = (await service.list_sessions(app_name="shop", user_id="ann")).sessions
    assert listed.last_update_time == 1001.0


@pytest.mark.proves("migration")
async def test_google_adk_twice(old: Any, store: HistoryStore, async_store: AsyncHistoryStore) -> None:
    """The old program goes on after a first import, and the new one begins after the second."""
    service, where = AdkSessionService(async_store), {"app_name": "shop", "user_id": "ann"}
    events: list[Event] = []
    problems: list[Any] = []

    def bring(time: float, delta: dict[str, Any], own: dict[str, Any], user: dict[str, Any]) -> None:
        """The keys of the old program after another event, and an import of them."""
        events.append(Event(author="user", timestamp=time, actions=EventActions(state_delta=delta)))
        session = Session(id="1", **where, state=own, events=events, last_update_time=time)
        old.set("session:1", session.model_dump_json())
        for key, value in user.items():
            old.hset("user:shop:ann", key, json.dumps(value))
        import_messages(FrameworkSource("google-adk", old.url), store, on_error=problems.append)

    async def state() -> Any:
        found = await service.get_session(**where, session_id="1")
        assert found.events == events
        return found.state

    # Another session of the user, which has gone, has said "fr" since.
    bring(100.0, {"user:lang": "en", "step": 1}, {"step": 1, "user:lang": "fr"}, {"lang": "fr"})
    assert await state() == {"step": 1, "user:lang": "fr"}
    bring(200.0, {"user:lang": "de", "step": 2}, {"step": 2}, {"lang": "de", "cart": ["x"]})
    for _ in range(2):
        assert await state() == {"step": 2, "user:lang": "de", "user:cart": ["x"]}
        assert await service.get_user_state(**where) == {"lang": "de", "cart": ["x"]}
        import_messages(FrameworkSource("google-adk", old.url), store, on_error=problems.append)
    assert problems == []

    found = await service.get_session(**where, session_id="1")
    assert found is not None
    new = EventActions(state_delta={"user:lang": "it", "step": 3})
    events.append(await service.append_event(found, Event(author="user", actions=new)))
    assert await service.get_user_state(**where) == {"lang": "it", "cart": ["x"]}
    late = events.pop()
    bring(300.0, {"step": 9}, {"step": 9, "late": 1}, {"lang": "es", "more": 1})
    events.append(late)
    assert await state() == {"step": 3, "late": 1, "user:lang": "it", "user:cart": ["x"], "user:more": 1}
    assert [problem.reason.partition("keeps ")[2] for problem in problems] == ["step", "lang"]


@pytest.mark.usefixtures("small_caps")
def test_bad_entries_are_skipped_and_reported(old: Any, store: HistoryStore) -> None:
    good = '{"type": "human", "data": {"content": "good"}}'
    bad = ["no JSON", "[]", '{"type": "human"}', '{"type": "human", "data": {"content": 5}}']
    old.lpush("message_store:s", good, *bad, json.dumps({"type": "human", "data": {"content": "x" * 5_000_000}}))
    old.lpush("message_store:same", good)
    old.execute_command("JSON.SET", "chat:same:1", "$", good)
    done = run_import(old, "langchain")
    assert done.returncode == 1
    assert done.stdout.endswith("2 conversations, 3 messages: 3 new, 0 known; 6 problems\n")
    skipped = [line.partition(": skipped")[0] for line in done.stderr.splitlines()]
    assert skipped[:5] == ["chat:same:1:1", *(f"message_store:s:{number}" for number in (2, 3, 4, 5))]
    known, large = [message.text for message in store.get("s")]
    assert known == "good"
    assert large.startswith("[text of 5,000,000 bytes is too large to store")
    source = FrameworkSource("langchain", old.url, on_error=bool)
    assert (len(source), import_messages(source, store, on_error=bool).duplicates) == (2, 3)


def test_the_rights_to_read_the_old_keys_are_enough(old: Any, store: HistoryStore) -> None:
    old.rpush("message_store:s", '{"type": "human", "data": {"content": "Hello"}}')
    old.execute_command(
        "ACL", "SETUSER", "reader", "on", ">secret", "~message_store:*", "+@read", "+scan", "+@connection"
    )
    source = old.url.replace("unix://", "unix://reader:secret@")
    # The URL has a password, which the list of processes must not show.
    variable = {"REDIS_HISTORY_FROM_URL": source}
    done = run("--url", old.url, "--namespace", "new", "import", "--from", "langchain", environment=variable)
    assert (done.returncode, done.stderr) == (0, "")
    assert [message.text for message in store.get("s")] == ["Hello"]


def test_wrong_uses_are_rejected(old: Any) -> None:
    assert "REDIS_HISTORY_FROM_URL" in run("--url", old.url, "import", "--from", "langchain").stderr
    assert "FILE" in run("--url", old.url, "import").stderr
    for arguments in (("--from", "langchain", "file.jsonl"), (old.url,), ("--key-prefix", "x", "/dev/null")):
        done = run("--url", old.url, "import", *arguments)
        assert done.returncode == 2
        assert "--from" in done.stderr
    with pytest.raises(InvalidInputError, match="framework"):
        FrameworkSource("other", old.url)
    done = run("--url", old.url, "import", "--from", "langchain", old.url)
    assert (done.returncode, done.stdout.count("0 conversations")) == (0, 1)
