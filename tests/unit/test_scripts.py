"""Rules for the source of the Lua scripts."""

import re
from collections.abc import Iterator
from pathlib import Path

import redis_history
from redis_history.store.operations.scripts import SCRIPTS

SCRIPT_FILES = sorted((Path(redis_history.__file__).parent / "store" / "operations").rglob("*.lua"))
#: Lua 5.1 unpacks less than 8,000 values, and fails in the middle of a script with more.
MOST = 7_000
#: A call of `unpack`, and not of struct.unpack or cmsgpack.unpack.
UNPACK = re.compile(r"(?<![\w.])unpack\(")
BOUND = re.compile(r"-- .*at most ([\d,]+)$")


def _calls(source: str) -> Iterator[str]:
    """The lines of a script that call `unpack`."""
    for line in source.splitlines():
        if UNPACK.search(line.partition("--")[0]):
            yield line


def test_the_search_for_calls_finds_them() -> None:
    assert [*_calls("local a = unpack(b)\nstruct.unpack('x', b)\ncmsgpack.unpack(b)\n-- unpack(b)")] == [
        "local a = unpack(b)"
    ]


def test_every_unpack_has_a_stated_bound() -> None:
    """A comment at the end of the line states the maximum number of values. Unbounded lists go through `in_slices`."""
    assert len(SCRIPT_FILES) >= len(SCRIPTS) > 20
    unbounded, bounds = [], []
    for path in SCRIPT_FILES:
        for line in _calls(path.read_text()):
            if stated := BOUND.search(line):
                bounds.append(int(stated[1].replace(",", "")))
            else:
                unbounded.append(f"{path.name}: {line.strip()}")
    assert not unbounded
    assert max(bounds) <= MOST
