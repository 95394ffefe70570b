"""The JSON form: lossless for every message, and complete for display."""

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given

from redis_history import Conversation, Message, Position, user
from redis_history.errors import InvalidMessageError, MessageConflictError
from redis_history.formats import json_form
from redis_history.values.events import BEGINNING, HistoryCompacted
from redis_history.values.wire import placed
from tests.property.strategies import messages


@given(messages())
def test_every_message_survives_json(message: Message) -> None:
    for one in (message, placed(message, 3, 1_500_000)):
        assert json_form.message_from_json(json.loads(orjson.dumps(json_form.message_to_json(one)))) == one
    assert json_form.load_messages(json_form.dump_messages([message])) == [message]


@given(messages())
def test_all_fields_of_any_message_are_json(message: Message) -> None:
    fields = orjson.loads(orjson.dumps(json_form.to_json(message)))
    derived = {"position", "text", "is_summary", "estimated_tokens"}
    assert fields.keys() == {*Message.__struct_fields__, *derived} - {"extra"}


def test_values_without_a_json_form_are_tagged() -> None:
    value = {"b": b"\xff", "tag": {"&time": 1}, "keys": {1: "x"}, "at": datetime(2026, 1, 31, 12, tzinfo=UTC)}
    tagged = {"b": {"&bytes": "/w=="}, "tag": {"&&time": 1}, "keys": {"&map": [[1, "x"]]}}
    tagged["at"] = {"&time": "2026-01-31T12:00:00Z"}
    assert json_form.to_json(user("x", metadata=value))["metadata"] == tagged
    for tag in (tagged["tag"], {"&map": [["&time", 1]]}):
        assert json_form.message_from_json({"role": "user", "metadata": {**tagged, "tag": tag}}).metadata == value


def test_conversations_and_events_have_all_their_fields() -> None:
    assert json_form.to_json(Conversation("c", user_id=1)).keys() == set(Conversation.__struct_fields__)
    summary = placed(user("s"), 2, 1)
    place = {"conversation_id": "c", "revision": 1, "cursor": BEGINNING}
    compacted = {"summary_id": "s", "summary": summary, "through": Position(1, 2), "count": 2}
    event = json_form.to_json(HistoryCompacted(**place, **compacted))
    assert (event["event"], event["cursor"], event["count"]) == ("history_compacted", str(BEGINNING), 2)
    assert event["summary"]["position"] == "1.2"


BAD_VALUES = [{"a": {"&bytes": "?"}}, {"a": {"&time": 5}}, {"a": {"&map": [1]}}, {"&map": [[[1], 2]]}]
BAD_MESSAGES = [{}, *({"role": "user", **bad} for bad in ({"role": "god"}, {"parts": 5}, {"trace_id": 5}))]


@pytest.mark.parametrize(
    "value", [5, "text", *BAD_MESSAGES, *({"role": "user", "metadata": bad} for bad in BAD_VALUES)], ids=str
)
def test_other_values_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidMessageError):
        json_form.message_from_json(value)
    with pytest.raises(InvalidMessageError):
        json_form.load_messages(json.dumps([value]))


def test_repeated_messages_are_merged_and_conflicts_rejected() -> None:
    one = user("x", id="m")
    assert json_form.messages_of([one, {"id": "m", "role": "user", "content": "x"}]) == [one]
    with pytest.raises(MessageConflictError) as caught:
        json_form.messages_of([one, user("y", id="m")])
    assert caught.value.message_id == "m"
