"""A process that only holds a share in a private server, so that the server stays up between users.

The process runs `_main`. It holds keeper.lock while it runs, so that there is one for each folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from redis_history.errors import EmbeddedServerError

from ._folder import DataFolder, Durability, import_path
from ._instance import EmbeddedServer
from ._locks import FileLock, is_held

_CHECK_INTERVAL = 5.0  # seconds between checks whether the server was killed
_START_TIMEOUT = 30.0  # seconds
_PAUSE = 0.01

# Isolated (-I), so that neither the current folder nor the environment affects what is imported.
_PROGRAM = """
import json, sys
sys.path += json.loads(sys.argv[1])
from redis_history.embedded._keeper import _main
_main(*sys.argv[2:])
"""


def keep(path: str | os.PathLike[str] | None = None, *, durability: Durability = "everysec") -> bool:
    """Start the server in the folder `path` (None: the default folder), and keep it up until `let_go`.

    `durability` is as in `EmbeddedServer`. Returns when the server answers: False if it was already kept up. Raises the
    errors of EmbeddedServer.start().
    """
    with EmbeddedServer(path, durability=durability) as server:  # a share for this process until the keeper has one
        folder = DataFolder.at(path)
        if folder.keeper is not None:
            return False
        failure = f"cannot start a process that keeps the server in {server.path} up"
        try:
            # The program forks and ends at once, so that the keeper is not a child of this process.
            subprocess.run(
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(import_path()), server.path, durability],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedServerError(f"{failure}: {error}") from error
        deadline = time.monotonic() + _START_TIMEOUT
        while folder.keeper is None:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"{failure}: it is not ready after {_START_TIMEOUT:g} s")
            time.sleep(_PAUSE)
    return True


def let_go(path: str | os.PathLike[str] | None = None, *, wait: float = 10.0) -> bool:
    """End the process that keeps the server of this folder up; False if there is none.

    Waits at most `wait` seconds until that process has ended and, if it was the last user, the server."""
    folder = DataFolder.at(path)
    pid, deadline = folder.keeper, time.monotonic() + wait
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while is_held(folder.keeper_lock) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    users = FileLock(folder.users_lock)
    while is_held(folder.supervisor_lock) and time.monotonic() < deadline:
        # If the lock is free, the supervisor is about to notice. If only the supervisor holds it, it stops the server.
        if not users.try_acquire() and users.try_acquire(shared=True):
            break  # there are other users
        users.release()
        time.sleep(_PAUSE)
    users.release()
    return True


def hold(server: EmbeddedServer) -> None:
    """Keep a share until SIGTERM, SIGINT or SIGHUP. Restarts the server if it was killed."""
    ended = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before: dict[signal.Signals, Any] = {number: signal.signal(number, lambda *_: ended.set()) for number in numbers}
    try:
        while not ended.wait(_CHECK_INTERVAL):
            with contextlib.suppress(EmbeddedServerError):  # the logs have the reason; the next check tries again
                server.ensure()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _main(path: str, durability: Durability) -> None:
    if os.fork():
        os._exit(0)
    lock = FileLock(DataFolder.at(path).keeper_lock)
    with EmbeddedServer(path, durability=durability) as server:
        if lock.try_acquire():
            lock.path.write_text(str(os.getpid()))
            os.chdir("/")
            hold(server)
