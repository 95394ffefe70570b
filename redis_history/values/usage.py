"""The cost of models' answers in tokens and money, for one message and for many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal, Self, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.values._validation import check_name, is_integer, refuse
from redis_history.values.parts import OpenStruct
from redis_history.values.times import Instant, from_microseconds, to_microseconds

#: The most tokens and the highest cost that one message has, so that a million of them sum to an exact double.
MAX_TOKENS: Final = 10**9
MAX_COST: Final = 10**6
#: The parts of a unit of money that totals count.
NANO: Final = 10**9
#: Bytes of one day in the field '%' of a conversation's state, and of a total (see lua/_usage.lua).
_NUMBER: Final = 7
_TOTAL: Final = 4 * _NUMBER
_DAY: Final = 3
_MICROSECONDS: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)

#: The calendar, in UTC, by which a budget begins anew; "total": never.
Period = Literal["day", "month", "total"]

#: What `usage_by` gives the totals of.
UsageGroup = Literal["day", "agent"]

#: Input, output and cached tokens, and the cost in billionths of the unit.
Numbers = tuple[int, int, int, int]
NOTHING: Final[Numbers] = (0, 0, 0, 0)


class Usage(OpenStruct, frozen=True):
    """Tokens and cost of a model's answer, or of many.

    - `input_tokens`: all tokens of the request, also those from a cache and those that were written to it.
    - `output_tokens`: all tokens of the answer, reasoning included.
    - `cached_tokens`: those of the input that a cache provided.
    - `cost`: in the unit of money that the application uses for all messages, such as dollars. 0: not known.
    - `model`: its name; None in a sum, or if it is not known.

    Tokens of a message are integers from 0 to 1,000,000,000, and its cost is a number from 0 to 1,000,000, of which
    sums count billionths. A message with anything else raises InvalidMessageError.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float = 0.0
    model: str | None = None
    extra: dict[str, Any] | None = None

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return total_of(a + b for a, b in zip(self.numbers, other.numbers, strict=True))

    @property
    def numbers(self) -> Numbers:
        """As totals count it."""
        return self.input_tokens, self.output_tokens, self.cached_tokens, round(self.cost * NANO)

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """The checked usage of a message, from a Usage, a dict of its fields or None. Raises InvalidMessageError."""
        if value is None:
            return None
        if isinstance(value, Mapping):
            if unknown := [name for name in value if name not in cls.__struct_fields__]:
                refuse(unknown[0], "a field of usage", f"one of {', '.join(_NAMES)}", _Invalid)
            value = cls(**value)
        if type(value) is not cls:
            refuse(value, "usage", "None, a Usage or a dict of its fields", _Invalid)
        for name in ("input_tokens", "output_tokens", "cached_tokens"):
            if not is_integer(getattr(value, name), 0, MAX_TOKENS):
                refuse(getattr(value, name), f"usage.{name}", f"an integer from 0 to {MAX_TOKENS:,}", _Invalid)
        cost = value.cost
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= MAX_COST:
            refuse(cost, "usage.cost", f"a number from 0 to {MAX_COST:,}", _Invalid)
        check_name(value.model, "usage.model", _Invalid)
        if type(cost) is int:  # else the same usage would have two forms of bytes
            force_setattr(value, "cost", float(cost))
        return value


_Invalid: Final = InvalidMessageError
_NAMES: Final = Usage.__struct_fields__[:5]


def total_of(numbers: Iterable[int]) -> Usage:
    """The sum that these numbers are."""
    given, made, cached, cost = numbers
    return Usage(given, made, cached, cost / NANO)


def added(totals: Numbers, more: Iterable[int], sign: int = 1) -> Numbers:
    """The totals with more, or with less. No total is below 0, also if the server has lost a part of it."""
    a, b, c, d = (max(0, total + sign * one) for total, one in zip(totals, more, strict=True))
    return a, b, c, d


def pack_usage(usage: Usage | None) -> bytes:
    """As scripts take it: four numbers with 7 bits in each byte, low ones first; empty without usage."""
    if usage is None:
        return b""
    out = bytearray()
    for number in usage.numbers:
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
    return bytes(out)


def usage_numbers(packed: bytes) -> Numbers:
    """The numbers that `pack_usage` packed."""
    found, number, scale = [], 0, 0
    for byte in packed:
        number |= (byte & 127) << scale
        scale += 7
        if byte < 128:
            found.append(number)
            number = scale = 0
    a, b, c, d = found
    return a, b, c, d


# Totals as scripts store them


def read_total(packed: bytes, at: int = 0) -> Numbers:
    """The numbers of a total. Raises ValueError."""
    if len(packed) < at + _TOTAL:
        raise ValueError("a total of usage is cut off")
    ends = range(at, at + _TOTAL, _NUMBER)
    a, b, c, d = (int.from_bytes(packed[end : end + _NUMBER], "big") for end in ends)
    return a, b, c, d


