"""The conversation of one process: entries, plugins, events, bounds. No I/O."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict, cast

from redis_history import json_form
from redis_history._time import Instant
from redis_history._validation import check_integer
from redis_history.errors import InvalidMessageError, MessageConflictError
from redis_history.history._listeners import Late
from redis_history.history._plugged import Plugged, PluginErrorHandler
from redis_history.history._reading import Reading, Tokens
from redis_history.history._reduction import ReduceOptions, Reduction, check_late, drop_oldest, reduce_options
from redis_history.model import Message, Part, Role, TextPart
from redis_history.model.wire import encode_body
from redis_history.tokens import TokenCounter

__all__ = ["History", "HistoryOptions"]

#: The history whose `reduce` this code runs in: its plugins are not called for what they add themselves.
_reducing_history: ContextVar[Any] = ContextVar("reducing_history", default=None)


class HistoryOptions(TypedDict, total=False):
    """The options of a `History`, by name."""

    transient: bool
    max_length: int | None
    max_tokens: int | None
    on_plugin_error: PluginErrorHandler | None
    token_counter: TokenCounter | None


class History(Plugged, Reading):
    """A conversation as one process holds it. Thread safe.

    `entries` are messages to begin with. `max_length` and `max_tokens` bound it: with each addition the oldest entries
    leave, tool calls together with their results; system entries and the newest entry stay. `token_counter` counts the
    tokens of a text; by default a quarter of its characters. `on_plugin_error` is called with the error, the plugin and
    the name of the hook. `transient` says that whoever runs an agent begins each run with an empty history, and that it
    is never saved.

    Events, by `on`: `entry` (with the message), `clear`, `restore` (with the messages), `change` (with the snapshot),
    `plugin_error` (with error, plugin and name of the hook). A handler is called with as many of these as it takes,
    after the change, in the order of changes, and one at a time; its errors are logged. Subclasses may have more.

    Raises InvalidMessageError for what is no message, ConfigurationError for options that make no sense.
    """

    def __init__(
        self,
        entries: Iterable[Message] = (),
        *,
        transient: bool = False,
        max_length: int | None = None,
        max_tokens: int | None = None,
        on_plugin_error: PluginErrorHandler | None = None,
        token_counter: TokenCounter | None = None,
    ) -> None:
        for name, value in (("max_length", max_length), ("max_tokens", max_tokens)):
            check_integer(value, name, 1, optional=True)
        Plugged.__init__(self, on_plugin_error)
        self.transient = bool(transient)
        self._options = HistoryOptions(
            transient=self.transient,
            max_length=max_length,
            max_tokens=max_tokens,
            on_plugin_error=on_plugin_error,
            token_counter=token_counter,
        )
        self._bounds = ReduceOptions(max_tokens, max_length) if max_length or max_tokens else None
        self._tokens = Tokens(token_counter)
        self._reducing = False
        self._generation = 0  # counts what makes a reduction that is under way void
        self._entries: list[Message] = []
        self._ids: set[str] = set()
        self._added_at: dict[str, datetime] = {}
        self._snapshot: tuple[Message, ...] | None = None
        for entry in entries:
            self._add(entry, quietly=True)

    # Adding

    def add_text(self, role: Role, content: str) -> Message:
        """Add a message of one text; as it was added."""
        if not isinstance(content, str):
            raise InvalidMessageError(f"add_text takes text, not {type(content).__name__}; see add_message")
        return self.add_entry(Message(role=role, parts=(TextPart(text=content),)))

    def add_message(self, role: Role, parts: Part | str | Iterable[Part | str]) -> Message:
        """Add a message of several parts; as it was added."""
        return self.add_entry(Message(role=role, parts=cast(tuple[Part, ...], parts)))  # it takes all of these

    def add_system(self, content: str) -> Message:
        """Add a system message; as it was added."""
        return self.add_text("system", content)

    def add_entry(self, entry: Message | dict[str, Any]) -> Message:
        """Add a message, or one from a dict of its fields, where `content` may stand for `parts`; as it was added.

        The same id and content again changes nothing. Raises MessageConflictError (the id is there with other content)
        and InvalidMessageError (it could not be stored).
        """
        added = self._add(entry)
        self._listeners.deliver()
        return added

    def _add(self, entry: Message | dict[str, Any], *, quietly: bool = False) -> Message:
        message = json_form.message_of(entry)
        body = encode_body(message)
        with self._lock:
            if message.id in self._ids:
                known = next(one for one in self._entries if one.id == message.id)
                if encode_body(known) != body:
                    raise MessageConflictError(
                        f"the history has a message {message.id[:64]!r} with other content", message_id=message.id
                    )
                return known
            self._adding(message, len(body))
            self._entries.append(message)
            self._ids.add(message.id)
            self._added_at[message.id] = datetime.now(UTC)
            self._snapshot = None
            self._keep_bounds()
            if not quietly:
                self._listeners.post("entry", message)
                self._changed()
                if _reducing_history.get() is not self:
                    self._added()
        return message

    # Reading

    def get_snapshot(self) -> tuple[Message, ...]:
        """All entries as they were added. The same object until something changes."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = tuple(self._entries)
            return self._snapshot

    def get_entries(self) -> list[Message]:
        """The entries as a model shall see them: through `transform` of each plugin, in the order of registration."""
        entries: Sequence[Message] = list(self.get_snapshot())
        for transform in self._hooks("transform"):
            entries = transform(list(entries))
        return list(entries)

    # Rewriting

    def clear(self) -> None:
        """Remove all entries, system entries too."""
        with self._lock:
            self._rewriting("replace", [])
            self._put([])
            self._listeners.post("clear")
            self._changed()
        self._listeners.deliver()

    def reset(self) -> None:
        """The same as `clear`."""
        self.clear()

    def restore(self, messages: Iterable[Message | dict[str, Any]]) -> None:
        """Put these messages in place of all entries. Raises as `add_entry`; then nothing has changed."""
        entries = json_form.messages_of(messages)
        with self._lock:
            self._rewriting("replace", entries)
            self._put(entries)
            self._keep_bounds()
            self._listeners.post("restore", entries)
            self._changed()
        self._listeners.deliver()

    def reduce(
        self,
        *,
        max_tokens: int | None = None,
        max_entries: int | None = None,
        older_than: Instant | timedelta | None = None,
    ) -> Reduction:
        """Let the plugins that reduce make the history smaller, in the order of registration. Without one, do nothing.

        `older_than` is an instant, or an age. In an event loop, await the outcome. Elsewhere the reduction is done when
        this returns, and awaiting does no harm. A call during another reduction does nothing. Nothing leaves the store:
        replaced entries move to its archive, entries that a plugin leaves out stay there.
        Raises InvalidInputError, CompactionConflictError (a tool call that a plugin replaces got its result meanwhile),
        and what a plugin raises: then nothing has changed.
        """
        options = reduce_options(max_tokens, max_entries, older_than)
        reducers = self._hooks("reduce")
        if not reducers:
            return Reduction(0)
        work = self._reduce_by(reducers, options)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return Reduction(asyncio.run(work)[0])
        return Reduction(None, work)

    async def _reduce_by(self, reducers: list[Callable[..., Any]], options: ReduceOptions) -> tuple[int, bool]:
        """How many entries left, and whether the reduction was void because entries were replaced meanwhile."""
        with self._lock:
            if self._reducing:
                return 0, False
            self._reducing = True
            before, generation = self.get_snapshot(), self._generation
        token = _reducing_history.set(self)
        try:
            entries: Sequence[Message] = before
            for reducer in reducers:
                outcome = reducer(list(entries), options)
                entries = json_form.messages_of(await outcome if inspect.isawaitable(outcome) else outcome)
        finally:
            _reducing_history.reset(token)
            self._reducing = False
        with self._lock:
            if generation != self._generation:
                return 0, True
            now = {entry.id: entry for entry in self._entries}
            then = {entry.id: entry for entry in before}
            left = [
                now[entry.id] if entry is then.get(entry.id) else entry
                for entry in entries
                if entry.id not in then or entry.id in now
            ]
            late = [entry for entry in self._entries if entry.id not in then]
            check_late(before, left, late)
            self._reduced([*left, *late])
            removed = sum(one.id not in self._ids for one in before)
        self._listeners.deliver()
        return removed, False

    def _reduced(self, entries: list[Message]) -> None:
        if entries != self._entries:
            self._rewriting("reduce", entries)
            self._put(entries)
            self._changed()

    # Copies

    @staticmethod
    def from_json(text: str | bytes, **options: Any) -> History:
        """A history of what `to_json` gave, or of any array of messages. Raises InvalidMessageError for other text."""
        return History(json_form.load_messages(text), **options)

    def clone(self, **options: Any) -> History:
        """A history of its own with the same entries and options (or those given), without plugins and handlers."""
        return History(self.get_snapshot(), **{**self._options, **options})

    # For subclasses: all are called with the lock held

    def _adding(self, message: Message, size: int) -> None:
        """A message of so many bytes is about to be added here; raise to refuse it."""

    def _rewriting(self, how: Literal["replace", "reduce"], entries: list[Message]) -> None:
        """Entries are about to be replaced here: by `restore` and `clear`, or by `reduce`."""
        self._generation += how == "replace"

    def _trimmed(self, gone: list[Message]) -> None:
        """Entries left because of the bounds."""

    def _put(self, entries: list[Message]) -> None:
        self._entries = list(entries)
        self._ids = {entry.id for entry in entries}
        if len(self._added_at) > 2 * len(entries) + 100:
            self._added_at = {name: time for name, time in self._added_at.items() if name in self._ids}
        self._tokens.keep(self._entries)
        self._snapshot = None

    def _keep_bounds(self) -> None:
        bounds = self._bounds
        if bounds is None or (bounds.max_tokens is None and len(self._entries) <= (bounds.max_entries or 0)):
            return
        kept = drop_oldest(self._entries, bounds.max_tokens, bounds.max_entries, self._tokens.of)
        if len(kept) < len(self._entries):
            left = {entry.id for entry in kept}
            gone = [entry for entry in self._entries if entry.id not in left]
            self._put(kept)
            self._trimmed(gone)

    def _changed(self) -> None:
        self._listeners.post("change", Late(self.get_snapshot))

    def _time_of(self, message: Message) -> datetime | None:
        return message.timestamp or self._added_at.get(message.id)
