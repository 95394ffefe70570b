"""An extractive summarizer: it quotes the most informative sentences, without a model.

The value of a sentence is that of the words that no quoted sentence has yet, divided by its length. A word is worth
more if it is frequent in the conversation, if few sentences have it, and if it is a name or a number. Sentences are
chosen greedily; those from a part of the conversation that already has much of the room are worth less. Sentences of
the previous summary compete for a share of the room. Another share lists tool calls (tool, number of calls, inputs).
`scripts/benchmarks/summaries.py` measures the quality.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from redis_history.agents.compaction.rendering import call_lines, clipped, said, speaker, text_to_summarize
from redis_history.agents.compaction.summaries import MAX_SUMMARY_TOKENS, Summarizer, summary_text
from redis_history.errors import SummaryError
from redis_history.store.search.query import stop_words
from redis_history.store.search.words import check_language, load_stemmer, words
from redis_history.values import Message, TextPart
from redis_history.values._validation import check_integer
from redis_history.values.sizes import CHARACTERS_PER_TOKEN, message_tokens

#: The ends of sentences. Chinese and Japanese full stops need no following space.
_ENDS: Final = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？])|\n+")
_LETTER: Final = re.compile(r"\w")
#: Maximum characters of a sentence. Longer ones are usually listings or programs.
_LONGEST: Final = 300
#: Characters read from a tool result. The assistant usually states the important parts afterwards.
_RESULT: Final = 1_000
#: Characters read from one text, or from the previous summary.
_LONGEST_TEXT: Final = 200_000
#: At most this number of the newest sentences is considered.
_SENTENCES: Final = 20_000
#: Sentences with fewer terms are ignored, such as "Yes." and "Thank you!".
_TELLING: Final = 3
#: The worth of a word: exponents of its frequency and of its rarity, and factors.
_FREQUENCY: Final = 0.35
_RARITY: Final = 1.5
_NAME: Final = 2.0
_NUMBER: Final = 1.5
#: Factors of sentences: questions, tool results, listings, questions of users to an agent, and other text of users.
_QUESTION: Final = 0.4
_TOOL: Final = 0.4
_LISTING: Final = 0.3
_ASKED: Final = 0.7
_WISH: Final = 1.2
#: The least share of letters in prose.
_LETTERS: Final = 0.7
#: The conversation is divided into this number of parts. Each has this weight against a part that has its room.
_PARTS: Final = 20
_SPREAD: Final = 1.0
_TIE: Final = 1e-9
#: Maximum share of the new summary for sentences of the previous one.
_KEPT: Final = 0.5
#: Maximum size of a summary, as a share of the replaced messages.
_SHARE: Final = 0.5

#: Characters that a summary may always have.
_LEAST: Final = 16
#: Characters quoted from each data message without sentences and tool calls.
_BEGINNING: Final = 60
#: Share of the room for tool calls, and the least number of characters for them.
_FOR_CALLS: Final = 0.2
_ROOM_FOR_CALLS: Final = 80
#: Words that begin with a capital letter, not at the beginning of a sentence.
_CAPITALISED: Final = re.compile(r"(?<=[\w,;:(] )[^\W\d_a-z][\w'’-]*")


class _Sentence(NamedTuple):
    """`message`: the number of its message; -1 for a line of the previous summary, whose `who` is empty."""

    who: str
    text: str
    terms: frozenset[str]
    message: int
    factor: float


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
        """Summarize: lines of "Speaker: sentence", followed by the tool calls. Raises SummaryError if there is nothing
        to summarize."""
        sentences = self._sentences(messages, previous_summary)
        replaced = sum(map(message_tokens, messages)) + len(previous_summary or "") // CHARACTERS_PER_TOKEN
        room = CHARACTERS_PER_TOKEN * min(self._max_tokens, max(16, int(_SHARE * replaced)))
        # Including its frame, the summary must be shorter than the messages it replaces.
        most = CHARACTERS_PER_TOKEN * min(self._most, replaced - 1) - len(summary_text(""))
        room = max(_LEAST, min(room, most))
        for_calls = int(_FOR_CALLS * room) if _FOR_CALLS * room >= _ROOM_FOR_CALLS else 0
        for_calls = sum(len(line) + 1 for line in call_lines(messages, for_calls)) if for_calls else 0
        worth = self._worth(sentences)
        chosen = _chosen(sentences, worth, room - for_calls)
        lines = _lines([sentences[at] for at in sorted(chosen)])
        left = room - sum(len(line) + 1 for line in lines)
        if left >= min(_ROOM_FOR_CALLS, for_calls or _ROOM_FOR_CALLS) or not sentences:
            lines += call_lines(messages, left)
        if not lines and sentences:  # none fits
            best = max(sentences, key=lambda one: one.factor * sum(map(worth.__getitem__, one.terms)))
            return clipped(_lines([best])[0], room)
        if not lines:
            lines = _beginnings(messages, room)
        if not lines:
            raise SummaryError("nothing to summarize: the messages have no text, tool calls or tool results")
        return "\n".join(lines)

    def _sentences(self, messages: Sequence[Message], previous_summary: str | None) -> list[_Sentence]:
        earlier = (previous_summary or "")[-_LONGEST_TEXT:].splitlines()[-_SENTENCES:]
        newest = list(islice(_newest_sentences(messages), _SENTENCES))
        found: dict[tuple[str, str], _Sentence] = {}
        for who, text, number, factor in [*(("", line, -1, 1.0) for line in earlier), *reversed(newest)]:
            text = clipped(" ".join(text.split()), _LONGEST)
            if text and (who, text) not in found:
                found[who, text] = _Sentence(who, text, self._terms(text), number, factor)
        telling = [sentence for sentence in found.values() if len(sentence.terms) >= _TELLING]
        return telling or [*found.values()]

    def _worth(self, sentences: Sequence[_Sentence]) -> dict[str, float]:
        """The value of each term. Names of speakers do not count."""
        counts = Counter(term for sentence in sentences for term in sentence.terms)
        capitalized = " ".join(word for sentence in sentences for word in _CAPITALISED.findall(sentence.text))
        names = self._terms(capitalized)
        worth = {}
        for term, count in counts.items():
            value = count**_FREQUENCY * math.log1p(len(sentences) / count) ** _RARITY
            value *= _NAME if term in names else 1.0
            worth[term] = value * (_NUMBER if any(map(str.isdigit, term)) else 1.0)
        for who in {sentence.who for sentence in sentences}:
            worth |= dict.fromkeys(self._terms(who) & worth.keys(), 0.0)
        return worth

    def _terms(self, line: str) -> frozenset[str]:
        found = (word for word in words(line) if word not in self._stop)
        return frozenset(found if self._stem is None else map(self._stem, found))


def extractive_summarizer(*, max_tokens: int = 400, language: str = "english") -> ExtractiveSummarizer:
    """Create a summarizer that selects sentences. It needs no model, network or additional package.

    It quotes sentences word for word with their speakers, and does not rephrase. If space is left, it adds the tool
    calls: tool, number of calls, inputs. A summary has at most `max_tokens` tokens (estimated, at least 16), and at
    most half the tokens of the messages it replaces. `language` is a language of search, or "none". Stemming needs
    `pip install 'redis_history[search]'`.

    Raises ConfigurationError for an invalid option. The summarizer raises SummaryError if there is nothing to
    summarize.
    """
    return ExtractiveSummarizer(max_tokens, language)


def within(summarizer: Summarizer, most: int) -> Summarizer:
    """The summarizer, limited to `most` tokens including the frame of the summary. Summarizers other than
    ExtractiveSummarizer are returned unchanged."""
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


def _newest_sentences(messages: Sequence[Message]) -> Iterator[tuple[str, str, int, float]]:
    """The sentences, newest first, with speaker, number of the message and factor."""
    with_agent = any(message.role == "assistant" for message in messages)
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        who, wish = speaker(message), with_agent and message.role == "user"
        for part in reversed(message.parts):
            factor = _WISH if wish else 1.0
            text = text_to_summarize(part)
            if isinstance(part, TextPart):
                text = clipped(text, _LONGEST_TEXT)
            else:
                text, factor = text[:_RESULT], _TOOL
                if text.lstrip()[:1] in ("{", "["):  # JSON, not sentences
                    continue
            for sentence in map(str.strip, reversed(_ENDS.split(text))):
                if sentence and _LETTER.search(sentence):
                    yield who, sentence, number, factor * _prose(sentence, asks=wish)


def _prose(sentence: str, *, asks: bool) -> float:
    letters = sum(character.isalpha() or character == " " for character in sentence[:_LONGEST])
    factor = 1.0 if letters >= _LETTERS * min(len(sentence), _LONGEST) else _LISTING
    return factor * (_ASKED if asks else _QUESTION) if sentence.endswith(("?", "？")) else factor


def _chosen(sentences: Sequence[_Sentence], worth: dict[str, float], room: int) -> set[int]:
    """The indices of the sentences that are worth most for their length, together in `room` characters."""
    chosen: set[int] = set()
    covered: set[str] = set()
    quoted: set[int] = set()  # numbers of messages: a further sentence of the same needs no speaker
    used = [0] * (_PARTS + 1)
    left, left_for_earlier = room, int(_KEPT * room)
    last = max([1, *(sentence.message + 1 for sentence in sentences[-1:])])

    def value(at: int) -> tuple[float, int]:
        one = sentences[at]
        speaker_known = one.message in quoted or not one.who
        size = len(one.text) + 1 + (0 if speaker_known else len(one.who) + 2)
        new = sum(worth[term] for term in one.terms if term not in covered)
        crowd = 1 + _SPREAD * _PARTS * used[one.message * _PARTS // last] / room
        return new * one.factor / size / crowd, size

    heap = [(-value(at)[0], at) for at in range(len(sentences))]
    heapify(heap)
    while heap:
        _, at = heappop(heap)
        now, size = value(at)
        one = sentences[at]
        if now <= 0 or size > left or (one.message < 0 and size > left_for_earlier):
            continue
        if heap and now < -heap[0][0] - _TIE:  # worth less than when it was added: another may be better now
            heappush(heap, (-now, at))
            continue
        chosen.add(at)
        covered |= one.terms
        left -= size
        used[one.message * _PARTS // last] += size
        if one.message < 0:
            left_for_earlier -= size
        else:
            quoted.add(one.message)
    return chosen


def _lines(sentences: Sequence[_Sentence]) -> list[str]:
    """A line for each message, with its speaker."""
    lines: list[str] = []
    before = -1
    for one in sentences:
        if one.message == before and one.message >= 0:
            lines[-1] += f" {one.text}"
        else:
            lines.append(f"{one.who}: {one.text}" if one.who else one.text)
        before = one.message
    return lines