def pack_total(numbers: Iterable[int]) -> bytes:
    """The bytes that `read_total` reads."""
    return b"".join(number.to_bytes(_NUMBER, "big") for number in numbers)


def read_days(packed: bytes | None) -> dict[int, Numbers]:
    """The totals of a conversation by day, from the field '%' of its state. Raises ValueError."""
    packed = packed or b""
    width = _DAY + _TOTAL
    return {
        int.from_bytes(packed[at : at + _DAY], "big", signed=True): read_total(packed, at + _DAY)
        for at in range(0, len(packed), width)
    }


def pack_days(days: Mapping[int, Numbers]) -> bytes:
    """The bytes that `read_days` reads."""
    return b"".join(day.to_bytes(_DAY, "big", signed=True) + pack_total(days[day]) for day in sorted(days))


def sum_of(days: Mapping[int, Numbers]) -> Usage | None:
    """The sum over the days; None without any."""
    return total_of(map(sum, zip(*days.values(), strict=True))) if days else None


# Days


def day_of(microseconds: int) -> int:
    """The number of the day, in UTC, since 1970."""
    return microseconds // _MICROSECONDS


def date_of(day: int) -> date:
    return _EPOCH + timedelta(days=day)


def day_bound(value: Instant | date | None, name: str) -> int | None:
    """The day of a bound, which is a date or a time. Raises InvalidInputError."""
    if value is None:
        return None
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - _EPOCH).days
    try:
        return day_of(to_microseconds(value))
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}: {error}") from error


def period_days(period: Period, now: datetime) -> tuple[int | None, datetime | None]:
    """The first day of the present period (None: all), and when the next one begins."""
    if period == "total":
        return None, None
    today = now.astimezone(UTC).date()
    first = today if period == "day" else today.replace(day=1)
    following = today + timedelta(days=1) if period == "day" else (first + timedelta(days=32)).replace(day=1)
    return (first - _EPOCH).days, from_microseconds((following - _EPOCH).days * _MICROSECONDS)


class Budget(Struct, frozen=True):
    """The budget of an owner, and how much of it is used, at the moment of the call.

    - `user_id`: the owner. `tokens` and `cost`: the limits of a period, in input and output tokens together, and in the
      unit of `Usage.cost`; None: no limit.
    - `period`: "day" and "month" are those of the calendar in UTC; "total" never begins anew.
    - `used`: the usage of the period. `running`: the number of runs that hold a reservation.
    - `resets_at`: when the next period begins, or None.
    - `exhausted`: no run can begin before the reservations of others end or the next period begins.
    """

    user_id: int | str
    tokens: int | None
    cost: float | None
    period: Period
    used: Usage
    running: int
    resets_at: datetime | None
    exhausted: bool


def is_used_up(budget: Budget) -> bool:
    """Whether no run can begin even after all reservations have ended."""
    over_tokens = budget.tokens is not None and budget.used.total_tokens >= budget.tokens
    return over_tokens or (budget.cost is not None and budget.used.cost >= budget.cost)


class Limits(Struct, frozen=True, array_like=True):
    """The limits that `set_budget` stores. `cost` and `reserved_cost` are billionths. `reserved_…`: what a run
    holds back."""

    tokens: int | None
    cost: int | None
    period: Period
    reserved_tokens: int
    reserved_cost: int

    def exceeded(self, used: Numbers, running: int) -> bool:
        """Whether no further run may begin while these are running."""
        tokens, cost = used[0] + used[1] + running * self.reserved_tokens, used[3] + running * self.reserved_cost
        over_tokens = self.tokens is not None and tokens >= self.tokens
        return over_tokens or (self.cost is not None and cost >= self.cost)


def limits_of(tokens: Any, cost: Any, period: Any, reserve: Any) -> Limits:
    """Raises InvalidInputError."""
    if tokens is not None and not is_integer(tokens, 0, 2**53 - 1):
        refuse(tokens, "tokens", "None or an integer from 0 to 2**53 - 1", InvalidInputError)
    given = isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost)
    if cost is not None and not (given and 0 <= cost <= MAX_COST):
        refuse(cost, "cost", f"None or a number from 0 to {MAX_COST:,}", InvalidInputError)
    if period not in get_args(Period):
        refuse(period, "period", f"one of {', '.join(map(repr, get_args(Period)))}", InvalidInputError)
    share = isinstance(reserve, int | float) and not isinstance(reserve, bool) and 0 <= reserve <= 1
    if not share:
        refuse(reserve, "reserve", "a share of the limits, from 0 to 1", InvalidInputError)
    nano = None if cost is None else round(cost * NANO)
    return Limits(tokens, nano, period, math.ceil((tokens or 0) * reserve), math.ceil((nano or 0) * reserve))


encode_limits = msgspec.msgpack.Encoder().encode
decode_limits = msgspec.msgpack.Decoder(Limits).decode
