"""Options, progress and state of a compressor. Pure; the compressor itself is in _async/compressor.py."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

from redis_history._ids import rng
from redis_history._time import cutoff
from redis_history._validation import check_integer, check_seconds, check_share
from redis_history.compaction.policy import SUMMARY_TOKENS, Plan, Policy
from redis_history.compaction.summaries import shortest_tokens
from redis_history.errors import ConfigurationError, InvalidTimestampError
from redis_history.model import Conversation, Message
from redis_history.tokens import message_tokens

#: One day. After that, another worker must be able to replace a stalled one.
_LONGEST_LEASE: Final = 86_400
#: Maximum number of remembered conversations that have nothing to compress.
_SETTLED: Final = 100_000


class CompressionProgress(Struct, frozen=True):
    """An event of a compressor for one conversation.

    The values of `kind`:

    - "planned": a dry run would compress the conversation.
    - "started", "compressed", "failed".
    - "nothing": the conversation exceeds a bound, but no messages can be compressed. With an `error`, its summary was
      not shorter.
    - "conflict": its older messages changed during the compression. The compressor will retry.
    - "lease_lost": this process was too slow or stalled, and another one may have taken over.

    `conversation_id`: the conversation. `messages`: number of messages to summarise. `tokens_before`, `tokens_after`:
    tokens of these messages, and of their summary. `wait`: seconds until the next attempt. `error`: the reason.
    `seconds`: time since the start.
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
    """Counters of a compressor since its creation, and its current state.

    `sweeps`: scans of all conversations. `looks`: scans of changed conversations. `compressed`: summaries written.
    `messages`: messages they replaced. `tokens_before`, `tokens_after`: tokens of these messages, and of the
    summaries. `nothing`, `failed`, `conflicts`, `leases_lost`: see CompressionProgress. `busy`: conversations that
    another worker was compressing. `waiting`, `working`, `resting`: current numbers of conversations; those that rest
    wait for a retry after a failure.
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
    max_messages: int | None
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
        if self.max_tokens is None and self.max_messages is None and self.older_than is None:
            raise ConfigurationError("a compressor requires max_tokens, max_messages or older_than")
        for name in ("max_tokens", "max_messages"):
            check_integer(getattr(self, name), name, 1, optional=True)
        if self.older_than is not None:
            check_seconds(self.age, "older_than")
            try:
                cutoff(timedelta(seconds=self.age or 0))
            except (OverflowError, InvalidTimestampError) as error:
                raise ConfigurationError(f"older_than reaches too far back: {self.older_than!r}") from error
        check_share(self.target, "target")
        check_integer(self.keep_recent, "keep_recent")
        check_integer(self.concurrency, "concurrency", 1)
        for name in ("timeout", "look_interval", "sweep_interval", "first_wait"):
            check_seconds(getattr(self, name), name)
        check_seconds(self.lease, "lease", 0.1, _LONGEST_LEASE)
        check_seconds(self.longest_wait, "longest_wait", self.first_wait)
        check_seconds(self.grace, "grace", 0)

    @property
    def age(self) -> float | None:
        """`older_than` in seconds."""
        return self.older_than.total_seconds() if isinstance(self.older_than, timedelta) else self.older_than

    def is_over(self, conversation: Conversation) -> bool:
        """Whether a conversation exceeds `max_tokens` or `max_messages`; its record does not tell its age."""
        return (self.max_tokens is not None and conversation.tokens > self.max_tokens) or (
            self.max_messages is not None and conversation.message_count > self.max_messages
        )

    @property
    def policy(self) -> Policy:
        """The policy with these options."""
        return Policy(
            max_tokens=self.max_tokens,
            max_messages=self.max_messages,
            older_than=None if self.age is None else timedelta(seconds=self.age),
            keep_recent=self.keep_recent,
            target=self.target,
            summary_tokens=max(shortest_tokens(), summary_share(self.max_tokens)),
        )


def summary_share(max_tokens: int | None) -> int:
    """The expected tokens of a summary, in a conversation of at most `max_tokens` tokens."""
    return SUMMARY_TOKENS if max_tokens is None else min(SUMMARY_TOKENS, max_tokens // 4)


def summary_room(messages: Iterable[Message], plan: Plan, max_tokens: int | None) -> int | None:
    """Maximum tokens of a summary so that `max_tokens` holds. None without a limit, or if the messages that stay leave
    no space for a summary."""
    seen = {message.id for message in plan.seen}
    rest = sum(message_tokens(message) for message in messages if message.id not in seen)
    return None if max_tokens is None or rest + shortest_tokens() > max_tokens else max_tokens - rest


#: By conversation id: the revision at which a fact holds, and until when (None: forever).
_Until = OrderedDict[str, tuple[int, datetime | None]]


def _remember(known: _Until, conversation_id: str, revision: int, until: datetime | None) -> None:
    known.pop(conversation_id, None)
    known[conversation_id] = revision, until
    while len(known) > _SETTLED:
        known.popitem(last=False)


def _holds(known: _Until, conversation: Conversation) -> bool:
    revision, until = known.get(conversation.conversation_id, (None, None))
    return revision == conversation.revision and (until is None or datetime.now(UTC) < until)


class Work:
    """The conversations that wait for compression, are being compressed, or rest after a failure. Thread-safe."""

    def __init__(self, first_wait: float, longest_wait: float, clock: Callable[[], float]) -> None:
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._working: set[str] = set()
        self._resting: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._settled: _Until = OrderedDict()  # nothing can be compressed
        self._young: _Until = OrderedDict()  # no message is too old
        self._counts: Counter[str] = Counter()

    def offer(self, found: Iterable[Conversation], *, rested: bool = True) -> int:
        """Add conversations that are too long, and return how many were added. `rested=False` skips conversations that
        failed before, even if their wait is over."""
        new = 0
        now = self._clock()
        with self._lock:
            for conversation in found:
                name = conversation.conversation_id
                if name in self._working or name in self._waiting or _holds(self._settled, conversation):
                    continue
                if name in self._resting:
                    if not rested or self._resting[name] > now:
                        continue
                    del self._resting[name]
                self._waiting[name] = conversation.revision
                new += 1
        return new

    def take(self) -> tuple[str, int] | None:
        """The next conversation to compress, and the revision at which it was found."""
        with self._lock:
            if not self._waiting:
                return None
            name, revision = self._waiting.popitem(last=False)
            self._working.add(name)
            return name, revision

    def done(self, conversation_id: str) -> None:
        """The work on the conversation has ended without a failure."""
        with self._lock:
            self._working.discard(conversation_id)
            for known in (self._resting, self._failures, self._settled):
                known.pop(conversation_id, None)

    def settle(self, conversation_id: str, revision: int, until: datetime | None) -> None:
        """Do not retry at this revision until `until` (None: never)."""
        with self._lock:
            _remember(self._settled, conversation_id, revision, until)

    def is_young(self, conversation: Conversation) -> bool:
        """Whether no message of the conversation is known to be too old."""
        with self._lock:
            return _holds(self._young, conversation)

    def young(self, conversation: Conversation, until: datetime | None) -> None:
        """At this revision, no message is too old before `until` (None: none ever will be)."""
        with self._lock:
            _remember(self._young, conversation.conversation_id, conversation.revision, until)

    def failed(self, conversation_id: str) -> float:
        """Count a failure, and return the seconds to wait before a retry. The wait doubles with each failure."""
        with self._lock:
            self._failures[conversation_id] += 1
            doublings = min(self._failures[conversation_id] - 1, 30)
        wait: float = min(self._longest_wait, self._first_wait * 2**doublings)
        return wait * rng.uniform(0.75, 1.25)  # workers must not all retry at once

    def leave(self, conversation_id: str, rest: float | None = None) -> None:
        """The work on the conversation has ended. With `rest`, do not retry it for so many seconds."""
        with self._lock:
            self._working.discard(conversation_id)
            if rest is not None:
                self._resting[conversation_id] = self._clock() + rest

    def drop(self) -> None:
        """Forget all waiting conversations."""
        with self._lock:
            self._waiting.clear()

    def count(self, **more: int) -> None:
        """Add to the counters of `stats`."""
        with self._lock:
            self._counts.update(more)

    @property
    def idle(self) -> bool:
        """Whether no conversation waits or is being compressed."""
        return not self._waiting and not self._working

    @property
    def next_rested(self) -> float | None:
        """Seconds until the next retry of a resting conversation; None if no conversation rests."""
        with self._lock:
            return max(0.0, min(self._resting.values()) - self._clock()) if self._resting else None

    def rested(self) -> list[str]:
        """Conversations whose wait is over. Each is returned once."""
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
