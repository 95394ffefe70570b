"""From an operation to its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from redis_history.backends.redis import plan_drafts, plan_reads, plan_replies, plan_runs, plan_search, plan_writes
from redis_history.backends.redis.plan_compaction import compact, expand
from redis_history.backends.redis.plan_listing import (
    count_conversations,
    list_conversations,
    list_previews,
    scan_conversations,
)
from redis_history.operations import (
    Compact,
    CountConversations,
    Expand,
    ListConversations,
    ListPreviews,
    Op,
    ReadTogether,
    ScanConversations,
)
from redis_history.operations.base import Call, Settings, Steps, read_all
from redis_history.search.server_search import Fetch

T = TypeVar("T")


def _read_together(op: ReadTogether, settings: Settings) -> Steps[list[Any]]:
    if not op.reads:
        return []
    outcomes = yield from read_all([_CALLS[type(one)](one, settings) for one in op.reads], settings)
    return (yield from plan_replies.read_together(op.reads, outcomes, settings))


#: Operations of one call.
_CALLS: Final[dict[type, Callable[[Any, Settings], Call]]] = {
    Fetch: plan_search.fetch_call,
    **plan_drafts.CALLS,
    **plan_reads.CALLS,
}
_PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {
    **plan_drafts.PLANS,
    **plan_writes.PLANS,
    **plan_replies.PLANS,
    **plan_runs.PLANS,
    **plan_search.PLANS,
    Compact: compact,
    CountConversations: count_conversations,
    Expand: expand,
    Fetch: plan_search.fetch,
    ListConversations: list_conversations,
    ListPreviews: list_previews,
    ReadTogether: _read_together,
    ScanConversations: scan_conversations,
}


def plan(op: Op[T], settings: Settings) -> Steps[T]:
    steps = _PLANS.get(type(op))
    return _single(_CALLS[type(op)](op, settings)) if steps is None else steps(op, settings)


def _single(call: Call) -> Steps[Any]:
    return (yield call)
