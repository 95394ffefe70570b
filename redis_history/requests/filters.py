"""Filters of reads and searches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, get_args

from msgspec import Struct

from redis_history._ids import check_conversation_id
from redis_history._validation import check_choice, check_name, check_names, check_owner
from redis_history.errors import InvalidInputError
from redis_history.model import Message, Position, Role, Scope

#: No message has a higher sequence, so no position at a time is behind the one with this sequence.
LAST_SEQUENCE: Final = 2**53 - 1


class Filters(Struct, frozen=True):
    """Checked filters; None: anything. `since` < position < `before`.

    `tool_names`: messages with a call or a result of these tools. `archived`: True for archived messages only, False
    for live ones only; messages do not contain it, so `wants` ignores it.
    """

    roles: frozenset[str] | None = None
    participant_ids: frozenset[str] | None = None
    scope: Scope | None = None
    since: Position | None = None
    before: Position | None = None
    tool_names: frozenset[str] | None = None
    archived: bool | None = None

    @property
    def first(self) -> Position | None:
        """The first position after `since`."""
        if self.since is None or self.since.sequence < LAST_SEQUENCE:
            return self.since and self.since._replace(sequence=self.since.sequence + 1)
        return Position(self.since.timestamp + 1, 0)

    @property
    def impossible(self) -> bool:
        """Whether no message at all can pass: a list is empty, or no position is between the bounds."""
        if self.before is not None and (first := self.first) is not None and first >= self.before:
            return True
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
                    and (self.since is None or position > self.since)
                    and (self.before is None or position < self.before)
                )
            )
        )


ANYTHING = Filters()


class Within(Struct, frozen=True):
    """The conversations that are searched: those that meet all; None: any."""

    user_id: int | str | None = None
    agent_name: str | None = None
    conversation_ids: tuple[str, ...] | None = None


def make_within(user_id: int | str | None, agent_name: str | None, conversation_ids: Iterable[str] | None) -> Within:
    """Raises InvalidInputError, InvalidConversationIdError."""
    check_owner(user_id, "user_id")
    check_name(agent_name, "agent_name")
    if conversation_ids is None:
        return Within(user_id, agent_name)
    names = dict.fromkeys(check_names(conversation_ids, "conversation_ids", InvalidInputError))
    for one in names:
        check_conversation_id(one)
    return Within(user_id, agent_name, tuple(names))


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
    check_choice(scope, "scope", (*get_args(Scope), None), InvalidInputError)
    wanted_roles = _names(roles, "roles")
    for role in wanted_roles or ():
        check_choice(role, "an item of roles", get_args(Role), InvalidInputError)
    check_choice(archived, "archived", (True, False, None), InvalidInputError)
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
    return None if names is None else frozenset(check_names(names, parameter, InvalidInputError))
