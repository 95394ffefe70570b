"""The record of the running server: the content of server.lock.

The supervisor takes the lock and empties the file. The server's process inherits the lock, and writes the
record just before it executes the server. So while the lock is held, the file is empty or names its holder.
A clean exit empties the file again; after a crash the record remains.
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
    """A started server: its binary, its AOF policy, and its process id (0: not started yet)."""

    binary: ServerBinary
    durability: Durability
    pid: int = 0

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """The record at `path`; None if it is missing or of another version."""
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
        """The record as JSON values, for the supervisor."""
        return asdict(self)

    def write(self, path: Path) -> None:
        """Overwrite the record at `path` in place, because the file itself is locked. Raises OSError."""
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # One write that covers the whole old record, so that concurrent readers see a complete record.
            os.pwrite(file, json.dumps(self.as_dict()).encode().ljust(os.fstat(file).st_size), 0)
        finally:
            os.close(file)
