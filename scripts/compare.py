"""Measures this package beside others, each as a multiple of the same bare redis-py calls.

The base, for messages of about 226 bytes as {id, role, content} in MessagePack: `ZADD` of one message, `ZRANGE` of
600 with an untyped msgspec decode, and a pipeline of 500 `ZADD`. Calls of a package and of the base alternate. Bytes
per message are the growth of the server's `used_memory` by 10 conversations of 600 messages that were appended one by
one, so they include indexes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import msgspec
import redis
from rich.console import Console
from rich.table import Table

from redis_history import AsyncHistoryStore, HistoryStore, user
from redis_history.embedded import EmbeddedServer

TEXT = "I would like to change my flight to the one on May 20, in economy if there is still a seat. " * 2
LOADED, BULK, CONVERSATIONS = 600, 500, 10


class Package:
    """One package under test. `conversation` makes the calls for one conversation: append, load, bulk (or None)."""

    def __init__(self, url: str) -> None:
        self.url = url

    def conversation(self, name: str) -> tuple[Callable[[], Any], Callable[[], int], Callable[[int], Any] | None]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Ours(Package):
    search: Any = "off"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store = HistoryStore(url, namespace=f"compare-{self.search}", search=self.search)

    def conversation(self, name: str) -> Any:
        store = self.store
        return (
            lambda: store.append(name, user(TEXT)),
            lambda: len(store.get(name)),
            lambda count: store.append_many(name, [user(TEXT) for _ in range(count)]),
        )

    def close(self) -> None:
        self.store.close()


class OursIndexed(Ours):
    search = "require"


class OnALoop(Package):
    """A package that is only asynchronous: each call runs on one event loop, with that loop's cost."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.loop = asyncio.new_event_loop()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.loop.close()


class OursAsync(OnALoop):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store = AsyncHistoryStore(url, namespace="compare-async", search="off")

    def conversation(self, name: str) -> Any:
        store = self.store
        return (
            lambda: self.run(store.append(name, user(TEXT))),
            lambda: len(self.run(store.get(name))),
            lambda count: self.run(store.append_many(name, [user(TEXT) for _ in range(count)])),
        )

    def close(self) -> None:
        self.run(self.store.aclose())
        super().close()


class OpenAIAgents(OnALoop):
    def conversation(self, name: str) -> Any:
        from agents.extensions.memory import RedisSession

        session = RedisSession.from_url(name, url=self.url)
        item: Any = {"role": "user", "content": TEXT}
        return (
            lambda: self.run(session.add_items([item])),
            lambda: len(self.run(session.get_items())),
            lambda count: self.run(session.add_items([item] * count)),
        )


class OurAgentsSession(OnALoop):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store = AsyncHistoryStore(url, namespace="compare-agents", search="off")

    def conversation(self, name: str) -> Any:
        from redis_history.integrations.openai_agents import AgentsSession

        session = AgentsSession(name, self.store)
        item: Any = {"role": "user", "content": TEXT}
        return (
            lambda: self.run(session.add_items([item])),
            lambda: len(self.run(session.get_items())),
            lambda count: self.run(session.add_items([item] * count)),
        )

    def close(self) -> None:
        self.run(self.store.aclose())
        super().close()


class AgentFramework(OnALoop):
    """Microsoft Agent Framework's own provider."""

    def provider(self) -> Any:
        from agent_framework_redis import RedisHistoryProvider

        return RedisHistoryProvider(redis_url=self.url, application_id="compare")

    def conversation(self, name: str) -> Any:
        from agent_framework import Message

        provider = self.provider()
        numbers = iter(range(10**9))

        def messages(count: int) -> list[Any]:
            return [Message("user", [TEXT], message_id=f"m{next(numbers)}") for _ in range(count)]

        return (
            lambda: self.run(provider.save_messages(name, messages(1))),
            lambda: len(self.run(provider.get_messages(name))),
            lambda count: self.run(provider.save_messages(name, messages(count))),
        )


class OurAgentFramework(AgentFramework):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store = AsyncHistoryStore(url, namespace="compare-framework", search="off")

    def provider(self) -> Any:
        from redis_history.integrations.agent_framework import AgentFrameworkHistory

        return AgentFrameworkHistory(self.store)

    def close(self) -> None:
        self.run(self.store.aclose())
        super().close()


class GoogleADK(OnALoop):
    """The service for Redis of google-adk-community."""

    def service(self) -> Any:
        from google.adk_community.sessions.redis_session_service import RedisSessionService

        return RedisSessionService(uri=self.url)

    def conversation(self, name: str) -> Any:
        from google.adk.events import Event
        from google.genai.types import Content, Part

        service = self.service()
        where = {"app_name": "compare", "user_id": "u"}
        session = self.run(service.create_session(**where, session_id=name))

        def append() -> None:
            event = Event(author="user", content=Content(role="user", parts=[Part(text=TEXT)]))
            self.run(service.append_event(session, event))

        return append, lambda: len(self.run(service.get_session(**where, session_id=name)).events), None


