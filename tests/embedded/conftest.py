"""Real servers, real processes; after each test nothing of them may be left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded_tools import Worker, stopped, supervisor_of, wait_until

from redis_history.embedded import EmbeddedServer, candidates


def _pids(folder: Path) -> list[int]:
    pids = []
    with contextlib.suppress(OSError, ValueError):
        pids.append(supervisor_of(folder))
    with contextlib.suppress(OSError, ValueError, KeyError):
        pids.append(int(json.loads((folder / "server.lock").read_bytes())["pid"]))
    return pids


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the surroundings before, no process or lock after."""
    for name in ("REDIS_HISTORY_SERVER", "REDIS_HISTORY_MODULES"):
        monkeypatch.delenv(name, raising=False)
    yield
    left = []
    for folder in {lock.parent for lock in tmp_path.rglob("users.lock")}:
        try:
            wait_until(lambda: stopped(folder), "the end of the server", 10)  # noqa: B023
        except AssertionError:
            left.append(f"{folder}: {_pids(folder)}")
            for pid in _pids(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert not left, f"something was left running: {left}"


@pytest.fixture
def workers(clean: None) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(path: str | os.PathLike[str], **options: Any) -> Worker:
        made.append(Worker(path, **options))
        return made[-1]

    yield make
    for worker in made:
        worker.finish()


@pytest.fixture
def server(clean: None) -> Iterator[Callable[..., EmbeddedServer]]:
    """Makes EmbeddedServer objects that are closed at the end, whatever happens."""
    made: list[EmbeddedServer] = []

    def make(path: str | os.PathLike[str] | None, **options: Any) -> EmbeddedServer:
        made.append(EmbeddedServer(path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def short(clean: None) -> Iterator[Path]:
    """A folder with a path short enough for a socket, which tmp_path need not be."""
    folder = Path(tempfile.mkdtemp(prefix="rh-", dir="/tmp")).resolve()
    yield folder
    for lock in folder.rglob("supervisor.lock"):
        wait_until(lambda: stopped(lock.parent), "an end of the server")  # noqa: B023
    shutil.rmtree(folder)


@pytest.fixture(params=["redis-stack", "valkey", "system"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of server in turn; "system" is another kind, on the PATH and without search."""
    kind: str = request.param
    if kind == "system":
        monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
        real = next((c.binary for c in candidates() if c.binary), None)
        assert real is not None
        (tmp_path / "bin").mkdir()
        name = "redis-server" if real.product == "Redis" else "valkey-server"
        (tmp_path / "bin" / name).symlink_to(real.path)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    elif not any(candidate.usable for candidate in candidates(kind)):  # type: ignore[arg-type]
        pytest.skip("; ".join(str(candidate) for candidate in candidates(kind)))  # type: ignore[arg-type]
    monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", kind)
    return kind
