"""Streams of frameworks, stored as they come.

Frameworks give their stores whole messages, often long after these were streamed, and the user's message after the
answer. So an adapter writes a live reply in the meantime, and then stores the whole message in its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from msgspec.structs import replace

from redis_history.errors import ConflictError, NotFoundError, RedisHistoryError
from redis_history.integrations._extras import Turns, asking, asynchronous, close_of
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store._sync.store import HistoryStore
from redis_history.values import Message

_logger = logging.getLogger("redis_history")
_MOMENT: Final = timedelta(microseconds=1)


class LiveReplies:
    """The live replies of an adapter."""

    def __init__(self, store: AsyncHistoryStore | HistoryStore, turns: Turns) -> None:
        self._store: Any = store
        self._turns = turns
        self._streams: list[LiveStream] = []

    @asynccontextmanager
    async def stream(self, conversation_id: str, writer: object = None) -> AsyncIterator[LiveStream]:
        """Follow what one run of a model streams. Replies without a whole message end as "interrupted". `writer`: which
        of the agents that write at the same time."""
        made = LiveStream(self._store, conversation_id, writer)
        self._streams.append(made)
        try:
            yield made
        finally:
            self._streams.remove(made)
            await made.aclose()

    async def settle(self, conversation_id: str, messages: Sequence[Message], writer: object = None) -> list[Message]:
        """Store messages that were streamed in the place of their live replies. Returns the others, to append: those
        before a reply get a time before it, so that the order is that of `messages`."""
        streams = [one for one in self._streams if (one.conversation_id, one.writer) == (conversation_id, writer)]
        if not streams:
            return list(messages)
        others: list[Message] = []
        waiting: list[Message] = []
        kept, losses = self._turns.fit(messages)
        self._turns.report(losses)
        for message in kept:
            place = None
            for stream in streams if message.role == "assistant" and message.text else ():
                place = place or await stream.take(message)
            if place is None:
                waiting.append(message)
                continue
            before = place.timestamp - _MOMENT if place.timestamp else None
            others += [one if one.timestamp else replace(one, timestamp=before) for one in waiting]
            waiting = []
        return others + waiting


class LiveStream:
    """The live replies of one run. Errors of the store are logged, because the framework goes on."""

    def __init__(self, store: Any, conversation_id: str, writer: object) -> None:
        self.conversation_id = conversation_id
        self.writer = writer
        self._store = store
        self._replies: list[Any] = []  # without a whole message yet
        self._open: Any = None  # the last of them, while the model writes it
        self._stored: list[str] = []  # texts of messages that were stored before they were streamed
        self._skips = False  # until the end of this message
        self._lock = asyncio.Lock()  # frameworks store messages in one task, and read the stream in another

    async def write(self, text: str) -> None:
        """Append text to the message that the model writes."""
        async with self._lock:
            if text and self._open is None and not self._skips:
                self._begin(text)
            if text and not self._skips:
                try:
                    await self._do(self._open.write, text)
                except RedisHistoryError as error:
                    _logger.warning("a live reply of %r could not be written: %s", self.conversation_id[:80], error)
                    self._skips = True

    def _begin(self, text: str) -> None:
        for known in self._stored:
            if known.startswith(_letters(text)):
                self._stored.remove(known)
                self._skips = True
                return
        self._open = self._store.stream(self.conversation_id)
        self._replies.append(self._open)

    def end(self) -> None:
        """The model has written a message."""
        self._open, self._skips = None, False

    async def take(self, message: Message) -> Message | None:
        """Store `message` in the place of its live reply, and return that; None if there is none."""
        async with self._lock:
            return await self._take(message, _letters(message.text))

    async def _take(self, message: Message, text: str) -> Message | None:
        for reply in self._replies:
            written = _letters(reply.message.text)
            if not written or not text.startswith(written):
                continue
            self._replies.remove(reply)
            if reply is self._open:  # the rest of the text comes later
                self._open, self._skips = None, True
            try:
                place: Message = await self._do(reply.finish)
                changed = replace(message, id=place.id, timestamp=place.timestamp, sequence=place.sequence)
                if changed != place:
                    await asynchronous(self._store, type(self).__name__).update_message(self.conversation_id, changed)
            except (ConflictError, NotFoundError):  # somebody has edited or removed it: that stays
                return reply.message  # type: ignore[no-any-return]
            return place
        self._stored.append(text)
        return None

    async def aclose(self) -> None:
        for reply in self._replies:
            await self._do(close_of(reply))

    async def _do(self, method: Any, *arguments: Any) -> Any:
        return await asynchronous(self._store, type(self).__name__).execute(asking(method, *arguments))


def _letters(text: str) -> str:
    """The text without spaces: frameworks strip and join it differently."""
    return "".join(text.split())
