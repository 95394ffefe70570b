"""One data folder: the files in it, and making it private."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from redis_history.errors import ConfigurationError, EmbeddedServerError

from ._paths import data_dir, short_dir

__all__ = ["DataFolder"]

# sun_path has 108 bytes on Linux and 104 on macOS, the closing NUL included.
_SOCKET_PATH_MAX = 100

# Any of these marks a folder as a server's; see prepare().
_MARKS = ("users.lock", "appendonlydir", "appendonly.aof")


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A data folder by its resolved path, so that two names of one folder lead to one server."""

    path: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str] | None) -> DataFolder:
        """The folder at `path` (None: the default one), which need not exist.

        Raises ConfigurationError for what cannot be a path, EmbeddedServerError if it cannot be resolved.
        """
        text = os.fspath(data_dir() if path is None else path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise ConfigurationError(f"not the path of a folder: {text!r}")
        try:
            return cls(Path(text).expanduser().resolve())
        except (OSError, RuntimeError) as error:
            raise EmbeddedServerError(f"cannot resolve the path {text!r}: {error}") from error

    @property
    def users_lock(self) -> Path:
        """Held shared by each process that uses the server, exclusively by the supervisor while stopping it."""
        return self.path / "users.lock"

    @property
    def start_lock(self) -> Path:
        """Held by the one process that launches a supervisor or changes the record."""
        return self.path / "start.lock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor while it lives; contains its process id."""
        return self.path / "supervisor.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server while it lives; contains the record of it (see `_record`)."""
        return self.path / "server.lock"

    @property
    def server_log(self) -> Path:
        return self.path / "server.log"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def unix_socket(self) -> Path:
        """In the folder, or under a short path made of a hash if that one is too long, or cannot be in a URL."""
        inside = self.path / "redis.sock"
        name = os.fsencode(inside)
        if len(name) <= _SOCKET_PATH_MAX and name.decode(errors="replace") == str(inside):
            return inside
        return short_dir() / f"{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]}.sock"

    @property
    def bound_socket(self) -> str:
        """The socket as the server, which works in the folder, binds it and removes it at its end.

        Relative where it can be: a server whose folder was deleted must not remove its successor's socket.
        """
        return self.unix_socket.name if self.unix_socket.parent == self.path else str(self.unix_socket)

    @property
    def url(self) -> str:
        """The socket as a URL for redis-py."""
        return "unix://" + quote(os.fsencode(self.unix_socket))

    def prepare(self) -> None:
        """Make the folder, and its socket's, open to its owner only.

        Raises EmbeddedServerError if it is no folder, another user's, not writable, or if it holds
        other things, which would get mixed up with the server's and locked away from others.
        """
        try:
            self._make(self.path)
            names = sorted(entry.name for entry in self.path.iterdir())
            if names and not set(names) & set(_MARKS):
                raise EmbeddedServerError(
                    f"{self.path} holds other things ({', '.join(names[:3])}): name an empty or a new folder"
                )
            self._restrict(self.path)
            if self.unix_socket.parent != self.path:
                self._make(self.unix_socket.parent)
                self._restrict(self.unix_socket.parent)
        except OSError as error:
            raise EmbeddedServerError(f"cannot use {self.path} for the data: {error}") from error

    @staticmethod
    def _make(path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # lstat: the paths are resolved, so a link here was put in between, by someone else.
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode):
            raise EmbeddedServerError(f"{path} is not a folder")
        if info.st_uid != os.geteuid():
            raise EmbeddedServerError(
                f"{path} belongs to the user with id {info.st_uid}, and this process runs as {os.geteuid()}:"
                " name a folder of your own"
            )

    @staticmethod
    def _restrict(path: Path) -> None:
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            path.chmod(0o700)
