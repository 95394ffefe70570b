"""Read messages: a page, a single one, or all of them page by page."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec import Struct, structs
from msgspec.structs import replace

from redis_history.errors import InvalidInputError
from redis_history.store.operations.archives import StoredArchive
from redis_history.store.operations.base import Call, OnConversation, Read, Steps, as_is, field_of, plain, read
from redis_history.store.operations.contents import (
    FIND,
    ReadContents,
    with_content,
    with_contents,
    with_contents_at_once,
)
from redis_history.store.operations.keys import ConversationKeys
from redis_history.store.operations.scripts import load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.operations.stream import refreshed
from redis_history.values import Message, Position
from redis_history.values._validation import check_integer
from redis_history.values.beside import Needed, PartialMessage, check_needed
from redis_history.values.filters import ANYTHING, Filters
from redis_history.values.ids import check_conversation_id
from redis_history.values.wire import decode_member, decode_members, incomplete

if TYPE_CHECKING:
    from redis_history.store.memory.space import ConversationState, Space

_WINDOW_ARGS: Final = "limit newest after after_sequence before before_sequence"
PAGE_SCRIPT: Final = load_script("page", "_member", "_locate", args=_WINDOW_ARGS, keys="messages")
PAGE_ARCHIVED: Final = load_script(
    "page_archived", "_declared", "_member", "_archive", "_locate", args=_WINDOW_ARGS, keys="state messages", asks=True
)

_logger = logging.getLogger("redis_history")

#: Attempts to read a page of one moment, if its large contents leave in the meantime.
_TRIES: Final = 5
#: Messages read together. Larger reads go page by page, so that no single one holds the server for long.
PAGE: Final = 2000
#: The same with archived messages, because each may be in a different archive.
ARCHIVED_PAGE: Final = 500


class Page(Struct, frozen=True):
    """Consecutive messages, ascending. `unreadable` counts the corrupt ones, which were skipped. `live`: the page has a
    reply that is being written. `partial`: it may have messages without their large contents.

    If archived messages were requested, `archived` says for each message whether it is archived, and `former_summaries`
    has the ids of the archived summaries (and may have others).
    """

    messages: list[Message]
    unreadable: int = 0
    archived: tuple[bool, ...] = ()
    former_summaries: frozenset[str] = frozenset()
    live: bool = False
    partial: bool = False


class ReadPage(OnConversation, Read[Page], frozen=True):
    """The messages with `after` < position < `before`, ascending: the first `limit`, or the last if `newest`. If the
    page has `limit` messages, readable or not, there may be more. An unknown conversation is empty.

    With `archived`, archived messages are included. A summary follows the messages that it replaced, at the position of
    the last of them; a page has both or neither, and so may have more than `limit` messages. With `archive`, only the
    messages of that archive. `contents`: the large contents that are needed; a message without some is a
    PartialMessage.
    """

    limit: int
    newest: bool
    after: Position | None = None
    before: Position | None = None
    archived: bool = False
    archive: StoredArchive | None = None
    contents: Needed = "all"

    def call(self, settings: Settings) -> Call:
        keys = settings.keyspace.conversation(self.conversation_id)
        if self.archive is not None:
            keys = keys._replace(messages=keys.archive(self.archive.token, self.archive.number))
        elif self.archived:
            window = _window(self.limit, self.newest, self.after, self.before)
            return Call(PAGE_ARCHIVED, (keys.state, keys.messages), window, self._decode_all)
        decode = partial(page_of_members, self.conversation_id)
        return page_of(keys, self.limit, newest=self.newest, after=self.after, before=self.before, decode=decode)

    def _decode_all(self, reply: list[Any]) -> Page:
        """A page from the live messages and each archive; `limit` members were read of each set."""
        if len(reply) == 3 and reply[0] == 0 and len(reply[2]) <= self.limit:  # nothing to merge
            page = page_of_members(self.conversation_id, reply[2])
            return structs.replace(page, archived=(False,) * len(page.messages))
        sets = [(reply[at] or 2**63, reply[at + 1], reply[at + 2]) for at in range(0, len(reply), 3)]
        found: list[tuple[Position, bool, Message]] = []
        unreadable, live, partial = 0, False, False
        for order, _, members in sorted(sets):  # a live summary follows archived messages of its position
            page = page_of_members(self.conversation_id, members)
            unreadable, live, partial = unreadable + page.unreadable, live or page.live, partial or page.partial
            found += [(cast(Position, one.position), order < 2**63, one) for one in page.messages]
        merged = self.cut(found, unreadable, frozenset(former.decode() for _, former, _ in sets if former))
        return structs.replace(merged, live=live, partial=partial)

    def completed(self, page: Page, settings: Settings) -> Steps[Page]:
        """Replies that are being written with their text so far, and messages with their large contents."""
        if page.live:
            page = yield from self._with_replies(page, settings)
        if not page.partial or self.contents == "none":
            return page
        for _ in range(_TRIES):
            whole = yield from with_contents_at_once(self.conversation_id, page.messages, settings, self.contents)
            if whole is not None and len(whole) == len(page.messages):
                return replace(page, messages=whole)
            page = yield from read(self.call(settings), settings)
            if page.live:
                page = yield from self._with_replies(page, settings)
        found = yield from with_contents(self.conversation_id, page.messages, settings, self.contents)
        kept = [index for index, message in enumerate(found) if message is not None]
        archived = tuple(page.archived[index] for index in kept) if page.archived else ()
        gone = len(found) - len(kept)  # counted, because a page with fewer messages is the last one
        messages = [message for message in found if message is not None]
        return replace(page, messages=messages, archived=archived, unreadable=page.unreadable + gone)

    def _with_replies(self, page: Page, settings: Settings) -> Steps[Page]:
        indexes = [index for index, message in enumerate(page.messages) if message.status == "streaming"]
        positions = [cast(Position, page.messages[index].position) for index in indexes]
        present = dict(zip(indexes, (yield from refreshed(self.conversation_id, positions, settings)), strict=True))
        kept = [index for index in range(len(page.messages)) if present.get(index, page) is not None]
        messages = [present.get(index) or page.messages[index] for index in kept]
        archived = tuple(page.archived[index] for index in kept) if page.archived else ()
        return replace(page, messages=messages, archived=archived)

    def apply(self, space: Space) -> Page:
        conversation = space.find(self.conversation_id)
        if conversation is None:
            return Page([])
        if self.archived:
            return self._apply_to_all(conversation)
        live, position_of = conversation.live, itemgetter(0)
        if self.archive is not None:
            number = self.archive.number
            live = next((archive.held for archive in conversation.archives if archive.revision == number), [])
        first = 0 if self.after is None else bisect_right(live, self.after, key=position_of)
        last = len(live) if self.before is None else bisect_left(live, self.before, key=position_of)
        if self.newest:
            first = max(first, last - self.limit)
        else:
            last = min(last, first + self.limit)
        return Page([conversation.message(message_id, self.contents) for _, message_id in live[first:last]])

    def _apply_to_all(self, conversation: ConversationState) -> Page:
        held = [(position, True, name) for archive in conversation.archives for position, name in archive.held]
        held += [(position, False, name) for position, name in conversation.live]
        found = [
            (position, archived, conversation.message(name, self.contents))
            for position, archived, name in held
            if (self.after is None or self.after < position) and (self.before is None or position < self.before)
        ]
        former = frozenset(archive.former for archive in conversation.archives if archive.former is not None)
        return self.cut(found, former_summaries=former)

    def cut(
        self,
        found: list[tuple[Position, bool, Message]],
        unreadable: int = 0,
        former_summaries: frozenset[str] = frozenset(),
    ) -> Page:
        """A page of (position, archived, message) items. It never splits the messages at one position, and keeps their
        order."""
        found.sort(key=lambda one: one[0])
        if len(found) > self.limit:
            edge = found[-self.limit if self.newest else self.limit - 1][0]
            found = [one for one in found if (one[0] >= edge if self.newest else one[0] <= edge)]
        archived = tuple(archived for _, archived, _ in found)
        return Page([message for _, _, message in found], unreadable, archived, former_summaries)


def page_of_members(conversation_id: str, reply: list[bytes]) -> Page:
    messages, errors = decode_members(reply)
    for error in errors:
        _logger.error("skipped an unreadable message of conversation %r: %s", conversation_id[:80], error)
    live, partial = incomplete(reply)
    return Page(messages, len(errors), live=live, partial=partial)


def page_of(
    keys: ConversationKeys,
    limit: int,
    *,
    newest: bool,
    after: Position | None = None,
    before: Position | None = None,
    decode: Callable[[Any], Any] = as_is,
) -> Call:
    """The call that reads live messages, or those of the archive that `keys` have in their place."""
    if after is None and before is None:
        first, last = (-limit, -1) if newest else (0, limit - 1)
        return plain(b"ZRANGE", keys.messages, b"%d" % first, b"%d" % last, decode=decode)
    return Call(PAGE_SCRIPT, (keys.messages,), _window(limit, newest, after, before), decode)


def _window(limit: int, newest: bool, after: Position | None, before: Position | None) -> list[bytes]:
    lower = None if after is None else after._replace(sequence=after.sequence + 1)
    bounds: dict[str, bytes] = {}
    for name, bound in (("after", lower), ("before", before)):
        bounds[name] = b"" if bound is None else b"%d" % bound.timestamp
        bounds[f"{name}_sequence"] = b"" if bound is None else b"%d" % bound.sequence
    return PAGE_SCRIPT.args(limit=b"%d" % limit, newest=b"1" if newest else b"0", **bounds)


class FindMessage(OnConversation, Read[Message | None], frozen=True):
    """The message of this id, archived or not, or None. `contents` as in ReadPage."""

    message_id: str
    contents: Needed = "all"

    def call(self, settings: Settings) -> Call:
        keys = settings.keyspace.conversation(self.conversation_id)
        args = FIND.args(field=field_of(self.message_id), id=self.message_id.encode())
        return Call(FIND, (keys.state, keys.messages), args, _decode)

    def completed(self, message: Message | None, settings: Settings) -> Steps[Message | None]:
        if message is None or message.status != "streaming":
            return (yield from with_content(self.conversation_id, message, settings, self.contents))
        [found] = yield from refreshed(self.conversation_id, [cast(Position, message.position)], settings)
        return found

    def apply(self, space: Space) -> Message | None:
        conversation = space.find(self.conversation_id)
        stored = conversation and conversation.stored.get(self.message_id)
        return conversation.message(self.message_id, self.contents) if conversation and stored else None


def _decode(reply: bytes | None) -> Message | None:
    return None if reply is None else decode_member(reply)


def next_page(op: ReadPage, page: Page, size: int) -> ReadPage | None:
    """The read of `size` messages after `page`, which `op` has read, or None after the last page. A page without
    readable messages does not end at a position, so a larger page is read instead."""
    if len(page.messages) + page.unreadable < op.limit:
        return None
    if not page.messages:
        return replace(op, limit=4 * op.limit)
    if op.newest:
        return replace(op, limit=size, before=page.messages[0].position)
    return replace(op, limit=size, after=page.messages[-1].position)


def read_messages(
    conversation_id: str,
    limit: int | None = None,
    filters: Filters = ANYTHING,
    include_archived: bool = False,
    contents: bool | Literal["texts"] = True,
) -> Steps[list[Message]]:
    """Read the newest `limit` messages that pass the filters, or all, ascending: see `HistoryStore.get`."""
    check_conversation_id(conversation_id)
    check_integer(limit, "limit", optional=True, error=InvalidInputError)
    wanted = filters.wants if filters.selects else None
    most = ARCHIVED_PAGE if include_archived else PAGE
    needed = check_needed(contents)
    read_now: Needed = needed if wanted is None else "none"  # of unwanted messages, nothing is read
    first = most if wanted is not None or limit is None else min(most, limit)
    bounds = filters.since, filters.before
    op: ReadPage | None = ReadPage(conversation_id, first, True, *bounds, include_archived, contents=read_now)
    pages: list[list[Message]] = []
    found = 0
    while op is not None and (limit is None or found < limit):
        page = yield op
        messages = page.messages if wanted is None else list(filter(wanted, page.messages))
        if messages:
            pages.append(messages)
            found += len(messages)
        op = next_page(op, page, most if wanted is not None or limit is None else min(most, limit - found))
    pages.reverse()
    every = pages[0] if len(pages) == 1 else [message for one in pages for message in one]
    newest = every if limit is None or found <= limit else every[found - limit :]
    return newest if read_now == needed else (yield from with_needed(conversation_id, newest, needed))


def with_needed(conversation_id: str, messages: list[Message], needed: Needed) -> Steps[list[Message]]:
    """The messages with the large contents that are needed, without those that were removed since."""
    if needed == "none" or not any(type(message) is PartialMessage for message in messages):
        return messages
    found = yield ReadContents(conversation_id, tuple(messages), needed)
    return [message for message in found if message is not None]
