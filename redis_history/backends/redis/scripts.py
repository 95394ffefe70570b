"""The Lua scripts, one file per atomic operation, read once from the package."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

__all__ = [
    "APPEND",
    "CHANGES",
    "CLEAR",
    "COMPACT",
    "COPY",
    "DELETE",
    "DELETE_CONVERSATION",
    "EXPAND",
    "FETCH",
    "FIND",
    "FORGET",
    "HEAD",
    "INDEX",
    "LEASE",
    "MARK",
    "PAGE",
    "PAGE_ARCHIVED",
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


_WRITING = ("_archive", "_change", "_journal", "_document")
_PLACES = ("_id", "_locate", "_archived")

APPEND: Final = _load("append", *_WRITING, "_empty", "_id", "_trim")
CHANGES: Final = _load("changes", "_head")
CLEAR: Final = _load("clear", *_WRITING, "_empty")
COMPACT: Final = _load("compact", *_WRITING, "_locate")
COPY: Final = _load("copy")
DELETE: Final = _load("delete", *_WRITING, *_PLACES)
DELETE_CONVERSATION: Final = _load("delete_conversation", *_WRITING)
EXPAND: Final = _load("expand", *_WRITING, *_PLACES)
FETCH: Final = _load("fetch", "_archive", "_locate")
FIND: Final = _load("find", "_archive", *_PLACES)
FORGET: Final = _load("forget")
HEAD: Final = _load("head", "_head")
INDEX: Final = _load("index", *_WRITING, *_PLACES)
LEASE: Final = _load("lease")
MARK: Final = _load("mark", "_archive", "_locate")
PAGE: Final = _load("page", "_locate")
PAGE_ARCHIVED: Final = _load("page_archived", "_archive", "_locate")
REAP: Final = _load("reap")
RECORD: Final = _load("record", *_WRITING)
SEARCH: Final = _load("search")
UPDATE: Final = _load("update", *_WRITING, *_PLACES)
