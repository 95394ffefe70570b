"""What a compressor is told, tells and remembers. Pure; the work is in _async/compressor.py."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

from redis_history._chance import CHANCE
from redis_history._time import cutoff
from redis_history.compaction._checks import check_count, check_seconds
from redis_history.compaction.policy import SUMMARY_TOKENS, Plan, Policy
from redis_history.compaction.summaries import shortest_tokens
from redis_history.errors import ConfigurationError, InvalidTimestampError
from redis_history.model import Conversation, Message
from redis_history.tokens import message_tokens

__all__ = [
    "CompressionProgress",
    "CompressorOptions",
    "CompressorStats",
    "Totals",
    "Work",
    "summary_room",
    "summary_share",
]

#: A day: a worker that stands still is to be replaced.
_LONGEST_LEASE: Final = 86_400
#: Conversations that are remembered as having nothing to compress as they are.
_SETTLED: Final = 100_000


class CompressionProgress(Struct, frozen=True):
    """What a compressor has done, or failed to do, with a conversation.

    `kind`: "planned" (a dry run: what would be compressed), "started", "compressed", "nothing" (it is over the bounds,
    but nothing of it may be compressed; with an `error`: its summary was no shorter), "conflict" (its older part was
    changed meanwhile; it is tried again), "lease_lost" (this process was too slow, or stood still, and another one may
    have taken over), "failed". `messages`: so many are summarised; `tokens_before` and `tokens_after` are those of
    these messages and of their summary. `wait` is seconds until it is tried again, `error` why. `seconds`: since it was
    started.
    """

    kind: Literal["planned", "started", "compressed", "nothing", "conflict", "lease_lost", "failed"]
    conversation_id: str
    messages: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    seconds: float = 0.0
    wait: float = 0.0
    error: str | None = None


class CompressorStats(Struct, frozen=True):
    """What a compressor has done since it was made, and what it has to do.

    `sweeps` at all of the list of conversations, `looks` at what has changed of it; `messages` were replaced by
    `compressed` summaries; `tokens_before` and `tokens_after` are theirs. `busy` counts conversations that another
    worker was at. `waiting`, `working`, `resting`: conversations at this moment, the last after a failure.
    """

    sweeps: int = 0
    looks: int = 0
    compressed: int = 0
    messages: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    nothing: int = 0
    failed: int = 0
    conflicts: int = 0
    leases_lost: int = 0
    busy: int = 0
    waiting: int = 0
    working: int = 0
    resting: int = 0


class CompressorOptions(Struct, frozen=True):
    """See `AsyncCompressor`. Raises ConfigurationError."""

    max_tokens: int | None
    max_entries: int | None
    older_than: float | timedelta | None
    target: float
    keep_recent: int
    concurrency: int
    timeout: float
    lease: float
    look_interval: float
    sweep_interval: float
    first_wait: float
    longest_wait: float
    grace: float

    def __post_init__(self) -> None:
        if self.max_tokens is None and self.max_entries is None and self.older_than is None:
            raise ConfigurationError("say when a conversation is too long: max_tokens, max_entries or older_than")
        for name in ("max_tokens", "max_entries"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name, 1)
        if self.older_than is not None:
            check_seconds(self.age, "older_than")
            try:
                cutoff(timedelta(seconds=self.age or 0))
            except (OverflowError, InvalidTimestampError) as error:
                raise ConfigurationError(f"older_than reaches too far back: {self.older_than!r}") from error
        if not isinstance(self.target, int | float) or isinstance(self.target, bool) or not 0 < self.target <= 1:
            raise ConfigurationError(f"target is a share, above 0 and up to 1, not {self.target!r}")
        check_count(self.keep_recent, "keep_recent")
        check_count(self.concurrency, "concurrency", 1)
        for name in ("timeout", "look_interval", "sweep_interval", "first_wait"):
            check_seconds(getattr(self, name), name)
        check_seconds(self.lease, "lease", 0.1)
        if self.lease > _LONGEST_LEASE:
            raise ConfigurationError(f"lease is at most {_LONGEST_LEASE:,} seconds, not {self.lease!r}")
        check_seconds(self.longest_wait, "longest_wait", self.first_wait)
        check_seconds(self.grace, "grace", 0)

    @property
    def age(self) -> float | None:
        """`older_than` in seconds."""
        return self.older_than.total_seconds() if isinstance(self.older_than, timedelta) else self.older_than

    def is_over(self, totals: Totals) -> bool:
        """Whether a conversation may be too long, by its totals; whether it is too old, these do not tell."""
        return (self.max_tokens is not None and totals.tokens > self.max_tokens) or (
            self.max_entries is not None and totals.message_count > self.max_entries
        )

    @property
    def policy(self) -> Policy:
        """What is to be compressed of a conversation that is too long."""
        return Policy(
            max_tokens=self.max_tokens,
            max_entries=self.max_entries,
            older_than=None if self.age is None else timedelta(seconds=self.age),
            keep_recent=self.keep_recent,
            target=self.target,
            summary_tokens=summary_share(self.max_tokens),
        )


def summary_share(max_tokens: int | None) -> int:
    """What a summary is thought to take, where so many tokens are allowed for the whole."""
    return SUMMARY_TOKENS if max_tokens is None else min(SUMMARY_TOKENS, max_tokens // 4)


def summary_room(messages: Iterable[Message], plan: Plan, max_tokens: int | None) -> int | None:
    """The tokens a summary may have, so that the limit holds; None: there is none, or what stays leaves no room."""
    seen = {message.id for message in plan.seen}
    rest = sum(message_tokens(message) for message in messages if message.id not in seen)
    return None if max_tokens is None or rest + shortest_tokens() > max_tokens else max_tokens - rest


class Totals(Struct, frozen=True):
    """How long a conversation is, as of a revision."""

    conversation_id: str
    revision: int
    message_count: int
    tokens: int

    @staticmethod
    def of(conversation: Conversation) -> Totals:
        return Totals(
            conversation.conversation_id, conversation.revision, conversation.message_count, conversation.tokens
        )


#: Of conversations, the revision for which something is known, and until when; None: for ever.
_Until = OrderedDict[str, tuple[int, datetime | None]]


def _remember(known: _Until, conversation_id: str, revision: int, until: datetime | None) -> None:
    known.pop(conversation_id, None)
    known[conversation_id] = revision, until
    while len(known) > _SETTLED:
        known.popitem(last=False)


def _holds(known: _Until, totals: Totals) -> bool:
    revision, until = known.get(totals.conversation_id, (None, None))
    return revision == totals.revision and (until is None or datetime.now(UTC) < until)


class Work:
    """Which conversations are to be compressed, which are being, and which rest after a failure. For any thread."""

    def __init__(self, first_wait: float, longest_wait: float, clock: Callable[[], float]) -> None:
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._working: dict[str, int] = {}
        self._resting: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._settled: _Until = OrderedDict()
        self._young: _Until = OrderedDict()
        self._counts: Counter[str] = Counter()

    def offer(self, found: Iterable[Totals], *, rested: bool = True) -> int:
        """Conversations that are too long; how many of them are new work. Those that have `rested` are, unless told
        otherwise."""
        new = 0
        now = self._clock()
        with self._lock:
            for totals in found:
                name, revision = totals.conversation_id, totals.revision
                if name in self._working or name in self._waiting or _holds(self._settled, totals):
                    continue
                if name in self._resting:
                    if not rested or self._resting[name] > now:
                        continue
                    del self._resting[name]
                self._waiting[name] = revision
                new += 1
        return new

    def take(self) -> tuple[str, int] | None:
        """The conversation to do next, and the revision it was seen at."""
        with self._lock:
            if not self._waiting:
                return None
            name, revision = self._waiting.popitem(last=False)
            self._working[name] = revision
            return name, revision

    def done(self, conversation_id: str, *, settled_at: int | None = None, until: datetime | None = None) -> None:
        """It was compressed; or, as it is at a revision, nothing of it can be until then, or ever."""
        with self._lock:
            self._working.pop(conversation_id, None)
            self._resting.pop(conversation_id, None)
            self._failures.pop(conversation_id, None)
            self._settled.pop(conversation_id, None)
            if settled_at is not None:
                _remember(self._settled, conversation_id, settled_at, until)

    def settle(self, conversation_id: str, revision: int, until: datetime | None) -> None:
        """As it is at a revision, there is no use in trying again until then, or ever."""
        with self._lock:
            _remember(self._settled, conversation_id, revision, until)

    def is_young(self, totals: Totals) -> bool:
        """Whether it is known that nothing of it is too old yet."""
        with self._lock:
            return _holds(self._young, totals)

    def young(self, totals: Totals, until: datetime | None) -> None:
        """Nothing of it is too old until then; None: nothing of it will ever be, as it is."""
        with self._lock:
            _remember(self._young, totals.conversation_id, totals.revision, until)

    def leave(self, conversation_id: str) -> None:
        """Nobody is at it any more, whatever has become of it."""
        with self._lock:
            self._working.pop(conversation_id, None)

    def failed(self, conversation_id: str) -> float:
        """How many seconds to leave it alone: longer each time."""
        with self._lock:
            self._failures[conversation_id] += 1
            doublings = min(self._failures[conversation_id] - 1, 30)
        wait: float = min(self._longest_wait, self._first_wait * 2**doublings)
        return wait * CHANCE.uniform(0.75, 1.25)  # workers must not come back all at once

    def rest(self, conversation_id: str, wait: float) -> None:
        """Leave it alone for so many seconds from now on."""
        with self._lock:
            self._working.pop(conversation_id, None)
            self._resting[conversation_id] = self._clock() + wait

    def drop(self) -> None:
        """Forget what waits."""
        with self._lock:
            self._waiting.clear()

    def count(self, **more: int) -> None:
        """Add to the counters of `stats`."""
        with self._lock:
            self._counts.update(more)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being done."""
        return not self._waiting and not self._working

    @property
    def next_rested(self) -> float | None:
        """Seconds until a conversation that rests may be tried again; None: there is none."""
        with self._lock:
            return max(0.0, min(self._resting.values()) - self._clock()) if self._resting else None

    def rested(self) -> list[str]:
        """Conversations that have rested long enough; each is told once."""
        now = self._clock()
        with self._lock:
            found = [name for name, until in self._resting.items() if until <= now]
            for name in found:
                del self._resting[name]
        return found

    @property
    def stats(self) -> CompressorStats:
        with self._lock:
            return CompressorStats(
                **self._counts, waiting=len(self._waiting), working=len(self._working), resting=len(self._resting)
            )
