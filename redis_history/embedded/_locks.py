"""File locks (flock) that end with their process, and that a forked child does not share.

A flock belongs to the open file, which a fork shares: a child that kept it would keep the server
alive, and one that unlocked it would take the parent's lock away. So the child only closes its copies,
right after the fork, before any other code runs in it. Programs started with exec inherit nothing
(O_CLOEXEC). A child made by C code, past Python's fork hooks, keeps the lock of a parent that is
killed until it ends itself; a parent that closes its lock unlocks it whoever else has the file open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FileLock", "is_held"]

# Held while a descriptor exists that is not yet noted in _locks, so that no fork falls in between.
_opening = threading.RLock()
_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.02


class FileLock:
    """A lock on the file at `path`, which is created if it is missing. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        _locks.add(self)

    @property
    def held(self) -> bool:
        """Whether this object, in this process, holds the lock."""
        return self._file is not None

    @property
    def in_place(self) -> bool:
        """Whether the lock is held, and on the file that is at the path now, not on one that was deleted."""
        return self._file is not None and _is_file_at(self._file, self.path)

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if nobody is in the way; True if it is held now. Raises OSError."""
        if self._file is not None:
            return True
        with _opening:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self.path, flags, 0o600)
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                if _is_file_at(file, self.path):
                    self._file = file
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK:
                    raise
            finally:
                if self._file is None:
                    os.close(file)
        return self._file is not None

    def acquire(self, deadline: float, *, shared: bool = False) -> bool:
        """The same, tried until `deadline` (of time.monotonic); False if it passed. Raises OSError."""
        pause = _FIRST_PAUSE
        while not self.try_acquire(shared=shared):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def release(self) -> None:
        """Give the lock back, if it is held."""
        file, self._file = self._file, None
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _forget(self) -> None:
        """In a forked child: close the copy, and leave the lock to the parent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __del__(self) -> None:
        self.release()


def is_held(path: Path) -> bool:
    """Whether anybody holds the lock at `path` exclusively. Never creates it. Raises OSError.

    Looks by taking a shared lock for an instant, so an exclusive try of another may fail meanwhile.
    """
    with _opening:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
    return False


def _is_file_at(file: int, path: Path) -> bool:
    """Whether the open `file` is still the one at `path`: a lock on a deleted file locks nobody out."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def _in_child() -> None:
    try:
        for lock in list(_locks):
            lock._forget()
    finally:
        _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_in_child)