class OurADK(GoogleADK):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store = AsyncHistoryStore(url, namespace="compare-adk", search="off")

    def service(self) -> Any:
        from redis_history.integrations.google_adk import AdkSessionService

        return AdkSessionService(self.store)

    def close(self) -> None:
        self.run(self.store.aclose())
        super().close()


class OurLangChain(Ours):
    def conversation(self, name: str) -> Any:
        from langchain_core.messages import HumanMessage

        from redis_history.integrations.langchain import LangChainHistory

        history = LangChainHistory(name, self.store)
        return (
            lambda: history.add_message(HumanMessage(TEXT)),
            lambda: len(history.messages),
            lambda count: history.add_messages([HumanMessage(TEXT) for _ in range(count)]),
        )


class OurLlamaIndex(Ours):
    def conversation(self, name: str) -> Any:
        from llama_index.core.llms import ChatMessage

        from redis_history.integrations.llama_index import LlamaIndexChatStore

        store = LlamaIndexChatStore(self.store)
        return (
            lambda: store.add_message(name, ChatMessage(role="user", content=TEXT)),
            lambda: len(store.get_messages(name)),
            None,
        )


class LlamaIndex(Package):
    def conversation(self, name: str) -> Any:
        from llama_index.core.llms import ChatMessage
        from llama_index.storage.chat_store.redis import RedisChatStore

        store = RedisChatStore(redis_url=self.url)
        return (
            lambda: store.add_message(name, ChatMessage(role="user", content=TEXT)),
            lambda: len(store.get_messages(name)),
            None,
        )


class LangChainCommunity(Package):
    def conversation(self, name: str) -> Any:
        from langchain_community.chat_message_histories import RedisChatMessageHistory
        from langchain_core.messages import HumanMessage

        history = RedisChatMessageHistory(name, url=self.url)
        return (
            lambda: history.add_message(HumanMessage(TEXT)),
            lambda: len(history.messages),
            lambda count: history.add_messages([HumanMessage(TEXT) for _ in range(count)]),
        )


class LangChainRedis(Package):
    def conversation(self, name: str) -> Any:
        from langchain_core.messages import HumanMessage
        from langchain_redis import RedisChatMessageHistory

        history = RedisChatMessageHistory(name, redis_url=self.url)
        return (
            lambda: history.add_message(HumanMessage(TEXT)),
            lambda: len(history.messages),
            lambda count: history.add_messages([HumanMessage(TEXT) for _ in range(count)]),
        )


class RedisVL(Package):
    def conversation(self, name: str) -> Any:
        from redisvl.extensions.message_history import MessageHistory

        history = MessageHistory(name="compare", session_tag=name, redis_url=self.url)
        one = {"role": "user", "content": TEXT}
        return (
            lambda: history.add_message(dict(one)),
            lambda: len(history.get_recent(top_k=LOADED, session_tag=name)),
            lambda count: history.add_messages([dict(one) for _ in range(count)]),
        )


PACKAGES: list[tuple[str, str, type[Package]]] = [
    ("redis_history", "", Ours),
    ("redis_history, asyncio", "", OursAsync),
    ("redis_history, with index", "", OursIndexed),
    ("our LlamaIndexChatStore", "", OurLlamaIndex),
    ("llama-index chat store", "llama-index-storage-chat-store-redis", LlamaIndex),
    ("our LangChainHistory", "", OurLangChain),
    ("langchain-community", "langchain-community", LangChainCommunity),
    ("our AgentsSession", "", OurAgentsSession),
    ("openai-agents RedisSession", "openai-agents", OpenAIAgents),
    ("our AgentFrameworkHistory", "", OurAgentFramework),
    ("agent-framework-redis", "agent-framework-redis", AgentFramework),
    ("our AdkSessionService", "", OurADK),
    ("google-adk-community", "google-adk-community", GoogleADK),
    ("langchain-redis, with index", "langchain-redis", LangChainRedis),
    ("redisvl, with index", "redisvl", RedisVL),
]


#: Our adapters, each with the framework's own class.
ADAPTERS: list[tuple[str, type[Package], type[Package]]] = [
    ("LangChainHistory", OurLangChain, LangChainCommunity),
    ("LlamaIndexChatStore", OurLlamaIndex, LlamaIndex),
    ("AgentsSession", OurAgentsSession, OpenAIAgents),
    ("AgentFrameworkHistory", OurAgentFramework, AgentFramework),
    ("AdkSessionService", OurADK, GoogleADK),
]


