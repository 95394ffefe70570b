"""Helpers that all adapters use."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, Unpack, cast
from urllib.parse import quote

from msgspec.structs import replace

from redis_history.agents.tools import (
    AsyncConversationSearchTool,
    ConversationSearchTool,
    SearchOptions,
    conversation_search_tool,
)
from redis_history.errors import (
    BatchTooLargeError,
    InvalidMessageError,
    MessageConflictError,
    MessageTooLargeError,
    RedisHistoryError,
    RevisionConflictError,
    StoreTypeError,
)
from redis_history.formats._losses import Loss, OnLoss
from redis_history.formats._pairing import pieces_of
from redis_history.store import operations as ops
from redis_history.store._async.replies import AsyncReply
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store._sync._runtime import Caller
from redis_history.store._sync.replies import Reply
from redis_history.store._sync.store import HistoryStore
from redis_history.store.operations import Appended, Preview, Steps
from redis_history.store.operations.append import batches
from redis_history.store.operations.tasks import Ask
from redis_history.values import Conversation, Message, Part, ToolResultPart, large
from redis_history.values._validation import check_store
from redis_history.values.ids import check_conversation_id
from redis_history.values.pairs import with_results_at_calls, without_lone_results

T = TypeVar("T")
_logger = logging.getLogger("redis_history")

#: Messages in one atomic change, and items of one read.
BATCH = 500
_PAGE = 1000
#: Turns that are remembered because they could not be stored completely.
_MOST_UNFINISHED = 16


def plain_or(value: Any, dumped: Any) -> Any:
    """`value` if JSON has a form for it, else `dumped`. Pydantic replaces NaN and infinite numbers by None."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return dumped
    return value


