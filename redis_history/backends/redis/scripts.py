"""The Lua scripts, one file per atomic operation, read once from the package."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

__all__ = [
    "APPEND",
    "CHANGES",
    "CLEAR",
    "DELETE",
    "DELETE_CONVERSATION",
    "FETCH",
    "FIND",
    "FORGET",
    "HEAD",
    "INDEX",
    "PAGE",
    "REAP",
    "RECORD",
    "SEARCH",
    "UPDATE",
    "Script",
]


class Script(NamedTuple):
    """`call` names the script on the server (EVALSHA), `teach` sends it along (EVAL); both packed (RESP)."""

    name: str
    call: bytes
    teach: bytes


def _load(name: str, *preludes: str) -> Script:
    folder = files("redis_history.backends.redis") / "lua"
    source = b"\n".join((folder / f"{part}.lua").read_bytes() for part in (*preludes, name))
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return Script(name, b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % sha, b"$4\r\nEVAL\r\n$%d\r\n%b\r\n" % (len(source), source))


APPEND: Final = _load("append", "_change", "_document", "_empty", "_trim")
CHANGES: Final = _load("changes", "_head")
CLEAR: Final = _load("clear", "_change", "_document", "_empty")
DELETE: Final = _load("delete", "_change", "_document", "_locate")
DELETE_CONVERSATION: Final = _load("delete_conversation", "_change", "_document")
FETCH: Final = _load("fetch", "_locate")
FIND: Final = _load("find", "_locate")
FORGET: Final = _load("forget")
HEAD: Final = _load("head", "_head")
INDEX: Final = _load("index", "_change", "_document")
PAGE: Final = _load("page", "_locate")
REAP: Final = _load("reap")
RECORD: Final = _load("record", "_change", "_document")
SEARCH: Final = _load("search")
UPDATE: Final = _load("update", "_change", "_document", "_locate")
