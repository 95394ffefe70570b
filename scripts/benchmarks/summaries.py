"""What the extractive summarizer keeps: questions of LoCoMo that a summary alone can answer, beside two baselines.

    python -m scripts.benchmarks.summaries locomo10.json

A summary is made of each whole conversation, with 10% of its tokens and with 500. A question counts by its evidence
turns (categories 1 to 4):

- *words*: the share of the content words of its evidence turns that the summary has.
- *answerable*: the share of its evidence turns of which one line of the summary has at least 60% of the key words. Key
  words are those of the turn that are also in the question or the answer, without names of speakers.

`lead-3` takes the first three turns of each session, first turns first, and then the fourth and so on, while they fit.
`TextRank` is sumy's, of sentences with their speakers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from redis_history import Message, Participant, extractive_summarizer, user
from redis_history.store.search.query import stop_words
from redis_history.store.search.words import load_stemmer, words
from redis_history.values.sizes import CHARACTERS_PER_TOKEN

Summarize = Callable[[list[list[Message]], int], str]


def sessions_of(conversation: dict[str, Any]) -> list[list[dict[str, Any]]]:
    names = [name for name in conversation if re.fullmatch(r"session_\d+", name)]
    return [conversation[name] for name in sorted(names, key=lambda name: int(name.rpartition("_")[2]))]


def content_words(text: str) -> set[str]:
    stem = load_stemmer("english") or (lambda word: word)
    return {stem(word) for word in words(text) if word not in stop_words("english")}


def ours(sessions: list[list[Message]], tokens: int) -> str:
    return extractive_summarizer(max_tokens=tokens)([message for one in sessions for message in one])


def lead(sessions: list[list[Message]], tokens: int) -> str:
    turns = [
        (place, session, line_of(message))
        for session, messages in enumerate(sessions)
        for place, message in enumerate(messages)
    ]
    turns.sort(key=lambda turn: (turn[0] // 3, turn[0], turn[1]))
    return "\n".join(fitting([line for _, _, line in turns], tokens))


def textrank(sessions: list[list[Message]], tokens: int) -> str:
    lines = [
        line_of(message, sentence)
        for messages in sessions
        for message in messages
        for sentence in re.split(r"(?<=[.!?…])\s+", message.text)
        if sentence.strip()
    ]
    return "\n".join(fitting(by_textrank(tuple(lines)), tokens))


@cache
def by_textrank(lines: tuple[str, ...]) -> list[str]:
    """The lines, best first. Takes half a minute for a conversation."""
    from sumy.models.dom import ObjectDocumentModel, Paragraph, Sentence
    from sumy.summarizers.text_rank import TextRankSummarizer

    class Tokenizer:
        def to_words(self, text: str) -> list[str]:
            return words(text)

    sentences = [Sentence(line, Tokenizer()) for line in lines]
    summarizer = TextRankSummarizer(load_stemmer("english"))
    summarizer.stop_words = stop_words("english")
    ratings = summarizer.rate_sentences(ObjectDocumentModel([Paragraph(sentences)]))
    return [str(sentence) for sentence in sorted(sentences, key=lambda sentence: -ratings[sentence])]


def line_of(message: Message, text: str | None = None) -> str:
    assert message.participant is not None
    return f"{message.participant.display_name}: {' '.join((text or message.text).split())}"


def fitting(lines: Sequence[str], tokens: int) -> list[str]:
    left, found = tokens * CHARACTERS_PER_TOKEN, []
    for line in lines:
        if len(line) < left:
            found.append(line)
            left -= len(line) + 1
    return found


METHODS: dict[str, Summarize] = {"extractive": ours, "lead-3": lead, "TextRank (sumy)": textrank}


def score(summary: str, data: dict[str, Any], turns: dict[str, dict[str, Any]]) -> tuple[list[float], list[float]]:
    """For each question: its share of words, and of evidence turns that a line answers."""
    every, lines = content_words(summary), [content_words(line) for line in summary.splitlines()]
    names = content_words(" ".join({turn["speaker"] for turn in turns.values()}))
    covered, answered = [], []
    for question in data["qa"]:
        evidence = [turns[one] for one in question["evidence"] if one in turns]
        if question["category"] == 5 or not evidence:
            continue
        asked = content_words(f"{question['question']} {question['answer']}") - names
        found = [content_words(turn["text"]) - names for turn in evidence]
        keys = [asked & one for one in found]
        wanted = set().union(*found)
        if not wanted or not any(keys):
            continue
        covered.append(len(wanted & every) / len(wanted))
        hits = [max((len(key & line) for line in lines), default=0) >= 0.6 * len(key) for key in keys if key]
        answered.append(sum(hits) / len(hits))
    return covered, answered


def measure(method: Summarize, every: list[dict[str, Any]], tokens: int | None) -> tuple[float, float, float]:
    covered: list[float] = []
    answered: list[float] = []
    started = time.perf_counter()
    for data in every:
        sessions = sessions_of(data["conversation"])
        turns = {turn["dia_id"]: turn for session in sessions for turn in session}
        messages = [
            [user(turn["text"], participant=Participant("user", turn["speaker"], turn["speaker"])) for turn in session]
            for session in sessions
        ]
        size = sum(len(line_of(message)) for session in messages for message in session) // CHARACTERS_PER_TOKEN
        for found, more in zip(
            (covered, answered), score(method(messages, tokens or size // 10), data, turns), strict=True
        ):
            found += more
    return sum(covered) / len(covered), sum(answered) / len(answered), time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="LoCoMo: a JSON list of conversations, also gzipped")
    parser.add_argument("--only", help="numbers of conversations, such as 0,1 (default: all)")
    options = parser.parse_args()
    raw = options.data.read_bytes()
    every = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    if options.only:
        every = [every[int(number)] for number in options.only.split(",")]
    table = Table("summary", "words, 10%", "answerable, 10%", "words, 500", "answerable, 500", "seconds")
    for name, method in METHODS.items():
        large, small = measure(method, every, None), measure(method, every, 500)
        figures = [f"{value:.3f}" for value in (*large[:2], *small[:2])]
        table.add_row(name, *figures, f"{large[2] + small[2]:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
