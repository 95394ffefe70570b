"""Indexes on the worker's server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.search.index import Index
from tests.support.servers import RealServer


@pytest.fixture
def make_index(server: RealServer) -> Iterator[Callable[..., Index]]:
    """Makes empty indexes, each with documents of its own."""
    with server.client() as client:
        made: list[Index] = []

        def make(**options: Any) -> Index:
            made.append(Index(client, **options))
            return made[-1]

        yield make
        for index in made:
            index.drop()


@pytest.fixture
def index(make_index: Callable[..., Index]) -> Index:
    return make_index()
