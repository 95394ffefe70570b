"""Subscriptions that readers share: one for each watched conversation, and one for the list of all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from redis_history._async.store import AsyncHistoryStore
from redis_history.errors import BackendUnavailableError
from redis_history.events import (
    ConversationDeleted,
    Event,
    HistoryCleared,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    ReplyEnded,
    ReplyGrew,
    Reset,
)
from redis_history.model import Conversation, Message
from redis_history.web._events import PING, Entry, Growth, Ring, encoded, frame, kind_of
from redis_history.web._shape import conversation_shape, glimpse

_logger = logging.getLogger("redis_history")

#: Seconds without a change after which to check whether the store can be reached.
_CHECK_AFTER: Final = 5.0
#: How many readers of a conversation may catch up at once: each holds one read of the change log in memory.
_CATCHING_UP: Final = 4
#: Bytes that such a reader keeps of a read. The rest of it, up to about 1 MB, is dropped, so that a stalled reader
#: holds no more than this.
_KEPT: Final = 262_144
#: Minimum seconds between two updates of the list, so that a busy conversation does not flood its readers.
_PACE: Final = 0.25
#: How many conversations of the list are read at once.
_AT_ONCE: Final = 20


class _Watch:
    """A subscription, and the ring of its last events for its readers."""

    def __init__(self, store: AsyncHistoryStore, heartbeat: float, cursor: str = "") -> None:
        self.ring = Ring(cursor)
        self.readers = 0
        self.ending: asyncio.TimerHandle | None = None
        self._store, self._heartbeat, self._cursor = store, heartbeat, cursor
        self.task = asyncio.create_task(self._until_closed(), name="redis_history-watch")

    async def _until_closed(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 -- readers reconnect, which starts a new subscription
            _logger.warning("a subscription of the live view ends, and clients reconnect: %s", error)
        finally:
            self.ring.close()

    async def _run(self) -> None:
        """Add events to the ring until the subscription ends."""

    def end(self) -> None:
        if self.ending is not None:
            self.ending.cancel()
        self.ring.close()
        self.task.cancel()


class ConversationWatch(_Watch):
    """The changes of one conversation after a cursor."""

    def __init__(self, store: AsyncHistoryStore, conversation_id: str, cursor: str, heartbeat: float) -> None:
        self._conversation_id = conversation_id
        self._away = False  # whether the store could not be reached at the last check
        self._growing: dict[str, Growth] = {}  # the replies that are being written, by the ids of their messages
        self._grown_at = 0  # counts their growth
        self._catching_up = asyncio.Semaphore(_CATCHING_UP)
        super().__init__(store, heartbeat, cursor)

    async def _run(self) -> None:
        async with self._store.subscribe(self._conversation_id, after=self._cursor) as feed:
            last = time.monotonic()
            while not feed.closed:
                event = await feed.get(min(self._heartbeat, _CHECK_AFTER))
                before = self._away
                if isinstance(event, ReplyGrew):
                    if event.whole:
                        self._growing[event.message_id] = Growth(event)
                    self._growing[event.message_id].add(event)
                    self._grown_at += 1
                    self._away = False
                elif event is not None:
                    self.ring.add(await encoded(self._store, event))
                    self._forget(event)
                    self._away = False
                else:
                    self._away = await self._is_away()
                if event is not None or self._away != before or time.monotonic() - last >= self._heartbeat:
                    self.ring.wake()
                    last = time.monotonic()

    def _forget(self, event: Event) -> None:
        """Drop the growth of replies that have ended."""
        if isinstance(event, ReplyEnded):
            self._growing.pop(event.message_id, None)
        elif isinstance(event, MessagesDeleted | MessagesAppended):
            for message_id in event.message_ids if isinstance(event, MessagesDeleted) else event.removed_ids:
                self._growing.pop(message_id, None)
        elif isinstance(event, HistoryCleared | HistoryRestored | ConversationDeleted | Reset):
            self._growing.clear()

    def _grown(self, known: dict[Growth, int]) -> bytes:
        """What replies have grown by since the last call. `known`: how much of each a reader has."""
        frames = []
        growing = self._growing.values()
        for growth in growing:
            if (index := known.get(growth, 0)) < growth.end:
                frames.append(growth.after(index))
                known[growth] = growth.end
        for ended in known.keys() - set(growing):
            del known[ended]
        return b"".join(frames)

    async def _is_away(self) -> bool:
        """Whether the store cannot be reached. A subscription waits silently, but readers should see that it does."""
        try:
            await self._store.get_conversation(self._conversation_id)
        except BackendUnavailableError:
            return True
        return False

    async def follow(self, cursor: str) -> AsyncGenerator[bytes, None]:
        """Encoded events after a cursor for one reader, heartbeats, and notices that the store is away or back; until
        the watch ends.

        A reader whose cursor is older than the ring reads the change log until it reaches the ring. Even a slow reader
        holds only the data that is being sent.
        """
        place, away = self.ring.place_of(cursor), False
        known: dict[Growth, int] = {}
        while not self.ring.closed:
            if self._away != away:
                away = self._away
                yield frame("away" if away else "back", {})
            if place is not None and place < self.ring.start:
                place = None
            if place is None:
                entries = await self._catch_up(cursor)
                place = self.ring.place_of(entries[-1].cursor if entries else cursor)
            else:
                entries = list(self.ring.read(place))
                place += len(entries)
            if entries:
                cursor = entries[-1].cursor
                yield b"".join(entry.data for entry in entries)
            elif place == self.ring.end and (grown := self._grown(known)):
                yield grown
            elif place is None or place == self.ring.end:
                before, woken = self.ring.end, self._grown_at
                await self.ring.wait()
                still = before == self.ring.end and woken == self._grown_at
                if still and self._away == away and not self.ring.closed:
                    yield PING

    async def _catch_up(self, cursor: str) -> list[Entry]:
        """Events after a cursor, until the ring contains the place, the size limit is reached, or there are no more."""
        entries: list[Entry] = []
        size = 0
        async with self._catching_up, self._store.subscribe(self._conversation_id, after=cursor) as feed:
            while size < _KEPT and self.ring.place_of(entries[-1].cursor if entries else cursor) is None:
                event = await feed.get(0)
                if event is None:
                    break
                if isinstance(event, ReplyGrew):  # this reader gets all of it from the ring's place on
                    continue
                entries.append(await encoded(self._store, event))
                size += len(entries[-1].data)
        return entries


class ListWatch(_Watch):
    """The changes of all conversations: the new state of each changed one."""

    def __init__(self, store: AsyncHistoryStore, heartbeat: float) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened.add_done_callback(_retrieve)
        super().__init__(store, heartbeat)
        self.task.add_done_callback(lambda _: self.opened.cancel())

    async def _run(self) -> None:
        try:
            async with self._store.subscribe_all() as feed:
                self.opened.set_result(None)
                changed: dict[str, Event] = {}  # the last unsent event of each conversation
                sent = 0.0
                while not feed.closed:
                    wait = max(0.001, sent + _PACE - time.monotonic()) if changed else self._heartbeat
                    event = await feed.get(wait)
                    if event is not None and not isinstance(event, ReplyGrew):
                        changed[event.conversation_id] = event
                    if changed and time.monotonic() >= sent + _PACE:
                        await self._add_all(changed)
                        sent = time.monotonic()
                    elif event is None:
                        self.ring.wake()
        except Exception as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)

    async def follow(self, permitted: Callable[[str], Awaitable[bool]]) -> AsyncGenerator[bytes, None]:
        """Future events of the conversations that this reader may see, and heartbeats."""
        await asyncio.shield(self.opened)
        ring, place = self.ring, self.ring.end
        yield frame("hello", {})
        last = time.monotonic()
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
            silent = time.monotonic() - last >= self._heartbeat
            if chunk or (silent and not ring.closed):
                yield chunk or PING
                last = time.monotonic()

    async def _add_all(self, changed: dict[str, Event]) -> None:
        names = list(changed)
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            try:
                found = await asyncio.gather(*(self._state(changed[name]) for name in some))
            except BackendUnavailableError as error:
                _logger.warning("the live list of conversations waits for the server: %s", error)
                return
            for name, (conversation, last) in zip(some, found, strict=True):
                event = changed.pop(name)
                if conversation is None or isinstance(event, ConversationDeleted):
                    self._add(name, "gone", {})
                    continue
                shape = conversation_shape(conversation)
                for left_out in ("id", "metadata", "metadata_cut"):
                    shape.pop(left_out, None)
                more = {"kind": kind_of(event), "last": glimpse(last)}
                self._add(name, "changed", shape | more)
            self.ring.wake()

    async def _state(self, event: Event) -> tuple[Conversation | None, Message | None]:
        """The record and the newest message. Reads the message again unless the event is an append, because other
        changes may have edited or removed it."""
        name = event.conversation_id
        last = event.messages[-1] if isinstance(event, MessagesAppended) and event.messages else None
        last = last or (await self._store.newest_messages([name]))[0]
        return await self._store.get_conversation(name), last

    def _add(self, name: str, kind: str, data: dict[str, Any]) -> None:
        self.ring.add(Entry(str(self.ring.end + 1), name, frame(kind, {"conversation": name, **data})))


def _retrieve(opened: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved, even if the reader that waited for it has left."""
    if not opened.cancelled():
        opened.exception()


