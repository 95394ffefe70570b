"""Hits of a search: cut to a number of tokens, and with the places of the query's terms. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from redis_history._words import MAX_WORD, is_unspaced, load_stemmer, words
from redis_history.model import Message
from redis_history.search.query import Query, Term
from redis_history.search.text import MAX_CHARACTERS, searchable
from redis_history.tokens import CHARACTERS_PER_TOKEN, TokenCounter, message_tokens, text_tokens

#: Characters of a fragment, and fragments of a message, at most.
FRAGMENT: Final = 200
FRAGMENTS: Final = 3
_BEFORE: Final = 40
# Wider than the words of text.py: what is not one there gives no word here.
_WRITTEN: Final = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u036f\u0483-\u0489\u0591-\u0dff\u0e31-\u1fff\u20d0-\u20f0])*")
_ASCII: Final = re.compile(r"[A-Za-z0-9]+")  # the same for ASCII text, and faster
_FORMS: Final = "e s es ed d ing y ies ied ly ning ting ping ned ted ped"
_ENDINGS: Final = frozenset(("", *_FORMS.split()))

#: (start, end) in characters, ascending and apart.
Ranges = list[tuple[int, int]]


class Highlight(Struct, frozen=True):
    """A part of a message's `text`, of about 200 characters, as it was written. `ranges`: where in it the terms are, as
    (start, end) in characters, ascending and apart."""

    text: str
    ranges: tuple[tuple[int, int], ...]

    def marked(self, before: str = "**", after: str = "**") -> str:
        """The text with each term between two marks. Nothing in the text is escaped."""
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
    """The first fragments of a message, or of a text, in which a term of the query stands; none where no term is
    found in it."""
    text = message if isinstance(message, str) else searchable(message)
    ranges = _found(text, query, language)
    fragments: list[Highlight] = []
    while ranges and len(fragments) < FRAGMENTS:
        start = _word_start(text, max(0, ranges[0][0] - _BEFORE))
        stop = max(_word_end(text, min(len(text), start + FRAGMENT)), ranges[0][1])
        inside = [one for one in ranges if one[1] <= stop]
        fragments.append(Highlight(text[start:stop], tuple((first - start, last - start) for first, last in inside)))
        ranges = [one for one in ranges[len(inside) :] if one[0] >= stop]
    return tuple(fragments)


def matched_terms(message: Message | str, query: Query, *, language: str = "english") -> set[Term]:
    """The terms of the query that a message, or a text, has."""
    text = _written(message if isinstance(message, str) else searchable(message))
    stem = load_stemmer(language)
    return {term for term in query.terms if _ranges(text, Query((term,)), stem, language)}


def matching(message: Message, query: Query, *, language: str = "english") -> tuple[str, Ranges]:
    """The text of a message, and where in it the terms of the query are: its plain text if they are there, else all
    that can be searched of it."""
    plain, every = message.text[:MAX_CHARACTERS], searchable(message)
    for text in (plain, every):
        if ranges := _found(text, query, language):
            return text, ranges
    return plain or every, []


def passage(text: str, ranges: Ranges, size: int) -> tuple[int, int]:
    """Start and end of at most `size` characters of a text, with as many of the ranges as fit. It begins and ends at a
    blank if one is near. Without ranges it is the beginning of the text."""
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
    """From the start of the first to the end of the last of the most ranges within so many characters."""
    best, most, end = (0, 0), 0, 0
    for at, (first, last) in enumerate(ranges):
        end = max(end, at + 1)
        while end < len(ranges) and ranges[end][1] - first <= size:
            end += 1
        if end - at > most:
            best, most = (first, min(max(last, ranges[end - 1][1]), first + size)), end - at
    return best


def _found(text: str, query: Query, language: str) -> Ranges:
    return _joined(_ranges(_written(text), query, load_stemmer(language), language))


def _written(text: str) -> list[_Word]:
    """The words of a text, as text.py has them, and where they stand."""
    found: list[_Word] = []
    for run in (_ASCII if text.isascii() else _WRITTEN).finditer(text):
        start, end = run.span()
        if run[0].isascii():  # one word, as nearly all are
            if end - start <= MAX_WORD:
                found.append(_Word(run[0].lower(), start, end))
            continue
        split = words(run[0])
        if len(split) == 1:
            found.append(_Word(split[0], start, end))
        elif split and not any(map(is_unspaced, split)):
            found.extend(_Word(word, start, end) for word in split)
        elif split:
            found.extend(_unspaced(text, start, end))
    return found


def _unspaced(text: str, start: int, end: int) -> list[_Word]:
    """The same of a run that has letters of a script without blanks: character by character."""
    found: list[_Word] = []
    at = start
    while at < end:
        one = words(text[at])
        if one and is_unspaced(one[0]):
            pair = words(text[at : min(at + 2, end)])
            found.append(_Word(pair[0], at, at + len(pair[0]) if len(pair[0]) <= 2 else at + 1))
            at += 1
            continue
        stop = at + 1
        while stop < end and not ((other := words(text[stop])) and is_unspaced(other[0])):
            stop += 1
        found.extend(_Word(word, at, stop) for word in words(text[at:stop]))
        at = stop
    return found


def _ranges(text: list[_Word], query: Query, stem: Callable[[str], str] | None, language: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for term in query.terms:
        if term.kind == "phrase":
            size = len(term.words)
            plain = [one.word for one in text]
            phrase = list(term.words)
            found.extend(
                (text[at].start, text[at + size - 1].end)
                for at in range(len(text) - size + 1)
                if plain[at : at + size] == phrase
            )
        else:
            same = _same(term, stem, language)
            wanted = {word for word in {one.word for one in text} if same(word)}
            found.extend((one.start, one.end) for one in text if one.word in wanted)
    return found


def _same(term: Term, stem: Callable[[str], str] | None, language: str) -> Callable[[str], bool]:
    wanted = term.word
    if term.kind == "prefix":
        return lambda word: word.startswith(wanted)
    if stem is not None:
        root = stem(wanted)
        return lambda word: word == wanted or stem(word) == root
    if language != "english" or is_unspaced(wanted):
        return lambda word: word == wanted
    return lambda word: word == wanted or _akin(word, wanted)


def _akin(word: str, other: str) -> bool:
    """Whether two English words look like forms of one: for highlights without a stemmer."""
    shared = 0
    for left, right in zip(word, other, strict=False):
        if left != right:
            break
        shared += 1
    return shared >= 3 and word[shared:] in _ENDINGS and other[shared:] in _ENDINGS


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _word_start(text: str, at: int) -> int:
    """Where to begin so that no word is cut, if there is a blank near."""
    if at == 0:
        return 0
    blank = text.find(" ", at - 1, at + 20)
    return at if blank < 0 else blank + 1


def _word_end(text: str, at: int) -> int:
    if at == len(text):
        return at
    blank = text.rfind(" ", max(0, at - 20), at + 1)
    return at if blank < 0 else blank


#: Tokens of the shortest excerpt, but for that of the best hit.
LEAST: Final = 25


class SearchHit(Struct, frozen=True):
    """A message that was found. `score` is above 0 and compares within one search only, `conversation_id` is where it
    was found. `highlights` are up to 3 fragments with terms. `before` and `after` are its neighbours, as
    many as the call's `context` says, ascending; they need not match. `archived`: a summary stands for it; then its
    neighbours are archived messages too.

    `excerpt`: the passage that matches, cut to what is left of the `token_cap`, if the message is too long for it; then
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
        """Whether the message is longer than what is left of the cap, so that it comes with an excerpt."""
        return self.excerpt is not None


