"""One subscription to all conversations, for live lists: sends the new state of each changed conversation."""

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

__all__ = ["Overview"]

_logger = logging.getLogger("redis_history")

#: Minimum seconds between two updates, so that a busy conversation does not flood its readers.
_PACE: Final = 0.25
#: How many conversations are read at once.
_AT_ONCE: Final = 20


class Overview:
    """The stream of the list. Runs while there are readers, and `grace` seconds longer."""

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
        """Future events of the conversations that this reader may see, and heartbeats."""
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
                if place < ring.start:  # too slow: the reader has to read the list again
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
        """End the subscription and all its streams."""
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
                changed: dict[str, Event] = {}  # the last unsent event of each conversation
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
        except Exception as error:  # noqa: BLE001 -- readers reconnect, which starts a new subscription
            if not opened.done():
                opened.set_exception(error)
            else:
                _logger.warning("the live list of conversations ends, and clients reconnect: %s", error)
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
                _logger.warning("the live list of conversations waits for the server: %s", error)
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
        """The record and the newest message. Reads the message again unless the event is an append, because other
        changes may have edited or removed it."""
        name = event.conversation_id
        last = _appended(event) or (await self._store.newest_messages([name]))[0]
        return await self._store.get_conversation(name), last

    def _add(self, ring: Ring, name: str, kind: str, data: dict[str, Any]) -> None:
        self._count += 1
        ring.add(Entry(str(self._count), name, frame(kind, {"conversation": name, **data})))


def _appended(event: Event) -> Message | None:
    return event.messages[-1] if isinstance(event, MessagesAppended) and event.messages else None


def _heard(opened: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved, even if the reader that waited for it has left."""
    if not opened.cancelled():
        opened.exception()
