"""The order of what was found, by an index or by `Scan`, which reads the messages of one conversation. Pure.

The turns of a conversation are short, and the answer to a question is often spread over some of them: one names the
thing, the next describes it. So each term counts once for a message: with its full weight if the message has the term,
with 0.7, 0.5 or 0.3 of it if the nearest message that has it is one, two or three steps away. The weight of a term is
its rareness within the searched messages, not within the namespace: the names of the speakers say little. How often a
message has a term, and how long the message is, matter less in turns than in documents: the BM25 score of a message,
relative to the best one of the term, counts by its square root.

`fuse` weighs vectors by their correlation with the words over all searched messages. On LoCoMo it is 0.37 for a small
static embedder, and within 0.15 of 0 for random vectors, which therefore change nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis_history._words import load_stemmer, words
from redis_history.model import Message
from redis_history.requests import ANYTHING, Filters
from redis_history.search.query import Query, Term
from redis_history.search.text import searchable

#: Messages of each term that are ranked, those with the best scores, if no more are asked for. 200 cost 0.03 of
#: recall@10.
DEPTH: Final = 500

#: If more messages are from the times that a query names, times do not count.
MAX_DATED: Final = 2_000

#: The share of a term's weight that a message gets if another one, so many steps before or after it, has the term.
NEIGHBOURS: Final = (0.7, 0.5, 0.3)
_STEPS: Final = tuple((sign * step, share) for step, share in enumerate(NEIGHBOURS, 1) for sign in (-1, 1))
#: The same for the similarity of vectors; there the shares add up.
_VECTOR_STEPS: Final = ((-1, 0.3), (1, 0.3), (-2, 0.1), (2, 0.1))
#: The correlation with the words, above chance, at which vectors count as much as words.
_AGREEMENT: Final = 0.15


class Matches(NamedTuple):
    """The messages that one term matches: how many there are, and the scores of all or the best of them, by
    conversation and sequence. Scores compare within one `Matches` only; those of words are at least 0."""

    total: int
    scores: Mapping[Any, Mapping[int, float]]

    @property
    def listed(self) -> int:
        return sum(map(len, self.scores.values()))


class Ranked(NamedTuple):
    """A message and its score, which compares within one search only."""

    conversation: Any
    sequence: int
    score: float


def rareness(total: int, size: int) -> float:
    """The weight of a term that `total` of `size` messages have: BM25's inverse document frequency."""
    return math.log1p(max(size - total + 0.5, 0.5) / (total + 0.5))


def rank(
    query: Query, matches: Sequence[Matches], *, size: int | None = None, together: Matches | None = None
) -> list[Ranked]:
    """All messages that a term matches, best first; of equal score the newer one, by conversation and sequence.

    `matches` are those of each term of the query; `size` is how many messages were searched (None: an estimate).
    `together` are the matches of any term: a message with many common terms may be among the best of none of them.
    """
    if size is None:
        size = 2 * max((found.total for found in matches), default=0)
    scores: dict[Any, dict[int, float]] = {}
    for found in matches:
        for conversation, listed in found.scores.items():
            scores.setdefault(conversation, {}).update(dict.fromkeys(listed, 0.0))
    for term, found in zip(query.terms, matches, strict=True):
        best = max((max(listed.values(), default=0.0) for listed in found.scores.values()), default=0.0)
        # A phrase is as much evidence as its words.
        weight = len(term.words) * rareness(found.total, size)
        for conversation, listed in found.scores.items():
            _add(scores[conversation], {n: weight * math.sqrt(s / best) if best else weight for n, s in listed.items()})
    if together is not None and any(found.total > found.listed for found in matches):
        _complete(scores, together)
    ranked = [Ranked(where, n, score) for where, those in scores.items() for n, score in those.items()]
    ranked.sort(key=lambda one: (one.conversation, one.sequence), reverse=True)
    ranked.sort(key=lambda one: one.score, reverse=True)
    return ranked


