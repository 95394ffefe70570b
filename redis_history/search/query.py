"""Parses the queries of people and models into terms. Every text is valid, and no syntax of the server gets through.

A term is a word, a "phrase in quotes" or the beginning of words*. A message matches if any term does. A phrase that no
message has counts as its words. Words without a blank between them (a path, a code, an identifier) are a phrase, too.
A term holds only letters, digits and marks. An open quote, a lone star and operators are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, tzinfo
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from redis_history._validation import refuse
from redis_history.errors import InvalidInputError
from redis_history.search.dates import Period, named_periods
from redis_history.search.words import is_unspaced, stop_words, words

#: The rest of a longer query is ignored.
MAX_QUERY_CHARACTERS: Final = 100_000
#: Dates are looked for in the beginning.
MAX_DATED_CHARACTERS: Final = 1_000
#: Terms of a query that are searched for: the rarest among the first MAX_CANDIDATES.
MAX_TERMS: Final = 128
MAX_CANDIDATES: Final = 512
#: Words of a phrase that are searched for: the first ones.
MAX_PHRASE: Final = 32
_MIN_PREFIX: Final = 2

_QUOTED: Final = re.compile(r'"([^"]*)"|“([^“”]*)”|„([^„“”]*)[“”]')
#: Words without a blank between them, such as a path, a code or a date: also a phrase. Not those with an apostrophe.
_COMPOUND: Final = re.compile(r"[^\s'’ʼ\"“”„*]++(?!\*)")
#: Of these, those with a single word, as most are.
_PLAIN: Final = re.compile(r"[^\w\s]*[A-Z]?[a-z]*[^\w\s]*")
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
    """The distinct terms of a query, at most MAX_CANDIDATES, in order; without terms nothing can match. `periods`: the
    times that it names; `names`: its words that may name the writer of a message."""

    terms: tuple[Term, ...]
    periods: tuple[Period, ...] = ()
    language: str = "english"
    names: tuple[str, ...] = ()

    def words_of(self, phrase: Term) -> tuple[Term, ...]:
        """The words of a phrase, as they are searched for if nothing has the phrase."""
        return _without_stop_words(_words([*phrase.words]), self.language)

    def widened(self, totals: Sequence[int]) -> Query:
        """The query with the words of each phrase that nothing has in its place; `totals` are the matches of each
        term."""
        terms: dict[Term, None] = {}
        for term, total in zip(self.terms, totals, strict=True):
            terms.update(dict.fromkeys((term,) if total or term.kind != "phrase" else self.words_of(term)))
        if tuple(terms) == self.terms:
            return self
        return replace(self, terms=tuple(terms)[:MAX_CANDIDATES], names=_names(terms))

    def rarest(self, totals: Sequence[int]) -> Query:
        """The query with its MAX_TERMS rarest terms that anything has, in their order."""
        found = [(total, at) for at, total in enumerate(totals) if total]
        kept = sorted(at for _, at in sorted(found)[:MAX_TERMS])
        return replace(self, terms=tuple(self.terms[at] for at in kept))


def parse_query(query: str, language: str = "english", zone: tzinfo = UTC) -> Query:
    """The terms of a query. Stop words of the language are left out, unless the query has only stop words. `zone`: the
    time zone of the days that it names.

    Raises InvalidInputError for anything but a string.
    """
    if not isinstance(query, str):
        refuse(query, "query", "a str", InvalidInputError)
    terms = _without_stop_words(_terms(query[:MAX_QUERY_CHARACTERS]), language)
    return Query(terms, named_periods(query[:MAX_DATED_CHARACTERS], zone=zone), language, _names(terms))


def _names(terms: Iterable[Term]) -> tuple[str, ...]:
    named = [one.words[0] for one in terms if one.kind == "word" and len(one.words[0]) > 1 and one.words[0].isalpha()]
    return tuple(named[:MAX_TERMS])


def _without_stop_words(found: Iterable[Term], language: str) -> tuple[Term, ...]:
    stop = stop_words(language)
    terms: dict[Term, None] = {}
    stopped: dict[Term, None] = {}
    for term in found:
        (stopped if term.kind == "word" and term.words[0] in stop else terms)[term] = None
        if len(terms) == MAX_CANDIDATES:
            break
    return tuple(terms or stopped)[:MAX_CANDIDATES]


def _terms(query: str) -> list[Term]:
    terms: list[Term] = []
    end = 0
    for quoted in _QUOTED.finditer(query):
        terms += _free(query[end : quoted.start()])
        terms += _phrase(next(filter(None, quoted.groups()), ""))
        end = quoted.end()
    return [*terms, *_free(query[end:])]


def _free(text: str) -> list[Term]:
    terms: list[Term] = []
    end = 0
    for star in _STAR.finditer(text):
        found = words(text[end : star.start()])
        end = star.end()
        # The word before the star. "**bold**" is emphasis by a model, not a prefix.
        prefix = re.search(r"(?<!\*)\b\w+$", text[max(0, star.start() - 200) : star.start()])
        if prefix and found and len(found[-1]) >= _MIN_PREFIX and not is_unspaced(found[-1]):
            terms += [*_words(found[:-1]), Term("prefix", (found[-1],))]
        else:
            terms += _words(found)
    terms += _words(words(text[end:]))
    for compound in _COMPOUND.findall(text):
        if _PLAIN.fullmatch(compound):
            continue
        found = words(compound)
        if len(found) > 1 and not any(map(is_unspaced, found)):
            terms.append(Term("phrase", tuple(found[:MAX_PHRASE])))
    return terms


def _words(found: list[str]) -> list[Term]:
    terms: list[Term] = []
    before = ""
    for word in found:
        if word.isascii() or len(word) == 2 or not is_unspaced(word):
            terms.append(Term("word", (word,)))
        elif len(before) != 2 or not is_unspaced(before):  # else its last pair contains it
            terms.append(Term("prefix", (word,)))
        before = word
    return terms


def _phrase(text: str) -> list[Term]:
    found = words(text)
    if len(found) > 1 and len(found[-1]) == 1 and len(found[-2]) == 2 and is_unspaced(found[-2] + found[-1]):
        del found[-1]  # the run may be longer in the text
    if not found:
        return []
    if len(found) == 1 and is_unspaced(found[0]) and len(found[0]) == 1:
        return [Term("prefix", (found[0],))]
    return [Term("phrase", tuple(found[:MAX_PHRASE]))]
