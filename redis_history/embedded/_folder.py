"""One data folder: the paths of its files, its permissions, and the record of its running server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redis_history.embedded._files import replacing
from redis_history.errors import ConfigurationError, EmbeddedServerError

from ._locks import is_held

# sun_path has 108 bytes on Linux and 104 on macOS, including the final NUL.
_SOCKET_PATH_MAX = 100

# Each marks a folder as that of a server.
_SERVER_FILES = {"users.lock", "appendonlydir", "appendonly.aof"}


def _xdg(variable: str, fallback: str) -> Path:
    """This package's folder in the base folder `variable`. XDG requires an absolute path; others are ignored."""
    value = os.environ.get(variable, "")
    try:
        return (Path(value) if value.startswith("/") else Path.home() / fallback) / "redis_history"
    except RuntimeError as error:
        raise EmbeddedServerError(f"no home folder is known: set HOME or {variable}, or name a path") from error


def cache_dir() -> Path:
    """Where fetched servers are kept for this user. Not created here. Raises EmbeddedServerError without a home."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def import_path() -> list[str]:
    """`sys.path` for child processes and for locating packages: the folder of this package first. Leaves out the
    current folder, which Python adds for `-m` and `-c`: others may be able to write to it."""
    root = str(Path(__file__).resolve().parents[2])
    excluded = [root]
    with contextlib.suppress(OSError):  # the current folder was deleted
        excluded.append(str(Path.cwd()))
    return [root, *(entry for entry in sys.path if entry[:1] == "/" and os.path.realpath(entry) not in excluded)]


class DataFolder:
    """A data folder by its resolved path, so that two names of one folder use the same server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users_lock = path / "users.lock"  # shared by the users. The supervisor takes it to stop the server
        self.start_lock = path / "start.lock"  # of the process that launches a supervisor
        self.supervisor_lock = path / "supervisor.lock"  # of the supervisor; contains its process id
        self.server_lock = path / "server.lock"  # of the server; contains its record
        self.kept = path / "kept"  # exists while the server is kept running without users
        self.writer_file = path / "writer.json"  # the server that wrote the data
        self.server_log = path / "server.log"
        self.supervisor_log = path / "supervisor.log"
        self.unix_socket = path / "redis.sock"
        name = os.fsencode(self.unix_socket)
        if len(name) > _SOCKET_PATH_MAX or name.decode(errors="replace") != str(self.unix_socket):
            # Too long, or not valid in a URL: at a short path made of a hash. Not in $XDG_RUNTIME_DIR or $TMPDIR: they
            # differ between a login, ssh and cron, but all processes of the user need the same path.
            short = Path("/tmp") / f"redis_history-{os.geteuid()}"  # noqa: S108 - its owner is checked before it is used
            self.unix_socket = short / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.sock"
        # The server's name for its socket, which it removes at its end. Relative if possible: a server whose folder was
        # deleted must not remove its successor's socket.
        self.bound_socket = self.unix_socket.name if self.unix_socket.parent == path else str(self.unix_socket)
        self.url = "unix://" + quote(os.fsencode(self.unix_socket))  # for redis-py

    @classmethod
    def at(cls, path: str | os.PathLike[str] | None) -> DataFolder:
        """The folder at `path` (None: the default folder). It need not exist.

        Raises ConfigurationError if `path` is not a path, EmbeddedServerError if it cannot be resolved.
        """
        text = os.fspath(_xdg("XDG_DATA_HOME", ".local/share") / "default" if path is None else path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise ConfigurationError(f"path must be the path of a folder, not {text!r}")
        try:
            return cls(Path(text).expanduser().resolve())
        except (OSError, RuntimeError) as error:
            raise EmbeddedServerError(f"cannot resolve the path {text!r}: {error}") from error

    def writer(self) -> dict[str, Any] | None:
        """The `product`, `version` and `search` of the server that wrote the data; None if there is no data."""
        with contextlib.suppress(OSError, ValueError):
            writer: dict[str, Any] = json.loads(self.writer_file.read_bytes())
            return writer
        return None

    def note_writer(self) -> None:
        """Note that the running server writes the data. Raises OSError."""
        binary = self.record().get("binary")
        if binary is not None:
            with replacing(self.writer_file, 0o600) as file:
                file.write(json.dumps({name: binary[name] for name in ("product", "version", "search")}).encode())

    def record(self) -> dict[str, Any]:
        """The `binary` of the started server, and its `pid` (0: not started yet), by name. Empty if missing or of
        another version.

        The supervisor takes server.lock and empties the file. The server's process inherits the lock, and writes the
        record just before it executes the server. So while the lock is held, the file is empty or names its holder.
        A clean exit empties the file again; after a crash the record remains.
        """
        try:
            record: dict[str, Any] = json.loads(self.server_lock.read_bytes())
            return record if {"binary", "pid"} <= record.keys() else {}
        except (OSError, ValueError, AttributeError):
            return {}

    def running(self) -> dict[str, Any]:
        """The record, if a supervisor runs."""
        return self.record() if is_held(self.supervisor_lock) else {}

    def prepare(self) -> None:
        """Create the data folder and the folder of its socket, accessible to their owner only.

        Raises EmbeddedServerError if the path is not a folder, belongs to another user, is not writable, or
        contains other files: these would mix with the server's files and become inaccessible to other users.
        """
        try:
            for folder in dict.fromkeys((self.path, self.unix_socket.parent)):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                # lstat: the path is resolved, so a symbolic link here was created since, by somebody else.
                info = folder.lstat()
                if not stat.S_ISDIR(info.st_mode):
                    raise EmbeddedServerError(f"{folder} is not a folder")
                if info.st_uid != os.geteuid():
                    raise EmbeddedServerError(
                        f"{folder} belongs to the user with id {info.st_uid}, and this process runs as {os.geteuid()}: "
                        "name a folder of your own"
                    )
                names = sorted(entry.name for entry in self.path.iterdir())
                if names and not _SERVER_FILES.intersection(names):
                    raise EmbeddedServerError(
                        f"{self.path} contains other files ({', '.join(names[:3])}): name an empty or a new folder"
                    )
                if stat.S_IMODE(info.st_mode) & 0o077:
                    folder.chmod(0o700)
        except OSError as error:
            raise EmbeddedServerError(f"cannot use {self.path} for the data: {error}") from error
