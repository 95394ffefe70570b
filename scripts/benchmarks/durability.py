"""Writes that wait for a confirmation."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.timing import STAMP, Report, append_to, in_turn, members, messages
from redis_history import HistoryStore
from redis_history.embedded import find_server


def bench_durability(report: Report, client: Any, url: str, rounds: int, *, private: bool) -> None:
    """Appends that wait, compared with a ZADD without and a ZADD with the same wait, on the same server."""
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
    """Gives the private server a replica during the block."""
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
