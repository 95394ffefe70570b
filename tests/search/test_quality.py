"""How often search finds the turn that answers a question, over conversations in the form of LoCoMo.

One message a turn, "speaker: text"; all conversations of a file in one namespace; the question as it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from redis_history import HistoryStore, Message, user
from redis_history.search.query import parse_query
from redis_history.search.ranking import Scan
from tests.search.index import Index
from tests.support.transcripts import FILES, opened

DEPTH = 10

Search = Callable[[str, str], list[int]]


class Conversation:
    def __init__(self, raw: dict[str, Any]) -> None:
        said = raw["conversation"]
        sessions = sorted((key for key in said if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:]))
        turns = [turn for session in sessions for turn in said[session]]
        self.name = raw["sample_id"]
        self.messages = [
            Message(role="user", parts=(f"{turn['speaker']}: {turn['text']}",), sequence=n)
            for n, turn in enumerate(turns, 1)
        ]
        place = {turn["dia_id"]: n for n, turn in enumerate(turns, 1)}
        self.questions: list[tuple[str, set[int]]] = []
        for asked in raw["qa"]:
            named = {f"D{int(a)}:{int(b)}" for e in asked["evidence"] for a, b in re.findall(r"D:?(\d+):(\d+)", e)}
            if asked["category"] != 5 and (gold := {place[one] for one in named if one in place}):
                self.questions.append((asked["question"], gold))


def measured(conversations: list[Conversation], search: Search) -> tuple[float, float]:
    """recall@10 and MRR@10 over their questions."""
    recalls, ranks = [], []
    for conversation in conversations:
        for question, gold in conversation.questions:
            found = search(conversation.name, question)[:DEPTH]
            recalls.append(len(gold & set(found)) / len(gold))
            ranks.append(next((1 / n for n, sequence in enumerate(found, 1) if sequence in gold), 0.0))
    return sum(recalls) / len(recalls), sum(ranks) / len(ranks)


@pytest.fixture(
    scope="module", params=[path for path in FILES if path.name.startswith("locomo")], ids=lambda path: path.name
)
def conversations(request: pytest.FixtureRequest) -> list[Conversation]:
    with opened(request.param) as file:
        return [Conversation(raw) for raw in json.load(file)]


def test_recall_with_an_index(index: Index, conversations: list[Conversation]) -> None:
    for one in conversations:
        index.add(one.name, one.messages)
    recall, mrr = measured(conversations, lambda name, question: index.sequences([name], question))
    assert recall >= 0.70
    assert mrr >= 0.50


@pytest.mark.proves("recall")
@pytest.mark.parametrize(
    ("kind", "stemmed", "least"),
    [("redis", True, 0.63), ("plain", True, 0.60), ("plain", False, 0.55)],
    ids=["with an index", "with the extra", "with the core alone"],
)
def test_recall_of_a_store(
    server_of: Any,
    namespace: str,
    conversations: list[Conversation],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    stemmed: bool,
    least: float,
) -> None:
    """As users call it, by the token cap they get if they say nothing."""
    if kind == "plain":
        if stemmed:
            pytest.importorskip("Stemmer")
        else:
            monkeypatch.setattr("redis_history.search.ranking.load_stemmer", lambda language: None)
    with HistoryStore(server_of(kind).url, namespace=namespace) as store:
        assert store.capabilities.search == ("server" if kind == "redis" else "client")
        for one in conversations:
            store.append_many(one.name, [user(message.text, id=str(message.sequence)) for message in one.messages])

        def search(name: str, question: str) -> list[int]:
            return [int(hit.message.id) for hit in store.search(name, question, limit=DEPTH)]

        recall, mrr = measured(conversations, search)
    print(f"recall@{DEPTH} {recall:.3f}, MRR {mrr:.3f}")
    assert recall >= least
    assert mrr >= 0.50


@pytest.mark.parametrize(("stemmed", "least"), [(True, 0.70), (False, 0.65)])
def test_recall_without_an_index(
    conversations: list[Conversation], monkeypatch: pytest.MonkeyPatch, stemmed: bool, least: float
) -> None:
    if stemmed:
        pytest.importorskip("Stemmer")
    else:
        monkeypatch.setattr("redis_history.search.ranking.load_stemmer", lambda language: None)
    messages = {one.name: one.messages for one in conversations}

    def search(name: str, question: str) -> list[int]:
        scan = Scan(parse_query(question))
        scan.add(messages[name])
        return [found.sequence for found in scan.ranked()]

    recall, mrr = measured(conversations, search)
    assert recall >= least
    assert mrr >= 0.50
