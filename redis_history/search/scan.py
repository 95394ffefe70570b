"""Search without a search module: BM25 over the messages of one conversation, as they are read. Pure.

What a server with search does with an index, `Scan` does with the messages themselves: it is given all of them, in
chunks, and keeps those that match. Its matches go into the same ranking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from redis_history._words import load_stemmer, words
from redis_history.model import Message
from redis_history.requests.filters import ANYTHING, Filters
from redis_history.search.query import Query, Term
from redis_history.search.ranking import Matches, Ranked, rank
from redis_history.search.text import searchable

__all__ = ["MAX_SCANNED", "Scan"]

#: Messages of a conversation that are searched without an index: the newest. About 0.7 s of the client's time.
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
        self._length = 0
        self.searched = 0
        #: The messages that match, by sequence (or what stands for it).
        self.messages: dict[int, Message] = {}

    def add(self, messages: Iterable[Message], names: Iterable[int] | None = None) -> None:
        """Take a chunk of messages, as the store gives them (with their sequence). What the filters do not want is not
        counted; `archived` is for the caller to heed. `names`: what stands for the sequence of each, which a summary
        shares with another message."""
        if self._filters.impossible:
            return
        stem = self._stem
        messages = list(messages)
        numbers: Iterable[int | None] = [one.sequence for one in messages] if names is None else names
        for message, sequence in zip(messages, numbers, strict=True):
            if sequence is None or not self._filters.wants(message):
                continue
            text = words(searchable(message))
            self.searched += 1
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
        return rank(self._query, matches, size=self.searched)


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
