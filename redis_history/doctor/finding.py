"""One thing that was looked at."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["Finding", "State"]

#: "ok"; "limited": works, but not all of it, or not for ever; "problem": conversations may be lost, or nothing works.
State = Literal["ok", "limited", "problem"]


class Finding(Struct, frozen=True):
    """`check`: what was looked at; `detail`: what was found; `fix`: what to do, a command where one does it."""

    check: str
    state: State
    detail: str
    fix: str | None = None
