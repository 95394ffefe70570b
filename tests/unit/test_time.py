"""Times are exact: each microsecond that a score can hold survives a round trip."""

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.errors import InvalidTimestampError
from redis_history.values.times import MAX_MICROSECONDS, from_microseconds, to_microseconds
from tests.property.strategies import microseconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EDGES = [0, 1, -1, 999_999, 10**6, 2**32 * 10**6, 2**33 * 10**6, 2**52, MAX_MICROSECONDS]


@given(microseconds)
def test_microseconds_survive_a_round_trip(instant: int) -> None:
    moment = from_microseconds(instant)
    assert moment == EPOCH + timedelta(microseconds=instant)
    assert moment.utcoffset() == timedelta(0)
    assert to_microseconds(moment) == instant


@pytest.mark.parametrize("edge", EDGES)
def test_microseconds_near_the_limits_are_exact(edge: int) -> None:
    for sign in (1, -1):
        for near in range(-2000, 2001):
            instant = sign * edge + near
            if abs(instant) <= MAX_MICROSECONDS:
                assert from_microseconds(instant) == EPOCH + timedelta(microseconds=instant)


@given(microseconds, st.integers(-14 * 60, 14 * 60))
def test_time_zones_are_converted_and_naive_times_are_utc(instant: int, minutes: int) -> None:
    moment = from_microseconds(instant)
    for same in (moment.astimezone(timezone(timedelta(minutes=minutes))), moment.replace(tzinfo=None)):
        assert to_microseconds(same) == to_microseconds(same.isoformat()) == instant


@given(st.integers(-(2**33), 2**33), st.integers(0, 999_999))
def test_float_seconds_become_the_nearest_microsecond(seconds: int, micro: int) -> None:
    """As `time.time()` gives them: below 2**33 seconds a float tells microseconds apart."""
    instant = seconds * 10**6 + micro
    if abs(instant) < 2**33 * 10**6:
        assert to_microseconds(instant / 10**6) == instant


@given(st.floats(-9.0e9, 9.0e9))
def test_floats_are_rounded(seconds: float) -> None:
    away = abs(to_microseconds(seconds) - Fraction(seconds) * 10**6)
    assert away <= Fraction(1, 2) + Fraction(math.ulp(seconds * 1e6)), "half a microsecond, and what floats lose"


@pytest.mark.parametrize(
    ("value", "instant"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 00:00:00.000001+00:00", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("19700101T000001Z", 10**6),
        ("1970-01-01T01:00+01:00", 0),
        ("1970-W01-4", 0),
        ("1970-01-01T00:00:01.0000004Z", 10**6),
        ("1970-01-01T00:00:00.9999996000000001Z", 10**6),
        ("2255-06-05T23:47:34.740991Z", MAX_MICROSECONDS),
        ("1684-07-28T00:12:25.259009Z", -MAX_MICROSECONDS),
        (9_007_199_254, 9_007_199_254 * 10**6),
        (-9_007_199_254, -9_007_199_254 * 10**6),
    ],
)
def test_strings_and_whole_seconds(value: str | int, instant: int) -> None:
    assert to_microseconds(value) == instant


OUTSIDE = [
    *("2255-06-05T23:47:34.740992Z", "1684-07-28T00:12:25.259008Z", "0001-01-01T00:00+14:00"),
    *("9999-12-31T23:59:59.999999-14:00", "9999-12-31T23:59:59.999999999Z", datetime.min, datetime.max),
    *(datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), datetime.max.replace(tzinfo=timezone.min)),
    *(9_007_199_255, -9_007_199_255, 1_769_860_800_000, 1e18, -1e300, 1e305, -1.7e308, 10**400, -(10**5000)),
]


@pytest.mark.parametrize(
    "outside",
    OUTSIDE,
    ids=lambda value: repr(value)[:40] if not isinstance(value, int) else f"int{value.bit_length()}",
)
def test_times_out_of_range_are_rejected(outside: Any) -> None:
    with pytest.raises(InvalidTimestampError):
        to_microseconds(outside)


NOT_TIMES = [
    "",
    " ",
    "now",
    "2026-02-30",
    "2026-01-01T25:00",
    "12:00",
    "\ud800",
    "x" * 5000,
    "2026-01-01T00:00:00+99:00",
]


@pytest.mark.parametrize(
    "value",
    [*NOT_TIMES, math.nan, math.inf, -math.inf, None, True, b"2026-01-01", Decimal(1), [1], {}, object(), 1j],
    ids=lambda value: repr(value)[:20],
)
def test_other_values_are_rejected_with_a_short_message(value: Any) -> None:
    with pytest.raises(InvalidTimestampError) as caught:
        to_microseconds(value)
    assert len(str(caught.value)) < 200


@given(st.text(max_size=40) | st.integers() | st.floats() | st.datetimes(timezones=st.none() | st.timezones()))
def test_no_value_raises_another_error(thing: Any) -> None:
    with suppress(InvalidTimestampError):
        assert abs(to_microseconds(thing)) <= MAX_MICROSECONDS
