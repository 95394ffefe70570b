"""Large contents: the longest command of the server, and what readers that need none of them are spared."""

from __future__ import annotations

import base64
import os
from functools import partial
from typing import Any

from msgspec.structs import replace

from benchmarks.growth import slow_log
from benchmarks.timing import Report, Timing, processor_time
from redis_history import HistoryStore, Message, PartialMessage, assemble_prompt, assistant
from redis_history.formats import from_anthropic
from redis_history.values.wire import encode_body

SIZES_MB = (1, 4, 16, 63)
#: Changes of each size; the shortest of the longest commands counts, because the log's times include delays by other
#: processes on the machine.
ROUNDS = 3
SCREENSHOTS, MESSAGES = 50, 200


def _photo(size: int) -> Message:
    """A message with an image of this many bytes, as base64."""
    data = base64.b64encode(os.urandom(size * 3 // 4)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    [message] = from_anthropic([{"role": "user", "content": [{"type": "image", "source": source}]}])
    return message


def bench_contents(report: Report, client: Any, store: HistoryStore) -> None:
    _bench_longest(report, client, store)
    _bench_appends(report, client, store)
    _bench_readers(report, store)


def _bench_longest(report: Report, client: Any, store: HistoryStore) -> None:
    for size in SIZES_MB:
        longest: dict[str, float] = {}
        with slow_log(client) as slowest:
            for number in range(ROUNDS):
                name, fork = f"contents-{size}-{number}", f"contents-{size}-{number}-fork"
                message = _photo(size * 1_000_000)
                slowest()  # resets the log
                steps: dict[str, Any] = {
                    "append": partial(store.append, name, message),
                    "get": partial(store.get, name),
                    "update": partial(store.update_message, name, replace(_photo(size * 1_000_000), id=message.id)),
                    "fork": partial(store.fork, name, fork),
                    "compact": partial(store.compact, name, through=message.id, summary="a photo"),
                    "erase": partial(store.erase, name, [message.id]),
                    "delete": partial(store.delete_conversation, fork),
                }
                for step, work in steps.items():
                    work()
                    longest[step] = min(slowest(), longest.get(step, float("inf")))
                store.delete_conversation(name)
        text = ", ".join(f"{step} {milliseconds:.1f}" for step, milliseconds in longest.items())
        report.note(f"longest command, content of {size} MB", f"{text} ms", "< 20 ms")


def _bench_appends(report: Report, client: Any, store: HistoryStore) -> None:
    """Beside a script that gets the message as a whole, as before."""
    sent = [_photo(300_000) for _ in range(100)]
    digest = client.script_load("return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])")
    times = Timing(), Timing()
    for index, message in enumerate(sent):
        body = encode_body(message)
        works = (
            partial(client.evalsha, digest, 1, "bare-contents", index, body),
            partial(store.append, "contents-appended", message),
        )
        for timing, work in zip(times, works, strict=True):
            before = processor_time(client)
            work()
            timing.values.append((processor_time(client) - before) * 1e6)
    bare, ours = (sum(timing.values) / len(timing.values) for timing in times)
    text = f"{ours / 1000:.2f} ms of the server; {bare / 1000:.2f} ms if a script gets all of it"
    report.note("append of 300 kB", text)
    store.delete_conversation("contents-appended")
    client.unlink("bare-contents")


def _bench_readers(report: Report, store: HistoryStore) -> None:
    every = MESSAGES // SCREENSHOTS
    sent = [_photo(300_000) if number % every == 0 else assistant(f"answer {number}") for number in range(MESSAGES)]
    for start in range(0, MESSAGES, 20):
        store.append_many("contents-read", sent[start : start + 20])
    for text, work in (
        ("whole", partial(store.get, "contents-read", limit=20)),
        ("contents=False", partial(store.get, "contents-read", limit=20, contents=False)),
    ):
        timing = Timing()
        for _ in range(20):
            timing.of(work)
        size = sum(len(one.stored) if isinstance(one, PartialMessage) else len(encode_body(one)) for one in work())
        name = f"get(limit=20) with {20 // every} screenshots of 300 kB"
        report.note(name, f"{text}: {size / 1000:,.0f} kB, {timing.p50 / 1000:.1f} ms")
    options = {"token_budget": 8_000, "addressed_only_mode": False, "max_turns_to_load": MESSAGES}
    timing = Timing()
    for _ in range(10):
        timing.of(partial(assemble_prompt, store, "contents-read", "agent", options=options))
    report.note(
        f"prompt of 8,000 tokens of {MESSAGES} messages with {SCREENSHOTS} screenshots", f"{timing.p50 / 1000:.1f} ms"
    )
    store.delete_conversation("contents-read")
