"""Subscriptions that readers share: one for each watched conversation, and one for the list of all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from random import sample
from typing import Any, Final

from redis_history.errors import BackendUnavailableError, RedisHistoryError
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.values import events
from redis_history.values.events import BEGINNING
from redis_history.values.folding import fold_of
from redis_history.web._events import KINDS, PING, Entry, Growth, Ring, encoded, frame, run_frame, turn_frame
from redis_history.web._rights import ReadRights
from redis_history.web._shape import conversation_shape, message_preview

_logger = logging.getLogger("redis_history")

#: Seconds between two checks whether the store can be reached, and for which a check waits: readers learn within 2 s
#: that it cannot. And the number of conversations of a check, because those of a cluster may be on several nodes.
_CHECK_EVERY: Final = 0.5
_CHECK_WAITS: Final = 1.0
_CHECKED: Final = 20
#: How many readers of a conversation may catch up concurrently: each holds one read of the change log in memory.
_CATCHING_UP: Final = 4
#: Bytes that such a reader keeps of a read. The rest of it, up to about 1 MB, is dropped, so that a stalled reader
#: holds no more than this.
_KEPT: Final = 262_144
#: Minimum seconds between two updates of the list, so that a busy conversation does not flood its readers.
_PACE: Final = 0.25
#: How many conversations of the list are read together.
_AT_ONCE: Final = 20
#: Conversations whose rights a reader of the list requests at its start, so that it is notified when they end.
_LEARNED: Final = 50


class _Watch:
    """A subscription, and the ring of its last events for its readers."""

    def __init__(self, store: AsyncHistoryStore, heartbeat: float, cursor: str = "") -> None:
        self.ring = Ring(cursor)
        self.away = False  # whether the store could not be reached at the last check
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

    def set_away(self, away: bool) -> None:
        if away != self.away:
            self.away = away
            self.ring.wake()


class ConversationWatch(_Watch):
    """The changes of one conversation after a cursor."""

    def __init__(self, store: AsyncHistoryStore, heartbeat: float, conversation_id: str, cursor: str) -> None:
        self._conversation_id = conversation_id
        self._growing: dict[str, Growth] = {}  # replies that are being written, by the ids of their messages
        self._states = {"run": b"", "turn": b""}  # the newest run, and the turns, as events for readers
        self._grown = 0  # counts the events of growth, runs and turns
        self._catching_up = asyncio.Semaphore(_CATCHING_UP)
        super().__init__(store, heartbeat, cursor)

    async def _run(self) -> None:
        async with self._store.subscribe(self._conversation_id, after=self._cursor) as subscription:
            woken_at = time.monotonic()
            while not subscription.closed:
                event = await subscription.get(self._heartbeat)
                if isinstance(event, events.ReplyGrew):
                    if event.whole:
                        self._growing[event.message_id] = Growth()
                    self._growing[event.message_id].add(event)
                    self._grown += 1
                elif isinstance(event, events.RunChanged):
                    self._states["run"] = run_frame(event)
                    self._grown += 1
                elif isinstance(event, events.TurnChanged):
                    self._states["turn"] = turn_frame(event)
                    self._grown += 1
                elif event is not None:
                    self.ring.add(await encoded(self._store, event))
                    self._forget(event)
                if event is not None or time.monotonic() - woken_at >= self._heartbeat:
                    self.ring.wake()
                    woken_at = time.monotonic()

    def _forget(self, event: events.Event) -> None:
        """Drop the growth of replies, and the run, that have ended with this event."""
        match event:
            case events.ConversationDeleted() | events.Reset(reason="conversation_missing" | "conversation_replaced"):
                self._states = {"run": b"", "turn": b""}
        fold = fold_of(event)
        if isinstance(event, events.Reset) or (fold is not None and fold.clears):
            self._growing.clear()
        elif fold is not None:
            for message_id in (*(message.id for message in fold.ended), *fold.removed):
                self._growing.pop(message_id, None)

    def _read_growth(self, known: dict[Growth, int]) -> bytes:
        """The growth of replies since the last call. `known`: how much of each reply a reader has."""
        growing = list(self._growing.values())
        frames = [growth.after(known.get(growth, 0)) for growth in growing if known.get(growth, 0) < growth.end]
        known.clear()
        known.update((growth, growth.end) for growth in growing)
        return b"".join(frames)

    async def follow(self, cursor: str, rights: ReadRights) -> AsyncGenerator[bytes, None]:
        """Encoded events after a cursor for one reader, heartbeats, and notices that the store is away or back; until
        the watch ends, or the conversation is created again and is not the reader's.

        A reader whose cursor is older than the ring reads the change log until it reaches the ring. Even a slow reader
        holds only the data that is being sent.
        """
        index, away = self.ring.index_after(cursor), False
        known: dict[Growth, int] = {}
        states = {"run": b"", "turn": b""}
        life = None if rights.is_open else await rights.readable_life(self._conversation_id)
        while not self.ring.closed:
            if self.away != away:
                away = self.away
                yield frame("away" if away else "back", {})
            if index is None or index < self.ring.start:
                entries = await self._catch_up(cursor)
                index = self.ring.index_after(entries[-1].cursor if entries else cursor)
            else:
                entries = self.ring.read(index)
                index += len(entries)
            if entries:
                cursor = entries[-1].cursor
                if any(entry.life not in ("", life) for entry in entries) and not rights.is_open:
                    life = await rights.readable_life(self._conversation_id)
                if life is None and not rights.is_open:
                    return  # the client reconnects, and gets the error response
                # Former lives are left out, because their owners cannot be checked any more. A `reset` follows them.
                if sent := b"".join(entry.data for entry in entries if rights.is_open or entry.life in ("", life)):
                    yield sent
                if not entries[-1].life and not rights.is_open:
                    life = BEGINNING.epoch
            elif life == BEGINNING.epoch and index == self.ring.end:
                # A run may precede its conversation, which does not have an owner until it exists.
                if not await self._changed():
                    yield PING
            elif index == self.ring.end and states != self._states:
                new = b"".join(one for name, one in self._states.items() if one != states[name])
                states = dict(self._states)
                yield new or PING
            elif index == self.ring.end and (growth := self._read_growth(known)):
                yield growth
            elif (index is None or index == self.ring.end) and not await self._changed():
                yield PING

    async def _changed(self) -> bool:
        """Wait for the next `wake` of the ring; returns whether there is anything new."""
        before = self.ring.end, self._grown, self.away, self.ring.closed
        await self.ring.wait()
        return before != (self.ring.end, self._grown, self.away, self.ring.closed)

    async def _catch_up(self, cursor: str) -> list[Entry]:
        """Events after a cursor from the change log: up to the first event of the ring, the size limit, or the end."""
        entries: list[Entry] = []
        size = 0
        async with self._catching_up, self._store.subscribe(self._conversation_id, after=cursor) as subscription:
            while size < _KEPT and self.ring.index_after(entries[-1].cursor if entries else cursor) is None:
                event = await subscription.get(0)
                if event is None:
                    break
                # This reader gets growth and the run once it has reached the ring.
                if not isinstance(event, events.ReplyGrew | events.RunChanged | events.TurnChanged):
                    entries.append(await encoded(self._store, event))
                    size += len(entries[-1].data)
        return entries


class ListWatch(_Watch):
    """The changes of all conversations: the new state of each changed one."""

    _open = False

    def __init__(self, store: AsyncHistoryStore, heartbeat: float) -> None:
        self._turns: dict[str, str | None] = {}  # unsent states of the turns of conversations
        super().__init__(store, heartbeat)

    async def _run(self) -> None:
        async with self._store.subscribe_all() as subscription:
            self._open = True
            self.ring.wake()
            changed: dict[str, events.Event] = {}  # the last unsent event of each conversation
            self._turns.clear()
            sent = 0.0
            while not subscription.closed:
                wait = max(0.001, sent + _PACE - time.monotonic()) if changed else self._heartbeat
                event = await subscription.get(wait)
                if event is not None and not isinstance(event, events.ReplyGrew):
                    changed[event.conversation_id] = event
                    if isinstance(event, events.TurnChanged):
                        self._turns[event.conversation_id] = _turn_status(event)
                if changed and time.monotonic() >= sent + _PACE:
                    await self._add_states(changed)
                    sent = time.monotonic()
                elif event is None:
                    self.ring.wake()

    async def follow(self, rights: ReadRights) -> AsyncGenerator[bytes, None]:
        """Future events of the conversations that this reader may read, the end of those that it could read, and
        heartbeats."""
        ring = self.ring
        while not self._open and not ring.closed:
            await ring.wait()
        index, sent, away = ring.end, time.monotonic(), False
        if not rights.is_open:
            await rights.learn(one.conversation_id for one in await self._store.list_conversations(limit=_LEARNED))
        chunk = frame("hello", {})
        while not ring.closed:
            if chunk or time.monotonic() - sent >= self._heartbeat:
                yield chunk or PING
                sent = time.monotonic()
            chunk = b""
            if self.away != away:
                away = self.away
                chunk = frame("away" if away else "back", {})
            elif index < ring.start:  # too slow: the reader has to read the list again
                chunk, index = frame("reset", {"reason": "too_slow"}), ring.end
            elif entries := ring.read(index):
                chunk = b"".join([await self._seen(one, rights) for one in entries])
                index += len(entries)
            else:
                await ring.wait()

    async def _seen(self, entry: Entry, rights: ReadRights) -> bytes:
        """The data that a reader receives for an event."""
        if entry.life and await rights.allow(entry.conversation_id, entry.life):
            return entry.data
        return _gone(entry.conversation_id) if rights.lost(entry.conversation_id) else b""

    async def _add_states(self, changed: dict[str, events.Event]) -> None:
        """Add the current state of changed conversations to the ring, and remove them from `changed`."""
        names = list(changed)
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            try:
                # The record first, and then the newest message with the life: if that is the life of the event, which
                # was there before both, the record is of this life, too.
                records = await asyncio.gather(*map(self._store.get_conversation, some))
                snapshots = await asyncio.gather(*(self._store.snapshot(one, limit=1, contents=False) for one in some))
            except BackendUnavailableError as error:
                _logger.warning("the live list of conversations waits for the server: %s", error)
                return
            for name, record, snapshot in zip(some, records, snapshots, strict=True):
                event, turns = changed.pop(name), {"turn": self._turns.pop(name)} if name in self._turns else {}
                if record is None and isinstance(event, events.RunChanged | events.TurnChanged):
                    continue  # a run may begin before the conversation does
                data, life = _gone(name), ""
                if record is not None and not isinstance(event, events.ConversationDeleted):
                    life = event.cursor.epoch
                    if life != snapshot.cursor.epoch:
                        continue  # it was deleted and created again, and the event of the new one follows
                    fields = conversation_shape(record)
                    for left_out in ("id", "metadata", "metadata_cut"):
                        fields.pop(left_out, None)
                    newest = snapshot.messages[-1] if snapshot.messages else None
                    fields |= {"kind": KINDS[type(event)], "last": message_preview(newest), **turns}
                    data = frame("changed", {"conversation": name, **fields})
                self.ring.add(Entry(str(self.ring.end + 1), name, data, life))
            self.ring.wake()


def _turn_status(event: events.TurnChanged) -> str | None:
    """The status that a list shows of the turns of a conversation: the one that needs attention most."""
    found = {turn.status for turn in event.turns}
    return next((one for one in ("parked", "waiting", "running", "owed") if one in found), None)


def _gone(conversation_id: str) -> bytes:
    return frame("gone", {"conversation": conversation_id})


class Hub:
    """The watches of one application. Each ends `grace` seconds after its last reader."""

    def __init__(self, store: AsyncHistoryStore, *, heartbeat: float, grace: float) -> None:
        self._store, self._heartbeat, self._grace = store, heartbeat, grace
        self._watches: dict[str | None, Any] = {}  # by the conversation; None: the list of all
        self._checks: asyncio.Task[None] | None = None

    def follow(self, conversation_id: str, cursor: str, rights: ReadRights) -> AsyncGenerator[bytes, None]:
        """The stream of a conversation after a cursor, while this reader may read it."""
        new = partial(ConversationWatch, self._store, self._heartbeat, conversation_id, cursor)
        return self._read(conversation_id, new, lambda watch: watch.follow(cursor, rights))

    def follow_all(self, rights: ReadRights) -> AsyncGenerator[bytes, None]:
        """The stream of the list, of the conversations that this reader may read."""
        new = partial(ListWatch, self._store, self._heartbeat)
        return self._read(None, new, lambda watch: watch.follow(rights))

    async def _read(
        self, name: str | None, new: Callable[[], Any], follow: Callable[[Any], AsyncGenerator[bytes, None]]
    ) -> AsyncGenerator[bytes, None]:
        watch = self._watches.get(name)
        if watch is None or watch.ring.closed:
            watch = self._watches[name] = new()
        if watch.ending is not None:
            watch.ending.cancel()
            watch.ending = None
        watch.readers += 1
        if self._checks is None or self._checks.done():
            self._checks = asyncio.create_task(self._check_store(), name="redis_history-checks")
        try:
            async with aclosing(follow(watch)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            watch.readers -= 1
            if not watch.readers:
                watch.ending = asyncio.get_running_loop().call_later(self._grace, self._end, name, watch)

    async def _check_store(self) -> None:
        """Say in all streams whether the store can be reached. A subscription waits silently for it."""
        while self._watches:
            watches = list(self._watches.items())
            some = sample(watches, min(_CHECKED, len(watches)))
            away = await asyncio.gather(*(self._is_away(name) for name, _ in some))
            if any(away) or any(watch.away for _, watch in watches):
                some, away = watches, await asyncio.gather(*(self._is_away(name) for name, _ in watches))
            for (_, watch), is_away in zip(some, away, strict=True):
                watch.set_away(is_away)
            await asyncio.sleep(_CHECK_EVERY)

    async def _is_away(self, name: str | None) -> bool:
        try:
            async with asyncio.timeout(_CHECK_WAITS):
                await self._store.get_conversation(name or "redis_history")
        except (BackendUnavailableError, TimeoutError):
            return True
        except RedisHistoryError:  # it answers, such as that this user may not read
            return False
        return False

    def _end(self, name: str | None, watch: _Watch) -> None:
        if watch.ending is not None:
            watch.ending.cancel()
        watch.ring.close()
        watch.task.cancel()
        if self._watches.get(name) is watch:
            del self._watches[name]

    async def aclose(self) -> None:
        """End all watches, and with them all streams."""
        watches = list(self._watches.items())
        for name, watch in watches:
            self._end(name, watch)
        if self._checks is not None:
            self._checks.cancel()
            await asyncio.gather(self._checks, return_exceptions=True)
        await asyncio.gather(*(watch.task for _, watch in watches), return_exceptions=True)
