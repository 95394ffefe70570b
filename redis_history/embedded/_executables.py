"""Checks whether a server binary runs on this machine, and which product and version it is."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from typing import TYPE_CHECKING

from redis_history._files import replacing
from redis_history.errors import EmbeddedServerError

from ._paths import cache_dir

if TYPE_CHECKING:
    from pathlib import Path

    from ._binary import Product

__all__ = ["UnusableError", "numbers", "product_of", "runnable"]

_VERSION_TIMEOUT = 10.0  # seconds; a first start from a cold disk can take one or two
_BANNER = re.compile(r"^(Redis|Valkey) server v=(\d+(?:\.\d+)+)", re.MULTILINE)

# By (path, size, mtime) of the file, so that a process runs each binary once. Failures are not cached,
# because they may be temporary.
_known: dict[tuple[Path, int, int], tuple[Product, str]] = {}


class UnusableError(Exception):
    """A file cannot be used. The text is shown to the user. Not raised outside of this package."""


def numbers(version: str) -> tuple[int, ...]:
    """A version as a tuple, for comparisons."""
    return tuple(int(part) for part in version.split("."))


def product_of(path: Path) -> tuple[Product, str]:
    """("Redis" or "Valkey", version), as the server binary reports it. Raises UnusableError if it does not run."""
    try:
        info = path.stat()
        key = (path, info.st_size, info.st_mtime_ns)
        if key in _known:
            return _known[key]
        run = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnusableError(f"`--version` did not end within {_VERSION_TIMEOUT:.0f} s") from error
    except OSError as error:
        raise UnusableError(f"it does not start: {error.strerror or error}") from error
    if run.returncode:
        lines = (run.stderr or run.stdout).strip().splitlines()
        raise UnusableError(f"it does not start: {lines[-1] if lines else f'exit status {run.returncode}'}")
    banner = _BANNER.search(run.stdout)
    if banner is None:
        raise UnusableError(f"the output of `--version` is not that of Redis or Valkey: {run.stdout.strip()[:80]!r}")
    _known[key] = ("Redis" if banner[1] == "Redis" else "Valkey"), banner[2]
    return _known[key]


def runnable(path: Path) -> Path:
    """`path`, or an executable copy in the user's cache if `path` is not executable. Raises UnusableError.

    Some installers drop the executable bit, and servers refuse to load a module without it. The file itself
    is not changed, because it may belong to another user or be shared.
    """
    if os.access(path, os.X_OK):
        return path
    try:
        info = path.stat()
        key = hashlib.sha256(f"{path}|{info.st_size}|{info.st_mtime_ns}".encode(errors="surrogateescape")).hexdigest()
        copy = cache_dir() / "run" / key[:16] / path.name
        if not os.access(copy, os.X_OK):
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(copy, 0o700) as stream:
                stream.write(path.read_bytes())
    except (OSError, EmbeddedServerError) as error:
        raise UnusableError(f"{path} is not executable, and cannot be copied: {error}") from error
    return copy
