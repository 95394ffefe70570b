"""docs/examples/room_agent.py: capture, the search tool and a channel's aliases, in memory and on a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from redis_history import Conversation, HistoryStore
from tests.docs.pages import DOCS
from tests.support.servers import Start

EXAMPLES = DOCS / "examples"
sys.path.insert(0, str(EXAMPLES))
example = import_module("room_agent")


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, own_server: Start) -> Iterator[HistoryStore]:
    url = "memory://" if request.param == "memory" else own_server().url
    with HistoryStore(url, namespace="rooms") as store:
        store.create_conversation(Conversation("c", metadata=example.CHANNEL))
        yield store


def say(agent: Any, number: int, who: str, text: str) -> list[Any] | None:
    event = {"id": str(number), "user": who, "text": text}
    answer: list[Any] | None = agent.hears(example.received(example.CHANNEL, event), "c")
    return answer


def test_it_answers_to_its_names_in_the_channel_and_records_all(store: HistoryStore) -> None:
    agent = example.RoomAgent(store)
    assert say(agent, 1, "U1", "The hotel is the Harbour Inn.") is None
    assert say(agent, 2, "U2", "U9 and the Travel Bot are not mentioned here.") is None
    assert say(agent, 3, "U2", "<@U1> what was the hotel?") is None
    answer = say(agent, 4, "U2", "<@U9> what was the hotel?")
    assert answer is not None
    assert "Harbour Inn" in answer[-1].text
    live = store.get("c")
    assert [message.id for message in live[:4]] == ["C7-1", "C7-2", "C7-3", "C7-4"]
    assert [message.role for message in live[4:]] == ["assistant", "tool", "assistant"]
    assert {message.participant for message in live[4:]} == {example.GUIDE}
    assert live[4].tool_uses[0].name == "conversation_search"
    say(agent, 1, "U1", "The hotel is the Harbour Inn.")
    assert len(store.get("c")) == len(live)


def test_its_names_are_those_of_the_channel(store: HistoryStore) -> None:
    other = {**example.CHANNEL, "members": [{"id": "U7", "display_name": "Helper", "agent_id": "guide"}]}
    store.update_conversation("c", metadata=other)
    agent = example.RoomAgent(store)
    assert say(agent, 1, "U1", "<@U9> what was the hotel?") is None
    assert say(agent, 2, "U1", "<@U7> what was the hotel?") is not None
