"""Stored messages are read, and written back unchanged."""

import msgspec
import pytest
from msgspec.structs import replace

from redis_history.formats.json_form import dump_messages, load_messages
from redis_history.values import text
from redis_history.values.wire import PREFIX_BYTES, body_of, decode_member, encode_body
from tests.golden.samples import SAMPLES, UNKNOWN, expected, read
from tests.support.members import stored


def test_the_golden_file_is_complete() -> None:
    assert list(read()) == [*SAMPLES, *UNKNOWN]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_read(name: str) -> None:
    assert decode_member(read()[name]) == expected()[name]


@pytest.mark.parametrize("name", [*SAMPLES, *UNKNOWN])
def test_messages_are_written_unchanged(name: str) -> None:
    """Other bytes for the same message would turn a retry across an upgrade into a conflict."""
    member = read()[name]
    message = decode_member(member)
    assert encode_body(message) == body_of(member)
    [read_as_json] = load_messages(dump_messages([message]))
    assert read_as_json == message
    assert encode_body(read_as_json) == body_of(member)


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_fields_and_parts_survive_an_edit(name: str) -> None:
    message = decode_member(read()[name])
    edited = replace(message, trace_id="edited", parts=(*message.parts, text("!")))
    back = replace(stored(edited), trace_id=message.trace_id, parts=message.parts)
    assert encode_body(back) == body_of(read()[name])


def test_fields_that_a_newer_version_appended_are_ignored() -> None:
    member = read()["fields"]
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(member[PREFIX_BYTES:]), None, {"language": "en"}, [1]])
    assert decode_member(member[:PREFIX_BYTES] + longer) == decode_member(member)
