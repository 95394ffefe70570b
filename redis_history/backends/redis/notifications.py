"""The server's setting `notify-keyspace-events`, to which we add and from which we never take."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

__all__ = ["merged_flags", "slowest_mode"]

#: K: channels named by key. t: commands on streams, which is what the change log is.
_NEEDED: Final = "Kt"
#: What the flag A stands for.
_ALL: Final = "g$lshzxetd"


def merged_flags(setting: str | bytes | None) -> str | None:
    """The setting to write so that a change log rings, or None if it does already."""
    flags = setting.decode() if isinstance(setting, bytes) else setting or ""
    present = set(flags) | (set(_ALL) if "A" in flags else set())
    missing = "".join(flag for flag in _NEEDED if flag not in present)
    return flags + missing if missing else None


def slowest_mode(modes: Collection[str]) -> str:
    """The slowest of the modes of some doorbells; "poll" if there are none."""
    return next((mode for mode in ("poll", "publish", "keyspace") if mode in modes), "poll")
