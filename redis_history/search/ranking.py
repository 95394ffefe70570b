"""The order of what was found: one pure function, whoever found it.

A turn of a conversation is short, and what a question asks for is often spread over some: one names the thing, the
next says it. So each term counts once for a message, with its full weight if the message has it itself, with half of
it if a message beside it has it, and a quarter if one two steps away does. The weight of a term is how rare it is
within what was searched, not within the namespace: in a conversation the names of those who talk say little. How often
a message has a term, and how long the message is, matter less in turns than in documents: the finder's score of
a message (BM25), relative to the best one of the term, counts by its square root.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis_history.search.query import Query

__all__ = ["DEPTH", "Matches", "Ranked", "fuse", "rank"]

#: So many messages of each term are ranked, if no more are wanted: those that the finder scores best. 200 cost 0.03 of
#: recall@10.
DEPTH: Final = 500

#: What a term counts that a message does not have, but one so many steps before or after it.
NEIGHBOURS: Final = (0.5, 0.25)
_STEPS: Final = tuple((sign * step, share) for step, share in enumerate(NEIGHBOURS, 1) for sign in (-1, 1))
_FUSION: Final = 60


class Matches(NamedTuple):
    """The messages that one term matches: how many there are, and the scores of all or the best of them, by
    conversation and sequence. Scores are at least 0, and compare among themselves only."""

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


def rank(
    query: Query, matches: Sequence[Matches], *, size: int | None = None, together: Matches | None = None
) -> list[Ranked]:
    """All messages that a term matches, best first; of equal score the newer one, by conversation and sequence.

    `matches` are those of each term of the query; `size` is how many messages were searched (None: an estimate).
    `together` is what any term matches, by the finder's own score: needed where `matches` list the best only, because
    what has many common terms may be among the best of none.
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
        weight = len(term.words) * math.log1p(max(size - found.total + 0.5, 0.5) / (found.total + 0.5))
        for conversation, listed in found.scores.items():
            _add(scores[conversation], {n: weight * math.sqrt(s / best) if best else weight for n, s in listed.items()})
    if together is not None and any(found.total > found.listed for found in matches):
        _complete(scores, together)
    ranked = [Ranked(where, n, score) for where, those in scores.items() for n, score in those.items()]
    ranked.sort(key=lambda one: (one.conversation, one.sequence), reverse=True)
    ranked.sort(key=lambda one: one.score, reverse=True)
    return ranked


def fuse(*orders: Iterable[Hashable]) -> list[tuple[Any, float]]:
    """Several orders of items as one, best first (reciprocal rank fusion: 1 / (60 + rank), summed). Of equal score the
    one that an earlier order names first."""
    scores: dict[Hashable, float] = {}
    for order in orders:
        for position, item in enumerate(order, 1):
            scores[item] = scores.get(item, 0.0) + 1 / (_FUSION + position)
    return sorted(scores.items(), key=lambda item: -item[1])


def _add(scores: dict[int, float], weights: dict[int, float]) -> None:
    """Add to each message what one term counts for it: the most of its own and its neighbours' shares."""
    spread = dict(weights)
    for sequence, weight in weights.items():
        for step, share in _STEPS:
            beside = sequence + step
            if beside in scores and share * weight > spread.get(beside, 0.0):
                spread[beside] = share * weight
    for sequence, weight in spread.items():
        scores[sequence] += weight


def _complete(scores: dict[Any, dict[int, float]], together: Matches) -> None:
    """Give what the lists of the terms missed the finder's own score, brought to the scale of the others."""
    known = found = 0.0
    for conversation, listed in together.scores.items():
        ours = scores.get(conversation, {})
        for sequence, score in listed.items():
            if sequence in ours:
                known, found = known + ours[sequence], found + score
    scale = known / found if found else 1.0
    for conversation, listed in together.scores.items():
        ours = scores.setdefault(conversation, {})
        for sequence, score in listed.items():
            ours[sequence] = max(ours.get(sequence, 0.0), score * scale)
