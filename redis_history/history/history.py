"""The conversation of one process: entries, plugins, events, bounds. No I/O."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self, TypedDict, cast

from redis_history._time import Instant
from redis_history.errors import ConfigurationError, InvalidMessageError, MessageConflictError
from redis_history.history import _json
from redis_history.history._listeners import Late, Listeners, run_aside
from redis_history.history._reading import Reading, Tokens
from redis_history.history._reduction import ReduceOptions, drop_oldest, reduce_options
from redis_history.history.plugins import Plugin, check_plugin, hook
from redis_history.model import Message, Part, Role, TextPart
from redis_history.model.wire import encode_body
from redis_history.tokens import TokenCounter

__all__ = ["History", "HistoryOptions", "Reduction", "Unsubscribe"]

_logger = logging.getLogger("redis_history")

Unsubscribe = Callable[[], None]
PluginErrorHandler = Callable[[Exception, Plugin, str], object]


class HistoryOptions(TypedDict, total=False):
    """The options of a `History`, by name."""

    transient: bool
    max_length: int | None
    max_tokens: int | None
    on_plugin_error: PluginErrorHandler | None
    token_counter: TokenCounter | None


class Reduction(Awaitable[int]):
    """The outcome of `history.reduce`: how many entries left. Awaiting it gives that number.

    `removed` is None as long as a plugin is at work, which is only so in an event loop, until this is awaited.
    """

    def __init__(self, removed: int | None, rest: Awaitable[int] | None = None) -> None:
        self.removed = removed
        self._rest = rest

    def __await__(self) -> Generator[Any, None, int]:
        if self._rest is not None:
            rest, self._rest = self._rest, None
            self.removed = yield from rest.__await__()
        return self.removed or 0


class History(Reading):
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

    _EVENTS: tuple[str, ...] = ("entry", "clear", "restore", "change", "plugin_error")

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
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigurationError(f"{name} is None or a number from 1, not {value!r}")
        if on_plugin_error is not None and not callable(on_plugin_error):
            raise ConfigurationError(f"on_plugin_error is a function, not {on_plugin_error!r}")
        self.transient = bool(transient)
        self._options = HistoryOptions(
            transient=self.transient,
            max_length=max_length,
            max_tokens=max_tokens,
            on_plugin_error=on_plugin_error,
            token_counter=token_counter,
        )
        self._bounds = ReduceOptions(max_tokens, max_length) if max_length or max_tokens else None
        self._on_plugin_error = on_plugin_error
        self._tokens = Tokens(token_counter)
        self._lock = threading.RLock()
        self._listeners = Listeners(self._EVENTS)
        self._plugins: list[Plugin] = []
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
        message = _json.message_of(entry)
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
                if not self._reducing:
                    for plugin in self._plugins:
                        self._listeners.post_call(lambda plugin=plugin: self._after_add(plugin))  # type: ignore[misc]
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
        for plugin in tuple(self._plugins):
            if (transform := hook(plugin, "transform")) is not None:
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
        entries = _checked(messages)
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
        """Make the history smaller: by the plugins that can, in the order of registration; else the oldest leave.

        `older_than` is an instant, or an age. Without a plugin, and where no event loop runs, it is done when this
        returns. In an event loop, await it; that does no harm elsewhere. Tool calls leave together with their results;
        without a plugin system entries and the newest entry stay. A call while another one is at work does nothing.
        Raises InvalidInputError, and what a plugin raises: then nothing has changed.
        """
        options = reduce_options(max_tokens, max_entries, older_than)
        reducers = [found for plugin in tuple(self._plugins) if (found := hook(plugin, "reduce")) is not None]
        if not reducers:
            with self._lock:
                before = len(self._entries)
                self._reduced(drop_oldest(self._entries, options, self._tokens.of, self._time_of))
                removed = before - len(self._entries)
            self._listeners.deliver()
            return Reduction(removed)
        work = self._reduce_by(reducers, options)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return Reduction(asyncio.run(work))
        return Reduction(None, work)

    async def _reduce_by(self, reducers: list[Callable[..., Any]], options: ReduceOptions) -> int:
        with self._lock:
            if self._reducing:
                return 0
            self._reducing = True
            before, generation = self.get_snapshot(), self._generation
        try:
            entries: Sequence[Message] = before
            for reducer in reducers:
                outcome = reducer(list(entries), options)
                entries = _checked(await outcome if inspect.isawaitable(outcome) else outcome)
        finally:
            self._reducing = False
        with self._lock:
            if generation != self._generation:
                return 0
            now = {entry.id: entry for entry in self._entries}
            then = {entry.id: entry for entry in before}
            left = [
                now[entry.id] if entry is then.get(entry.id) else entry
                for entry in entries
                if entry.id not in then or entry.id in now
            ]
            self._reduced([*left, *(entry for entry in self._entries if entry.id not in then)])
            removed = sum(one.id not in self._ids for one in before)
        self._listeners.deliver()
        return removed

    def _reduced(self, entries: list[Message]) -> None:
        if entries != self._entries:
            self._rewriting("reduce", entries)
            self._put(entries)
            self._changed()

    # Plugins and events

    def use(self, plugin: Plugin) -> Self:
        """Register a plugin; the history itself, so that calls can be chained. Raises InvalidInputError for what has
        none of the hooks, and what its `on_registered` raises."""
        check_plugin(plugin)
        if (registered := hook(plugin, "on_registered")) is not None:
            registered(self)
        with self._lock:
            self._plugins = [*self._plugins, plugin]
        return self

    def on(
        self,
        event: Literal["entry", "clear", "restore", "change", "plugin_error", "error"],
        handler: Callable[..., object],
    ) -> Unsubscribe:
        """Call a handler, plain or a coroutine function, with each such event; the outcome ends that.

        Raises InvalidInputError for an event there is not.
        """
        return self._listeners.on(event, handler)

    def subscribe(self, listener: Callable[..., object]) -> Unsubscribe:
        """Call `listener` after each change, with the snapshot if it takes one; the outcome ends that."""
        return self._listeners.on("change", listener)

    def _after_add(self, plugin: Plugin) -> None:
        def failed(error: Exception) -> None:
            if self._on_plugin_error is not None:
                try:
                    self._on_plugin_error(error, plugin, "after_add")
                except Exception:
                    _logger.exception("on_plugin_error failed")
            elif not self._listeners.wants("plugin_error"):
                _logger.error("after_add of %r failed", plugin, exc_info=error)
            self._listeners.post("plugin_error", error, plugin, "after_add")
            self._listeners.deliver()

        if (after_add := hook(plugin, "after_add")) is not None:
            try:
                outcome = after_add(self)
                if inspect.isawaitable(outcome):
                    run_aside(outcome, failed)
            except Exception as error:  # noqa: BLE001 -- whatever a plugin raises is its own; it is reported
                failed(error)

    # Copies

    @staticmethod
    def from_json(text: str | bytes, **options: Any) -> History:
        """A history of what `to_json` gave, or of any array of messages. Raises InvalidMessageError for other text."""
        return History(_json.from_json(text), **options)

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

    def _renew_locks(self) -> None:
        """In a forked child, where those who held them are not."""
        self._lock = threading.RLock()
        self._listeners.renew_lock()

    def _put(self, entries: list[Message]) -> None:
        self._entries = list(entries)
        self._ids = {entry.id for entry in entries}
        self._added_at = {name: time for name, time in self._added_at.items() if name in self._ids}
        self._tokens.keep(self._entries)
        self._snapshot = None

    def _keep_bounds(self) -> None:
        bounds = self._bounds
        if bounds is None or (bounds.max_tokens is None and len(self._entries) <= (bounds.max_entries or 0)):
            return
        kept = drop_oldest(self._entries, bounds, self._tokens.of, self._time_of)
        if len(kept) < len(self._entries):
            left = {entry.id for entry in kept}
            gone = [entry for entry in self._entries if entry.id not in left]
            self._put(kept)
            self._trimmed(gone)

    def _changed(self) -> None:
        self._listeners.post("change", Late(self.get_snapshot))

    def _time_of(self, message: Message) -> datetime | None:
        return message.timestamp or self._added_at.get(message.id)


def _checked(messages: Iterable[Message | dict[str, Any]]) -> list[Message]:
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Iterable):
        raise InvalidMessageError(f"a list of messages is needed, not {type(messages).__name__}")
    found: dict[str, Message] = {}
    for item in messages:
        message = _json.message_of(item)
        body = encode_body(message)
        if message.id in found and encode_body(found[message.id]) != body:
            raise MessageConflictError(
                f"there are two messages of id {message.id[:64]!r} with different content", message_id=message.id
            )
        found.setdefault(message.id, message)
    return list(found.values())