def as_messages(given: Any, kind: Any, read: Callable[[dict[str, Any]], T], name: str) -> list[T]:
    """The messages of a framework, some perhaps as JSON dicts, which `read` converts. Raises InvalidMessageError."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidMessageError(f"messages must be a list of messages, not {type(given).__name__}")
    found = []
    for index, one in enumerate(given):
        reason: Exception | None = None
        if isinstance(one, Mapping) and not isinstance(one, kind):
            try:
                one = read(dict(one))
            except (
                InvalidMessageError,
                ValueError,
                TypeError,
                LookupError,
                AttributeError,
                NotImplementedError,
            ) as error:
                reason = error
        if not isinstance(one, kind):
            shown = str(one)[:80]
            raise InvalidMessageError(f"messages[{index}] must be {name} or its dict, not {shown!r}") from reason
        found.append(one)
    return found


def checked_id(conversation_id: str) -> str:
    """Raises InvalidConversationIdError immediately, not at the first message."""
    check_conversation_id(conversation_id)
    return conversation_id


def joined_id(*names: str) -> str:
    """The conversation of what has these names in a framework. No two of them share one."""
    return "/".join(quote(checked_id(name), safe="") for name in names)


def note_of_record(record: Conversation, key: str) -> dict[str, Any]:
    """The note of an adapter in the metadata of a conversation; {} if there is none."""
    note = record.metadata.get(key)
    return json.loads(note) if isinstance(note, str) else {}


class Turns:
    """Stores turns: the messages that a framework passes in one call, of any size.

    A turn is one change if it has at most BATCH messages and MAX_BATCH_BYTES, else several. A message above the cap is
    shortened by `values.large.fitted`; `on_loss` and a log line name the omitted content. `whole`: as one message.

    If a call fails after the first change, its error says how many messages are stored. The messages of many frameworks
    lack ids, so the rest is remembered, and a repetition of the call stores the missing messages.
    """

    def __init__(self, form: str, on_loss: OnLoss | None, *, whole: bool = False) -> None:
        self._form, self._on_loss, self._whole = form, on_loss, whole
        self._unfinished: dict[str, tuple[Any, list[Message]]] = {}

    def unfinished(self, key: str, given: Any) -> list[Message] | None:
        """The messages of a turn that is given again because it could not be stored completely; None for others."""
        before = self._unfinished.pop(key, None)
        return before[1] if before is not None and before[0] == given else None

    def append(
        self, key: str, messages: list[Message], given: Any = None, *, before: int = 0, must_exist: bool = False
    ) -> Steps[list[Appended]]:
        """Append messages, in order. Raises as `append_many`. `given`: what they were before their conversion.
        `before`: how many messages of the turn are stored already."""
        condition = ops.Precondition.of(must_exist=must_exist)
        if len(messages) <= BATCH:
            with suppress(BatchTooLargeError, MessageTooLargeError):  # nothing was sent
                return (yield from ops.append_messages(key, messages, condition))
        # All are checked before the first is stored.
        kept, lacks = self.fit(messages)
        changes = list(batches(kept, BATCH))
        done: list[Appended] = []
        for batch in changes:
            try:
                done += yield from ops.append_messages(key, batch, condition)
            except BaseException as error:
                if given is not None and not isinstance(error, MessageConflictError):
                    self._unfinished[key] = given, messages
                    for oldest in [*self._unfinished][:-_MOST_UNFINISHED]:  # they may be large, and never repeated
                        del self._unfinished[oldest]
                if done or before:
                    _say_how_many(error, before + len(done), before + sum(map(len, changes)))
                raise
        self.report(lacks)
        return done

    def fit(self, messages: Iterable[Message]) -> tuple[list[Message], list[Loss]]:
        """The messages in a form that can be stored, and the omitted content, to report after they are stored."""
        found: list[Message] = []
        losses: list[Loss] = []
        for message in messages:
            kept, lacks = large.fitted(message, whole=self._whole)
            found += kept
            losses += [Loss(message.id, part, reason) for part, reason in lacks]
        return found, losses

    def report(self, losses: Iterable[Loss]) -> None:
        for loss in losses:
            _logger.warning("%s: message %r is stored without its %s", self._form, loss.message_id[:80], loss.reason)
            if self._on_loss is not None:
                self._on_loss(loss)


def _say_how_many(error: BaseException, done: int, total: int) -> None:
    said = f"{done:,} of {total:,} messages of this call are stored, and the same call again stores the others"
    if isinstance(error, RedisHistoryError) and error.args:
        error.args = (f"{error.args[0]} ({said})", *error.args[1:])
    else:
        error.add_note(said)


def ended(messages: Iterable[Message]) -> list[Message]:
    """Without live replies that are being written: a model must not read the beginning of an answer."""
    return [message for message in messages if message.status != "streaming"]


def for_agent(messages: Iterable[Message], *, cut: bool = False) -> list[Message]:
    """What an agent reads: without live replies that are being written, and with each result after its call, because
    models reject another order. Calls without a result stay: the agent may wait for an approval. `cut`: without results
    whose call is not among the messages."""
    found = ended(messages)
    return with_results_at_calls(without_lone_results(found) if cut else found)


def newest(key: str, limit: int | None) -> Steps[list[Message]]:
    """The newest messages, as `Turns` got them: those that were too large are whole again. A few more than `limit` if
    some of them are stored as several."""
    asked = limit
    while True:
        found = yield from ops.read_messages(key, asked)
        if asked is None or len(found) < asked or not large.continues(found[0]):
            return large.joined(found)
        asked *= 4


def with_shares(
    message: Message, converted: Callable[[Message], Sequence[Any]], changes: Mapping[int, tuple[Part, ...]]
) -> tuple[Part, ...]:
    """The parts of a message after changes to some of the messages that a framework gets for it, by `converted`: for
    each of its pieces one for each tool result, then one for the rest. `changes` has the new parts of each of them, by
    index; () removes it. Parts that a framework cannot have stay."""
    parts: list[Part] = []
    is_one, start = len(converted(message)) == 1, 0
    for piece, _ in pieces_of(message, every=True):
        count, results = len(converted(piece)), iter(range(start, start + len(piece.tool_results)))
        for part in piece.parts:
            share = next(results) if isinstance(part, ToolResultPart) else start + len(piece.tool_results)
            if is_one or count == 1:
                share = 0 if is_one else start
            parts += changes.get(share, (part,)) if share < start + count else (part,)
            if share in changes:
                changes = {**changes, share: ()}  # the new parts are in the place of the first old one
        start += count
    return tuple(parts)


def with_content(stored: Message, new: Message) -> Message:
    """A stored message with the content of a framework's. It keeps its pin, author and sources."""
    participant = new.participant or stored.participant
    return replace(
        stored,
        role=new.role,
        parts=new.parts,
        provider_meta=new.provider_meta,
        status=new.status,
        participant=participant,
        usage=new.usage or stored.usage,
    )