def favor(ranked: list[Ranked], dated: Matches, size: int) -> list[Ranked]:
    """The messages in order, with a higher score for those from the times that the query names (`dated`), as if the
    time were a word: 0.015 of recall@10 on LoCoMo, where 34 of 383 questions name a time."""
    if not dated.total or dated.total > dated.listed:  # so many that it says little
        return ranked
    weight, of = rareness(dated.total, size), dated.scores
    found = [one._replace(score=one.score + weight * (one.sequence in of.get(one.conversation, ()))) for one in ranked]
    return sorted(found, key=lambda one: one.score, reverse=True)


def fuse(ranked: Sequence[Ranked], nearest: Matches, size: int) -> list[Ranked]:
    """Messages found by words and messages with near vectors in one order, best first.

    `nearest` has a similarity for each listed message, of any scale; `size` is the number of messages searched. A
    message that a list lacks counts as much as its last item. Both scores are divided by their standard deviation.
    """
    words: dict[Any, dict[int, float]] = {}
    for one in ranked:
        words.setdefault(one.conversation, {})[one.sequence] = one.score
    # The distance to a vector of zeros is not a number.
    finite = {where: {n: s for n, s in those.items() if math.isfinite(s)} for where, those in nearest.scores.items()}
    least = min((min(those.values()) for those in finite.values() if those), default=0.0)
    vectors = {
        where: _near({n: s - least for n, s in finite.get(where, {}).items()}, words.get(where, {}))
        for where in {**words, **finite}
    }
    count = max(size, sum(map(len, vectors.values())))
    word_mean, word_deviation = _moments(words, count)
    vector_mean, vector_deviation = _moments(vectors, count)
    products = (score * vectors[where][n] for where, those in words.items() for n, score in those.items())
    covariance = sum(products) / max(count, 1)
    correlation = (covariance - word_mean * vector_mean) / (word_deviation * vector_deviation)
    # Less two standard errors, for chance: the fewer messages, the more they must agree.
    agreement = (correlation - 2 / math.sqrt(max(count, 1))) / _AGREEMENT
    weight = min(max(agreement, 0.0), 1.0) if words else 1.0
    by_words, by_vectors = 1 / word_deviation, weight / vector_deviation
    # If words leave a tie, the vectors decide, then the newer message comes first.
    order = [
        (known.get(n, 0.0) * by_words + near * by_vectors, near, where, n)
        for where, those in vectors.items()
        for known in (words.get(where, {}),)
        for n, near in those.items()
    ]
    order.sort(reverse=True)
    return [Ranked(where, n, score) for score, _, where, n in order]


def _near(scores: dict[int, float], known: Iterable[int]) -> dict[int, float]:
    """The similarities in one conversation, each also spread to its neighbors among these messages and the `known`."""
    spread = dict.fromkeys(known, 0.0)
    spread.update(scores)
    for n, score in scores.items():
        for step, share in _VECTOR_STEPS:
            if n + step in spread:
                spread[n + step] += share * score
    return spread


def _moments(scores: Mapping[Any, Mapping[int, float]], count: int) -> tuple[float, float]:
    """Mean and standard deviation (1 for 0) of `count` scores; those that are not given are 0."""
    mean = sum(sum(those.values()) for those in scores.values()) / max(count, 1)
    squares = sum(score * score for those in scores.values() for score in those.values())
    variance = squares / max(count, 1) - mean * mean
    return mean, math.sqrt(variance) if variance > 1e-12 else 1.0


def _add(scores: dict[int, float], weights: dict[int, float]) -> None:
    """Add the weight of one term to each message: in full, or the largest share from a neighbor."""
    spread = dict(weights)
    for sequence, weight in weights.items():
        for step, share in _STEPS:
            beside = sequence + step
            if beside in scores and share * weight > spread.get(beside, 0.0):
                spread[beside] = share * weight
    for sequence, weight in spread.items():
        scores[sequence] += weight


