"""Caps on messages when they are written, and on hostile bytes before they are decoded."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.errors import CorruptDataError, InvalidMessageError, MessageTooLargeError
from redis_history.values import (
    Message,
    Participant,
    ReasoningPart,
    Source,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
    user,
)
from redis_history.values.wire import MAX_DEPTH, MAX_ID_BYTES, MAX_ITEMS, MAX_MESSAGE_BYTES, decode_member, encode_body
from tests.property.strategies import json_values
from tests.support.members import stored

#: Every place of a message that takes a value of any form.
PLACES: dict[str, Callable[[Any], Message]] = {
    "metadata": lambda value: user("x", metadata={"v": value}),
    "provider_meta": lambda value: user("x", provider_meta={"v": value}),
    "extra": lambda value: user("x", extra={"v": value}),
    "text meta": lambda value: user(TextPart("x", provider_meta={"v": value})),
    "text extra": lambda value: user(TextPart("x", extra={"v": value})),
    "reasoning meta": lambda value: user(ReasoningPart("x", provider_meta={"v": value})),
    "tool input": lambda value: user(ToolUsePart("c", "n", value)),
    "tool meta": lambda value: user(ToolUsePart("c", "n", {"a": 1}, {"v": value})),
    "tool extra": lambda value: user(ToolUsePart("c", "n", extra={"v": value})),
    "tool result": lambda value: user(ToolResultPart("c", value)),
    "unknown part": lambda value: user(UnknownPart({"type": "new", "v": value})),
    "participant extra": lambda value: user("x", participant=Participant("user", "u", extra={"v": value})),
    "source extra": lambda value: user("x", sources=[Source(extra={"v": value})]),
}
places = pytest.mark.parametrize("place", PLACES)


def nested(levels: int, *, maps: bool = False) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"k": value} if maps else [value]
    return value


@places
def test_depth(place: str) -> None:
    for maps in (True, False):
        message = PLACES[place](nested(MAX_DEPTH - 10, maps=maps))
        assert encode_body(stored(message)) == encode_body(message)
    for levels in (MAX_DEPTH + 10, 5000):
        with pytest.raises(MessageTooLargeError):
            encode_body(PLACES[place](nested(levels)))


#: Every place with a small cap, and one with the real cap.
capped = pytest.mark.parametrize(
    ("place", "most"), [*((place, 2_000) for place in PLACES), ("tool result", MAX_ITEMS)], indirect=["most"]
)


@pytest.fixture
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many items a message may have."""
    monkeypatch.setattr("redis_history.values._caps.MAX_ITEMS", request.param)
    return int(request.param)


@capped
def test_the_longest_list_and_map_that_are_accepted_can_be_read(place: str, most: int) -> None:
    longest_is_readable(lambda length: PLACES[place]([0] * length), most - 50, most + 1)
    half = most // 2  # a key is a value too
    longest_is_readable(lambda entries: PLACES[place](dict.fromkeys(map(str, range(entries)))), half - 50, half + 1)


def longest_is_readable(make: Callable[[int], Message], accepted: int, refused: int) -> None:
    """An acknowledged message must be readable, also near the cap."""
    message = make(accepted)
    encode_body(message)
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        try:
            encode_body(make(middle))
            accepted, message = middle, make(middle)
        except MessageTooLargeError:
            refused = middle
    stored(message)
    with pytest.raises(MessageTooLargeError):
        encode_body(make(refused))


def test_many_parts_are_readable_or_rejected() -> None:
    stored(user(*(TextPart(str(n)) for n in range(20_000))))
    with pytest.raises(MessageTooLargeError):
        encode_body(user(*(TextPart(str(n)) for n in range(40_000))))


def test_a_score_beyond_all_floats() -> None:
    with pytest.raises(InvalidMessageError, match="beyond 64 bits"):
        encode_body(user("x", sources=[Source(score=10**400)]))


@pytest.mark.full
def test_size_up_to_the_last_byte() -> None:
    spare = MAX_MESSAGE_BYTES - len(encode_body(user("x" * 1_000_000, id="m"))) + 1_000_000
    full = user("x" * spare, id="m")
    assert len(encode_body(full)) == MAX_MESSAGE_BYTES
    assert stored(full).text == full.text
    with pytest.raises(MessageTooLargeError, match=r"64,000,001 bytes.*64,000,000.*reference"):
        encode_body(user("x" * (spare + 1), id="m"))
    with pytest.raises(MessageTooLargeError, match="reference"):
        encode_body(user("x", extra={"newer": "x" * MAX_MESSAGE_BYTES}))


