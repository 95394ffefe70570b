"""EmbeddedServer: one user of a private server."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Self, get_args

from redis_history._validation import check_choice, check_seconds
from redis_history.errors import EmbeddedServerError

from ._binary import Durability, ServerBinary
from ._data import server_for
from ._folder import DataFolder
from ._launch import reach
from ._locks import FileLock, is_held
from ._record import Record

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["EmbeddedServer"]

_PAUSE = 0.01


class EmbeddedServer:
    """A share in the private server of one data folder. The server runs as long as any process has a share.

    `path`: the folder; None: the user's default. `durability`: "everysec" fsyncs once a second, "always" before
    each reply; the strictest setting of all users applies. `start_timeout`: seconds that start() and
    ensure() may take, including the time to load the data.

    Any number of objects and processes of one user can share a folder. A share ends with close(), with the
    object, or with its process, even if that is killed. A forked child has no share until it calls start(),
    on the same object or another. Thread-safe.

    Raises ConfigurationError for an invalid argument, EmbeddedServerError without a home folder.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        durability: Durability = "everysec",
        start_timeout: float = 30.0,
    ) -> None:
        check_choice(durability, "durability", get_args(Durability))
        check_seconds(start_timeout, "start_timeout", 0, above=True)
        self._folder = DataFolder.at(path)
        self._durability: Durability = durability
        self._start_timeout = start_timeout
        self._users = FileLock(self._folder.users_lock)
        self._mutex = threading.Lock()
        self._process = os.getpid()

    def start(self) -> Self:
        """Take a share, and return when the server answers. With a share already, the same as ensure().

        Raises EmbeddedServerError, and takes no share, if the folder cannot be used, no server is installed, the
        server cannot read the data, or it does not answer in time.
        """
        with self._exclusive():
            if not self._users.held or not self._users.in_place:
                self._join()
            else:
                self._reach(time.monotonic())
        return self

    def ensure(self) -> None:
        """Return when the server answers. Restarts it, with its data, if it was killed or crashed.

        Raises EmbeddedServerError as start() does, but keeps the share; and if there is no share.
        """
        with self._exclusive():
            if not self._users.held:
                raise EmbeddedServerError(
                    f"this process has no share in the server of {self._folder.path}: call start() first"
                )
            if self._users.in_place:
                self._reach(time.monotonic())
            else:
                self._join()  # the folder was deleted

    def close(self, *, wait: float = 0.0) -> None:
        """Give up the share, if there is one. The server ends soon after the last share.

        Returns when the server has ended, or after `wait` seconds: by default at once.
        """
        with self._exclusive():
            self._users.release()
        deadline = time.monotonic() + wait
        while wait > 0 and is_held(self._folder.supervisor_lock) and time.monotonic() < deadline:
            time.sleep(_PAUSE)

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
        record = self._running()
        if record is None or not record.pid:
            raise EmbeddedServerError(f"no server is running in {self._folder.path}")
        return record.pid

    @property
    def binary(self) -> ServerBinary:
        """The running server, or else the one to start. Raises EmbeddedServerError if there is neither."""
        record = self._running()
        return record.binary if record is not None else server_for(self._folder.path)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EmbeddedServer({self.path!r}, started={self.started})"

    def _running(self) -> Record | None:
        return Record.read(self._folder.server_lock) if is_held(self._folder.supervisor_lock) else None

    def _join(self) -> None:
        began = time.monotonic()
        self._users.release()
        self._folder.prepare()
        try:
            if not self._users.acquire(began + self._start_timeout, shared=True):
                raise EmbeddedServerError(
                    f"the supervisor of {self._folder.path} has been stopping the server for"
                    f" {self._start_timeout:g} s: see {self._folder.supervisor_log}"
                )
            self._reach(began)
        except OSError as error:
            raise EmbeddedServerError(f"cannot lock {self._folder.users_lock}: {error}") from error
        except BaseException:
            self._users.release()
            raise

    def _reach(self, began: float) -> None:
        try:
            reach(self._folder, self._durability, began, self._start_timeout)
        except OSError as error:
            raise EmbeddedServerError(f"cannot work in {self._folder.path}: {error}") from error

    def _exclusive(self) -> threading.Lock:
        if self._process != os.getpid():
            # A thread of the parent may have held the mutex at the fork. That thread does not exist in the child.
            self._mutex, self._process = threading.Lock(), os.getpid()
        return self._mutex