def replace_all(key: str, merge: Callable[[list[Message]], Sequence[Message]], turns: Turns) -> Steps[None]:
    """Replace all messages by the result of `merge` for the stored messages, in this order. Messages that were stored
    keep their times, unless a later message has an earlier time. A new message gets the time of the next message, if
    any.

    Messages beyond the limits of one change are appended after it."""
    while True:
        record = yield ops.ReadConversation(key)
        new: list[Message] = []
        for message in reversed(merge((yield from ops.read_messages(key)))):
            times = [one.timestamp for one in (message, *new[-1:]) if one.timestamp is not None]
            new.append(replace(message, timestamp=min(times, default=None)))
        kept, losses = turns.fit(new[::-1])
        first, *rest = list(batches(kept)) or [[]]
        with suppress(RevisionConflictError):  # another writer was faster: read again
            yield ops.Restore.of(key, first, 0 if record is None else record.revision)
            others = [message for batch in rest for message in batch]
            yield from turns.append(key, others, before=len(first))
            turns.report(losses)
            return


def asynchronous_of(store: HistoryStore | None, async_store: AsyncHistoryStore | None, who: str) -> AsyncHistoryStore:
    """Like `asynchronous`, for a class that takes a HistoryStore, an AsyncHistoryStore or both."""
    if store is None and async_store is None:
        raise StoreTypeError(f"{who} needs a HistoryStore as store=, an AsyncHistoryStore as async_store=, or both")
    if store is not None:
        check_store(store, f"store= of {who}", HistoryStore)
    if async_store is not None:
        check_store(async_store, f"async_store= of {who}", AsyncHistoryStore)
    return asynchronous(store if async_store is None else async_store, who)  # type: ignore[arg-type]


def asking(function: Callable[..., Any], *arguments: Any) -> Steps[Any]:
    """Steps that call a method of a store or a reply of either kind."""
    return (yield Ask(function, arguments))


def close_of(reply: Reply | AsyncReply) -> Callable[[], Any]:
    """The method that ends a live reply."""
    return reply.aclose if isinstance(reply, AsyncReply) else reply.close


async def in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call a method of a HistoryStore in a thread. After a cancellation, this waits for the end of the call, so that no
    write lands later. The call is then not retried if the server is unreachable."""
    caller = Caller()
    call = asyncio.ensure_future(asyncio.to_thread(caller.run, function, *arguments, **options))
    try:
        return cast("T", await asyncio.shield(call))
    except asyncio.CancelledError:
        caller.abandoned = True
        while caller.began and not call.done():  # anyio cancels again and again
            with suppress(asyncio.CancelledError):
                await asyncio.wait([call])
        if call.done() and not call.cancelled():
            call.exception()  # retrieved, so that asyncio does not report it as never retrieved
        raise


class _InThreads:
    """The methods of a HistoryStore as coroutines, which work in any event loop."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # `copy` asks for some before there is a store
            raise AttributeError(name)
        return partial(in_thread, getattr(self._store, name))


def asynchronous(store: AsyncHistoryStore | HistoryStore, who: str) -> AsyncHistoryStore:
    """The store, or the methods of a HistoryStore in threads. Raises StoreTypeError."""
    check_store(store, who, AsyncHistoryStore, HistoryStore)
    return cast("AsyncHistoryStore", _InThreads(store)) if isinstance(store, HistoryStore) else store


async def all_conversations(store: AsyncHistoryStore, **owner: Any) -> list[Preview]:
    """All conversations of an owner or agent, each once, also if some change in the meantime."""
    found: dict[str, Preview] = {}
    offset = 0
    while page := await store.list_conversations(limit=_PAGE, offset=offset, preview=True, **owner):
        found |= {one.conversation.conversation_id: one for one in page}
        offset += len(page)
    return list(found.values())


def search_runner(
    store: Any, conversation_id: str, **options: Unpack[SearchOptions]
) -> tuple[ConversationSearchTool | AsyncConversationSearchTool, Callable[[Any], Awaitable[str]]]:
    """The search tool, and a coroutine function that runs it: in a thread, if the store is synchronous."""
    anywhere = asynchronous(store, "search_tool")
    tool: Any = conversation_search_tool(store, conversation_id, **options)
    return tool, lambda arguments: anywhere.execute(tool.steps(arguments))
