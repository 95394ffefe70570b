"""The Lua scripts, one file per atomic operation, read once from the package."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

__all__ = ["APPEND", "CHANGES", "DELETE", "DELETE_CONVERSATION", "FIND", "HEAD", "PAGE", "Script"]


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


APPEND: Final = _load("append")
CHANGES: Final = _load("changes", "_head")
DELETE: Final = _load("delete", "_locate")
DELETE_CONVERSATION: Final = _load("delete_conversation")
FIND: Final = _load("find", "_locate")
HEAD: Final = _load("head", "_head")
PAGE: Final = _load("page", "_locate")
