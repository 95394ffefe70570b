"""Finds the times that a query names, in English or as ISO dates. Messages of these times come first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from redis_history._time import to_microseconds

#: From a time, and up to a later one, in microseconds since 1970 UTC.
Period = tuple[int, int]

_NAMES: Final = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_MONTH: Final = rf"(?P<month>{'|'.join(_NAMES)})"
_DAY: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR: Final = r"(?P<year>(?:19|20)\d\d)\b"
_ISO: Final = re.compile(r"(?<![\d-])(?P<year>(?:19|20)\d\d)-(?P<number>\d\d)(?:-(?P<day>\d\d))?(?![\d-])", re.ASCII)
_DAY_FIRST: Final = re.compile(rf"\b{_DAY} (?:of )?{_MONTH}\b(?:,? {_YEAR})?", re.IGNORECASE | re.ASCII)
_MONTH_FIRST: Final = re.compile(rf"\b{_MONTH} {_DAY}\b(?:,? {_YEAR})?", re.IGNORECASE | re.ASCII)
_OF_YEAR: Final = re.compile(rf"\b{_MONTH},? (?:of )?{_YEAR}", re.IGNORECASE | re.ASCII)
#: It needs a word before it: "may" is a verb, too.
_MONTH_ALONE: Final = re.compile(
    rf"\b(?P<which>in|during|since|until|before|after|early|late|this|last) {_MONTH}\b(?!,? \d)",
    re.IGNORECASE | re.ASCII,
)
_YEAR_ALONE: Final = re.compile(rf"\b(?:in|during|of|since) {_YEAR}(?!-)", re.IGNORECASE | re.ASCII)
_RELATIVE: Final = re.compile(
    r"\b(?P<which>today|yesterday|(?:this|last)(?= (?P<unit>week|month|year)\b))\b", re.IGNORECASE | re.ASCII
)
#: In this order: "July 2023" is in "7 July 2023".
_DATES: Final = (_ISO, _DAY_FIRST, _MONTH_FIRST, _OF_YEAR, _MONTH_ALONE, _YEAR_ALONE, _RELATIVE)
#: A date without a year means the same day of each of so many years.
_YEARS: Final = 10
_MAX_PERIODS: Final = 30


def named_periods(query: str, now: datetime | None = None, zone: tzinfo = UTC) -> tuple[Period, ...]:
    """The days, months and years that a query names, in the time zone. `now` is for "yesterday" and "last May"; None:
    the clock."""
    now = (now or datetime.now(UTC)).astimezone(zone)
    found: dict[Period, None] = {}
    for pattern in _DATES:
        for match in pattern.finditer(query):
            groups = {name: value.lower() for name, value in match.groupdict().items() if value}
            for begin, end in _spans({"which": "", **groups}, now):
                found[to_microseconds(begin), to_microseconds(end)] = None
        query = pattern.sub("|", query)
    return tuple(found)[:_MAX_PERIODS]


def _spans(said: dict[str, str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    which, last = said["which"], said["which"] == "last"
    if which in ("today", "yesterday"):
        begin = today - timedelta(days=which == "yesterday")
        yield begin, begin + timedelta(days=1)
    elif said.get("unit") == "week":
        begin = today - timedelta(days=today.weekday() + 7 * last)
        yield begin, begin + timedelta(days=7)
    elif said.get("unit") == "month":
        month = today.replace(day=1)
        yield _month(month - timedelta(days=1) if last else month)
    elif said.get("unit") == "year":
        yield _year(today, today.year - last)
    elif "month" in said or "number" in said:
        month_number = int(said["number"]) if "number" in said else _NAMES.index(said["month"]) + 1
        newest = today.year - (month_number > today.month or (last and month_number == today.month))
        if "year" in said:
            years = [int(said["year"])]
        elif which == "this":
            years = [today.year]
        else:
            years = [newest - back for back in range(1 if last else _YEARS)]
        for year in years:
            try:
                begin = today.replace(year=year, month=month_number, day=int(said.get("day", 1)))
            except ValueError:  # there is no such day
                continue
            yield (begin, begin + timedelta(days=1)) if "day" in said else _month(begin)
    else:
        yield _year(today, int(said["year"]))


def _month(day: datetime) -> tuple[datetime, datetime]:
    begin = day.replace(day=1)
    return begin, (begin + timedelta(days=31)).replace(day=1)


def _year(day: datetime, year: int) -> tuple[datetime, datetime]:
    begin = day.replace(year=year, month=1, day=1)
    return begin, begin.replace(year=year + 1)
