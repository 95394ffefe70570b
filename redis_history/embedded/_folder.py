"""One data folder: the paths of its files, and its permissions."""

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

# sun_path has 108 bytes on Linux and 104 on macOS, including the final NUL.
_SOCKET_PATH_MAX = 100

# A folder that contains one of these belongs to a server; see prepare().
_MARKS = ("users.lock", "appendonlydir", "appendonly.aof")


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A data folder by its resolved path, so that two names of one folder use the same server."""

    path: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str] | None) -> DataFolder:
        """The folder at `path` (None: the default folder). It need not exist.

        Raises ConfigurationError if `path` is not a path, EmbeddedServerError if it cannot be resolved.
        """
        text = os.fspath(data_dir() if path is None else path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise ConfigurationError(f"path must be the path of a folder, not {text!r}")
        try:
            return cls(Path(text).expanduser().resolve())
        except (OSError, RuntimeError) as error:
            raise EmbeddedServerError(f"cannot resolve the path {text!r}: {error}") from error

    @property
    def users_lock(self) -> Path:
        """Processes that use the server hold this lock shared; the supervisor holds it exclusively while stopping."""
        return self.path / "users.lock"

    @property
    def start_lock(self) -> Path:
        """The process that launches a supervisor or changes the record holds this lock."""
        return self.path / "start.lock"

    @property
    def supervisor_lock(self) -> Path:
        """The supervisor holds this lock while it runs. The file contains its process id."""
        return self.path / "supervisor.lock"

    @property
    def server_lock(self) -> Path:
        """The server holds this lock while it runs. The file contains its record (see `_record`)."""
        return self.path / "server.lock"

    @property
    def server_log(self) -> Path:
        return self.path / "server.log"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def unix_socket(self) -> Path:
        """In the folder; or at a short path made of a hash, if that path is too long or cannot be part of a URL."""
        inside = self.path / "redis.sock"
        name = os.fsencode(inside)
        if len(name) <= _SOCKET_PATH_MAX and name.decode(errors="replace") == str(inside):
            return inside
        return short_dir() / f"{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]}.sock"

    @property
    def bound_socket(self) -> str:
        """The path with which the server, running in the folder, binds and finally removes its socket.

        Relative if possible: a server whose folder was deleted must not remove its successor's socket.
        """
        return self.unix_socket.name if self.unix_socket.parent == self.path else str(self.unix_socket)

    @property
    def url(self) -> str:
        """The socket as a URL for redis-py."""
        return "unix://" + quote(os.fsencode(self.unix_socket))

    def prepare(self) -> None:
        """Create the data folder and the folder of its socket, accessible to their owner only.

        Raises EmbeddedServerError if the path is not a folder, belongs to another user, is not writable, or
        contains other files: these would mix with the server's files and become inaccessible to other users.
        """
        try:
            self._make(self.path)
            names = sorted(entry.name for entry in self.path.iterdir())
            if names and not set(names) & set(_MARKS):
                raise EmbeddedServerError(
                    f"{self.path} contains other files ({', '.join(names[:3])}): name an empty or a new folder"
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
        # lstat: the path is resolved, so a symbolic link here was created since, by somebody else.
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