class SearchHits(list[SearchHit]):
    """The hits of one page, best first. `total`: how many messages match; if more than 500 match a term, there may be
    more."""

    def __init__(self, hits: Iterable[SearchHit] = (), total: int = 0) -> None:
        super().__init__(hits)
        self.total = total


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
    """The hits, best first, that fit into so many tokens, by `counter` or estimated. None: all. 0: none.

    Messages and neighbours count as in `message_tokens`, an excerpt as a text. Where only the message fits, it comes
    without its neighbours. A message that does not fit comes with an excerpt of its share of what is left, so that it
    does not hide what comes after it; it is skipped if that share is below LEAST tokens. The best hit always comes,
    however short its excerpt, so that a search with matches never looks empty.
    """
    if token_cap is None:
        return list(hits)
    kept: list[SearchHit] = []
    left = token_cap
    for index, hit in enumerate(hits if token_cap else ()):
        alone = message_tokens(hit.message, counter)
        beside = sum(message_tokens(one, counter) for one in (*hit.before, *hit.after))
        if alone + beside <= left:
            kept.append(hit)
            left -= alone + beside
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
    if counter is None:
        start, stop = passage(text, ranges, tokens * CHARACTERS_PER_TOKEN)
        return text[start:stop]

    def cut(size: int) -> str:
        return text[slice(*passage(text, ranges, size))]

    return cut(largest(cut, len(text), tokens, counter))


def largest(make: Callable[[int], str], most: int, tokens: int, counter: TokenCounter | None = None) -> int:
    """The largest size up to `most` for which `make` gives a text of at most so many tokens; 0 if there is none.

    It assumes that tokens grow with the size. If they do not, the result still fits, but a larger one may fit too.
    """
    if most and text_tokens(make(most), counter) <= tokens:
        return most
    fits, over = 0, most
    while over - fits > 1:
        size = (fits + over) // 2
        if text_tokens(make(size), counter) <= tokens:
            fits = size
        else:
            over = size
    return fits
