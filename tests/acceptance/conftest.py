"""Stores and commands on the real server of the session, each in its own namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, HistoryStore
from tests.support.commands import Done, run
from tests.support.servers import RealServer


@pytest.fixture
def store(server: RealServer, namespace: str) -> Iterator[HistoryStore]:
    with HistoryStore(server.url, namespace=namespace) as made:
        yield made


@pytest.fixture
async def async_store(server: RealServer, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    async with AsyncHistoryStore(server.url, namespace=namespace) as made:
        yield made


@pytest.fixture
def where(server: RealServer, namespace: str) -> tuple[str, ...]:
    return ("--url", server.url, "--namespace", namespace)


@pytest.fixture
def on(where: tuple[str, ...]) -> Any:
    """Runs a command on the conversations of this test."""

    def on(*arguments: str, **options: Any) -> Done:
        return run(*where, *arguments, **options)

    return on
