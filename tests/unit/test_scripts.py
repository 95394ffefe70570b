"""Rules for the source of the Lua scripts, which also run on Lua 5.4 and on servers that take declared keys only."""

import inspect
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

import redis_history
from redis_history.store.operations.append import TRIM
from redis_history.store.operations.base import SENT
from redis_history.store.operations.run import RUN
from redis_history.store.operations.scripts import (
    SCRIPTS,
    Arguments,
    Script,
    check_names,
    load_script,
    pack_change,
    with_key_locking,
)
from redis_history.store.operations.stream import GROW
from redis_history.store.operations.turn import SEAT
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
    """The differences are in _lua_versions.lua. A division makes a float in Lua 5.4, which replies write with '.0'."""
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


def _names(script: Script) -> set[str]:
    """The names of the script's arguments."""
    packers = script.args.args[0].values() if isinstance(script.args, partial) else [script.args]
    return {name for one in packers for name in inspect.signature(one).parameters}


def test_arguments_are_packed_in_the_order_of_their_declaration() -> None:
    assert SEAT.args(lasts=b"3", run_id=b"1", most=b"2") == [b"1", b"2", b"3"]
    assert b"= KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]" in SEAT.source
    assert Arguments.of("a b? *rest").packer("")(b=b"2", rest=[b"3", b"4"], a=b"1") == [b"1", b"2", b"3", b"4"]
    end = {"lease": b"R", "fence": b"7", "run_id": b"id", "status": b"completed", "rest": b"0"}
    assert RUN.args("end", **end) == [b"end", b"R", b"7", b"id", b"completed", b"0"]
    assert RUN.args("end", **end, turn=b"done", revision=b"3", taken=[b"m"])[6:] == [b"done", b"3", b"m"]


def test_arguments_of_a_script_follow_those_of_all_changes() -> None:
    values = {name: name.encode() for name in inspect.signature(pack_change).parameters}
    header = pack_change(**values)
    assert header[SENT] == b"sent"
    assert b"ARGV[%d]" % len([*header, *TRIM.args(most_messages=b"1")]) in TRIM.source
    assert b"sent = repeated and -ARGV[%d]" % (SENT + 1) in TRIM.source


def test_missing_and_unknown_arguments_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"seat\.lua.*lasts"):
        SEAT.args(run_id=b"1", most=b"2")
    with pytest.raises(TypeError, match=r"seat\.lua.*fence"):
        SEAT.args(run_id=b"1", most=b"2", lasts=b"3", fence=b"4")
    with pytest.raises(TypeError, match="missing before"):
        GROW.args(offset=b"0", records=b"", fence=b"R1:id")
    with pytest.raises(TypeError, match="reason"):
        RUN.args("stop", lease=b"R", stopped=b"id", expired_too=b"0")


def test_a_script_uses_exactly_the_names_that_are_declared() -> None:
    with pytest.raises(ValueError, match=r"ring\.lua: not declared: ARG\.agent$"):
        load_script("ring", "_declared", keys="state")
    with pytest.raises(ValueError, match=r"ring\.lua: not declared: KEY\.state$"):
        load_script("ring", "_declared", args="agent")
    with pytest.raises(ValueError, match=r"ring\.lua: declared, but not used: ARG\.owner$"):
        load_script("ring", "_declared", args="agent owner", keys="state")
    with pytest.raises(ValueError, match=r"turn\.lua: not declared: .*START\.ids"):
        load_script("turn", args="action")
    with pytest.raises(ValueError, match="two of"):
        load_script("budget", args="action", actions={"end": "id", "set": "limits id"}, keys="budget")
    with pytest.raises(ValueError, match="two of"):
        load_script("ring", "_declared", args="agent agent", keys="state")


@pytest.mark.parametrize(
    "code", ["return ARGV[1]", "redis.call('DEL', KEYS[12])", "unpack(ARGV, 8)", "for i = 3, #ARGV do", "#KEYS > 4"]
)
def test_a_number_in_place_of_a_name_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match=r"x\.lua: declare a name"):
        check_names("x", code.encode(), {})
    for harmless in ("ARGV[START.ids + 1]", "for i = 1, #KEYS do", "for i = START.ids, #ARGV, 2 do", "ARGV[i + 1]"):
        check_names("x", harmless.encode(), {b"START.ids": b"3"})


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_of_a_script_describes_its_arguments(name: str) -> None:
    if name == "page_archived":  # it refers to page.lua
        name = "page"
    [path] = [one for one in SCRIPT_FILES if one.stem == name]
    header = re.match("(?:--.*\n)*", path.read_text())
    assert header is not None
    described = re.findall(r"((?:\w+, )*\w+): ", header[0])
    assert not _names(SCRIPTS[name]) - {one for names in described for one in names.split(", ")}