class Hub:
    """The watches of one application. Each ends `grace` seconds after its last reader."""

    def __init__(self, store: AsyncHistoryStore, *, heartbeat: float, grace: float) -> None:
        self._store, self._heartbeat, self._grace = store, heartbeat, grace
        self._watches: dict[str | None, _Watch] = {}

    async def follow(self, conversation_id: str, cursor: str, first: bytes = b"") -> AsyncGenerator[bytes, None]:
        """The stream of a conversation after a cursor. Sends `first` before the events."""

        def begin() -> ConversationWatch:
            return ConversationWatch(self._store, conversation_id, cursor, self._heartbeat)

        async with self._reading(conversation_id, begin) as watch:
            if first:
                yield first
            async with aclosing(watch.follow(cursor)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def follow_all(self, permitted: Callable[[str], Awaitable[bool]]) -> AsyncGenerator[bytes, None]:
        """The stream of the list, of the conversations that this reader may see."""
        async with (
            self._reading(None, lambda: ListWatch(self._store, self._heartbeat)) as watch,
            aclosing(watch.follow(permitted)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk

    @asynccontextmanager
    async def _reading(self, name: str | None, begin: Callable[[], Any]) -> AsyncIterator[Any]:
        watch = self._watches.get(name)
        if watch is None or watch.ring.closed:
            watch = self._watches[name] = begin()
        if watch.ending is not None:
            watch.ending.cancel()
            watch.ending = None
        watch.readers += 1
        try:
            yield watch
        finally:
            watch.readers -= 1
            if not watch.readers:
                watch.ending = asyncio.get_running_loop().call_later(self._grace, self._end, name, watch)

    def _end(self, name: str | None, watch: _Watch) -> None:
        watch.end()
        if self._watches.get(name) is watch:
            del self._watches[name]

    async def aclose(self) -> None:
        """End all watches, and with them all streams."""
        watches = list(self._watches.items())
        for name, watch in watches:
            self._end(name, watch)
        await asyncio.gather(*(watch.task for _, watch in watches), return_exceptions=True)
