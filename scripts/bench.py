"""Ratios, not times: each operation beside a bare redis-py command on the same bytes, call by call in turn.

Absolute times say more about the machine than about the package; the two columns of a row were taken in turn, in one
process, on one server.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import random
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import redis
import redis.asyncio
from rich.console import Console
from rich.table import Table

from redis_history import (
    AsyncHistoryStore,
    Conversation,
    HistoryStore,
    Message,
    Participant,
    PromptOptions,
    assemble_prompt,
    capture,
    user,
)
from redis_history.backends.redis.keys import Keyspace
from redis_history.embedded import EmbeddedServer, find_server
from redis_history.model.wire import encode_body, encode_member

TEXT = "I would like to change my flight to the one on May 20, in economy if there is still a seat. " * 2
STAMP = 1_700_000_000_000_000


def messages(count: int) -> list[Message]:
    return [user(TEXT) for _ in range(count)]


def members(of: list[Message]) -> list[bytes]:
    return [encode_member(index, STAMP + index, encode_body(message)) for index, message in enumerate(of)]


class Timing:
    """Times of one thing, in microseconds."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def of(self, work: Callable[[], Any]) -> None:
        start = time.perf_counter()
        work()
        self.values.append((time.perf_counter() - start) * 1e6)

    @property
    def p50(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.values, n=100)[98]


class Report:
    def __init__(self) -> None:
        self.table = Table("operation", "beside", "x p50", "p50 µs", "beside µs", "goal")

    def row(self, name: str, beside: str, ours: Timing, bare: Timing, goal: str = "") -> None:
        ratio = f"{ours.p50 / bare.p50:.2f}"
        self.table.add_row(name, beside, ratio, f"{ours.p50:.0f}", f"{bare.p50:.0f}", goal)

    def note(self, name: str, text: str, goal: str = "") -> None:
        self.table.add_row(name, text, "", "", "", goal)


