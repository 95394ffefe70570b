"""From operations to the bytes that are sent, and from replies to outcomes. The heads of the Lua files say the form."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from redis_history.events import BEGINNING, Cursor, Reset
from redis_history.model import Message, Position, user
from redis_history.model.wire import placed
from redis_history.operations import (
    Append,
    Appended,
    DeleteConversation,
    DeleteMessages,
    FindMessage,
    Op,
    ReadChanges,
    ReadConversation,
    ReadHead,
    ReadPage,
)
from redis_history.operations.append import APPEND
from redis_history.operations.base import Call, Script
from redis_history.operations.keys import Keyspace
from redis_history.operations.settings import Settings
from tests.property.strategies import conversation_ids
from tests.support.steps import first_call, outcome

KEYSPACE = Keyspace("n")
SETTINGS = Settings(KEYSPACE, log_length=500, database=3)
KEYS = KEYSPACE.conversation("c")
WRITING = [KEYS.state, KEYS.messages, KEYS.log, KEYS.registry]
T1 = "1" * 16


def script_call(call: Call, script: Script, keys: list[bytes], **how: Any) -> list[bytes]:
    """The ARGV of a call, whose command and KEYS must be these."""
    with_source = how.get("with_source", False)
    command, body, count, *rest = call.words(**how)
    assert command == (b"EVAL" if with_source else b"EVALSHA")
    assert (hashlib.sha1(body, usedforsecurity=False).hexdigest().encode() if with_source else body) == script.sha
    assert count == b"%d" % len(keys)
    assert rest[: len(keys)] == keys
    return rest[len(keys) :]


def appending(*given_: Message) -> Append:
    return Append.batch("c", given_, expected_revision=None, must_exist=False, must_not_exist=False).op


@pytest.mark.parametrize(("newest", "ranks"), [(True, [b"-10", b"-1"]), (False, [b"0", b"9"])])
def test_a_page_without_bounds_needs_no_script(newest: bool, ranks: list[bytes]) -> None:
    call = first_call(ReadPage("c", 10, newest), SETTINGS)
    for how in ({}, {"with_source": True}, {"sent": b"17"}):
        assert call.words(**how) == [b"ZRANGE", KEYS.messages, *ranks]


@given(st.lists(st.binary(max_size=30), max_size=8), st.booleans(), st.binary(max_size=9))
def test_any_arguments_are_sent_as_they_are(args: list[bytes], with_source: bool, sent: bytes) -> None:
    call = Call(APPEND, KEYS.writing, args, lambda reply: reply)
    assert script_call(call, APPEND, WRITING, with_source=with_source, sent=sent) == args
    assert Call(None, (), args, lambda reply: reply).words(with_source=with_source, sent=sent) == args


@given(conversation_ids)
def test_every_key_of_a_call_is_in_one_slot(conversation_id: str) -> None:
    ops: list[Op[Any]] = [
        Append(conversation_id, appending(user("x")).entries),
        DeleteMessages(conversation_id, ("m",)),
        DeleteConversation(conversation_id),
        FindMessage(conversation_id, "m"),
        ReadPage(conversation_id, 1, True, after=Position(0, 0)),
        ReadPage(conversation_id, 1, True),
        ReadConversation(conversation_id),
        ReadHead(conversation_id),
        ReadChanges(conversation_id, BEGINNING),
    ]
    for op in ops:
        call = first_call(op, SETTINGS)
        sent = call.words()
        keys = sent[3 : 3 + int(sent[2])] if call.script else sent[1:2]
        assert {key_slot(key) for key in keys} == {key_slot(call.key)}


def test_the_outcome_of_an_append_with_duplicates() -> None:
    given_ = [user("1"), user("2"), user("3"), user("4")]
    reply = [b"stored", b"7 12 1000", [[0, 3, 4, b"-5", 0], [2, 7, 11, b"999", 1]]]
    known, fresh, own, last = outcome(appending(*given_), SETTINGS, reply)
    assert known == Appended(3, placed(given_[0], 4, -5), True)
    assert fresh == Appended(7, placed(given_[1], 12, 1000), False)
    assert own == Appended(7, placed(given_[2], 11, 999), False), "stored by this very call, before a lost reply"
    assert last == Appended(7, placed(given_[3], 13, 1001), False)


def head_of(revision: int) -> bytes:
    """The head of the log entry of an append of one message."""
    return b"\x10" + revision.to_bytes(9, "big")


@pytest.mark.parametrize(
    "entry", [b"", b"x", head_of(6), b"\x20" + bytes(9) + b"\xc1", b"\xf0" + bytes(11), b"\x70" * 12]
)
def test_a_foreign_log_entry_gives_a_reset(entry: bytes) -> None:
    after = Cursor(T1, 5, head_of(5).hex())
    reply = [T1.encode(), 6, head_of(6), b"", 5, [[head_of(5), []], [entry, []]], [], b"", b"", 0]
    (event,) = outcome(ReadChanges("c", after), SETTINGS, reply).events
    if entry != head_of(6):
        assert isinstance(event, Reset)
        assert event.reason == "log_unreadable"
