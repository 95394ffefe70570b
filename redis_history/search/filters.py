"""What a message must be like to be found, beside its words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from msgspec import Struct

from redis_history.errors import InvalidInputError
from redis_history.model import Message, Position, Role, Scope

__all__ = ["ANYTHING", "Filters", "make_filters", "tool_names_of"]


class Filters(Struct, frozen=True):
    """Checked filters; None: anything. `since` <= position < `before`, each in a bound's form of `requests`.

    `tool_names`: messages with a call or a result of one of these. `archived`: True for archived messages alone, False
    for those that are not; a message does not say it of itself, so `wants` does not look at it.
    """

    roles: frozenset[str] | None = None
    participant_ids: frozenset[str] | None = None
    scope: Scope | None = None
    since: Position | None = None
    before: Position | None = None
    tool_names: frozenset[str] | None = None
    archived: bool | None = None

    @property
    def impossible(self) -> bool:
        """Whether no message at all can pass: an empty list was given."""
        return any(names is not None and not names for names in (self.roles, self.participant_ids, self.tool_names))

    def wants(self, message: Message) -> bool:
        """Whether a message, placed by the store, passes."""
        return (
            (self.roles is None or message.role in self.roles)
            and (
                self.participant_ids is None
                or (message.participant is not None and message.participant.id in self.participant_ids)
            )
            and (self.scope is None or message.scope == self.scope)
            and (self.tool_names is None or not self.tool_names.isdisjoint(tool_names_of(message)))
            and (
                (self.since is None and self.before is None)
                or (
                    (position := message.position) is not None
                    and (self.since is None or position >= self.since)
                    and (self.before is None or position < self.before)
                )
            )
        )


ANYTHING = Filters()


def make_filters(
    *,
    roles: Iterable[Role] | None = None,
    participant_ids: Iterable[str] | None = None,
    scope: Scope | None = None,
    since: Position | None = None,
    before: Position | None = None,
    tool_names: Iterable[str] | None = None,
    archived: bool | None = None,
) -> Filters:
    """Raises InvalidInputError for what no message can have, and for a string where a list is meant."""
    if scope is not None and scope not in get_args(Scope):
        raise InvalidInputError(f"the scope {scope!r} is not one of {', '.join(get_args(Scope))}")
    wanted_roles = _names(roles, "roles")
    for role in wanted_roles or ():
        if role not in get_args(Role):
            raise InvalidInputError(f"the role {role!r} is not one of {', '.join(get_args(Role))}")
    if archived is not None and not isinstance(archived, bool):
        raise InvalidInputError(f"archived is True, False or None for both, not {archived!r}")
    return Filters(
        wanted_roles,
        _names(participant_ids, "participant_ids"),
        scope,
        since,
        before,
        _names(tool_names, "tool_names"),
        archived,
    )


def tool_names_of(message: Message) -> frozenset[str]:
    """The tools that a message calls, or has results of where these say so."""
    called = [part.name for part in message.tool_uses]
    answered = [part.name for part in message.tool_results if part.name]
    return frozenset((*called, *answered))


def _names(names: Iterable[Any] | None, parameter: str) -> frozenset[Any] | None:
    if names is None:
        return None
    if isinstance(names, str):
        raise InvalidInputError(f"{parameter} is a list, such as [{names!r}], not a string")
    found = list(names) if isinstance(names, Iterable) else [names]
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in found):
        raise InvalidInputError(f"{parameter} is a list of strings, not {names!r}")
    return frozenset(found)
