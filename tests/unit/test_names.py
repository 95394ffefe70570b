"""`import redis_history` imports nothing until the first use of a name, and then only what the name needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import redis_history


@pytest.mark.parametrize(
    ("code", "at_most"),
    [  # measured: 2, 9, 54 and 97 modules of this package
        ("import redis_history, redis_history.errors", 6),
        ("from redis_history import user", 15),
        ("from redis_history import HistoryStore, AsyncHistoryStore", 75),
        ("from redis_history import *", 120),
    ],
)
def test_names_import_only_what_they_need(code: str, at_most: int) -> None:
    """Modules are counted, because times depend on the machine: redis-py takes more of it than this package."""
    program = f"{code}\nimport sys; print(sum(name.startswith('redis_history') for name in sys.modules), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    count, *names = done.stdout.split()
    assert int(count) <= at_most
    assert "redis" not in names


def test_unknown_names_are_errors() -> None:
    assert set(redis_history.__all__) <= set(dir(redis_history))
    assert len(redis_history.__version__.split(".")) == 3
    for wrong in ("no_such_name", "_no_such_name", "__wrapped__"):
        assert not hasattr(redis_history, wrong)
    with pytest.raises(AttributeError, match="Historystore"):
        _ = redis_history.Historystore  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        exec("from redis_history import Historystore")
