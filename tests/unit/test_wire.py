"""The stored form: values that can be stored, rejected values, and corrupt bytes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import os
import subprocess
import sys
import uuid
from typing import Any

import msgspec
import pytest

from redis_history.errors import CorruptDataError, InvalidMessageError, MessageTooLargeError
from redis_history.model import (
    Message,
    Participant,
    Source,
    TextPart,
    ToolUsePart,
    UnknownPart,
    assistant,
    tool_use,
    user,
)
from redis_history.model.wire import body_digest, decode_member, encode_body, encode_member

NAN = float("nan")


def stored(message: Message) -> Message:
    return decode_member(encode_member(1, 0, encode_body(message)))


def member(fields: Any, sequence: Any = 1, timestamp: Any = 0) -> bytes:
    return msgspec.msgpack.encode([sequence, timestamp, fields])


def test_the_order_of_keys_is_kept() -> None:
    order = ["z", "a", "m", "é", "0"]
    message = stored(user("x", metadata=dict.fromkeys(order), provider_meta={"p": dict.fromkeys(order)}))
    assert list(message.metadata) == order
    assert list(message.provider_meta["p"]) == order
    assert list(stored(assistant(tool_use("c", "n", dict.fromkeys(order)))).tool_uses[0].input) == order


@pytest.mark.parametrize(
    "value", [None, True, 0, -(2**63), 2**64 - 1, 0.1, -0.0, 1e308, "", "\x00", b"\xff", [], {}, [[]], {"": {"": None}}]
)
def test_values_keep_their_type(value: Any) -> None:
    message = user("x", metadata={"v": value}, id="m")
    assert repr(stored(message).metadata) == repr(message.metadata)


def test_different_contents_have_different_digests() -> None:
    one, other = encode_body(user("one", id="m")), encode_body(user("other", id="m"))
    assert body_digest(one) == body_digest(bytes(bytearray(one)))
    assert body_digest(one) != body_digest(other)
    assert len(body_digest(one)) == 16


def test_an_integer_score_is_read_as_the_same_message() -> None:
    """Otherwise, appending a message that was read would be a conflict."""
    message = user("x", id="m", sources=[Source(document_id="d", score=1)])
    assert encode_body(stored(message)) == encode_body(message)


def test_the_same_message_has_the_same_bytes_in_every_process() -> None:
    """Otherwise, a retry from another process would be a conflict. The order of a set differs between processes."""
    script = (
        "from redis_history import user\n"
        "from redis_history.errors import InvalidMessageError\n"
        "from redis_history.model.wire import encode_body\n"
        "try: print(encode_body(user('x', id='m', metadata={'mentions': {'ann', 'bob', 'cid', 'dan', 'eve'}})).hex())\n"
        "except InvalidMessageError: print('refused')\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int = 1


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset({"a"}),
        decimal.Decimal("0.10"),
        uuid.UUID(int=7),
        dt.date(2026, 1, 31),
        dt.datetime(2026, 1, 31),
        dt.timedelta(seconds=1),
        Colour.RED,
        Point(),
        msgspec.Raw(b"\x01"),
        bytearray(b"x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_stored_unchanged_or_rejected(value: Any) -> None:
    message = user("x", metadata={"v": value})
    try:
        found = stored(message)
    except InvalidMessageError:
        return
    assert found.metadata == message.metadata


WRONG_FIELDS: list[dict[str, Any]] = [
    {"metadata": None},
    {"metadata": ()},
    {"metadata": ""},
    {"metadata": [1]},
    {"metadata": {1: "x"}},
    {"metadata": {"a": object()}},
    {"metadata": {"a": "\ud800"}},
    {"metadata": {"a": 2**64}},
    {"metadata": {"a": [NAN]}},
    {"metadata": {"a": float("-inf")}},
    {"metadata": {"a": msgspec.Raw(b"\xc1")}},
    {"provider_meta": None},
    {"provider_meta": 0},
    {"provider_meta": {"x": NAN}},
    {"trace_id": 0},
    {"trace_id": False},
    {"trace_id": b"t"},
    {"trace_id": "\udfff"},
    {"schema_version": True},
    {"schema_version": "1"},
    {"schema_version": 2**70},
    {"id": "\ud800"},
    {"participant": "ann"},
    {"participant": 0},
    {"participant": {"kind": "robot", "id": "r"}},
    {"participant": Participant("robot", "r")},  # type: ignore[arg-type]
    {"participant": Participant("user", 5)},  # type: ignore[arg-type]
    {"participant": Participant("user", "u", extra={"a": NAN})},
    {"participant": Participant("user", "u", extra={"id": 1})},
    {"sources": [Source(score=NAN)]},
    {"sources": [Source(score="high")]},  # type: ignore[arg-type]
    {"sources": [Source(extra={"a": NAN})]},
    {"sources": ["d-1"]},
    {"extra": []},
    {"extra": {"role": "system"}},
    {"extra": {"parts": 5}},
    {"extra": {"timestamp": 5}},
    {"extra": {"sequence": 5}},
]


@pytest.mark.parametrize("fields", WRONG_FIELDS, ids=lambda fields: next(iter(fields)))
def test_a_wrong_field_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        encode_body(Message(role="user", parts="x", **fields))


@pytest.mark.parametrize(
    "part",
    [
        TextPart(5),  # type: ignore[arg-type]
        TextPart("x", provider_meta=0),  # type: ignore[arg-type]
        TextPart("x", provider_meta=[]),  # type: ignore[arg-type]
        TextPart("x", extra=[]),  # type: ignore[arg-type]
        TextPart("x", extra={"text": "other"}),
        TextPart("x", extra={"type": "other"}),
        TextPart("x", extra={"a": NAN}),
        ToolUsePart(None, "n"),  # type: ignore[arg-type]
        ToolUsePart("c", "n", {"a": NAN}),
        ToolUsePart("c", "n", provider_meta={"a": NAN}),
        UnknownPart({}),
        UnknownPart({"type": 5}),
        UnknownPart({"type": "text"}),
        UnknownPart({"type": "new", "a": NAN}),
        UnknownPart(None),  # type: ignore[arg-type]
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_wrong_part_is_rejected(part: Any) -> None:
    with pytest.raises(InvalidMessageError):
        encode_body(user(part))


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"trace_id": 5}, "trace_id"),
        ({"metadata": {"a": {"b": NAN}}}, r"metadata\.a\.b"),
        ({"metadata": {"a": {"b": {1, 2}}}}, r"metadata\.a\.b"),
        ({"provider_meta": {"a": [(1, 2)]}}, r"provider_meta\.a"),
        ({"participant": {"kind": "user", "id": "ann"}}, "participant"),
        ({"sources": [{"document_id": "d"}]}, "source"),
    ],
)
def test_the_error_names_the_place(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidMessageError, match=place):
        encode_body(user("x", **fields))


@pytest.mark.parametrize("thing", [None, "hello", {"role": "user"}, b"", 5, Participant("user", "u")])
def test_other_values_are_not_stored(thing: Any) -> None:
    with pytest.raises(InvalidMessageError, match="Message"):
        encode_body(thing)


def test_a_value_that_contains_itself_is_rejected() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(MessageTooLargeError):
        encode_body(user("x", metadata=loop))


PLAIN = {"role": "user", "id": "m"}
NEWER = {**PLAIN, "newer": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"{}",
        member(PLAIN)[:-1],
        member(PLAIN) + b"\xc0",
        member(None),
        member([]),
        msgspec.msgpack.encode([1, 0]),
        msgspec.msgpack.encode([1, 0, PLAIN, 1]),
        msgspec.msgpack.encode(PLAIN),
        member({"id": "m"}),
        member({"role": "user", "id": ""}),
        member({"role": "god", "id": "m"}),
        member({**NEWER, "id": 5}),
        member({**NEWER, "metadata": None}),
        member({**NEWER, "parts": [{"text": "no type"}]}),
        member({**NEWER, "parts": [{"type": "text"}]}),
        member({**NEWER, "parts": [{"type": "text", "text": 5}]}),
        member({**NEWER, "participant": {"kind": "user"}}),
        member({**NEWER, "sources": [5]}),
        member(NEWER, sequence="1"),
        member(NEWER, sequence=None),
        member(NEWER, sequence=True),
        member(NEWER, timestamp="0"),
        member(NEWER, timestamp=0.5),
        member(NEWER, timestamp=None),
        member(PLAIN, timestamp=2**62),
        b"\x93\x01\x01\x83\xa4role\xa4user\xa2id\xa1x\x80\x01",
    ],
    ids=lambda data: data.hex()[-48:],
)
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_member(data)


@pytest.mark.parametrize("timestamp", [2**53, 2**54, -(2**53)])
def test_a_time_that_no_score_holds_is_corrupt(timestamp: int) -> None:
    with pytest.raises(CorruptDataError):
        _ = decode_member(member(PLAIN, timestamp=timestamp)).position


@pytest.mark.parametrize(
    "fields",
    [
        {**PLAIN, "parts": [{"type": "&unknown", "data": {"a": 1}}]},
        {**PLAIN, "parts": [{"type": "&unknown", "data": {"a": 1}}], "newer": 1},
        {**PLAIN, "&extra": {"role": "system"}},
        {**PLAIN, "&extra": {}},
    ],
    ids=str,
)
def test_internal_names_have_no_meaning_in_stored_bytes(fields: dict[str, Any]) -> None:
    """They are corrupt or kept."""
    try:
        message = decode_member(member(fields))
    except CorruptDataError:
        return
    assert message.role == "user"
    assert msgspec.msgpack.decode(encode_body(message)) == fields


FIELDS = [
    (kind, name)
    for kind in (Message, TextPart, Participant)
    for name in kind.__struct_fields__
    if kind is not Message or name not in {"id", "role", "scope", "timestamp", "sequence"}  # checked by Message itself
]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_every_field_is_checked(kind: Any, name: str) -> None:
    """Also a field that a later version adds."""
    structs: dict[Any, Any] = {Participant: Participant("user", "u"), TextPart: TextPart("x")}
    structs[Message] = Message(role="user", parts="x", participant=structs[Participant])  # type: ignore[arg-type]
    changed = structs[kind].__copy__()
    msgspec.structs.force_setattr(changed, name, (1.5,))  # a value that no field takes, and that MessagePack can encode
    structs[kind] = changed
    message = changed if kind is Message else user(structs[TextPart], participant=structs[Participant])
    with pytest.raises(InvalidMessageError):
        encode_body(message)
