"""The cost of a growing conversation: time, memory of the server, and compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from benchmarks.timing import TEXT, Report, Timing, in_turn, members, messages, processor_time
from redis_history import HistoryStore, user
from redis_history.store.operations.keys import Keyspace
from redis_history.values.wire import encode_body


def bench_growth(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    """The cost of operations as the conversation grows."""
    sent = messages(rounds // 2)
    stored = members(sent)

    def compare(operation: str, sizes: Sequence[int], beside: str, bare: Callable[[int], Any], work: Any) -> None:
        ratios = []
        for size in sizes:
            name = f"growth-{operation}-{size}"
            for start in range(0, size, 1000):
                batch = [user(TEXT, id=str(start + index)) for index in range(min(1000, size - start))]
                store.append_many(name, batch)
            timings = in_turn(min(rounds // 3, 500), bare, partial(work, name))
            ratios.append(timings[1].p50 / timings[0].p50)
            report.row(f"{operation} {size:,} messages", beside, timings[1], timings[0])
        text = f"x {ratios[-1] / ratios[0]:.2f}"
        report.note(f"{operation.rpartition(' ')[0]} at {sizes[-1]:,} against {sizes[0]:,}", text, "1.2")

    def add(index: int) -> Any:
        return client.zadd("bare-growth", {stored[index]: index})

    def ping(_: int) -> Any:
        return client.ping()

    large = (1_000, 100_000)
    compare(
        "append to",
        (100, 10_000, 100_000),
        "ZADD to a small set",
        add,
        lambda name, index: store.append(name, sent[index]),
    )
    compare("get(limit=50) of", large, "PING", ping, lambda name, _: store.get(name, limit=50))
    compare("delete one of", large, "PING", ping, lambda name, index: store.delete_messages(name, [str(index)]))


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
