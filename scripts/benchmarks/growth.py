"""The cost of a growing conversation: time, memory of the server, and compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from benchmarks.timing import TEXT, Report, Timing, in_turn, members, messages, processor_time
from redis_history import HistoryStore, Message, user
from redis_history.backends.redis.keys import Keyspace
from redis_history.model.wire import encode_body


def bench_growth(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    """The cost of an append as the conversation grows, compared with ZADD to a set of the same size."""
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
    report.note("append at 100,000 against 100", f"x {ratios[100_000] / ratios[100]:.2f}", "1.2")


def bench_growth_of_reads(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    """The cost of reading the newest messages and of deleting one as the conversation grows, compared with PING."""
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
        report.note(f"{what} at 100,000 against 1,000", f"x {costs[100_000] / costs[1_000]:.2f}", "1.2")


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


ROUNDS = 5  # of 10,000 messages each


def bench_compaction(report: Report, client: Any, url: str, search: Any) -> None:
    """Compacts the older half of 10,000 messages, compared with moving the members to another set; also the server's
    time for each message, and the longest call."""
    names = [f"compacted-{number}" for number in range(ROUNDS)]
    rows = members(messages(10_000))
    with HistoryStore(url, namespace="bench", search=search) as store:
        for name in names:
            for _ in range(10):
                store.append_many(name, messages(1000))
            client.zadd(f"bare-{name}", {member: index for index, member in enumerate(rows)})
        every = {name: store.get(name) for name in names}
        summaries: dict[str, str] = {}

        def move(source: str, target: str) -> None:
            with client.pipeline() as pipe:
                pipe.zadd(target, {member: index for index, member in enumerate(rows[:5000])})
                pipe.zremrangebyscore(source, 0, 4999)
                pipe.execute()

        def compact(name: str) -> None:
            done = store.compact(name, through=every[name][4999], summary=TEXT, seen=every[name][:5000])
            assert done.summary is not None
            summaries[name] = done.summary.id

        def expand(name: str) -> None:
            store.expand(name, summaries[name])

        def move_there(name: str) -> None:
            move(f"bare-{name}", f"bare-{name}-archive")

        def move_back(name: str) -> None:
            move(f"bare-{name}-archive", f"bare-{name}")

        for work, bare in ((compact, move_there), (expand, move_back)):
            ours, beside, busy, longest = Timing(), Timing(), [], []
            with slow_log(client) as slowest:
                for name in names:
                    beside.of(partial(bare, name))
                    slowest()  # resets the log
                    before = processor_time(client)
                    ours.of(partial(work, name))
                    busy.append(processor_time(client) - before)
                    longest.append(slowest())
            operation = f"{work.__name__} 5,000 of 10,000, search {search}"
            report.row(operation, "MULTI: ZADD to another set, ZREMRANGEBYSCORE", ours, beside)
            # The minimum of the rounds, because the log's times include delays by other processes on the machine.
            text = f"{median(busy) / 5000 * 1e6:.1f} µs of the server per message; longest call {min(longest):.1f} ms"
            report.note("the same", text, "<= 20 ms")
        for name in names:
            store.delete_conversation(name)


@contextmanager
def slow_log(client: Any) -> Iterator[Callable[[], float]]:
    """Yields a function that returns the milliseconds of the longest call since its last call."""
    settings = client.config_get("slowlog*")
    client.config_set("slowlog-max-len", 10_000)
    client.config_set("slowlog-log-slower-than", 500)

    def slowest() -> float:
        calls = [entry["duration"] for entry in client.slowlog_get(10_000)]
        client.slowlog_reset()
        return max(calls, default=0) / 1000

    yield slowest
    for setting, value in settings.items():
        client.config_set(setting, value)
