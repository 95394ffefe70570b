"""The latency of changes for subscribers: from the start or the return of a write to the callback, beside PUBLISH."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from benchmarks.timing import Report, Timing, append_to
from redis_history import HistoryStore, user


def bench_doorbell(report: Report, client: Any, store: HistoryStore, url: str, rounds: int) -> None:
    rang, arrived = threading.Event(), [0.0]
    bare, since_start, since_return = Timing(), Timing(), Timing()

    def callback(event: Any) -> None:
        arrived[0] = time.perf_counter()
        rang.set()

    pubsub: Any = client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(**{"bare-bell": callback})
    listener = pubsub.run_in_thread(sleep_time=None)
    with HistoryStore(url, namespace="bench", search="off") as reader:
        reader.on_change("bell", callback)
        store.append("bell", user("first"))
        rang.wait(10)
        for _ in range(rounds // 5):
            publish = partial(client.publish, "bare-bell", b"x")
            for timing, ring in ((bare, publish), (since_start, append_to(store, "bell"))):
                rang.clear()
                start = time.perf_counter()
                ring()
                returned = time.perf_counter()
                rang.wait(10)
                timing.values.append((arrived[0] - start) * 1e6)
            since_return.values.append((arrived[0] - returned) * 1e6)
    listener.stop()
    client.publish("bare-bell", b"end")
    listener.join()
    report.row("append returned to callback", "PUBLISH to callback", since_return, bare, "2")
    report.row("append begun to callback", "PUBLISH to callback", since_start, bare)
    report.note("append to callback, p99", f"{since_start.p99:.0f} µs beside {bare.p99:.0f} µs of PUBLISH")
