"""The SQLite backend of docs/how-to/custom-backend.md passes the conformance suite, and works for several processes.

The tests are those of `tests/conformance`, without --full those with the mark `smoke`; only the stores are others.
"""

import subprocess
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from redis_history import HistoryStore, user
from redis_history.errors import StoreClosedError
from tests.conformance.conftest import fsyncing, store, talk
from tests.conformance.test_large_contents import beside
from tests.conformance.test_transfer import compacted
from tests.docs.pages import DOCS, ROOT
from tests.support.faces import Awaitable

__all__ = ["beside", "compacted", "fsyncing", "store", "talk"]

EXAMPLES = DOCS / "examples"
sys.path.insert(0, str(EXAMPLES))
SQLiteBackend = import_module("sqlite_backend").SQLiteBackend

for file in sorted((ROOT / "tests" / "conformance").glob("test_*.py")):
    for name, function in vars(import_module(f"tests.conformance.{file.stem}")).items():
        marks = getattr(function, "pytestmark", ())
        needs = {mark.name for mark in marks}
        if any(mark.name == "backends" for mark in marks) or name == "test_memory_has_no_durability":
            continue  # looks into a server, or at the options of memory
        if file.stem == "test_audit" and "trail" in name:
            continue  # custom backends have no audit trail
        takes = getattr(getattr(function, "__code__", None), "co_varnames", ())
        if name.startswith("test_") and {"store", "stores", "talk"} & {*takes[:4]}:
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

    until_all_watched = until_unwatched = until_watched

    def need_notifications(self) -> None:
        """All changes are known immediately."""

    need_patterns = need_notifications

    async def aclose(self) -> None:
        for made in self._open:
            await made.aclose()


@pytest.fixture
def face() -> str:
    return "sync"


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


def test_a_failed_change_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SQLiteBackend(tmp_path / "history.db")
    with HistoryStore(backend=backend) as store:
        store.append("c", user("before"))
        with monkeypatch.context() as patch:
            patch.setattr(backend, "set", lambda key, value: 1 / 0)
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
