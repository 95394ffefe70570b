"""Measures this package beside others, each as a multiple of the same bare redis-py calls.

The base, for messages of 246 bytes as {id, role, content} in MessagePack: `ZADD` of one message, `ZRANGE` of
600 with an untyped msgspec decode, and a pipeline of 500 `ZADD`. Calls of a package and of the base alternate, for at
most 3 seconds a figure, so the whole run ends within 7 minutes. Bytes per message are the growth of the server's
`used_memory` by up to 3 conversations of 600 messages that were appended one by one, so they include indexes. The last
line says how much the medians of the base varied between rows: on a quiet machine they differ by less than a fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import redis
from benchmarks.search import used_memory
from rich.console import Console
from rich.table import Table

from redis_history import AsyncHistoryStore, HistoryStore, user
from redis_history.embedded import EmbeddedServer

TEXT = "I would like to change my flight to the one on May 20, in economy if there is still a seat. " * 2
LOADED, BULK, CONVERSATIONS, TASKS = 600, 500, 3, 64
SECONDS = 3.0  # at most, for a figure

#: The medians of `ZADD`, one for each row, in seconds.
BASE_TIMES: list[float] = []


class Calls(NamedTuple):
    """What to measure with one conversation: append a message, load all, append so many at once (None: cannot)."""

    append: Callable[[], Any]
    load: Callable[[], int]
    bulk: Callable[[int], Any] | None


class Later(list[Any]):
    """The result of a call that has not been awaited yet, for what reads it."""

    events: tuple[Any, ...] = ()


class Loop:
    """Runs each awaitable on one event loop, or collects those of many calls to await them together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.collected: list[Any] | None = None

    def __call__(self, awaitable: Any) -> Any:
        if self.collected is None:
            return self.loop.run_until_complete(awaitable)
        self.collected.append(awaitable)
        return Later()

    def together(self, calls: Iterable[Callable[[], Any]]) -> None:
        self.collected = []
        for call in calls:
            call()
        waiting, self.collected = self.collected, None

        async def wait() -> None:
            await asyncio.gather(*waiting)

        self.loop.run_until_complete(wait())


#: Of the packages that are open and only asynchronous.
LOOPS: list[Loop] = []


#: Makes the calls for the conversation of a name.
Conversation = Callable[[str], Calls]
Package = Callable[[str], AbstractContextManager[Conversation]]
Run = Callable[[Any], Any]


@contextmanager
def on_a_loop() -> Iterator[Run]:
    """For packages that are only asynchronous: runs each call on one event loop, with that loop's cost."""
    with asyncio.Runner() as runner:
        LOOPS.append(Loop(runner.get_loop()))
        yield LOOPS[-1]


@contextmanager
def our_async_store(url: str) -> Iterator[tuple[AsyncHistoryStore, Run]]:
    with on_a_loop() as run:
        store = AsyncHistoryStore(url, namespace="compare-async", search="off")
        yield store, run
        run(store.aclose())


def our_store(url: str, search: Any = "off") -> HistoryStore:
    return HistoryStore(url, namespace=f"compare-{search}", search=search)


# The calls of each interface; ours and theirs have the same.


def store_calls(store: Any, name: str, run: Run = lambda result: result) -> Calls:
    return Calls(
        lambda: run(store.append(name, user(TEXT))),
        lambda: len(run(store.get(name))),
        lambda count: run(store.append_many(name, [user(TEXT) for _ in range(count)])),
    )


def agents_calls(session: Any, run: Run) -> Calls:
    item = {"role": "user", "content": TEXT}
    return Calls(
        lambda: run(session.add_items([item])),
        lambda: len(run(session.get_items())),
        lambda count: run(session.add_items([item] * count)),
    )


def framework_calls(provider: Any, name: str, run: Run) -> Calls:
    from agent_framework import Message

    numbers = itertools.count()

    def messages(count: int) -> list[Any]:
        return [Message("user", [TEXT], message_id=f"m{next(numbers)}") for _ in range(count)]

    return Calls(
        lambda: run(provider.save_messages(name, messages(1))),
        lambda: len(run(provider.get_messages(name))),
        lambda count: run(provider.save_messages(name, messages(count))),
    )


def adk_calls(service: Any, name: str, run: Run) -> Calls:
    from google.adk.events import Event
    from google.genai.types import Content, Part

    session_of = {"app_name": "compare", "user_id": "u", "session_id": name}
    session = run(service.get_session(**session_of)) or run(service.create_session(**session_of))

    def append() -> None:
        event = Event(author="user", content=Content(role="user", parts=[Part(text=TEXT)]))
        run(service.append_event(session, event))

    return Calls(append, lambda: len(run(service.get_session(**session_of)).events), None)


