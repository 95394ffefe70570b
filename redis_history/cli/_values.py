"""Kinds of values that options take."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import click

__all__ = ["Duration", "named_function"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Duration(click.ParamType[float]):
    """Seconds, or a number with a unit: 500ms, 30s, 5m, 12h, 7d, 2w."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no duration; write it like 30s, 5m, 12h or 7d", param, ctx)
        return float(found[1]) * _SECONDS[found[2] or "s"]


def named_function(name: str) -> Any:
    """What `package.module:function` names. Raises click.UsageError."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"{name!r} cannot be found: {error}") from error
    return found
