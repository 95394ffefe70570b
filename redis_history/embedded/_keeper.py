"""A process that only holds a share in a private server, so that the server stays up between users.

The process runs `_main` with the folder, the durability and the descriptor of a pipe for one report: "ready", "busy"
(there is another keeper), or "failed" and the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from redis_history.errors import EmbeddedServerError

from ._folder import DataFolder
from ._instance import EmbeddedServer
from ._locks import FileLock, is_held
from ._paths import import_path

if TYPE_CHECKING:
    from ._binary import Durability

__all__ = ["hold", "keep", "keeper_of", "let_go"]

_LOOK = 5.0  # seconds between checks whether the server was killed
_REPORT_TIMEOUT = 60.0  # seconds; longer than the server may take to start
_PAUSE = 0.01

# Isolated (-I), so that neither the current folder nor the environment affects what is imported.
_PROGRAM = """
import json, sys
sys.path += json.loads(sys.argv[1])
from redis_history.embedded._keeper import _main
_main(sys.argv[2], sys.argv[3], int(sys.argv[4]))
"""


def keep(path: str | os.PathLike[str] | None = None, *, durability: Durability = "everysec") -> bool:
    """Start the server in the folder `path` (None: the default folder), and keep it up until `let_go`.

    Returns when the server answers: False if it was already kept up. Raises the errors of EmbeddedServer.start().
    """
    with EmbeddedServer(path, durability=durability) as server:  # a share for this process until the keeper has one
        if keeper_of(server.path) is not None:
            return False
        reader, writer = os.pipe()
        try:
            # The program forks and ends at once, so that the keeper is not a child of this process.
            subprocess.run(
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(import_path()), server.path, durability, str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writer,),
                start_new_session=True,
                check=True,
            )
            os.close(writer)
            writer = -1
            return _heard(reader, server.path) == "ready"
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedServerError(
                f"cannot start a process that keeps the server in {server.path} up: {error}"
            ) from error
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)


def keeper_of(path: str | os.PathLike[str] | None = None) -> int | None:
    """The id of the process that keeps the server of this folder up; None if there is none."""
    lock = _lock_of(DataFolder.at(path))
    with contextlib.suppress(OSError, ValueError):
        if is_held(lock):
            return int(lock.read_text())
    return None


def let_go(path: str | os.PathLike[str] | None = None, *, wait: float = 10.0) -> bool:
    """End the process that keeps the server of this folder up; False if there is none.

    Waits at most `wait` seconds until that process has ended and, if it was the last user, the server."""
    folder = DataFolder.at(path)
    pid, deadline = keeper_of(path), time.monotonic() + wait
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while is_held(_lock_of(folder)) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    users = FileLock(folder.users_lock)
    while is_held(folder.supervisor_lock) and time.monotonic() < deadline:
        # Lock free: the supervisor is about to notice. Only the supervisor holds it: it is stopping the server.
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
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            signal.signal(number, lambda *_: ended.set())
        while not ended.wait(_LOOK):
            with contextlib.suppress(EmbeddedServerError):  # the logs have the reason; the next check tries again
                server.ensure()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lock_of(folder: DataFolder) -> Path:
    return folder.path / "keeper.lock"


def _heard(reader: int, path: str) -> str:
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    report = os.read(reader, 65_536).decode(errors="replace") if poll.poll(1000 * _REPORT_TIMEOUT) else ""
    kind, _, text = report.partition(" ")
    if kind in ("ready", "busy"):
        return kind
    raise EmbeddedServerError(
        text or f"the process that keeps the server in {path} up did not report within {_REPORT_TIMEOUT:g} s"
    )


def _main(path: str, durability: str, report: int) -> None:
    if os.fork():
        os._exit(0)
    lock = FileLock(_lock_of(DataFolder.at(path)))
    try:
        server = EmbeddedServer(path, durability=cast("Durability", durability)).start()
        if not lock.try_acquire():
            os.write(report, b"busy")
            return
        lock.path.write_text(str(os.getpid()))
    except Exception as error:  # noqa: BLE001 -- reported to the parent, which raises it
        os.write(report, f"failed {error}".encode())
        return
    os.chdir("/")
    os.write(report, b"ready")
    os.close(report)
    hold(server)
    server.close()
    lock.release()
