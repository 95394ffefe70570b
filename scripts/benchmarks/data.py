"""Backups, erasure of a user and forks at full size. Prints times, commands and memory.

PYTHONPATH=scripts python -m benchmarks.data backup --conversations 43000 --messages 40
PYTHONPATH=scripts python -m benchmarks.data erase --conversations 1000000 --owned 10000
PYTHONPATH=scripts python -m benchmarks.data fork --messages 100000
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import redis

from benchmarks.timing import TEXT
from redis_history import Conversation, HistoryStore, assistant, user
from redis_history.embedded import EmbeddedServer
from redis_history.store.operations.scripts import SCRIPTS

WRITER = """
import sys
from redis_history import HistoryStore, user
with HistoryStore(sys.argv[1], namespace="bench-f") as store:
    number = 0
    while True:
        number += 1
        store.append("c", user("x" * 200))
        store.update_message("c", user(f"edited {number}", id=str(number % int(sys.argv[2]))))
"""


def timed(what: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    outcome = call()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{what}: {time.perf_counter() - start:.1f} s; peak memory of this process {memory:,} MB", flush=True)
    return outcome


def said(number: int) -> Any:
    return user(f"{number} {TEXT}") if number % 2 else assistant(f"{number} {TEXT}")


def command(url: str, *arguments: str) -> None:
    """Run a command of redis-history, and print its time and memory."""
    start = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "redis_history.cli", "--url", url, *arguments], os.environ
    )
    _, status, usage = os.wait4(pid, 0)
    took, memory = time.perf_counter() - start, usage.ru_maxrss >> 10
    print(f"{arguments[2]}: {took:.1f} s, peak memory {memory:,} MB, exit status {status}", flush=True)


def backup(url: str, conversations: int, messages: int) -> None:
    first, second = (HistoryStore(url, namespace=name, search="off") for name in ("bench-a", "bench-b"))
    for number in range(conversations):
        first.create_conversation(Conversation(f"c{number}", user_id=number % 1000, title=f"Conversation {number}"))
        stored = first.append_many(f"c{number}", [said(one) for one in range(messages)])
        if number % 10 == 0:
            first.compact(f"c{number}", through=stored[messages // 2].message, summary="the first half")
    print(f"{conversations:,} conversations with {conversations * messages:,} messages", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "backup.jsonl.gz"
        command(url, "--namespace", "bench-a", "export", "--quiet", "-o", str(path))
        print(f"{path.stat().st_size >> 20:,} MB")
        command(url, "--namespace", "bench-b", "import", "--quiet", str(path))
        command(url, "--namespace", "bench-b", "import", "--quiet", str(path))
    differing = 0
    for one in first.iter_conversations():
        name = one.conversation_id
        same = second.get_conversation(name) == one
        same = same and second.get(name, include_archived=True) == first.get(name, include_archived=True)
        differing += not (same and second.get(name, limit=1) == first.get(name, limit=1))
    listed = [store.list_conversations(limit=conversations) for store in (first, second)]
    print(f"conversations that differ: {differing}; the lists are equal: {listed[0] == listed[1]}")
    first.close()
    second.close()


ERASER = """
import sys
from benchmarks.data import timed
from redis_history import HistoryStore
with HistoryStore(sys.argv[1], namespace="bench-e") as store:
    execute, trips = store.backend.execute, []
    store.backend.execute = lambda op: (trips.append(op), execute(op))[1]
    count = timed("erase", lambda: store.erase_user("the erased"))
    print(f"{count:,} conversations in {len(trips):,} round trips", flush=True)
"""


def erase(server: EmbeddedServer, conversations: int, owned: int) -> None:
    store, client = (
        HistoryStore(server.url, namespace="bench-e"),
        redis.Redis.from_url(server.url, socket_timeout=None, decode_responses=True),
    )
    every = conversations // owned
    for number in range(conversations):
        owner = "the erased" if number % every == 0 else f"user {number % 997}"
        store.create_conversation(Conversation(f"c{number}", user_id=owner))
        if number % every == 0:
            store.append_many(f"c{number}", [user(f"{one} of the erased") for one in range(3)])
        elif number % 100 == 1:
            store.append_many(f"c{number}", [said(one) for one in range(3)])
    print(f"{conversations:,} conversations, {client.dbsize():,} keys", flush=True)

    def others() -> int:
        """A digest of the conversations of others."""
        digest = 0
        for one in store.iter_conversations():
            if one.user_id != "the erased":
                messages = store.get(one.conversation_id) if one.message_count else []
                digest ^= hash((repr(one), repr(messages)))
        return digest

    def searches(until: Callable[[], bool]) -> float:
        times: list[float] = []
        while not until():
            start = time.perf_counter()
            store.search("c1", "conversation")
            times.append(time.perf_counter() - start)
        print(f"{len(times):,} searches of others: p50 {median(times) * 1e3:.2f} ms", flush=True)
        return median(times)

    before = others()
    end = time.perf_counter() + 10
    alone = searches(lambda: time.perf_counter() > end)
    with subprocess.Popen([sys.executable, "-c", "import time\nwhile time.process_time() < 10: pass"]) as busy:
        end = time.perf_counter() + 10
        beside = searches(lambda: time.perf_counter() > end)
        busy.kill()
    with subprocess.Popen([sys.executable, "-c", ERASER, server.url]) as eraser:
        meanwhile = searches(lambda: eraser.poll() is not None)
    print(f"searches of others: x {meanwhile / alone:.2f}; beside a busy process: x {beside / alone:.2f}")
    print(f"the others are the same: {others() == before}")
    client.config_set("rdbcompression", "no")
    client.save()
    dump = Path(*(str(client.config_get(one)[one]) for one in ("dir", "dbfilename")))
    left = subprocess.run(["grep", "-c", "-a", "the erased", dump], capture_output=True, text=True, check=False)
    print(f"lines of the dump ({dump.stat().st_size >> 20:,} MB) with the name or a text: {left.stdout.strip()}")
    print(f"hits in the index: {len(store.search_all('erased'))}; keys: {client.dbsize():,}", flush=True)
    store.close()


def fork(url: str, messages: int) -> None:
    store, client = HistoryStore(url, namespace="bench-f"), redis.Redis.from_url(url)
    for start in range(0, messages, 1000):
        store.append_many("c", [user(TEXT, id=str(start + one)) for one in range(min(1000, messages - start))])
    client.config_set("slowlog-log-slower-than", 2000)
    client.config_set("slowlog-max-len", 100_000)
    client.slowlog_reset()
    with subprocess.Popen([sys.executable, "-c", WRITER, url, str(messages)]) as writer:
        made = timed("fork", lambda: store.fork("c", "d"))
        writer.kill()
    print(f"{made.message_count:,} messages of revision {made.forked_from.revision:,}")
    names = {script.sha: script.name for script in SCRIPTS.values()}
    slow: dict[str, list[float]] = {}
    for entry in client.slowlog_get(100_000):
        command, *rest = entry["command"].split()
        slow.setdefault(names.get(rest[0], command.decode()) if rest else str(command), []).append(entry["duration"])
    for name, times in sorted(slow.items()):
        print(
            f"{name}: {len(times)} above 2 ms, p50 {median(times) / 1000:.1f}, the slowest {max(times) / 1000:.1f} ms"
        )
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("backup", "erase", "fork"))
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--owned", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
        if given.what == "backup":
            backup(server.url, given.conversations, given.messages)
        elif given.what == "erase":
            erase(server, given.conversations, given.owned)
        else:
            fork(server.url, given.messages)


if __name__ == "__main__":
    main()
