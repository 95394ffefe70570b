"""`import redis_history` imports nothing until the first use of a name, and then only what the name needs."""

import pkgutil
import subprocess
import sys

import pytest

import redis_history


@pytest.mark.parametrize("code", ["import redis_history.errors", "from redis_history import *"])
def test_the_names_do_not_import_redis(code: str) -> None:
    program = f"{code}\nimport sys; print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_unknown_names_are_errors() -> None:
    assert set(redis_history.__all__) <= set(dir(redis_history))
    assert len(redis_history.__version__.split(".")) == 3
    for wrong in ("no_such_name", "_no_such_name", "__wrapped__"):
        assert not hasattr(redis_history, wrong)
    with pytest.raises(AttributeError, match="Historystore"):
        _ = redis_history.Historystore  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        exec("from redis_history import Historystore")


def test_no_module_hides_a_name() -> None:
    """A package that exports a function `reasoning` must not contain a module `reasoning`: importing the module would
    replace the function."""
    modules = {module.name for module in pkgutil.iter_modules(redis_history.__path__)}
    assert {*redis_history.__all__}.isdisjoint(modules)
