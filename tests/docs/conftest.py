import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redis_history import embedded
from redis_history.embedded._folder import cache_dir
from tests.support.servers import wait_until

DEADLINE = 120.0


@pytest.fixture(autouse=True)
def no_waiting_for_ever() -> Iterator[None]:
    """An example may wait without a time-out. When it is wrong, the test must fail, not hang."""

    def too_long(*_: Any) -> None:
        raise TimeoutError(f"nothing for {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private home folder, so that `embedded://` is a new server, started from the usual cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_dir().parent))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path
    for folder in (None, tmp_path / "notes"):
        wait_until(lambda folder=folder: not embedded.status(folder).supervised, "the private server to end")
