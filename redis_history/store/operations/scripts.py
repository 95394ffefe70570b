"""The Lua scripts of the operations: each is the file next to its operation, after parts that it shares with others."""

from __future__ import annotations

import hashlib
import re
from functools import cache, partial
from importlib.resources import files
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A Lua script. `sha`: the SHA-1 of its source, for EVALSHA. `asks`: it reads, and may ask for further keys."""

    name: str
    sha: bytes
    source: bytes
    asks: bool


def load_script(name: str, *preludes: str, asks: bool = False) -> Script:
    """The script `name`.lua of this folder, after the files `preludes` of the folder lua."""
    source = _source(*preludes, name)
    parts = [_source(*line[1].decode().split()) for line in _INCLUDE.finditer(source)]
    declared: list[bytes] = []
    for number, part in enumerate(parts):
        elsewhere = b"\n".join((source, *parts[:number], *parts[number + 1 :]))
        source = _INCLUDE.sub(partial(_included, declared, part, elsewhere), source, count=1)
    if declared:
        source = b"local %b\n%b" % (b", ".join(declared), source)
    SCRIPTS[name] = _script(name, b"%b\n%b" % (_source("_lua_versions"), source), asks)
    return SCRIPTS[name]


def _script(name: str, source: bytes, asks: bool) -> Script:
    return Script(name, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(), source, asks)


@cache
def with_key_locking(script: Script) -> Script:
    """The script for Upstash, where only this flag lets calls for different conversations run side by side. Redis
    rejects the flag."""
    return _script(script.name, b"#!lua flags=allow-key-locking\n" + script.source, script.asks)


#: All scripts of the imported operations.
SCRIPTS: Final[dict[str, Script]] = {}


#: A line of a script that includes other files. Their functions are created only if this part runs, because each takes
#: 0.3 microseconds. What is used elsewhere is declared at the start of the script. The rest is declared where the files
#: are included, because a function of Lua has at most 200 locals at a time.
_INCLUDE = re.compile(rb"^ *-- include (\w+(?: \w+)*)$", re.MULTILINE)
_LOCAL = re.compile(rb"^local (function )?(\w+(?:, \w+)*)", re.MULTILINE)
_NAME: Final = re.compile(rb"\w+")


def _included(declared: list[bytes], part: bytes, elsewhere: bytes, line: re.Match[bytes]) -> bytes:
    used = set(_NAME.findall(elsewhere))
    own: list[bytes] = []
    for found in _LOCAL.finditer(part):
        for name in found[2].split(b", "):
            (declared if name in used else own).append(name)
    part = re.sub(rb"^local \w+(?:, \w+)*(?: --.*)?$", b"", part, flags=re.MULTILINE)
    part = _LOCAL.sub(lambda found: (found[1] or b"") + found[2], part)
    return b"local %b\n%b" % (b", ".join(own), part) if own else part


def _source(*parts: str) -> bytes:
    folder = files("redis_history.store.operations")
    return b"\n".join((folder / ("lua" if part[0] == "_" else "") / f"{part}.lua").read_bytes() for part in parts)


#: The first parts of scripts that change messages, and the parts that find messages by position.
WRITING: Final = (
    "_declared", "_member", "_live", "_archive", "_change", "_lists", "_life", "_journal", "_document", "_documents",
)  # fmt: skip
PLACES: Final = ("_locate", "_archived")
