"""Rules for the source of the Lua scripts, which also run on Lua 5.4 and on servers that take declared keys only."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import redis_history
from redis_history.store.operations.scripts import SCRIPTS, with_key_locking
from tests.docs.pages import DOCS, rows, sections

MANAGED = DOCS / "how-to" / "managed-servers.md"
SCRIPT_FILES = sorted((Path(redis_history.__file__).parent / "store" / "operations").rglob("*.lua"))
VERSIONS = next(path for path in SCRIPT_FILES if path.name == "_lua_versions.lua")
#: Lua 5.1 unpacks less than 8,000 values, and fails in the middle of a script with more.
MOST = 7_000
#: A call of `unpack`, and not of struct.unpack or cmsgpack.unpack.
UNPACK = re.compile(r"(?<![\w.])unpack\(")
BOUND = re.compile(r"-- .*at most ([\d,]+)$")
#: The functions of libraries that Redis, Valkey, KeyDB, Kvrocks, Dragonfly, Upstash and Garnet all have.
FUNCTIONS: Final = {
    "redis": {"call", "pcall", "sha1hex", "error_reply"},
    "struct": {"pack", "unpack"},
    "cmsgpack": {"pack", "unpack"},
    "string": {"byte", "char", "find", "format", "gsub", "match", "rep", "sub"},
    "table": {"concat", "insert", "remove", "sort"},
    "math": {"abs", "ceil", "floor", "huge", "max", "min"},
}
#: What Lua 5.4 has no longer, what Lua 5.1 does not have, and what a server may not offer.
FOREIGN: Final = re.compile(
    r"\b(?:goto|getfenv|setfenv|loadstring|load|require|cjson|bit|os|io|utf8|debug|select|print|rawget|rawset|"
    r"getmetatable|setmetatable|collectgarbage|_G)\b|//|<<|>>|~(?!=)|&|\|"
)
#: The commands in scripts, as the page tells providers. A server or a user without one of them cannot be used. A search
#: gets its commands, FT.SEARCH, as arguments.
[_ALWAYS] = [commands for needed, commands in rows(sections(MANAGED)["Commands and rights"]) if needed == "always"]
COMMANDS: Final = set(re.findall(r"`([A-Z]+)`", _ALWAYS.partition("in scripts:")[2]))
#: A command as the first argument of a call.
COMMAND: Final = re.compile(
    r"(?:redis\.p?call|\bdeclared and redis\.call or redis\.pcall\)|\battempt|\bin_slices)\(\s*([^,)]+)"
)


def _code(source: str) -> Iterator[tuple[str, str]]:
    """Each line of a script that has code: the line, and its code without texts."""
    for line in source.splitlines():
        code = re.sub(r"'(?:[^'\\]|\\.)*'", "''", line)
        if code := code.partition("--")[0].strip():
            yield line, code


def _calls(source: str) -> Iterator[str]:
    """The lines of a script that call `unpack`."""
    for line, code in _code(source):
        if UNPACK.search(code):
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


@pytest.mark.parametrize("path", [one for one in SCRIPT_FILES if one != VERSIONS], ids=lambda path: path.stem)
def test_a_script_runs_on_lua_51_and_54(path: Path) -> None:
    """What differs is in _lua_versions.lua. A division makes a float in Lua 5.4, which replies write with '.0'."""
    for line, code in _code(path.read_text()):
        where = f"{path.name}: {line.strip()}"
        assert FOREIGN.search(code) is None, where
        for library, function in re.findall(r"\b(redis|struct|cmsgpack|string|table|math)\.(\w+)", code):
            assert function in FUNCTIONS[library], where
        assert not re.search(r"format\('[^']*%[di]", line), f"{where}: '%d' fails for floats in Lua 5.4; use '%.0f'"
        if " / " in code:
            whole = re.sub(r"math\.(?:floor|ceil)\([^()]*(?:\([^()]*\)[^()]*)*\)", "", code)
            assert " / " not in whole or "a float" in line, f"{where}: use math.floor, or say why 'a float' may be"


def test_scripts_use_the_documented_commands() -> None:
    used: dict[str, str] = {}
    for path in SCRIPT_FILES:
        for line, _ in _code(path.read_text()):
            for name in COMMAND.findall(line):
                if name.startswith("'"):
                    used[name.strip("'")] = f"{path.name}: {line.strip()}"
                else:  # in_slices, the search, and the definitions of these functions
                    assert name in ("command", "...", "unpack(command", "names", "key"), f"{path.name}: {line}"
    assert not {name: line for name, line in used.items() if name not in COMMANDS}
    assert not COMMANDS - used.keys()


def test_the_flag_of_upstash_is_the_first_line_of_a_script() -> None:
    script = SCRIPTS["append"]
    locking = with_key_locking(script)
    assert locking.source == b"#!lua flags=allow-key-locking\n" + script.source
    assert locking.sha != script.sha
    assert with_key_locking(script) is locking
