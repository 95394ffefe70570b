"""The stored form: values that can be stored, rejected values, and corrupt bytes."""

import dataclasses
import datetime as dt
import decimal
import enum
import os
import sys
import tracemalloc
import uuid
from typing import Any

import msgspec
import pytest

from redis_history.errors import CorruptDataError, InvalidMessageError, MessageTooLargeError, MissingExtraError
from redis_history.values import Message, Participant, Source, TextPart, ToolUsePart, UnknownPart, _zstd, user, wire
from tests.support.members import member_of, stored

NAN = float("nan")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def member(*fields: Any, sequence: Any = 1, timestamp: Any = EPOCH, flags: int = wire.FREE_FORM) -> bytes:
    """The member of a message with these fields, from `id` on."""
    return bytes(wire.PREFIX_BYTES - 1) + bytes((flags,)) + msgspec.msgpack.encode([sequence, timestamp, *fields])


@pytest.mark.parametrize(
    "value", [None, True, 0, -(2**63), 2**64 - 1, 0.1, -0.0, 1e308, "", "\x00", b"\xff", [], {}, [[]], {"": {"": None}}]
)
def test_values_keep_their_type(value: Any) -> None:
    message = user("x", metadata={"v": value}, id="m")
    assert repr(stored(message).metadata) == repr(message.metadata)


def test_an_integer_score_is_read_as_the_same_message() -> None:
    """Otherwise, appending a message that was read would be a conflict."""
    message = user("x", id="m", sources=[Source(document_id="d", score=1)])
    assert wire.encode_body(stored(message)) == wire.encode_body(message)


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int = 1


#: msgspec could encode each of these as another type.
OBJECTS = [
    *({1, 2}, frozenset({"a"}), decimal.Decimal("0.10"), uuid.UUID(int=7), dt.date(2026, 1, 31)),
    *(dt.datetime(2026, 1, 31), dt.timedelta(seconds=1), Color.RED, Point(), msgspec.Raw(b"\x01"), bytearray(b"x")),
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_values_of_other_types_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidMessageError):
        wire.encode_body(user("x", metadata={"v": value}))


FLOATS = ({"a": NAN}, {"a": {"b": float("-inf")}})
BAD = [*FLOATS, {"a": [2**64]}, {"a": "\ud800"}, {"a": object()}, {"a": msgspec.Raw(b"\xc1")}]
WRONG: dict[str, list[Any]] = {
    "metadata": [None, (), "", [1], {1: "x"}, *BAD],
    "provider_meta": [None, 0, *BAD],
    "trace_id": [0, False, b"t", "\udfff"],
    "id": ["\ud800"],
    "participant": [
        *("ann", 0, {"kind": "robot", "id": "r"}, Participant("robot", "r"), Participant("user", 5)),
        *(Participant("user", "u", extra=extra) for extra in ({"id": 1}, *BAD)),
    ],
    "sources": [["d-1"], *([Source(score=score)] for score in (NAN, "high")), *([Source(extra=bad)] for bad in BAD)],
    "extra": [[], {1: 5}, *({name: 5} for name in ("role", "parts", "timestamp", "sequence")), *BAD],
    "parts": [
        *([TextPart(5)], [ToolUsePart(None, "n")], [UnknownPart(None)]),
        *([TextPart("x", provider_meta=meta)] for meta in (0, [], *BAD)),
        *([TextPart("x", extra=extra)] for extra in ([], {"text": "other"}, {"type": "other"}, *BAD)),
        *([part] for bad in BAD for part in (ToolUsePart("c", "n", bad), UnknownPart({"type": "new", **bad}))),
        *([UnknownPart(data)] for data in ({}, {"type": 5}, {"type": "text"})),
    ],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_wrong_field_is_rejected(field: str, value: Any) -> None:
    with pytest.raises(InvalidMessageError):
        wire.encode_body(Message(**{"role": "user", "parts": "x", field: value}))


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("trace_id", 5, "trace_id"),
        ("parts", (TextPart("x"), TextPart(5)), r"parts\[1\]\.text"),
        ("metadata", {"a": {"b": NAN}}, r"metadata\.a\.b"),
        ("metadata", {"a": {"b": {1, 2}}}, r"metadata\.a\.b"),
        ("provider_meta", {"a": [(1, 2)]}, r"provider_meta\.a"),
        ("participant", {"kind": "user", "id": "ann"}, "participant"),
        ("sources", [{"document_id": "d"}], "source"),
    ],
)
def test_the_error_names_the_place(field: str, value: Any, place: str) -> None:
    with pytest.raises(InvalidMessageError, match=place):
        wire.encode_body(Message(**{"role": "user", field: value}))


