# Generated from ../_async by scripts/unasync: do not edit.
"""The conversation store: what users call. It checks, asks a backend, and shapes the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from redis_history import requests
from redis_history._ids import check_conversation_id
from redis_history._sync._backend import open_backend
from redis_history._sync._feed import Feed
from redis_history._sync._runtime import Job, begin, finish, sleep, spawn
from redis_history._sync.namespace_subscription import NamespaceSubscription
from redis_history._sync.searching import Searching
from redis_history._sync.subscription import Subscription
from redis_history.backends.base import Backend
from redis_history.backends.redis.failures import RetryPolicy
from redis_history.capabilities import Capabilities
from redis_history.errors import (
    CapabilityError,
    ConversationNotFoundError,
    InvalidInputError,
    MessageNotFoundError,
    RedisHistoryError,
)
from redis_history.events import Cursor, Event
from redis_history.model import Conversation, Message, Position, Role, Scope
from redis_history.model.conversation import RECORD_FIELDS
from redis_history.operations import (
    Appended,
    Compacted,
    DeleteConversation,
    Expanded,
    FindMessage,
    ListConversations,
    Op,
    Page,
    ReadConversation,
    ReadHead,
    ReadPage,
    Snapshot,
    WriteRecord,
)
from redis_history.requests import Bound, Doorbell, Durability, Options, SearchMode
from redis_history.search.vectors import Embedder, VectorField

__all__ = ["HistoryStore"]

T = TypeVar("T")
_logger = logging.getLogger("redis_history")

#: Messages read at once. Larger reads go page by page, so that no single one holds the server for long.
PAGE = 2000


class HistoryStore(Searching):
    """Conversations in one namespace of one backend.

    `url` says where: `redis://`, `rediss://` or `unix://` (a server), `redis+cluster://` or `redis+sentinel://`
    (several: docs/how-to/cluster.md), `embedded://` (a private one, started when first needed), `memory://` (this
    process). Instead, `client` takes a redis-py client, which stays the caller's to close,
    and `backend` any object with the methods of `backends.base`. Nothing is connected before the first call.

    `log_length` is how many changes of a conversation are kept for subscribers that were away. `poll_interval` is
    how many seconds a subscription trusts in being told of changes before it looks by itself. `retry` says how long a
    call keeps trying while the server is away.

    `ttl` lets a conversation end, with all that belongs to it, so many seconds after its last change; who changes it
    without a `ttl` of its own keeps to the conversation's. `max_messages` keeps the newest of a conversation: with
    each change the oldest leave, a tool call together with its result. `max_conversations` is for `memory://`, whose
    caps are 500 and 500 unless others (None: no cap) are given.

    `doorbell` says how subscriptions hear of changes: by the server's notifications ("keyspace"), by what the writers
    publish ("publish", to be given to them too), only by looking ("poll"), or by what there is ("auto").

    `durability` says what a write waits for: "server" (the server has it), "fsync" (the server's disk has it) or
    "replicas" (so many `replicas` have it, one if not given). If that is not confirmed within `durability_timeout`
    seconds, DurabilityError; if the server cannot confirm it at all, CapabilityError before anything is written.

    `search` says whether the server keeps a search index: "auto" if it can, "require" or fail, "off". `language` is
    that of most messages, or "none" (docs/how-to/search.md); all stores of a namespace name the same. With an
    `embedder`, from a list of texts to a list of vectors of `vectors` numbers each, search goes by meaning as well as
    by words.

    Any call may raise BackendUnavailableError (no answer in time; a write may have happened, and may be repeated with
    the same message ids), BackendRefusedError, UnsupportedServerError or StoreClosedError. Bad arguments raise
    InvalidInputError, and then nothing was sent.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        client: Any = None,
        backend: Backend | None = None,
        log_length: int = 1000,
        poll_interval: float = 3.0,
        retry: RetryPolicy | None = None,
        ttl: float | None = None,
        max_messages: int | UnsetType | None = UNSET,
        max_conversations: int | UnsetType | None = UNSET,
        durability: Durability = "server",
        replicas: int | None = None,
        durability_timeout: float = 5.0,
        search: SearchMode = "auto",
        language: str = "english",
        embedder: Embedder | None = None,
        vectors: VectorField | int | None = None,
        doorbell: Doorbell = "auto",
    ) -> None:
        options = self._options = Options(
            log_length,
            poll_interval,
            ttl,
            max_messages,
            max_conversations,
            durability,
            replicas,
            durability_timeout,
            search,
            language,
            embedder,
            requests.vector_field(vectors),
            doorbell=doorbell,
        )
        self.namespace = namespace
        self._poll_interval = poll_interval
        if backend is not None:
            options.check_for_custom_backend(url, client, retry)
        self._backend = backend or open_backend(url, client, namespace, options, retry or RetryPolicy())
        self._capabilities: Capabilities | None = None
        self._unopened: list[Feed] = []
        self._jobs: dict[Feed, Job] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do and is set to. The server is asked once, when this is first read."""
        found = self._capabilities
        if found is None:
            ask = getattr(self._backend, "capabilities", None)
            found = Capabilities("custom") if ask is None else ask()
            self._capabilities = found
        return found

    # Writing

    def append(
        self,
        conversation_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        must_exist: bool = False,
        must_not_exist: bool = False,
    ) -> Appended:
        """Add one message, atomically and in one round trip; the conversation is created if need be.

        The same id and content again changes nothing, and returns what the first append did, with `duplicate` set.
        Raises MessageConflictError (the id exists with other content), RevisionConflictError (not at
        `expected_revision`), ConversationNotFoundError (`must_exist`), ConversationExistsError (`must_not_exist`).
        """
        op = requests.append_one(
            conversation_id,
            message,
            expected_revision=expected_revision,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
        )
        return (self._write(op))[0]

    def append_many(
        self,
        conversation_id: str,
        messages: Iterable[Message],
        *,
        expected_revision: int | None = None,
        must_exist: bool = False,
        must_not_exist: bool = False,
    ) -> list[Appended]:
        """Add messages in this order as one change: all of them, or none. Otherwise like `append`.

        Raises BatchTooLargeError above 1,000 messages or 4 MB.
        """
        batch = requests.append(
            conversation_id,
            messages,
            expected_revision=expected_revision,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
        )
        if not batch.order:
            return []
        outcome = self._write(batch.op)
        return [outcome[place] for place in batch.order]

    def update_message(
        self, conversation_id: str, message: Message, *, expected_revision: int | None = None
    ) -> Appended:
        """Give the message of this id other content; it keeps its place, whatever timestamp is given.

        The same content again changes nothing. Raises MessageNotFoundError, RevisionConflictError.
        """
        op = requests.update_message(conversation_id, message, expected_revision=expected_revision)
        updated = self._write(op)
        if updated is None:
            raise MessageNotFoundError(f"conversation {conversation_id[:80]!r} has no message {message.id[:64]!r}")
        return updated

    def clear(self, conversation_id: str, *, expected_revision: int | None = None) -> int:
        """Remove all messages, archived ones too, as one change, and keep the conversation; the revision after it.

        Raises RevisionConflictError.
        """
        op = requests.clear(conversation_id, expected_revision=expected_revision)
        return self._write(op)

    def restore(
        self, conversation_id: str, messages: Iterable[Message], *, expected_revision: int | None = None
    ) -> int:
        """Put `messages` in place of all there are, archived ones too, as one change; the revision after it.

        What others append meanwhile is replaced too, unless `expected_revision` is given: then that raises
        RevisionConflictError, and nothing is lost. Raises BatchTooLargeError above 1,000 messages or 4 MB.
        """
        op = requests.restore(conversation_id, messages, expected_revision=expected_revision)
        return self._write(op)

    def compact(
        self,
        conversation_id: str,
        *,
        through: Position | Message | str,
        summary: Message | str,
        seen: Iterable[Message] | None = None,
        expected_revision: int | None = None,
    ) -> Compacted:
        """Put a summary in place of all messages up to `through`, as one change; they move to the archive.

        `through` is the last of them: a message, its position or its id. System messages stay; a former summary is
        replaced too. What others append meanwhile stays. `summary` is a text, or a message with
        `metadata={"is_summary": True}`; it gets the place of the last message that it replaces.

        `seen` are the messages that were summarised: if not exactly these would be replaced (edited, deleted,
        inserted or compacted meanwhile), CompactionConflictError, and nothing is written. Without it, whatever is
        there at that moment is replaced. If there is nothing to replace, or only a summary, nothing changes, and the
        outcome says so.

        Raises TornPairError if the range tears a tool call from its result, and names a `through` that would do;
        MessageNotFoundError for an unknown id, RevisionConflictError, MessageConflictError (the id of the summary is
        taken), CapabilityError for a backend that cannot.
        """
        self._check_compacts()
        place = requests.through_of(through)
        at = Position(0, 0) if isinstance(place, str) else place
        op = requests.compact(conversation_id, at, summary, seen, expected_revision=expected_revision)
        if isinstance(place, str):
            last = self.get_message(conversation_id, place)
            if last is None or last.position is None:
                raise MessageNotFoundError(f"conversation {conversation_id[:80]!r} has no message {place[:64]!r}")
            op = replace(op, through=last.position)
        return self._write(op)

    def expand(self, conversation_id: str, summary_id: str, *, expected_revision: int | None = None) -> Expanded:
        """Put what a summary replaced back in its place, as one change: the same messages in the same order, and a
        former summary if there was one.

        Raises MessageNotFoundError unless it is the live summary of the conversation; RevisionConflictError,
        CapabilityError for a backend that cannot.
        """
        self._check_compacts()
        op = requests.expand(conversation_id, summary_id, expected_revision=expected_revision)
        expanded = self._write(op)
        if expanded is None:
            raise MessageNotFoundError(
                f"{summary_id[:64]!r} is not the summary that stands in conversation {conversation_id[:80]!r}"
            )
        return expanded

    def _check_compacts(self) -> None:
        if not getattr(self._backend, "compacts", False):
            raise CapabilityError("this backend cannot compact: see `compacts` in redis_history.backends.base")

    def delete_messages(
        self, conversation_id: str, message_ids: Iterable[str], *, expected_revision: int | None = None
    ) -> int:
        """Remove messages by id, archived ones too, as one change; how many there were. Unknown ids are ignored.

        Raises RevisionConflictError; BatchTooLargeError above 1,000 ids.
        """
        op = requests.delete_messages(conversation_id, message_ids, expected_revision=expected_revision)
        if not op.message_ids:
            return 0
        return self._write(op)

    def create_conversation(self, conversation: Conversation) -> Conversation:
        """Create a conversation with its record; as it is then. Raises ConversationExistsError."""
        requests.check_record(conversation)
        fields = {name: getattr(conversation, name) for name in RECORD_FIELDS}
        op = requests.write_record(conversation.conversation_id, fields, create=True)
        return self._write_record(op)

    def update_conversation(
        self,
        conversation_id: str,
        *,
        title: str | UnsetType | None = UNSET,
        metadata: dict[str, Any] | UnsetType = UNSET,
        user_id: str | UnsetType | None = UNSET,
        agent_name: str | UnsetType | None = UNSET,
        auditing_id: str | UnsetType | None = UNSET,
        expected_revision: int | None = None,
    ) -> Conversation:
        """Set fields of the record; those not given stay. The conversation as it is then.

        Raises ConversationNotFoundError, RevisionConflictError.
        """
        fields = {
            "title": title,
            "metadata": metadata,
            "user_id": user_id,
            "agent_name": agent_name,
            "auditing_id": auditing_id,
        }
        op = requests.write_record(conversation_id, fields, create=False, expected_revision=expected_revision)
        if not op.fields:
            raise InvalidInputError("update_conversation needs at least one field to set")
        return self._write_record(op)

    def _write_record(self, op: WriteRecord) -> Conversation:
        self._write(op)
        conversation = self._backend.execute(ReadConversation(op.conversation_id))
        if conversation is None:
            raise ConversationNotFoundError(f"conversation {op.conversation_id[:80]!r} was deleted at this moment")
        return conversation

    def delete_conversation(self, conversation_id: str) -> bool:
        """Remove everything of a conversation; whether there was one.

        Only after a lost reply may it say False of a conversation that it removed.
        """
        check_conversation_id(conversation_id)
        return self._write(DeleteConversation(conversation_id))

    # Reading

    def get(
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
            page = self._backend.execute(op)
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

    def iter(
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
    ) -> Iterator[Message]:
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
            page = self._backend.execute(op)
            for message in page.messages:
                if wanted is None or wanted(message):
                    yield message
            if len(page.messages) + page.unreadable < size:
                return
            after, size, _ = _beyond(page, after, batch if page.messages else size, -1, False)

    def get_message(self, conversation_id: str, message_id: str) -> Message | None:
        """The message of this id, archived or not, or None."""
        check_conversation_id(conversation_id)
        return self._backend.execute(FindMessage(conversation_id, requests.check_message_id(message_id)))

    def get_conversation(self, conversation_id: str) -> Conversation | None:
        """The record and the totals of a conversation, or None."""
        check_conversation_id(conversation_id)
        return self._backend.execute(ReadConversation(conversation_id))

    def list_conversations(
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
        return self._backend.execute(ListConversations(user_id, agent_name, limit, offset))

    def snapshot(self, conversation_id: str, *, limit: int = 1000) -> Snapshot:
        """The newest `limit` messages and the cursor of exactly that state, read in one look.

        `subscribe(conversation_id, after=snapshot.cursor)` goes on from it without gap or overlap.
        """
        check_conversation_id(conversation_id)
        requests.check_batch(limit)
        head = self._backend.execute(ReadHead(conversation_id, limit))
        return Snapshot(head.newest.messages, head.cursor, head.message_count)

    # Watching

    def subscribe(self, conversation_id: str, *, after: Cursor | str | None = None) -> Subscription:
        """The changes of a conversation after a cursor (None: from now on), in order, each once.

        See `Subscription`. A cursor comes from an event, a subscription or a snapshot; one that the change log no
        longer reaches, or of a former life of the conversation, gives a Reset first. Raises InvalidCursorError.
        """
        check_conversation_id(conversation_id)
        subscription = Subscription(self._backend, conversation_id, requests.cursor_of(after), self._poll_interval)
        self._begin(subscription)
        return subscription

    def subscribe_all(self, *, after: Mapping[str, Cursor | str] | None = None) -> NamespaceSubscription:
        """The changes of all conversations of the namespace, also of those to come; each as with `subscribe`.

        `after` has cursors by conversation id, such as `cursors` of an earlier subscription: changes after them, and
        all changes of conversations it does not name. None: from now on. Raises InvalidCursorError.
        """
        subscription = NamespaceSubscription(self._backend, requests.cursors_of(after), self._poll_interval)
        self._begin(subscription)
        return subscription

    def on_change(
        self,
        conversation_id: str,
        callback: Callable[[Event], object],
        *,
        after: Cursor | str | None = None,
        on_error: Callable[[Exception, Event | None], None] | None = None,
    ) -> Callable[[], None]:
        """Call `callback`, plain or a coroutine function, with each change, in order, in the background.

        The returned function ends it.
        An error of the callback, or of reading (then without an event), is reported to `on_error`, by default to the
        log; the callback is called again for the next change.
        """
        subscription = self.subscribe(conversation_id, after=after)
        return self._call(callback, subscription, on_error, repr(conversation_id[:80]))

    def on_change_all(
        self,
        callback: Callable[[Event], object],
        *,
        after: Mapping[str, Cursor | str] | None = None,
        on_error: Callable[[Exception, Event | None], None] | None = None,
    ) -> Callable[[], None]:
        """The same for the changes of all conversations: see `subscribe_all`. One call at a time."""
        return self._call(callback, self.subscribe_all(after=after), on_error, "all conversations")

    def _call(
        self,
        callback: Callable[[Event], object],
        subscription: Feed,
        on_error: Callable[[Exception, Event | None], None] | None,
        what: str,
    ) -> Callable[[], None]:
        subscription.open()

        def report(error: Exception, event: Event | None) -> None:
            if on_error is not None:
                try:
                    on_error(error, event)
                    return
                except Exception:
                    _logger.exception("the on_error of a callback for %s failed", what)
            _logger.error("a callback for %s failed", what, exc_info=error)

        def run() -> None:
            while not subscription.closed:
                try:
                    event = subscription.get()
                except RedisHistoryError as error:  # such as permission withdrawn: it may come back
                    report(error, None)
                    sleep(self._poll_interval)
                    continue
                if event is not None:
                    try:
                        finish(callback(event))
                    except Exception as error:  # noqa: BLE001 -- whatever a callback raises is its own; it is reported
                        report(error, event)

        job = self._jobs[subscription] = spawn(run, "redis_history-callback")

        def unsubscribe() -> None:
            self._jobs.pop(subscription, None)
            subscription.close()
            job.stop()

        return unsubscribe

    def close(self) -> None:
        """End callbacks and give back connections. Subscriptions end; later calls raise StoreClosedError."""
        while self._jobs:
            subscription, job = self._jobs.popitem()
            subscription.close()
            job.stop()
        self._backend.close()

    def __enter__(self) -> HistoryStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, op: Op[T]) -> T:
        if self._unopened:
            self._open_subscriptions()
        if self._options.embedder is not None:
            op = self._with_vectors(op)
        return self._backend.execute(op)

    def _begin(self, subscription: Feed) -> None:
        if not begin(subscription):
            # It begins when it is first awaited; what is written through this store before that waits for it.
            self._unopened = [waiting for waiting in self._unopened if not waiting.opened]
            self._unopened.append(subscription)

    def _open_subscriptions(self) -> None:
        # Of other event loops they are not ours to open; of one that has ended, nobody's.
        every, self._unopened = self._unopened, []
        self._unopened += [waiting for waiting in every if not waiting.home.here and not waiting.home.ended]
        for subscription in every:
            if subscription.home.here:
                subscription.open()


def _beyond(page: Page, bound: Position | None, size: int, edge: int, fixed: bool) -> tuple[Position | None, int, bool]:
    """Where the next page begins. A page without a readable message tells no place: then read more at once."""
    if not page.messages:
        return bound, size * 4, False
    return page.messages[edge].position, size, fixed
