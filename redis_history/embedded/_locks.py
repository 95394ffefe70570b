"""File locks (flock) that end with their process.

A flock belongs to the open file, which a forked child shares. A child that unlocked it would release the parent's lock,
so it only closes its copy. Programs started with exec inherit nothing (O_CLOEXEC).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.02


class FileLock:
    """A lock on the file at `path`, which is created if it is missing. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._process = 0

    @property
    def held(self) -> bool:
        """Whether this object, in this process, holds the lock."""
        return self._file is not None and self._process == os.getpid()

    @property
    def in_place(self) -> bool:
        """Whether the lock is held and its file is still at the path: a deleted file does not count."""
        return self._file is not None and self.held and _is_file_at(self._file, self.path)

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free; return whether this object holds it now. Raises OSError."""
        if self.held:
            return True
        self.release()
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if _is_file_at(file, self.path):
                self._file, self._process = file, os.getpid()
        except BlockingIOError:
            pass
        finally:
            if self._file is None:
                os.close(file)
        return self._file is not None

    def acquire(self, deadline: float, *, shared: bool = False) -> bool:
        """Like try_acquire, but retries until `deadline` (of time.monotonic). Raises OSError."""
        return wait_until(lambda: self.try_acquire(shared=shared), deadline)

    def release(self) -> None:
        """Release the lock, if it is held. A forked child only closes its copy."""
        file, self._file = self._file, None
        if file is not None:
            if self._process == os.getpid():
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def __del__(self) -> None:
        self.release()


def wait_until(condition: Callable[[], bool], deadline: float) -> bool:
    """Whether the condition came true before `deadline` (of time.monotonic)."""
    pause = _FIRST_PAUSE
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def is_held(path: Path) -> bool:
    """Whether a process holds the lock at `path` exclusively. Never creates the file. Raises OSError.

    Takes a shared lock for an instant, so another process's attempt at an exclusive lock may fail in the meantime.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked in between still has the file open
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _is_file_at(file: int, path: Path) -> bool:
    """Whether the open `file` is still at `path`: a lock on a deleted file excludes no other process."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False
