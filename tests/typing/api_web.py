"""Uses of `redis_history.web` that `mypy --strict` must accept, with the types it must find. Never run."""

from __future__ import annotations

from typing import assert_type

from starlette.requests import Request
from starlette.routing import Mount

from redis_history import AsyncHistoryStore, HistoryStore, Participant
from redis_history.web import Action, Authorize, Limits, LiveView, SignedIn, allow_all


async def permitted(request: Request, conversation_id: str | None, action: Action) -> bool:
    return action == "read"


def everybody(request: Request, conversation_id: str | None, action: Action) -> bool:
    return True


def nobody(request: Request) -> bool:
    return False


def signed_in(request: Request) -> Participant | None:
    return None


async def signed_in_later(request: Request) -> Participant:
    return Participant("user", "ann")


asked: Authorize = permitted
asked = everybody
asked = allow_all
who: SignedIn = signed_in
who = signed_in_later


async def live(store: AsyncHistoryStore) -> None:
    view = LiveView(store, authorize=permitted, page=False, limits=Limits(streams=5))
    assert_type(view, LiveView)
    LiveView(store, authorize=lambda *_: True, participant=signed_in, read_only=False, address="here")
    Mount("/history", view)
    async with view as same:
        assert_type(same, LiveView)
    LiveView(store)  # type: ignore[call-arg]
    LiveView(store, authorize=None)  # type: ignore[arg-type]
    LiveView(HistoryStore("memory://"), authorize=allow_all)  # type: ignore[arg-type]
    LiveView(store, authorize=nobody)  # type: ignore[arg-type]
    Limits(streams="5")  # type: ignore[arg-type]
