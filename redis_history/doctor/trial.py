"""Tries out a server: appends, follows and searches messages, then deletes them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from redis_history._ids import new_token
from redis_history._sync.store import HistoryStore
from redis_history._sync.subscription import Subscription
from redis_history.doctor.finding import Finding, State
from redis_history.model import user

__all__ = ["try_out"]

_TRIES = 20
_PATIENCE = 10.0  # seconds
_AT_ONCE = 1.0  # seconds; a later change was found by polling


def try_out(store: HistoryStore) -> Iterator[Finding]:
    """Findings from a temporary conversation, which is deleted at the end. Raises the errors of the store."""
    conversation_id = f"redis-history doctor {new_token()}"
    try:
        with store.subscribe(conversation_id) as changes:
            taken = []
            for number in range(_TRIES):
                began = time.perf_counter()
                store.append(conversation_id, user(f"This is number {number} of a trial."))
                taken.append(time.perf_counter() - began)
            typical = sorted(taken)[_TRIES // 2]
            yield Finding("append", "ok", f"{1000 * typical:.2f} ms, {1000 * max(taken):.2f} ms at worst")
            yield _followed(store, conversation_id, changes)
        found = len(store.search(conversation_id, "trial", limit=_TRIES, token_cap=None))
        state: State = "ok" if found == _TRIES else "problem"
        yield Finding("searching", state, f"found {found} of {_TRIES} messages just written")
    finally:
        store.delete_conversation(conversation_id)


def _followed(store: HistoryStore, conversation_id: str, changes: Subscription) -> Finding:
    """Receives all changes so far, then measures how soon the next change arrives."""
    deadline, told = time.monotonic() + _PATIENCE, 0
    while told < _TRIES and changes.get(timeout=max(0.0, deadline - time.monotonic())) is not None:
        told += 1
    store.append(conversation_id, user("This is the last of a trial."))
    began = time.perf_counter()
    last = changes.get(timeout=_PATIENCE)
    waited = time.perf_counter() - began
    if told < _TRIES or last is None:
        return Finding("following", "problem", f"{told} of {_TRIES} changes arrived within {_PATIENCE:.0f} s")
    if waited > _AT_ONCE:
        text = f"a change arrived after {waited:.1f} s, by polling: no notification woke the subscriber"
        return Finding("following", "limited", text, "see notifications")
    return Finding("following", "ok", f"a change arrived after {1000 * waited:.1f} ms")
