"""The process that starts one server, and stops it after its last user has left, unless it is kept.

Runs as a program, by its path, with `python -I -S`. It imports a few modules of the standard library and
no module of this package, because importing redis-py takes longer than starting the server. Its argument is
a JSON object (see main). It writes reports to standard output, one line each:

    busy              another supervisor runs; this one has ended
    started PID       the server process runs; it may still be loading
    failed TEXT       no server could be started; this supervisor has ended
    exited STATUS     the server ended unasked; this supervisor ends

The supervisor holds supervisor.lock while it runs. The server inherits server.lock, and holds it as long as
the server, or its child that rewrites the AOF, runs. While the folder has a file `kept`, the server runs without users.
"""

# Importing pathlib would take a third of the start time.
# ruff: noqa: PTH105, PTH108, PTH110, PTH123, PTH202

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

_BUSY_AFTER = 2.0  # seconds; longer than an ending supervisor or `is_held` holds the lock
_ORPHAN_KILL_AFTER, _ORPHAN_GIVE_UP_AFTER = 10.0, 20.0
_KILL_AFTER = 20  # seconds for a clean exit, which ends with an fsync
_PAUSE = 0.01
_KEPT_PAUSE = 0.1
_LOG_MAX = 1 << 20  # bytes


class _NotStartedError(Exception):
    """The report of a supervisor that ends without a server."""


def main(spec: dict[str, Any]) -> None:
    """Supervise `spec["argv"]` with the data in `spec["folder"]`; `spec["record"]` goes into server.lock."""
    folder = spec["folder"]
    supervisor_lock = _lock(f"{folder}/supervisor.lock", _BUSY_AFTER)
    if supervisor_lock is None:
        raise _NotStartedError("busy")
    _overwrite(supervisor_lock, str(os.getpid()))
    # Opened before the wait, because the wait must also work after the folder was deleted.
    users_lock = os.open(f"{folder}/users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if _try_lock(users_lock):
        raise _NotStartedError("failed no process uses it")  # the process that asked for the server was killed
    server_lock = _server_lock(folder)
    os.ftruncate(server_lock, 0)
    _rotate(f"{folder}/server.log")
    _log(f"starting {spec['argv'][0]}")
    server = _spawn(spec, server_lock)
    stopping = threading.Event()

    def stop(reason: str) -> None:
        _log(reason)
        stopping.set()
        server.terminate()
        time.sleep(_KILL_AFTER)
        _log(f"the server did not end within {_KILL_AFTER} s")
        server.kill()

    def stop_after_users() -> None:
        kept = f"{folder}/kept"
        try:
            fcntl.flock(users_lock, fcntl.LOCK_EX)  # and keep it, so that no user can join
            while os.path.exists(kept):
                fcntl.flock(users_lock, fcntl.LOCK_UN)
                while os.path.exists(kept):
                    time.sleep(_KEPT_PAUSE)
                fcntl.flock(users_lock, fcntl.LOCK_EX)
        finally:
            stop("no user is left")

    def stop_by_signal(*_: object) -> None:
        threading.Thread(target=stop, args=("got a signal to end",), daemon=True).start()

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop_by_signal)
    signal.signal(signal.SIGINT, stop_by_signal)
    _report(f"started {server.pid}")
    threading.Thread(target=stop_after_users, daemon=True).start()
    status = server.wait()
    _log(f"the server ended with status {status}{'' if stopping.is_set() else ', by itself'}")
    if not stopping.is_set():
        _report(f"exited {status}")
    elif status == 0:  # otherwise the record stays, as after a crash
        with contextlib.suppress(OSError):
            os.truncate(f"{folder}/server.lock", 0)
    with contextlib.suppress(OSError):
        os.unlink(spec["unix_socket"])
    # Released before users.lock, which ends with the process: the next user must not find a supervisor.
    os.close(supervisor_lock)


def _spawn(spec: dict[str, Any], server_lock: int) -> subprocess.Popen[bytes]:
    """Start the server, which inherits the lock. Raises OSError."""
    supervisor, prctl = os.getpid(), _prctl()

    def prepare() -> None:  # in the new process
        if prctl is not None:
            prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG: end if the supervisor is killed
        if os.getppid() != supervisor:
            os._exit(1)
        _overwrite(server_lock, json.dumps({**spec["record"], "pid": os.getpid()}))

    with open(f"{spec['folder']}/server.log", "ab") as log:
        server = subprocess.Popen(
            spec["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(server_lock,), preexec_fn=prepare
        )
    os.close(server_lock)
    return server


def _prctl() -> Any:
    """Linux's prctl. None elsewhere: there the next user ends a server that lost its supervisor."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def _server_lock(folder: str) -> int:
    """Take server.lock, ending a server whose supervisor was killed."""
    began, sent = time.monotonic(), 0
    while (file := _lock(f"{folder}/server.lock", 0)) is None:
        # This process holds supervisor.lock, so no other supervisor runs: the lock's holder is an orphaned server.
        age = time.monotonic() - began
        if age > _ORPHAN_GIVE_UP_AFTER:
            raise _NotStartedError("failed an earlier server does not end, and its process could not be killed")
        number = signal.SIGKILL if age > _ORPHAN_KILL_AFTER else signal.SIGTERM
        if sent != number and _end_orphan(folder, number):
            sent = number
        time.sleep(_PAUSE)
    return file


def _end_orphan(folder: str, number: int) -> bool:
    try:
        with open(f"{folder}/server.lock", "rb") as file:
            pid = json.load(file)["pid"]
        # Check the working directory: a process id from a container may mean another process here.
        if sys.platform != "linux" or os.path.realpath(f"/proc/{pid}/cwd") == os.path.realpath(folder):
            _log(f"ending process {pid}, a server without a supervisor, with signal {number}")
            os.kill(pid, number)
            return True
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not written yet, or ended: the caller tries again
    return False


def _lock(path: str, patience: float) -> int | None:
    """Lock the file at `path` exclusively, and return its descriptor; None if not free for `patience` seconds."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + patience
    while not _try_lock(file):
        if time.monotonic() >= until:
            os.close(file)
            return None
        time.sleep(_PAUSE)
    return file


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _overwrite(file: int, text: str) -> None:
    os.pwrite(file, text.encode(), 0)
    os.ftruncate(file, len(text.encode()))


def _rotate(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.getsize(path) > _LOG_MAX:
            os.replace(path, f"{path}.1")


def _report(line: str) -> None:
    with contextlib.suppress(OSError):  # the reader has closed the pipe
        os.write(1, f"{line}\n".encode(errors="backslashreplace"))


def _log(text: str) -> None:
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {os.getpid()} {text}\n"
    os.write(2, line.encode(errors="backslashreplace"))


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    # Undo the signal mask of the process that asked for the server: otherwise the server could not be stopped.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.fork():  # the parent process must not wait for the supervisor
        os._exit(0)
    os.umask(0o077)
    os.chdir(spec["folder"])
    _rotate("supervisor.log")
    os.dup2(os.open("supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), 2)
    try:
        main(spec)
    except _NotStartedError as error:
        _report(str(error))
    except OSError as error:
        _log(f"failed: {error}")
        _report(f"failed {error}")
    os._exit(0)