def in_turn(count: int, bare: Callable[[int], Any], ours: Callable[[int], Any]) -> tuple[Timing, Timing]:
    timings = Timing(), Timing()
    for index in range(count + count // 10):
        if index == count // 10:  # the first tenth warms up
            timings = Timing(), Timing()
        timings[0].of(partial(bare, index))
        timings[1].of(partial(ours, index))
    return timings


def bench_append(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    sent = messages(rounds + rounds // 10)
    stored = members(sent)
    bare, ours = in_turn(
        rounds, lambda i: client.zadd("bare", {stored[i]: STAMP + i}), lambda i: store.append("append", sent[i])
    )
    report.row("append", "ZADD", ours, bare, "1.5, at most 1.8")
    bare, ours = in_turn(
        rounds // 2, lambda i: client.zadd("bare", {stored[i]: STAMP + i}), lambda i: store.append("append", sent[i])
    )
    report.row("append again (duplicate)", "ZADD", ours, bare)


async def bench_async_append(report: Report, url: str, rounds: int) -> None:
    client = redis.asyncio.Redis.from_url(url)
    async with AsyncHistoryStore(url, namespace="bench-async", search="off") as store:
        sent = messages(rounds)
        stored = members(sent)
        bare, ours = Timing(), Timing()
        for index in range(rounds):
            start = time.perf_counter()
            await client.zadd("bare-async", {stored[index]: STAMP + index})
            middle = time.perf_counter()
            await store.append("append", sent[index])
            bare.values.append((middle - start) * 1e6)
            ours.values.append((time.perf_counter() - middle) * 1e6)
    await client.aclose()
    report.row("append (asyncio)", "ZADD", ours, bare, "1.5, at most 1.8")


def bench_read(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    sent = messages(600)
    client.zadd("bare-600", {member: STAMP + i for i, member in enumerate(members(sent))})
    store.append_many("read", sent)
    decode = msgspec.msgpack.Decoder().decode

    def bare_read(_: int) -> Any:
        return [decode(member) for member in client.zrange("bare-600", 0, -1)]

    bare, ours = in_turn(rounds // 10, bare_read, lambda _: store.get("read"))
    report.row("get, 600 messages", "ZRANGE + decode to dicts", ours, bare, "1.5")
    bare, ours = in_turn(rounds, lambda _: client.ping(), lambda _: store.get_message("read", sent[300].id))
    report.row("get_message", "PING", ours, bare)


def bench_prompts(report: Report, store: HistoryStore, rounds: int) -> None:
    """600 messages by four people: what of it fits into the default budget, and all of it."""
    people = [Participant("user", f"u{number}", f"Person {number}") for number in range(4)]
    store.append_many("prompts", [user(TEXT, participant=people[index % 4]) for index in range(600)])
    for name, options in (
        ("assemble_prompt, 600 loaded", PromptOptions(max_turns_to_load=600)),
        ("the same, all said to the agent", PromptOptions(max_turns_to_load=600, addressed_only_mode=False)),
        (
            "the same, all 600 in the prompt",
            PromptOptions(
                max_turns_to_load=600, addressed_only_mode=False, token_budget=None, rolling_summary_threshold=None
            ),
        ),
    ):

        def assemble(_: int, options: PromptOptions = options) -> Any:
            return assemble_prompt(store, "prompts", "agent", "The agent", options)

        bare, ours = in_turn(rounds // 10, lambda _: store.get("prompts", limit=600), assemble)
        report.row(name, "get of the same", ours, bare, "2")


def bench_capture(report: Report, store: HistoryStore, rounds: int) -> None:
    def agent(question: str) -> str:
        return question

    with capture(store, "captured", background=True) as behind:
        recorded, quick = capture(store, "captured")(agent), behind(agent)
        bare, ours = in_turn(rounds // 5, lambda _: store.append("appended", user(TEXT)), lambda _: recorded(TEXT))
        report.row("a captured call, two turns", "append", ours, bare, "2.2")
        bare, ours = in_turn(rounds // 10, lambda _: store.append("appended", user(TEXT)), lambda _: quick(TEXT))
        report.row("the same in the background", "append", ours, bare)


def bench_batch(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    batches = [messages(500) for _ in range(rounds // 40)]
    stored = members(batches[0])

    def pipelined(index: int) -> None:
        pipe = client.pipeline(transaction=False)
        for place, member in enumerate(stored):
            pipe.zadd(f"bare-batch-{index}", {member: STAMP + place})
        pipe.execute()

    count = len(batches) * 10 // 11
    bare, ours = in_turn(count, pipelined, lambda i: store.append_many(f"batch-{i}", batches[i]))
    report.row("append_many, 500 messages", "pipelined ZADD", ours, bare, "1.5")


def bench_doorbell(report: Report, client: Any, store: HistoryStore, url: str, rounds: int) -> None:
    """From the write, begun or returned, to the moment the other side has it, beside PUBLISH to its subscriber."""
    heard: dict[str, float] = {}
    rang = threading.Event()
    pubsub: Any = client.pubsub()
    pubsub.subscribe("bare-bell")

    def listen() -> None:
        for message in pubsub.listen():
            if message["data"] == b"end":
                return
            if message["type"] == "message":
                heard["at"] = time.perf_counter()
                rang.set()

    def callback(event: Any) -> None:
        heard["at"] = time.perf_counter()
        rang.set()

    thread = threading.Thread(target=listen)
    thread.start()
    for what in ("callback", "callback for all conversations"):
        bare, ours, since_return = Timing(), Timing(), Timing()
        with HistoryStore(url, namespace="bench", search="off") as reader:
            if what == "callback":
                reader.on_change("bell", callback)
            else:
                reader.on_change_all(callback)
            store.append("bell", user("first"))
            rang.wait(10)
            for _ in range(rounds // 5):
                bell = partial(client.publish, "bare-bell", b"x")
                for timing, ring in ((bare, bell), (ours, append_to(store, "bell"))):
                    rang.clear()
                    start = time.perf_counter()
                    ring()
                    returned = time.perf_counter()
                    rang.wait(10)
                    timing.values.append((heard["at"] - start) * 1e6)
                    if timing is ours:
                        since_return.values.append((heard["at"] - returned) * 1e6)
        report.row(f"append returned to {what}", "PUBLISH to callback", since_return, bare, "2")
        report.row(f"append begun to {what}", "PUBLISH to callback", ours, bare)
        report.note(f"append to {what}, p99", f"{ours.p99:.0f} µs beside {bare.p99:.0f} µs of PUBLISH")
    client.publish("bare-bell", b"end")
    thread.join()
    pubsub.close()


async def bench_async_doorbell(report: Report, url: str, rounds: int) -> None:
    client = redis.asyncio.Redis.from_url(url)
    pubsub: Any = client.pubsub()
    await pubsub.subscribe("bare-bell")
    heard: dict[str, float] = {}
    rang = asyncio.Event()

    def callback(event: Any) -> None:
        heard["at"] = time.perf_counter()
        rang.set()

    async def listen() -> None:
        async for message in pubsub.listen():
            if message["type"] == "message":
                callback(message)

    listening = asyncio.create_task(listen())
    bare, ours, since_return = Timing(), Timing(), Timing()
    async with AsyncHistoryStore(url, namespace="bench") as store, AsyncHistoryStore(url, namespace="bench") as reader:
        await reader.on_change("async-bell", callback)
        await store.append("async-bell", user("first"))
        await rang.wait()
        for _ in range(rounds // 5):
            for timing in (bare, ours):
                rang.clear()
                start = time.perf_counter()
                if timing is bare:
                    await client.publish("bare-bell", b"x")
                else:
                    await store.append("async-bell", user(TEXT))
                returned = time.perf_counter()
                await rang.wait()
                timing.values.append((heard["at"] - start) * 1e6)
                if timing is ours:
                    since_return.values.append((heard["at"] - returned) * 1e6)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await pubsub.aclose()
    await client.aclose()
    report.row("append returned to callback (asyncio)", "PUBLISH to callback", since_return, bare, "2")
    report.row("append begun to callback (asyncio)", "PUBLISH to callback", ours, bare)
    report.note("append to callback (asyncio), p99", f"{ours.p99:.0f} µs beside {bare.p99:.0f} µs of PUBLISH")


def append_to(store: HistoryStore, conversation_id: str) -> Callable[[], Any]:
    return lambda: store.append(conversation_id, user(TEXT))


def bench_growth(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    """The cost of an append as the conversation grows, beside ZADD to a set of the same size."""
    ratios = {}
    for size in (100, 10_000, 100_000):
        name = f"growth-{size}"
        for start in range(0, size, 1000):
            store.append_many(name, messages(min(1000, size - start)))
        sent = messages(rounds // 2)
        stored = members(sent)

        def bare_add(index: int, stored: list[bytes] = stored) -> Any:
            return client.zadd("bare-growth", {stored[index]: index})

        def add(index: int, sent: list[Message] = sent, name: str = name) -> Any:
            return store.append(name, sent[index])

        bare, ours = in_turn(rounds // 3, bare_add, add)
        ratios[size] = ours.p50 / bare.p50
        report.row(f"append to {size:,} messages", "ZADD to a small set", ours, bare)
    report.note("append at 100,000 against 100", f"x {ratios[100_000] / ratios[100]:.2f}", "1.3")


def bench_growth_of_reads(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    """What a read of the newest and the removal of one cost as the conversation grows, beside PING."""
    for what in ("get(limit=50)", "delete one"):
        costs = {}
        for size in (1_000, 100_000):
            name = f"growth-of-{what}-{size}"
            for start in range(0, size, 1000):
                store.append_many(name, [user(TEXT, id=str(start + index)) for index in range(1000)])

            def read(index: int, name: str = name) -> Any:
                return store.get(name, limit=50)

            def delete(index: int, name: str = name) -> Any:
                return store.delete_messages(name, [str(index)])

            bare, ours = in_turn(min(rounds // 5, 500), lambda _: client.ping(), read if what[0] == "g" else delete)
            costs[size] = ours.p50 / bare.p50
            report.row(f"{what} of {size:,} messages", "PING", ours, bare)
        report.note(f"{what} at 100,000 against 1,000", f"x {costs[100_000] / costs[1_000]:.2f}", "1.3")


def bench_listing(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    for number in range(10_000):
        store.create_conversation(Conversation(f"listed-{number}", user_id=f"user {number % 100}"))
    few = max(rounds // 100, 5)
    bare, ours = in_turn(few, lambda _: client.ping(), lambda _: store.list_conversations())
    report.row("list 50 of 10,000 conversations", "PING", ours, bare)
    bare, ours = in_turn(few, lambda _: client.ping(), lambda _: store.list_conversations(user_id="user 7"))
    report.row("list the 50 newest of an owner of 100", "PING", ours, bare)


def bench_ttl(report: Report, url: str, store: HistoryStore, rounds: int) -> None:
    with HistoryStore(url, namespace=store.namespace, ttl=3600, search="off") as mortal:
        bare, ours = in_turn(
            rounds // 3,
            lambda _: store.append("lasting", user(TEXT)),
            lambda _: mortal.append("mortal", user(TEXT)),
        )
    report.row("append with ttl", "append", ours, bare)


def bench_durability(report: Report, client: Any, url: str, rounds: int, *, private: bool) -> None:
    """Appends that wait, beside a ZADD that does not and one that waits likewise, on the same server."""
    for durability, command in (("fsync", ("WAITAOF", 1, 0, 5000)), ("replicas", ("WAIT", 1, 5000))):
        if private:
            client.config_set("appendfsync", "always" if durability == "fsync" else "everysec")
        with HistoryStore(url, namespace="bench", durability=durability, search="off") as store:  # type: ignore[arg-type]
            if durability not in (found := store.capabilities).durability:
                report.note(f'append, durability="{durability}"', "this server cannot confirm it")
                continue
            few = rounds // 4
            stored = members(messages(few + few // 10))

            def waiting(index: int, command: Any = command, stored: list[bytes] = stored) -> None:
                with client.pipeline(transaction=False) as pipe:
                    pipe.zadd("bare", {stored[index]: STAMP + index})
                    pipe.execute_command(*command)
                    pipe.execute()

            def bare(index: int, stored: list[bytes] = stored) -> Any:
                return client.zadd("bare", {stored[index]: STAMP + index})

            name = f'append, durability="{durability}" ({found.appendfsync})'
            for beside, work in (("ZADD", bare), (f"ZADD and {command[0]}", waiting)):
                append = append_to(store, "durable")

                def ours(_: int, append: Callable[[], Any] = append) -> Any:
                    return append()

                timings = in_turn(few, work, ours)
                report.row(name, beside, timings[1], timings[0])
                client.unlink("bare")


@contextmanager
def followed(client: Any, folder: Path) -> Iterator[None]:
    """The private server has a replica, meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client.config_set("port", port)
    client.config_set("repl-diskless-sync-delay", 0)
    folder.mkdir()
    binary = find_server("redis-stack")
    argv = [*binary.argv(directory=folder, unix_socket=folder / "s"), "--replicaof", "127.0.0.1", str(port)]
    replica = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while client.wait(1, 1000) < 1:
            if time.monotonic() > deadline:
                raise SystemExit("the replica did not follow")
            client.set("bare-replicated", "")
        yield
    finally:
        replica.kill()
        replica.wait(10)


def bench_search_writes(report: Report, client: Any, url: str, rounds: int) -> None:
    """Appends with and without documents, in turn, beside ZADD."""
    with HistoryStore(url, namespace="bench-search", search="require") as store:
        with HistoryStore(url, namespace="bench-search-off", search="off") as silent:
            sent = messages(rounds + rounds // 10)
            stored = members(sent)

            def bare_add(index: int) -> Any:
                return client.zadd("bare", {stored[index]: STAMP + index})

            bare, ours = in_turn(rounds, bare_add, lambda i: store.append("append", sent[i]))
            report.row("append, with an index", "ZADD", ours, bare, "2.5")
            client.unlink("bare")
            bare, ours = in_turn(rounds, bare_add, lambda i: silent.append("append", sent[i]))
            report.row('append, search="off"', "ZADD", ours, bare, "1.5, at most 1.8")
            bare, ours = in_turn(
                rounds, lambda i: silent.append("beside", sent[i]), lambda i: store.append("beside", sent[i])
            )
            report.row("append, with an index", 'append, search="off"', ours, bare)
        client.unlink("bare")


def bench_search(report: Report, client: Any, url: str, rounds: int) -> None:
    """Search in a conversation of a small and of a large namespace, in turn; and beside the server's own search for the
    same words in it."""
    few = max(rounds // 10, 20)
    chance = random.Random(0)
    asked = [" ".join(chance.sample(WORDS[:300], 3)) for _ in range(few + few // 10)]

    def filled(size: int) -> HistoryStore:
        store = HistoryStore(url, namespace=f"bench-search-{size}", search="require")
        store.append_many("c", spoken(0, 600))
        for number in range(1, size // 500):
            store.append_many(f"c{number}", spoken(number, 500))
        return store

    with filled(2_000) as small, filled(200_000) as large:
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.1)
        life = client.hget(Keyspace(small.namespace).conversation("c").state, "i").decode()

        def bare_search(index: int) -> Any:
            words = "|".join(asked[index].split())
            query = f"@c:{{{life}}} ({words})"
            return client.execute_command(
                *("FT.SEARCH", f"rh:{small.namespace}", query, "WITHSCORES", "LIMIT", "0", "10", "DIALECT", "2")
            )

        def search(index: int) -> Any:
            return small.search("c", asked[index])

        for name, bare_work in (("PING", lambda _: client.ping()), ("one FT.SEARCH, 10 documents", bare_search)):
            bare, ours = in_turn(few, bare_work, search)
            report.row("search in 600 of 2,000 messages", name, ours, bare)
        bare, ours = in_turn(few, search, lambda index: large.search("c", asked[index]))
        report.row("search in 600 of 200,000 messages", "in 600 of 2,000", ours, bare, "1.5")
        with HistoryStore(url, namespace=small.namespace, search="off") as silent:
            bare, ours = in_turn(max(few // 4, 10), search, lambda index: silent.search("c", asked[index]))
        report.row("the same without an index", "with an index", ours, bare)


def bench_search_memory(report: Report, client: Any, url: str) -> None:
    """What the server's memory grows by for each message, with all that belongs to it."""
    used: dict[str, int] = {}
    options: dict[str, dict[str, Any]] = {
        "without search": {"search": "off"},
        "with an index": {"search": "require"},
        "with vectors of 384 numbers": {"search": "require", "embedder": any_vectors, "vectors": 384},
    }
    for name, chosen in options.items():
        with HistoryStore(url, namespace=f"bench-memory-{len(used)}", **chosen) as store:
            store.append("warm", user("x"))
            before = client.info("memory")["used_memory"]
            for number in range(10):
                for part in range(6):
                    store.append_many(f"c{number}", spoken(number * 6 + part, 100))
            used[name] = round((client.info("memory")["used_memory"] - before) / 6_000)
    each = sum(len(encode_body(message)) for message in spoken(1, 100)) // 100
    told = ", ".join(f"{size} {name}" for name, size in used.items())
    report.note("server bytes per message, conversations of 600", f"{told}; {each} of payload")


#: Made up, and as frequent as words are: the n-th a n-th as often as the first.
WORDS = ["".join(random.Random(n).choices("abcdefghijklmnoprstuvw", k=2 + n % 8)) for n in range(5_000)]
_WEIGHTS = list(itertools.accumulate(1 / (n + 1) for n in range(len(WORDS))))


def spoken(seed: int, count: int) -> list[Message]:
    """Messages of about 25 words."""
    chance = random.Random(seed)
    return [user(" ".join(chance.choices(WORDS, cum_weights=_WEIGHTS, k=25))) for _ in range(count)]


def any_vectors(texts: Sequence[str]) -> list[list[float]]:
    return [[random.random() for _ in range(384)] for _ in texts]


def bench_memory(report: Report, client: Any, store: HistoryStore) -> None:
    for count in (30, 600, 5000):
        sent = messages(count)
        payload = sum(len(encode_body(message)) for message in sent)
        for message in sent:
            store.append(f"memory-{count}", message)
        keys = Keyspace(store.namespace).conversation(f"memory-{count}")
        used = [client.memory_usage(key, samples=0) or 0 for key in (keys.messages, keys.state, keys.log)]
        each = [round(size / count) for size in used]
        report.note(
            f"server bytes per message, {count} messages",
            f"{sum(each)} for {payload // count} of payload: "
            f"messages {each[0]}, ids and counters {each[1]}, change log {each[2]}",
        )


def bench_compaction(report: Report, client: Any, url: str, search: Any) -> None:
    """Of a conversation of 10,000 messages the older half; per message, and the longest that any call held the
    server."""
    with HistoryStore(url, namespace="bench", search=search) as store:
        for _ in range(10):
            store.append_many("compacted", messages(1000))
        every = store.get("compacted")
        before = client.config_get("slowlog*")
        client.config_set("slowlog-max-len", 10_000)
        client.config_set("slowlog-log-slower-than", 500)
        for name in ("compact", "expand"):
            client.slowlog_reset()
            busy = _busy(client)
            start = time.perf_counter()
            if name == "compact":
                summary = store.compact("compacted", through=every[4999], summary=TEXT, seen=every[:5000]).summary
            else:
                assert summary is not None
                store.expand("compacted", summary.id)
            taken = time.perf_counter() - start
            server = (_busy(client) - busy) * 1e6
            longest = max((entry["duration"] for entry in client.slowlog_get(10_000)), default=0) / 1000
            report.note(
                f"{name} 5,000 of 10,000 messages, search {search}",
                f"{taken / 5000 * 1e6:.1f} µs per message, {server / 5000:.1f} µs of the server; "
                f"longest call {longest:.1f} ms",
                "<= 20 ms",
            )
        for setting, value in before.items():
            client.config_set(setting, value)
        store.delete_conversation("compacted")


def _busy(client: Any) -> float:
    """Seconds of processor time that the server has used."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def clear(client: Any) -> None:
    """Take away what was written, and the indexes."""
    for pattern in ("rh:{bench*", "rhd:{bench*", "bare*"):
        for key in client.scan_iter(match=pattern, count=1000):
            client.unlink(key)
    with suppress(redis.ResponseError):  # a server without search
        for index in client.execute_command("FT._LIST"):
            if index.startswith(b"rh:bench"):
                client.execute_command("FT.DROPINDEX", index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000, help="calls of each kind (default 3000)")
    parser.add_argument("--url", help="a server to use instead of a private one; keys of namespace bench are written")
    options = parser.parse_args()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(folder)
        if not options.url:
            server.start()
        url = options.url or server.url
        client = redis.Redis.from_url(url)
        report = Report()
        with HistoryStore(url, namespace="bench", search="off") as store:
            bench_append(report, client, store, options.rounds)
            asyncio.run(bench_async_append(report, url, options.rounds))
            bench_read(report, client, store, options.rounds)
            bench_prompts(report, store, options.rounds)
            bench_capture(report, store, options.rounds)
            bench_batch(report, client, store, options.rounds)
            bench_doorbell(report, client, store, url, options.rounds)
            asyncio.run(bench_async_doorbell(report, url, options.rounds))
            bench_growth(report, client, store, options.rounds)
            bench_growth_of_reads(report, client, store, options.rounds)
            bench_ttl(report, url, store, options.rounds)
            bench_listing(report, client, store, options.rounds)
            bench_memory(report, client, store)
            bench_compaction(report, client, url, "off")
            searches = store.capabilities.search_module is not None
        if searches:
            bench_compaction(report, client, url, "auto")
            bench_search_writes(report, client, url, options.rounds)
            bench_search(report, client, url, options.rounds)
            bench_search_memory(report, client, url)
            clear(client)
        if options.url:
            bench_durability(report, client, url, options.rounds, private=False)
        else:
            with followed(client, Path(folder) / "replica"):
                bench_durability(report, client, url, options.rounds, private=True)
        clear(client)
        client.close()
        server.close(wait=10)
    Console(width=140).print(report.table)


if __name__ == "__main__":
    main()