def test_id_length_is_in_bytes() -> None:
    for letter in "xé你👋":
        for fields in ({}, {"metadata": {"a": 1}}):
            fits = letter * (MAX_ID_BYTES // len(letter.encode()))
            assert stored(user("x", id=fits, **fields)).id == fits
            with pytest.raises(InvalidMessageError, match="id"):
                encode_body(user("x", id=fits + letter, **fields))


HEAD = b"\0\0\0\1\0\0\1\1"
ROW = b"\x01\xd7\xff" + bytes(8) + b"\xa1m\xa4user\x90\xc0\xc0"


def body_with(value: bytes) -> bytes:
    """A member with a value in `metadata`."""
    return HEAD + b"\x98" + ROW + b"\x81\xa1v" + value


def many(count: int, value: bytes, head: bytes = b"\xdd") -> bytes:
    """A list, or with `head` another container, that holds a value many times."""
    return head + count.to_bytes(4, "big") + value * count


EMPTY_MAPS = many(3_000_000, b"\x80")
LONG = (200_000).to_bytes(4, "big")
HOSTILE = {
    "5 MB of empty maps": HEAD + many(5_000_000, b"\x80"),
    "5 MB of anything": bytes(5_000_000),
    "many empty maps": body_with(EMPTY_MAPS),
    "many empty lists": body_with(many(3_900_000, b"\x90")),
    "many numbers": body_with(many(3_900_000, b"\x01")),
    "many small lists": body_with(many(900_000, b"\x93\x01\x02\x03")),
    "many small maps": body_with(many(900_000, b"\x81\x01\x80")),
    "a map of maps": body_with(many(150_000, b"\xcd\x01\x02\x80", head=b"\xdf")),
    "one list in another": body_with(b"\x91" * 3_000_000 + b"\x01"),
    "maps behind a long text": body_with(b"\x92\xdb" + LONG + b"x" * 200_000 + EMPTY_MAPS),
    "maps behind bytes": body_with(b"\x92\xc6" + LONG + bytes(200_000) + EMPTY_MAPS),
    "maps behind an extension": body_with(b"\x92\xc9" + LONG + b"\x05" + bytes(200_000) + EMPTY_MAPS),
    "a claim of 4 billion items": body_with(b"\xdd\xff\xff\xff\xff"),
    "a claim of 4 billion entries": body_with(b"\xdf\xff\xff\xff\xff"),
    "a claim of 4 billion letters": body_with(b"\xdb\xff\xff\xff\xff"),
    "claims inside claims": body_with(b"\xdd\x00\x0f\xff\xff" * 900),
}


def peak(work: Callable[[], object]) -> int:
    """The bytes of memory that some work takes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.proves("checked-first", "stored-text")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_take_no_memory(name: str) -> None:
    def read() -> None:
        with pytest.raises(CorruptDataError):
            decode_member(HOSTILE[name])

    assert peak(read) < 1_000_000


@pytest.mark.proves("checked-first")
def test_the_most_that_is_decoded_is_bounded() -> None:
    """Under the cap on items, the worst that bytes can do."""
    maps = b"".join(b"\x81%b\x80" % (b"\xce" + n.to_bytes(4, "big")) for n in range(30_000))
    data = body_with(b"\xdd" + (30_000).to_bytes(4, "big") + maps)
    assert peak(lambda: decode_member(data)) < 50_000_000


@pytest.mark.proves("checked-first")
@pytest.mark.parametrize("newer", [b"", b"\x90\xc0\x80\xc0\x01"])
@pytest.mark.parametrize("levels", [MAX_DEPTH * 2, 900, 50_000])
def test_depth_is_capped_on_reading_too(levels: int, newer: bytes) -> None:
    body = body_with(b"\x91" * levels + b"\x01") + newer
    if newer:
        body = body.replace(HEAD + b"\x98", HEAD + b"\x9d")
    with pytest.raises(CorruptDataError):
        decode_member(body)


@given(st.lists(json_values | st.binary(max_size=300) | st.text(max_size=300), max_size=8))
def test_large_messages_are_counted_rightly(values: list[Any]) -> None:
    """Each form of value is skipped exactly, so a message of few values is never rejected."""
    filler = ["\u4f60" * 33_000, b"\x80\xdf\xff" * 33_000, 2**63, -(2**31), -(2**15), -128, -1, 1.5, 2**16, 2**8, 255]
    message = user("x", metadata={"v": [*filler, *values, *filler]})
    assert stored(message).metadata == message.metadata


def test_extension_values_are_stepped_over() -> None:
    """`\\xdd` read at the wrong place claims billions of values."""
    for size in (0, 1, 2, 4, 8, 16, 17, 255, 256, 65_536):
        value = msgspec.msgpack.Ext(5, b"\xdd\xff\xff\xff\xff" * (size // 5) + b"\xdd" * (size % 5))
        message = user("x", metadata={"v": ["x" * MAX_ITEMS, value, 1]})
        assert stored(message).metadata == message.metadata
