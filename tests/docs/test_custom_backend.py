"""The SQLite backend of docs/how-to/custom-backend.md passes the conformance suite, and works for several processes.

The tests are those of `tests/conformance`, without --full those with the mark `smoke`; only the stores are others.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from redis_history import Compressor, HistoryStore, RedisHistory, extractive_summarizer, user
from redis_history.errors import CapabilityError, StoreClosedError
from redis_history.importers import ImportProblem, export_messages, import_messages
from tests.conformance.conftest import fsyncing, store, talk
from tests.docs.pages import DOCS, ROOT
from tests.support.faces import Awaitable

__all__ = ["fsyncing", "store", "talk"]

EXAMPLES = DOCS / "examples"
sys.path.insert(0, str(EXAMPLES))
SQLiteBackend = import_module("sqlite_backend").SQLiteBackend

#: Compaction, live replies, runs, forks and the log, and what needs them.
_MAY_BE_LEFT_OUT = {
    "test_archive",
    "test_compaction",
    "test_compressor",
    "test_compressor_failures",
    "test_compressor_leases",
    "test_forks",
    "test_history_compression",
    "test_leases",
    "test_pins",
    "test_runs",
    "test_stream",
    "test_users",
}

#: These need a trace of a deleted conversation, which this backend does not keep.
_NEED_TRACES = {"test_a_cursor_from_before_a_deleted_conversation_gives_a_reset"}

for file in sorted((ROOT / "tests" / "conformance").glob("test_*.py")):
    if file.stem in _MAY_BE_LEFT_OUT:
        continue
    for name, function in vars(import_module(f"tests.conformance.{file.stem}")).items():
        marks = getattr(function, "pytestmark", ())
        needs = {mark.name for mark in marks}
        if any(mark.name == "backends" and "memory" not in mark.args for mark in marks):
            continue  # looks into a server
        takes = getattr(getattr(function, "__code__", None), "co_varnames", ())
        if name in _NEED_TRACES:
            continue
        if name.startswith("test_") and "compaction" not in needs and {"store", "stores", "talk"} & {*takes[:4]}:
            own = FunctionType(function.__code__, function.__globals__, name)  # a mark on it is not one on the original
            own.__dict__.update(vars(function))
            globals()[f"{file.stem}_{name.removeprefix('test_')}"] = own if "smoke" in needs else pytest.mark.full(own)


class SQLiteStores:
    """Makes stores over the same file, each with a new backend, which takes the options of data."""

    backend = "memory"  # for the tests: without a server to look into
    custom = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: list[Any] = []

    def __call__(self, **options: Any) -> Any:
        options.setdefault("poll_interval", 1.0)
        own = {name: options.pop(name) for name in ("log_length", "ttl", "max_messages") if name in options}
        self._open.append(Awaitable(HistoryStore(backend=SQLiteBackend(self._path, **own), **options)))
        return self._open[-1]

    async def until_watched(self, conversation_id: str = "") -> None:
        """Watching is known immediately."""

    until_all_watched = until_watched

    async def aclose(self) -> None:
        for made in self._open:
            await made.aclose()


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[SQLiteStores]:
    made = SQLiteStores(tmp_path / "history.db")
    yield made
    await made.aclose()


WRITER = """
import sys
from redis_history import HistoryStore, user
from sqlite_backend import SQLiteBackend

with HistoryStore(backend=SQLiteBackend(sys.argv[1])) as store:
    for number in range(50):
        store.append("c", user(f"{sys.argv[2]} {number}", id=f"{sys.argv[2]} {number}"))
"""


def test_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    environment = {"PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    with HistoryStore(backend=SQLiteBackend(path), poll_interval=60) as reader, reader.subscribe("c") as changes:
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(path), who], env=environment) for who in ("a", "b", "c")
        ]
        events = [changes.get(timeout=30) for _ in range(150)]
        assert [writer.wait(30) for writer in writers] == [0, 0, 0]
        assert [event.revision for event in events if event] == list(range(1, 151))
        told = [message for event in events for message in event.messages]
        assert sorted(message.sequence for message in told) == list(range(1, 151))
        assert reader.get("c") == sorted(told, key=lambda message: message.position)


def test_compaction_is_refused(tmp_path: Path) -> None:
    with HistoryStore(backend=SQLiteBackend(tmp_path / "history.db")) as store:
        stored = store.append("c", user("x")).message
        for call in (
            lambda: store.compact("c", through=stored, summary="y"),
            lambda: store.expand("c", stored.id),
            Compressor(store, extractive_summarizer(), max_messages=1).run_once,
        ):
            with pytest.raises(CapabilityError):
                call()
        assert store.get("c", include_archived=True) == [stored]
        history = RedisHistory(store)
        history.load("c")
        history.use(SimpleNamespace(reduce=lambda entries, options: [user("summary")]))  # type: ignore[arg-type]
        history.reduce(max_entries=0)
        with pytest.raises(CapabilityError):
            history.save()
        assert history.save() == 0
        assert history.entries == [stored]


def test_an_imported_archive_is_left_out_and_reported(tmp_path: Path) -> None:
    path, problems = tmp_path / "c.jsonl", list[ImportProblem]()
    with HistoryStore("memory://") as store:
        last = store.append_many("c", [user("1"), user("2"), user("3")])[1].message
        store.compact("c", through=last, summary="two")
        export_messages(store, path, include_archived=True)
        live = store.get("c")
    with HistoryStore(backend=SQLiteBackend(tmp_path / "history.db")) as store:
        assert import_messages(path, store, on_error=problems.append).new == 2
        assert [message.id for message in store.get("c")] == [message.id for message in live]
    [problem] = problems
    assert "archives" in problem.reason


def test_a_failed_change_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SQLiteBackend(tmp_path / "history.db")
    with HistoryStore(backend=backend) as store:
        store.append("c", user("before"))
        with monkeypatch.context() as patch:
            patch.setattr(backend, "_trim", lambda name: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.append_many("c", [user("x"), user("y")])
        assert [message.text for message in store.get("c")] == ["before"]
        assert store.append("c", user("after")).message.sequence == 2
    with pytest.raises(StoreClosedError):
        store.get("c")


def test_the_example_imports_public_modules_only() -> None:
    lines = [line for line in (EXAMPLES / "sqlite_backend.py").read_text().splitlines() if "redis_history" in line]
    imports = [line.split()[1] for line in lines if line.startswith(("from ", "import "))]
    assert imports
    assert [one for one in imports if any(part.startswith("_") for part in one.split("."))] == []
