"""Frameworks with an adapter send their models what they would have sent with their own memory."""

import json
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, HistoryStore
from tests.acceptance.framework_turns import FRAMEWORKS
from tests.support.servers import RealServer

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # run_sync of the OpenAI Agents SDK ends the asynchronous generators of its loop after each turn.
    pytest.mark.filterwarnings("ignore:asynchronous generator .* was scheduled after:ResourceWarning"),
]
TEXTS = ["What is 2 + 3?", "And again?", "And once more?", "Thanks, and again?"]


def without_a_store(name: str, texts: list[str], **options: Any) -> Any:
    """Return the input of the model with the framework's own memory."""
    with FRAMEWORKS[name](None, name) as turns:
        return plain(turns.take(texts, **options).requests)


def plain(requests: list[Any]) -> Any:
    return json.loads(json.dumps(requests))


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.full
def test_four_turns_with_and_without_a_stream_and_a_restart(name: str, server: RealServer, namespace: str) -> None:
    sent = []
    for texts in (TEXTS[:2], TEXTS[2:]):
        with HistoryStore(server.url, namespace=namespace) as store, FRAMEWORKS[name](store, name) as turns:
            sent += turns.take(texts).requests
    assert plain(sent) == without_a_store(name, TEXTS)
    assert len(sent) == 8


@pytest.mark.parametrize("name", ["openai_agents", "pydantic_ai", "agent_framework", "google_adk"])
def test_four_turns_with_an_asynchronous_store_and_a_restart(name: str, server: RealServer, namespace: str) -> None:
    """All as streams, where the synchronous interface needs a synchronous store, too."""
    options = {"only_streams": name != "openai_agents"}
    sent = []
    for texts in (TEXTS[:2], TEXTS[2:]):
        store = AsyncHistoryStore(server.url, namespace=namespace)
        with FRAMEWORKS[name](store, name) as turns:
            sent += turns.take(texts, **options).requests
            turns.run(store.aclose())
    assert plain(sent) == without_a_store(name, TEXTS, **options)
    assert len(sent) == 8
