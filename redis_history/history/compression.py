"""A plugin that replaces the older part of a history by a rolling summary."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta

from msgspec.structs import replace

from redis_history._time import Instant
from redis_history._validation import check_integer, check_seconds, check_share
from redis_history.compaction.extractive import within
from redis_history.compaction.policy import KEEP_RECENT, Policy, make_plan, wider
from redis_history.compaction.summaries import (
    Summarizer,
    SummaryTooLongError,
    call_summarizer,
    check_summarizer,
    expected_tokens,
    read_summary,
    shortest_tokens,
    summary_error,
    summary_limit,
    usable,
)
from redis_history.errors import ConfigurationError, InvalidInputError, SummaryError
from redis_history.history._limits import ReduceOptions, reduce_options
from redis_history.history.history import History, Plugin
from redis_history.model import Message

#: When to reduce by itself: bounds, or a function that looks at the history.
ReduceWhen = ReduceOptions | Mapping[str, int | Instant | timedelta | None]
_NAMES = frozenset({"max_tokens", "max_entries", "older_than"})
#: How often a reduction is started anew because the history was rewritten during it.
_ATTEMPTS = 5


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
        self._lock = threading.Lock()
        self._busy = False  # a reduction that it started by itself is under way
        self._check_again = False  # something was added since the limits were checked
        self._own_bounds: ReduceOptions | None = None  # of the reduction that it started by itself

    def on_registered(self, history: History) -> None:
        if self._history is not None and self._history is not history:
            raise InvalidInputError("this compression plugin belongs to another history: make one for each")
        self._history = history

    def after_add(self, history: History) -> Awaitable[object] | None:
        with self._lock:
            self._check_again = True
            if self._when is None or self._busy:
                return None  # the reduction under way checks once more when it ends
            self._busy = True
        try:
            bounds = self._exceeded_bounds(history)
        except BaseException:
            self._busy = False
            raise
        return None if bounds is None else self._reduce_by_itself(history, bounds)

    def _exceeded_bounds(self, history: History) -> ReduceOptions | None:
        """The bounds, if the history exceeds them. If not, None, and the next addition may start a reduction."""
        while True:
            with self._lock:
                if not self._check_again or self._when is None:
                    self._busy = False
                    return None
                self._check_again = False
            bounds = _bounds(self._when)
            if _is_over(history, bounds):
                return bounds

    async def _reduce_by_itself(self, history: History, bounds: ReduceOptions | None) -> None:
        voids = 0
        try:
            while bounds is not None:
                self._own_bounds = bounds
                _, void = await history._reduce_by(bounds)
                voids += void
                if void and voids < _ATTEMPTS:
                    self._check_again = True
                bounds = self._exceeded_bounds(history)
        except BaseException:
            self._busy = False
            raise

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
            summary_tokens=expected_tokens(None if bound is None else int(bound * target), counter),
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
            limit = summary_limit(entries, seen, options.max_tokens, history.count_tokens, shortest_tokens(counter))
            try:
                summary = usable(await self._summarize(seen, limit), seen, limit, history.count_tokens)
                break
            except SummaryTooLongError as too_long:
                plan = plans.send(too_long)
        last = entries.index(seen[-1])
        return [*(entry for entry in entries[:last] if entry.id not in leaving), summary, *entries[last + 1 :]]

    async def _summarize(self, seen: Sequence[Message], limit: int) -> object:
        previous = next((message for message in seen if message.is_summary), None)
        messages = [message for message in seen if message is not previous]
        text = None if previous is None else read_summary(previous)
        try:
            async with asyncio.timeout(self._timeout):
                return await call_summarizer(within(self._summarizer, limit), messages, text)
        except SummaryError:
            raise
        except TimeoutError as error:
            raise SummaryError(f"the summariser took longer than {self._timeout:g} seconds") from error
        except Exception as error:
            raise summary_error(error) from error


def compression(
    summarizer: Summarizer,
    *,
    auto_reduce_when: ReduceWhen | None = None,
    keep_recent: int = KEEP_RECENT,
    target: float = 0.5,
    timeout: float = 120.0,
) -> Compression:
    """A plugin by which `history.reduce` replaces the oldest entries by a summary.

    There is at most one summary: the next one includes it. The summary is `[Earlier conversation summary: …]`, of role
    user, with `metadata["is_summary"]`. If the summariser fails, takes longer than `timeout` seconds, or returns
    nothing usable, `reduce` raises SummaryError and the history is unchanged. A summary that is too long for
    `max_tokens` is asked for again, of more entries, as long as there are more.

    The bounds hold afterwards whenever a summary can make them hold. These always stay: system entries, the turn in
    progress (from the newest message of a user on, until the assistant has answered without a tool call), and calls
    that wait for their results. How many other recent entries stay is what the bounds allow.

    `auto_reduce_when` are bounds, as `reduce` takes them: `{"max_tokens": 8000}`. An addition that exceeds them starts
    a reduction to `target` times the bounds, in the background where an event loop runs; a failure is a
    `plugin_error`. One runs at a time. `keep_recent` entries stay if the bounds allow it, even if the target is missed.

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


def _is_over(history: History, bounds: ReduceOptions) -> bool:
    if bounds.max_entries is not None and len(history) > bounds.max_entries:
        return True
    if bounds.max_tokens is not None and history.total_estimated_tokens > bounds.max_tokens:
        return True
    times = [history._time_of(entry) for entry in history if entry.role != "system" and not entry.is_summary]
    older_than = bounds.older_than
    return older_than is not None and any(time is not None and time < older_than for time in times)
