"""Hits and scores depend on the messages that are searched, and on nothing else in the index."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import HistoryStore, Message, Participant, user
from tests.conftest import Servers
from tests.support.servers import RealServer

_WORDS = [
    "tea",
    "teas",
    "harbor",
    "lighthouse",
    "getUserName",
    "user",
    "ann",
    "bob",
    "go",
    "going",
    "2023-05-07",
    "电影院",
]
_TEXTS = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=12).map(" ".join)
_WRITERS = st.sampled_from([None, Participant("user", "u-1", "Ann"), Participant("agent", "bob")])
_TALKS = st.lists(st.tuples(_TEXTS, _WRITERS), min_size=1, max_size=12)
_QUERIES = st.lists(st.sampled_from([*_WORDS, '"tea harbor"', '"go ann"', "user*"]), min_size=1, max_size=5).map(
    " ".join
)
_FILTERS: Any = st.sampled_from([{}, {"roles": ["user"]}, {"participant_ids": ["bob"]}, {"archived": False}])


def _messages(talk: list[tuple[str, Participant | None]]) -> list[Message]:
    return [user(text, id=str(n), participant=writer, timestamp=1e9 + n) for n, (text, writer) in enumerate(talk)]


def _hits(store: HistoryStore, query: str, filters: dict[str, Any]) -> list[tuple[str, float]]:
    found = store.search("c", query, limit=50, token_cap=None, **filters)
    return [(hit.message.id, hit.score) for hit in found]


@pytest.mark.proves("found")
@given(_TALKS, st.lists(_TALKS, max_size=3), _QUERIES, _FILTERS)
def test_a_conversation_is_searched_alike_wherever_it_is_stored(
    server: RealServer,
    server_of: Servers,
    talk: list[tuple[str, Participant | None]],
    others: list[list[tuple[str, Participant | None]]],
    query: str,
    filters: dict[str, Any],
) -> None:
    namespaces = [f"alike-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    try:
        with HistoryStore(server.url, namespace=namespaces[0], search="require") as alone:
            alone.append_many("c", _messages(talk))
            expected = _hits(alone, query, filters)
        with HistoryStore(server.url, namespace=namespaces[1], search="require") as crowded:
            for number, other in enumerate(others):
                crowded.append_many(f"other-{number}", _messages(other * 3))
            crowded.append_many("c", _messages(talk[::-1]))
            crowded.delete_conversation("c")
            for number, _ in enumerate(others[1:]):
                crowded.delete_conversation(f"other-{number}")
            crowded.append_many("c", _messages(talk))
            assert _hits(crowded, query, filters) == expected
        with HistoryStore(server.url, namespace=namespaces[1], search="off") as silent:
            assert _hits(silent, query, filters) == expected
    finally:
        for namespace in namespaces:
            server_of.clear(namespace)
