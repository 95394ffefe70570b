"""Ids: the form of RFC 9562, order by time, no two alike; conversation ids as the contract allows them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history._ids import MAX_CONVERSATION_ID_BYTES, check_conversation_id, new_id, new_token
from redis_history.errors import InvalidConversationIdError
from tests.property.strategies import conversation_ids


def test_a_new_id_is_a_uuid_of_version_7() -> None:
    for _ in range(1000):
        text = new_id()
        value = uuid.UUID(text)
        assert str(value) == text
        assert (value.version, value.variant) == (7, uuid.RFC_4122)


def test_a_new_id_begins_with_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id()).int >> 80
    assert before <= made <= time.time_ns() // 1_000_000


def test_ids_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for milliseconds in (0, 1, 1_700_000_000_000, 1_700_000_000_001, 2**48 - 1):
        monkeypatch.setattr(time, "time_ns", lambda now=milliseconds: now * 1_000_000 + 999_999)
        ids.append(new_id())
    assert ids == sorted(ids)
    assert [uuid.UUID(text).int >> 80 for text in ids][:2] == [0, 1]


def test_ids_of_one_millisecond_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    ids = [uuid.UUID(new_id()).int for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    fixed, never = ids[0], ids[0]
    for value in ids:
        fixed &= value
        never |= value
    assert (fixed ^ never).bit_count() == 74, "every bit but time, version and variant is random"


def test_a_token_is_64_random_bits_in_hex() -> None:
    tokens = [new_token() for _ in range(10_000)]
    assert len(set(tokens)) == len(tokens)
    assert all(re.fullmatch("[0-9a-f]{16}", token) for token in tokens)
    assert len({token[0] for token in tokens}) == 16, "leading zeros stay"


def test_a_forked_process_makes_ids_of_its_own() -> None:
    """In a process of its own: forking one with threads is not safe."""
    script = """
import os
from redis_history._ids import new_id, new_token
new_token()
for child in range(2):
    if os.fork() == 0:
        print(*[new_token() for _ in range(50)], *[new_id()[-17:] for _ in range(50)], flush=True)
        os._exit(0)
    os.wait()
print(*[new_token() for _ in range(50)], *[new_id()[-17:] for _ in range(50)])
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        capture_output=True,
        text=True,
    )
    made = ran.stdout.split()
    assert len(made) == 300
    assert len(set(made)) == 300


@given(conversation_ids)
def test_any_unicode_is_a_conversation_id(conversation_id: str) -> None:
    assert check_conversation_id(conversation_id) == conversation_id.encode()


@pytest.mark.parametrize(
    "conversation_id", ["\x00", " ", "\n", "{}", "*", "a" * MAX_CONVERSATION_ID_BYTES, "é" * 256, "👋" * 128]
)
def test_edges_of_what_is_allowed(conversation_id: str) -> None:
    assert check_conversation_id(conversation_id).decode() == conversation_id


@pytest.mark.parametrize("conversation_id", ["", "a" * 513, "é" * 257, "👋" * 129])
def test_length_is_in_bytes(conversation_id: str) -> None:
    with pytest.raises(InvalidConversationIdError, match=f"1 to 512 bytes.*{len(conversation_id.encode())}"):
        check_conversation_id(conversation_id)


@pytest.mark.parametrize("thing", [None, 5, b"c", ["c"], uuid.UUID(int=1)])
def test_what_is_no_string(thing: Any) -> None:
    with pytest.raises(InvalidConversationIdError, match=re.escape(repr(thing))):
        check_conversation_id(thing)


@given(st.text(max_size=5), st.integers(0xD800, 0xDFFF), st.text(max_size=5))
def test_lone_surrogates(before: str, surrogate: int, after: str) -> None:
    with pytest.raises(InvalidConversationIdError, match=f"surrogate at index {len(before)}"):
        check_conversation_id(before + chr(surrogate) + after)
