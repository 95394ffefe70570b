"""Bounds, cursors and filters of reads, from what users pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

from redis_history._ids import check_conversation_id
from redis_history._time import to_microseconds
from redis_history.errors import InvalidCursorError
from redis_history.events import Cursor
from redis_history.model import Message, Position, Role, Scope
from redis_history.requests.checks import check_position
from redis_history.search.filters import Filters, make_filters

__all__ = ["Bound", "Filter", "cursor_of", "cursors_of", "message_filter", "position_of", "search_filters"]

_POSITION_LETTERS: Final = frozenset("0123456789.-")

Filter = Callable[[Message], bool]
Bound = datetime | str | int | float | Position


def position_of(bound: Bound | None) -> Position | None:
    """A bound as a position: an instant stands before all messages of its microsecond.

    Raises InvalidTimestampError or InvalidInputError for anything that is no instant and no position.
    """
    if bound is None or isinstance(bound, Position):
        return bound if bound is None else check_position(bound)
    if isinstance(bound, str) and set(bound) <= _POSITION_LETTERS and "." in bound:
        return Position.parse(bound)
    return Position(to_microseconds(bound), 0)


def cursor_of(after: Cursor | str | None) -> Cursor | None:
    """Raises InvalidCursorError for anything but a cursor, its text form or None."""
    return after if after is None or isinstance(after, Cursor) else Cursor.parse(after)


def cursors_of(after: Mapping[str, Cursor | str] | None) -> dict[str, Cursor] | None:
    """Raises InvalidCursorError or InvalidConversationIdError for anything but cursors by conversation id, or None."""
    if after is None:
        return None
    if not isinstance(after, Mapping):
        raise InvalidCursorError(
            f"subscribe_all takes a dict of cursors by conversation id, or None for now on, not {type(after).__name__}"
        )
    cursors = {}
    for conversation_id, cursor in after.items():
        check_conversation_id(conversation_id)
        cursors[conversation_id] = cursor if isinstance(cursor, Cursor) else Cursor.parse(cursor)
    return cursors


def message_filter(
    roles: Iterable[Role] | None, participant_ids: Iterable[str] | None, scope: Scope | None
) -> Filter | None:
    """What a message must be like to be read; None if anything will do.

    Raises InvalidInputError for a string where a list is meant.
    """
    if roles is None and participant_ids is None and scope is None:
        return None
    return make_filters(roles=roles, participant_ids=participant_ids, scope=scope).wants


def search_filters(
    roles: Iterable[Role] | None,
    participant_ids: Iterable[str] | None,
    scope: Scope | None,
    since: Bound | None,
    before: Bound | None,
    tool_names: Iterable[str] | None,
    archived: bool | None,
) -> Filters:
    """Raises as `message_filter` and `position_of`."""
    return make_filters(
        roles=roles,
        participant_ids=participant_ids,
        scope=scope,
        since=position_of(since),
        before=position_of(before),
        tool_names=tool_names,
        archived=archived,
    )
