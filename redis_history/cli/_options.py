"""Types and options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, TypeVar, get_args

import click

from redis_history.values import Role, Scope
from redis_history.values.ids import owner_of

F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_POSITION = re.compile(r"-?\d+\.\d+")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Number(click.IntRange):
    """A whole number in a range. The help of commands calls it N."""

    name = "whole number"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N"


def duration(text: str) -> float:
    """Seconds from 500ms, 30s, 5m, 12h, 7d or 2w."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration: write 30s, 5m, 12h or 7d")
    return float(found[1]) * _SECONDS[found[2]]


def time(text: str) -> datetime:
    """A time such as 2026-01-31T12:00 (local time, unless it has a zone), or an age such as 2h."""
    try:
        if _DURATION.fullmatch(text.strip()):
            return datetime.now(UTC) - timedelta(seconds=duration(text))
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not a time: write 2026-01-31, 2026-01-31T12:00Z or 2h") from None


def time_or_position(text: str) -> datetime | str:
    return text.strip() if _POSITION.fullmatch(text.strip()) else time(text)


def utf8(text: str) -> str:
    """Decodes an argument as UTF-8 in every locale."""
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        return text


#: Options of `click.argument` and `click.option` for ids of conversations.
CONVERSATION_ID: dict[str, Any] = {"metavar": "ID", "type": utf8}
conversation = click.argument("conversation", **CONVERSATION_ID)


def _all(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


offset = click.option("--offset", type=Number(0), default=0, help="Skip the first N.")

#: Parameters `user_id` and `agent_name`.
owners = _all(
    click.option("--user", "user_id", metavar="ID", type=owner_of,
                 help="Only conversations of this owner: 1 is the number or else the text, '\"1\"' the text."),
    click.option("--agent", "agent_name", metavar="NAME", help="Only conversations of this agent."),
)  # fmt: skip

#: Options that select messages: parameters `roles`, `participant_ids`, `scope`, `since`, `before`.
message_filters = _all(
    click.option("--role", "roles", type=click.Choice(get_args(Role)), multiple=True,
                 help="Only messages of this role. Repeatable."),
    click.option("--participant", "participant_ids", metavar="ID", multiple=True,
                 help="Only messages of this participant. Repeatable."),
    click.option("--scope", type=click.Choice(get_args(Scope)), help="Only messages of this scope."),
    click.option("--since", metavar="TIME", type=time_or_position,
                 help="Only messages after a time, such as 2026-01-31T12:00 or 2h, or a position."),
    click.option("--before", metavar="TIME", type=time_or_position,
                 help="Only messages before a time or a position."),
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
