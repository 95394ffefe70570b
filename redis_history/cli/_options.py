"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click

from redis_history.cli._values import ROLES, SCOPES

__all__ = ["language", "message_filters", "parts_shown", "quiet"]

F = TypeVar("F", bound=Callable[..., Any])


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


def message_filters(function: F) -> F:
    """Options that select messages: parameters `roles`, `participants`, `scope`."""
    return _all(
        click.option(
            "--role", "roles", type=click.Choice(ROLES), multiple=True, help="Only messages of this role. Repeatable."
        ),
        click.option(
            "--participant",
            "participants",
            metavar="ID",
            multiple=True,
            help="Only messages of this participant. Repeatable.",
        ),
        click.option("--scope", type=click.Choice(SCOPES), help="Only messages of this scope."),
    )(function)


def parts_shown(function: F) -> F:
    """Options that select parts of messages: parameters `tools`, `reasoning`, `full`."""
    return _all(
        click.option("--tools/--no-tools", default=True, help="Show or hide tool calls and results."),
        click.option("--reasoning/--no-reasoning", default=True, help="Show or hide the reasoning of models."),
        click.option("--full", is_flag=True, help="Show long tool calls and results in full."),
    )(function)


language = click.option(
    "--language",
    metavar="NAME",
    help="The language of the messages, for search.  [default: that of the index, or english]",
)
quiet = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
