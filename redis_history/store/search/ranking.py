"""Rank the messages found by an index or by `Scan`, which reads the messages of one conversation. Pure.

The turns of a conversation are short, and the answer to a question is often spread over some of them: one names the
thing, the next describes it. So each term counts once for a message: with its full weight if the message has the term,
with 0.7, 0.5 or 0.3 of it if the nearest message that has it is one, two or three steps away. The weight of a term is
its rareness within the searched messages, not within the namespace: the names of the speakers say little. How often a
message has a term, and how long the message is, do not count. With BM25's weights for them recall@10 on LoCoMo and on
known items (scripts/benchmarks/known_items.py) is the same within 0.005, and the scores of a message depend on the
rest of the index.

Messages from the times that a query names, and by writers that it names, have more weight, as if these were words.

`fuse` weighs vectors by their correlation with the words over all searched messages. On LoCoMo it is 0.37 for a small
static embedder, and within 0.15 of 0 for random vectors, which therefore change nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, compress
from operator import attrgetter
from typing import Any, Final, NamedTuple

from redis_history.store.search.query import Query, Term
from redis_history.store.search.text import author_words, index_lines, is_question
from redis_history.store.search.words import PREFIX_KEEPING, SEPARATOR, forms, load_stemmer
from redis_history.values import Message
from redis_history.values.filters import ANYTHING, Filters

#: Messages of each term that are ranked, those that have it most often, if no more are asked for.
DEPTH: Final = 1_000
#: Bytes of the shortest word of a message that RediSearch stems.
_LEAST_STEMMED: Final = 4

#: Messages from the times and by the writers that a query names that are ranked. If more messages are from these times,
#: times do not count.
MAX_LISTED: Final = 2_000
#: The weight of a writer's name, relative to that of a word. From 2 to 3 all is the same: 0.02 of recall@10 on LoCoMo.
AUTHORSHIP: Final = 2.5

#: The share of a term's weight that a message gets if another one, this many steps before or after it, has the term.
NEIGHBOURS: Final = (0.7, 0.5, 0.3)
_STEPS: Final = tuple((sign * step, share) for step, share in enumerate(NEIGHBOURS, 1) for sign in (-1, 1))
#: The same for the similarity of vectors; there the shares add up.
_VECTOR_STEPS: Final = ((-1, 0.3), (1, 0.3), (-2, 0.1), (2, 0.1))
#: The correlation with the words, above chance, at which vectors count as much as words.
_AGREEMENT: Final = 0.15


class Matches(NamedTuple):
    """The messages that one term matches: how many there are, and all or the best of them with a score, by
    conversation and sequence. Scores compare within one `Matches` only, and say which messages are listed."""

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


def estimated_size(matches: Sequence[Matches]) -> int:
    """A number of searched messages for `rareness`, if only the matches are known: messages of other conversations must
    not change the order of hits."""
    return 2 * max((found.total for found in matches), default=0)


def rank(
    query: Query,
    matches: Sequence[Matches],
    *,
    size: int,
    together: Matches | None = None,
    questions: Matches | None = None,
) -> list[Ranked]:
    """All messages that a term matches, best first; of equal score the newer one, by conversation and sequence. And the
    message after each of the `questions`, which may answer it without repeating its words.

    `matches` are those of each term of the query; `size` is the number of searched messages.
    `together` are the matches of any term: a message with many common terms may be missing from the best matches of
    every term.
    """
    scores: dict[Any, dict[int, float]] = {}
    for found in matches:
        for conversation, listed in found.scores.items():
            scores.setdefault(conversation, {}).update(dict.fromkeys(listed, 0.0))
    for conversation, asked in () if questions is None else questions.scores.items():
        known = scores.get(conversation, {})
        for sequence in asked:
            if sequence in known and sequence > 0:  # a summary stands before the messages that follow it
                known.setdefault(sequence + 1, 0.0)
    unlisted = False
    for term, found in zip(query.terms, matches, strict=True):
        unlisted = unlisted or found.total > found.listed
        # A phrase is as much evidence as its words.
        weight = len(term.words) * rareness(found.total, size)
        for conversation, listed in found.scores.items():
            _add(scores[conversation], listed, weight)
    if together is not None and unlisted:
        _complete(scores, together)
    ranked = [Ranked(where, n, score) for where, those in scores.items() for n, score in those.items()]
    ranked.sort(key=attrgetter("score", "conversation", "sequence"), reverse=True)
    return ranked


def favor(ranked: list[Ranked], wanted: Matches, size: int, times: float = 1.0) -> list[Ranked]:
    """The messages in order, with a higher score for the `wanted` ones, as if they had one more term, whose weight
    counts this many `times`."""
    if not wanted.total:
        return ranked
    weight, of = times * rareness(wanted.total, size), wanted.scores
    found = [one._replace(score=one.score + weight * (one.sequence in of.get(one.conversation, ()))) for one in ranked]
    return sorted(found, key=attrgetter("score"), reverse=True)


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
    """Mean and standard deviation (1 for 0) of `count` scores. Scores that are not given are 0."""
    mean = sum(sum(those.values()) for those in scores.values()) / max(count, 1)
    squares = sum(score * score for those in scores.values() for score in those.values())
    variance = squares / max(count, 1) - mean * mean
    return mean, math.sqrt(variance) if variance > 1e-12 else 1.0


def _add(scores: dict[int, float], listed: Iterable[int], weight: float) -> None:
    """Add the weight of one term to each message that has it, and a share of it to their neighbors."""
    shares = dict.fromkeys(listed, 1.0)
    for step, share in _STEPS:  # the nearest first, so a message gets the largest share
        for sequence in listed:
            beside = sequence + step
            if beside in scores and beside not in shares:
                shares[beside] = share
    for sequence, share in shares.items():
        scores[sequence] += share * weight


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


_NONE: Final[frozenset[int]] = frozenset()


def _is_stemmed(word: str) -> bool:
    """Whether RediSearch stems the word. It indexes a short one as it is."""
    return len(word) >= _LEAST_STEMMED or len(word.encode()) >= _LEAST_STEMMED


# With more, a pattern of all of them is slower than splitting the text.
_FEW_TERMS: Final = 16
#: Messages that are searched without an index: the newest of each conversation. It takes about 0.1 s.
MAX_SCANNED: Final = 20_000


class Scan:
    """One search over some messages. `add` them in any order; then `ranked`, which gives what `rank` and `favor` give
    for the matches of an index.

    Not for several threads.
    """

    def __init__(self, query: Query, filters: Filters = ANYTHING, *, language: str = "english") -> None:
        self.query = query
        self._filters = filters
        self._stem = load_stemmer(language)
        instead = [query.words_of(term) for term in query.terms if term.kind == "phrase"]
        self._terms = list(dict.fromkeys(chain(query.terms, *instead)))
        self._found: list[dict[Any, dict[int, float]]] = [{} for _ in self._terms]
        self._phrases = [(at, term.words) for at, term in enumerate(self._terms) if term.kind == "phrase"]
        self._prefixes = [(at, term.word) for at, term in enumerate(self._terms) if term.kind == "prefix"]
        self._by_word: dict[str, frozenset[int]] = {}
        self._by_root: dict[str, frozenset[int]] = {}
        for at, term in enumerate(self._terms):
            if term.kind == "word":
                for form in forms(term.word, query.language):
                    root = form if self._stem is None else self._stem(form)
                    self._by_word[form] = self._by_word.get(form, _NONE) | {at}
                    self._by_root[root] = self._by_root.get(root, _NONE) | {at}
        few = len(self._terms) <= _FEW_TERMS and language in PREFIX_KEEPING
        self._pattern = self._words_like_terms() if few else None
        self._dated: dict[Any, dict[int, float]] = {}
        #: By the id and the display name of the writer.
        self._written: dict[tuple[str, str | None], dict[Any, dict[int, float]]] = {}
        #: Messages that were added, whether they pass the filters or not.
        self.size = 0
        self._questions: dict[Any, dict[int, float]] = {}
        #: The messages that match, and others that may follow a question, by conversation and number.
        self.messages: dict[Any, dict[int, Message]] = {}

    def add(self, messages: Sequence[Message], numbers: Iterable[int] | None = None, conversation: Any = None) -> None:
        """Add stored messages, under their `numbers` (None: under their sequences, but a summary shares its sequence
        with another message). The caller checks `archived`, and counts what it leaves out in `size`."""
        self.size += len(messages)
        if self._filters.impossible:
            return
        numbers = [one.sequence or 0 for one in messages] if numbers is None else list(numbers)
        if self._filters != ANYTHING:
            wanted = list(map(self._filters.wants, messages))
            messages, numbers = list(compress(messages, wanted)), list(compress(numbers, wanted))
        if self.query.periods:
            dated = [number for number, message in zip(numbers, messages, strict=True) if self._is_dated(message)]
            self._dated.setdefault(conversation, {}).update(dict.fromkeys(dated, 1.0))
        for number, message in zip(numbers, messages, strict=True):
            if (writer := message.participant) is not None:
                written = self._written.setdefault((writer.id, writer.display_name), {})
                written.setdefault(conversation, {})[number] = 1.0
        kept = self.messages.setdefault(conversation, {})
        if not messages:
            return
        matching: set[int] = set()
        for at, found in self._matches(index_lines(messages)).items():
            self._found[at].setdefault(conversation, {}).update((numbers[n], 1.0) for n in found)
            matching |= found
        kept.update((numbers[n], messages[n]) for n in matching)
        if not self._filters.selects:
            questions = [n for n in matching if is_question(messages[n])]
            self._questions.setdefault(conversation, {}).update((numbers[n], 1.0) for n in questions)
            # The message after the last of these is the first message of another call. If the times of messages are
            # not in the order of their sequences, the one after a question can be anywhere.
            after = [n for n, number in enumerate(numbers) if not n or numbers[n - 1] + 1 != number]
            kept.update((numbers[n], messages[n]) for n in (*after, *(n + 1 for n in questions)) if n < len(messages))

    def ranked(self, *, one: bool = True) -> list[Ranked]:
        """All messages that match, best first. `one`: the search is of one conversation. Afterwards `query` has the
        terms that were searched for."""
        found = {
            term: Matches(sum(map(len, scores.values())), scores)
            for term, scores in zip(self._terms, self._found, strict=True)
        }
        query = self.query.widened([found[term].total for term in self.query.terms])
        self.query = query = query.rarest([found[term].total for term in query.terms])
        matches = [found[term] for term in query.terms]
        size = self.size if one else estimated_size(matches)
        ranked = rank(query, matches, size=size, questions=self._asked(query, found))
        dated = Matches(sum(map(len, self._dated.values())), self._dated)
        if dated.total <= MAX_LISTED:
            ranked = favor(ranked, dated, size)
        return favor(ranked, self._authored(query, found), size, AUTHORSHIP)

    def _asked(self, query: Query, found: Mapping[Term, Matches]) -> Matches:
        """The questions that a word matches, and that another message follows."""
        scores = {
            where: {n: 1.0 for n in asked if n + 1 in self.messages[where]}
            for where, asked in self._with_words(self._questions, query, found).items()
        }
        return Matches(sum(map(len, scores.values())), scores)

    def _authored(self, query: Query, found: Mapping[Term, Matches]) -> Matches:
        """The matching messages by writers that the query names, with the total of all messages by these writers."""
        names = frozenset(query.names)
        scores: dict[Any, dict[int, float]] = {}
        for writer, written in self._written.items():
            if not names.isdisjoint(author_words(*writer)):
                for conversation, listed in written.items():
                    scores.setdefault(conversation, {}).update(listed)
        return Matches(sum(map(len, scores.values())), self._with_words(scores, query, found))

    @staticmethod
    def _with_words(
        scores: Mapping[Any, Mapping[int, float]], query: Query, found: Mapping[Term, Matches]
    ) -> dict[Any, dict[int, float]]:
        """Those of the messages that a word of the query matches."""
        by_word = [found[term].scores for term in query.terms if term.kind != "phrase"]
        return {
            where: {n: score for n, score in those.items() if any(n in each.get(where, ()) for each in by_word)}
            for where, those in scores.items()
        }

    def _matches(self, lines: list[str]) -> dict[int, set[int]]:
        """The indexes of the lines that each term matches. Searches all of them together, which takes a fifth of the
        time of splitting each."""
        whole = SEPARATOR.join(lines)
        ends = list(accumulate([len(line) + 1 for line in lines]))

        def lines_with(word: str) -> set[int]:
            has: set[int] = set()
            at = whole.find(wanted := f" {word} ")
            while at >= 0:
                has.add(line := bisect(ends, at))
                at = whole.find(wanted, ends[line])
            return has

        found: dict[int, set[int]] = {}
        written = set(whole.split() if self._pattern is None else self._pattern.findall(whole))
        for word, terms in self._matching_words(written).items():
            has = lines_with(word)
            for term in terms:
                found.setdefault(term, set()).update(has)
        for at, words in self._phrases:
            if written.issuperset(words):
                phrase = f" {' '.join(words)} "
                has = set.intersection(*map(lines_with, words))
                found[at] = {line for line in has if phrase in f" {' '.join(lines[line].split())} "}
        return found

    def _matching_words(self, written: set[str]) -> dict[str, frozenset[int]]:
        """Those of the words that match a term, and the terms."""
        by_root = self._by_root
        found = {word: self._by_word[word] for word in self._by_word.keys() & written}
        alike = [(word, word) for word in by_root.keys() & written]
        if self._stem is not None:
            roots = zip(written, map(self._stem, written), strict=True)
            # RediSearch also looks for the root itself, whose own root may be another one: "kurses", "kurs" and "kur".
            alike += [(word, root) for word, root in [one for one in roots if one[1] in by_root] if _is_stemmed(word)]
        for word, root in alike:
            found[word] = found.get(word, _NONE) | by_root[root]
        for at, prefix in self._prefixes:
            for word in written:
                if word.startswith(prefix):
                    found[word] = found.get(word, _NONE) | {at}
        return found

    def _words_like_terms(self) -> re.Pattern[str]:
        """Finds all words that may match a term, and few others, in a quarter of the time of splitting the text."""
        beginnings = {word for _, words in self._phrases for word in words} | {prefix for _, prefix in self._prefixes}
        beginnings.update(root[: max(1, len(root) - 2)] for root in self._by_root)
        return re.compile(f" ((?:{'|'.join(sorted(beginnings))})[^ ]*)")

    def _is_dated(self, message: Message) -> bool:
        if not self.query.periods or message.position is None:
            return False
        time = message.position.timestamp
        return any(begin <= time < end for begin, end in self.query.periods)