def test_other_values_are_not_stored() -> None:
    for value in (None, "hello", {"role": "user"}, b"", 5, Participant("user", "u")):
        with pytest.raises(InvalidMessageError, match="Message"):
            wire.encode_body(value)


def test_a_value_that_contains_itself_is_rejected() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(MessageTooLargeError):
        wire.encode_body(user("x", metadata=loop))


PLAIN = ("m", "user")
ROWS: list[list[Any]] = [
    *([], ["m"], ["", "user"], ["m", "god"], [5, "user"], [*PLAIN, None]),
    *([*PLAIN, [part]] for part in (["no number"], [], [1], [1, 5], [-1, "x"], [True, "x"])),
    *([*PLAIN, [], *rest] for rest in ([["user"]], [None, None, None], [None, None, {}, [5]])),
    [*PLAIN, [], None, None, {}, [], None, {}, {1: 2}],
    [*PLAIN, [], None, None, {}, [], None, {}, None, *range(100)],
]
TIMES = (0, 0.5, None, "1970-01-01T00:00:00", msgspec.msgpack.Ext(-1, b"x"))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", bytes(wire.PREFIX_BYTES), b"\xc1" * 20, b"{}" * 10),
        *(member(*PLAIN)[:-1], member(*PLAIN) + b"\xc0", member(*PLAIN)[: wire.PREFIX_BYTES]),
        *(member(*PLAIN, flags=wire.COMPRESSED), member(*PLAIN, flags=8)),
        bytes(wire.PREFIX_BYTES) + msgspec.msgpack.encode({"id": "m", "role": "user"}),
        bytes(wire.PREFIX_BYTES) + msgspec.msgpack.encode(dict.fromkeys("abcdefgh")),
        *(member(*row) for row in ROWS),
        *(member(*PLAIN, sequence=value) for value in ("1", None, True, 0, -1)),
        *(member(*PLAIN, timestamp=value) for value in TIMES),
    ],
    ids=lambda data: data.hex()[-48:],
)
def test_other_bytes_are_corrupt(data: bytes) -> None:
    """Alone and among other messages, which are read."""
    with pytest.raises(CorruptDataError):
        wire.decode_member(data)
    messages, errors = wire.decode_members([member(*PLAIN), data, member("n", "user")])
    assert [message.id for message in messages] == ["m", "n"]
    assert len(errors) == 1


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_a_page_is_read_in_order(count: int) -> None:
    """Plain and large messages, and those with free-form values."""
    with_author = user("x", participant=Participant("user", "u"))
    kinds = [user("x"), user("x" * 101_000), user("x", metadata={"a": 1}), with_author]
    members = [member_of(kinds[n % 4] if n % 50 < 4 else user(str(n)), n + 1, n) for n in range(count)]
    assert wire.decode_members(members) == ([wire.decode_member(one) for one in members], [])


