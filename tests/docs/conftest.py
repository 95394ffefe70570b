from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_history import embedded
from redis_history.embedded._paths import cache_dir
from tests.support.servers import wait_until


@pytest.fixture
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder of this test, so that `embedded://` is a server of its own, started from the usual cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_dir().parent))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path
    for folder in (None, tmp_path / "notes"):
        wait_until(lambda folder=folder: not embedded.status(folder).supervised, "the private server to end")
