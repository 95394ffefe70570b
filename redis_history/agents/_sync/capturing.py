# Generated from ../_async by scripts/unasync: do not edit.
"""Records the turns of an agent. No error of recording reaches the agent."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redis_history.agents.capturing.mapping import answering, read_chunk
from redis_history.agents.capturing.settings import Settings
from redis_history.agents.capturing.wrapping import F, wrap
from redis_history.errors import BackendUnavailableError, BatchTooLargeError, MessageTooLargeError, RedisHistoryError
from redis_history.store._sync._runtime import Lock, check_callback, resolve, uninterrupted, wait_for_unfinished
from redis_history.store._sync.replies import Reply
from redis_history.store.operations.append import batches
from redis_history.values import Message, assistant, large

if TYPE_CHECKING:
    from redis_history.store._sync.store import HistoryStore

_logger = logging.getLogger("redis_history")


class _Turnstile:
    """Lets one turn at a time write to a conversation, in the order of arrival."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.waiting = 0


class Capture:
    """A decorator for agents, made by `capture`.

    `recorded` and `failed` count messages; `last_error` is the reason of the last failure. All methods may be called
    concurrently; messages of one conversation are written in the order in which they came.
    """

    def __init__(self, store: HistoryStore, settings: Settings) -> None:
        self.recorded = 0
        self.failed = 0
        self.last_error: Exception | None = None
        check_callback(settings.on_error, "on_error")
        self._store = store
        self._settings = settings
        self._mutex = threading.Lock()
        self._turnstiles: dict[str, _Turnstile] = {}
        self._unfinished: set[Any] = set()

    def __call__(self, function: F) -> F:
        """Wrap the agent. Raises ConfigurationError for an object that is not a function."""

        def turn_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CapturedTurn:
            return self._read_turn(lambda: self._settings.read_call(signature, args, kwargs))

        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some built-in functions lack a signature
            signature = None
        return wrap(function, turn_of, asynchronous=inspect.iscoroutinefunction(self.flush))

    def turn(self, message: Any = None, *, conversation_id: str | None = None) -> CapturedTurn:
        """One turn, for `with`: entering it records `message`. `conversation_id` is the conversation of this turn, for
        a capture without a fixed conversation. A value that is not a message is reported, not raised."""
        return self._read_turn(lambda: self._settings.read_turn(message, conversation_id))

    def _read_turn(self, read: Callable[[], tuple[str, list[Message]]]) -> CapturedTurn:
        try:
            return CapturedTurn(self, *read(), None)
        except Exception as error:  # noqa: BLE001 -- also errors of the caller's functions; entering reports it
            return CapturedTurn(self, None, [], error)

    def _record(self, conversation_id: str, messages: list[Message]) -> None:
        """Write messages, as one change unless they are too large for that, after all earlier messages of this
        conversation. Never raises."""
        if not messages:
            return
        try:
            uninterrupted(lambda: self._append_in_order(conversation_id, messages), self._unfinished)
        except Exception as error:  # noqa: BLE001 -- such as a system without free threads
            self._report(error, conversation_id, messages)

    def _report(self, error: Exception, conversation_id: str | None, messages: list[Message]) -> None:
        with self._mutex:
            self.failed += max(len(messages), 1)
            self.last_error = error
        on_error = self._settings.on_error
        if on_error is None:
            where = "" if conversation_id is None else f" of conversation {conversation_id[:80]!r}"
            # An outage fails many appends in the same way, without a need for the traceback.
            trace = None if isinstance(error, RedisHistoryError) else error
            _logger.warning("a turn%s is not recorded: %s", where, error, exc_info=trace)
            return
        try:
            resolve(on_error(error, conversation_id, messages))
        except Exception:
            _logger.exception("the on_error of a capture failed")

    def flush(self) -> None:
        """Wait until the messages of cancelled agents are recorded or reported."""
        wait_for_unfinished(self._unfinished)

    def _append_in_order(self, conversation_id: str, messages: list[Message]) -> None:
        with self._mutex:
            turnstile = self._turnstiles.setdefault(conversation_id, _Turnstile())
            turnstile.waiting += 1
        try:
            with turnstile.lock:
                try:
                    self._store.append_many(conversation_id, messages)
                except (BatchTooLargeError, MessageTooLargeError):
                    self._append_large(conversation_id, messages)
        except Exception as error:  # noqa: BLE001 -- an error of the store must not reach the agent
            self._report(error, conversation_id, messages)
        else:
            with self._mutex:
                self.recorded += len(messages)
        finally:
            with self._mutex:
                turnstile.waiting -= 1
                if not turnstile.waiting:
                    self._turnstiles.pop(conversation_id, None)

    def _append_large(self, conversation_id: str, messages: list[Message]) -> None:
        """Write messages that exceed the limits of one change. Content too large for a message is left out and
        reported."""
        kept: list[Message] = []
        for message in messages:
            pieces, lacks = large.fitted(message)
            kept += pieces
            for _, reason in lacks:
                error = MessageTooLargeError(f"message {message.id[:64]!r} is recorded without its {reason}")
                self._report(error, conversation_id, [message])
        for batch in batches(kept):
            self._store.append_many(conversation_id, batch)


