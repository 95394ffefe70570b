"""Hits of a search: highlighted, and cut to a number of tokens. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, takewhile
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from redis_history.store.search.query import Query, Term
from redis_history.store.search.text import searchable, shown_text
from redis_history.store.search.words import forms, is_unspaced, load_stemmer, words
from redis_history.values import Message
from redis_history.values.sizes import CHARACTERS_PER_TOKEN, TokenCounter, message_tokens, text_tokens

#: Characters of a fragment, and fragments of a message, at most.
FRAGMENT: Final = 200
FRAGMENTS: Final = 3
_BEFORE: Final = 40
# Matches more than the words of text.py; `words` drops the rest.
_WRITTEN: Final = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u036f\u0483-\u0489\u0591-\u0dff\u0e31-\u1fff\u20d0-\u20f0])*")
_ASCII: Final = re.compile(r"[A-Za-z0-9]+")  # the same for ASCII text, and faster
_FORMS: Final = "e s es ed d ing y ies ied ly ning ting ping ned ted ped"
_ENDINGS: Final = frozenset(("", *_FORMS.split()))

#: (start, end) in characters, ascending and apart.
Ranges = list[tuple[int, int]]


class Highlight(Struct, frozen=True):
    """A fragment of a message: about 200 characters of `text` as it was written. `ranges`: where the terms are in it,
    as (start, end) in characters, ascending and apart."""

    text: str
    ranges: tuple[tuple[int, int], ...]

    def marked(self, before: str = "**", after: str = "**") -> str:
        """The text with marks around each term. It is not escaped."""
        pieces, end = [], 0
        for start, stop in self.ranges:
            pieces += [self.text[end:start], before, self.text[start:stop], after]
            end = stop
        return "".join((*pieces, self.text[end:]))


class _Word(NamedTuple):
    word: str
    start: int
    end: int


def highlights(message: Message | str, query: Query, *, language: str = "english") -> tuple[Highlight, ...]:
    """The first fragments of a message, or of a text, that contain a term of the query."""
    text = message if isinstance(message, str) else searchable(message)
    ranges = _ranges(text, query, language)
    fragments: list[Highlight] = []
    while ranges and len(fragments) < FRAGMENTS:
        start = _word_start(text, max(0, ranges[0][0] - _BEFORE))
        stop = max(_word_end(text, min(len(text), start + FRAGMENT)), ranges[0][1])
        inside = [(first - start, last - start) for first, last in ranges if last <= stop]
        fragments.append(Highlight(text[start:stop], tuple(inside)))
        ranges = [one for one in ranges[len(inside) :] if one[0] >= stop]
    return tuple(fragments)


def matched_terms(message: Message | str, query: Query, *, language: str = "english") -> set[Term]:
    """The terms of the query that a message, or a text, has."""
    written = list(_words_of(message if isinstance(message, str) else searchable(message)))
    stem = load_stemmer(language)
    return {term for term in query.terms if any(_ranges_of(term, written, stem, language))}


def matching(message: Message, query: Query, *, language: str = "english") -> tuple[str, Ranges]:
    """The text of a message and where the terms of the query are in it: its plain text if that contains any, else all
    of its searchable text."""
    plain, every = shown_text(message), searchable(message)
    for text in (plain, every):
        if ranges := _ranges(text, query, language):
            return text, ranges
    return plain or every, []


def passage(text: str, ranges: Ranges, size: int) -> tuple[int, int]:
    """Start and end of at most `size` characters of a text, with as many of the ranges as fit (the beginning of the
    text without ranges). Words are not cut if a blank is near."""
    if len(text) <= size:
        return 0, len(text)
    first, last = _densest(ranges, size)
    start = max(0, min(first - (size - (last - first)) // 2, len(text) - size))
    stop = start + size
    if (whole := _word_start(text, start)) <= first:
        start = whole
    if start < (whole := _word_end(text, stop)) and whole >= last:
        stop = whole
    return start, stop


def _densest(ranges: Ranges, size: int) -> tuple[int, int]:
    """Start and end of the `size` characters that contain the most ranges."""
    best, most, end = (0, 0), 0, 0
    for at, (first, last) in enumerate(ranges):
        end = max(end, at + 1)
        while end < len(ranges) and ranges[end][1] - first <= size:
            end += 1
        if end - at > most:
            best, most = (first, min(max(last, ranges[end - 1][1]), first + size)), end - at
    return best


def _ranges(text: str, query: Query, language: str) -> Ranges:
    """Where the terms of the query are in the text."""
    written = list(_words_of(text))
    stem = load_stemmer(language)
    joined: Ranges = []
    for start, end in sorted(one for term in query.terms for one in _ranges_of(term, written, stem, language)):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _ranges_of(
    term: Term, written: list[_Word], stem: Callable[[str], str] | None, language: str
) -> Iterator[tuple[int, int]]:
    if term.kind == "phrase":
        plain = [one.word for one in written]
        size, phrase = len(term.words), list(term.words)
        starts = (at for at in range(len(plain) - size + 1) if plain[at : at + size] == phrase)
        return ((written[at].start, written[at + size - 1].end) for at in starts)
    matching = set(filter(_matcher(term, stem, language), {one.word for one in written}))
    return ((one.start, one.end) for one in written if one.word in matching)


def _words_of(text: str) -> Iterator[_Word]:
    """The words of a text, as the index has them, and where they are."""
    for run in (_ASCII if text.isascii() else _WRITTEN).finditer(text):
        start, end = run.span()
        found = words(run[0])
        if len(found) == 1 or not any(map(is_unspaced, found)):
            yield from (_Word(word, start, end) for word in found)
            continue
        for unspaced, letters in groupby(range(start, end), lambda at: _begins_unspaced(text[at])):
            places = list(letters)
            if unspaced:  # each character begins a word, which is a pair
                for at in places:
                    pair = _first_word(text[at : min(at + 2, end)])
                    yield _Word(pair, at, at + len(pair) if len(pair) <= 2 else at + 1)
            else:
                first, stop = places[0], places[-1] + 1
                yield from (_Word(word, first, stop) for word in words(text[first:stop]))


@lru_cache(maxsize=65_536)
def _first_word(text: str) -> str:
    return words(text)[0]


@lru_cache(maxsize=65_536)
def _begins_unspaced(letter: str) -> bool:
    found = words(letter)
    return bool(found) and is_unspaced(found[0])


def _matcher(term: Term, stem: Callable[[str], str] | None, language: str) -> Callable[[str], bool]:
    """Whether a word matches a term that is a word or a prefix."""
    if term.kind == "prefix":
        return lambda word: word.startswith(term.word)
    wanted = frozenset(forms(term.word, language))
    if stem is not None:
        roots = frozenset(map(stem, wanted))
        return lambda word: word in wanted or word in roots or stem(word) in roots
    if language != "english" or is_unspaced(term.word):
        return wanted.__contains__
    return lambda word: word in wanted or any(_akin(word, one) for one in wanted)


def _akin(word: str, other: str) -> bool:
    """Whether two English words look like forms of one: for highlights without a stemmer."""
    shared = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(word, other, strict=False)))
    return shared >= 3 and word[shared:] in _ENDINGS and other[shared:] in _ENDINGS


def _word_start(text: str, at: int) -> int:
    """The next start of a word, if it is near."""
    if at == 0:
        return 0
    blank = text.find(" ", at - 1, at + 20)
    return at if blank < 0 else blank + 1


def _word_end(text: str, at: int) -> int:
    if at == len(text):
        return at
    blank = text.rfind(" ", max(0, at - 20), at + 1)
    return at if blank < 0 else blank


#: Tokens of the shortest excerpt, except that of the best hit.
LEAST: Final = 25


class SearchHit(Struct, frozen=True):
    """A message that was found. `score` is above 0 and compares within one search only, `conversation_id` is where it
    was found. `highlights` are up to 3 fragments with terms. `before` and `after` are as many neighbors as the call's
    `context` says, ascending; they need not match. `archived`: a summary has replaced the message; then its neighbors
    are archived messages too.

    `excerpt`: if the message is too long for the rest of the `token_cap`, the passage that matches, cut to fit; then
    `truncated` is true. Show `excerpt` then: `message` is the whole message, as it is stored."""

    message: Message
    score: float
    conversation_id: str
    highlights: tuple[Highlight, ...] = ()
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()
    archived: bool = False
    excerpt: str | None = None

    @property
    def truncated(self) -> bool:
        """Whether the message did not fit, so that it comes with an excerpt."""
        return self.excerpt is not None


class SearchHits(list[SearchHit]):
    """The hits of one page, best first. `total` is the number of matching messages, or a lower bound if more than 500
    match a term. `incomplete` describes the messages that were not searched, or is None (without an index, searches
    read a bounded number of messages)."""

    def __init__(self, hits: Iterable[SearchHit] = (), total: int = 0, incomplete: str | None = None) -> None:
        super().__init__(hits)
        self.total = total
        self.incomplete = incomplete
        self._searched: Query | None = None


def searched_for(hits: SearchHits, query: Query) -> SearchHits:
    """Note the terms that were searched for in the end, for `terms_of`."""
    hits._searched = query
    return hits


def terms_of(hits: Sequence[SearchHit]) -> Query | None:
    """The terms that were searched for, in the language of the store: words in place of a phrase without a match."""
    return getattr(hits, "_searched", None)


class Reindexed(Struct, frozen=True):
    """The result of `reindex`: `conversations` read, `documents` written, and documents without a message `removed`."""

    conversations: int
    documents: int
    removed: int


def cut_to_tokens(
    hits: Sequence[SearchHit],
    token_cap: int | None,
    query: Query,
    *,
    language: str = "english",
    counter: TokenCounter | None = None,
) -> list[SearchHit]:
    """The hits, best first, that fit into this many tokens, by `counter` or estimated. None: all. 0: none.

    If only the message fits, it comes without its neighbors. A message that does not fit comes with an excerpt of its
    share of the rest, so that there is room for later hits; it is skipped if that share is below LEAST tokens. The best
    hit always comes, however short its excerpt, so that a search with matches never looks empty.
    """
    if token_cap is None:
        return list(hits)
    kept: list[SearchHit] = []
    left = token_cap
    for index, hit in enumerate(hits if token_cap else ()):
        alone, neighbors = message_tokens(hit.message, counter), 0
        if hit.before or hit.after:
            neighbors = sum(message_tokens(one, counter) for one in (*hit.before, *hit.after))
        if alone + neighbors <= left:
            kept.append(hit)
            left -= alone + neighbors
        elif alone <= left:
            kept.append(replace(hit, before=(), after=()))
            left -= alone
        else:
            room = max(left // (len(hits) - index), min(left, LEAST))
            if kept and room < LEAST:
                continue
            excerpt = _excerpt(*matching(hit.message, query, language=language), room, counter)
            if kept and not excerpt:
                continue
            kept.append(replace(hit, before=(), after=(), excerpt=excerpt))
            left -= text_tokens(excerpt, counter)
    return kept


def _excerpt(text: str, ranges: Ranges, tokens: int, counter: TokenCounter | None) -> str:
    def cut(size: int) -> str:
        start, stop = passage(text, ranges, size)
        return text[start:stop]

    return cut(tokens * CHARACTERS_PER_TOKEN if counter is None else largest(cut, len(text), tokens, counter))


def largest(make: Callable[[int], str], most: int, tokens: int, counter: TokenCounter | None = None) -> int:
    """The largest size up to `most` for which `make` returns a text of at most this many tokens, or 0 if every size is
    too large.

    If tokens do not grow with the size, the result still fits, but a larger one may fit too.
    """
    if most and text_tokens(make(most), counter) <= tokens:  # the usual case, because a counter of tokens may be slow
        return most
    return bisect_right(range(1, most), tokens, key=lambda size: text_tokens(make(size), counter))