def _complete(scores: dict[Any, dict[int, float]], together: Matches) -> None:
    """Add the messages that the lists of the terms lack, with their score among `together`, scaled to the others."""
    both = [
        (scores[conversation][sequence], score)
        for conversation, listed in together.scores.items()
        for sequence, score in listed.items()
        if sequence in scores.get(conversation, {})
    ]
    known, found = sum(one for one, _ in both), sum(one for _, one in both)
    scale = known / found if found else 1.0
    for conversation, listed in together.scores.items():
        known_scores = scores.setdefault(conversation, {})
        for sequence, score in listed.items():
            known_scores[sequence] = max(known_scores.get(sequence, 0.0), score * scale)


#: Messages of a conversation that are searched without an index: the newest. It takes about 0.7 s.
MAX_SCANNED: Final = 20_000

_K1: Final = 1.2
_B: Final = 0.5  # as the server's


class Scan:
    """One search over one conversation. `add` its messages, at most MAX_SCANNED, in any order; then `ranked`.

    Not for several threads.
    """

    def __init__(self, query: Query, filters: Filters = ANYTHING, *, language: str = "english") -> None:
        self._query = query
        self._filters = filters
        self._stem = load_stemmer(language)
        self._wanted = [_counter(term, self._stem) for term in query.terms]
        self._found: list[dict[int, float]] = [{} for _ in query.terms]
        self._lengths: dict[int, int] = {}
        self._dated: dict[int, float] = {}
        self._length = 0
        self.searched = 0
        #: The messages that match, by number.
        self.messages: dict[int, Message] = {}

    def add(self, messages: Iterable[Message], numbers: Iterable[int] | None = None) -> None:
        """Add stored messages, under their `numbers` (None: under their sequences, but a summary shares its sequence
        with another message). Messages that do not pass the filters are not counted; the caller checks `archived`."""
        if self._filters.impossible:
            return
        stem = self._stem
        messages = list(messages)
        sequences = [one.sequence or 0 for one in messages] if numbers is None else numbers
        for message, sequence in zip(messages, sequences, strict=True):
            if not self._filters.wants(message):
                continue
            text = words(searchable(message))
            self.searched += 1
            time = message.position.timestamp if self._query.periods and message.position else None
            if time is not None and any(begin <= time < end for begin, end in self._query.periods):
                self._dated[sequence] = 1.0
            self._length += len(text)
            counts = Counter(text)
            stems: Counter[str] = Counter()
            if stem is not None:
                for word, count in counts.items():
                    stems[stem(word)] += count
            for wanted, found in zip(self._wanted, self._found, strict=True):
                if frequency := wanted(text, counts, stems):
                    found[sequence] = frequency
                    self._lengths[sequence] = len(text)
                    self.messages[sequence] = message

    def ranked(self) -> list[Ranked]:
        """All messages that match, best first; their conversation is None."""
        average = self._length / self.searched if self._length else 1.0
        norms = {n: _K1 * (1 - _B + _B * length / average) for n, length in self._lengths.items()}
        matches = [
            Matches(len(found), {None: {n: f * (_K1 + 1) / (f + norms[n]) for n, f in found.items()}})
            for found in self._found
        ]
        ranked = rank(self._query, matches, size=self.searched)
        return favor(ranked, Matches(len(self._dated), {None: self._dated}), self.searched)


_Count = Callable[[Sequence[str], Counter[str], Counter[str]], float]


def _counter(term: Term, stem: Callable[[str], str] | None) -> _Count:
    """How often a text has a term, from its words, their counts and the counts of their stems."""
    word = term.word
    if term.kind == "prefix":
        return lambda text, counts, stems: sum(count for one, count in counts.items() if one.startswith(word))
    if term.kind == "phrase":
        phrase = list(term.words)
        return lambda text, counts, stems: _occurrences(text, counts, phrase)
    if stem is None:
        return lambda text, counts, stems: counts[word]
    root = stem(word)
    # The word as it was asked for counts twice as much as another form of it.
    return lambda text, counts, stems: (stems[root] + counts[word]) / 2


def _occurrences(text: Sequence[str], counts: Counter[str], phrase: list[str]) -> int:
    if not all(counts[word] for word in phrase):
        return 0
    size = len(phrase)
    return sum(1 for at, word in enumerate(text) if word == phrase[0] and list(text[at : at + size]) == phrase)
