"""Parses the queries of people and models into terms. Every text is valid, and no syntax of the server gets through.

A term is a word, a "phrase in quotes" or the beginning of words*. A message matches if any term does. A term holds only
letters, digits and marks. An open quote, a lone star and operators are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from redis_history._validation import refuse
from redis_history._words import is_unspaced, stop_words, words
from redis_history.errors import InvalidInputError
from redis_history.search.dates import Period, named_periods

#: The rest of a longer query is ignored.
MAX_QUERY_CHARACTERS: Final = 100_000
#: Dates are looked for in the beginning.
MAX_DATED_CHARACTERS: Final = 1_000
#: Terms of a query, and words of a phrase, that are searched for: the first ones.
MAX_TERMS: Final = 32
_MIN_PREFIX: Final = 2

_QUOTED: Final = re.compile(r'"([^"]*)"|“([^“”]*)”|„([^„“”]*)[“”]')
_STAR: Final = re.compile(r"(?<![*\s])\*+(?!\w)")


class Term(Struct, frozen=True):
    """A "word" matches words with its stem, a "phrase" its words as they are and in this order, a "prefix" every word
    that begins with it."""

    kind: Literal["word", "phrase", "prefix"]
    words: tuple[str, ...]

    @property
    def word(self) -> str:
        return self.words[0]


class Query(Struct, frozen=True):
    """The distinct terms of a query, at most MAX_TERMS, in order; without terms nothing can match. `periods`: the times
    that it names."""

    terms: tuple[Term, ...]
    periods: tuple[Period, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)


def parse_query(query: str, language: str = "english") -> Query:
    """The terms of a query. Stop words of the language are left out, unless the query has only stop words.

    Raises InvalidInputError for anything but a string.
    """
    if not isinstance(query, str):
        refuse(query, "query", "a str", InvalidInputError)
    stop = stop_words(language)
    terms: dict[Term, None] = {}
    stopped: dict[Term, None] = {}
    for term in _terms(query[:MAX_QUERY_CHARACTERS]):
        (stopped if term.kind == "word" and term.word in stop else terms)[term] = None
        if len(terms) == MAX_TERMS:
            break
    return Query(tuple(terms or stopped)[:MAX_TERMS], named_periods(query[:MAX_DATED_CHARACTERS]))


def _terms(query: str) -> Iterator[Term]:
    end = 0
    for quoted in _QUOTED.finditer(query):
        yield from _free(query[end : quoted.start()])
        yield from _phrase(next(filter(None, quoted.groups()), ""))
        end = quoted.end()
    yield from _free(query[end:])


def _free(text: str) -> Iterator[Term]:
    end = 0
    for star in _STAR.finditer(text):
        found = words(text[end : star.start()])
        end = star.end()
        # The word before the star. "**bold**" is emphasis by a model, not a prefix.
        prefix = re.search(r"(?<!\*)\b\w+$", text[max(0, star.start() - 200) : star.start()])
        if prefix and found and len(found[-1]) >= _MIN_PREFIX and not is_unspaced(found[-1]):
            yield from _words(found[:-1])
            yield Term("prefix", (found[-1],))
        else:
            yield from _words(found)
    yield from _words(words(text[end:]))


def _words(found: list[str]) -> Iterator[Term]:
    before = ""
    for word in found:
        if not is_unspaced(word) or len(word) == 2:
            yield Term("word", (word,))
        elif len(before) != 2 or not is_unspaced(before):  # else its last pair contains it
            yield Term("prefix", (word,))
        before = word


def _phrase(text: str) -> Iterator[Term]:
    found = words(text)
    if len(found) > 1 and len(found[-1]) == 1 and len(found[-2]) == 2 and is_unspaced(found[-2] + found[-1]):
        del found[-1]  # the run may be longer in the text
    if len(found) == 1 and is_unspaced(found[0]) and len(found[0]) == 1:
        yield Term("prefix", (found[0],))
    elif found:
        yield Term("phrase", tuple(found[:MAX_TERMS]))