def langchain_calls(history: Any) -> Calls:
    from langchain_core.messages import HumanMessage

    return Calls(
        lambda: history.add_message(HumanMessage(TEXT)),
        lambda: len(history.messages),
        lambda count: history.add_messages([HumanMessage(TEXT) for _ in range(count)]),
    )


def pydantic_ai_calls(append: Callable[[list[Any]], Any], load: Callable[[], list[Any]]) -> Calls:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    def messages(count: int) -> list[Any]:
        return [ModelRequest(parts=[UserPromptPart(TEXT)]) for _ in range(count)]

    return Calls(lambda: append(messages(1)), lambda: len(load()), lambda count: append(messages(count)))


def llama_index_calls(store: Any, name: str) -> Calls:
    from llama_index.core.llms import ChatMessage

    return Calls(
        lambda: store.add_message(name, ChatMessage(role="user", content=TEXT)),
        lambda: len(store.get_messages(name)),
        None,
    )


@contextmanager
def ours(url: str, search: str = "off") -> Iterator[Conversation]:
    with our_store(url, search) as store:
        yield partial(store_calls, store)


@contextmanager
def ours_async(url: str) -> Iterator[Conversation]:
    with our_async_store(url) as (store, run):
        yield partial(store_calls, store, run=run)


@contextmanager
def our_agents_session(url: str) -> Iterator[Conversation]:
    from redis_history.integrations.openai_agents import AgentsSession

    with our_async_store(url) as (store, run):
        yield lambda name: agents_calls(AgentsSession(name, store), run)


@contextmanager
def openai_agents(url: str) -> Iterator[Conversation]:
    from agents.extensions.memory import RedisSession

    with on_a_loop() as run:
        yield lambda name: agents_calls(RedisSession.from_url(name, url=url), run)


@contextmanager
def our_agent_framework(url: str) -> Iterator[Conversation]:
    from redis_history.integrations.agent_framework import AgentFrameworkHistory

    with our_async_store(url) as (store, run):
        yield partial(framework_calls, AgentFrameworkHistory(store), run=run)


@contextmanager
def agent_framework(url: str) -> Iterator[Conversation]:
    from agent_framework_redis import RedisHistoryProvider

    with on_a_loop() as run:
        provider = RedisHistoryProvider(redis_url=url, application_id="compare")
        yield partial(framework_calls, provider, run=run)


@contextmanager
def our_adk(url: str) -> Iterator[Conversation]:
    from redis_history.integrations.google_adk import AdkSessionService

    with our_async_store(url) as (store, run):
        yield partial(adk_calls, AdkSessionService(store), run=run)


@contextmanager
def google_adk(url: str) -> Iterator[Conversation]:
    from google.adk_community.sessions.redis_session_service import RedisSessionService

    with on_a_loop() as run:
        yield partial(adk_calls, RedisSessionService(uri=url), run=run)


@contextmanager
def our_langchain(url: str, search: str = "off") -> Iterator[Conversation]:
    from redis_history.integrations.langchain import LangChainHistory

    with our_store(url, search) as store:
        yield lambda name: langchain_calls(LangChainHistory(name, store))


@contextmanager
def langchain_community(url: str) -> Iterator[Conversation]:
    from langchain_community.chat_message_histories import RedisChatMessageHistory

    yield lambda name: langchain_calls(RedisChatMessageHistory(name, url=url))


@contextmanager
def langchain_redis(url: str) -> Iterator[Conversation]:
    from langchain_redis import RedisChatMessageHistory

    url += "&protocol=2" if "?" in url else "?protocol=2"  # with redis-py 8's RESP3 it cannot read its own index
    yield lambda name: langchain_calls(RedisChatMessageHistory(name, redis_url=url))


@contextmanager
def our_llama_index(url: str) -> Iterator[Conversation]:
    from redis_history.integrations.llama_index import LlamaIndexChatStore

    with our_store(url) as store:
        yield partial(llama_index_calls, LlamaIndexChatStore(store))


@contextmanager
def llama_index(url: str) -> Iterator[Conversation]:
    from llama_index.storage.chat_store.redis import RedisChatStore

    yield lambda name: llama_index_calls(RedisChatStore(redis_url=url), name)


@contextmanager
def our_pydantic_ai(url: str) -> Iterator[Conversation]:
    from redis_history.integrations.pydantic_ai import PydanticAIHistory

    def conversation(name: str) -> Calls:
        history = PydanticAIHistory(name, store)
        return pydantic_ai_calls(history.append_sync, history.load_sync)

    with our_store(url) as store:
        yield conversation


