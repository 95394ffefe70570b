"""EmbeddedServer: one user of a private server; keeping the server up without users; and the state of a folder."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Self

from redis_history.errors import EmbeddedServerError
from redis_history.values._validation import check_seconds

from ._binaries import Candidate, ServerBinary, candidates, server_for
from ._folder import DataFolder
from ._launch import Answer, ping, reach
from ._locks import FileLock, is_held, wait_until


class EmbeddedServer:
    """A share in the private server of one data folder. The server runs as long as any process has a share.

    `path`: the folder; None: the user's default. `start_timeout`: seconds that start() and ensure() may take, including
    the time to load the data.

    Any number of objects and processes of one user can share a folder. A share ends with close(), with the
    object, or with its process, even if that is killed. A forked child does not have a share until it calls start().
    Thread-safe.

    Raises ConfigurationError for an invalid argument, EmbeddedServerError without a home folder.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, start_timeout: float = 30.0) -> None:
        check_seconds(start_timeout, "start_timeout", 0, above=True)
        self._folder = DataFolder.at(path)
        self._start_timeout = start_timeout
        self._users = FileLock(self._folder.users_lock)
        self._mutex = threading.Lock()

    def start(self) -> Self:
        """Take a share, and return when the server answers. With a share already, the same as ensure().

        Raises EmbeddedServerError, and takes no share, if the folder cannot be used, no server is installed, the
        server cannot read the data, or it does not answer in time.
        """
        with self._mutex:
            self._reach()
        return self

    def ensure(self) -> None:
        """Return when the server answers. Restarts it, with its data, if it was killed or crashed.

        Raises EmbeddedServerError like start(), but keeps the share. Also raises it without a share.
        """
        with self._mutex:
            if not self._users.held:
                raise EmbeddedServerError(
                    f"this process has no share in the server of {self._folder.path}: call start() first"
                )
            self._reach()

    def close(self, *, wait: float = 0.0) -> None:
        """Give up the share, if there is one. The server ends soon after the last share.

        Returns when the server has ended, or after `wait` seconds: by default immediately.
        """
        with self._mutex:
            self._users.release()
        if wait > 0:
            wait_until(lambda: not is_held(self._folder.supervisor_lock), time.monotonic() + wait)

    @property
    def started(self) -> bool:
        """Whether this object has a share in this process: from start() to close(), never in a forked child."""
        return self._users.held

    @property
    def path(self) -> str:
        """The data folder, resolved."""
        return str(self._folder.path)

    @property
    def unix_socket(self) -> str:
        """The path of the socket, which is the same whether the server runs or not."""
        return str(self._folder.unix_socket)

    @property
    def url(self) -> str:
        """The socket as a URL for redis-py: `redis.Redis.from_url(server.url)`."""
        return self._folder.url

    @property
    def pid(self) -> int:
        """The process id of the server. Raises EmbeddedServerError if none is running."""
        pid = self._folder.running().get("pid")
        if not pid:
            raise EmbeddedServerError(f"no server is running in {self._folder.path}")
        return int(pid)

    @property
    def binary(self) -> ServerBinary:
        """The running server, or else the one to start. Raises EmbeddedServerError if there is neither."""
        return _binary(self._folder.running()) or server_for(self._folder.writer())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EmbeddedServer({self.path!r}, started={self.started})"

    def _reach(self) -> None:
        began, joins = time.monotonic(), not self._users.in_place  # no share yet, or the folder was deleted
        try:
            if joins:
                self._users.release()
                self._folder.prepare()
                if not self._users.acquire(began + self._start_timeout, shared=True):
                    raise EmbeddedServerError(
                        f"the supervisor of {self._folder.path} has been stopping the server for"
                        f" {self._start_timeout:g} s: see {self._folder.supervisor_log}"
                    )
            reach(self._folder, began, self._start_timeout)
        except BaseException as error:
            if joins:
                self._users.release()
            if isinstance(error, OSError):
                raise EmbeddedServerError(f"cannot work in {self._folder.path}: {error}") from error
            raise


