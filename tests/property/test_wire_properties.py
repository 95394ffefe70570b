"""Stored messages are read back unchanged; anything else is refused with a named error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history.errors import CorruptDataError, RedisHistoryError
from redis_history.model import (
    AttachmentPart,
    Message,
    Participant,
    ReasoningPart,
    Source,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.model.wire import body_digest, decode_member, encode_body, encode_member, placed
from tests.property.strategies import json_maps, messages, microseconds, texts

HEAD = 19
sequences = st.integers(1, 2**53)


def stored(message: Message, sequence: int = 1, timestamp: int = 0) -> Message:
    return decode_member(encode_member(sequence, timestamp, encode_body(message)))


@pytest.mark.proves("read-back")
@given(messages(), sequences, microseconds)
def test_a_message_is_read_back_equal(message: Message, sequence: int, timestamp: int) -> None:
    assert stored(message, sequence, timestamp) == placed(message, sequence, timestamp)


@given(messages(), sequences, microseconds)
def test_the_stored_form(message: Message, sequence: int, timestamp: int) -> None:
    """A member is plain MessagePack: place and body. The body does not depend on the place, and begins with the id,
    because scripts read it there. A message that was read has the same body: appending it again is a duplicate."""
    body = encode_body(message)
    member = encode_member(sequence, timestamp, body)
    fields = msgspec.msgpack.decode(body)
    assert member[HEAD:] == body
    assert msgspec.msgpack.decode(member) == [sequence, timestamp, fields]
    assert encode_body(placed(message, sequence, timestamp)) == body
    assert not {"timestamp", "sequence", "&extra", "extra"} & fields.keys()
    assert body[3 if body[0] == 0xDE else 1 :].startswith(b"\xa2id" + msgspec.msgpack.encode(message.id))
    again = encode_body(stored(message))
    assert msgspec.msgpack.decode(again) == fields
    assert next(iter(msgspec.msgpack.decode(again))) == "id"
    assert body_digest(again) == body_digest(body)


@given(messages(), st.tuples(sequences, microseconds), st.tuples(sequences, microseconds))
def test_members_of_one_time_sort_by_arrival(message: Message, one: tuple[int, int], other: tuple[int, int]) -> None:
    body = encode_body(message)
    same_time = [encode_member(sequence, 7, body) for sequence in (one[0], other[0])]
    assert (same_time[0] < same_time[1]) == (one[0] < other[0])


@pytest.mark.proves("read-back")
@given(messages(), json_maps)
def test_an_edit_leaves_the_rest_untouched(message: Message, metadata: dict[str, Any]) -> None:
    """Read-modify-write: unknown fields and parts at every level survive any other change."""
    before = msgspec.msgpack.decode(encode_body(message))
    after = msgspec.msgpack.decode(encode_body(replace(stored(message), metadata=metadata)))
    before.pop("metadata", None)
    assert after.pop("metadata", {}) == metadata
    assert after == before


def refused_by_name(data: bytes) -> None:
    """A foreign exception would pass through here, and fail the test."""
    with suppress(CorruptDataError):
        assert isinstance(decode_member(data), Message)


@pytest.mark.proves("named-errors")
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    refused_by_name(data)


@given(messages(), st.data())
def test_damaged_members(message: Message, data: st.DataObject) -> None:
    member = bytearray(encode_member(1, 0, encode_body(message)))
    for _ in range(data.draw(st.integers(1, 3))):
        member[data.draw(st.integers(0, len(member) - 1))] = data.draw(st.integers(0, 255))
    refused_by_name(bytes(member))
    refused_by_name(bytes(member[: data.draw(st.integers(0, len(member) - 1))]))


_anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.integers(0, 9) | st.binary(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
_names = st.sampled_from(
    ["role", "parts", "id", "participant", "scope", "metadata", "sources", "schema_version", "&extra", "timestamp", "x"]
)
_part_like = st.dictionaries(st.sampled_from(["type", "text", "id", "name", "input", "data", "content"]), _anything)


@given(st.tuples(_anything, _anything, st.dictionaries(_names, _anything | st.lists(_part_like, max_size=2))))
def test_valid_messagepack_that_is_no_message(member: tuple[Any, Any, dict[str, Any]]) -> None:
    refused_by_name(msgspec.msgpack.encode([member[0], member[1], {"role": "user", "id": "m", **member[2]}]))


class Foreign:
    """An unknown type."""


_wrong: st.SearchStrategy[Any] = st.one_of(
    _anything,
    st.builds(Foreign),
    st.just("\ud800"),
    st.just(2**70),
    st.sets(st.integers(), max_size=2),
    st.tuples(st.integers()),
    st.just(msgspec.Raw(b"\xc1")),
    st.dictionaries(texts, st.builds(Foreign) | st.just(2**70) | st.just("\udfff") | st.just(float("nan")), max_size=2),
)
_STRUCTS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (TextPart, ("text",)),
    (ReasoningPart, ("text", "signature")),
    (ToolUsePart, ("id", "name", "input")),
    (ToolResultPart, ("tool_use_id", "content", "is_error", "name")),
    (AttachmentPart, ("id", "name", "size", "modality")),
    (UnknownPart, ("data",)),
    (Participant, ("kind", "id", "display_name")),
    (Source, ("document_id", "chunk", "score")),
]


def accepted_is_readable(make: Callable[[], Message]) -> None:
    """Refused with an error of this package, or stored so that it can be read."""
    try:
        body = encode_body(make())
    except RedisHistoryError:
        return
    decode_member(encode_member(1, 0, body))


@given(st.dictionaries(st.sampled_from([*Message.__struct_fields__]), _wrong, min_size=1, max_size=3))
def test_wrong_fields_of_a_message(fields: dict[str, Any]) -> None:
    accepted_is_readable(lambda: Message(**{"role": "user", **fields}))


@pytest.mark.parametrize(("kind", "names"), _STRUCTS, ids=lambda value: getattr(value, "__name__", ""))
@given(data=st.data())
def test_wrong_fields_of_what_is_inside(kind: Callable[..., Any], names: tuple[str, ...], data: st.DataObject) -> None:
    optional = (
        () if kind is UnknownPart else ("provider_meta", "extra") if kind.__name__.endswith("Part") else ("extra",)
    )
    fields = {name: data.draw(_wrong, name) for name in names}
    fields |= {name: data.draw(_wrong, name) for name in optional if data.draw(st.booleans())}
    inside = kind(**fields)
    where = {Participant: "participant", Source: "sources"}.get(kind, "parts")
    accepted_is_readable(lambda: Message(role="user", **{where: inside if where == "participant" else (inside,)}))
