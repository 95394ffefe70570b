"""Uses of `redis_history.web` that `mypy --strict` must accept, with the types it must find. Never run."""

from __future__ import annotations

from typing import assert_type

from starlette.requests import Request
from starlette.routing import BaseRoute

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.web import Action, Authorize, Limits, routes


async def permitted(request: Request, conversation_id: str | None, action: Action) -> bool:
    return action == "read"


def everybody(request: Request, conversation_id: str | None, action: Action) -> bool:
    return True


def nobody(request: Request) -> bool:
    return False


asked: Authorize = permitted
asked = everybody


def live(store: AsyncHistoryStore) -> None:
    assert_type(routes(store), list[BaseRoute])
    assert_type(routes(store, authorize=permitted, page=False, limits=Limits(streams=5)), list[BaseRoute])
    assert_type(routes(store, authorize=lambda *_: True, read_only=False, address="here"), list[BaseRoute])
    routes(HistoryStore("memory://"))  # type: ignore[arg-type]
    routes(store, authorize=nobody)  # type: ignore[arg-type]
    Limits(streams="5")  # type: ignore[arg-type]
