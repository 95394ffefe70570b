"""Parses the queries of people and models into terms and times. Every text is valid, and no syntax of the server gets
through.

A term is a word, a "phrase in quotes" or the beginning of words*. A message matches if any term does. A phrase that no
message has counts as its words. Words without a blank between them (a path, a code, an identifier) are a phrase, too.
A term holds only letters, digits and marks. An open quote, a lone star and operators are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from redis_history.errors import InvalidInputError
from redis_history.store.search.words import is_unspaced, words
from redis_history.values._validation import refuse
from redis_history.values.times import to_microseconds

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


# Words of a question that do not describe its subject. Negations and numbers are not among them.
_ENGLISH: Final = """
    a about am an and any are aren as at be been being but by can could couldn d did didn do does doesn doing done for
    from had hadn has hasn have haven having he her hers him his how i if in into is isn it its itself ll m may me might
    my of on or our ours re s shall she should shouldn so some such t than that the their theirs them then there these
    they this those to us ve was wasn we were weren what when where which who whom whose why will with would wouldn you
    your yours
"""
_STOP_WORDS: Final = {"english": frozenset(_ENGLISH.split())}

#: From a time, and up to a later one, in microseconds since 1970 UTC.
Period = tuple[int, int]


class Term(Struct, frozen=True):
    """A "word" matches words with its stem, a "phrase" its words as they are and in this order, a "prefix" every word
    that begins with it."""

    kind: Literal["word", "phrase", "prefix"]
    words: tuple[str, ...]

    @property
    def word(self) -> str:
        return self.words[0]


class Query(Struct, frozen=True):
    """The distinct terms of a query, at most MAX_CANDIDATES, in order. A query without terms never matches. `periods`
    are the times that it names, `names` its words that may name the writer of a message."""

    terms: tuple[Term, ...]
    periods: tuple[Period, ...] = ()
    language: str = "english"
    names: tuple[str, ...] = ()

    def words_of(self, phrase: Term) -> tuple[Term, ...]:
        """The words of a phrase, which are searched instead if the phrase does not match."""
        return _without_stop_words(_words([*phrase.words]), self.language)

    def widened(self, totals: Sequence[int]) -> Query:
        """The query with the words of each phrase without matches in its place; `totals` are the numbers of matches of
        each term."""
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


def stop_words(language: str) -> frozenset[str]:
    """Words that are not searched for. Only English has some; elsewhere the rareness of words decides."""
    return _STOP_WORDS.get(language, frozenset())


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


# The times that a query names, in English, German or Chinese, or as ISO dates. Messages of these come first.

_MONTH_NAMES: Final = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_GERMAN: Final = (
    *("januar", "februar", "märz", "april", "mai", "juni", "juli"),
    *("august", "september", "oktober", "november", "dezember"),
)
_MONTHS: Final = {name: number for names in (_MONTH_NAMES, _GERMAN) for number, name in enumerate(names, 1)}
_DIGITS: Final = "一二三四五六七八九"
#: The Chinese numbers from 0, which is empty, to 39.
_NUMBERS: Final = {
    f"{tens}{ones}": 10 * at + number
    for at, tens in enumerate(("", "十", "二十", "三十"))
    for number, ones in enumerate(("", *_DIGITS))
}
#: The meaning of a word for a day, month, week or year.
_WHICH: Final = {
    **dict.fromkeys(("heute", "今天", "今日"), "today"),
    **dict.fromkeys(("gestern", "昨天", "昨日"), "yesterday"),
    **dict.fromkeys(("vorgestern", "前天"), "before yesterday"),
    **dict.fromkeys(("diese", "diesen", "dieser", "dieses", "这", "本", "今年"), "this"),
    **dict.fromkeys(("letzte", "letzten", "letzter", "letztes", "上", "去年"), "last"),
}
_UNITS: Final = {
    **dict.fromkeys(("woche", "周", "星期", "礼拜"), "week"),
    **dict.fromkeys(("monat", "月"), "month"),
    **dict.fromkeys(("jahr", "年"), "year"),
}

_FLAGS: Final = re.IGNORECASE | re.ASCII
_MONTH: Final = rf"(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})"
_DAY: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th|\.)?"
_YEAR: Final = r"(?P<year>(?:19|20)\d\d)\b"
_THIS: Final = r"this|last|(?:diese|letzte)[nrs]?"
_CHINESE: Final = rf"(?:\d{{1,2}}|[{_DIGITS}十]{{1,3}})"
_ISO: Final = re.compile(r"(?<![\d-])(?P<year>(?:19|20)\d\d)-(?P<number>\d\d)(?:-(?P<day>\d\d))?(?![\d-])", re.ASCII)
_DOTTED: Final = re.compile(r"(?<![\d.])(?P<day>\d{1,2})\.(?P<number>\d{1,2})\.(?P<year>(?:19|20)\d\d)(?!\d)", re.ASCII)
_DAY_FIRST: Final = re.compile(rf"\b{_DAY} (?:of )?{_MONTH}\b(?:,? {_YEAR})?", _FLAGS)
_MONTH_FIRST: Final = re.compile(rf"\b{_MONTH} {_DAY}\b(?:,? {_YEAR})?", _FLAGS)
_OF_YEAR: Final = re.compile(rf"\b{_MONTH},? (?:of )?{_YEAR}", _FLAGS)
#: It needs a word before it: "may" is a verb, too.
_MONTH_ALONE: Final = re.compile(
    rf"\b(?P<which>in|during|since|until|before|after|early|late|im|seit|bis|anfang|ende|{_THIS}) {_MONTH}\b(?!,? \d)",
    _FLAGS,
)
_YEAR_ALONE: Final = re.compile(rf"\b(?:in|during|of|since|seit|jahre?) {_YEAR}(?!-)", _FLAGS)
_RELATIVE: Final = re.compile(
    rf"\b(?P<which>today|yesterday|heute|gestern|vorgestern|"
    rf"(?:{_THIS})(?= (?P<unit>week|month|year|woche|monat|jahr)\b))\b",
    _FLAGS,
)
_CHINESE_YEAR: Final = re.compile(
    rf"(?P<year>(?:19|20)\d\d)年(?:(?P<number>{_CHINESE})月(?:(?P<day>{_CHINESE})[日号])?)?", re.ASCII
)
_CHINESE_MONTH: Final = re.compile(
    rf"(?P<which>[去今]年)?(?<![\d{_DIGITS}十])(?P<number>{_CHINESE})月(?:(?P<day>{_CHINESE})[日号])?", re.ASCII
)
_CHINESE_RELATIVE: Final = re.compile(
    r"(?P<which>[今昨]天|[今昨]日|前天|[去今]年|[上这本](?=个?(?P<unit>周(?![围边末])|星期|礼拜|月)))"
)
#: In this order: "July 2023" is in "7 July 2023".
_DATES: Final = (
    *(_ISO, _DOTTED, _DAY_FIRST, _MONTH_FIRST, _OF_YEAR, _MONTH_ALONE, _YEAR_ALONE, _RELATIVE),
    *(_CHINESE_YEAR, _CHINESE_MONTH, _CHINESE_RELATIVE),
)
#: A date without a year means the same day of each of this many years.
_YEARS: Final = 10
_DAYS_AGO: Final = {"today": 0, "yesterday": 1, "before yesterday": 2}
_MAX_PERIODS: Final = 30


def named_periods(query: str, now: datetime | None = None, zone: tzinfo = UTC) -> tuple[Period, ...]:
    """The days, months and years that a query names, in the time zone. `now` is for "yesterday" and "last May"; None:
    the clock."""
    now = (now or datetime.now(UTC)).astimezone(zone)
    found: dict[Period, None] = {}
    for pattern in _DATES:
        for match in pattern.finditer(query):
            groups = {name: value.lower() for name, value in match.groupdict().items() if value}
            for begin, end in _spans(groups, now):
                found[to_microseconds(begin), to_microseconds(end)] = None
        query = pattern.sub("|", query)
    return tuple(found)[:_MAX_PERIODS]


def _spans(said: dict[str, str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    word, unit = said.get("which", ""), said.get("unit", "")
    which, unit = _WHICH.get(word, word), _UNITS.get(unit, unit)
    last, of_year = which == "last", word.endswith("年")
    if which in _DAYS_AGO:
        begin = today - timedelta(days=_DAYS_AGO[which])
        yield begin, begin + timedelta(days=1)
    elif unit == "week":
        begin = today - timedelta(days=today.weekday() + 7 * last)
        yield begin, begin + timedelta(days=7)
    elif unit == "month":
        month = today.replace(day=1)
        yield _month(month - timedelta(days=1) if last else month)
    elif unit == "year" or (of_year and "number" not in said):
        yield _year(today, today.year - last)
    elif "month" in said or "number" in said:
        month_number = _MONTHS[said["month"]] if "month" in said else _number(said["number"])
        newest = today.year - (month_number > today.month or (last and month_number == today.month))
        if "year" in said:
            years = [int(said["year"])]
        elif of_year:
            years = [today.year - last]
        elif which == "this":
            years = [today.year]
        else:
            years = [newest - back for back in range(1 if last else _YEARS)]
        for year in years:
            try:
                begin = today.replace(year=year, month=month_number, day=_number(said.get("day", "1")))
            except ValueError:  # there is no such day
                continue
            yield (begin, begin + timedelta(days=1)) if "day" in said else _month(begin)
    else:
        yield _year(today, int(said["year"]))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else _NUMBERS.get(text, 0)


def _month(day: datetime) -> tuple[datetime, datetime]:
    begin = day.replace(day=1)
    return begin, (begin + timedelta(days=31)).replace(day=1)


def _year(day: datetime, year: int) -> tuple[datetime, datetime]:
    begin = day.replace(year=year, month=1, day=1)
    return begin, begin.replace(year=year + 1)