class Base:
    """The bare calls that all are compared with."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.decode = msgspec.msgpack.Decoder().decode
        client.zadd("bare-600", {self.member(): number for number in range(LOADED)})

    def member(self) -> bytes:
        return msgspec.msgpack.encode({"id": str(uuid4()), "role": "user", "content": TEXT})

    def append(self) -> Any:
        return self.client.zadd("bare", {self.member(): time.time()})

    def load(self) -> Any:
        return [self.decode(member) for member in self.client.zrange("bare-600", 0, -1)]

    def bulk(self) -> Any:
        with self.client.pipeline(transaction=False) as pipe:
            for _ in range(BULK):
                pipe.zadd("bare", {self.member(): time.time()})
            return pipe.execute()


def ratio(rounds: int, work: Callable[[], Any], base: Callable[[], Any]) -> str:
    """The median time of `work` in medians of `base`."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + rounds // 10 + 1):
        for kept, call in zip(times, (work, base), strict=True):
            start = time.perf_counter()
            call()
            if turn > rounds // 10:  # the first tenth warms up
                kept.append(time.perf_counter() - start)
    return f"{statistics.median(times[0]) / statistics.median(times[1]):.2f}"


def measure(kind: type[Package], url: str | None, rounds: int) -> list[str]:
    """The memory comes first, on a server that had nothing else to keep."""
    with server_for(url) as one, redis.Redis.from_url(one) as client:
        client.flushall()
        package = kind(one)
        try:
            taken = measure_memory(package, client)
            return [*measure_times(package, Base(client), rounds), f"{taken:.0f}"]
        finally:
            package.close()


def measure_memory(package: Package, client: Any) -> float:
    append, _, _ = package.conversation("warm")
    append()
    before = used_memory(client)
    for number in range(CONVERSATIONS):
        append, _, _ = package.conversation(f"memory-{number}")
        for _ in range(LOADED):
            append()
    return (used_memory(client) - before) / CONVERSATIONS / LOADED


def used_memory(client: Any) -> int:
    memory = client.info("memory")
    return int(memory["used_memory"] - memory["mem_aof_buffer"])  # what waits for a slow disk


def measure_times(package: Package, base: Base, rounds: int) -> list[str]:
    append, _, _ = package.conversation("first")
    append()
    append_times = ratio(rounds, append, base.append)
    append, load, _ = package.conversation("loaded")
    for _ in range(LOADED):
        append()
    assert load() == LOADED, (package, load())
    load_times = ratio(max(rounds // 20, 5), load, base.load)
    _, _, bulk = package.conversation("bulk")
    bulk_times = "–" if bulk is None else ratio(max(rounds // 100, 5), partial(bulk, BULK), base.bulk)
    return [append_times, load_times, bulk_times]


def measure_adapter(kind: type[Package], theirs: type[Package], url: str, client: Any, rounds: int) -> list[str]:
    """Our times in those of the framework's own class: append, load and bulk."""
    client.flushall()
    packages = [kind(url), theirs(url)]
    (append, load, bulk), (append_too, load_too, bulk_too) = (
        one.conversation(f"c{n}") for n, one in enumerate(packages)
    )
    try:
        for _ in range(LOADED):
            append()
            append_too()
        loads = ratio(max(rounds // 20, 5), load, load_too)
        appends = ratio(rounds, append, append_too)
        bulks = "–"
        if bulk is not None and bulk_too is not None:
            bulks = ratio(max(rounds // 100, 5), partial(bulk, BULK), partial(bulk_too, BULK))
        return [appends, loads, bulks]
    finally:
        for one in packages:
            one.close()


@contextmanager
def server_for(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    with ExitStack() as stack:
        server = EmbeddedServer(stack.enter_context(tempfile.TemporaryDirectory())).start()
        stack.callback(server.close)
        yield server.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000, help="appends of each package (default 2000)")
    parser.add_argument("--url", help="a server to use instead of a private one; it is EMPTIED")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    payload = len(msgspec.msgpack.encode({"id": str(uuid4()), "role": "user", "content": TEXT}))
    table = Table("package", "version", "append p50", "load 600", "bulk 500", "bytes a message")
    for name, distribution, kind in PACKAGES:
        shown = version(distribution) if distribution else version("redis_history")
        try:
            figures = measure(kind, options.url, options.rounds)
        except Exception as error:  # noqa: BLE001 -- another package's failure must not end the table
            figures = [f"{type(error).__name__}: {str(error)[:60]}", "", "", ""]
        table.add_row(name, shown, *figures)
    with server_for(options.url) as url:
        client = redis.Redis.from_url(url)
        adapters = Table("adapter, in times of the framework's own class", "append p50", "load 600", "bulk 500")
        for name, kind, theirs in ADAPTERS:
            try:
                figures = measure_adapter(kind, theirs, url, client, options.rounds)
            except Exception as error:  # noqa: BLE001 -- as above
                figures = [f"{type(error).__name__}: {str(error)[:60]}", "", ""]
            adapters.add_row(name, *figures)
    Console(width=120).print(table, f"payload {payload} bytes; times in multiples of bare redis-py calls", adapters)


if __name__ == "__main__":
    main()
