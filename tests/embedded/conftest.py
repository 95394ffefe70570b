"""Real servers, real processes; after each test none of them may be left."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded_tools import Worker, stopped, supervisor_of

from redis_history.embedded import EmbeddedServer, candidates, status
from tests.support.servers import wait_until


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the environment before, no process or lock after."""
    for name in ("REDIS_HISTORY_SERVER", "REDIS_HISTORY_MODULES"):
        monkeypatch.delenv(name, raising=False)
    yield
    left = []
    for folder in {lock.parent for lock in tmp_path.rglob("users.lock")}:
        try:
            wait_until(lambda: stopped(folder), "the end of the server", 10)  # noqa: B023
        except AssertionError:
            left += [supervisor_of(folder), status(folder).pid]
    for pid in filter(None, left):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left running: {left}"


@pytest.fixture
def workers(clean: None) -> Iterator[Callable[..., Worker]]:
    """Makes workers, which end with the test."""
    with contextlib.ExitStack() as made:
        yield lambda path, **options: made.enter_context(contextlib.closing(Worker(path, **options)))


@pytest.fixture
def server(clean: None) -> Iterator[Callable[..., EmbeddedServer]]:
    """Makes EmbeddedServer objects, which are closed at the end."""
    with contextlib.ExitStack() as made:
        yield lambda path, **options: made.enter_context(contextlib.closing(EmbeddedServer(path, **options)))


@pytest.fixture
def short(clean: None) -> Iterator[Path]:
    """A folder with a path short enough for a socket, which tmp_path need not be."""
    folder = Path(tempfile.mkdtemp(prefix="rh-", dir="/tmp")).resolve()
    yield folder
    for lock in folder.rglob("supervisor.lock"):
        wait_until(lambda: stopped(lock.parent), "an end of the server")  # noqa: B023
    shutil.rmtree(folder)


@pytest.fixture(params=["redis-stack", pytest.param("valkey", marks=pytest.mark.full)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of server in turn."""
    kind: Any = request.param
    if not any(candidate.usable for candidate in candidates(kind)):
        pytest.skip("; ".join(map(str, candidates(kind))))
    monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", kind)
    return str(kind)
