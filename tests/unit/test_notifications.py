"""The server's notification flags: what others need stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.backends.redis.server_info import merged_flags

ALL = set("g$lshzxetd")
settings = st.lists(st.sampled_from("KEg$lshzxetdmnoA"), unique=True, max_size=16).map("".join)


def meant(setting: str) -> set[str]:
    """The flags that a setting turns on: A stands for many."""
    return set(setting) - {"A"} | (ALL if "A" in setting else set())


@given(settings)
def test_no_flag_is_ever_removed(setting: str) -> None:
    merged = merged_flags(setting)
    now = setting if merged is None else merged
    assert meant(now) == meant(setting) | {"K", "t"}, "what was there, and what a change log needs: no more"


@given(settings)
def test_merging_is_done_once(setting: str) -> None:
    merged = merged_flags(setting)
    assert merged_flags(setting if merged is None else merged) is None
    assert merged_flags(setting.encode()) == merged


@pytest.mark.parametrize(
    ("setting", "merged"),
    [
        ("", "Kt"),
        (None, "Kt"),
        (b"", "Kt"),
        ("Kt", None),
        ("KEA", None),
        ("AK", None),
        ("A", "AK"),
        ("K", "Kt"),
        ("Elg", "ElgKt"),
    ],
)
def test_examples(setting: str | bytes | None, merged: str | None) -> None:
    found = merged_flags(setting)
    assert (found and sorted(found)) == (merged and sorted(merged))
