"""One subscription to all conversations, for lists that move: of each that changed, how it stands now."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from redis_history._async.store import AsyncHistoryStore
from redis_history.errors import BackendUnavailableError
from redis_history.events import ConversationDeleted, Event, MessagesAppended
from redis_history.model import Conversation, Message
from redis_history.web._encoding import PING, frame, kind_of
from redis_history.web._ring import Entry, Ring
from redis_history.web._shape import conversation_shape, glimpse, writer

__all__ = ["Overview", "newest_of"]

_logger = logging.getLogger("redis_history")

#: Seconds between two tellings: a conversation that changes all the time is told of so often, and no oftener.
_PACE: Final = 0.25
#: How many conversations are read at once.
_AT_ONCE: Final = 20


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
            said = time.monotonic()
            while not ring.closed:
                entries = list(ring.read(place)) if place >= ring.start else []
                if place < ring.start:  # too slow: what it missed is in the list of conversations
                    chunk, place = frame("reset", {"reason": "too_slow"}), ring.end
                elif entries:
                    chunk = b"".join([one.data for one in entries if await permitted(one.conversation_id)])
                    place += len(entries)
                else:
                    chunk = b""
                    await ring.wait()
                silent = time.monotonic() - said >= self._heartbeat
                if chunk or (silent and not ring.closed):
                    yield chunk or PING
                    said = time.monotonic()
        finally:
            self._readers -= 1
            if not self._readers:
                self._ending = asyncio.get_running_loop().call_later(self._grace, self._end)

    def _end(self) -> None:
        self._ring.close()
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """End it, and all its streams."""
        if self._ending is not None:
            self._ending.cancel()
        self._end()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, ring: Ring, opened: asyncio.Future[None]) -> None:
        opened.add_done_callback(_heard)
        try:
            async with self._store.subscribe_all() as feed:
                opened.set_result(None)
                changed: dict[str, Event] = {}  # the last of each conversation that was not told of yet
                told = 0.0
                while not feed.closed:
                    wait = max(0.001, told + _PACE - time.monotonic()) if changed else self._heartbeat
                    event = await feed.get(wait)
                    if event is not None:
                        changed[event.conversation_id] = event
                    if changed and time.monotonic() >= told + _PACE:
                        await self._tell(ring, changed)
                        told = time.monotonic()
                    elif event is None:
                        ring.wake()
        except Exception as error:  # noqa: BLE001 -- readers come again, and it begins anew
            if not opened.done():
                opened.set_exception(error)
            else:
                _logger.warning("the list of conversations is let go: %s", error)
        finally:
            opened.cancel()
            ring.close()

    async def _tell(self, ring: Ring, every: dict[str, Event]) -> None:
        names = list(every)
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            try:
                found = await asyncio.gather(*(self._state(every[name]) for name in some))
            except BackendUnavailableError as error:
                _logger.warning("the list of conversations waits for the server: %s", error)
                return
            for name, (conversation, last) in zip(some, found, strict=True):
                event = every.pop(name)
                if conversation is None or isinstance(event, ConversationDeleted):
                    self._add(ring, name, "gone", {})
                    continue
                shape = conversation_shape(conversation)
                for left_out in ("id", "metadata", "metadata_cut"):
                    shape.pop(left_out, None)
                told = {"kind": kind_of(event), "last": glimpse(last), "writer": writer(_appended(event))}
                self._add(ring, name, "changed", shape | told)
            ring.wake()

    async def _state(self, event: Event) -> tuple[Conversation | None, Message | None]:
        """The record, and the newest message, which is read after any change but an append: what a list showed of it
        may have been changed, or removed."""
        name = event.conversation_id
        last = _appended(event) or await newest_of(self._store, name)
        return await self._store.get_conversation(name), last

    def _add(self, ring: Ring, name: str, kind: str, data: dict[str, Any]) -> None:
        self._count += 1
        ring.add(Entry(str(self._count), name, frame(kind, {"conversation": name, **data})))


async def newest_of(store: AsyncHistoryStore, conversation_id: str) -> Message | None:
    """The newest message of a conversation."""
    messages = (await store.snapshot(conversation_id, limit=1)).messages
    return messages[0] if messages else None


def _appended(event: Event) -> Message | None:
    return event.messages[-1] if isinstance(event, MessagesAppended) and event.messages else None


def _heard(opened: asyncio.Future[None]) -> None:
    """That it could not begin is known, also if the reader who was to hear it has left."""
    if not opened.cancelled():
        opened.exception()
