"""A plugin that replaces the older part of a history by a summary, one that rolls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from redis_history._time import Instant
from redis_history.compaction._checks import check_count, check_seconds
from redis_history.compaction.extractive import within
from redis_history.compaction.policy import KEEP_RECENT, Plan, Policy
from redis_history.compaction.summaries import (
    Summarizer,
    check_summarizer,
    is_interrupt,
    read_summary,
    shortest_tokens,
    summary_error,
    summary_limit,
    usable,
)
from redis_history.compaction.worker import summary_share
from redis_history.errors import ConfigurationError, InvalidInputError, SummaryError
from redis_history.history._reduction import ReduceOptions, reduce_options
from redis_history.history.plugins import Plugin
from redis_history.model import Message

if TYPE_CHECKING:
    from redis_history.history.history import History

__all__ = ["Compression", "compression"]

#: When to reduce by itself: bounds, or a function that looks at the history.
ReduceWhen = ReduceOptions | Mapping[str, int | Instant | timedelta | None]
_NAMES = frozenset({"max_tokens", "max_entries", "older_than"})


class Compression(Plugin):
    """See `compression`."""

    def __init__(
        self,
        summarizer: Summarizer,
        auto_reduce_when: ReduceWhen | None,
        keep_recent: int,
        target: float,
        timeout: float,
    ) -> None:
        check_summarizer(summarizer)
        check_count(keep_recent, "keep_recent")
        check_seconds(timeout, "timeout")
        if not isinstance(target, int | float) or isinstance(target, bool) or not 0 < target <= 1:
            raise ConfigurationError(f"target is a share, above 0 and up to 1, not {target!r}")
        self._summarizer = summarizer
        self._keep_recent = keep_recent
        self._target = target
        self._timeout = timeout
        self._when = auto_reduce_when
        if auto_reduce_when is not None:
            _bounds(auto_reduce_when)
        self._history: History | None = None
        self._reducing = threading.Lock()
        self._allowed: int | None = None  # the bound that made it begin by itself: what it aims at is less

    def on_registered(self, history: History) -> None:
        if self._history is not None and self._history is not history:
            raise InvalidInputError("this compression plugin belongs to another history: make one for each")
        self._history = history

    def after_add(self, history: History) -> Awaitable[object] | None:
        if self._when is None or not self._reducing.acquire(blocking=False):
            return None
        try:
            bounds = _bounds(self._when)
            if self._is_over(history, bounds):
                return self._reduce_by_itself(history, bounds)
        except BaseException:
            self._reducing.release()
            raise
        self._reducing.release()
        return None

    async def _reduce_by_itself(self, history: History, bounds: ReduceOptions) -> None:
        self._allowed = bounds.max_tokens
        try:
            await history._reduce_by(history._hooks("reduce"), self._aim(bounds))
        finally:
            self._allowed = None
            self._reducing.release()

    async def reduce(self, entries: Sequence[Message], options: ReduceOptions) -> Sequence[Message]:
        history = self._history
        if history is None:
            raise InvalidInputError("the compression plugin has no history yet: call history.use(plugin) first")
        if options == ReduceOptions():
            return entries
        found = self._policy(options).plan([_timed(history, entry) for entry in entries])
        if found is None:
            return entries
        replaced = {message.id for message in found.seen}
        last = max(index for index, entry in enumerate(entries) if entry.id in replaced)
        rest = sum(history.count_tokens(entry) for entry in entries if entry.id not in replaced)
        bound = self._allowed or options.max_tokens
        least = shortest_tokens(history._tokens.counter)
        most = None if bound is None or rest + least > bound else bound - rest
        before = sum(map(history.count_tokens, found.seen))
        answer = await self._summarize(found, summary_limit(before, most))
        summary = usable(answer, found.seen, most, history.count_tokens)
        older = [entry for entry in entries[:last] if entry.id not in replaced]
        return [*older, summary, *entries[last + 1 :]]

    def _policy(self, options: ReduceOptions) -> Policy:
        history = self._history
        return Policy(
            max_tokens=None if options.max_tokens is None else max(1, options.max_tokens),
            max_entries=None if options.max_entries is None else max(1, options.max_entries),
            older_than=options.older_than,
            keep_recent=self._keep_recent,
            target=1,
            summary_tokens=summary_share(options.max_tokens),
            counter=None if history is None else history._tokens.counter,
        )

    async def _summarize(self, found: Plan, most: int) -> object:
        function: Callable[..., Any] = within(self._summarizer, most)
        arguments = list(found.messages), None if found.previous is None else read_summary(found.previous)
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._timeout):
                if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
                    return await function(*arguments)
                given, error = await _in_thread(function, arguments)
                if error is not None:
                    raise summary_error(error)
                return await given if inspect.isawaitable(given) else given
        except SummaryError:
            raise
        except TimeoutError as error:
            raise SummaryError(f"the summariser took longer than {self._timeout:g} seconds") from error
        except BaseException as error:
            if _ends_us(error, task):
                raise
            raise summary_error(error) from error

    def _is_over(self, history: History, bounds: ReduceOptions) -> bool:
        if bounds.max_entries is not None and len(history) > bounds.max_entries:
            return True
        if bounds.max_tokens is not None and history.total_estimated_tokens > bounds.max_tokens:
            return True
        cutoff = bounds.older_than
        return cutoff is not None and any(_older(history, entry, cutoff) for entry in history.get_snapshot())

    def _aim(self, bounds: ReduceOptions) -> ReduceOptions:
        """A good deal less, so that it is not the next addition again."""

        def share(bound: int | None) -> int | None:
            return None if bound is None else int(bound * self._target)

        return ReduceOptions(share(bounds.max_tokens), share(bounds.max_entries), bounds.older_than)


def compression(
    summarizer: Summarizer,
    *,
    auto_reduce_when: ReduceWhen | None = None,
    keep_recent: int = KEEP_RECENT,
    target: float = 0.5,
    timeout: float = 120.0,
) -> Compression:
    """A plugin by which `history.reduce` replaces the oldest entries by a summary, instead of leaving them out.

    There is at most one summary: the next one takes in what it says. System entries, the `keep_recent` newest entries,
    and tool calls whose results stay, stay. The summary is `[Earlier conversation summary: …]`, of role user, with
    `metadata["is_summary"]`. If the summariser fails, takes longer than `timeout` seconds, or gives what is no use,
    `reduce` raises SummaryError and the history is as it was.

    `auto_reduce_when` are bounds, as `reduce` takes them: `{"max_tokens": 8000}`. An addition that goes beyond them
    starts a reduction, to `target` times the bounds, in the background where an event loop runs; a failure is a
    `plugin_error`. One runs at a time.

    With a stored history it is a compaction of the stored conversation, done by the next `save` or by autosave: others
    see it, and what was replaced can be read and brought back there.
    """
    return Compression(summarizer, auto_reduce_when, keep_recent, target, timeout)


def _bounds(when: ReduceWhen) -> ReduceOptions:
    """The bounds; an age counts from now. Raises ConfigurationError."""
    if isinstance(when, ReduceOptions):
        when = {"max_tokens": when.max_tokens, "max_entries": when.max_entries, "older_than": when.older_than}
    if not isinstance(when, Mapping) or not _NAMES.issuperset(when) or all(value is None for value in when.values()):
        raise ConfigurationError(
            f"auto_reduce_when has bounds by name ({', '.join(sorted(_NAMES))}), such as {{'max_tokens': 8000}}, "
            f"not {when!r}"
        )
    try:
        return reduce_options(when.get("max_tokens"), when.get("max_entries"), when.get("older_than"))  # type: ignore[arg-type]
    except InvalidInputError as error:
        raise ConfigurationError(f"auto_reduce_when: {error}") from error


def _timed(history: History, entry: Message) -> Message:
    """The entry with the time it was added, if it has no other."""
    return entry if entry.timestamp is not None else replace(entry, timestamp=history._time_of(entry))


def _older(history: History, entry: Message, cutoff: datetime) -> bool:
    time = history._time_of(entry)
    return entry.role != "system" and not entry.is_summary and time is not None and time < cutoff


def _ends_us(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether it is meant for the task that waits for a summariser: a real cancellation, its end, or Ctrl-C."""
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        try:
            return asyncio.current_task() is not task
        except RuntimeError:  # closed without any loop
            return True
    return is_interrupt(error)


async def _in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """What it gives, or raises, as a value: not every error can be set on a future. As asyncio.to_thread, but the end
    of the event loop does not wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(given: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((given, error))

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = function(*arguments), None
        except BaseException as error:  # noqa: BLE001 -- it is told where the outcome is waited for
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, name="redis_history-attempt", daemon=True).start()
    return await done
