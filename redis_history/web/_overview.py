"""One subscription to all conversations, for lists that move: of each that changed, how it stands now."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from redis_history._async.store import AsyncHistoryStore
from redis_history.errors import BackendUnavailableError
from redis_history.events import ConversationDeleted, Event, MessagesAppended, Reset
from redis_history.model import Message
from redis_history.web._encoding import PING, frame, kind_of
from redis_history.web._ring import Entry, Ring
from redis_history.web._shape import conversation_shape, glimpse, writer

__all__ = ["Overview"]

_logger = logging.getLogger("redis_history")

#: Seconds between two tellings: a conversation that changes all the time is told of so often, and no oftener.
_PACE: Final = 0.25
#: How many conversations are read at once.
_AT_ONCE: Final = 20


class _Changed:
    """What happened to a conversation since it was last told of."""

    __slots__ = ("event", "last")

    def __init__(self, event: Event, last: Message | None) -> None:
        self.event, self.last = event, last


class Overview:
    """Runs while there are readers, and `grace` seconds longer."""

    def __init__(self, store: AsyncHistoryStore, *, heartbeat: float, grace: float) -> None:
        self._store = store
        self._heartbeat, self._grace = heartbeat, grace
        self._ring = Ring()
        self._ring.closed = True
        self._readers = 0
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._changed: dict[str, _Changed] = {}
        self._count = 0

    async def follow(self, permitted: Callable[[str], Awaitable[bool]]) -> AsyncGenerator[bytes, None]:
        """Events from now on of those conversations that this reader may see, and signs of life."""
        if self._ring.closed:
            self._ring = Ring()
            self._opened = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._ring, self._opened), name="redis_history-overview")
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        self._readers += 1
        try:
            if self._opened is not None:
                await asyncio.shield(self._opened)
            ring, place = self._ring, self._ring.end
            yield frame("hello", {})
            while not ring.closed:
                if place < ring.start:  # too slow: what it missed is in the list of conversations
                    place = ring.end
                    yield frame("reset", {"reason": "too_slow"})
                    continue
                entries = list(ring.read(place))
                place += len(entries)
                if entries:
                    kept = [entry.data for entry in entries if await permitted(entry.conversation_id)]
                    if kept:
                        yield b"".join(kept)
                    continue
                await ring.wait()
                if place == ring.end and not ring.closed:
                    yield PING
        finally:
            self._readers -= 1
            if not self._readers and self._task is not None:
                self._ending = asyncio.get_running_loop().call_later(self._grace, self._task.cancel)

    async def aclose(self) -> None:
        """End it, and all its streams."""
        if self._ending is not None:
            self._ending.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, ring: Ring, opened: asyncio.Future[None]) -> None:
        try:
            async with self._store.subscribe_all() as feed:
                opened.set_result(None)
                told = 0.0
                while not feed.closed:
                    wait = max(0.001, told + _PACE - time.monotonic()) if self._changed else self._heartbeat
                    event = await feed.get(wait)
                    if event is not None:
                        self._note(event)
                    if self._changed and time.monotonic() >= told + _PACE:
                        await self._tell(ring)
                        told = time.monotonic()
                    elif event is None:
                        ring.wake()
        except Exception as error:  # noqa: BLE001 -- readers come again, and it begins anew
            if not opened.done():
                opened.set_exception(error)
            else:
                _logger.warning("the list of conversations is let go: %s", error)
        finally:
            if not opened.done():
                opened.cancel()
            self._changed.clear()
            ring.close()

    def _note(self, event: Event) -> None:
        known = self._changed.get(event.conversation_id)
        last = known.last if known is not None else None
        if isinstance(event, MessagesAppended) and event.messages:
            last = event.messages[-1]
        self._changed[event.conversation_id] = _Changed(event, last)

    async def _tell(self, ring: Ring) -> None:
        names = list(self._changed)
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            try:
                found = await asyncio.gather(*map(self._store.get_conversation, some))
            except BackendUnavailableError as error:
                _logger.warning("the list of conversations waits for the server: %s", error)
                return
            for name, conversation in zip(some, found, strict=True):
                changed = self._changed.pop(name)
                gone = isinstance(changed.event, ConversationDeleted)
                if conversation is None or (gone and conversation.revision <= changed.event.revision):
                    self._add(ring, name, "gone", {})
                    continue
                shape = conversation_shape(conversation)
                for left_out in ("id", "metadata", "metadata_cut"):
                    shape.pop(left_out, None)
                kind = "reset" if isinstance(changed.event, Reset) else kind_of(changed.event)
                told = {"kind": kind, "last": glimpse(changed.last), "writer": writer(changed.last)}
                self._add(ring, name, "changed", shape | told)
            ring.wake()

    def _add(self, ring: Ring, name: str, kind: str, data: dict[str, Any]) -> None:
        self._count += 1
        ring.add(Entry(str(self._count), name, frame(kind, {"conversation": name, **data})))
