"""A plugin that replaces the older part of a history by a rolling summary."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from msgspec.structs import asdict, replace

from redis_history.agents.compaction import summaries
from redis_history.agents.compaction.extractive import within
from redis_history.agents.compaction.policy import KEEP_RECENT, Policy, make_plan, wider
from redis_history.agents.history._limits import ReduceOptions, reduce_options
from redis_history.agents.history.history import History, Plugin
from redis_history.errors import ConfigurationError, InvalidInputError, SummaryError
from redis_history.values import Message
from redis_history.values._validation import check_integer, check_seconds, check_share, is_coroutine_function, refuse
from redis_history.values.times import Instant

#: When to reduce automatically: bounds, or a function that looks at the history.
ReduceWhen = ReduceOptions | Mapping[str, int | Instant | timedelta | None]
#: How often a reduction is started anew because the history was rewritten during it.
_ATTEMPTS = 5


class Compression(Plugin):
    """See `compression`."""

    def __init__(
        self,
        summarizer: summaries.Summarizer,
        auto_reduce_when: ReduceWhen | None,
        keep_recent: int,
        target: float,
        timeout: float,
    ) -> None:
        summaries.check_summarizer(summarizer)
        check_integer(keep_recent, "keep_recent")
        check_seconds(timeout, "timeout")
        check_share(target, "target")
        if auto_reduce_when is not None:
            _bounds(auto_reduce_when)
        self._summarizer = summarizer
        self._keep_recent = keep_recent
        self._target = target
        self._timeout = timeout
        self._when = auto_reduce_when
        self._history: History | None = None
        self._own_bounds: ReduceOptions | None = None
        self._lock = threading.Lock()
        self._busy = False  # an automatic reduction is under way
        self._check_again = False  # something was added during it

    def on_registered(self, history: History) -> None:
        if self._history is not None and self._history is not history:
            raise InvalidInputError("this compression plugin belongs to another history: make one for each")
        self._history = history

    def after_add(self, history: History) -> Awaitable[object] | None:
        if self._when is None:
            return None
        with self._lock:
            if self._busy:
                self._check_again = True
                return None
            bounds = self._exceeded_bounds(history)
            self._busy = bounds is not None
        return None if bounds is None else self._reduce_by_itself(history, bounds)

    async def _reduce_by_itself(self, history: History, bounds: ReduceOptions | None) -> None:
        voids = 0
        try:
            while bounds is not None:
                self._own_bounds, self._check_again = bounds, False
                _, void = await history._reduce_by(bounds)
                voids += void
                with self._lock:
                    again = self._check_again or (void and voids < _ATTEMPTS)
                    bounds = self._exceeded_bounds(history) if again else None
                    self._busy = bounds is not None
        except BaseException:
            self._busy = False
            raise

    def _exceeded_bounds(self, history: History) -> ReduceOptions | None:
        """The bounds of `auto_reduce_when`, if the history exceeds them."""
        assert self._when is not None  # noqa: S101
        bounds = _bounds(self._when)
        return bounds if _is_over(history, bounds) else None

    async def reduce(self, entries: Sequence[Message], options: ReduceOptions) -> Sequence[Message]:
        history = self._history
        if history is None:
            raise InvalidInputError("the compression plugin has no history yet: call history.use(plugin) first")
        if options == ReduceOptions():
            return entries
        bound = None if options.max_tokens is None else max(1, options.max_tokens)
        target = self._target if options is self._own_bounds else 1.0
        counter = history._tokens.counter
        policy = Policy(
            max_tokens=bound,
            max_messages=None if options.max_entries is None else max(1, options.max_entries),
            older_than=options.older_than,
            keep_recent=self._keep_recent,
            target=target,
            summary_tokens=summaries.expected_tokens(None if bound is None else int(bound * target), counter),
            counter=counter,
        )
        timed = [replace(entry, timestamp=entry.timestamp or history._time_of(entry)) for entry in entries]
        tokens = list(map(history.count_tokens, entries))
        plans = wider(policy, lambda policy: make_plan(policy, timed, tokens))
        plan = next(plans, None)
        if plan is None:
            return entries
        while True:
            leaving = {message.id for message in plan.seen}
            seen = [entry for entry in entries if entry.id in leaving]
            limit = summaries.summary_limit(
                entries, seen, options.max_tokens, history.count_tokens, summaries.shortest_tokens(counter)
            )
            try:
                summary = summaries.usable(await self._summarize(seen, limit), seen, limit, history.count_tokens)
                break
            except summaries.SummaryTooLongError as too_long:
                plan = plans.send(too_long)
        last = entries.index(seen[-1])
        return [*(entry for entry in entries[:last] if entry.id not in leaving), summary, *entries[last + 1 :]]

    async def _summarize(self, seen: Sequence[Message], limit: int) -> object:
        previous = next((message for message in seen if message.is_summary), None)
        messages = [message for message in seen if message is not previous]
        text = None if previous is None else summaries.read_summary(previous)
        summarizer: Any = within(self._summarizer, limit)
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._timeout):
                if is_coroutine_function(summarizer):
                    return await summarizer(messages, text)
                given, raised = await summaries.try_in_thread(summarizer, messages, text)
                if raised is not None:
                    raise summaries.summary_error(raised)
                return await given if inspect.isawaitable(given) else given
        except SummaryError:
            raise
        except TimeoutError as error:
            raise SummaryError(f"the summarizer took longer than {self._timeout:g} seconds") from error
        except BaseException as error:  # also sys.exit() of a summarizer, which must not end the program
            if _ends_task(error, task):
                raise
            raise summaries.summary_error(error) from error


def compression(
    summarizer: summaries.Summarizer,
    *,
    auto_reduce_when: ReduceWhen | None = None,
    keep_recent: int = KEEP_RECENT,
    target: float = 0.5,
    timeout: float = 120.0,
) -> Compression:
    """A plugin with which `history.reduce` replaces the oldest entries by a summary.

    There is at most one summary: the next one includes it. The summary is `[Earlier conversation summary: …]`, of role
    user, with `metadata["is_summary"]`. If the summarizer fails, takes longer than `timeout` seconds, or returns
    nothing usable, `reduce` raises SummaryError and the history is unchanged. If a summary is too long for
    `max_tokens`, the summarizer is called again with more entries, as long as there are more.

    The bounds hold afterwards whenever a summary can achieve this. These always stay: system entries, the turn in
    progress (from the newest user message until the assistant answers without a tool call), and calls that wait for
    their results. `keep_recent` entries stay if the bounds allow it.

    `auto_reduce_when` are bounds, as `reduce` takes them: `{"max_tokens": 8000}`. An addition that exceeds them starts
    a reduction to `target` times the bounds, in the background if an event loop runs. A failure is a `plugin_error`.
    One runs at a time. To keep `keep_recent` entries, it may miss the target.

    With a stored history, the next `save` or autosave compacts the stored conversation: others see the summary, and the
    replaced entries can be read and restored.
    """
    return Compression(summarizer, auto_reduce_when, keep_recent, target, timeout)


def _bounds(when: ReduceWhen) -> ReduceOptions:
    """The bounds. An age counts from now. Raises ConfigurationError."""
    given = asdict(when) if isinstance(when, ReduceOptions) else when
    names = ReduceOptions.__struct_fields__
    known = isinstance(given, Mapping) and set(names).issuperset(given)
    if not known or all(value is None for value in given.values()):
        refuse(when, "auto_reduce_when", f"a dict of bounds ({', '.join(names)}), such as {{'max_tokens': 8000}}")
    try:
        return reduce_options(**given)
    except InvalidInputError as error:
        raise ConfigurationError(f"auto_reduce_when={when!r}: {error}") from error


def _is_over(history: History, bounds: ReduceOptions) -> bool:
    if bounds.max_entries is not None and len(history) > bounds.max_entries:
        return True
    if bounds.max_tokens is not None and history.total_estimated_tokens > bounds.max_tokens:
        return True
    if (older_than := bounds.older_than) is None:
        return False
    times = (history._time_of(entry) for entry in history if entry.role != "system" and not entry.is_summary)
    return any(time is not None and time < older_than for time in times)


def _ends_task(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether the error is meant for this task, not for the summarizer: its cancellation, its end, or Ctrl-C."""
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        try:
            return asyncio.current_task() is not task
        except RuntimeError:  # closed without any loop
            return True
    return summaries.is_interrupt(error)
