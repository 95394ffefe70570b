"""A part without the packages that it needs says what to install."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata

import pytest

from redis_history.doctor import examine_installation
from redis_history.errors import MissingExtraError, RedisHistoryError

BLOCKED = """
import sys
sys.modules[{package!r}] = None
try:
    import redis_history.{module}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("integrations.langchain", "langchain_core", "langchain"),
        ("integrations.llama_index", "llama_index", "llama-index"),
        ("integrations.openai_agents", "agents", "openai-agents"),
        ("integrations.pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("web", "starlette", "web"),
    ],
)
def test_a_missing_framework_names_its_extra(module: str, package: str, extra: str) -> None:
    code = BLOCKED.format(package=package, module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("MissingExtraError ")
    assert f"pip install 'redis_history[{extra}]'" in done.stdout


def test_it_is_one_of_ours() -> None:
    assert issubclass(MissingExtraError, RedisHistoryError)
    assert issubclass(MissingExtraError, ImportError)


def test_the_package_itself_needs_none_of_them() -> None:
    code = (
        "import sys, redis_history, redis_history.formats, redis_history.importers\n"
        "others = 'pydantic', 'openai', 'langchain_core', 'agents', 'starlette', 'uvicorn'\n"
        "print([name for name in others if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_doctor_lists_the_extras() -> None:
    extras = {finding.check: finding for finding in examine_installation()}["extras"]
    for name in set(metadata("redis_history").get_all("Provides-Extra", ())) - {"dev"}:
        assert re.search(rf"[ ,]{name}(,|;|$)", extras.detail), name
