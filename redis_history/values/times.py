"""Instants as integers: microseconds since 1970-01-01 UTC, exact in a sorted-set score.

A score is a double, so integers are exact only up to 2**53: from the year 1684 to 2255.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from redis_history.errors import InvalidTimestampError

#: A time as users pass it: a datetime (naive means UTC), an ISO 8601 string, or seconds since 1970.
Instant = datetime | str | int | float

MAX_MICROSECONDS = 2**53 - 1
_TOO_FAR = 2.0**60
_FINER = re.compile(r"[.,][0-9]{6}([0-9])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Below 2**33 seconds (the year 2242) doubles are less than a microsecond apart, so the rounding finds the right one.
_EXACT = 2**33 * 1_000_000
_from_timestamp = datetime.fromtimestamp
_MICROSECOND = timedelta(microseconds=1)


def from_microseconds(microseconds: int) -> datetime:
    """The aware UTC datetime of an instant, exact."""
    if 0 <= microseconds < _EXACT:
        return _from_timestamp(microseconds / 1_000_000, UTC)
    return _EPOCH + timedelta(microseconds=microseconds)


def to_microseconds(value: Instant) -> int:
    """Microseconds since 1970 UTC, rounded.

    Raises InvalidTimestampError for other types, numbers that are not finite, unreadable strings, and times outside the
    years that a score holds exactly.
    """
    if isinstance(value, str):
        value = _parse(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        microseconds = (value - _EPOCH) // _MICROSECOND
    elif isinstance(value, int) and not isinstance(value, bool):
        microseconds = value * 1_000_000
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidTimestampError(f"the timestamp {value!r} is not finite")
        microseconds = round(max(-_TOO_FAR, min(_TOO_FAR, value * 1_000_000)))
    else:
        raise InvalidTimestampError(
            f"a timestamp is a datetime, an ISO 8601 string or seconds since 1970, not {type(value).__name__}"
        )
    if abs(microseconds) > MAX_MICROSECONDS:
        shown = f"of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > 2**64 else repr(value)
        raise InvalidTimestampError(
            f"the timestamp {shown} is outside the years 1684 to 2255; numbers are seconds since 1970, "
            "so milliseconds must be divided by 1000"
        )
    return microseconds


def cutoff(bound: Instant | timedelta, now: datetime | None = None) -> datetime:
    """The time `bound`, or the time so long ago. Raises InvalidTimestampError."""
    if not isinstance(bound, timedelta):
        return from_microseconds(to_microseconds(bound))
    try:
        return from_microseconds(to_microseconds((now or datetime.now(UTC)) - bound))
    except OverflowError as error:
        raise InvalidTimestampError(f"{bound!r} ago is outside the years 1684 to 2255") from error


def _parse(text: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidTimestampError(
            f"{text[:64]!r} is not an ISO 8601 time; write it like 2026-01-31T12:00:00Z"
        ) from error
    # fromisoformat truncates to microseconds. The seventh digit rounds.
    finer = _FINER.search(text)
    # The last microsecond of the year 9999 cannot be rounded up; it is outside the allowed years anyway.
    rounds = finer is not None and finer[1] >= "5" and parsed.replace(tzinfo=None) < datetime.max
    return parsed + _MICROSECOND if rounds else parsed
