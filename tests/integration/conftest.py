"""Stores for the adapters of frameworks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from redis_history import AsyncHistoryStore, HistoryStore
from tests.support.servers import RealServer


@pytest.fixture
def store(server: RealServer, namespace: str) -> Iterator[HistoryStore]:
    with HistoryStore(server.url, namespace=namespace) as made:
        yield made


@pytest.fixture
async def async_store(server: RealServer, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    async with AsyncHistoryStore(server.url, namespace=namespace) as made:
        yield made
