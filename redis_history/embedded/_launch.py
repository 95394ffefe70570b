"""Makes sure that a server answers and that a supervisor watches it, whatever runs at the moment.

The caller holds users.lock shared, so no supervisor stops the server for lack of users meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from redis_history.errors import EmbeddedServerError

from ._data import server_for
from ._executables import numbers
from ._locks import FileLock, is_held
from ._probe import command, ping
from ._record import Record
from ._report import Report
from ._trouble import ended, failed, slow

if TYPE_CHECKING:
    from ._binary import Durability
    from ._folder import DataFolder

__all__ = ["reach"]

_PING_TIMEOUT = 1.0  # seconds

# Exit statuses of a server that others stopped or killed while it started: -15 (SIGTERM), -9 (SIGKILL), 0 (its
# status after SIGTERM), and "" if its supervisor was killed. A server that fails by itself exits with 1. If it is
# killed repeatedly, memory may be short.
_ENDED_BY_OTHERS, _MOST_ATTEMPTS = ("", "0", "-15", "-9"), 3

_AOF_IN_PARTS = (7, 0)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05


def reach(folder: DataFolder, durability: Durability, began: float, timeout: float) -> None:
    """Return when a server with the data of `folder` answers. Starts a server if none runs.

    Raises EmbeddedServerError if the server cannot be started, or does not answer within `timeout` seconds
    after `began` (of time.monotonic).
    """
    deadline = began + timeout
    pause = _FIRST_PAUSE
    report: Report | None = None
    loading, attempts = False, 0
    try:
        while True:
            answer = ping(folder.unix_socket, max(min(_PING_TIMEOUT, deadline - time.monotonic()), 0.01))
            # After the ping: a server that lost its supervisor still answers for a moment before it ends.
            supervised = is_held(folder.supervisor_lock)
            if answer == "alive" and supervised:
                return _harden(folder, durability, deadline)
            loading = loading or answer == "loading"
            if report is None and not supervised:
                report = _launch(folder, durability, deadline)
                attempts += report is not None
            if report is None:
                time.sleep(pause)
            else:
                line = report.line(pause)
                if line is not None:
                    status = line.removeprefix("exited ")  # "": the supervisor was killed
                    if status not in _ENDED_BY_OTHERS or attempts == _MOST_ATTEMPTS:
                        raise ended(folder, status) if status else failed(folder, "its supervisor ended")
                    report.close()
                    report = None
            if time.monotonic() >= deadline:
                raise slow(folder, timeout, loading=loading)
            pause = min(2 * pause, _LONGEST_PAUSE)
    finally:
        if report is not None:
            report.close()


def _launch(folder: DataFolder, durability: Durability, deadline: float) -> Report | None:
    """Start a supervisor, and return its reports; None if another process was first."""
    lock = FileLock(folder.start_lock)
    if not lock.try_acquire():
        return None
    try:
        if is_held(folder.supervisor_lock):
            return None
        # After a crash the record still has the durability that other users asked for: keep it.
        earlier = Record.read(folder.server_lock)
        if earlier is not None and earlier.durability == "always":
            durability = "always"
        binary = server_for(folder.path)
        argv = binary.argv(directory=folder.path, unix_socket=folder.bound_socket, durability=durability)
        if numbers(binary.version) >= _AOF_IN_PARTS:
            argv += ["--aof-load-truncated", "no"]  # the supervisor truncates a torn AOF at the last whole change
        report = Report.of_supervisor(folder, argv, Record(binary, durability))
        line = None
        # Keep the lock until the supervisor holds its lock, so that no other process launches a second one.
        while line is None and time.monotonic() < deadline:
            line = report.line(_LONGEST_PAUSE)
        if line == "" or (line is not None and line.startswith("started")):
            return report
        report.close()
        if line is None or line == "busy":
            return None
        raise failed(folder, line.partition(" ")[2])
    finally:
        lock.release()


def _harden(folder: DataFolder, durability: Durability, deadline: float) -> None:
    """Set a running server to fsync every write, if this user asks for it. Never sets it back."""
    record = Record.read(folder.server_lock)
    if durability != "always" or (record is not None and record.durability == "always"):
        return
    lock = FileLock(folder.start_lock)
    if not lock.acquire(deadline):
        raise EmbeddedServerError(f"another process has been starting the server in {folder.path} for too long")
    try:
        reply = command(folder.unix_socket, "CONFIG", "SET", "appendfsync", "always", timeout=_PING_TIMEOUT)
        if reply != b"+OK":
            raise EmbeddedServerError(f"the server refused appendfsync always: {reply.decode(errors='replace')}")
        record = Record.read(folder.server_lock)  # again: under the lock it cannot change
        if record is not None:
            record.with_durability("always").write(folder.server_lock)
    except OSError as error:
        raise EmbeddedServerError(f"the server in {folder.path} could not be set to durability 'always'") from error
    finally:
        lock.release()
