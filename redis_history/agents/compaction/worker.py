"""Options, progress and state of a compressor, without I/O. The compressor itself is in _async/compressor.py."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from redis_history.agents.compaction.policy import Policy
from redis_history.agents.compaction.summaries import expected_tokens
from redis_history.errors import ConfigurationError, InvalidInputError, InvalidTimestampError
from redis_history.values import Conversation
from redis_history.values._validation import check_seconds
from redis_history.values.ids import rng

#: One day. After that, another worker must be able to replace a stalled one.
_LONGEST_LEASE: Final = 86_400
#: Maximum number of conversations of `Facts`.
_MAX_FACTS: Final = 100_000


class CompressionProgress(Struct, frozen=True):
    """An event of a compressor for one conversation.

    The values of `kind`:

    - "planned": a dry run would compress the conversation.
    - "started", "compressed", "failed".
    - "nothing": the conversation exceeds a bound, but no messages can be compressed. With an `error`, its summary was
      not shorter.
    - "conflict": its older messages changed during the compression. The compressor will retry.
    - "lease_lost": this process was too slow or stalled, and another one may have taken over.

    `conversation_id`: the conversation. `messages`: number of messages to summarize. `tokens_before`, `tokens_after`:
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
    another worker was compressing. `waiting`, `working`, `resting`: current numbers of conversations. Resting
    conversations wait for a retry after a failure.
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


def compressor_policy(
    max_tokens: int | None,
    max_messages: int | None,
    older_than: float | timedelta | None,
    target: float,
    keep_recent: int,
) -> Policy:
    """The policy of a compressor. `older_than` is an age. Raises ConfigurationError."""
    try:
        if older_than is not None:
            seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
            check_seconds(seconds, "older_than")
            older_than = timedelta(seconds=seconds)
        policy = Policy(
            max_tokens=max_tokens,
            max_messages=max_messages,
            older_than=older_than,
            keep_recent=keep_recent,
            target=target,
        )
    except (InvalidTimestampError, OverflowError) as error:
        raise ConfigurationError(f"older_than reaches too far back: {older_than!r}") from error
    except InvalidInputError as error:
        raise ConfigurationError(f"compressor: {error}") from error
    return replace(policy, summary_tokens=expected_tokens(max_tokens))


def is_over(policy: Policy, conversation: Conversation) -> bool:
    """Whether a conversation exceeds `max_tokens` or `max_messages`. Its record does not contain its age."""
    return (policy.max_tokens is not None and conversation.estimated_tokens > policy.max_tokens) or (
        policy.max_messages is not None and conversation.message_count > policy.max_messages
    )


class Timing(Struct, frozen=True):
    """See `AsyncCompressor`. Raises ConfigurationError."""

    timeout: float
    lease: float
    look_interval: float
    sweep_interval: float
    first_wait: float
    longest_wait: float
    grace: float

    def __post_init__(self) -> None:
        for name in ("timeout", "look_interval", "sweep_interval", "first_wait"):
            check_seconds(getattr(self, name), name)
        check_seconds(self.lease, "lease", 0.1, _LONGEST_LEASE)
        check_seconds(self.longest_wait, "longest_wait", self.first_wait)
        check_seconds(self.grace, "grace", 0)


#: The creation time and the revision: a deleted conversation may come back, and reach the same revision.
Version = tuple[datetime | None, int]


def version_of(conversation: Conversation) -> Version:
    return conversation.created_at, conversation.revision


class Facts:
    """Facts that hold for a conversation at one version, until a time (None: forever). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: OrderedDict[str, tuple[Version, datetime | None]] = OrderedDict()

    def add(self, conversation_id: str, version: Version, until: datetime | None) -> None:
        with self._lock:
            self._until.pop(conversation_id, None)
            self._until[conversation_id] = version, until
            while len(self._until) > _MAX_FACTS:
                self._until.popitem(last=False)

    def __contains__(self, conversation: Conversation) -> bool:
        version, until = self._until.get(conversation.conversation_id, (None, None))
        return version == version_of(conversation) and (until is None or datetime.now(UTC) < until)


class Work:
    """The conversations that wait for compression, are being compressed, or rest after a failure. Thread-safe."""

    def __init__(self, first_wait: float, longest_wait: float) -> None:
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, Version] = OrderedDict()
        self._working: set[str] = set()
        self._resting: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self.settled = Facts()  # nothing can be compressed
        self.young = Facts()  # no message is too old
        self._counts: Counter[str] = Counter()

    def offer(self, found: Iterable[Conversation], *, rested: bool = True) -> int:
        """Add conversations that are too long, and return how many were added. `rested=False` skips conversations that
        failed before, even if their wait is over."""
        new = 0
        now = time.monotonic()
        with self._lock:
            for conversation in found:
                name = conversation.conversation_id
                if name in self._working or name in self._waiting or conversation in self.settled:
                    continue
                if name in self._resting:
                    if not rested or self._resting[name] > now:
                        continue
                    del self._resting[name]
                self._waiting[name] = version_of(conversation)
                new += 1
        return new

    def take(self) -> tuple[str, Version] | None:
        """The next conversation to compress, and the version at which it was found."""
        with self._lock:
            if not self._waiting:
                return None
            name, version = self._waiting.popitem(last=False)
            self._working.add(name)
            return name, version

    def succeeded(self, conversation_id: str) -> None:
        """The work on the conversation has ended without a failure."""
        with self._lock:
            self._working.discard(conversation_id)
            self._resting.pop(conversation_id, None)
            self._failures.pop(conversation_id, None)

    def failed(self, conversation_id: str) -> float:
        """Count a failure, and return the seconds to wait before a retry. The wait doubles with each failure."""
        with self._lock:
            self._failures[conversation_id] += 1
            doublings = min(self._failures[conversation_id] - 1, 30)
        wait: float = min(self._longest_wait, self._first_wait * 2**doublings)
        return wait * rng.uniform(0.75, 1.25)  # workers must not all retry at the same time

    def release(self, conversation_id: str, rest: float | None = None) -> None:
        """The work on the conversation has ended. With `rest`, do not retry it for this many seconds."""
        with self._lock:
            self._working.discard(conversation_id)
            if rest is not None:
                self._resting[conversation_id] = time.monotonic() + rest

    def clear(self) -> None:
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
    def seconds_to_retry(self) -> float | None:
        """Seconds until the next retry of a resting conversation; None if no conversation rests."""
        with self._lock:
            return max(0.0, min(self._resting.values()) - time.monotonic()) if self._resting else None

    def take_rested(self) -> list[str]:
        """Conversations whose wait is over. Each is returned once."""
        now = time.monotonic()
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
