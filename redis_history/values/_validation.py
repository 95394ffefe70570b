"""Checks of arguments. Every error names the parameter, the rule and the value."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import tzinfo
from typing import Final, NoReturn

from redis_history.errors import (
    ConfigurationError,
    InvalidInputError,
    MissingExtraError,
    StoreClosedError,
    StoreTypeError,
)

#: The bounds of a signed integer of 64 bits.
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**63 - 1

_SHOWN: Final = 80
_LARGEST: Final = sys.float_info.max

_Error = type[InvalidInputError]


def refuse(value: object, name: str, rule: str, error: _Error = ConfigurationError) -> NoReturn:
    """Raises `error`: `name` must be `rule`, not `value`."""
    shown = repr(value)
    raise error(f"{name} must be {rule}, not {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}")


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors of the block begin with the name of the parameter."""
    try:
        yield
    except InvalidInputError as error:
        raise type(error)(f"{name}: {error}") from error.__cause__


def check_time_zone(value: tzinfo) -> tzinfo:
    """Raises InvalidInputError unless it is a tzinfo."""
    if not isinstance(value, tzinfo):
        refuse(value, "time_zone", 'a tzinfo, such as ZoneInfo("Europe/Berlin")', InvalidInputError)
    return value


def is_integer(value: object, least: float, most: float = math.inf) -> bool:
    """Whether it is an int from `least` to `most`, not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_integer(
    value: object,
    name: str,
    least: int = 0,
    most: float = math.inf,
    *,
    optional: bool = False,
    error: _Error = ConfigurationError,
) -> None:
    """Raises `error` unless it is an int from `least` to `most`, or None if `optional`."""
    if not (value is None and optional) and not is_integer(value, least, most):
        refuse(value, name, _rule("an integer", least, most, optional), error)


def check_number(
    value: object,
    name: str,
    least: float = 0,
    most: float = _LARGEST,
    *,
    above: bool = False,
    kind: str = "a number",
    optional: bool = False,
    error: _Error = ConfigurationError,
) -> None:
    """Raises `error` unless it is a finite number from `least` (`above`: excluded) to `most`, or None if `optional`."""
    if value is None and optional:
        return
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not least <= value <= most
        or (above and value == least)
    ):
        refuse(value, name, _rule(kind, least, most, optional, above), error)


def check_seconds(
    value: object,
    name: str,
    least: float = 0.001,
    most: float = _LARGEST,
    *,
    above: bool = False,
    optional: bool = False,
) -> None:
    """Raises ConfigurationError unless it is a number of seconds from `least` to `most`; see `check_number`."""
    check_number(value, name, least, most, above=above, kind="a number of seconds", optional=optional)


def check_share(value: object, name: str, error: _Error = ConfigurationError) -> None:
    """Raises `error` unless it is a number above 0 and at most 1."""
    check_number(value, name, 0, 1, above=True, error=error)


def check_text(value: object, name: str, *, optional: bool = False, error: _Error = ConfigurationError) -> None:
    """Raises `error` unless it is a str that is not blank."""
    if not (value is None and optional) and not (isinstance(value, str) and value.strip()):
        refuse(value, name, f"{'None or ' * optional}a str that is not blank", error)


def check_choice(value: object, name: str, choices: Collection[object], error: _Error = ConfigurationError) -> None:
    """Raises `error` unless `choices` has it, with the same type."""
    if not any(value == choice and type(value) is type(choice) for choice in choices):  # 1 is not True
        refuse(value, name, f"one of {', '.join(map(repr, choices))}", error)


def check_function(
    value: object,
    name: str,
    kind: str = "a function",
    *,
    optional: bool = True,
    plain: bool = False,
    error: _Error = ConfigurationError,
) -> None:
    """Raise `error` unless `value` is callable (`plain`: and not a coroutine function), or is None if `optional`."""
    if value is None and optional:
        return
    if not callable(value):
        refuse(value, name, f"{'None or ' * optional}{kind}", error)
    if plain and is_coroutine_function(value):
        raise error(f"{name} must be a plain function: {value!r} is a coroutine function, which nothing would await")


def is_coroutine_function(function: object) -> bool:
    """Whether a function or callable object is a coroutine function."""
    call = type(function).__call__ if callable(function) else None
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_names(value: object, name: str, error: _Error = ConfigurationError) -> tuple[str, ...]:
    """The strings of a list. Raises `error` for anything else, such as a single str."""
    if isinstance(value, str):
        refuse(value, name, f"a list, such as [{value[:_SHOWN]!r}]", error)
    found = tuple(value) if isinstance(value, Iterable) else None
    if found is None or not all(isinstance(one, str) for one in found):
        refuse(value, name, "a list of str", error)
    return found


def _rule(kind: str, least: float, most: float, optional: bool, above: bool = False) -> str:
    low, high = (f"{bound:,}".removesuffix(".0") for bound in (least, most))
    if above:
        bounds = f"above {low}" + (f", at most {high}" if most < _LARGEST else "")
    else:
        bounds = f"from {low} to {high}" if most < _LARGEST else f"of at least {low}"
    return f"{'None or ' * optional}{kind} {bounds}"


# Parameters of reads and writes


def check_batch(size: int, name: str) -> None:
    """Raises InvalidInputError unless it is an int from 1 to 100,000."""
    check_integer(size, name, 1, 100_000, error=InvalidInputError)


def check_range(limit: int, offset: int) -> None:
    """Raises InvalidInputError unless both are ints of at least 0."""
    check_integer(limit, "limit", error=InvalidInputError)
    check_integer(offset, "offset", error=InvalidInputError)


def check_name(value: str | None, name: str, error: _Error = InvalidInputError) -> None:
    """Raises `error` unless it is None or a str that UTF-8 can carry."""
    if value is not None and not _is_text(value):
        refuse(value, name, "None or a str without lone surrogates", error)


def check_owner(value: object, name: str) -> None:
    """Raises InvalidInputError unless it is None, a str that UTF-8 can carry, or an int of 64 bits."""
    if value is not None and not _is_text(value) and not is_integer(value, MIN_INTEGER, MAX_INTEGER):
        rule = "None, a str without lone surrogates, or an int from -2**63 to 2**63 - 1"
        refuse(value, name, rule, InvalidInputError)


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def check_process(opened_in: int) -> None:
    """Raises StoreClosedError in another process than the one with this id: connections and threads do not survive a
    fork."""
    if opened_in != os.getpid():
        raise StoreClosedError(
            f"this was opened in process {opened_in}, and process {os.getpid()} was forked from it: create a store in "
            "each process"
        )


def check_list(value: object, name: str, error: _Error = InvalidInputError) -> None:
    """Raises `error` unless it is iterable, and not a text."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        refuse(value, name, "a list", error)


def missing(extra: str, error: ImportError) -> MissingExtraError:
    """The error for a framework that is not installed. Raise it from `error`."""
    return MissingExtraError(f"{error.name or 'a package'} is not installed: pip install 'redis_history[{extra}]'")


def check_store(store: object, who: str, *kinds: type) -> None:
    """Raise StoreTypeError unless the type of `store` is among `kinds` (HistoryStore, AsyncHistoryStore). The wrong
    type would lose data, because a coroutine that is never awaited writes nothing."""
    if isinstance(store, kinds):
        return
    needed = " or ".join(map(_with_article, kinds))
    given = "None" if store is None else _with_article(type(store))
    # Without the URL, which may contain a password.
    hint = f": create a store with {kinds[0].__name__}(url)" if isinstance(store, str) else ""
    raise StoreTypeError(f"{who} needs {needed}, not {given}{hint}")


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"
