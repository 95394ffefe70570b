"""Ids of messages sort by time and are unique; conversation ids are checked."""

import os
import re
import subprocess
import sys
import time
import uuid
from functools import reduce
from operator import and_, or_
from typing import Any

import pytest
from hypothesis import example, given

from redis_history.errors import InvalidConversationIdError
from redis_history.values.ids import MAX_CONVERSATION_ID_BYTES, check_conversation_id, new_id, new_token
from tests.property.strategies import conversation_ids


def test_a_new_id_is_a_uuid_of_version_7_of_the_present() -> None:
    before = time.time_ns() // 1_000_000
    for _ in range(1000):
        text = new_id()
        value = uuid.UUID(text)
        assert str(value) == text
        assert (value.version, value.variant) == (7, uuid.RFC_4122)
        assert before <= value.int >> 80 <= time.time_ns() // 1_000_000


def test_ids_sort_by_creation_time_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for milliseconds in (0, 1, 1_700_000_000_000, 1_700_000_000_001, 2**48 - 1):
        monkeypatch.setattr(time, "time_ns", lambda now=milliseconds: now * 1_000_000 + 999_999)
        ids.append(new_id())
    assert ids == sorted(ids)
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    numbers = [uuid.UUID(new_id()).int for _ in range(10_000)]
    assert len(set(numbers)) == len(numbers)
    changing = reduce(or_, numbers) ^ reduce(and_, numbers)
    assert changing.bit_count() == 74, "every bit but time, version and variant is random"


def test_a_token_is_64_random_bits_in_hex() -> None:
    tokens = [new_token() for _ in range(10_000)]
    assert len(set(tokens)) == len(tokens)
    assert all(re.fullmatch("[0-9a-f]{16}", token) for token in tokens)
    assert len({token[0] for token in tokens}) == 16, "leading zeros stay"


def test_a_forked_process_makes_other_ids() -> None:
    """In a new process, because forking a process with threads is unsafe."""
    script = """
import os
from redis_history.values.ids import new_id, new_token
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
@example("a" * MAX_CONVERSATION_ID_BYTES)
@example("é" * 256)
@example("\x00")
@example("{}*\n ")
def test_any_text_of_1_to_512_bytes_is_a_conversation_id(conversation_id: str) -> None:
    assert check_conversation_id(conversation_id) == conversation_id.encode()


@pytest.mark.parametrize(
    "wrong", ["", "a" * 513, "é" * 257, "👋" * 129, "a\ud800", None, 5, b"c", ["c"], uuid.UUID(int=1)]
)
def test_other_conversation_ids_are_rejected(wrong: Any) -> None:
    with pytest.raises(InvalidConversationIdError, match="conversation_id"):
        check_conversation_id(wrong)
