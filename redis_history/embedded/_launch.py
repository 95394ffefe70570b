"""Makes sure that a server answers and that a supervisor watches it, whatever runs at the moment.

The caller holds users.lock shared, so no supervisor stops the server for lack of users in the meantime.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Literal, cast

from redis_history.errors import EmbeddedServerError

from ._binaries import server_for
from ._folder import DataFolder
from ._locks import FileLock, is_held

Answer = Literal["alive", "loading", "silent", "absent"]

_PING_TIMEOUT = 1.0  # seconds
_LAUNCH_TIMEOUT = 20.0  # seconds until the supervisor has detached, which takes about 0.02
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_LOG_LINES, _LOG_BYTES = 12, 8192  # of the end of a log, in an error

# Exit statuses of a server that others stopped or killed while it started: -15 (SIGTERM), -9 (SIGKILL), 0 (its
# status after SIGTERM), and "" if its supervisor was killed. A server that fails on its own exits with 1. If it is
# killed repeatedly, memory may be short.
_ENDED_BY_OTHERS, _MOST_ATTEMPTS = ("", "0", "-15", "-9"), 3


def command(unix_socket: Path, *words: str, timeout: float = _PING_TIMEOUT) -> bytes:
    """The server's reply to a command of plain words: a line, or the content of a bulk string; b"" if it closes the
    connection.

    Not with redis-py, whose import takes longer than starting a server. Raises OSError: FileNotFoundError or
    ConnectionRefusedError if no server listens, TimeoutError without a reply within `timeout` seconds.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(unix_socket))
        connection.sendall(" ".join(words).encode() + b"\r\n")
        with connection.makefile("rb") as replies:
            line = replies.readline()
            if line.startswith(b"$"):
                return replies.read(int(line[1:]))
    return line[:-2] if line.endswith(b"\r\n") else b""


def ping(unix_socket: Path, timeout: float = _PING_TIMEOUT) -> Answer:
    """The state of a server, from its answer to PING within `timeout` seconds.

    Any reply but LOADING counts as alive: a server that runs a long script, or cannot write its AOF because the
    disk is full, answers PING with an error, but another server would not help.
    """
    try:
        reply = command(unix_socket, "PING", timeout=timeout)
    except (FileNotFoundError, ConnectionRefusedError):
        return "absent"
    except OSError:
        return "silent"
    if not reply:
        return "silent"
    return "loading" if reply.startswith(b"-LOADING") else "alive"


def reach(folder: DataFolder, began: float, timeout: float) -> None:
    """Return when a server with the data of `folder` answers. Starts a server if none runs.

    Raises EmbeddedServerError if the server cannot be started, or does not answer within `timeout` seconds
    after `began` (of time.monotonic).
    """
    deadline = began + timeout
    pause = _FIRST_PAUSE
    reports: IO[bytes] | None = None
    loading, crashed, attempts = False, False, 0
    try:
        while True:
            answer = ping(folder.unix_socket, max(min(_PING_TIMEOUT, deadline - time.monotonic()), 0.01))
            # After the ping: a server that lost its supervisor still answers for a moment before it ends.
            supervised = is_held(folder.supervisor_lock)
            if answer == "alive" and supervised:
                if reports is not None:
                    folder.note_writer()
                    if crashed:
                        _rewrite(folder, deadline)
                return
            loading = loading or answer == "loading"
            if reports is None and not supervised:
                crashed = bool(folder.record())  # a clean exit empties it
                reports = _launch(folder, deadline)
                attempts += reports is not None
            if reports is None:
                time.sleep(pause)
            elif (line := _next_report(reports, pause)) is not None:
                status = line.removeprefix("exited ")  # "": the supervisor was killed
                if status not in _ENDED_BY_OTHERS or attempts == _MOST_ATTEMPTS:
                    raise _ended(folder, status)
                reports.close()
                reports = None
            if time.monotonic() >= deadline:
                raise _slow(folder, timeout, loading=loading)
            pause = min(2 * pause, _LONGEST_PAUSE)
    finally:
        if reports is not None:
            reports.close()


