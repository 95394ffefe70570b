from collections.abc import AsyncIterator
from typing import Any

import pytest

from redis_history import AsyncHistoryStore
from redis_history.web import LiveView
from redis_history.web.access import holder
from redis_history.web.application import application
from tests.support.servers import RealServer
from tests.support.web import TOKEN, client
from tests.web.browsing import chromium, desk, site, window, windows
from tests.web.chatting import serve

__all__ = ["chromium", "desk", "make", "serve", "site", "store", "web", "window", "windows", "writable"]


@pytest.fixture
async def store(server: RealServer, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    async with AsyncHistoryStore(server.url, namespace=namespace) as store:
        yield store


@pytest.fixture
async def make(store: AsyncHistoryStore) -> AsyncIterator[Any]:
    """Makes the application of `redis-history serve`; ends its streams at the end."""
    views: list[LiveView] = []

    def make(*, hosts: tuple[str, ...] = (), secure: bool | None = None, **options: Any) -> Any:
        views.append(LiveView(options.pop("store", store), **{"authorize": holder} | options))
        return application(views[-1], token=TOKEN, hosts=hosts, secure=secure)

    yield make
    for view in views:
        await view.aclose()


@pytest.fixture
async def web(make: Any) -> AsyncIterator[Any]:
    """A client of the read-only view."""
    async with client(make()) as found:
        yield found


@pytest.fixture
async def writable(make: Any) -> AsyncIterator[Any]:
    """A client of a view that may change conversations."""
    async with client(make(read_only=False)) as found:
        yield found
