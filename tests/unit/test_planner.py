"""From operations to the bytes that are sent, and from replies to outcomes. The heads of the Lua files say the form."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.backends.redis.calls import (
    APPEND,
    CHANGES,
    DELETE,
    DELETE_CONVERSATION,
    FIND,
    HEAD,
    PAGE,
    Call,
    Script,
    Settings,
)
from redis_history.backends.redis.keys import Keyspace, field_of
from redis_history.errors import (
    CorruptDataError,
)
from redis_history.events import BEGINNING, Cursor, MessagesAppended, Reset
from redis_history.model import Message, Position, user
from redis_history.model.wire import encode_body, encode_member, placed
from redis_history.operations import (
    Append,
    Appended,
    Changes,
    DeleteConversation,
    DeleteMessages,
    FindMessage,
    Head,
    Op,
    Page,
    Precondition,
    ReadChanges,
    ReadHead,
    ReadPage,
)
from redis_history.requests import append
from tests.property.strategies import conversation_ids, message_ids, messages, microseconds
from tests.support.steps import first_call, outcome

KEYSPACE = Keyspace("n")
SETTINGS = Settings(KEYSPACE, log_length=500, database=3)
KEYS = KEYSPACE.conversation("c")
WRITING = [KEYS.state, KEYS.messages, KEYS.log, KEYS.registry]
#: Where the arguments begin that are a script's own.
OWN = 9
T1, T2, T3 = "1" * 16, "2" * 16, "3" * 20


def parsed(packed: bytes) -> list[bytes]:
    """The arguments of one command in RESP, which must be all there is."""
    head, rest = packed.split(b"\r\n", 1)
    assert head[:1] == b"*"
    found = []
    for _ in range(int(head[1:])):
        size, rest = rest.split(b"\r\n", 1)
        assert size[:1] == b"$"
        length = int(size[1:])
        found.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
    assert rest == b""
    return found


def script_call(call: Call, script: Script, keys: list[bytes], **how: Any) -> list[bytes]:
    """The ARGV of a call, whose command and KEYS must be these."""
    teach = how.get("teach", False)
    command, body, count, *rest = parsed(call.pack(**how))
    assert command == (b"EVAL" if teach else b"EVALSHA")
    sha = parsed(b"*2\r\n" + script.call)[1]
    assert (hashlib.sha1(body, usedforsecurity=False).hexdigest().encode() if teach else body) == sha
    assert count == b"%d" % len(keys)
    assert rest[: len(keys)] == keys
    return rest[len(keys) :]


def appending(*given_: Message, **condition: Any) -> Append:
    free = {"expected_revision": None, "must_exist": False, "must_not_exist": False}
    return append("c", given_, **{**free, **condition}).op


def decoded(op: Op[Any], reply: Any) -> Any:
    return outcome(op, SETTINGS, reply)


@given(st.lists(messages(), min_size=1, max_size=4, unique_by=lambda message: message.id))
def test_an_append_as_it_is_sent(given_: list[Message]) -> None:
    op = appending(*given_)
    args = script_call(first_call(op, SETTINGS), APPEND, WRITING)
    totals = [b"%d" % sum(entry.characters for entry in op.entries), b"%d" % sum(entry.tokens for entry in op.entries)]
    # token, condition (2), log length, name, ttl, sent, channel, write in any case
    header = [op.token.encode(), b"", b"", b"500", KEYS.name, b"", b"0", b"", b""]
    assert args[:OWN] == header
    # replace, most messages, totals (2), how many
    assert args[OWN : OWN + 5] == [b"0", b"", *totals, b"%d" % len(op.entries)]
    assert len(args) == OWN + 5 + 5 * len(op.entries)
    for index, entry in enumerate(op.entries):
        field, message_id, timestamp, what, rest = args[OWN + 5 + 5 * index : OWN + 10 + 5 * index]
        assert (field, message_id) == (field_of(entry.message.id), entry.message.id.encode())
        assert timestamp == (b"" if entry.timestamp is None else str(entry.timestamp).encode())
        assert what == entry.characters.to_bytes(3, "big") + bytes((entry.flags, entry.body[0])) + entry.tools
        assert what[4:5] + rest == entry.body


@given(microseconds)
def test_timestamps_are_whole_numbers_to_the_last_digit(timestamp: int) -> None:
    op = appending(placed(user("x"), 1, timestamp))
    assert int(script_call(first_call(op, SETTINGS), APPEND, WRITING)[OWN + 7]) == timestamp


@pytest.mark.parametrize(
    ("condition", "sent"),
    [
        (Precondition(), [b"", b""]),
        (Precondition(0), [b"0", b""]),
        (Precondition(7, must_exist=True), [b"7", b"exists"]),
        (Precondition(must_not_exist=True), [b"", b"absent"]),
        (Precondition(2**53 - 1), [b"9007199254740991", b""]),
    ],
)
def test_preconditions_as_they_are_sent(condition: Precondition, sent: list[bytes]) -> None:
    for op, script in (
        (Append("c", appending(user("x")).entries, condition, T1), APPEND),
        (DeleteMessages("c", ("m",), condition, T1), DELETE),
        (DeleteConversation("c", condition, T1), DELETE_CONVERSATION),
    ):
        args = script_call(first_call(op, SETTINGS), script, WRITING)  # type: ignore[arg-type]
        assert args[:5] == [T1.encode(), *sent, b"500", KEYS.name]


@given(st.lists(message_ids, unique=True, max_size=5))
def test_a_deletion_as_it_is_sent(ids: list[str]) -> None:
    op = DeleteMessages("c", tuple(ids), token=T1)
    first = script_call(first_call(op, SETTINGS), DELETE, WRITING)
    named = [*map(field_of, ids), *map(str.encode, ids)]
    assert first[5:] == [b"", b"0", b"", b"", b"%d" % len(ids), *named]
    sent = script_call(first_call(op, SETTINGS), DELETE, WRITING, sent=b"-17")
    assert sent == [*first[:6], b"-17", *first[7:]], "only the time of the first copy differs"


def test_deleting_a_conversation_names_its_doorbell() -> None:
    args = script_call(first_call(DeleteConversation("c"), SETTINGS), DELETE_CONVERSATION, WRITING)
    assert args[5:] == [b"", b"0", b"", b"", b"60000", b"__keyspace@3__:" + KEYS.log]
    assert SETTINGS.doorbell_channel(KEYS) == args[OWN + 1]


def test_reads_as_they_are_sent() -> None:
    found = script_call(first_call(FindMessage("c", "m\u00e9"), SETTINGS), FIND, [KEYS.state, KEYS.messages])
    assert found == [field_of("m\u00e9"), "m\u00e9".encode()]
    head = script_call(first_call(ReadHead("c", 20), SETTINGS), HEAD, [KEYS.state, KEYS.log, KEYS.messages])
    assert head == [b"20"]
    changes = first_call(ReadChanges("c", Cursor(T1, 7, T2), limit=50), SETTINGS)
    revision, most, size = script_call(changes, CHANGES, [KEYS.state, KEYS.log, KEYS.messages])
    assert (revision, most) == (b"7", b"51"), "the subscriber's own change, and as many as it wants"
    assert int(size) > 0


@pytest.mark.parametrize(
    ("bounds", "sent"),
    [
        ({"before": Position(-5, 3)}, [b"", b"", b"-5", b"3"]),
        ({"after": Position(5, 7)}, [b"5", b"8", b"", b""]),
        ({"after": Position(5, 2**53 - 1)}, [b"5", b"9007199254740992", b"", b""]),
        ({"after": Position(-9, 1), "before": Position(2**53 - 1, 2)}, [b"-9", b"2", b"9007199254740991", b"2"]),
    ],
)
@pytest.mark.parametrize("newest", [True, False])
def test_windows_as_they_are_sent(bounds: dict[str, Position], sent: list[bytes], newest: bool) -> None:
    op = ReadPage("c", 10, newest, **bounds)
    assert script_call(first_call(op, SETTINGS), PAGE, [KEYS.messages]) == [b"10", b"1" if newest else b"0", *sent]


@pytest.mark.parametrize(("newest", "ranks"), [(True, [b"-10", b"-1"]), (False, [b"0", b"9"])])
def test_a_page_without_bounds_needs_no_script(newest: bool, ranks: list[bytes]) -> None:
    call = first_call(ReadPage("c", 10, newest), SETTINGS)
    for how in ({}, {"teach": True}, {"sent": b"17"}):
        assert parsed(call.pack(**how)) == [b"ZRANGE", KEYS.messages, *ranks]


@given(st.lists(st.binary(max_size=30), max_size=8), st.booleans(), st.binary(max_size=9))
def test_any_arguments_are_packed_exactly(args: list[bytes], teach: bool, sent: bytes) -> None:
    call = Call(APPEND, KEYS.writing, args, lambda reply: reply)
    assert script_call(call, APPEND, WRITING, teach=teach, sent=sent) == args
    assert parsed(Call(None, b"", args, lambda reply: reply).pack(teach=teach, sent=sent)) == args


@given(conversation_ids)
def test_every_key_of_a_call_is_in_one_slot(conversation_id: str) -> None:
    ops: list[Op[Any]] = [
        Append(conversation_id, appending(user("x")).entries),
        DeleteMessages(conversation_id, ("m",)),
        DeleteConversation(conversation_id),
        FindMessage(conversation_id, "m"),
        ReadPage(conversation_id, 1, True, after=Position(0, 0)),
        ReadHead(conversation_id),
        ReadChanges(conversation_id, BEGINNING),
    ]
    for op in ops:
        sent = parsed(first_call(op, SETTINGS).pack())
        keys = sent[3 : 3 + int(sent[2])]
        assert keys
        assert len({key[key.index(b"{") : key.index(b"}")] for key in keys}) == 1


def test_the_outcome_of_an_append() -> None:
    one, two, three = user("1"), placed(user("2"), 99, -50), user("3")
    first, second, third = decoded(appending(one, two, three), b"7 12 1000")
    assert first == Appended(7, placed(one, 12, 1000), False)
    assert second == Appended(7, placed(two, 13, -50), False), "its own time; the clock's goes to the next without"
    assert third == Appended(7, placed(three, 14, 1001), False)


def test_the_outcome_of_an_append_with_duplicates() -> None:
    given_ = [user("1"), user("2"), user("3"), user("4")]
    reply = [b"stored", b"7 12 1000", [[0, 3, 4, b"-5", 0], [2, 7, 11, b"999", 1]]]
    known, fresh, own, last = decoded(appending(*given_), reply)
    assert known == Appended(3, placed(given_[0], 4, -5), True)
    assert fresh == Appended(7, placed(given_[1], 12, 1000), False)
    assert own == Appended(7, placed(given_[2], 11, 999), False), "stored by this very call, before a lost reply"
    assert last == Appended(7, placed(given_[3], 13, 1001), False)


def member(sequence: int, message: Message) -> bytes:
    return encode_member(sequence, 1, 0, sequence * 10, encode_body(message))


def test_the_outcomes_of_reads(caplog: pytest.LogCaptureFixture) -> None:
    one, two = user("1"), user("2")
    read = [placed(one, 1, 10), placed(two, 2, 20)]
    reply = [member(1, one), member(2, two)]
    assert decoded(FindMessage("c", one.id), reply[0]) == read[0]
    assert decoded(FindMessage("c", "m"), None) is None
    assert decoded(ReadPage("c", 10, True), reply) == Page(read)
    assert decoded(ReadPage("c", 10, True), []) == Page([])
    assert decoded(ReadPage("c", 10, True), [reply[0], b"\xc1", b"", reply[1]]) == Page(read, unreadable=2)
    assert caplog.text.count("unreadable message of conversation 'c'") == 2
    assert decoded(ReadHead("c", 2), [T1.encode(), 7, bytes.fromhex(T3), 2, 5, 3, reply, []]) == Head(
        Cursor(T1, 7, T3), 2, 5, 3, Page(read)
    )
    with pytest.raises(CorruptDataError):
        decoded(FindMessage("c", "m"), b"\xc1")


def head_of(revision: int) -> bytes:
    """The head of the log entry of an append of one message."""
    return b"\x10" + revision.to_bytes(9, "big")


def raw(revision: int, message: Message) -> list[Any]:
    return [head_of(revision) + revision.to_bytes(2, "big"), [member(revision, message)]]


def test_the_outcome_of_reading_changes() -> None:
    message = user("x")
    after = Cursor(T1, 5, head_of(5).hex())
    told = decoded(
        ReadChanges("c", after), [T1.encode(), 6, head_of(6), b"", 5, [[head_of(5), []], raw(6, message)], []]
    )
    assert told == Changes(
        [
            MessagesAppended(
                conversation_id="c",
                revision=6,
                cursor=Cursor(T1, 6, head_of(6).hex()),
                messages=(placed(message, 6, 60),),
            )
        ],
        more=False,
    )
    (reset,) = decoded(ReadChanges("c", BEGINNING), [T1.encode(), 1, head_of(1), b"1", 1, [raw(1, message)], []]).events
    assert isinstance(reset, Reset)
    assert reset.reason == "conversation_replaced"


@pytest.mark.parametrize(
    "entry", [b"", b"x", head_of(6), b"\x20" + bytes(9) + b"\xc1", b"\xf0" + bytes(11), b"\x70" * 12]
)
def test_a_foreign_log_entry_gives_a_reset(entry: bytes) -> None:
    after = Cursor(T1, 5, head_of(5).hex())
    reply = [T1.encode(), 6, head_of(6), b"", 5, [[head_of(5), []], [entry, []]], []]
    (event,) = decoded(ReadChanges("c", after), reply).events
    if entry != head_of(6):
        assert isinstance(event, Reset)
        assert event.reason == "log_unreadable"
