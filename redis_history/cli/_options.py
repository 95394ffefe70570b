"""Types and options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from redis_history.model import Role, Scope

# ParamType is generic only in newer versions of click.
if TYPE_CHECKING:
    _Number = click.ParamType[float]
    _Text = click.ParamType[str]
    _Time = click.ParamType[str | datetime]
else:
    _Number = _Text = _Time = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_POSITION = re.compile(r"-?\d+\.\d+")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Duration(_Number):
    """Seconds, or a number with a unit: 500ms, 30s, 5m, 12h, 7d, 2w."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a duration: write 30s, 5m, 12h or 7d", param, ctx)
        return float(found[1]) * _SECONDS[found[2] or "s"]


class Id(_Text):
    """An id, decoded as UTF-8 in every locale."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return os.fsencode(value).decode()
        except UnicodeError:
            return str(value)


class Moment(_Time):
    """A time such as 2026-01-31T12:00 (local time, unless it has a zone), an age such as 2h, or the position of a
    message."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | datetime:
        text = str(value).strip()
        if _POSITION.fullmatch(text):
            return text
        try:
            if (found := _DURATION.fullmatch(text)) and found[2]:
                return datetime.now(UTC) - timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: write 2026-01-31, 2026-01-31T12:00Z or 2h", param, ctx)


class Age(Moment):
    """A time or an age, as in `Moment`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        found = super().convert(value, param, ctx)
        if isinstance(found, str):
            self.fail(f"{value!r} is not a time: write 2026-01-31, 2026-01-31T12:00Z or 2h", param, ctx)
        return found


def named_function(name: str) -> Any:
    """The object at `package.module:function`. Raises click.UsageError."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, ValueError, AttributeError) as error:
        raise click.UsageError(f"{name!r} cannot be found: {error}") from error
    except Exception as error:  # the module may raise anything when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise click.UsageError(f"{name!r} cannot be found: importing its module failed: {reason}") from error
    return found


def _all(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


offset = click.option("--offset", type=click.IntRange(0), default=0, metavar="N", help="Skip the first N.")

#: Options that select messages: parameters `roles`, `participant_ids`, `scope`, `since`, `before`.
message_filters = _all(
    click.option("--role", "roles", type=click.Choice(get_args(Role)), multiple=True,
                 help="Only messages of this role. Repeatable."),
    click.option("--participant", "participant_ids", metavar="ID", multiple=True,
                 help="Only messages of this participant. Repeatable."),
    click.option("--scope", type=click.Choice(get_args(Scope)), help="Only messages of this scope."),
    click.option("--since", type=Moment(),
                 help="Only messages after a time, such as 2026-01-31T12:00 or 2h, or a position."),
    click.option("--before", type=Moment(), help="Only messages before a time or a position."),
)  # fmt: skip

#: Options that select parts of messages: parameters `tools`, `reasoning`, `full`.
parts_shown = _all(
    click.option("--tools/--no-tools", default=True, help="Show or hide tool calls and results."),
    click.option("--reasoning/--no-reasoning", default=True, help="Show or hide the reasoning of models."),
    click.option("--full", is_flag=True, help="Show long tool calls and results in full."),
)

language = click.option(
    "--language",
    metavar="NAME",
    help="The language of the messages, for search.  [default: that of the index, or english]",
)
quiet = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
