"""How often search finds the turn that answers a question, over conversations in the form of LoCoMo.

One message a turn, "speaker: text", all conversations of a file in one namespace, and the question as it is.
"""

import json
import re
from typing import Any

import pytest

from redis_history import HistoryStore, Message, user
from tests.support.transcripts import FILES, opened

DEPTH = 10


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


@pytest.fixture(
    scope="module", params=[path for path in FILES if path.name.startswith("locomo")], ids=lambda path: path.name
)
def conversations(request: pytest.FixtureRequest) -> list[Conversation]:
    with opened(request.param) as file:
        return [Conversation(raw) for raw in json.load(file)]


@pytest.mark.proves("recall")
@pytest.mark.parametrize(
    ("kind", "stemmed", "least"),
    [("redis", True, 0.70), ("plain", True, 0.70), ("plain", False, 0.65)],
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
    """With the token cap that users get by default."""
    if not stemmed:
        monkeypatch.setattr("redis_history.store.search.ranking.load_stemmer", lambda language: None)
    elif kind == "plain":
        pytest.importorskip("Stemmer")
    recalls, ranks = [], []
    with HistoryStore(server_of(kind).url, namespace=namespace) as store:
        assert store.capabilities.search == ("server" if kind == "redis" else "client")
        for one in conversations:
            store.append_many(one.name, [user(message.text, id=str(message.sequence)) for message in one.messages])
            for question, gold in one.questions:
                found = [int(hit.message.id) for hit in store.search(one.name, question, limit=DEPTH)]
                recalls.append(len(gold & set(found)) / len(gold))
                ranks.append(next((1 / n for n, sequence in enumerate(found, 1) if sequence in gold), 0.0))
    recall, mrr = sum(recalls) / len(recalls), sum(ranks) / len(ranks)
    print(f"recall@{DEPTH} {recall:.3f}, MRR {mrr:.3f}")
    assert recall >= least
    assert mrr >= 0.50
