"""The stored form: what may and what may not be stored, and bytes that are no message."""

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


def test_the_digest_tells_contents_apart() -> None:
    one, other = encode_body(user("one", id="m")), encode_body(user("other", id="m"))
    assert body_digest(one) == body_digest(bytes(bytearray(one)))
    assert body_digest(one) != body_digest(other)
    assert len(body_digest(one)) == 16


def test_a_whole_number_as_score_is_the_same_message_when_read() -> None:
    """Or appending what was read would be a conflict with itself."""
    message = user("x", id="m", sources=[Source(document_id="d", score=1)])
    assert encode_body(stored(message)) == encode_body(message)


def test_the_same_message_has_the_same_bytes_in_every_process() -> None:
    """Or a retry from another process would be a conflict. Sets have an order of their own in each."""
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
def test_what_would_change_its_type_is_refused_or_kept(value: Any) -> None:
    """No silent change: a free-form value either comes back equal or is refused."""
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
def test_a_wrong_field_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode_body(Message(role="user", parts="x", **fields))
    assert len(str(caught.value)) > 20


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
def test_a_wrong_part_is_refused(part: Any) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode_body(user(part))
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"trace_id": 5}, r"\$\.trace_id"),
        ({"metadata": {"a": {"b": NAN}}}, r"metadata\.a\.b.*nan"),
        ({"metadata": {"a": "\ud800"}}, "lone surrogate"),
        ({"metadata": {"a": 2**64}}, "64 bits"),
        ({"metadata": {"a": object()}}, "object"),
        ({"metadata": {"a": {"b": {1, 2}}}}, r"metadata\.a\.b.*set"),
        ({"provider_meta": {"a": [(1, 2)]}}, r"provider_meta\.a.*tuple"),
        ({"participant": "ann"}, "participant.*str"),
        ({"participant": {"kind": "user", "id": "ann"}}, "participant.*dict"),
        ({"sources": [{"document_id": "d"}]}, "source.*dict"),
    ],
)
def test_the_error_says_what_is_wrong(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidMessageError, match=says):
        encode_body(user("x", **fields))


@pytest.mark.parametrize("thing", [None, "hello", {"role": "user"}, b"", 5, Participant("user", "u")])
def test_only_messages_are_stored(thing: Any) -> None:
    with pytest.raises(InvalidMessageError, match="Message"):
        encode_body(thing)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(MessageTooLargeError, match="nested"):
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
def test_what_is_no_member_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match=f"{len(data)} stored bytes"):
        decode_member(data)


@pytest.mark.parametrize("timestamp", [2**53, 2**54, -(2**53)])
def test_every_message_that_is_read_has_a_position(timestamp: int) -> None:
    """An instant that no score holds exactly was not written by this package."""
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
def test_names_used_inside_mean_nothing_in_stored_bytes(fields: dict[str, Any]) -> None:
    """They are corrupt, or kept as what they are: never taken apart."""
    try:
        message = decode_member(member(fields))
    except CorruptDataError:
        return
    assert message.role == "user"
    assert msgspec.msgpack.decode(encode_body(message)) == fields


def _changed(kind: Any) -> list[str]:
    made = {"id", "role", "scope"} if kind is Message else set()  # checked when a message is made
    return [name for name in kind.__struct_fields__ if name not in made | {"timestamp", "sequence"}]


@pytest.mark.parametrize("name", _changed(Message))
def test_every_field_of_a_message_is_checked(name: str) -> None:
    """Also one that a later version adds."""
    message = Message(role="user", parts="x", participant=Participant("user", "u"))
    with pytest.raises(InvalidMessageError):
        encode_body(_with(message, name))


@pytest.mark.parametrize("name", _changed(TextPart))
def test_every_field_of_a_text_is_checked(name: str) -> None:
    with pytest.raises(InvalidMessageError):
        encode_body(user(_with(TextPart("x"), name)))


@pytest.mark.parametrize("name", _changed(Participant))
def test_every_field_of_a_participant_is_checked(name: str) -> None:
    with pytest.raises(InvalidMessageError):
        encode_body(user("x", participant=_with(Participant("user", "u"), name)))


def _with(struct: Any, name: str) -> Any:
    """The same with a value that no field takes, and that MessagePack has a form for."""
    struct = struct.__copy__()
    msgspec.structs.force_setattr(struct, name, (1.5,))
    return struct
