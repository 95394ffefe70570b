"""The reading half of a store: messages, conversations, and both at one moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from redis_history import requests
from redis_history._async._listing import read
from redis_history._ids import check_conversation_id, check_message_id
from redis_history._validation import check_batch, check_limit, check_name, check_owner, check_range
from redis_history.backends.base import AsyncBackend, features
from redis_history.backends.rules import FIRST_MESSAGES, preview
from redis_history.model import Conversation, Message, Role, Scope
from redis_history.operations import (
    CountConversations,
    FindMessage,
    ListConversations,
    ListPreviews,
    Preview,
    ReadConversation,
    ReadHead,
    ReadPage,
    ReadTogether,
    Snapshot,
)
from redis_history.paging import PAGE, newest_messages, next_page
from redis_history.requests import Bound

#: Conversations of which the newest message is read at once.
TOGETHER = 200
#: More conversations than a backend can hold.
_EVERY = 2**53


class AsyncReading:
    """The methods of a store that read messages and conversations."""

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
        """Messages, ascending by timestamp; none of an unknown conversation.

        `limit` keeps the most recent: the first of them may be the result of a tool call before it. `since` (strictly
        after) and `before` (strictly before) take a datetime (naive means UTC), an ISO 8601 string, seconds since 1970,
        or a message's position: `since=messages[-1].position` reads on. `scope`, `roles` and `participant_ids` select
        messages; all filters must hold. Corrupt messages are logged and skipped. More than 2,000 messages are read in
        several steps, so they are not of one moment.

        With `include_archived`, also compacted messages; each summary, former ones included, follows the messages that
        it replaced.
        """
        check_conversation_id(conversation_id)
        check_limit(limit)
        wanted = requests.message_filter(roles, participant_ids, scope)
        after, upper = requests.after_of(since), requests.before_of(before)
        archived = include_archived and features(self._backend).compacts
        first = ReadPage(conversation_id, PAGE, newest=True, after=after, before=upper, archived=archived)
        return await read(self._backend, newest_messages(first, limit, wanted))

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
        check_batch(batch, "batch")
        wanted = requests.message_filter(roles, participant_ids, scope)
        after, upper = requests.after_of(since), requests.before_of(before)
        archived = include_archived and features(self._backend).compacts
        op: ReadPage | None
        op = ReadPage(conversation_id, batch, newest=False, after=after, before=upper, archived=archived)
        while op is not None:
            page = await self._backend.execute(op)
            for message in page.messages:
                if wanted is None or wanted(message):
                    yield message
            op = next_page(op, page, batch)

    async def get_message(self, conversation_id: str, message_id: str) -> Message | None:
        """The message of this id, archived or not, or None."""
        check_conversation_id(conversation_id)
        return await self._backend.execute(FindMessage(conversation_id, check_message_id(message_id)))

    async def newest_messages(self, conversation_ids: Iterable[str]) -> list[Message | None]:
        """The newest message of each conversation, or None, in the order of the ids; for lists of conversations.
        One round trip reads 200."""
        ids = list(conversation_ids)
        for one in ids:
            check_conversation_id(one)
        found: list[Message | None] = []
        for first in range(0, len(ids), TOGETHER):
            reads = tuple(ReadPage(one, 1, newest=True) for one in ids[first : first + TOGETHER])
            if features(self._backend).reads_together:
                pages = await self._backend.execute(ReadTogether(reads))
            else:
                pages = [await self._backend.execute(read) for read in reads]
            found += [page.messages[-1] if page.messages else None for page in pages]
        return found

    async def get_conversation(self, conversation_id: str) -> Conversation | None:
        """The record and the totals of a conversation, or None."""
        check_conversation_id(conversation_id)
        return await self._backend.execute(ReadConversation(conversation_id))

    async def list_conversations(
        self, *, user_id: int | str | None = None, agent_name: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[Conversation]:
        """Conversations of the namespace by time of the last change, newest first: `limit` of them after the first
        `offset`; of the owner `user_id` or the agent `agent_name` if given.

        Not a snapshot: a conversation that changes meanwhile keeps the place where it was first seen. The cost grows
        with `offset + limit`, not with the conversations of others: see docs/operations.md.
        """
        check_owner(user_id, "user_id")
        check_name(agent_name, "agent_name")
        check_range(limit, offset)
        if limit == 0:
            return []
        return await self._backend.execute(ListConversations(user_id, agent_name, limit, offset))

    async def list_previews(
        self, *, user_id: int | str | None = None, agent_name: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[Preview]:
        """For a sidebar, in two round trips: conversations as `list_conversations` gives them, each with a
        `title` (its own, or the beginning of the first message of a user) and its `last_message`.

        There are unread messages if `last_message.sequence`, which counts arrivals, is above that of the last one read.
        """
        if not features(self._backend).reads_together:
            found = []
            for one in await self.list_conversations(
                user_id=user_id, agent_name=agent_name, limit=limit, offset=offset
            ):
                first = await self._backend.execute(ReadPage(one.conversation_id, FIRST_MESSAGES, newest=False))
                last = await self._backend.execute(ReadPage(one.conversation_id, 1, newest=True))
                found.append(preview(one, first.messages, last.messages))
            return found
        check_owner(user_id, "user_id")
        check_name(agent_name, "agent_name")
        check_range(limit, offset)
        return await self._backend.execute(ListPreviews(user_id, agent_name, limit, offset)) if limit else []

    async def count_conversations(self, *, user_id: int | str | None = None, agent_name: str | None = None) -> int:
        """How many conversations there are; of the owner `user_id` or the agent `agent_name` if given.

        Those that have ended by their time to live count until a list comes upon them.
        """
        check_owner(user_id, "user_id")
        check_name(agent_name, "agent_name")
        if features(self._backend).reads_together and None in (user_id, agent_name):
            return await self._backend.execute(CountConversations(user_id, agent_name))
        return len(await self._backend.execute(ListConversations(user_id, agent_name, _EVERY, 0)))

    async def snapshot(self, conversation_id: str, *, limit: int = 1000) -> Snapshot:
        """The newest `limit` messages and the cursor of exactly that state.

        `subscribe(conversation_id, after=snapshot.cursor)` goes on from it without gap or overlap.
        """
        check_conversation_id(conversation_id)
        check_batch(limit, "limit")
        head = await self._backend.execute(ReadHead(conversation_id, limit))
        return Snapshot(head.newest.messages, head.cursor, head.message_count)
