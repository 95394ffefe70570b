"""What a conversation costs as it grows: time, memory of the server, and its compaction."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.timing import TEXT, Report, in_turn, members, messages, processor_time
from redis_history import HistoryStore, Message, user
from redis_history.backends.redis.keys import Keyspace
from redis_history.model.wire import encode_body


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
            busy = processor_time(client)
            start = time.perf_counter()
            if name == "compact":
                summary = store.compact("compacted", through=every[4999], summary=TEXT, seen=every[:5000]).summary
            else:
                assert summary is not None
                store.expand("compacted", summary.id)
            taken = time.perf_counter() - start
            server = (processor_time(client) - busy) * 1e6
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
