"""Uses of `redis_history.web` that `mypy --strict` must accept, with the types it must find. Never run."""

from __future__ import annotations

from typing import assert_type

from starlette.requests import Request
from starlette.routing import Mount

from redis_history import AsyncHistoryStore, HistoryStore, Participant
from redis_history.web import Action, Limits, LiveView, allow_all


async def permitted(request: Request, conversation_id: str | None, action: Action) -> bool:
    return action == "read"


def nobody(request: Request) -> bool:
    return False


def signed_in(request: Request) -> Participant | None:
    return None


async def signed_in_later(request: Request) -> Participant:
    return Participant("user", "ann")


async def live(store: AsyncHistoryStore) -> None:
    async with LiveView(store, authorize=permitted, participant=signed_in_later, limits=Limits(streams=5)) as view:
        assert_type(view, LiveView)
        Mount("/history", view)
    LiveView(store, authorize=lambda *_: True, participant=signed_in, read_only=False, address="here")
    LiveView(store)  # type: ignore[call-arg]
    LiveView(store, authorize=None)  # type: ignore[arg-type]
    LiveView(HistoryStore("memory://"), authorize=allow_all)  # type: ignore[arg-type]
    LiveView(store, authorize=nobody)  # type: ignore[arg-type]
    Limits(streams="5")  # type: ignore[arg-type]
