"""The conversation of one process: entries, plugins, events, limits. No I/O."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, cast

from redis_history.agents.history._limits import ReduceOptions, Reduction, TokenCounts, drop_oldest, reduce_options
from redis_history.agents.history._listeners import Listeners, run_in_background
from redis_history.agents.history.selectors import Selectors
from redis_history.errors import CompactionConflictError, InvalidInputError, InvalidMessageError, MessageConflictError
from redis_history.formats import json_form
from redis_history.values import Message, Part, Role, TextPart
from redis_history.values._validation import check_function, check_integer
from redis_history.values.ranges import tears
from redis_history.values.sizes import TokenCounter, count_characters
from redis_history.values.times import Instant
from redis_history.values.wire import encode_body

if TYPE_CHECKING:
    from redis_history.agents.history._syncer import Syncer

_logger = logging.getLogger("redis_history")

#: The history that is being reduced by this code: its plugins are not called for their own additions.
_reducing_history: ContextVar[Any] = ContextVar("reducing_history", default=None)


class Plugin:
    """Base of plugins: override the hooks you need. Any object with one or more of these methods also works.

    Hooks of several plugins run in the order of registration, without a lock.
    """

    def on_registered(self, history: History) -> None:
        """Called once by `history.use`. If it raises, the plugin is not registered, and the caller gets the error."""

    def after_add(self, history: History) -> Awaitable[object] | None:
        """Called after each local addition, after the handlers of its events. A plain or a coroutine function.

        Not called for loaded or restored messages, for messages of others, or for additions by a plugin during
        `reduce`. Errors go to `plugin_error`, not to the code that added. A coroutine runs as a task if an event loop
        runs, otherwise to its end before the addition returns.
        """
        return None

    async def reduce(self, entries: Sequence[Message], options: ReduceOptions) -> Sequence[Message]:
        """Return the entries that should stay; `entries` are as stored. May be a coroutine function.

        Return unchanged entries themselves; give others new ids. Messages that are added in the meantime stay at the
        end. If it raises, nothing changes, and the caller of `history.reduce` gets the error.
        """
        return entries

    def transform(self, entries: list[Message]) -> Sequence[Message]:
        """Return the entries as readers should see them. Called by every `get_entries`; must be quick and change no
        state.

        The caller gets its errors, because unfiltered entries would be worse.
        """
        return entries


_HOOKS = ("on_registered", "after_add", "reduce", "transform")
PluginErrorHandler = Callable[[Exception, Plugin, str], object]
Unsubscribe = Callable[[], None]


def _hook(plugin: object, name: str) -> Callable[..., Any] | None:
    """A hook of a plugin, or None if it does not define it."""
    if getattr(type(plugin), name, None) is getattr(Plugin, name):
        return None
    found = getattr(plugin, name, None)
    return found if callable(found) else None


class HistoryOptions(TypedDict, total=False):
    """The options of a `History`, by name."""

    transient: bool
    max_length: int | None
    max_tokens: int | None
    on_plugin_error: PluginErrorHandler | None
    token_counter: TokenCounter | None


class History(Selectors):
    """A conversation in the memory of one process. Thread-safe.

    `entries` are the first messages. `max_length` and `max_tokens` limit the history: each addition removes the oldest
    entries, tool calls together with their results; system entries and the newest entry stay. `token_counter` counts
    the tokens of a text. The default is a quarter of its characters. `on_plugin_error` is called with the error, the
    plugin and the name of the hook. `transient` marks a history that is never saved, for one run of an agent.

    Events of `on`: `entry` (with the message), `clear`, `restore` (with the messages), `change` (with the snapshot),
    `plugin_error` (with the error, the plugin and the name of the hook). Handlers are called after the change, in the
    order of changes, one at a time, with as many of these arguments as they take. Their errors are logged. Subclasses
    may have more events.

    Raises InvalidMessageError for an invalid message, ConfigurationError for an invalid option.
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
            check_integer(value, name, 1, optional=True)
        check_function(on_plugin_error, "on_plugin_error")
        self.transient = bool(transient)
        self._options = HistoryOptions(
            transient=self.transient,
            max_length=max_length,
            max_tokens=max_tokens,
            on_plugin_error=on_plugin_error,
            token_counter=token_counter,
        )
        self._lock = threading.RLock()
        self._listeners = Listeners(self._EVENTS)
        self._plugins: tuple[Plugin, ...] = ()
        self._recorder: Syncer | None = None  # gets the local changes before they are made, and raises to reject one
        self._tokens = TokenCounts(token_counter)
        self._reducing = False
        self._generation = 0  # a change of it makes a running reduction void
        self._withdrawn: set[str] = set()  # edited or deleted by others since the running reduction began
        self._entries: list[Message] = []
        self._ids: set[str] = set()
        self._added_at: dict[str, datetime] = {}
        self._snapshot: tuple[Message, ...] | None = None
        for entry in entries:
            self._add(entry, initial=True)

    # Adding

    def add_text(self, role: Role, content: str) -> Message:
        """Add a message with one text, and return it."""
        if not isinstance(content, str):
            raise InvalidMessageError(f"add_text takes text, not {type(content).__name__}; see add_message")
        return self.add_entry(Message(role=role, parts=(TextPart(text=content),)))

    def add_message(self, role: Role, parts: Part | str | Iterable[Part | str]) -> Message:
        """Add a message with several parts, and return it."""
        return self.add_entry(Message(role=role, parts=cast(tuple[Part, ...], parts)))  # it takes all of these

    def add_system(self, content: str) -> Message:
        """Add a system message, and return it."""
        return self.add_text("system", content)

    def add_entry(self, entry: Message | dict[str, Any]) -> Message:
        """Add a message, or a dict of its fields with `parts` or `content`, and return the message.

        A repeated message is ignored. Raises MessageConflictError if the id exists with other content, and
        InvalidMessageError if the message could not be stored.
        """
        added = self._add(entry)
        self._listeners.deliver()
        return added

    def _add(self, entry: Message | dict[str, Any], *, initial: bool = False) -> Message:
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
            if self._recorder is not None:
                self._recorder.adding(message, len(body))
            self._entries.append(message)
            self._ids.add(message.id)
            self._added_at[message.id] = datetime.now(UTC)
            self._snapshot = None
            self._keep_limits()
            if not initial:
                self._listeners.post("entry", message)
                self._changed()
                if _reducing_history.get() is not self:
                    for plugin in self._plugins:
                        self._listeners.post_call(lambda plugin=plugin: self._after_add(plugin))  # type: ignore[misc]
        return message

    # Reading

    def get_snapshot(self) -> tuple[Message, ...]:
        """All entries as they were added: the same tuple until something changes."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = tuple(self._entries)
            return self._snapshot

    def get_entries(self) -> list[Message]:
        """The entries as a model should see them: as `transform` of each plugin returns them."""
        entries: Sequence[Message] = list(self.get_snapshot())
        for transform in self._hooks("transform"):
            entries = transform(list(entries))
        return list(entries)

    @property
    def entries(self) -> list[Message]:
        """All entries as they were added, oldest first: a new list each time."""
        return list(self.get_snapshot())

    def __len__(self) -> int:
        return len(self.get_snapshot())

    def __iter__(self) -> Iterator[Message]:
        return iter(self.get_snapshot())

    def __bool__(self) -> bool:
        return True  # even if empty

    @property
    def size(self) -> int:
        """Characters of all entries, as in the totals of a conversation."""
        return sum(map(count_characters, self.get_snapshot()))

    @property
    def total_estimated_tokens(self) -> int:
        """Tokens of all entries, by `token_counter`."""
        return sum(map(self._tokens.count_entry, self.get_snapshot()))

    def count_tokens(self, message: Message) -> int:
        """Tokens of a message, by `token_counter`."""
        return self._tokens.count(message)

    def last_entry(self) -> Message | None:
        """The newest entry, or None."""
        return next(reversed(self.get_snapshot()), None)

    def get_system_message(self) -> str | None:
        """The text of the first system entry, or None."""
        entry = next((one for one in self.get_snapshot() if one.role == "system"), None)
        return None if entry is None else "\n".join(part.text for part in entry.parts if isinstance(part, TextPart))

    def get_messages_without_system(self) -> list[Message]:
        """The messages of `get_entries`, without system entries."""
        return [entry for entry in self.get_entries() if entry.role != "system"]

    def get_tool_result(self, tool_use_id: str, occurrence: int | None = None) -> Any:
        """Return the content of a tool result as it was added, even if a plugin masks it, or None for an unknown id.

        If the id is repeated, the newest result, or the given `occurrence`, counted from 1.
        """
        results = [part for entry in self.get_snapshot() for part in entry.tool_results]
        found = [part.content for part in results if part.tool_use_id == tool_use_id]
        chosen = [content for number, content in enumerate(found, 1) if occurrence in (None, number)]
        return chosen[-1] if chosen else None

    # Copies

    def to_json(self) -> str:
        """All entries as JSON text, without loss; see `from_json`. Raises InvalidMessageError for what JSON cannot
        carry: a number as the key of a dict."""
        return json_form.dump_messages(self.get_snapshot())

    @staticmethod
    def from_json(text: str | bytes, **options: Any) -> History:
        """A history from the result of `to_json`, or from any array of messages. Raises InvalidMessageError."""
        return History(json_form.load_messages(text), **options)

    def clone(self, **options: Any) -> History:
        """A separate history with the same entries, and the same options unless given; without plugins and handlers."""
        return History(self.get_snapshot(), **{**self._options, **options})

    # Rewriting

    def clear(self) -> None:
        """Remove all entries, system entries too."""
        self._replace([], "clear")

    def reset(self) -> None:
        """The same as `clear`."""
        self.clear()

    def restore(self, messages: Iterable[Message | dict[str, Any]]) -> None:
        """Replace all entries by these messages. Raises as `add_entry`; then nothing has changed."""
        entries = json_form.messages_of(messages)
        self._replace(entries, "restore", entries)

    def _replace(self, entries: list[Message], event: str, *arguments: Any) -> None:
        with self._lock:
            if self._recorder is not None:
                self._recorder.replacing(entries)
            self._void_reductions()
            self._put(entries)
            self._keep_limits()
            self._listeners.post(event, *arguments)
            self._changed()
        self._listeners.deliver()

    def reduce(
        self,
        *,
        max_tokens: int | None = None,
        max_entries: int | None = None,
        older_than: Instant | timedelta | None = None,
    ) -> Reduction:
        """Let the reducing plugins make the history smaller, in the order of registration. Without one, nothing
        happens.

        `max_tokens` and `max_entries` count all entries; `older_than` is an instant or an age. In an event loop, await
        the outcome; elsewhere the reduction is done when this returns. A call during another reduction does nothing.
        The store keeps everything: replaced entries move to its archive, and entries that a plugin leaves out stay
        there. If entries are edited, deleted or inserted in the store while they are summarized, nothing changes; call
        it again.

        Raises InvalidInputError, CompactionConflictError (a replaced tool call got its result in the meantime), and the
        errors of plugins; then nothing has changed.
        """
        options = reduce_options(max_tokens, max_entries, older_than)
        if not self._hooks("reduce"):
            return Reduction(0)
        work = self._reduce_by(options)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return Reduction(asyncio.run(work)[0])
        return Reduction(None, work)

    async def _reduce_by(self, options: ReduceOptions) -> tuple[int, bool]:
        """The number of removed entries, and whether the reduction was void because others changed the entries in the
        meantime."""
        with self._lock:
            if self._reducing:
                return 0, False
            self._reducing = True
            self._withdrawn.clear()
            before, generation = self.get_snapshot(), self._generation
        token = _reducing_history.set(self)
        try:
            entries: Sequence[Message] = before
            for reducer in self._hooks("reduce"):
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
            leaving = then.keys() - {entry.id for entry in left}
            if late and tears([*before, *late], leaving) and not tears(before, leaving):
                raise CompactionConflictError(
                    "the history was not reduced: a tool call that would leave got its result meanwhile; reduce again"
                )
            is_summary_outdated = not leaving.isdisjoint(self._withdrawn) and any(one.id not in then for one in left)
            if is_summary_outdated or late != self._entries[len(self._entries) - len(late) :]:
                return 0, True
            left += late
            if left != self._entries:
                if self._recorder is not None:
                    self._recorder.reducing(left)
                self._put(left)
                self._changed()
            removed = sum(one.id not in self._ids for one in before)
        self._listeners.deliver()
        return removed, False

    # Plugins and handlers

    def use(self, plugin: Plugin) -> Self:
        """Register a plugin, and return the history, so that calls can be chained. Raises InvalidInputError for an
        object without hooks, and the error of its `on_registered`."""
        if isinstance(plugin, type) or not (isinstance(plugin, Plugin) or any(_hook(plugin, one) for one in _HOOKS)):
            raise InvalidInputError(f"{plugin!r} is not a plugin: it has none of {', '.join(_HOOKS)}")
        if (registered := _hook(plugin, "on_registered")) is not None:
            registered(self)
        with self._lock:
            self._plugins = (*self._plugins, plugin)
        return self

    def on(
        self,
        event: Literal["entry", "clear", "restore", "change", "plugin_error", "error"],
        handler: Callable[..., object],
    ) -> Unsubscribe:
        """Call a plain or coroutine function with each event of this kind. Returns a function that ends this.

        Raises InvalidInputError for an unknown event.
        """
        return self._listeners.on(event, handler)

    def subscribe(self, listener: Callable[..., object]) -> Unsubscribe:
        """Call `listener` after each change, with the snapshot if it takes an argument. Returns a function that ends
        this."""
        return self._listeners.on("change", listener)

    def _hooks(self, name: str) -> list[Callable[..., Any]]:
        return [found for plugin in self._plugins if (found := _hook(plugin, name)) is not None]

    def _after_add(self, plugin: Plugin) -> None:
        def failed(error: Exception) -> None:
            handler = self._options["on_plugin_error"]
            if handler is not None:
                try:
                    handler(error, plugin, "after_add")
                except Exception:
                    _logger.exception("a handler of plugin_error failed")
            elif not self._listeners.wants("plugin_error"):
                _logger.error("after_add of %r failed", plugin, exc_info=error)
            self._listeners.post("plugin_error", error, plugin, "after_add")
            self._listeners.deliver()

        if (after_add := _hook(plugin, "after_add")) is not None:
            try:
                outcome = after_add(self)
                if inspect.isawaitable(outcome):
                    run_in_background(outcome, failed)
            except Exception as error:  # noqa: BLE001 -- it is reported, and must not reach the code that added
                failed(error)

    # For the syncer; called with the lock held

    def _show(self, entries: list[Message]) -> None:
        """Replace all entries, because the store has changed."""
        if entries != self._entries:
            self._put(entries)
            self._keep_limits()
            self._changed()

    def _void_reductions(self) -> None:
        self._generation += 1

    def _put(self, entries: list[Message]) -> None:
        self._entries = list(entries)
        self._ids = {entry.id for entry in entries}
        if len(self._added_at) > 2 * len(entries) + 100:
            self._added_at = {name: time for name, time in self._added_at.items() if name in self._ids}
        self._tokens.keep(self._entries)
        self._snapshot = None

    def _keep_limits(self) -> None:
        max_tokens, max_length = self._options["max_tokens"], self._options["max_length"]
        if max_tokens is None and (max_length is None or len(self._entries) <= max_length):
            return
        kept = drop_oldest(self._entries, max_tokens, max_length, self._tokens.count_entry)
        if len(kept) < len(self._entries):
            names = {entry.id for entry in kept}
            removed = [entry for entry in self._entries if entry.id not in names]
            self._put(kept)
            if self._recorder is not None:
                self._recorder.limited(removed)

    def _changed(self) -> None:
        if self._listeners.wants("change"):
            self._listeners.post_call(lambda: self._listeners.call("change", self.get_snapshot()))

    def _time_of(self, message: Message) -> datetime | None:
        return message.timestamp or self._added_at.get(message.id)
