"""Conversations in an SQLite file, for `HistoryStore(backend=SQLiteBackend("history.db"))`."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis_history.errors import BackendUnavailableError
from redis_history.store.memory.stored import StoredBackend

POLL = 0.05  # seconds until changes by other processes are noticed


class SQLiteBackend(StoredBackend):
    """For any number of threads, and of processes of one machine. An operation is one transaction."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        super().__init__(**options)
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS history (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch_file, name="sqlite-doorbell", daemon=True)
        self._thread.start()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:  # commits, or rolls back after an error
                yield
        except sqlite3.Error as error:
            raise BackendUnavailableError(f"the SQLite file cannot be used: {error}") from error

    def get(self, key: str) -> bytes | None:
        found = self._db.execute("SELECT value FROM history WHERE key = ?", (key,)).fetchone()
        return found[0] if found else None

    def set(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._db.execute("DELETE FROM history WHERE key = ?", (key,))
        else:
            self._db.execute("INSERT OR REPLACE INTO history VALUES (?, ?)", (key, value))

    def keys(self, prefix: str) -> Iterable[str]:
        rows = self._db.execute("SELECT key FROM history WHERE key >= ? AND key < ?", (prefix, f"{prefix}\U0010ffff"))
        return [key for (key,) in rows]

    def close(self) -> None:
        super().close()
        self._closing.set()
        self._thread.join()
        self._db.close()

    def _watch_file(self) -> None:
        """SQLite knows cheaply whether another connection has changed the file."""
        known = None
        while not self._closing.wait(POLL):
            with self._lock:
                before, known = known, self._db.execute("PRAGMA data_version").fetchone()
            if before != known:
                self.ring()
