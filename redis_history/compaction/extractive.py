"""A summariser without a model: it picks the sentences that say most of what the others say.

Own code, because no library is fit: sumy installs eight packages beside nltk, wants an old setuptools, and needs data
that nltk downloads; summa and lexrank need scipy and are not maintained; pytextrank needs spaCy and a model. What is
needed beside, words and stems in any language, is in the search package.

Sentences are ranked by TextRank (Mihalcea and Tarau, 2004): a sentence counts as much as those that share its words,
weighted by how rare they are. Then they are taken from the best on as long as there is room, but none that mostly
repeats one that was taken, and are given in their order. Sentences of the previous summary compete with the new ones,
within their share of the room, so a rolling summary forgets slowly. What room they leave is for the tool calls: which,
how often, with what; so agents that only call tools are summarised too.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Final

from redis_history.compaction._checks import check_count
from redis_history.compaction.call_lines import call_lines
from redis_history.compaction.rendering import clipped, render, speaker
from redis_history.compaction.summaries import MAX_SUMMARY_TOKENS, Summarizer, summary_text
from redis_history.errors import SummaryError
from redis_history.model import Message, TextPart, ToolResultPart
from redis_history.model.message import content_text
from redis_history.search.languages import check_language, load_stemmer, stop_words
from redis_history.search.text import words
from redis_history.tokens import CHARACTERS_PER_TOKEN, message_tokens

__all__ = ["ExtractiveSummarizer", "extractive_summarizer", "within"]

#: After these a sentence ends; where blanks do not separate words, they need none behind them.
_ENDS: Final = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？])|\n+")
_LETTER: Final = re.compile(r"\w")
#: Characters of a sentence that are kept; a longer one is a listing or a program.
_LONGEST: Final = 300
#: Of a tool result only the beginning is looked at: what it means is said by the assistant afterwards.
_RESULT: Final = 1_000
#: The most sentences that are ranked: the newest. The work grows with how many share a word.
_SENTENCES: Final = 4_000
#: A word in more sentences than this says nothing about any of them.
_COMMON: Final = 200
_DAMPING: Final = 0.85
_ROUNDS: Final = 20
#: The share of words that two sentences have in common if one repeats the other.
_SAME: Final = 0.6
#: Fewer terms than this, the speaker's name among them, are "Yes." and "Thank you!".
_TELLING: Final = 4
#: Of the room, what the previous summary may keep.
_KEPT: Final = 0.5
#: Of what is replaced, the most that a summary may be.
_SHARE: Final = 0.5


#: Characters that a summary may have in any case.
_LEAST: Final = 16
#: Characters of data that are told if there is nothing else to be told.
_BEGINNING: Final = 60
#: Characters that must be left for tool calls to be told beside sentences.
_ROOM_FOR_CALLS: Final = 80


class _Sentence:
    __slots__ = ("earlier", "line", "place", "terms")

    def __init__(self, line: str, terms: frozenset[str], place: int, earlier: bool) -> None:
        self.line = line
        self.terms = terms
        self.place = place
        self.earlier = earlier


class ExtractiveSummarizer:
    """See `extractive_summarizer`."""

    def __init__(self, max_tokens: int, language: str) -> None:
        check_count(max_tokens, "max_tokens", 16)
        self._max_tokens = max_tokens
        self._most = MAX_SUMMARY_TOKENS  # with the words around it
        self._stop = stop_words(check_language(language))
        self._stem = load_stemmer(language)

    def __repr__(self) -> str:
        return f"<summarizer extractive, {self._max_tokens} tokens>"

    def __call__(self, messages: Sequence[Message], previous_summary: str | None = None) -> str:
        """The summary: lines of "Speaker: sentence", and behind them the tool calls. Raises SummaryError if there are
        neither."""
        sentences = self._sentences(messages, previous_summary)
        replaced = sum(map(message_tokens, messages)) + len(previous_summary or "") // CHARACTERS_PER_TOKEN
        room = CHARACTERS_PER_TOKEN * min(self._max_tokens, max(16, int(_SHARE * replaced)))
        # With the words around it, it must be shorter than what it replaces.
        most = CHARACTERS_PER_TOKEN * min(self._most, replaced - 1) - len(summary_text(""))
        room = max(_LEAST, min(room, most))
        scores = _ranked(sentences)
        order = sorted(range(len(sentences)), key=lambda index: -scores[index])
        chosen = _chosen([sentences[index] for index in order], room)
        lines = [one.line for one in sorted(chosen, key=lambda one: one.place)]
        left = room - sum(len(line) + 1 for line in lines)
        if left >= _ROOM_FOR_CALLS or not sentences:
            lines += call_lines(messages, left)
        if not lines and sentences:  # not even the best one fits
            return clipped(sentences[order[0]].line, room)
        if not lines:
            lines = _beginnings(messages, room)
        if not lines:
            raise SummaryError("there is no text in these messages to be summarised, and no tool call or result")
        return "\n".join(lines)

    def _sentences(self, messages: Sequence[Message], previous_summary: str | None) -> list[_Sentence]:
        found: list[_Sentence] = []
        seen: set[str] = set()
        lines = [(line, True) for line in (previous_summary or "").splitlines()]
        lines += [(line, False) for line in _lines(messages)][-_SENTENCES:]
        for line, earlier in lines:
            line = clipped(" ".join(line.split()), _LONGEST)
            if line and line not in seen:
                seen.add(line)
                found.append(_Sentence(line, self._terms(line), len(found), earlier))
        telling = [sentence for sentence in found if len(sentence.terms) >= _TELLING]
        return telling or found

    def _terms(self, line: str) -> frozenset[str]:
        found = (word for word in words(line) if word not in self._stop)
        return frozenset(found if self._stem is None else map(self._stem, found))


def extractive_summarizer(*, max_tokens: int = 400, language: str = "english") -> ExtractiveSummarizer:
    """A summariser that needs no model, no network and no further package: it picks sentences.

    Of tool calls it tells which, how often, and with what, as far as there is room beside the sentences. A summary has
    at most `max_tokens` (estimated), and at most half of what it replaces. `language` is one of search's,
    or "none"; endings of words are looked through with `pip install 'redis_history[search]'`. It keeps who said what,
    word for word; it understands nothing.
    """
    return ExtractiveSummarizer(max_tokens, language)


def within(summarizer: Summarizer, most: int) -> Summarizer:
    """The summariser for a summary of at most so many tokens, with the words around it, if it can be told that."""
    if not isinstance(summarizer, ExtractiveSummarizer):
        return summarizer
    bounded = copy(summarizer)
    bounded._most = most
    return bounded


def _beginnings(messages: Sequence[Message], room: int) -> list[str]:
    """Of messages without sentences and calls, such as results that are data: the beginnings of the newest."""
    lines: list[str] = []
    for message in reversed(messages):
        line = " ".join(render(message, 4 * _BEGINNING).split())[:_BEGINNING]
        if line and len(line) >= room:
            lines = lines or [clipped(line, room)]
            break
        if line:
            lines.append(line)
            room -= len(line) + 1
    return lines[::-1]


def _lines(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        who = speaker(message)
        for part in message.parts:
            if isinstance(part, TextPart):
                text = part.text
            elif isinstance(part, ToolResultPart):
                text = content_text(part.content)[:_RESULT]
                if text.lstrip()[:1] in ("{", "["):  # data, no sentences
                    continue
            else:
                continue
            for sentence in _ENDS.split(text):
                if sentence and _LETTER.search(sentence):
                    yield f"{who}: {sentence.strip()}"


def _ranked(sentences: Sequence[_Sentence]) -> list[float]:
    """How central each sentence is: TextRank over the words they share."""
    count = len(sentences)
    having: dict[str, list[int]] = defaultdict(list)
    for index, sentence in enumerate(sentences):
        for term in sentence.terms:
            having[term].append(index)
    links: list[dict[int, float]] = [defaultdict(float) for _ in range(count)]
    for shared in having.values():
        if 1 < len(shared) <= _COMMON:
            weight = math.log1p(count / len(shared))
            for at, one in enumerate(shared):
                for other in shared[at + 1 :]:
                    links[one][other] += weight
                    links[other][one] += weight
    # Long sentences share more words by being long.
    for one, neighbours in enumerate(links):
        for other in neighbours:
            size = math.log(2 + len(sentences[one].terms)) + math.log(2 + len(sentences[other].terms))
            neighbours[other] /= size
    totals = [sum(neighbours.values()) for neighbours in links]
    scores = [1.0] * count
    for _ in range(_ROUNDS):
        passed = [score / total if total else 0.0 for score, total in zip(scores, totals, strict=True)]
        scores = [
            1 - _DAMPING + _DAMPING * sum(weight * passed[other] for other, weight in neighbours.items())
            for neighbours in links
        ]
    return scores


def _chosen(ordered: Iterable[_Sentence], room: int) -> list[_Sentence]:
    """The best that fit and do not repeat each other."""
    chosen: list[_Sentence] = []
    left, left_for_earlier = room, int(_KEPT * room)
    for sentence in ordered:
        size = len(sentence.line) + 1
        if size > left or (sentence.earlier and size > left_for_earlier):
            continue
        if any(_repeats(sentence, other) for other in chosen):
            continue
        chosen.append(sentence)
        left -= size
        if sentence.earlier:
            left_for_earlier -= size
    return chosen


def _repeats(one: _Sentence, other: _Sentence) -> bool:
    shared = len(one.terms & other.terms)
    return (
        bool(shared)
        and shared >= _SAME * min(len(one.terms), len(other.terms))
        and min(len(one.terms), len(other.terms)) > 2
    )
