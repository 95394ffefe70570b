"""The memory backend: the same contract in this process, without a server.

It keeps encoded messages, so readers and writers share no objects. Tests compare the Redis backend with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from redis_history.errors import StoreClosedError
from redis_history.store.capabilities import Capabilities
from redis_history.store.memory.space import DEFAULT_CAP, ConversationState, Space
from redis_history.store.operations import (
    FindMessage,
    GrowReply,
    ListPreviews,
    Op,
    ReadChanges,
    ReadHead,
    ReadPage,
    Write,
)
from redis_history.store.operations.backend import AsyncBackend, ChangedHeads, ChangeQuery, SearchedBy, Wake, WakeAll
from redis_history.store.operations.base import T
from redis_history.store.operations.update import ReplyEnd, UpdateMessage
from redis_history.store.writes import Entry
from redis_history.values.events import BEGINNING

__all__ = ["AsyncMemoryBackend"]

#: Outcomes of writes that are kept for repetitions.
_REMEMBERED: Final = 1000


class MemoryBackend:
    """Conversations in the memory of this process. Thread-safe.

    At most `max_conversations` (the least recently changed one is removed) with at most `max_messages` each.
    """

    search_mode: SearchedBy = "memory"

    def __init__(
        self,
        *,
        log_length: int = 10_000,
        ttl: float | None = None,
        max_messages: int | None = DEFAULT_CAP,
        max_conversations: int | None = DEFAULT_CAP,
    ) -> None:
        self._space = Space(log_length, ttl, max_messages, max_conversations)
        self._lock = threading.RLock()
        self._outcomes: dict[str, Any] = {}
        self._closed = False

    @contextmanager
    def _open_space(self) -> Iterator[Space]:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed")
            yield self._space

    def execute(self, op: Op[T]) -> T:
        """Like `AsyncBackend.execute`."""
        with self._open_space():
            changed = [op.conversation_id] if isinstance(op, Write | GrowReply) else []
            shown = list(self._space.conversations) if isinstance(op, ListPreviews) else []
            if isinstance(op, FindMessage | ReadChanges | ReadHead | ReadPage):
                shown = [op.conversation_id]
            changed += filter(self._end_dead_replies, shown)
            outcome = self._run(op)
            for conversation_id in changed:
                self._space.announce(conversation_id)
            wakes, self._space.wakes = self._space.wakes, []
        for wake in wakes:
            wake()
        return cast(T, outcome)

    def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        """Like `AsyncBackend.poll_changes`."""
        with self._open_space() as space:
            found = {name: space.find(name) for name in (*space.conversations, *query.known)}
            heads = {name: state.head if state else space.deleted_head(name) for name, state in found.items()}
        return ChangedHeads({name: head for name, head in heads.items() if head != query.known.get(name, BEGINNING)})

    def watch_all(self, wake: WakeAll) -> None:
        """Like `AsyncBackend.watch_all`."""
        with self._lock:
            self._space.watchers_of_all.append(wake)

    def unwatch_all(self, wake: WakeAll) -> None:
        """Like `AsyncBackend.unwatch_all`."""
        with self._lock:
            if wake in self._space.watchers_of_all:
                self._space.watchers_of_all.remove(wake)
            self._space.drop_old_logs()

    def watch(self, conversation_id: str, wake: Wake) -> None:
        """Like `AsyncBackend.watch`."""
        self.watch_run(conversation_id, "", wake)

    def unwatch(self, conversation_id: str, wake: Wake) -> None:
        """Like `AsyncBackend.unwatch`."""
        self.unwatch_run(conversation_id, "", wake)

    def watch_run(self, conversation_id: str, run_id: str, wake: Wake) -> None:
        """Like `AsyncBackend.watch_run`."""
        with self._lock:
            self._space.watchers.setdefault((conversation_id, run_id), []).append(wake)

    def unwatch_run(self, conversation_id: str, run_id: str, wake: Wake) -> None:
        """Like `AsyncBackend.unwatch_run`."""
        with self._lock:
            watchers = self._space.watchers.get((conversation_id, run_id), [])
            if wake in watchers:
                watchers.remove(wake)
            if not watchers:
                self._space.watchers.pop((conversation_id, run_id), None)
                self._space.drop_old_logs()

    def watch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None:
        """Like `AsyncBackend.watch_turns`."""
        with self._lock:
            self._space.turns.watchers.setdefault(agent_name, []).append(wake)

    def unwatch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None:
        """Like `AsyncBackend.unwatch_turns`."""
        with self._lock:
            watchers = self._space.turns.watchers.get(agent_name, [])
            if wake in watchers:
                watchers.remove(wake)
            if not watchers:
                self._space.turns.watchers.pop(agent_name, None)

    def capabilities(self) -> Capabilities:
        """Like `AsyncBackend.capabilities`."""
        with self._open_space():
            return Capabilities("memory", search="client", doorbell="direct", doorbell_all="direct")

    def close(self) -> None:
        """Like `AsyncBackend.aclose`."""
        with self._lock:
            self._closed = True
            self._space.conversations.clear()
            self._space.deleted_logs.clear()
            self._space.deleted.clear()

    def _end_dead_replies(self, conversation_id: str) -> bool:
        """End the replies of dead writers; returns whether there were any."""
        conversation = self._space.find(conversation_id)
        replies = () if conversation is None else conversation.replies.values()
        dead = [reply for reply in replies if reply.ends <= time.time()]
        for reply in dead:
            message = cast(ConversationState, conversation).message(reply.message_id)
            end = ReplyEnd(size=len(reply.content))
            UpdateMessage(conversation_id, Entry.of(message), reply=end).apply(self._space)
        return bool(dead)

    def _run(self, op: Any) -> Any:
        if not isinstance(op, Write):
            return op.apply(self._space)
        if op.token in self._outcomes:
            return self._outcomes[op.token]
        outcome = self._outcomes[op.token] = op.apply(self._space)
        while len(self._outcomes) > _REMEMBERED:
            del self._outcomes[next(iter(self._outcomes))]
        return outcome


class AsyncMemoryBackend(AsyncBackend):
    """A backend for asynchronous stores that keeps its conversations in a synchronous one.

    `memory`: that backend, such as a `StoredBackend`. None: a new one in the memory of this process, with the options
    `log_length`, `ttl`, `max_messages` and `max_conversations`.
    """

    search_mode = MemoryBackend.search_mode

    def __init__(self, *, memory: MemoryBackend | None = None, **options: Any) -> None:
        self._memory = memory or MemoryBackend(**options)

    async def execute(self, op: Op[T]) -> T:
        return self._memory.execute(op)

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        self._memory.watch(conversation_id, wake)

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        self._memory.unwatch(conversation_id, wake)

    async def watch_run(self, conversation_id: str, run_id: str, wake: Wake) -> None:
        self._memory.watch_run(conversation_id, run_id, wake)

    async def unwatch_run(self, conversation_id: str, run_id: str, wake: Wake) -> None:
        self._memory.unwatch_run(conversation_id, run_id, wake)

    async def watch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None:
        self._memory.watch_turns(agent_name, number, wake)

    async def unwatch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None:
        self._memory.unwatch_turns(agent_name, number, wake)

    async def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        return self._memory.poll_changes(query)

    async def watch_all(self, wake: WakeAll) -> None:
        self._memory.watch_all(wake)

    async def unwatch_all(self, wake: WakeAll) -> None:
        self._memory.unwatch_all(wake)

    async def capabilities(self) -> Capabilities:
        return self._memory.capabilities()

    async def aclose(self) -> None:
        self._memory.close()
