"""Backups, erasure of a user and forks at full size. Prints times, commands and memory.

PYTHONPATH=scripts python -m benchmarks.data backup --conversations 43000 --messages 40
PYTHONPATH=scripts python -m benchmarks.data erase --conversations 1000000 --owned 10000
PYTHONPATH=scripts python -m benchmarks.data fork --messages 100000
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import redis

from benchmarks.timing import TEXT
from redis_history import Conversation, HistoryStore, assistant, user
from redis_history.embedded import EmbeddedServer
from redis_history.importers import export_messages, import_messages
from redis_history.operations import base as calls

WRITER = """
import sys
from redis_history import HistoryStore, user
with HistoryStore(sys.argv[1], namespace="bench-f", search="off") as store:
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


def backup(url: str, conversations: int, messages: int) -> None:
    first = HistoryStore(url, namespace="bench-a", search="off")
    for number in range(conversations):
        first.create_conversation(Conversation(f"c{number}", user_id=number % 1000, title=f"Conversation {number}"))
        stored = first.append_many(f"c{number}", [said(one) for one in range(messages)])
        if number % 10 == 0:
            first.compact(f"c{number}", through=stored[messages // 2].message, summary="the first half")
    print(f"{conversations:,} conversations with {conversations * messages:,} messages", flush=True)
    with tempfile.TemporaryDirectory() as folder, HistoryStore(url, namespace="bench-b", search="off") as second:
        path = Path(folder) / "backup.jsonl.gz"
        done = timed("export", lambda: export_messages(first, path))
        print(f"{done}; {path.stat().st_size >> 20:,} MB")
        print(timed("import", lambda: import_messages(path, second)))
        print(timed("the same import again", lambda: import_messages(path, second)))
        differing = 0
        for one in first.iter_conversations():
            name = one.conversation_id
            same = second.get_conversation(name) == one
            same = same and second.get(name, include_archived=True) == first.get(name, include_archived=True)
            differing += not (same and second.get(name) == first.get(name))
        listed = [store.list_conversations(limit=5000) for store in (first, second)]
        print(f"conversations that differ: {differing}; the lists are equal: {listed[0] == listed[1]}")
    first.close()


def erase(url: str, conversations: int, owned: int) -> None:
    store, client = HistoryStore(url, namespace="bench-e"), redis.Redis.from_url(url)
    every = conversations // owned
    for number in range(conversations):
        owner = "erased" if number % every == 0 else f"user {number % 997}"
        store.create_conversation(Conversation(f"c{number}", user_id=owner))
        if number % every == 0 or number % 100 == 1:
            store.append_many(f"c{number}", [said(one) for one in range(3)])
    times: list[float] = []
    other = HistoryStore(url, namespace="bench-e")
    searching = threading.Event()

    def search() -> None:
        while not searching.is_set():
            start = time.perf_counter()
            other.search("c1", "conversation")
            times.append(time.perf_counter() - start)

    def searched(what: str, work: Callable[[], Any]) -> float:
        times.clear()
        searching.clear()
        thread = threading.Thread(target=search)
        thread.start()
        outcome = timed(what, work)
        searching.set()
        thread.join()
        print(f"{outcome}; a search of others meanwhile: p50 {median(times) * 1e3:.2f} ms", flush=True)
        return median(times)

    alone = searched("nothing", lambda: time.sleep(5))
    meanwhile = searched("erase", lambda: store.erase_user("erased"))
    print(f"searches of others: x {meanwhile / alone:.2f}")
    left = sum(1 for _ in store.iter_conversations(user_id="erased"))
    print(f"left: {left}; others: {store.count_conversations():,}; keys: {client.dbsize():,}")
    other.close()
    store.close()


def fork(url: str, messages: int) -> None:
    store, client = HistoryStore(url, namespace="bench-f", search="off"), redis.Redis.from_url(url)
    for start in range(0, messages, 1000):
        store.append_many("c", [user(TEXT, id=str(start + one)) for one in range(min(1000, messages - start))])
    client.config_set("slowlog-log-slower-than", 2000)
    client.config_set("slowlog-max-len", 100_000)
    client.slowlog_reset()
    with subprocess.Popen([sys.executable, "-c", WRITER, url, str(messages)]) as writer:
        made = timed("fork", lambda: store.fork("c", "d"))
        writer.kill()
    print(f"{made.message_count:,} messages of revision {made.forked_from.revision:,}")
    names = {script.sha: script.name for script in vars(calls).values() if isinstance(script, calls.Script)}
    slow: dict[str, list[float]] = {}
    for entry in client.slowlog_get(100_000):
        command, *rest = entry["command"].split()
        slow.setdefault(names.get(rest[0], command.decode()) if rest else str(command), []).append(entry["duration"])
    for name, times in sorted(slow.items()):
        print(f"{name}: {len(times)} above 2 ms, the slowest {max(times) / 1000:.1f} ms")
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
            erase(server.url, given.conversations, given.owned)
        else:
            fork(server.url, given.messages)


if __name__ == "__main__":
    main()
