"""A compactor process: summarises all but the newest messages, again and again, until all that is awaited is there."""

from __future__ import annotations

from redis_history import HistoryStore, user
from redis_history.errors import CompactionConflictError


def main(url: str, name: str, count: int) -> int:
    """How many of its summaries were stored."""
    rounds = done = 0
    with HistoryStore(url) as store:
        while True:
            everything = store.get("c", include_archived=True)
            arrived = sum(not message.is_summary for message in everything)
            seen = store.get("c")[:-3]
            if len(seen) > 1:
                rounds += 1
                summary = user(f"by {name}", id=f"{name} {rounds}", metadata={"is_summary": True})
                try:
                    done += store.compact("c", through=seen[-1], summary=summary, seen=seen).changed
                except CompactionConflictError:
                    continue
            if arrived == count:
                break
    return done
