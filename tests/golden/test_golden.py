"""Stored messages are read, and written back unchanged."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from redis_history.backends.redis.form1 import read_v1
from redis_history.json_form import dump_messages, load_messages
from redis_history.model import Participant, TextPart, UnknownPart, text
from redis_history.model.wire import body_of, decode_member, encode_body
from tests.golden.samples import NEWER, SAMPLES, expected, read
from tests.support.members import stored


def test_the_golden_files_are_complete() -> None:
    assert list(read(1)) == list(SAMPLES)
    assert list(read(2)) == [*SAMPLES, *NEWER]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_read(name: str) -> None:
    assert read_v1(read(1)[name]) == expected(1)[name]
    assert decode_member(read(2)[name]) == expected(2)[name]


@pytest.mark.parametrize("name", [*SAMPLES, *NEWER])
def test_messages_are_written_unchanged(name: str) -> None:
    """Other bytes for the same message would turn a retry across an upgrade into a conflict."""
    member = read(2)[name]
    message = decode_member(member)
    assert encode_body(message) == body_of(member)
    [read_as_json] = load_messages(dump_messages([message]))
    assert read_as_json == message
    assert encode_body(read_as_json) == body_of(member)


@pytest.mark.parametrize("name", NEWER)
def test_what_a_newer_version_added_survives_an_edit(name: str) -> None:
    message = decode_member(read(2)[name])
    edited = replace(message, trace_id="edited", parts=(*message.parts, text("!")))
    back = replace(stored(edited), trace_id=message.trace_id, parts=message.parts)
    assert encode_body(back) == body_of(read(2)[name])


def test_known_fields_of_a_newer_version_have_their_names() -> None:
    message = decode_member(read(2)["everything"])
    assert message.parts == (UnknownPart(data={"type": "&9", "fields": ["a"]}), TextPart("t", extra={"lang": "de"}))
    assert message.text == "t"
    assert message.participant == Participant("user", "u", extra={"&4": "red"})
    assert message.sources[0].extra == {"rank": 1}
    assert message.extra is not None
    assert list(message.extra) == ["reactions", "&13"]
