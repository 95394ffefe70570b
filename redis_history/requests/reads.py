"""Bounds, cursors and filters of reads, from what users pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

import orjson

from redis_history._ids import check_conversation_id
from redis_history._time import to_microseconds
from redis_history._validation import MAX_INTEGER, MIN_INTEGER, is_integer, refuse
from redis_history.errors import InvalidCursorError, InvalidInputError
from redis_history.events import Cursor
from redis_history.model import Message, Position, Role, Scope
from redis_history.search.filters import LAST_SEQUENCE, Filters, make_filters

__all__ = [
    "Bound",
    "Filter",
    "after_of",
    "before_of",
    "cursor_of",
    "cursors_of",
    "message_filter",
    "owner_of",
    "owner_text",
    "search_filters",
]

_POSITION_LETTERS: Final = frozenset("0123456789.-")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")

Filter = Callable[[Message], bool]
Bound = datetime | str | int | float | Position


def after_of(since: Bound | None) -> Position | None:
    """The exclusive lower bound: for an instant, the last position of its microsecond.

    Raises InvalidTimestampError or InvalidInputError unless `since` is an instant or a position.
    """
    return _position(since, LAST_SEQUENCE)


def before_of(before: Bound | None) -> Position | None:
    """The exclusive upper bound: for an instant, the first position of its microsecond. Raises as `after_of`."""
    return _position(before, 0)


def _position(bound: Bound | None, sequence: int) -> Position | None:
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


def owner_of(text: str) -> int | str:
    """Parses an owner: a 64-bit integer becomes an int, a JSON string its value, any other text itself. So 1 is the
    number, and "1" in double quotes the string."""
    if _INTEGER.fullmatch(text) and MIN_INTEGER <= int(text) <= MAX_INTEGER:
        return int(text)
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(orjson.loads(text))
        except orjson.JSONDecodeError:
            return text
    return text


def owner_text(owner: int | str) -> str:
    """The text by which `owner_of` finds this owner."""
    if isinstance(owner, int) or owner_of(owner) == owner:
        return str(owner)
    return orjson.dumps(owner).decode()


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
    """Raises as `message_filter` and `after_of`."""
    return make_filters(
        roles=roles,
        participant_ids=participant_ids,
        scope=scope,
        since=after_of(since),
        before=before_of(before),
        tool_names=tool_names,
        archived=archived,
    )
