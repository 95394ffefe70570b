"""What is running: the content of server.lock.

The supervisor empties the file when it has the lock, and the server's process, which inherits the
lock, writes the record just before it becomes the server. So while the lock is held, the file is
empty or says who holds it. An orderly end empties it again; after a crash it stays.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ._binary import Durability, ServerBinary

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Record"]


@dataclass(frozen=True, slots=True)
class Record:
    """A server that was started: which binary, with which AOF policy, as which process (0: not started yet)."""

    binary: ServerBinary
    durability: Durability
    pid: int = 0

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """The record at `path`; None if there is none, or not one of this version."""
        try:
            fields: dict[str, Any] = json.loads(path.read_bytes())
            binary = fields["binary"]
            return cls(
                ServerBinary(**{**binary, "modules": tuple(binary["modules"])}), fields["durability"], fields["pid"]
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def with_durability(self, durability: Durability) -> Record:
        return replace(self, durability=durability)

    def as_dict(self) -> dict[str, Any]:
        """For the supervisor, which only knows JSON."""
        return asdict(self)

    def write(self, path: Path) -> None:
        """Overwrite the record at `path` in place: the file must stay the one that is locked. Raises OSError."""
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # Padded over all of the old one, in one call: who reads meanwhile has to find a whole record.
            os.pwrite(file, json.dumps(self.as_dict()).encode().ljust(os.fstat(file).st_size), 0)
        finally:
            os.close(file)
