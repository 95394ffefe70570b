"""Stored messages are read back unchanged; anything else is refused with a named error."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history.errors import CorruptDataError, RedisHistoryError
from redis_history.values import Message, Part, Participant, Source, wire
from redis_history.values.sizes import count_characters
from redis_history.values.times import to_microseconds
from tests.property.strategies import json_maps, messages, microseconds, texts
from tests.support.members import member_of, stored

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
sequences = st.integers(1, 2**32 - 1)


@pytest.mark.proves("read-back")
@given(messages(), sequences, microseconds)
def test_a_message_is_read_back_equal(message: Message, sequence: int, timestamp: int) -> None:
    found = wire.placed(message, sequence, timestamp)
    assert stored(message, sequence, timestamp) == found
    assert wire.from_map(wire.to_map(found)) == found


@given(messages(), sequences, microseconds)
def test_the_stored_form(message: Message, sequence: int, timestamp: int) -> None:
    """A member is a prefix and plain MessagePack. The body does not depend on the place. A message that was read has
    the same body: appending it again is a duplicate."""
    member = member_of(message, sequence, timestamp)
    number, time, message_id, role, *_ = msgspec.msgpack.decode(member[wire.PREFIX_BYTES :])
    assert (wire.characters_of(member), wire.body_of(member)) == (count_characters(message), wire.encode_body(message))
    assert (number, to_microseconds(time), message_id, role) == (sequence, timestamp, message.id, message.role)
    assert wire.encode_body(wire.decode_member(member)) == wire.encode_body(message)


@given(st.lists(messages(), min_size=1, max_size=5))
def test_a_page_is_read_as_its_messages_are(found: list[Message]) -> None:
    members = [member_of(message, sequence) for sequence, message in enumerate(found, 1)]
    assert wire.decode_members(members) == ([wire.decode_member(member) for member in members], [])


@given(messages(), sequences, sequences)
def test_members_of_one_time_sort_by_arrival(message: Message, one: int, other: int) -> None:
    assert (member_of(message, one, 7) < member_of(message, other, 7)) == (one < other)


@pytest.mark.proves("read-back")
@given(messages(), json_maps)
def test_an_edit_leaves_the_rest_untouched(message: Message, metadata: dict[str, Any]) -> None:
    """Read-modify-write: unknown fields and parts at every level survive any other change."""
    edited = stored(replace(stored(message), metadata=metadata))
    assert edited.metadata == metadata
    assert wire.encode_body(replace(edited, metadata=message.metadata)) == wire.encode_body(message)


def refused_by_name(data: bytes) -> None:
    """A foreign exception would pass through here, and fail the test."""
    with suppress(CorruptDataError):
        assert isinstance(wire.decode_member(data), Message)
    assert sum(map(len, wire.decode_members([data, data]))) == 2


@pytest.mark.proves("named-errors")
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    refused_by_name(data)


@given(messages(), st.data())
def test_damaged_members(message: Message, data: st.DataObject) -> None:
    member = bytearray(member_of(message))
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
_part_like = st.lists(st.integers(0, 7) | _anything, max_size=5)
_row = st.lists(_anything | st.lists(_part_like, max_size=2) | _part_like | st.just([]) | st.just({}), max_size=11)


@given(st.integers(0, 3), st.lists(_anything, max_size=2), _row)
def test_valid_messagepack_that_is_no_message(flags: int, place: list[Any], row: list[Any]) -> None:
    array = msgspec.msgpack.encode([*(place or [1, EPOCH]), "m", "user", *row])
    refused_by_name(bytes(wire.PREFIX_BYTES - 1) + bytes((flags,)) + array)


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
_STRUCTS = [*get_args(Part), Participant, Source]


def accepted_is_readable(make: Callable[[], Message]) -> None:
    """Refused with an error of this package, or stored so that it can be read."""
    try:
        message = make()
        wire.encode_body(message)
    except RedisHistoryError:
        return
    stored(message)


@given(st.dictionaries(st.sampled_from([*Message.__struct_fields__]), _wrong, min_size=1, max_size=3))
def test_wrong_fields_of_a_message(fields: dict[str, Any]) -> None:
    accepted_is_readable(lambda: Message(**{"role": "user", **fields}))


@pytest.mark.parametrize("kind", _STRUCTS)
@given(data=st.data())
def test_wrong_fields_of_what_is_inside(kind: Any, data: st.DataObject) -> None:
    optional = {"provider_meta", "extra"}
    fields = {
        name: data.draw(_wrong, name)
        for name in kind.__struct_fields__
        if name not in optional or data.draw(st.booleans())
    }
    inside = kind(**fields)
    where = {Participant: "participant", Source: "sources"}.get(kind, "parts")
    accepted_is_readable(lambda: Message(role="user", **{where: inside if where == "participant" else (inside,)}))