class CapturedTurn:
    """One call of an agent. Entering records the input, `reply` the result. The chunks that `add` gets are one answer,
    "interrupted" if an error is raised; leaving records its end."""

    def __init__(
        self, capture: Capture, conversation_id: str | None, inbound: list[Message], error: Exception | None
    ) -> None:
        self.conversation_id = conversation_id
        self.inbound = inbound
        self._capture = capture
        self._error = error
        self._chunks: list[Any] = []  # that are not in `_answer`
        self._answer: Reply | None = None
        self._live = False
        self._beginning = False
        self._left = False
        self._entered = False

    def reply(self, result: Any) -> None:
        """Record the result of the agent."""
        self._record(lambda: self._capture._settings.read_result(result))

    def add(self, chunk: Any) -> None:
        """Record a chunk that the agent streams: immediately if it can be a live reply, otherwise at the end."""
        self._chunks.append(chunk)
        if self._live:
            self._show()

    def __enter__(self) -> CapturedTurn:
        entered, self._entered = self._entered, True
        if entered:
            return self  # a returned stream belongs to the turn of the call
        if self._error is not None:
            self._capture._report(self._error, None, [])
        elif self.conversation_id is not None:
            failed = self._capture.failed
            self._capture._record(self.conversation_id, self.inbound)
            # In an outage, the agent does not wait for a reply to open, too.
            self._live = self._capture._settings.shows_chunks and self._capture.failed == failed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = error is not None
        if self._beginning:  # this was cancelled, and `_begin` goes on
            self._left = True
        elif self._answer is not None or self._chunks:
            uninterrupted(lambda: self._end(interrupted=interrupted), self._capture._unfinished)

    def _record(self, read: Callable[[], list[Message]], *, interrupted: bool = False) -> None:
        if self.conversation_id is None:
            return
        try:
            messages = self._complete(read(), interrupted=interrupted)
        except Exception as error:  # noqa: BLE001 -- also errors of the caller's functions
            self._capture._report(error, self.conversation_id, [])
        else:
            self._capture._record(self.conversation_id, messages)

    def _complete(self, messages: list[Message], *, interrupted: bool = False) -> list[Message]:
        inbound = self.inbound[-1] if self.inbound else None
        return answering(messages, inbound, self._capture._settings.agent, interrupted=interrupted)

    # A live answer: chunks wait in `_chunks` until there is something to show

    def _show(self) -> None:
        piece = read_chunk(self._chunks[-1])
        if isinstance(piece, Message):  # it stays a separate message
            uninterrupted(lambda: self._end(interrupted=False), self._capture._unfinished)
        elif self._answer is not None:
            self._write()
        elif piece and (not isinstance(piece, str) or piece.strip()):
            uninterrupted(self._begin, self._capture._unfinished)

    def _begin(self) -> None:
        self._beginning = True
        [empty] = self._complete([assistant("")])
        fields = {name: getattr(empty, name) for name in ("participant", "scope", "trace_id", "metadata")}
        try:
            answer = self._capture._store.stream(self.conversation_id or "", **fields)
            answer.open()
        except Exception as error:  # noqa: BLE001 -- an error of the store must not reach the agent
            self._give_up(error)
        else:
            self._answer = answer
            self._write()
        self._beginning = False
        if self._left:
            self._end(interrupted=True)

    def _write(self) -> None:
        while self._answer is not None and self._chunks:
            piece = read_chunk(self._chunks[0])
            try:
                if isinstance(piece, str):
                    self._answer.write(piece)
                elif piece is not None and not isinstance(piece, Message):
                    self._answer.add(piece)
            except BackendUnavailableError:
                continue  # an error of earlier text, which is sent with the next
            except Exception as error:  # noqa: BLE001 -- an error of the store must not reach the agent
                self._give_up(error)
                return
            del self._chunks[0]

    def _give_up(self, error: Exception) -> None:
        self._live = False
        self._capture._report(error, self.conversation_id, [])

    def _end(self, *, interrupted: bool) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            try:
                (answer.close() if interrupted else answer.finish())
            except Exception as error:  # noqa: BLE001 -- an error of the store must not reach the agent
                self._capture._report(error, self.conversation_id, [answer.message])
            else:
                with self._capture._mutex:
                    self._capture.recorded += 1
        chunks, self._chunks = self._chunks, []
        if chunks:
            self._record(lambda: self._capture._settings.read_chunks(chunks), interrupted=interrupted)
