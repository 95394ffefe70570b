"""Reads the capabilities and settings of a server, and the rights of this user. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis_history._sync.store import HistoryStore
from redis_history.backends.redis.keys import Keyspace
from redis_history.doctor.finding import Finding
from redis_history.doctor.questions import questions, read_answers
from redis_history.doctor.search import check_search
from redis_history.doctor.server import check_server
from redis_history.doctor.where import where_is
from redis_history.errors import BackendRefusedError

__all__ = ["examine"]

_TRIES = 20
_SLOW = 0.02  # seconds for a round trip; each append takes one
_ASKEW = 5.0  # seconds


def examine(store: HistoryStore, url: str) -> Iterator[Finding]:
    """Findings about the server of a store, whose URL is `url`.

    Raises the errors of a store that cannot work at all: BackendUnavailableError, BackendRefusedError,
    UnsupportedServerError.
    """
    backend: Any = store._backend  # the store itself has no method for other commands
    found = store.capabilities
    keyspace = Keyspace(store.namespace)
    where = where_is(url, backend._settings.database)
    stored = False
    with suppress(BackendRefusedError):  # a missing right, which check_server reports
        stored = bool(store.list_conversations(limit=1))
    asked = (keyspace, where.database)
    replies = backend.ask(questions(*asked, cluster=where.several))
    answers = read_answers(*asked, replies, cluster=where.several)
    yield Finding("server", "ok", f"answers at {where.address}")
    yield from check_server(found, answers, where)
    yield check_search(found, answers, where, stored=stored)
    yield from _times(backend, answers.clock)


def _times(backend: Any, clock: list[float]) -> Iterator[Finding]:
    now = time.time()
    taken = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        backend.ask([[b"TIME"]])
        taken.append(time.perf_counter() - began)
    typical, worst = sorted(taken)[_TRIES // 2], max(taken)
    told = f"{1000 * typical:.2f} ms a round trip, {1000 * worst:.2f} ms at worst"
    if typical > _SLOW:
        yield Finding(
            "latency", "limited", f"{told}: each append takes at least as long", "run the process near the server"
        )
    else:
        yield Finding("latency", "ok", told)
    apart = max((abs(one - now) for one in clock), default=0.0)
    if apart > _ASKEW:
        text = f"the clocks of the server and this machine differ by {apart:,.0f} s; messages get the server's time"
        yield Finding("clock", "limited", text, "set both clocks with NTP: `timedatectl set-ntp true`")
    else:
        yield Finding("clock", "ok", f"within {max(apart, 0.1):.1f} s of the server's")
