"""Limits for the requests, streams and answers of a chat in a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from redis_history.values import Participant
from redis_history.values._validation import check_integer, check_seconds
from redis_history.web._answers import SIZE
from redis_history.web._http import Refused

#: Bytes of a request that does not count among the large ones: more than a person types.
_SMALL: Final = 64_000


class ChatLimits(Struct, frozen=True, kw_only=True):
    """Limits of `ChatEndpoints`. Sizes are in bytes, times in seconds; numbers count for one process.

    `body`: the size of a request (else status 413). `bodies`: the total size of requests that are being received or
    read (503); requests of up to 64 kB do not count, so that typed messages are accepted. `messages`: the size of the
    stored messages that a response contains or a request reads; the newest messages that fit are used. `streams`: open
    streams (503). `streams_per_user`: open streams of a single signed-in user (429). `answers`: answers that are being
    written or wait for their turn (503). `answers_per_user`: the same for a single signed-in user (429). `reauthorize`:
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
    """Counts open streams and answers. Visitors without a sign-in count only for the process."""

    def __init__(self, limits: ChatLimits) -> None:
        self._limits = limits
        self._streams: Counter[str | None] = Counter()  # by user
        self._answers: Counter[str | None] = Counter()
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

    def check_answer(self, user: Participant | None) -> None:
        """Raises Refused if no further answer may begin."""
        _check(self._answers, _name_of(user), "answers", self._limits.answers, self._limits.answers_per_user)

    def answer(self, user: Participant | None) -> Callable[[object], None]:
        """Count an answer. Returns a function to call at its end."""
        name = _name_of(user)
        self._answers[name] += 1
        return lambda _: _drop(self._answers, name)


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
