"""Messages and parts as values: how they are made, what they tell, and what they refuse."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from redis_history.errors import InvalidInputError, InvalidMessageError, InvalidTimestampError
from redis_history.model import (
    SCHEMA_VERSION,
    AttachmentPart,
    Message,
    Participant,
    Position,
    ReasoningPart,
    Source,
    TextPart,
    ToolUsePart,
    UnknownPart,
    assistant,
    system,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.model.helpers import MessageFields
from redis_history.model.wire import placed
from tests.property.strategies import messages, microseconds

HELLO = (TextPart(text="hello"),)


@pytest.mark.parametrize(
    ("make", "role"), [(user, "user"), (assistant, "assistant"), (system, "system"), (tool, "tool")]
)
def test_a_helper_for_each_role(make: Any, role: str) -> None:
    message = make("hello", id="m1", scope="dm")
    assert message == Message(role=role, parts=HELLO, id="m1", scope="dm")  # type: ignore[arg-type]
    assert make().parts == ()


@pytest.mark.parametrize("make", [user, assistant, system, tool])
def test_a_misspelt_field_is_an_error_that_names_the_right_one(make: Any) -> None:
    with pytest.raises(TypeError) as caught:
        make("hello", particpant=Participant("user", "bob"))
    words = str(caught.value).replace("?", " ").split()
    assert {f"{make.__name__}()", "particpant:", "participant"} <= set(words)


@pytest.mark.parametrize("name", ["role", "parts", "sequence", "schema_version", "colour"])
def test_helpers_take_only_the_fields_that_callers_set(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        user("hello", **{name: None})


def test_helpers_have_every_field_of_a_message_but_those_of_the_store() -> None:
    own = {"role", "parts", "sequence", "schema_version"}
    assert MessageFields.__optional_keys__ == set(Message.__struct_fields__) - own


def test_helpers_make_an_id_for_none() -> None:
    first, second = user("hello", id=None), user("hello", id=None)
    assert uuid.UUID(first.id).version == 7
    assert first.id != second.id


@pytest.mark.parametrize(
    "content",
    [
        ("hello",),
        (text("hello"),),
        (["hello"],),
        ((text("hello"),),),
        ({"type": "text", "text": "hello"},),
        ([{"type": "text", "text": "hello"}],),
        (part for part in [iter(["hello"])]),
    ],
    ids=["string", "part", "list", "tuple", "dict", "dicts", "iterator"],
)
def test_forms_of_content(content: Any) -> None:
    assert user(*content).parts == HELLO


@pytest.mark.parametrize(
    "parts", ["hello", HELLO[0], list(HELLO), HELLO, ["hello"], {"type": "text", "text": "hello"}, iter(HELLO)]
)
def test_forms_of_parts(parts: Any) -> None:
    assert Message(role="user", parts=parts).parts == HELLO


def test_contents_in_their_order() -> None:
    image = AttachmentPart(name="a.png", modality="image")
    message = assistant("one", [text("two"), image], tool_use("c", "n"), {"type": "reasoning", "text": "three"})
    assert message.parts == (text("one"), text("two"), image, ToolUsePart("c", "n", {}), ReasoningPart("three"))


def test_what_a_message_is_without_being_told() -> None:
    message = Message(role="user")
    assert uuid.UUID(message.id).version == 7
    assert message.id != Message(role="user").id
    assert (message.parts, message.sources, message.metadata, message.provider_meta) == ((), (), {}, {})
    assert (message.participant, message.timestamp, message.sequence, message.position) == (None, None, None, None)
    assert message.schema_version == SCHEMA_VERSION
    assert message.metadata is not Message(role="user").metadata


def test_a_message_cannot_be_changed_but_replaced() -> None:
    message = user("hello", id="m1")
    with pytest.raises(AttributeError):
        message.id = "m2"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        message.parts[0].text = "other"  # type: ignore[misc, union-attr]
    other = replace(message, parts="other")
    assert (other.id, other.text, message.text) == ("m1", "other", "hello")


def test_text_is_of_text_and_results() -> None:
    message = tool(
        "one",
        ReasoningPart("not this"),
        tool_use("c", "nor this"),
        "",
        tool_result("c", "two"),
        tool_result("c", [{"type": "text", "text": "three"}, {"type": "image", "url": "nor this"}, "four"]),
        tool_result("c", {"text": "five"}),
        tool_result("c", 6),
        tool_result("c", [{"text": None}, None, 7]),
        UnknownPart({"type": "new", "text": "nor this"}),
    )
    assert message.text == "one\ntwo\nthree\nfour\nfive"
    assert user().text == ""


def test_tool_parts_by_kind() -> None:
    use, result = tool_use("c", "n", {"a": 1}), tool_result("c", "r", True, name="n")
    message = assistant("x", use, result, use)
    assert message.tool_uses == (use, use)
    assert message.tool_results == (result,)
    assert (use.input, tool_use("c", "n").input, tool_use("c", "n", []).input) == ({"a": 1}, {}, [])
    assert (result.content, result.is_error, result.name) == ("r", True, "n")


def test_summary_and_mentions() -> None:
    assert user("x", metadata={"is_summary": True}).is_summary
    assert not user("x", metadata={"is_summary": "no"}).is_summary
    assert not user("x").is_summary
    assert user("x", metadata={"mentions": ["ann", "bob"]}).mentions == ["ann", "bob"]
    assert user("x").mentions == user("x", metadata={"mentions": None}).mentions == []


@pytest.mark.parametrize(("mentions", "ids"), [(5, []), ("bob", ["bob"])])
def test_mentions_of_strange_metadata(mentions: Any, ids: list[str]) -> None:
    """Metadata is free, and other programs wrote some of it: reading it never fails."""
    assert user("x", metadata={"mentions": mentions}).mentions in (ids, [])


@pytest.mark.parametrize(
    "timestamp",
    [
        datetime(2026, 1, 31, 12, 0, 0, 250_000),
        datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC),
        datetime(2026, 1, 31, 14, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=2, minutes=30))),
        "2026-01-31T12:00:00.250Z",
        "2026-01-31T12:00:00.250000+00:00",
        "20260131T070000.250-0500",
        1769860800.25,
    ],
    ids=str,
)
def test_forms_of_timestamps(timestamp: Any) -> None:
    message = user("x", timestamp=timestamp)
    assert message.timestamp == datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
    assert message.timestamp.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "timestamp",
    ["yesterday", "", float("nan"), float("inf"), True, [], b"2026", 1e18, 10**400, 1e305, "0001-01-01"],
    ids=lambda value: repr(value)[:20],
)
def test_a_timestamp_that_is_none(timestamp: Any) -> None:
    with pytest.raises(InvalidTimestampError):
        user("x", timestamp=timestamp)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"role": "human"}, "'human'.*user, assistant, system, tool"),
        ({"role": None}, "user, assistant"),
        ({"role": ["user"]}, "user, assistant"),
        ({"scope": "room"}, "'room'.*channel, dm, thread"),
        ({"scope": ["dm"]}, "channel, dm, thread"),
        ({"id": ""}, "non-empty string"),
        ({"id": 5}, "non-empty string"),
        ({"id": None}, "non-empty string"),
        ({"parts": None}, "parts are text or parts, not NoneType"),
        ({"parts": 5}, "parts.*int"),
        ({"parts": [None]}, r"text\(\), tool_use\(\)"),
        ({"parts": b"hello"}, r"text\(\), tool_use\(\)"),
        ({"parts": [{"type": "text"}]}, r"text\(\), tool_use\(\)"),
        ({"parts": [{"type": "text", "text": 5}]}, r"text\(\), tool_use\(\)"),
        ({"parts": [{"type": "hologram"}]}, "part"),
        ({"parts": [{"text": "no type"}]}, "part"),
        ({"parts": [Participant("user", "u")]}, "part"),
        ({"sources": None}, "sources"),
        ({"sources": 5}, "sources"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_no_message_is(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidMessageError, match=says):
        Message(**{"role": "user", **fields})


def test_sources_as_a_list() -> None:
    assert user("x", sources=[Source("d")]).sources == (Source("d"),)


def test_positions_sort_by_time_then_by_arrival() -> None:
    ordered = [Position(-5, 9), Position(0, 0), Position(0, 1), Position(0, 10), Position(10, 1)]
    backwards = ordered[::-1]
    assert sorted(backwards) == ordered
    message = placed(user("x"), 7, 1_500_000)
    assert message.position == Position(1_500_000, 7)


@given(microseconds)
def test_a_position_there_and_back(timestamp: int) -> None:
    for position in (Position(timestamp, 0), Position(timestamp, 2**53 - 1)):
        assert Position.parse(str(position)) == position


@given(messages())
def test_a_message_that_was_placed_has_its_position(message: Message) -> None:
    assert placed(message, 3, -7).position == Position(-7, 3)
    assert replace(placed(message, 3, -7), sequence=None, timestamp=message.timestamp) == message


@pytest.mark.parametrize(
    "wrong", ["", "1", "1.", ".1", "1.1.1", "a.b", "1.-1", "+1.1", "1.1\n", " 1.1", "1" * 17 + ".1", "١.٢"]
)
def test_text_that_is_no_position(wrong: str) -> None:
    with pytest.raises(InvalidInputError, match="position"):
        Position.parse(wrong)


@pytest.mark.parametrize("wrong", [None, 5, b"1.1", (1, 1)])
def test_what_is_not_even_text_is_no_position(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="position"):
        Position.parse(wrong)
