"""Each version reads the bytes of the others and writes them back unchanged."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from redis_history.model import Message, Participant, TextPart, UnknownPart, text
from redis_history.model.wire import decode_member, encode_body, encode_member
from tests.golden.samples import VERSION_1, VERSION_2, expected, read


def stored(message: Message) -> Message:
    return decode_member(encode_member(1, 0, encode_body(message)))


@pytest.mark.parametrize("name", VERSION_1)
def test_version_1_is_read(name: str) -> None:
    assert decode_member(read(1)[name]) == expected()[name]


@pytest.mark.parametrize("name", VERSION_1)
def test_version_1_is_written_unchanged(name: str) -> None:
    """Other bytes for the same message would turn a retry across an upgrade into a conflict."""
    assert read(1)[name].endswith(encode_body(VERSION_1[name]))


def test_the_golden_files_are_complete() -> None:
    assert list(read(1)) == list(VERSION_1)
    assert list(read(2)) == list(VERSION_2)


@pytest.mark.parametrize("name", VERSION_2)
def test_version_2_is_read_and_written_back_unchanged(name: str) -> None:
    message = decode_member(read(2)[name])
    assert message.schema_version == 2
    assert msgspec.msgpack.decode(encode_body(message)) == VERSION_2[name]


@pytest.mark.parametrize("name", VERSION_2)
def test_version_2_survives_an_edit(name: str) -> None:
    edited = replace(
        decode_member(read(2)[name]), trace_id="edited", parts=(*decode_member(read(2)[name]).parts, text("!"))
    )
    fields = dict(VERSION_2[name])
    fields |= {"trace_id": "edited", "parts": [*fields.get("parts", ()), {"type": "text", "text": "!"}]}
    assert msgspec.msgpack.decode(encode_body(edited)) == fields
    assert msgspec.msgpack.decode(encode_body(stored(edited))) == fields


def test_known_fields_of_version_2_have_their_names() -> None:
    message = decode_member(read(2)["everything"])
    assert message.parts == (
        UnknownPart(data={"type": "poll", "options": ["a", "b"]}),
        TextPart("t", extra={"lang": "de"}),
    )
    assert message.text == "t"
    assert message.participant == Participant("user", "u", extra={"team": "red"})
    assert message.sources[0].extra == {"rank": 1}
    assert message.extra is not None
    assert list(message.extra) == ["reactions", "edited_at"]
