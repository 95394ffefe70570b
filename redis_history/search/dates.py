"""Finds the times that a query names, in English, German or Chinese, or as ISO dates. Messages of these come first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from redis_history.model.times import to_microseconds

#: From a time, and up to a later one, in microseconds since 1970 UTC.
Period = tuple[int, int]

_NAMES: Final = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_GERMAN: Final = (
    *("januar", "februar", "märz", "april", "mai", "juni", "juli"),
    *("august", "september", "oktober", "november", "dezember"),
)
_MONTHS: Final = {name: number for names in (_NAMES, _GERMAN) for number, name in enumerate(names, 1)}
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
