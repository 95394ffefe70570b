"""A session for the OpenAI Agents SDK, stored in one conversation."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from redis_history import AsyncHistoryStore, HistoryStore, Message, Usage
from redis_history.agents.tools import SearchOptions
from redis_history.errors import (
    BatchTooLargeError,
    ConfigurationError,
    InvalidMessageError,
    MessageTooLargeError,
    RevisionConflictError,
)
from redis_history.formats import OnLoss, from_openai_responses, to_openai_responses
from redis_history.formats._usage import usage_of
from redis_history.formats.approvals import denial
from redis_history.integrations import _approvals
from redis_history.integrations._extras import Turns, asynchronous, checked_id, ended, for_agent, search_runner
from redis_history.integrations._live import LiveReplies
from redis_history.types import Part
from redis_history.values._validation import missing
from redis_history.values.usage import NOTHING, Numbers, added, total_of

try:
    from agents import FunctionTool
    from agents.memory import Session, SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ImportError as error:
    raise missing("openai-agents", error) from error

if TYPE_CHECKING:
    from agents import RunContextWrapper, RunState, StreamEvent, TResponseInputItem
    from agents.items import ToolApprovalItem

__all__ = ["AgentsSession", "search_tool"]

_MOST_REPLACED = 1000  # messages that one atomic change can replace
_MOST_RUNS = 16  # whose usage is remembered
_ITEMS = ("get_items", "add_items", "pop_item", "clear_session")
_NO_ID = "__fake_id__"  # the SDK's id of items from chat completions


class AgentsSession(Session):
    """The items of the conversation `session_id`. The caller must close the store.

    An AsyncHistoryStore belongs to one event loop. A HistoryStore is used in threads, and so in any number of loops.

    All items of a reply are stored as one message, or as several if that is too large. Messages of other frameworks are
    converted to items; `on_loss` is called with each `Loss`, content that items cannot represent. Without it a warning
    is logged.

    `session_settings`, a SessionSettings or a dict, has the default limit of `get_items`. Items without type and role,
    such as those of the SDK's `EncryptedSession`, are stored and returned unchanged. A subclass can use the context of
    a run: the methods get it as `wrapper`. If it overrides them, the SDK compacts through them, else in one change.
    """

    def __init__(
        self,
        session_id: str,
        store: AsyncHistoryStore | HistoryStore,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        on_loss: OnLoss | None = None,
    ) -> None:
        self._store = asynchronous(store, type(self).__name__)
        self.session_id = checked_id(session_id)
        try:
            self.session_settings = coerce_session_settings(session_settings or {})
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"session_settings must be None, a SessionSettings or a dict of its fields: {error}"
            ) from error
        self._on_loss = on_loss
        self._turns = Turns("openai_responses", on_loss)
        self._live = LiveReplies(store, self._turns)
        self._counted: list[tuple[Any, Numbers]] = []  # the usage of the last runs, and how much of it is counted

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """The newest `limit` items, oldest first. None uses the limit of `session_settings`, or returns all items. A
        live reply is left out until it ends.

        The API rejects an output without its call, and a call without the reasoning before it. So items whose call or
        reasoning is not among the newest `limit` are left out.
        """
        limit = resolve_session_limit(limit, self.session_settings)
        if limit is None:
            return self._items(for_agent(await self._store.get(self.session_id)))
        if limit <= 0:
            return []
        wanted = limit
        while True:  # a message can become any number of items, also none
            messages = await self._store.get(self.session_id, limit=wanted)
            found = [self._items([message]) for message in ended(messages)]
            if sum(map(len, found)) >= limit or len(messages) < wanted:
                return self._newest(found, limit)
            wanted *= 4

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Append items in this order, in atomic changes of up to 500 messages and 4 MB."""
        given = _listed(items)
        messages = self._turns.unfinished(self.session_id, given)
        if messages is None:
            messages = self._with_usage(from_openai_responses(given), wrapper)
            messages = await self._live.settle(self.session_id, messages)
        await self._store.execute(self._turns.append(self.session_id, messages, given))

    async def request_approvals(self, interruptions: Iterable[ToolApprovalItem]) -> None:
        """Make the calls of `result.interruptions` wait for `store.decide`. Raises ApprovalNotFoundError if one of them
        is not stored."""
        ids = [one for one in map(_call_id, interruptions) if one is not None]
        await self._store.execute(_approvals.request_approvals(self.session_id, ids))

    async def apply_decisions(self, state: RunState[Any]) -> bool:
        """Approve and reject the interruptions of a run's state as it was decided. Returns whether all of them are
        decided; otherwise the state stays as it is."""
        found = await self._store.execute(_approvals.decisions(self.session_id))
        items = state.get_interruptions()
        if found is None or not all(_call_id(item) in found for item in items):
            return False
        for item in items:
            decision = found[_call_id(item) or ""]
            if decision["approved"]:
                state.approve(item)
            else:
                state.reject(item, rejection_message=denial(decision.get("reason")))
        return True

    def _with_usage(self, messages: list[Message], wrapper: RunContextWrapper[Any] | None) -> list[Message]:
        """The messages, the last one of the assistant with the tokens that the run took since the last call."""
        run = None if wrapper is None else wrapper.usage
        if run is None:
            return messages
        now = _numbers(run)
        before = next((numbers for known, numbers in self._counted if known is run), None)
        answers = [at for at, message in enumerate(messages) if message.role == "assistant"]
        if before is None:  # the first call of a run, perhaps of one that another process began
            last = _numbers(run.request_usage_entries[-1]) if answers and run.request_usage_entries else NOTHING
            before = added(now, last, -1)
        self._counted = [one for one in self._counted if one[0] is not run][-_MOST_RUNS:]
        self._counted.append((run, now if answers else before))
        if answers and any(more := added(now, before, -1)):
            messages[answers[-1]] = replace(messages[answers[-1]], usage=total_of(more))
        return messages

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove and return the newest item; None if there is none. Concurrent calls each return a different item."""
        wanted = 1
        while True:
            record = await self._store.get_conversation(self.session_id)
            found = await self._store.get(self.session_id, limit=wanted)
            newest = ended(found)[-1:]
            if not newest and len(found) == wanted:
                wanted *= 4  # only live replies
                continue
            if record is None or not newest:
                return None
            [message], revision = newest, record.revision
            items = self._items(newest)
            parts = self._without_last_item(message, items)
            try:
                if parts:
                    # A repeated identical update succeeds at any revision. So two calls that remove the same item must
                    # write different messages.
                    mark = {**message.provider_meta, "openai_agents": {"popped": uuid.uuid4().hex}}
                    kept = replace(message, parts=parts, provider_meta=mark)
                    await self._store.update_message(self.session_id, kept, expected_revision=revision)
                    return items[-1]
                deleted = await self._store.delete_messages(self.session_id, [message.id], expected_revision=revision)
            except RevisionConflictError:
                continue  # another writer was faster
            if deleted and items:
                return items[-1]

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Remove all items, but keep the conversation."""
        await self._store.clear(self.session_id)

    async def live(self, events: AsyncIterator[StreamEvent]) -> AsyncIterator[StreamEvent]:
        """Yields the events of `run.stream_events()`, and stores what the model writes as it comes, with
        `store.stream`. The whole messages of the SDK then take its place."""
        async with self._live.stream(self.session_id) as stream:
            async for event in events:
                if event.type == "raw_response_event":
                    if event.data.type == "response.output_text.delta":
                        await stream.write(event.data.delta)
                    elif event.data.type == "response.completed":
                        stream.end()
                yield event

    # OpenAIResponsesCompactionSession calls these two.

    def _has_own_items(self) -> bool:
        """Whether a subclass changes how items are stored. Then the SDK must replace them through its methods."""
        return any(getattr(type(self), name) is not getattr(AgentsSession, name) for name in _ITEMS)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        messages = from_openai_responses(_listed(items))
        if self._has_own_items() or len(messages) > _MOST_REPLACED:
            return False
        with suppress(BatchTooLargeError, MessageTooLargeError):  # then the SDK clears the session, and adds them
            await self._store.restore(self.session_id, messages)
            return True
        return False

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> Any:
        """The newest items, and a function that replaces those from an index on unless there was another write. It also
        removes the oldest items that `prune_prefix` selects, up to the first that it does not."""
        from agents.memory.session import _CompactionSnapshot

        record = await self._store.get_conversation(self.session_id)
        messages = await self._store.get(self.session_id)
        if self._has_own_items() or record is None or len(messages) > _MOST_REPLACED:
            return None
        groups = [self._items(ended([message])) for message in messages]
        every = [item for items in groups for item in items]
        before = max(len(every) - limit, 0)

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            if any(message.status == "streaming" for message in messages):
                return False  # a live reply would be lost
            first, end = 0, before + start
            while prune_prefix is not None and first < end and prune_prefix(every[first]):
                first += 1
            kept: list[Message] = []
            for message, items in zip(messages, groups, strict=True):
                # A message whose items are replaced in part is split.
                part = items[max(first, 0) : max(end, 0)]
                pieces = [message] if part == items else from_openai_responses(_listed(part))
                kept += [replace(piece, timestamp=message.timestamp) for piece in pieces]
                first, end = first - len(items), end - len(items)
            new = from_openai_responses(_listed(output))
            try:
                await self._store.restore(self.session_id, [*kept, *new], expected_revision=record.revision)
            except (RevisionConflictError, BatchTooLargeError, MessageTooLargeError):
                return False
            return True

        return _CompactionSnapshot(every[before:], not before, replace_suffix)

    def _without_last_item(self, message: Message, items: list[TResponseInputItem]) -> tuple[Part, ...]:
        """The parts of `message`, whose items these are, without its last item; () if there is no other."""
        for end in range(len(message.parts) - 1, 0, -1) if len(items) > 1 else ():
            parts = message.parts[:end]
            kept = [replace(message, parts=parts)]
            if to_openai_responses(kept, shape="original", on_loss=lambda loss: None) == items[:-1]:
                return parts
        # The last part is not the last item: calls come last in a message of a user.
        rest = from_openai_responses([dict(item) for item in items[:-1]])
        return tuple(part for one in rest for part in one.parts)

    def _newest(self, messages: list[list[TResponseInputItem]], limit: int) -> list[TResponseInputItem]:
        """The newest items of these messages, without those that need an item before them."""
        excess = sum(map(len, messages)) - limit
        found: list[TResponseInputItem] = []
        for items in messages:
            cut, rest = items[: max(excess, 0)], items[max(excess, 0) :]
            excess -= len(items)
            if any(item.get("type") == "reasoning" for item in cut):
                rest = [item for item in rest if item.get("id") in (None, _NO_ID)]
            found += rest
        return self._items(for_agent(from_openai_responses([dict(item) for item in found]), cut=True))

    def _items(self, messages: list[Message]) -> list[TResponseInputItem]:
        return to_openai_responses(messages, shape="original", on_loss=self._on_loss)  # type: ignore[return-value]