@contextmanager
def pydantic_ai(url: str) -> Iterator[Conversation]:
    """Pydantic AI has no class for this: a list of the JSON of `result.new_messages_json()`, as its docs suggest."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter as Messages

    def conversation(name: str) -> Calls:
        return pydantic_ai_calls(
            lambda messages: client.rpush(name, Messages.dump_json(messages)),
            lambda: [one for raw in client.lrange(name, 0, -1) for one in Messages.validate_json(raw)],
        )

    with redis.Redis.from_url(url) as client:
        yield conversation


@contextmanager
def redisvl(url: str) -> Iterator[Conversation]:
    from redisvl.extensions.message_history import MessageHistory

    def conversation(name: str) -> Calls:
        history = MessageHistory(name="compare", session_tag=name, redis_url=url)
        message = {"role": "user", "content": TEXT}
        return Calls(
            lambda: history.add_message(dict(message)),
            lambda: len(history.get_recent(top_k=LOADED, session_tag=name)),
            lambda count: history.add_messages([dict(message) for _ in range(count)]),
        )

    yield conversation


PACKAGES: list[tuple[str, str, Package]] = [
    ("redis_history", "redis_history", ours),
    ("redis_history, asyncio", "redis_history", ours_async),
    ("redis_history, with index", "redis_history", partial(ours, search="require")),
    ("llama-index chat store", "llama-index-storage-chat-store-redis", llama_index),
    ("langchain-community", "langchain-community", langchain_community),
    ("openai-agents RedisSession", "openai-agents", openai_agents),
    ("langchain-redis, with index", "langchain-redis", langchain_redis),
    ("redisvl, with index", "redisvl", redisvl),
]

#: Our adapters, each with the framework's own class.
ADAPTERS: list[tuple[str, Package, Package]] = [
    ("LangChainHistory", our_langchain, langchain_community),
    ("LangChainHistory, langchain-redis", partial(our_langchain, search="require"), langchain_redis),
    ("LlamaIndexChatStore", our_llama_index, llama_index),
    ("AgentsSession", our_agents_session, openai_agents),
    ("AgentFrameworkHistory", our_agent_framework, agent_framework),
    ("AdkSessionService", our_adk, google_adk),
    ("PydanticAIHistory", our_pydantic_ai, pydantic_ai),
]


def member() -> bytes:
    return msgspec.msgpack.encode({"id": str(uuid4()), "role": "user", "content": TEXT})


def base(client: Any) -> Conversation:
    """The bare calls that all are compared with; each name is a key."""
    decode = msgspec.msgpack.Decoder().decode

    def conversation(name: str) -> Calls:
        def bulk(count: int) -> None:
            with client.pipeline(transaction=False) as pipe:
                for _ in range(count):
                    pipe.zadd(name, {member(): time.time()})
                pipe.execute()

        return Calls(
            lambda: client.zadd(name, {member(): time.time()}),
            lambda: len([decode(one) for one in client.zrange(name, 0, -1)]),
            bulk,
        )

    return conversation


def medians(rounds: int, work: Callable[[], Any], base: Callable[[], Any]) -> tuple[float, float]:
    """The median times of `work` and of `base`, in seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS
    for turn in range(rounds + rounds // 10 + 1):
        if time.perf_counter() > end and len(times[0]) >= 5:
            break
        for kept, call in zip(times, (work, base), strict=True):
            start = time.perf_counter()
            call()
            if turn > rounds // 10:  # the first tenth warms up
                kept.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def ratio(time: float, base: float) -> str:
    return f"{time / base:.2f}"


def both(time: float, other: float) -> str:
    return f"{time * 1e3:.2f} / {other * 1e3:.2f}"


def compare(package: Conversation, other: Conversation, rounds: int, form: Callable[[float, float], str]) -> list[str]:
    """The median times of append, load and bulk, and those of the other package."""
    first, first_other = package("first"), other("bare-first")
    first.append()
    appends = form(*medians(rounds, first.append, first_other.append))
    loaded, loaded_other = package("loaded"), other("bare-loaded")
    for _ in range(LOADED):
        loaded.append()
        loaded_other.append()
    assert loaded.load() == LOADED, (package, loaded.load())
    loads = form(*medians(max(rounds // 20, 5), loaded.load, loaded_other.load))
    many, many_other = package("bulk").bulk, other("bare-bulk").bulk
    if many is None or many_other is None:
        return [appends, loads, "–"]
    return [appends, loads, form(*medians(max(rounds // 100, 5), partial(many, BULK), partial(many_other, BULK)))]


def measure(distribution: str, package: Package, rounds: int) -> list[str]:
    """The memory comes first, on a server that had nothing else to keep."""
    with private_server() as one, redis.Redis.from_url(one) as client, package(one) as conversation:
        conversation("warm").append()
        before, count, end = used_memory(client), 0, time.perf_counter() + SECONDS
        for number in range(CONVERSATIONS):
            append = conversation(f"memory-{number}").append
            for _ in range(LOADED):
                append()
            count += LOADED
            if time.perf_counter() > end:
                break
        used = (used_memory(client) - before) / count
        bare = base(client)("spread").append
        BASE_TIMES.append(medians(200, bare, bare)[1])
        return [version(distribution), *compare(conversation, base(client), rounds, ratio), f"{used:.0f}"]


def measure_adapter(adapter: Package, theirs: Package, rounds: int) -> list[str]:
    with private_server() as one, redis.Redis.from_url(one) as client:
        bare = base(client)("spread").append
        BASE_TIMES.append(medians(200, bare, bare)[1])
        with adapter(one) as ours, theirs(one) as other:
            return compare(ours, other, rounds, both)


def measure_together(adapter: Package, theirs: Package, rounds: int) -> list[str]:
    """The time for each of the calls that 64 tasks make at once, or 64 threads where the interface is synchronous."""
    with ExitStack() as stack:
        one = stack.enter_context(private_server())
        pool = stack.enter_context(ThreadPoolExecutor(TASKS))
        pairs = []
        for package in (adapter, theirs):
            known = len(LOOPS)
            conversation = stack.enter_context(package(one))
            pairs.append((conversation, LOOPS[-1] if len(LOOPS) > known else None))

        def at_once(name: str, what: str) -> list[Callable[[], None]]:
            work: list[Callable[[], None]] = []
            for side, (conversation, loop) in enumerate(pairs):
                same = what == "load"  # all read one conversation
                made = [conversation(f"{name}-{side}" + ("" if same else f"-{at}")) for at in range(TASKS)]
                for _ in range(LOADED if same else 1):
                    made[0].append()
                calls = [getattr(one, what) for one in made]
                work.append(partial(_together, calls, loop, pool))
            return work

        times = [medians(rounds // TASKS, *at_once(what, what)) for what in ("append", "load")]
        return [both(ours / TASKS, other / TASKS) for ours, other in times]


def _together(calls: list[Callable[[], Any]], loop: Loop | None, pool: ThreadPoolExecutor) -> None:
    if loop is not None:
        loop.together(calls)
    else:
        list(pool.map(lambda call: call(), calls))


@contextmanager
def private_server() -> Iterator[str]:
    with ExitStack() as stack:
        server = EmbeddedServer(stack.enter_context(tempfile.TemporaryDirectory())).start()
        stack.callback(server.close)
        yield server.url


def load_json() -> None:
    """langchain-redis needs RedisJSON, which servers of Redis Stack have beside their search."""
    with private_server() as url, redis.Redis.from_url(url) as client:
        for module in client.module_list():
            search = Path(module[b"path"].decode())
            json = search.with_name("rejson.so")
            if json.exists():
                os.environ["REDIS_HISTORY_SERVER"] = client.info("server")["executable"]
                os.environ["REDIS_HISTORY_MODULES"] = f"{search}{os.pathsep}{json}"


def figures(count: int, work: Callable[..., list[str]], *arguments: Any) -> list[str]:
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001 -- another package's failure must not end the table
        return [f"{type(error).__name__}: {str(error)[:60]}", *[""] * (count - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000, help="appends of each package, at most (default 2000)")
    parser.add_argument("--adapters", action="store_true", help="only the adapters, beside the frameworks' own classes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    load_json()
    table = Table("package", "version", "append p50", "load 600", "bulk 500", "bytes a message")
    for row, (name, distribution, package) in enumerate([] if options.adapters else PACKAGES, 1):
        print(f"{row} of {len(PACKAGES)}: {name} ...", file=sys.stderr, flush=True)
        table.add_row(name, *figures(5, measure, distribution, package, options.rounds))
    adapters = Table("adapter and the framework's own class, in ms", "append p50", "load 600", "bulk 500")
    for name, adapter, theirs in ADAPTERS:
        print(f"adapter: {name} ...", file=sys.stderr, flush=True)
        adapters.add_row(name, *figures(3, measure_adapter, adapter, theirs, options.rounds))
    spread = f"a bare ZADD took {min(BASE_TIMES) * 1e6:.0f} to {max(BASE_TIMES) * 1e6:.0f} µs, by row"
    together = Table(f"the same with {TASKS} tasks or threads, in ms for each call", "append", "load 600")
    for name, adapter, theirs in ADAPTERS:
        print(f"adapter, {TASKS} tasks: {name} ...", file=sys.stderr, flush=True)
        together.add_row(name, *figures(2, measure_together, adapter, theirs, options.rounds))
    text = f"payload {len(member())} bytes; times of packages in multiples of bare redis-py calls; {spread}"
    Console(width=120).print(*([] if options.adapters else [table]), text, adapters, together)


if __name__ == "__main__":
    main()