@pytest.mark.parametrize("library", ["zstandard", "compression.zstd"])
def test_compressed_bodies_are_read_back(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pytest.importorskip(library)
    monkeypatch.setattr("redis_history.values._zstd._library", lambda: found)
    message = user("to be or not to be " * 100, id="é" * 200, metadata={"a": 1})
    body = wire.encode_body(message)
    smaller = wire.compress_body(body)
    assert smaller is not None
    assert len(smaller) < len(body) / 2
    member = wire.encode_member(1, 5, wire.FREE_FORM | wire.COMPRESSED, 0, smaller)
    assert wire.body_of(member) == body
    assert wire.decode_members([member, member_of(user("x"))])[0][0] == wire.decode_member(member)
    assert wire.encode_body(wire.decode_member(member)) == body
    assert wire.compress_body(wire.encode_body(user("x" * 300))) is None
    assert wire.compress_body(wire.encode_body(user(os.urandom(2000).hex()[:1100]))) is not None
    assert wire.compress_body(wire.encode_body(user("x", metadata={"a": os.urandom(2000)}))) is None


def bomb(says: int, blocks: int) -> bytes:
    """A frame of `blocks` blocks, each of which says that a zero is repeated 128 Ki times, and whose head says that it
    holds `says` bytes."""
    last = [(((128 << 10) << 3) | (1 << 1) | (number == blocks - 1)).to_bytes(3, "little") for number in range(blocks)]
    head = bytes.fromhex("28b52ffd") + bytes([0b10000000, 0x58]) + says.to_bytes(4, "little")
    return head + b"".join(block + b"\0" for block in last)


@pytest.mark.parametrize("library", ["zstandard", "compression.zstd"])
@pytest.mark.parametrize(
    "damage", ["cut", "longer", "too large", "no size", "empty", "more than it says", "less than it says", "two frames"]
)
def test_damaged_frames_are_corrupt(library: str, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pytest.importorskip(library)
    zstandard = pytest.importorskip("zstandard")
    monkeypatch.setattr("redis_history.values._zstd._library", lambda: found)
    body = wire.encode_body(user("x" * 5000, id="m"))
    smaller = wire.compress_body(body) or b""
    head = smaller[: smaller.index(bytes.fromhex("28b52ffd"))]
    frames = {
        "cut": smaller[:-3],
        "longer": smaller + b"\0",
        "too large": head + zstandard.compress(bytes(wire.MAX_REST_BYTES + 1)),
        "no size": head + zstandard.ZstdCompressor(write_content_size=False).compress(body[3:]),
        "empty": head + zstandard.compress(b"") + smaller[len(head) :],
        "more than it says": head + bomb(4_000_000, 4096),
        "less than it says": head + bomb(4_000_000, 1),
        "two frames": smaller + bomb(4_000_000, 4096),
    }
    tracemalloc.start()
    with pytest.raises(CorruptDataError):
        wire.decode_member(wire.encode_member(1, 5000, wire.COMPRESSED, 0, frames[damage]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * wire.MAX_REST_BYTES, "half a gigabyte is not made first"


def test_a_reader_without_zstd_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    member = wire.encode_member(
        1, 5000, wire.COMPRESSED, 0, wire.compress_body(wire.encode_body(user("x" * 5000))) or b""
    )
    monkeypatch.setattr("redis_history.values._zstd._library", _zstd._library.__wrapped__)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    for read in (wire.decode_member, wire.body_of, lambda member: wire.decode_members([member])):
        with pytest.raises(MissingExtraError, match=r"redis_history\[zstd\]"):
            read(member)


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
    structs[Message] = Message(role="user", parts="x", participant=structs[Participant])
    changed = structs[kind].__copy__()
    msgspec.structs.force_setattr(changed, name, (1.5,))  # a value that no field takes, and that MessagePack can encode
    structs[kind] = changed
    message = changed
    if kind is not Message:
        message = user(structs[TextPart])
        msgspec.structs.force_setattr(message, "participant", structs[Participant])  # a Message checks the kind itself
    with pytest.raises(InvalidMessageError):
        wire.encode_body(message)
