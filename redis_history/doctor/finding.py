"""The result of one check."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["Finding", "State"]

#: "ok"; "limited": works in part, or may stop working; "problem": conversations may be lost, or nothing works.
State = Literal["ok", "limited", "problem"]


class Finding(Struct, frozen=True):
    """`check`: the name of the check; `detail`: its result; `fix`: the remedy, as a command if possible."""

    check: str
    state: State
    detail: str
    fix: str | None = None
