"""A process that has a share in a private server and does nothing else, so that the server stays up between users.

Run as a program with the folder, the durability and the descriptor of a pipe for one report: "ready", "busy" (there is
another keeper), or "failed" and why.
"""

from __future__ import annotations

import contextlib
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

if TYPE_CHECKING:
    from ._binary import Durability

__all__ = ["hold", "keep", "keeper_of", "let_go"]

_LOOK = 5.0  # seconds between looks at whether the server was killed
_REPORT_TIMEOUT = 60.0  # seconds; longer than the server may take to start
_PAUSE = 0.01


def keep(path: str | os.PathLike[str] | None = None, *, durability: Durability = "everysec") -> bool:
    """Start the server in the folder `path` (None: the default one), and a process that keeps it up until `let_go`.

    Returns when the server answers; whether it was not kept before. Raises as EmbeddedServer.start().
    """
    with EmbeddedServer(path, durability=durability) as server:  # our share, until the keeper has its own
        if keeper_of(server.path) is not None:
            return False
        reader, writer = os.pipe()
        try:
            # It forks and ends at once, so that the keeper is not a child of this process.
            subprocess.run(
                [sys.executable, "-m", "redis_history.embedded._keeper", server.path, durability, str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writer,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": _import_path()},
                check=True,
            )
            os.close(writer)
            writer = -1
            return _heard(reader, server.path) == "ready"
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedServerError(f"no process could be started that keeps {server.path} up: {error}") from error
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)


def keeper_of(path: str | os.PathLike[str] | None = None) -> int | None:
    """The process id of what keeps the server of this folder up; None without."""
    lock = _lock_of(DataFolder.at(path))
    with contextlib.suppress(OSError, ValueError):
        if is_held(lock):
            return int(lock.read_text())
    return None


def let_go(path: str | os.PathLike[str] | None = None, *, wait: float = 10.0) -> bool:
    """End what keeps the server of this folder up; whether there was anything. The server ends soon after its last
    user. Returns when the keeper has ended, and if it was the last user, the server; or after `wait` seconds."""
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
        # Free: the supervisor is about to notice. Held by nobody else's share: it is ending the server.
        if not users.try_acquire() and users.try_acquire(shared=True):
            break  # there are other users
        users.release()
        time.sleep(_PAUSE)
    users.release()
    return True


def hold(server: EmbeddedServer) -> None:
    """Keep a share until SIGTERM, SIGINT or SIGHUP; start the server again if it was killed."""
    ended = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            signal.signal(number, lambda *_: ended.set())
        while not ended.wait(_LOOK):
            with contextlib.suppress(EmbeddedServerError):  # its reason is in the logs; the next look tries again
                server.ensure()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lock_of(folder: DataFolder) -> Path:
    return folder.path / "keeper.lock"


def _import_path() -> str:
    """Where this package can be imported from, however it was here."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))


def _heard(reader: int, path: str) -> str:
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    report = os.read(reader, 65_536).decode(errors="replace") if poll.poll(1000 * _REPORT_TIMEOUT) else ""
    kind, _, text = report.partition(" ")
    if kind in ("ready", "busy"):
        return kind
    raise EmbeddedServerError(text or f"the process that was to keep the server in {path} up said nothing")


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
    except Exception as error:  # noqa: BLE001 -- whoever started this tells it
        os.write(report, f"failed {error}".encode())
        return
    os.chdir("/")
    os.write(report, b"ready")
    os.close(report)
    hold(server)
    server.close()
    lock.release()


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