def _call_id(item: ToolApprovalItem) -> str | None:
    raw = item.raw_item
    found = raw.get("call_id", raw.get("id")) if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return found if isinstance(found, str) else None


def _numbers(usage: Any) -> Numbers:
    return (usage_of(vars(usage)) or Usage()).numbers


def _listed(items: Any) -> list[dict[str, Any]]:
    """The items as dicts. Raises InvalidMessageError."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise InvalidMessageError(f"items must be a list of items, not {type(items).__name__}")
    found = []
    for index, item in enumerate(items):
        try:
            found.append(dict(item))
        except (TypeError, ValueError) as error:
            raise InvalidMessageError(f"items[{index}] must be a dict, not {str(item)[:80]!r}") from error
    return found


def search_tool(
    store: HistoryStore | AsyncHistoryStore, conversation_id: str, **options: Unpack[SearchOptions]
) -> FunctionTool:
    """The tool `conversation_search` of `conversation_search_tool`, as a tool of the Agents SDK.

    The options and errors are those of `conversation_search_tool`.
    """
    tool, run = search_runner(store, conversation_id, **options)

    async def invoke(context: Any, arguments: str) -> str:
        return await run(arguments)

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.parameters,
        on_invoke_tool=invoke,
        strict_json_schema=False,  # strict mode requires every parameter
    )
