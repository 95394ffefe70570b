"""Messages and parts: helpers, forms of content, properties and rejected values."""

import copy
import json
import pickle
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from redis_history.errors import InvalidInputError, InvalidMessageError, InvalidTimestampError
from redis_history.values import (
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
from redis_history.values.helpers import MessageFields
from redis_history.values.wire import placed
from tests.property.strategies import messages, microseconds

HELLO = (TextPart(text="hello"),)


@pytest.mark.parametrize(
    ("make", "role"), [(user, "user"), (assistant, "assistant"), (system, "system"), (tool, "tool")]
)
def test_a_helper_for_each_role(make: Any, role: str) -> None:
    message = make("hello", id="m1", scope="dm")
    assert message == Message(role=role, parts=HELLO, id="m1", scope="dm")
    assert make().parts == ()


def test_helpers_take_only_the_fields_that_callers_set() -> None:
    for make in (user, assistant, system, tool):
        with pytest.raises(TypeError, match=rf"{make.__name__}\(\).*particpant.*participant"):
            make("hello", particpant=Participant("user", "bob"))
    for name in ("role", "parts", "sequence", "color"):
        with pytest.raises(TypeError, match=name):
            user("hello", **{name: None})


def test_helpers_have_every_field_that_callers_set() -> None:
    own = {"role", "parts", "sequence"}
    assert MessageFields.__optional_keys__ == set(Message.__struct_fields__) - own


def test_forms_of_content() -> None:
    as_dict = {"type": "text", "text": "hello"}
    for content in ("hello", HELLO[0], list(HELLO), HELLO, ["hello"], as_dict, [as_dict]):
        assert user(content).parts == Message(role="user", parts=content).parts == HELLO
    assert user(iter(HELLO)).parts == Message(role="user", parts=iter(HELLO)).parts == HELLO


def test_contents_keep_their_order() -> None:
    image = AttachmentPart(name="a.png", modality="image")
    message = assistant("one", [text("two"), image], tool_use("c", "n"), {"type": "reasoning", "text": "three"})
    assert message.parts == (text("one"), text("two"), image, ToolUsePart("c", "n", {}), ReasoningPart("three"))


def test_defaults_of_a_message() -> None:
    message = Message(role="user")
    for other in (Message(role="user"), user("hello", id=None)):
        assert uuid.UUID(other.id).version == 7
        assert message.id != other.id
    assert (message.parts, message.sources, message.metadata, message.provider_meta) == ((), (), {}, {})
    assert (message.participant, message.timestamp, message.sequence, message.position) == (None, None, None, None)
    assert message.schema_version == SCHEMA_VERSION


def test_messages_are_immutable() -> None:
    message = user("hello", id="m1")
    with pytest.raises(AttributeError):
        message.id = "m2"
    with pytest.raises(AttributeError):
        message.parts[0].text = "other"
    with pytest.raises(TypeError, match="immutable"):
        message.metadata["a"] = 1
    other = replace(message, parts=(text("other"),), metadata={"a": 1})
    assert (other.id, other.text, message.text, other.metadata) == ("m1", "other", "hello", {"a": 1})


def test_copies_of_messages_are_equal() -> None:
    message = user("hello", participant=Participant("user", "ann"), sources=[Source("d")], timestamp=5)
    for other in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message)), replace(message)):
        assert other == message
        assert type(other) is Message
    assert json.dumps(message.metadata) == "{}"


def test_text_joins_texts_and_tool_results() -> None:
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
    for strange in (None, 5, {}):
        assert user("x").mentions == user("x", metadata={"mentions": strange}).mentions == []


NOON = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
ZONE = timezone(timedelta(hours=2, minutes=30))
TEXTS = ["2026-01-31T12:00:00.250Z", "2026-01-31T12:00:00.250000+00:00", "20260131T070000.250-0500"]


@pytest.mark.parametrize(
    "timestamp", [NOON, NOON.replace(tzinfo=None), NOON.astimezone(ZONE), *TEXTS, 1769860800.25], ids=str
)
def test_forms_of_timestamps(timestamp: Any) -> None:
    message = user("x", timestamp=timestamp)
    assert message.timestamp == NOON
    assert message.timestamp.utcoffset() == timedelta(0)
    with pytest.raises(InvalidTimestampError):
        user("x", timestamp="yesterday")


WRONG: dict[str, list[Any]] = {
    "role": ["human", None, ["user"]],
    "scope": ["room", ["dm"]],
    "status": ["done"],
    "id": ["", 5, None],
    "parts": [
        *(None, 5, [None], b"hello", [{"text": "no type"}], [{"type": "hologram"}]),
        *([value] for value in ({"type": "text"}, {"type": "text", "text": 5}, Participant("user", "u"))),
    ],
    "sources": [None, 5, "text", {}, [None], ["a document"], [{"document_id": "d"}]],
    "participant": ["ann", {"kind": "user", "id": "ann"}, Participant("ann", "user"), Participant(["user"], "ann")],  # type: ignore[arg-type]
    "metadata": ["x", None, ["k"], 5],
    "provider_meta": ["x", None, 5],
    "trace_id": [5, b"x"],
    "extra": ["x", 5],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_rejected_by_name(field: str) -> None:
    for value in WRONG[field]:
        with pytest.raises(InvalidMessageError, match=field.removesuffix("s")):
            Message(**{"role": "user", field: value})


def test_what_is_no_part_is_shown_as_it_is_written() -> None:
    with pytest.raises(InvalidMessageError, match=r"^5 is"):
        user(5)  # type: ignore[arg-type]


def test_positions_sort_by_time_then_by_arrival() -> None:
    ordered = [Position(-5, 9), Position(0, 0), Position(0, 1), Position(0, 10), Position(10, 1)]
    backwards = ordered[::-1]
    assert sorted(backwards) == ordered


@given(microseconds)
def test_positions_survive_their_text_form(timestamp: int) -> None:
    for position in (Position(timestamp, 0), Position(timestamp, 2**53 - 1)):
        assert Position.parse(str(position)) == position


@given(messages())
def test_a_placed_message_has_its_position(message: Message) -> None:
    assert placed(message, 3, -7).position == Position(-7, 3)
    assert replace(placed(message, 3, -7), sequence=None, timestamp=message.timestamp) == message


def test_other_texts_are_not_positions() -> None:
    texts = ["", "1", "1.", ".1", "1.1.1", "a.b", "1.-1", "+1.1", "1.1\n", " 1.1", "1" * 17 + ".1", "١.٢"]
    for wrong in (*texts, None, 5, b"1.1", (1, 1)):
        with pytest.raises(InvalidInputError, match="position"):
            Position.parse(wrong)
