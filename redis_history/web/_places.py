"""Limits for the requests, streams and answers of a chat in a process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from redis_history.values import Participant
from redis_history.values._validation import check_integer, check_seconds
from redis_history.web._answers import SIZE
from redis_history.web._http import Refused

#: Bytes of a request that does not count among the large ones: more than a person types.
_SMALL: Final = 64_000
#: Seconds after which a process that owes too many answers looks again which of them are over.
_LOOK: Final = 1.0


class ChatLimits(Struct, frozen=True, kw_only=True):
    """Limits of `ChatEndpoints`. Sizes are in bytes, times in seconds; numbers count for one process.

    `body`: the size of a request (else status 413). `bodies`: the total size of requests that are being received or
    read (503); requests of up to 64 kB do not count, so that typed messages are accepted. `messages`: the size of the
    stored messages that a response contains or a request reads; the newest messages that fit are used. `streams`: open
    streams (503). `streams_per_user`: open streams of a single signed-in user (429). `answers`: conversations
    that are owed an answer which was asked for here (503). `answers_per_user`: the same for a single signed-in user
    (429). `reauthorize`:
    the interval in which a stream asks `authorize` again. `patience`: ends a stream whose client accepts no data for
    this time, and a request whose client sends none (408).
    """

    body: int = 16_000_000
    bodies: int = 256_000_000
    messages: int = SIZE
    streams: int = 10_000
    streams_per_user: int = 50
    answers: int = 1000
    answers_per_user: int = 20
    reauthorize: float = 30.0
    patience: float = 60.0

    def __post_init__(self) -> None:
        for name in ("body", "bodies", "messages", "streams", "streams_per_user", "answers", "answers_per_user"):
            check_integer(getattr(self, name), name, 1)
        for name in ("reauthorize", "patience"):
            check_seconds(getattr(self, name), name, 0, above=True)


class Place:
    """The place of one stream. It is released at the end of the request, unless a response keeps it until its end."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave
        self.is_kept = False

    def keep(self) -> None:
        self.is_kept = True

    def leave(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None


class Places:
    """Counts open streams and owed answers. Visitors without a sign-in count only for the process."""

    def __init__(self, limits: ChatLimits) -> None:
        self._limits = limits
        self._streams: Counter[str | None] = Counter()  # by user
        self._asked: dict[str, str | None] = {}  # the user who asked or is about to, by conversation
        self._asking: Counter[str | None] = Counter()  # requests that are about to ask, by conversation
        self._look_at = 0.0  # when to look again which of them are over
        self._bodies = 0  # bytes

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of the body of one request until it is read. Yields a function to call with its size whenever
        it has grown, which raises Refused."""
        counted = 0

        def grow(size: int) -> None:
            nonlocal counted
            if size <= _SMALL:
                return
            if self._bodies + size - counted > self._limits.bodies:
                most = self._limits.bodies
                detail = f"requests of {most:,} bytes are being received, the limit of ChatLimits(bodies=...)"
                raise Refused(503, "too_many", detail, {"Retry-After": "5"})
            self._bodies += size - counted
            counted = size

        try:
            yield grow
        finally:
            self._bodies -= counted

    @contextmanager
    def stream(self, user: Participant | None) -> Iterator[Place]:
        """A place for a stream of a request. Raises Refused."""
        name = _name_of(user)
        _check(self._streams, name, "streams", self._limits.streams, self._limits.streams_per_user)
        self._streams[name] += 1
        place = Place(lambda: _drop(self._streams, name))
        try:
            yield place
        finally:
            if not place.is_kept:
                place.leave()

    @contextmanager
    def asking(self, chat: str) -> Iterator[None]:
        """A request that may ask in this conversation."""
        self._asking[chat] += 1
        try:
            yield
        finally:
            _drop(self._asking, chat)

    async def take_answer(self, user: Participant | None, chat: str, owed: Callable[[str], Awaitable[bool]]) -> None:
        """Count a conversation that is about to ask. Raises Refused if no further one may. `owed(chat)`: whether a
        conversation still is owed an answer; it is asked only when a limit is reached."""
        name, limits = _name_of(user), self._limits
        if chat in self._asked:
            return
        for attempt in range(2):
            counts = Counter(self._asked.values())
            is_full = counts.total() >= limits.answers
            if not is_full and (name is None or counts[name] < limits.answers_per_user):
                self._asked[chat] = name  # at once: other requests are being checked
                return
            if attempt or (is_full and time.monotonic() < self._look_at):
                _check(counts, name, "answers", limits.answers, limits.answers_per_user)
            if is_full:
                self._look_at = time.monotonic() + _LOOK
            for known in [one for one, who in self._asked.items() if is_full or who == name]:
                if not await owed(known) and known not in self._asking:
                    self._asked.pop(known, None)

    def asked(self, user: Participant | None, chat: str) -> None:
        """Count a conversation that is owed an answer."""
        self._asked[chat] = _name_of(user)


def _name_of(user: Participant | None) -> str | None:
    return None if user is None else f"{user.kind}/{user.id}"


def _drop(counts: Counter[str | None], name: str | None) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def _check(counts: Counter[str | None], name: str | None, kind: str, most: int, most_per_user: int) -> None:
    if counts.total() >= most:
        detail = f"this process has {most:,} {kind}, the limit of ChatLimits({kind}=...)"
        raise Refused(503, "too_many", detail, {"Retry-After": "5"})
    if name is not None and counts[name] >= most_per_user:
        detail = f"this user has {most_per_user:,} {kind} here, the limit of ChatLimits({kind}_per_user=...)"
        raise Refused(429, "too_many", detail, {"Retry-After": "5"})