def _launch(folder: DataFolder, deadline: float) -> IO[bytes] | None:
    """Start a supervisor, and return its reports; None if another process was first."""
    lock = FileLock(folder.start_lock)
    if not lock.try_acquire():
        return None
    try:
        if is_held(folder.supervisor_lock):
            return None
        binary = server_for(folder.writer())
        argv = binary.argv(directory=folder.path, unix_socket=folder.bound_socket)
        reports = _start_supervisor(folder, argv, {"binary": asdict(binary), "pid": 0})
        line = None
        # Keep the lock until the supervisor holds its lock, so that no other process launches a second one.
        while line is None and time.monotonic() < deadline:
            line = _next_report(reports, _LONGEST_PAUSE)
        kind, _, reason = (line or "").partition(" ")
        if line is not None and kind not in ("busy", "failed"):
            return reports
        reports.close()
        if kind == "failed":
            raise _error(f"no server could be started in {folder.path}: {reason}", folder.supervisor_log)
        return None
    finally:
        lock.release()


def _rewrite(folder: DataFolder, deadline: float) -> None:
    """Rewrite the AOF after a crash. Redis 7.4.1 truncates a torn AOF within a MULTI, and appends the next change to
    the partial transaction. The next start would restore the partial one, or lose both."""
    with contextlib.suppress(OSError):
        command(folder.unix_socket, "BGREWRITEAOF")
        while b"aof_rewrite_in_progress:1" in command(folder.unix_socket, "INFO", "persistence"):
            if time.monotonic() >= deadline:
                return
            time.sleep(_FIRST_PAUSE)


def _start_supervisor(folder: DataFolder, argv: list[str], record: dict[str, Any]) -> IO[bytes]:
    """Start a supervisor for the server `argv`, and return the stream of its reports. Closing it has no effect on the
    supervisor. Raises EmbeddedServerError."""
    if not sys.executable or getattr(sys, "frozen", False):
        raise EmbeddedServerError("the supervisor needs a Python interpreter, but sys.executable names none")
    spec = {"folder": str(folder.path), "unix_socket": folder.bound_socket, "argv": argv, "record": record}
    program = Path(__file__).with_name("_supervisor.py")
    try:
        with folder.supervisor_log.open("ab") as log:
            # By path: -m would import this package and redis-py. -I -S ignore the user's environment.
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, json.dumps(spec)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        # The program forks and ends immediately, so that the supervisor is not a child of this process: code
        # that waits for any child would get it, or it would remain as a zombie.
        status = process.wait(_LAUNCH_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(f"the supervisor did not start: {error}") from error
    if status:
        raise EmbeddedServerError(f"the supervisor did not start: see {folder.supervisor_log}")
    return cast("IO[bytes]", process.stdout)


def _next_report(reports: IO[bytes], wait: float) -> str | None:
    """The next line; None if none arrives within `wait` seconds; "" at the end."""
    poll = select.poll()  # not select(), which fails for descriptors from 1024 on
    poll.register(reports, select.POLLIN)
    return reports.readline().decode(errors="replace").rstrip("\n") if poll.poll(wait * 1000) else None


def _ended(folder: DataFolder, status: str) -> EmbeddedServerError:
    """The server ended before it answered. `status` is empty if its supervisor was killed."""
    if not status:
        return _error(f"no server could be started in {folder.path}: its supervisor ended", folder.supervisor_log)
    text = f"the server in {folder.path} ended while it started (status {status})"
    if status == "-9":
        text += ": it was killed, perhaps because memory ran out"
    return _error(text, folder.server_log)


def _slow(folder: DataFolder, timeout: float, *, loading: bool) -> EmbeddedServerError:
    """A server runs, or ran until just now, but was not ready in time."""
    pid = folder.record().get("pid")
    text = f"the server in {folder.path} does not answer on {folder.unix_socket} after {timeout:g} s"
    if loading:
        text = f"the server in {folder.path} is still loading its data after {timeout:g} s: raise start_timeout"
    elif pid and not folder.unix_socket.exists():
        text += (
            f": the socket is gone (deleted, or made in another /tmp). End process {pid}, or the processes that use it,"
            " and start again"
        )
    return _error(text, folder.server_log)


def _error(text: str, log: Path) -> EmbeddedServerError:
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, 2) - _LOG_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    tail = "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
    return EmbeddedServerError(f"{text}. The end of {log}:\n{tail}" if tail else text)