def keep(path: str | os.PathLike[str] | None = None) -> bool:
    """Start the server in the folder `path` (None: the default folder), and keep it running until `let_go`, even
    without users. If it is killed, the next user starts it again.

    Returns when the server answers: False if it was already kept up. Raises the errors of EmbeddedServer.start().
    """
    with EmbeddedServer(path):  # the supervisor looks after the last share has ended
        folder = DataFolder.at(path)
        was_kept = folder.kept.exists()
        folder.kept.touch(0o600)
        return not was_kept


def let_go(path: str | os.PathLike[str] | None = None, *, wait: float = 10.0) -> bool:
    """Let the server of this folder end with its last user. Returns False if it was not kept running.

    Without users, waits at most `wait` seconds until the server has ended."""
    folder, deadline = DataFolder.at(path), time.monotonic() + wait
    if not folder.kept.exists():
        return False
    folder.kept.unlink(missing_ok=True)
    users = FileLock(folder.users_lock)

    def is_settled() -> bool:
        # If the lock is free, the supervisor is about to notice. If only the supervisor holds it, it stops the server.
        has_users = not users.try_acquire() and users.try_acquire(shared=True)
        users.release()
        return has_users or not is_held(folder.supervisor_lock)

    wait_until(is_settled, deadline)
    return True


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """The state of one data folder, and the servers that could serve it.

    `answer`: alive, loading, silent (the socket accepts connections but the server does not reply) or absent.
    `supervised`: a supervisor runs; `running`: a supervisor runs, and the server answers. `pid` and `running_binary`:
    of the running server, otherwise None. `binary`: the server to start here; if None, `problem` says why.
    `data_writer`: the server that wrote the data, such as "Redis 7.4.1"; None without data. `kept`: the
    server runs even without users: see `redis-history embedded start`.
    """

    path: str
    unix_socket: str
    url: str
    answer: Answer
    supervised: bool
    pid: int | None
    running_binary: ServerBinary | None
    data_writer: str | None
    binary: ServerBinary | None
    candidates: tuple[Candidate, ...]
    problem: str | None
    kept: bool = False

    @property
    def running(self) -> bool:
        """Whether a server of this package runs there."""
        return self.supervised and self.answer in ("alive", "loading")

    def __str__(self) -> str:
        """Several lines of text for people."""
        if self.running:
            state = f"{self.answer}, process {self.pid}: {self.running_binary}"
        else:
            state = f"supervised, but {self.answer}" if self.supervised else "not running"
        lines = [
            f"folder   {self.path}",
            f"socket   {self.unix_socket}",
            f"server   {state}",
            *(["kept     until `redis-history embedded stop`"] if self.kept else []),
            f"data     {f'written by {self.data_writer}' if self.data_writer else 'none yet'}",
            f"choice   {self.binary or self.problem}",
            "looked at",
            *(f"  {'+' if candidate.usable else '-'} {candidate}" for candidate in self.candidates),
        ]
        return "\n".join(lines)


def status(path: str | os.PathLike[str] | None = None) -> EmbeddedStatus:
    """The state of the folder `path` (None: the default folder). Creates and changes nothing.

    Raises ConfigurationError if `path` is not a path, EmbeddedServerError if the folder is not readable.
    """
    folder = DataFolder.at(path)
    try:
        supervised = is_held(folder.supervisor_lock)
    except OSError as error:
        raise EmbeddedServerError(f"cannot read {folder.path}: {error}") from error
    record = folder.running()
    problem, binary, writer = None, None, folder.writer()
    try:
        binary = server_for(writer)
    except EmbeddedServerError as error:
        problem = str(error)
    return EmbeddedStatus(
        path=str(folder.path),
        unix_socket=str(folder.unix_socket),
        url=folder.url,
        answer=ping(folder.unix_socket),
        supervised=supervised,
        pid=record.get("pid") or None,
        running_binary=_binary(record),
        data_writer=f"{writer['product']} {writer['version']}" if writer else None,
        binary=binary,
        candidates=tuple(candidates()),
        problem=problem,
        kept=folder.kept.exists(),
    )


def _binary(record: dict[str, Any]) -> ServerBinary | None:
    try:
        return ServerBinary(**{**record["binary"], "modules": tuple(record["binary"]["modules"])})
    except (TypeError, KeyError):  # empty, or of another version
        return None
