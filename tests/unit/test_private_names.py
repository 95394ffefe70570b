"""This package uses only the public API of redis-py, whose private names may change in any release."""

import re
from collections.abc import Iterator
from pathlib import Path

import redis

ROOT = Path(__file__).parents[2]
NAME = r"(_[a-zA-Z]\w*)\b"


def test_no_private_name_of_redis_py_is_used() -> None:
    theirs = _defined(*_sources(Path(redis.__file__).parent))
    assert {"_parser", "_reader", "_sock", "_available_connections"} <= theirs, "names of redis-py 8"
    sources = [source for folder in ("redis_history", "scripts", "tests") for source in _sources(ROOT / folder)]
    foreign = theirs - _defined(*sources)
    # Attributes, texts such as the second argument of getattr, and imports.
    used = {name for source in sources for name in re.findall(rf"[.\"']{NAME}", source) if name in foreign}
    used |= {line for source in sources for line in re.findall(r"(?m)^ *(?:from|import) redis\b.*\b_.*", source)}
    assert used == set()


def test_no_class_of_redis_py_is_extended() -> None:
    """Any release may add methods to its classes."""
    names = {name for name, value in vars(redis).items() if isinstance(value, type)} | {
        "Pipeline",
        "AbstractConnection",
    }
    for source in _sources(ROOT / "redis_history"):
        for bases in re.findall(r"(?m)^ *class \w+\((.*)\):", source):
            assert not names & set(re.findall(r"\w+", bases)), bases


def _sources(folder: Path) -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in folder.rglob("*.py") if path != Path(__file__))


def _defined(*sources: str) -> set[str]:
    """Private functions, classes, variables and attributes that are assigned."""
    defined = rf"(?m)(?:(?:def|class) |^ *(?:self\.)?(?=\w+(?:: [^=\n]+| [-+|]?)? ?=)){NAME}"
    return {name for source in sources for name in re.findall(defined, source)}
