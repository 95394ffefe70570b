"""Replies: messages that are stored while they are written."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from msgspec.structs import replace

from redis_history.errors import (
    InvalidInputError,
    MessageConflictError,
    MessageNotFoundError,
    RedisHistoryError,
    RunLostError,
    StoreClosedError,
)
from redis_history.store import operations as ops
from redis_history.store import refusals
from redis_history.store._async._runtime import Job, Openable, Signal, spawn, uninterrupted
from redis_history.store.operations.stream import check_size, part_of
from redis_history.values import Message, Part, TextPart
from redis_history.values._validation import check_process, refuse
from redis_history.values.ids import new_token
from redis_history.values.pairs import marks
from redis_history.values.replies import LEASE_SECONDS, grown, merged, record_of
from redis_history.values.usage import Usage

_logger = logging.getLogger("redis_history")

#: Seconds after which the lease of the writer is renewed.
_RENEW: Final = LEASE_SECONDS / 3
#: Seconds after a failed call until the next one, which must renew the lease soon after an outage.
_WAIT_AFTER_ERROR: Final = 0.5


class AsyncReply(Openable):
    """A message that is being written; made by `store.stream`. For one task.

    It is stored from its beginning, with the status "streaming", and readers see it grow. At the end of the `with`
    block its status is "complete", or "interrupted" if the block raised. If this process dies, readers end it within 10
    seconds: "interrupted", with the text that was sent. Text is sent in the background. An error of sending is raised
    by the next `write` or `add`, or at the end if text is not stored by then."""

    def __init__(self, store: Any, op: ops.Append, interval: float) -> None:
        self.conversation_id = op.conversation_id
        self._store = store
        self._op = op
        self._interval = interval
        self._start = op.entries[0].message
        self._parts: list[Part] = []  # all
        self._pending: list[Part] = []  # those that are not in `_content` yet
        self._lock = threading.Lock()  # for these two; never held during a call
        self._content = bytearray()  # the records of parts, of which the server has the first `_sent` bytes
        self._sent = 0
        self._tools: list[tuple[int, bytes]] = []  # where records with tool calls or results end, and their marks
        self._size = len(op.entries[0].body)
        self._process = os.getpid()
        self._renewed_at = 0.0
        # Renewing also extends the life of a conversation with a `ttl`.
        ttl = store._options.ttl
        self._renew_every = _RENEW if ttl is None else min(_RENEW, ttl / 3)
        self._job: Job | None = None
        self._signal: Signal | None = None
        self._ending: Signal | None = None
        self._closing = False
        self._error: Exception | None = None
        self._ended_by_other = False
        self._end: ops.UpdateMessage | None = None
        self._message: Message | None = None
        self._unfinished: set[Any] = store._unfinished
        # The run that it belongs to, and its right to write.
        self._run_of: Any = None
        self._fence: ops.RunFence | None = None

    def _join(self, run: Any, fence: ops.RunFence) -> None:
        """Write it only while its writer has this run. Before the beginning."""
        self._run_of, self._fence = run, fence
        self._op = self._op.for_run(fence)
        self._unfinished = run._ends_of_replies

    @property
    def message(self) -> Message:
        """The message as it is written so far, or, after the end, as it is stored."""
        if self._message is not None:
            return self._message
        with self._lock:
            self._parts = merged((), self._parts)
            return grown(self._start, self._parts)

    async def open(self) -> None:
        """Store the beginning. `with` and the first use call it. Repeated calls have no effect.

        Raises the errors of `append`, and MessageConflictError if a message has this id.
        """
        if self._job is not None or self._message is not None:
            return
        try:
            await self._begin()
        except Exception:
            raise
        except BaseException:  # a cancelled task: the server may have the beginning
            await uninterrupted(self._give_up, self._unfinished)
            raise

    async def _begin(self) -> None:
        run, op = self._run_of, self._op
        [appended] = await (self._store._write(op) if run is None else run._add(op, self._write_in_run))
        if appended.duplicate:
            raise refusals.message_conflict(self.conversation_id, self._start.id)
        self._start = appended.message
        self._renewed_at = time.monotonic()
        self._signal, self._ending = Signal(), Signal()
        self._job = spawn(self._run, "redis_history-reply")

    async def _write_in_run(self, op: ops.Append) -> Any:
        try:
            return await self._store._write(op)
        except RunLostError:
            if not await self._run_of._is_kept():
                raise
            self._op = replace(op, token=new_token())  # the refusal is the outcome of the former token
            return await self._store._write(self._op)

    async def _give_up(self) -> None:
        with suppress(RedisHistoryError):
            await self._interrupt()
        if self._message is None:  # the server does not have the message yet
            self._closing, self._end = False, None

    async def write(self, text: str) -> None:
        """Append text. It is sent immediately, or with more text when the interval since the last sending is over."""
        if not isinstance(text, str):
            refuse(text, "text", "a str", InvalidInputError)
        if text:
            await self._add(TextPart(text=str(text)))  # msgspec takes no subclass of str

    async def add(self, part: Part | dict[str, Any]) -> None:
        """Append a part, such as a tool call or its result. Text after it begins a new part."""
        await self._add(part_of(part))

    async def _add(self, part: Part) -> None:
        if self._run_of is not None:
            self._run_of.check()
        await self.open()
        check_process(self._process)  # in a forked child nothing would send it
        if self._message is not None:
            raise StoreClosedError(f"reply {self._start.id[:64]!r} has ended: nothing can be written to it any more")
        error, self._error = self._error, None
        if error is not None:
            raise error
        size = check_size(part, self._size)
        if self._run_of is not None:
            self._run_of._messages.note_calls(replace(self._start, parts=(part,)))
        with self._lock:
            self._size = size
            self._parts.append(part)
            self._pending.append(part)
        if self._signal is not None:
            self._signal.set()

    async def finish(self, *, usage: Usage | Mapping[str, Any] | None = None) -> Message:
        """End the reply, and return the stored message. Done at the end of a `with` block. `usage` is that of the
        message, which totals count. Raises InvalidMessageError."""
        if usage is not None:
            self._start = replace(self._start, usage=Usage.of(usage))
        await self.open()
        return await self._finish("stopped" if self._stop_requested else "complete")

    async def aclose(self) -> None:
        """End the reply as "interrupted" unless it has ended. An error is only logged, because readers end it then."""
        if self._job is None or self._message is not None:
            return
        try:
            await uninterrupted(self._interrupt, self._unfinished)
        except RedisHistoryError as error:
            _logger.warning("reply %r could not be ended, so its readers will do it: %s", self._start.id[:64], error)

    async def _interrupt(self) -> None:
        # Once `finish` has sent the end, the same end is repeated, because it may have been stored.
        status = "stopped" if self._stop_requested else "interrupted"
        await self._finish(status if self._end is None else self._end.entry.message.status)

    @property
    def _stop_requested(self) -> bool:
        return self._run_of is not None and self._run_of.stop_requested

    async def _finish(self, status: Any) -> Message:
        if self._message is not None:
            return self._message
        self._closing = True
        if self._job is not None and self._signal is not None and self._ending is not None:
            self._ending.set()
            self._signal.set()
            await self._job.stop()
        if self._end is None or self._end.entry.message.status != status:
            entry = ops.Entry.of(replace(self.message, status=status))
            self._end = ops.UpdateMessage(
                self.conversation_id,
                entry,
                reply=ops.ReplyEnd(self._op.token),
                precondition=ops.Precondition(run=self._fence),
            )
        write = self._store._write if self._run_of is None else self._run_of._write
        ended: ops.Appended | None = await write(self._end)
        if ended is None:
            # A redaction, for example, or a stop: that stays.
            raise self._changed() if await self._find() is not None else self._removed()
        self._message = ended.message
        return ended.message

    # In the background

    async def _run(self) -> None:
        assert self._signal is not None  # noqa: S101
        assert self._ending is not None  # noqa: S101
        wait = self._renew_every
        while not self._closing:
            await self._signal.wait(wait)
            self._signal.clear()
            if self._closing or self._ended_by_other:
                continue
            started, wait = time.monotonic(), self._renew_every
            try:
                await self._flush()
            except Exception as error:  # noqa: BLE001 -- raised by the next write
                self._error, wait = error, min(wait, _WAIT_AFTER_ERROR)
                if isinstance(error, StoreClosedError):
                    return
            # A slow server, or a busy event loop, gets more text per call, up to a quarter of a second's.
            took = time.monotonic() - started
            await self._ending.wait(max(0.0, self._interval - took, min(2 * took, 0.25 - took)))

    async def _flush(self) -> None:
        """Send the pending text, and renew the lease if it is due."""
        with self._lock:
            pending, self._pending = self._pending, []
        for part in merged((), pending):
            self._content += record_of(part)
            if tools := marks(replace(self._start, parts=(part,))):
                self._tools.append((len(self._content), tools))
        renews = time.monotonic() - self._renewed_at > self._renew_every / 2
        while renews or self._sent < len(self._content):
            started = time.monotonic()
            records = bytes(self._content[self._sent :])
            # The marks of the records that this call sends.
            tools = b"".join(found for end, found in self._tools if end > self._sent)
            op = ops.GrowReply(
                self.conversation_id,
                self._op.token,
                self._sent,
                records,
                renews,
                self._fence,
                self._start.id,
                tools,
            )
            try:
                size = await self._store.backend.execute(op)
            except RunLostError:
                if not await self._run_of._is_kept():
                    raise
                continue
            if size < 0:
                self._ended_by_other = True
                found = await self._find()
                if found is None:
                    raise self._removed()
                if found.status != "interrupted":  # otherwise a reader may have considered this writer dead
                    raise self._changed()
                return
            if renews:
                self._renewed_at = started
            renews = time.monotonic() - self._renewed_at > self._renew_every  # after an outage
            self._sent = min(size, len(self._content))  # smaller than before if the server has lost content

    async def _find(self) -> Message | None:
        found: Message | None = await self._store.backend.execute(ops.FindMessage(self.conversation_id, self._start.id))
        return found

    def _removed(self) -> MessageNotFoundError:
        return refusals.message_missing(self.conversation_id, self._start.id)

    def _changed(self) -> MessageConflictError:
        return MessageConflictError(
            f"message {self._start.id[:64]!r} was changed while its reply was being written, and stays as it is",
            message_id=self._start.id,
        )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self.aclose()
            return
        try:
            await self.finish()
        except Exception:
            raise
        except BaseException:
            await self.aclose()
            raise
