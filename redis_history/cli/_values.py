"""Types of option values."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

import click

from redis_history.model import Role, Scope

__all__ = ["ROLES", "SCOPES", "Duration", "Id", "Moment", "named_function"]

ROLES, SCOPES = get_args(Role), get_args(Scope)

# ParamType is generic only in newer versions of click.
if TYPE_CHECKING:
    _Number = click.ParamType[float]
    _Text = click.ParamType[str]
    _Time = click.ParamType[str | datetime]
else:
    _Number = _Text = _Time = click.ParamType

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
        if (found := _DURATION.fullmatch(text)) and found[2]:
            try:
                return datetime.now(UTC) - timedelta(seconds=float(found[1]) * _SECONDS[found[2] or "s"])
            except OverflowError:
                self.fail(f"{value!r} is too long ago", param, ctx)
        try:
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: write 2026-01-31, 2026-01-31T12:00Z or 2h", param, ctx)


def named_function(name: str) -> Any:
    """The object at `package.module:function`. Raises click.UsageError."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
    except (ImportError, ValueError) as error:
        raise click.UsageError(f"{name!r} cannot be found: {error}") from error
    except Exception as error:  # the module may raise anything when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise click.UsageError(f"{name!r} cannot be found: importing its module failed: {reason}") from error
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise click.UsageError(f"{name!r} cannot be found: {error}") from error
    return found
