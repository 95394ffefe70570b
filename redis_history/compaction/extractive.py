"""An extractive summariser: it selects the most central sentences, without a model.

No library fits: sumy installs nltk and eight more packages, requires an old setuptools and downloads data; summa and
lexrank need scipy and are not maintained; pytextrank needs spaCy and a model. Words and stems for all languages come
from the search package.

Sentences are ranked by TextRank (Mihalcea and Tarau, 2004): the rank of a sentence depends on the ranks of the
sentences that share words with it, and rare words count more. The best sentences are selected while they fit, except
those that mostly repeat a selected one. They are returned in their original order. Sentences of the previous summary
compete with new ones for a share of the space, so a rolling summary forgets slowly. The remaining space lists tool
calls (tool, number of calls, inputs), so that agents which only call tools also get a summary.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Final, NamedTuple

from redis_history._validation import check_integer
from redis_history._words import check_language, load_stemmer, stop_words, words
from redis_history.compaction.rendering import call_lines, clipped, said, speaker
from redis_history.compaction.summaries import MAX_SUMMARY_TOKENS, Summarizer, summary_text
from redis_history.errors import SummaryError
from redis_history.model import Message, TextPart, ToolResultPart
from redis_history.model.message import content_text
from redis_history.tokens import CHARACTERS_PER_TOKEN, message_tokens

#: The ends of sentences. Chinese and Japanese full stops need no following space.
_ENDS: Final = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？])|\n+")
_LETTER: Final = re.compile(r"\w")
#: Maximum characters of a sentence. Longer ones are usually listings or programs.
_LONGEST: Final = 300
#: Characters read from a tool result. The assistant usually states the important parts afterwards.
_RESULT: Final = 1_000
#: Characters read from one text, or from the previous summary.
_LONGEST_TEXT: Final = 200_000
#: At most this number of the newest sentences is ranked, because the time grows with the sentences that share a word.
_SENTENCES: Final = 4_000
#: A word that occurs in more sentences than this is ignored.
_COMMON: Final = 200
_DAMPING: Final = 0.85
_ROUNDS: Final = 20
#: Two sentences with this share of common words are considered repetitions.
_SAME: Final = 0.6
#: Sentences with fewer terms (including the speaker's name) are ignored, such as "Yes." and "Thank you!".
_TELLING: Final = 4
#: Maximum share of the new summary for sentences of the previous one.
_KEPT: Final = 0.5
#: Maximum size of a summary, as a share of the replaced messages.
_SHARE: Final = 0.5

#: Characters that a summary may always have.
_LEAST: Final = 16
#: Characters quoted from each data message without sentences and tool calls.
_BEGINNING: Final = 60
#: Tool calls are only added after sentences if at least this number of characters is left.
_ROOM_FOR_CALLS: Final = 80


class _Sentence(NamedTuple):
    line: str
    terms: frozenset[str]
    place: int
    earlier: bool


class ExtractiveSummarizer:
    """See `extractive_summarizer`."""

    def __init__(self, max_tokens: int, language: str) -> None:
        check_integer(max_tokens, "max_tokens", 16)
        self._max_tokens = max_tokens
        self._most = MAX_SUMMARY_TOKENS  # including the frame of the summary
        self._stop = stop_words(check_language(language))
        self._stem = load_stemmer(language)

    def __repr__(self) -> str:
        return f"<summarizer extractive, {self._max_tokens} tokens>"

    def __call__(self, messages: Sequence[Message], previous_summary: str | None = None) -> str:
        """Summarise: lines of "Speaker: sentence", followed by the tool calls. Raises SummaryError if there is nothing
        to summarise."""
        sentences = self._sentences(messages, previous_summary)
        replaced = sum(map(message_tokens, messages)) + len(previous_summary or "") // CHARACTERS_PER_TOKEN
        room = CHARACTERS_PER_TOKEN * min(self._max_tokens, max(16, int(_SHARE * replaced)))
        # Including its frame, the summary must be shorter than the messages it replaces.
        most = CHARACTERS_PER_TOKEN * min(self._most, replaced - 1) - len(summary_text(""))
        room = max(_LEAST, min(room, most))
        scores = _ranked(sentences)
        order = sorted(range(len(sentences)), key=lambda index: -scores[index])
        chosen = _chosen([sentences[index] for index in order], room)
        lines = [one.line for one in sorted(chosen, key=lambda one: one.place)]
        left = room - sum(len(line) + 1 for line in lines)
        if left >= _ROOM_FOR_CALLS or not sentences:
            lines += call_lines(messages, left)
        if not lines and sentences:  # not even the best sentence fits
            return clipped(sentences[order[0]].line, room)
        if not lines:
            lines = _beginnings(messages, room)
        if not lines:
            raise SummaryError("nothing to summarise: the messages have no text, tool calls or tool results")
        return "\n".join(lines)

    def _sentences(self, messages: Sequence[Message], previous_summary: str | None) -> list[_Sentence]:
        found: list[_Sentence] = []
        seen: set[str] = set()
        earlier_lines = (previous_summary or "")[-_LONGEST_TEXT:].splitlines()[-_SENTENCES:]
        lines = [(line, True) for line in earlier_lines]
        newest = list(islice(_newest_lines(messages), _SENTENCES))
        lines += [(line, False) for line in reversed(newest)]
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
    """Create a summariser that selects sentences. It needs no model, network or additional package.

    It quotes sentences word for word with their speakers, and does not rephrase. If space is left, it adds the tool
    calls: tool, number of calls, inputs. A summary has at most `max_tokens` tokens (estimated, at least 16), and at
    most half the tokens of the messages it replaces. `language` is a language of search, or "none". Stemming needs
    `pip install 'redis_history[search]'`.

    Raises ConfigurationError for an invalid option. The summariser raises SummaryError if there is nothing to
    summarise.
    """
    return ExtractiveSummarizer(max_tokens, language)


def within(summarizer: Summarizer, most: int) -> Summarizer:
    """The summariser, limited to `most` tokens including the frame of the summary. Only an ExtractiveSummarizer can be
    limited; others are returned unchanged."""
    if not isinstance(summarizer, ExtractiveSummarizer):
        return summarizer
    bounded = copy(summarizer)
    bounded._most = most
    return bounded


def _beginnings(messages: Sequence[Message], room: int) -> list[str]:
    """The beginnings of the newest messages, for messages without sentences and tool calls, such as data."""
    lines: list[str] = []
    for message in reversed(messages):
        line = said(message, _BEGINNING)
        if line and len(line) >= room:
            lines = lines or [clipped(line, room)]
            break
        if line:
            lines.append(line)
            room -= len(line) + 1
    return lines[::-1]


def _newest_lines(messages: Sequence[Message]) -> Iterator[str]:
    """The sentences with their speakers, newest first."""
    for message in reversed(messages):
        who = speaker(message)
        for part in reversed(message.parts):
            if isinstance(part, TextPart):
                text = clipped(part.text, _LONGEST_TEXT)
            elif isinstance(part, ToolResultPart):
                text = content_text(part.content)[:_RESULT]
                if text.lstrip()[:1] in ("{", "["):  # JSON, not sentences
                    continue
            else:
                continue
            for sentence in reversed(_ENDS.split(text)):
                if sentence and _LETTER.search(sentence):
                    yield f"{who}: {sentence.strip()}"


def _ranked(sentences: Sequence[_Sentence]) -> list[float]:
    """The TextRank of each sentence, based on shared words."""
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
    # Normalise by length, because long sentences share more words.
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
    """The best sentences that fit and do not repeat each other."""
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
