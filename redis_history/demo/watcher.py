"""The subscriber process: follows all conversations live, over one connection, and keeps what it was told."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from redis_history import (
    AsyncHistoryStore,
    AsyncSubscription,
    HistoryCompacted,
    Message,
    MessagesAppended,
    Position,
    Reset,
)
from redis_history.demo.agent import Failed, Ready
from redis_history.errors import RedisHistoryError

__all__ = ["Compaction", "Heard", "Saw", "Told", "Until", "WatchJob", "run_watcher"]

_REPORT_SECONDS = 0.1
_SHOWN = 3  # last messages in a report


class WatchJob(msgspec.Struct, frozen=True):
    """What the process needs: where the conversations are, and which."""

    url: str
    namespace: str
    log_length: int
    conversation_ids: tuple[str, ...]


class Until(msgspec.Struct, frozen=True):
    """The parent's word that the agents are done: follow each conversation to this revision, then tell."""

    revisions: dict[str, int]


class Saw(msgspec.Struct, frozen=True):
    """Since the last report: events, messages in them, and the last of these as (conversation, message)."""

    events: int
    messages: int
    last: tuple[tuple[str, Message], ...]


class Compaction(msgspec.Struct, frozen=True):
    """So many messages, the last of them at `through`, have left for a summary."""

    summary_id: str
    through: Position
    count: int


class Heard(msgspec.Struct, frozen=True):
    """One event, in the order they came: its revision, and (id, sequence) of its messages, or the compaction; or the
    reason of a Reset."""

    revision: int
    messages: tuple[tuple[str, int | None], ...]
    reset: str | None = None
    compaction: Compaction | None = None


class Told(msgspec.Struct, frozen=True):
    """Everything that was heard, by conversation."""

    events: dict[str, list[Heard]]


def run_watcher(job: WatchJob, pipe: Connection) -> None:
    """The life of the subscriber process: Ready once nothing can be missed, reports, and Told at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when we end
    try:
        asyncio.run(_Watcher(job, pipe).run())
    except RedisHistoryError as error:
        pipe.send(Failed(f"subscriber: {error}"))
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone


class _Watcher:
    def __init__(self, job: WatchJob, pipe: Connection) -> None:
        self._job = job
        self._pipe = pipe
        self._heard: dict[str, list[Heard]] = {name: [] for name in job.conversation_ids}
        self._until: dict[str, int] | None = None
        self._behind = set(job.conversation_ids)
        self._done = asyncio.Event()
        self._events = self._messages = 0
        self._last: list[tuple[str, Message]] = []

    async def run(self) -> None:
        job = self._job
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            store = AsyncHistoryStore(job.url, namespace=job.namespace, log_length=job.log_length)
            await stack.enter_async_context(store)
            watching = [(name, await stack.enter_async_context(store.subscribe(name))) for name in job.conversation_ids]
            self._pipe.send(Ready())
            loop.add_reader(self._pipe.fileno(), self._word_of_the_parent)
            stack.callback(loop.remove_reader, self._pipe.fileno())
            running = [asyncio.create_task(self._follow(name, events)) for name, events in watching]
            running += [asyncio.create_task(self._report()), asyncio.create_task(self._finish())]
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for task in ended:
                task.result()  # raises what ended it
            self._tell()
        self._pipe.send(Told(self._heard))

    async def _follow(self, name: str, events: AsyncSubscription) -> None:
        async for event in events:
            if isinstance(event, MessagesAppended):
                found = tuple((message.id, message.sequence) for message in event.messages)
                self._heard[name].append(Heard(event.revision, found))
                self._messages += len(found)
                self._last = [*self._last, *((name, message) for message in event.messages)][-_SHOWN:]
            elif isinstance(event, HistoryCompacted):
                compaction = Compaction(event.summary.id, event.through, event.count)
                self._heard[name].append(Heard(event.revision, (), compaction=compaction))
            else:
                reason = event.reason if isinstance(event, Reset) else type(event).__name__
                self._heard[name].append(Heard(event.revision, (), reason))
            self._events += 1
            self._look(name)

    def _look(self, name: str) -> None:
        if self._until is not None:
            heard = self._heard[name]
            if (heard[-1].revision if heard else 0) >= self._until.get(name, 0):
                self._behind.discard(name)
            if not self._behind:
                self._done.set()

    def _word_of_the_parent(self) -> None:
        try:
            word: Any = self._pipe.recv()
        except (EOFError, OSError):
            word = None
        if isinstance(word, Until):
            self._until = word.revisions
            for name in self._job.conversation_ids:
                self._look(name)
        else:
            self._done.set()  # told to stop waiting, or the parent is gone

    async def _finish(self) -> None:
        await self._done.wait()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            self._tell()

    def _tell(self) -> None:
        if self._events:
            self._pipe.send(Saw(self._events, self._messages, tuple(self._last)))
            self._events = self._messages = 0
            self._last = []
