"""Does this file run here, and what is it?"""

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

# (path, size, mtime) of files that ran, so that several servers of one process ask once. Failures are
# asked again: they may have been a moment's.
_known: dict[tuple[Path, int, int], tuple[Product, str]] = {}


class UnusableError(Exception):
    """Why a file cannot be used; the text is shown to the user. Does not leave this package."""


def numbers(version: str) -> tuple[int, ...]:
    """A version for comparing."""
    return tuple(int(part) for part in version.split("."))


def product_of(path: Path) -> tuple[Product, str]:
    """What a server binary says it is: ("Redis" or "Valkey", its version). Raises UnusableError if it does not run."""
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
        raise UnusableError(f"`--version` is not that of Redis or Valkey: {run.stdout.strip()[:80]!r}")
    _known[key] = ("Redis" if banner[1] == "Redis" else "Valkey"), banner[2]
    return _known[key]


def runnable(path: Path) -> Path:
    """`path`, or a copy of it in the user's cache if its run bit was lost. Raises UnusableError.

    Some installers drop the bit; servers also refuse to load a module without it. The file itself is
    left alone: it may be another user's, or shared.
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
        raise UnusableError(f"{path} has no run bit, and cannot be copied: {error}") from error
    return copy
