"""Options that several commands have."""

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
    """Which messages: parameters `roles`, `participants`, `scope`."""
    return _all(
        click.option(
            "--role", "roles", type=click.Choice(ROLES), multiple=True, help="Only of this role. May be repeated."
        ),
        click.option(
            "--participant",
            "participants",
            metavar="ID",
            multiple=True,
            help="Only of this participant. May be repeated.",
        ),
        click.option("--scope", type=click.Choice(SCOPES), help="Only of this scope."),
    )(function)


def parts_shown(function: F) -> F:
    """What of a message: parameters `tools`, `reasoning`, `full`."""
    return _all(
        click.option("--tools/--no-tools", default=True, help="Show tool calls and results, or leave them out."),
        click.option("--reasoning/--no-reasoning", default=True, help="Show what models thought, or leave it out."),
        click.option("--full", is_flag=True, help="Show long tool calls and results whole."),
    )(function)


language = click.option(
    "--language", metavar="NAME", help="That of the messages, for search.  [default: that of the index, or english]"
)
quiet = click.option("--quiet", "-q", is_flag=True, help="No progress.")
