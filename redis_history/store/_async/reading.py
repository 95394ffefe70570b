"""The methods of a store that read and search messages and conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, tzinfo
from typing import Final, Literal, overload

from msgspec.structs import replace

from redis_history.errors import InvalidInputError
from redis_history.store import operations as ops
from redis_history.store._async.executing import AsyncExecuting
from redis_history.store.operations.audit import AuditEntry
from redis_history.store.operations.backend import AsyncBackend
from redis_history.store.operations.contents import portions
from redis_history.store.operations.listing import Place
from redis_history.store.operations.page import PAGE, next_page, with_needed
from redis_history.store.operations.searching import Asked, Searcher, search
from redis_history.store.search.hits import Reindexed, SearchHits
from redis_history.values import Conversation, Message, Role, Scope, _validation
from redis_history.values.approvals import Approval
from redis_history.values.beside import check_needed
from redis_history.values.events import Cursor, Event
from redis_history.values.filters import Bound, make_filters, make_within
from redis_history.values.ids import check_conversation_id, check_message_id
from redis_history.values.sizes import TokenCounter
from redis_history.values.times import Instant, to_microseconds

#: More conversations than a backend can hold.
_EVERY = 2**53
_EVERYTHING: Final = ops.ScanConversations()


class AsyncReading(AsyncExecuting):
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
        contents: bool | Literal["texts"] = True,
    ) -> list[Message]:
        """Return messages, ascending by timestamp, or an empty list for an unknown conversation.

        `limit` keeps the most recent: the first of them may be the result of a tool call before it. `since` (strictly
        after) and `before` (strictly before) take a datetime (naive means UTC), an ISO 8601 string, seconds since 1970,
        or a message's position: `since=messages[-1].position` reads on. `scope`, `roles` and `participant_ids` select
        messages. All filters must hold. Corrupt messages are logged and skipped. More than 2,000 messages are read in
        several steps, with archived ones more than 500, so they are not of one moment.

        With `include_archived`, compacted messages too. Each summary, also a former one, follows the messages that it
        replaced. Large contents take one more step. `contents=False` leaves them on the server, `contents="texts"`
        leaves base64 and bytes: a message that lacks any is a `PartialMessage`. See `read_contents`.
        """
        filters = make_filters(roles, participant_ids, scope, since, before)
        return await self.execute(ops.read_messages(conversation_id, limit, filters, include_archived, contents))

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
        contents: bool | Literal["texts"] = True,
    ) -> AsyncIterator[Message]:
        """Messages one by one, ascending, of a conversation of any length; `batch` of them are read together.

        Messages that are appended during the iteration are included. Filters and `contents` as in `get`.
        """
        check_conversation_id(conversation_id)
        _validation.check_batch(batch, "batch")
        needed = check_needed(contents)
        filters = make_filters(roles, participant_ids, scope, since, before)
        first = ops.ReadPage(
            conversation_id, batch, False, filters.since, filters.before, include_archived, contents="none"
        )
        op: ops.ReadPage | None = first
        while op is not None:
            page = await self._backend.execute(op)
            for portion in portions(filter(filters.wants, page.messages)):
                for message in await self.execute(with_needed(conversation_id, portion, needed)):
                    if filters.wants(message):
                        yield message
            op = next_page(op, page, batch)

    async def get_message(self, conversation_id: str, message_id: str) -> Message | None:
        """The message of this id, archived or not, or None."""
        check_conversation_id(conversation_id)
        return await self._backend.execute(ops.FindMessage(conversation_id, check_message_id(message_id)))

    async def read_contents(self, conversation_id: str, messages: Iterable[Message]) -> list[Message]:
        """Return messages that were read with `contents=False` with their large contents. Messages that were removed
        since are left out, changed ones are as they are now."""
        check_conversation_id(conversation_id)
        _validation.check_list(messages, "messages", InvalidInputError)
        return await self.execute(with_needed(conversation_id, [*messages], "all"))

    async def get_conversation(self, conversation_id: str) -> Conversation | None:
        """The record and the totals of a conversation, or None."""
        check_conversation_id(conversation_id)
        return await self._backend.execute(ops.ReadConversation(conversation_id))

    @overload
    async def list_conversations(
        self,
        *,
        user_id: int | str | None = None,
        agent_name: str | None = None,
        forked_from: str | None = None,
        limit: int = 50,
        offset: int = 0,
        after: Conversation | ops.Preview | None = None,
        preview: Literal[False] = False,
    ) -> list[Conversation]: ...

    @overload
    async def list_conversations(
        self,
        *,
        user_id: int | str | None = None,
        agent_name: str | None = None,
        forked_from: str | None = None,
        limit: int = 50,
        offset: int = 0,
        after: Conversation | ops.Preview | None = None,
        preview: Literal[True],
    ) -> list[ops.Preview]: ...

    async def list_conversations(
        self,
        *,
        user_id: int | str | None = None,
        agent_name: str | None = None,
        forked_from: str | None = None,
        limit: int = 50,
        offset: int = 0,
        after: Conversation | ops.Preview | None = None,
        preview: bool = False,
    ) -> list[Conversation] | list[ops.Preview]:
        """Conversations of the namespace by time of the last change, newest first: `limit` of them after the first
        `offset`; those of the owner `user_id`, of the agent `agent_name`, and the forks of the conversation
        `forked_from`, if given.

        With `preview`, each comes with a title (its own, or the beginning of the first message of a user) and its
        newest message, in two round trips. There are unread messages if `last_message.sequence`, which counts arrivals,
        is above that of the last one read.

        `after` is the last one of the page before, a Conversation or Preview: the list goes on behind it, at the same
        cost for every page. If it has changed since, the list goes on with those that had not changed for longer.

        Not a snapshot: a conversation that changes during the call is listed where it was first found. The cost grows
        with `offset + limit`, not with the conversations of others: see docs/operations.md.
        """
        _check_owners(user_id, agent_name, forked_from)
        _validation.check_range(limit, offset)
        place = _place_of(after)
        if not limit:
            return []
        chosen = user_id, agent_name, forked_from
        if preview:
            return await self._backend.execute(ops.ListPreviews(*chosen, limit=limit, offset=offset, after=place))
        return await self._backend.execute(ops.ListConversations(*chosen, limit=limit, offset=offset, after=place))

    async def iter_conversations(
        self,
        *,
        user_id: int | str | None = None,
        agent_name: str | None = None,
        forked_from: str | None = None,
    ) -> AsyncIterator[Conversation]:
        """All conversations, each once, in no particular order: those of the owner `user_id`, of the agent
        `agent_name`, and the forks of the conversation `forked_from`, if given. Conversations that exist during the
        whole call are found, even if they change.
        """
        _check_owners(user_id, agent_name, forked_from)
        seen: set[str] = set()
        async for page in scan_conversations(self._backend, ops.ScanConversations(user_id, agent_name, forked_from)):
            for one in page:
                if one.conversation_id not in seen:
                    seen.add(one.conversation_id)
                    yield one

    async def list_approvals(
        self, *, user_id: int | str | None = None, agent_name: str | None = None, limit: int = 50
    ) -> list[Approval]:
        """The tool calls that wait for the consent of a person, over all conversations, oldest first, at most `limit`;
        those in conversations of the owner `user_id` and of the agent `agent_name`, if given. `decide` answers one.

        A call waits if it was stored with `tool_use(..., needs_approval=True)`, by an adapter, or by a format that has
        such requests (docs/how-to/runs.md). It no longer waits if it has a decision or a result, or if its message
        was removed. At most the newest 1,000 of a conversation are listed.
        """
        _check_owners(user_id, agent_name, None)
        _validation.check_integer(limit, "limit", error=InvalidInputError)
        if not limit:
            return []
        return await self._backend.execute(ops.ListApprovals(user_id=user_id, agent_name=agent_name, limit=limit))

    async def log(self, conversation_id: str, *, after: Cursor | str | None = None, limit: int = 100) -> list[Event]:
        """The changes of a conversation as its change log keeps them, oldest first: at most `limit` of those after the
        cursor `after` (None: all). `event.changed_at` is their time.

        An event has the messages and the fields of the record as they are now, and the ids of messages that were
        removed since. The log keeps at least the newest `log_length` changes, without those before a fork or an import,
        which is a Reset here. If it does not continue from `after`, for example because `after` belongs to a
        conversation that was deleted and created again, the only event is a Reset, as in a subscription: call it again
        without `after` for the changes in the log.
        """
        check_conversation_id(conversation_id)
        _validation.check_integer(limit, "limit", 1, 100_000, error=InvalidInputError)
        known = Cursor.of(after)
        events: list[Event] = []
        while len(events) < limit:
            op = ops.ReadLog(conversation_id, known, min(limit - len(events), PAGE))
            found = await self._backend.execute(op)
            if not found:
                break
            events += found
            known = found[-1].cursor
        return events

    async def audit_trail(
        self,
        *,
        conversation_id: str | None = None,
        auditing_id: int | str | None = None,
        by: str | None = None,
        since: Instant | None = None,
        before: Instant | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        """Changes that stores with the option `audit` have made, newest first, at most `limit`: what was changed, when
        and by whom, without content, also in conversations that were deleted since. Those of `conversation_id`, with
        this `auditing_id`, `by` this name, after `since` and before `before`, if given. It reads the trail from its
        end.
        """
        if conversation_id is not None:
            check_conversation_id(conversation_id)
        _validation.check_owner(auditing_id, "auditing_id")
        _validation.check_name(by, "by")
        _validation.check_integer(limit, "limit", error=InvalidInputError)
        after, upper = (None if time is None else to_microseconds(time) for time in (since, before))
        op = ops.ReadTrail(limit, conversation_id, auditing_id, by, after, upper)
        return await self._backend.execute(op) if limit else []

    async def count_conversations(self, *, user_id: int | str | None = None, agent_name: str | None = None) -> int:
        """How many conversations there are; of the owner `user_id` or the agent `agent_name` if given.

        Expired conversations count until a list finds them gone.
        """
        _check_owners(user_id, agent_name, None)
        if None in (user_id, agent_name):
            return await self._backend.execute(ops.CountConversations(user_id, agent_name))
        return len(await self._backend.execute(ops.ListConversations(user_id, agent_name, limit=_EVERY)))

    async def snapshot(
        self, conversation_id: str, *, limit: int = 1000, contents: bool | Literal["texts"] = True
    ) -> ops.Snapshot:
        """The newest `limit` messages and the cursor of exactly that state. `contents` as in `get`.

        `subscribe(conversation_id, after=snapshot.cursor)` continues from it without gap or overlap.
        """
        return await self.execute(ops.take_snapshot(conversation_id, limit, contents))

    async def search(
        self,
        conversation_id: str,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        token_cap: int | None = 2000,
        token_counter: TokenCounter | None = None,
        roles: Iterable[Role] | None = None,
        participant_ids: Iterable[str] | None = None,
        scope: Scope | None = None,
        since: Bound | None = None,
        before: Bound | None = None,
        tool_names: Iterable[str] | None = None,
        archived: bool | None = None,
        context: int = 0,
        highlight: bool = False,
        time_zone: tzinfo = UTC,
    ) -> SearchHits:
        """Messages of one conversation that match any term of `query`, best first.

        A term is a word, a "phrase in quotes" or the beginning of words*; see docs/how-to/search.md. No text makes it
        fail: of its first 100,000 characters the 128 rarest terms count. `limit` hits after the first `offset`, in at
        most `token_cap` tokens (None: no cap), by `token_counter` or estimated: a message that is too long comes with
        the `excerpt` that matches, cut to what fits. The filters must all hold: `roles`, `participant_ids`, `scope`,
        `since` and `before` as in `get`; `tool_names` are tools called or answered. Messages that were compacted are
        found too (`archived`: True for only these, False to exclude them), but former summaries are not. With
        `context`,
        0 to 100, each hit has as many messages before and after it; with `highlight`, where the terms are. The days
        that the query names are days of the `time_zone`.

        Without search on the server the newest 20,000 messages are read and ranked here; `hits.incomplete` says so.
        """
        check_conversation_id(conversation_id)
        filters = make_filters(roles, participant_ids, scope, since, before, tool_names, archived)
        asked = Asked(query, filters, limit, offset, token_cap, token_counter, context, highlight, time_zone)
        return await self.execute(search(conversation_id, asked))

    async def search_all(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        token_cap: int | None = 2000,
        token_counter: TokenCounter | None = None,
        roles: Iterable[Role] | None = None,
        participant_ids: Iterable[str] | None = None,
        scope: Scope | None = None,
        since: Bound | None = None,
        before: Bound | None = None,
        tool_names: Iterable[str] | None = None,
        archived: bool | None = None,
        context: int = 0,
        highlight: bool = False,
        time_zone: tzinfo = UTC,
        user_id: int | str | None = None,
        agent_name: str | None = None,
        conversation_ids: Iterable[str] | None = None,
    ) -> SearchHits:
        """Like `search`, over all conversations of the namespace, or over those of the owner `user_id`, of the agent
        `agent_name` (at most the 10,000 that changed last) and among `conversation_ids`. Others are never ranked.
        Messages written without search need `reindex`.

        Without search on the server, and while it is still filling its index, the messages of the conversations that
        changed last are read and ranked here, at most 20,000; `hits.incomplete` describes the rest.
        """
        filters = make_filters(roles, participant_ids, scope, since, before, tool_names, archived)
        asked = Asked(query, filters, limit, offset, token_cap, token_counter, context, highlight, time_zone)
        within = make_within(user_id, agent_name, conversation_ids)
        return await self.execute(search(within, asked))

    async def reindex(self, *, on_progress: Callable[[int, int], object] | None = None) -> Reindexed:
        """Write the search documents of all conversations of the namespace anew, and remove documents without a
        message.

        Needed for messages stored before search was available, or by processes with `search="off"`. A search within
        such a conversation writes its documents automatically. May run while others read and write. `on_progress` gets
        how many conversations are done, and of how many that are known. Raises CapabilityError without search on the
        server.
        """
        _validation.check_function(on_progress, "on_progress", plain=True, error=InvalidInputError)
        return await self.execute(Searcher(self._backend, self._options).reindex(on_progress))


def _check_owners(user_id: int | str | None, agent_name: str | None, forked_from: str | None) -> None:
    _validation.check_owner(user_id, "user_id")
    _validation.check_name(agent_name, "agent_name")
    if forked_from is not None:
        check_conversation_id(forked_from, "forked_from")


def _place_of(after: Conversation | ops.Preview | None) -> Place | None:
    if after is None:
        return None
    last = after.conversation if isinstance(after, ops.Preview) else after
    if not isinstance(last, Conversation):
        _validation.refuse(after, "after", "None, or the last Conversation or Preview of a page", InvalidInputError)
    check_conversation_id(last.conversation_id)
    return Place.of(last)


async def scan_conversations(
    backend: AsyncBackend, op: ops.ScanConversations = _EVERYTHING
) -> AsyncIterator[list[Conversation]]:
    """All conversations, or those that the scan `op` selects, a page at a time, unordered. Some may appear twice."""
    while True:
        page = await backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = replace(op, cursor=page.cursor)
