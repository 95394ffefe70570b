"""Known items: does a search find the one message that a question quotes?

    python scripts/benchmarks/known_items.py FOLDER [--questions 300] [--embedder random|default|MODULE:NAME]

FOLDER has transcripts in the formats of mini-swe-agent, SWE-agent and Claude Code (the set "agents"), tau-bench and
tau2-bench ("airline") and KdConv ("chinese"), as `.jsonl.gz`. Nothing of them is kept.

A question is made from one message, chosen at random, and from a piece of its text that no other message of the same
conversation contains, whatever its case. The kinds take turns:

    token    a code, path, identifier or number, inside a sentence of common words or alone
    parts    the parts of an identifier in CamelCase or snake_case, as separate words, if no other message has them all
    words    eight words in a row (ten characters in Chinese), inside a question

MODULE:NAME is a class of embedders, such as one with a transformer, whose objects have a `dimension`.

Each set is one namespace; each question is asked in its conversation. Printed are the share of messages among the first
ten hits and the mean reciprocal rank, by kind.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from redis_history import HistoryStore, Message, assistant, system, tool, tool_result, tool_use, user
from tests.support.servers import RealServer

SETS = {
    "agents": ("miniswe_", "sweagent_", "claude_code_"),
    "airline": ("taubench_", "tau2_"),
    "chinese": ("kdconv_",),
}
_CARRIERS = (
    "{}", "Where did {} come up?", "What was it about {}?", "Which step mentioned {}?", "Find the result with {}",
)  # fmt: skip
_CHINESE_CARRIERS = ("{}", "我们什么时候说过{}?", "你还记得{}吗?", "关于{}之前是怎么说的")
_TOKEN = re.compile(r"[A-Za-z0-9][\w./:@-]{3,58}[A-Za-z0-9]")
_RARE = re.compile(r"\d|[_/@]|[a-z][A-Z]")
_IDENTIFIER = re.compile(r"\b[A-Za-z]+(?:_[A-Za-z]+)+\b|\b[A-Za-z]?[a-z]+(?:[A-Z][a-z]+)+\b")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_HAN = re.compile(r"[\u4e00-\u9fff]{10,}")


class Question(NamedTuple):
    kind: str
    conversation: str
    text: str
    message_id: str


def conversations(folder: Path, name: str) -> dict[str, list[tuple[Message, str]]]:
    """The messages of a set with their text, by conversation."""
    found: dict[str, list[tuple[Message, str]]] = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl.gz")):
        if not path.name.startswith(SETS[name]):
            continue
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file):
                record = json.loads(line)
                # Dialogues of 20 turns are too short to search, so a domain is one conversation.
                where = record["domain"] if name == "chinese" else f"{path.name.split('.')[0]}-{number}"
                for raw in _raw_messages(record):
                    if (made := _message(raw, f"{where}-{len(found[where])}")) is not None:
                        found[where].append(made)
    return dict(found)


def _raw_messages(record: dict[str, Any]) -> list[dict[str, Any]]:
    if "entries" in record:
        return [entry["message"] for entry in record["entries"] if "message" in entry]
    if "dialogue" in record:
        return [{"role": "user", "content": turn["message"]} for turn in record["dialogue"]["messages"]]
    traj = record.get("traj", record)
    return list(traj if isinstance(traj, list) else traj.get("messages") or traj["history"])


def _message(raw: dict[str, Any], message_id: str) -> tuple[Message, str] | None:
    content = raw.get("content") or ""
    blocks = content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
    calls = [one.get("function", one) for one in raw.get("tool_calls") or ()]
    calls += [{"name": one["name"], "arguments": one["input"]} for one in blocks if one.get("type") == "tool_use"]
    texts = [str(one.get("text") or one.get("content") or "") for one in blocks]
    text = "\n".join(filter(None, texts))
    arguments = [one["arguments"] if isinstance(one["arguments"], dict) else _parsed(one["arguments"]) for one in calls]
    whole = "\n".join((text, *(str(value) for each in arguments for value in each.values())))
    if not whole.strip():
        return None
    parts = [
        tool_use(f"{message_id}-{n}", call["name"], each)
        for n, (call, each) in enumerate(zip(calls, arguments, strict=True))
    ]
    if raw["role"] == "tool" or any(one.get("type") == "tool_result" for one in blocks):
        return tool(tool_result(message_id, text), id=message_id), whole
    make = {"user": user, "system": system}.get(raw["role"], assistant)
    return make(*([text] if text else []), *parts, id=message_id), whole


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return {"arguments": text}
    return found if isinstance(found, dict) else {"arguments": found}


def questions(found: dict[str, list[tuple[Message, str]]], count: int, *, chinese: bool) -> list[Question]:
    chance = random.Random(20260101)
    lowered = {where: [text.lower() for _, text in those] for where, those in found.items()}
    candidates = [(where, n) for where, those in found.items() for n in range(len(those))]
    chance.shuffle(candidates)
    kinds = ("words",) if chinese else ("token", "parts", "words")
    asked: list[Question] = []
    for where, n in candidates * 3:
        kind = kinds[len(asked) % len(kinds)]
        message, text = found[where][n]
        others = [one for at, one in enumerate(lowered[where]) if at != n]
        query = next(_queries(kind, text, others, chance, chinese=chinese), None)
        if query is not None:
            asked.append(Question(kind, where, query, message.id))
        if len(asked) == count:
            break
    return asked


def _queries(kind: str, text: str, others: Sequence[str], chance: random.Random, *, chinese: bool) -> Iterator[str]:
    def unique(piece: str) -> bool:
        return not any(piece.lower() in other for other in others)

    if chinese:
        pieces = [run[at : at + 10] for run in _HAN.findall(text) for at in range(len(run) - 9)]
    elif kind == "token":
        pieces = sorted({one for one in _TOKEN.findall(text) if _RARE.search(one)})
    elif kind == "parts":
        pieces = sorted(set(_IDENTIFIER.findall(text)))
    else:
        written = re.findall(r"\S+", text)
        pieces = [" ".join(written[at : at + 8]) for at in range(len(written) - 7)]
    chance.shuffle(pieces)
    carrier = chance.choice(_CHINESE_CARRIERS if chinese else _CARRIERS)
    for piece in pieces[:20]:
        if kind == "parts":
            parts = [part.lower() for part in _PART.findall(piece)]
            if len(parts) > 1 and not any(all(part in other for part in parts) for other in others):
                yield carrier.format(" ".join(parts))
        elif unique(re.sub(r"\s+", " ", piece)) and unique(piece):
            yield carrier.format(piece)


def ask(store: HistoryStore, asked: Sequence[Question]) -> dict[str, tuple[float, float, int]]:
    """recall@10, mean reciprocal rank and number of questions, by kind and for all."""
    ranks: dict[str, list[float]] = defaultdict(list)
    for one in asked:
        hits = [hit.message.id for hit in store.search(one.conversation, one.text, limit=10, token_cap=None)]
        rank = 1 / (hits.index(one.message_id) + 1) if one.message_id in hits else 0.0
        for kind in (one.kind, "all"):
            ranks[kind].append(rank)
    return {
        kind: (sum(map(bool, those)) / len(those), sum(those) / len(those), len(those)) for kind, those in ranks.items()
    }


def random_vectors(texts: Sequence[str]) -> list[list[float]]:
    """A vector for each text, the same for the same text, that means nothing."""
    return [list(map(random.Random(text).gauss, [0.0] * 256, [1.0] * 256)) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--server", choices=("redis", "plain"), default="redis")
    parser.add_argument("--embedder")
    chosen = parser.parse_args()
    options: dict[str, Any] = {}
    if chosen.embedder is not None:
        module, _, kind = chosen.embedder.partition(":")
        function = getattr(import_module(module), kind)() if kind else {"random": random_vectors}.get(module, module)
        options = {"embedder": function, "vectors": function.dimension if kind else 256}
    server = RealServer(chosen.server).start()
    try:
        for name in SETS:
            found = conversations(chosen.folder, name)
            asked = questions(found, chosen.questions, chinese=name == "chinese")
            with HistoryStore(server.url, namespace=f"known-{name}", **options) as store:
                for where, those in found.items():
                    for start in range(0, len(those), 200):
                        store.append_many(where, [message for message, _ in those[start : start + 200]])
                for kind, (recall, rank, count) in sorted(ask(store, asked).items()):
                    print(f"{name:8} {kind:6} {count:4}  recall@10 {recall:.3f}  MRR {rank:.3f}", flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
