"""The reading half of a store: messages, conversations, and both at one moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from redis_history import requests
from redis_history._ids import check_conversation_id
from redis_history.backends.base import AsyncBackend
from redis_history.model import Conversation, Message, Position, Role, Scope
from redis_history.operations import (
    FindMessage,
    ListConversations,
    Page,
    ReadConversation,
    ReadHead,
    ReadPage,
    Snapshot,
)
from redis_history.requests import Bound

__all__ = ["AsyncReading"]

#: Messages read at once. Larger reads go page by page, so that no single one holds the server for long.
PAGE = 2000


class AsyncReading:
    """What of a store gives messages and conversations, and changes nothing."""

    _backend: AsyncBackend

    async def get(
        self,
        conversation_id: str,
        *,
        limit: int | None = None,
        before: Bound | None = None,
        since: Bound | None = None,
        scope: Scope | None = None,
        participant_ids: Iterable[str] | None = None,
        roles: Iterable[Role] | None = None,
        include_archived: bool = False,
    ) -> list[Message]:
        """Messages, ascending by timestamp; of an unknown conversation: none.

        `limit` keeps the most recent. `since` (at or after) and `before` (strictly before) take a datetime, an ISO 8601
        string, seconds since 1970, or a message's position. The other filters must all hold. What cannot be decoded is
        logged and left out.

        With `include_archived`, the messages that were compacted too; each summary, also a former one, stands behind
        what it replaced.
        """
        check_conversation_id(conversation_id)
        requests.check_limit(limit)
        wanted = requests.message_filter(roles, participant_ids, scope)
        lower, upper = requests.position_of(since), requests.position_of(before)
        archived = include_archived and getattr(self._backend, "compacts", False)
        pages: list[list[Message]] = []
        found, size, fixed = 0, PAGE, wanted is None and limit is not None
        while limit is None or found < limit:
            if fixed and limit is not None:
                size = min(size, limit - found)
            op = ReadPage(conversation_id, size, newest=True, since=lower, before=upper, archived=archived)
            page = await self._backend.execute(op)
            messages = page.messages if wanted is None else list(filter(wanted, page.messages))
            if messages:
                pages.append(messages)
                found += len(messages)
            if len(page.messages) + page.unreadable < size:
                break
            upper, size, fixed = _beyond(page, upper, size, 0, fixed)
        pages.reverse()
        every = pages[0] if len(pages) == 1 else [message for page_ in pages for message in page_]
        return every if limit is None or found <= limit else every[found - limit :]

    async def iter(
        self,
        conversation_id: str,
        *,
        batch: int = 500,
        before: Bound | None = None,
        since: Bound | None = None,
        scope: Scope | None = None,
        participant_ids: Iterable[str] | None = None,
        roles: Iterable[Role] | None = None,
        include_archived: bool = False,
    ) -> AsyncIterator[Message]:
        """Messages one by one, ascending, of a conversation of any length; `batch` of them are read at once.

        Messages appended meanwhile at the end are included. Filters as in `get`.
        """
        check_conversation_id(conversation_id)
        requests.check_batch(batch)
        wanted = requests.message_filter(roles, participant_ids, scope)
        lower, upper = requests.position_of(since), requests.position_of(before)
        archived = include_archived and getattr(self._backend, "compacts", False)
        after: Position | None = None
        size = batch
        while True:
            op = ReadPage(
                conversation_id, size, newest=False, since=lower, after=after, before=upper, archived=archived
            )
            page = await self._backend.execute(op)
            for message in page.messages:
                if wanted is None or wanted(message):
                    yield message
            if len(page.messages) + page.unreadable < size:
                return
            after, size, _ = _beyond(page, after, batch if page.messages else size, -1, False)

    async def get_message(self, conversation_id: str, message_id: str) -> Message | None:
        """The message of this id, archived or not, or None."""
        check_conversation_id(conversation_id)
        return await self._backend.execute(FindMessage(conversation_id, requests.check_message_id(message_id)))

    async def get_conversation(self, conversation_id: str) -> Conversation | None:
        """The record and the totals of a conversation, or None."""
        check_conversation_id(conversation_id)
        return await self._backend.execute(ReadConversation(conversation_id))

    async def list_conversations(
        self, *, user_id: str | None = None, agent_name: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[Conversation]:
        """Conversations of the namespace, the one that changed last first; of one owner or agent, if given.

        What it costs is in docs/operations.md: it grows with `offset + limit`, and with a filter with how many
        conversations must be looked at to find those that fit.
        """
        requests.check_name(user_id, "user_id")
        requests.check_name(agent_name, "agent_name")
        requests.check_range(limit, offset)
        if limit == 0:
            return []
        return await self._backend.execute(ListConversations(user_id, agent_name, limit, offset))

    async def snapshot(self, conversation_id: str, *, limit: int = 1000) -> Snapshot:
        """The newest `limit` messages and the cursor of exactly that state, read in one look.

        `subscribe(conversation_id, after=snapshot.cursor)` goes on from it without gap or overlap.
        """
        check_conversation_id(conversation_id)
        requests.check_batch(limit)
        head = await self._backend.execute(ReadHead(conversation_id, limit))
        return Snapshot(head.newest.messages, head.cursor, head.message_count)


def _beyond(page: Page, bound: Position | None, size: int, edge: int, fixed: bool) -> tuple[Position | None, int, bool]:
    """Where the next page begins. A page without a readable message tells no place: then read more at once."""
    if not page.messages:
        return bound, size * 4, False
    return page.messages[edge].position, size, fixed
