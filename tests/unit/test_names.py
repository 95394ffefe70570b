"""`import redis_history` imports nothing until the first use of a name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import redis_history


def test_nothing_is_imported_before_its_first_use() -> None:
    code = (
        "import sys, redis_history, redis_history.embedded\n"
        "assert not {'redis', 'msgspec', 'tenacity'} & sys.modules.keys()\n"
        "from redis_history import HistoryStore, requests\n"
        "assert 'redis' in sys.modules\n"
        "from redis_history import *\n"
        "print(HistoryStore.__name__, user.__name__, requests.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "HistoryStore user redis_history.requests\n"


def test_unknown_names_are_errors() -> None:
    assert set(redis_history.__all__) <= set(dir(redis_history))
    assert len(redis_history.__version__.split(".")) == 3
    for wrong in ("no_such_name", "_no_such_name", "__wrapped__"):
        assert not hasattr(redis_history, wrong)
    with pytest.raises(AttributeError, match="Historystore"):
        _ = redis_history.Historystore  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        exec("from redis_history import Historystore")
