"""A history that is kept in a JSON file: how `History` is given a storage of your own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from redis_history import History


class FileHistory(History):
    """Entries in a file of one process. Each save replaces the whole file at once, or not at all."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path)

    def load(self) -> None:
        """Read the file, in place of all entries. A file that is not there is an empty history."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else "[]"
        self.restore(History.from_json(text))

    def save(self) -> None:
        """Write all entries. A crash in the middle leaves the file as it was."""
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self.to_json())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def autosave(self) -> None:
        """Save after each change from now on."""
        self.subscribe(self.save)
