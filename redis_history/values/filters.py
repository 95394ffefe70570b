"""Which messages a read or a search wants, and which conversations a search covers. Checked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, get_args

from msgspec import Struct

from redis_history.errors import InvalidInputError
from redis_history.values import Message, Position, Role, Scope
from redis_history.values._validation import (
    check_choice,
    check_name,
    check_names,
    check_owner,
    is_integer,
    named,
    refuse,
)
from redis_history.values.ids import check_conversation_id
from redis_history.values.times import to_microseconds

#: No message has a higher sequence, so this one is the end of a microsecond.
LAST_SEQUENCE: Final = 2**53 - 1

_POSITION_LETTERS: Final = frozenset("0123456789.-")

Bound = datetime | str | int | float | Position


def position_of(bound: Bound | None, sequence: int) -> Position | None:
    """A bound as a position, which has this `sequence` if the bound is a time. Raises InvalidInputError."""
    if bound is None:
        return None
    if isinstance(bound, Position):
        return check_position(bound)
    if isinstance(bound, str) and set(bound) <= _POSITION_LETTERS and "." in bound:
        return Position.parse(bound)
    return Position(to_microseconds(bound), sequence)


def check_position(position: Position) -> Position:
    """The position. Raises InvalidInputError unless it has two integers."""
    for name, value in zip(position._fields, position, strict=True):
        if not is_integer(value, float("-inf")):
            refuse(value, f"the {name} of a position", "an integer", InvalidInputError)
    return position


class Filters(Struct, frozen=True):
    """Checked filters of a read or a search; None: anything. `since` < position < `before`.

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
    def selects(self) -> bool:
        """Whether some messages between the bounds may not pass."""
        return (self.roles, self.participant_ids, self.scope, self.tool_names) != (None, None, None, None)

    @property
    def impossible(self) -> bool:
        """Whether no message at all can pass: a list is empty, or no position is between the bounds."""
        if self.before is not None and (first := self.first) is not None and first >= self.before:
            return True
        return frozenset() in (self.roles, self.participant_ids, self.tool_names)

    def wants(self, message: Message) -> bool:
        """Whether a stored message passes."""
        if self.roles is not None and message.role not in self.roles:
            return False
        writer = message.participant and message.participant.id
        if self.participant_ids is not None and writer not in self.participant_ids:
            return False
        if self.scope is not None and message.scope != self.scope:
            return False
        if self.tool_names is not None and self.tool_names.isdisjoint(tool_names_of(message)):
            return False
        if self.since is None and self.before is None:
            return True
        position = message.position
        return (
            position is not None
            and (self.since is None or position > self.since)
            and (self.before is None or position < self.before)
        )


ANYTHING = Filters()


def make_filters(
    roles: Iterable[Role] | None = None,
    participant_ids: Iterable[str] | None = None,
    scope: Scope | None = None,
    since: Bound | None = None,
    before: Bound | None = None,
    tool_names: Iterable[str] | None = None,
    archived: bool | None = None,
) -> Filters:
    """Raises InvalidInputError for values that no message can have, and for a string in place of a list."""
    no_names = roles is None and participant_ids is None and tool_names is None
    if no_names and since is None and before is None and scope is None and archived is None:
        return ANYTHING  # as for most reads, which the checks below would slow down
    check_choice(scope, "scope", (*get_args(Scope), None), InvalidInputError)
    check_choice(archived, "archived", (True, False, None), InvalidInputError)
    names = {"roles": roles, "participant_ids": participant_ids, "tool_names": tool_names}
    sets = {
        name: None if value is None else frozenset(check_names(value, name, InvalidInputError))
        for name, value in names.items()
    }
    for role in sets["roles"] or ():
        check_choice(role, "an item of roles", get_args(Role), InvalidInputError)
    with named("since"):
        after = position_of(since, LAST_SEQUENCE)
    with named("before"):
        upper = position_of(before, 0)
    return Filters(scope=scope, since=after, before=upper, archived=archived, **sets)


def tool_names_of(message: Message) -> frozenset[str]:
    """The tools that a message calls, or has named results of."""
    called = [part.name for part in message.tool_uses]
    return frozenset((*called, *(part.name for part in message.tool_results if part.name)))


class Within(Struct, frozen=True):
    """The conversations that are searched: those that meet all conditions; None: any."""

    user_id: int | str | None = None
    agent_name: str | None = None
    conversation_ids: tuple[str, ...] | None = None


def make_within(user_id: int | str | None, agent_name: str | None, conversation_ids: Iterable[str] | None) -> Within:
    """Raises InvalidInputError, InvalidConversationIdError."""
    check_owner(user_id, "user_id")
    check_name(agent_name, "agent_name")
    if conversation_ids is None:
        return Within(user_id, agent_name)
    ids = tuple(dict.fromkeys(check_names(conversation_ids, "conversation_ids", InvalidInputError)))
    for conversation_id in ids:
        check_conversation_id(conversation_id)
    return Within(user_id, agent_name, ids)
