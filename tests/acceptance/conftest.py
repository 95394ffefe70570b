"""Commands on the real server of the session, each in its own namespace."""

from typing import Any

import pytest

from tests.support.commands import Done, run
from tests.support.servers import RealServer


@pytest.fixture
def where(server: RealServer, namespace: str) -> tuple[str, ...]:
    return ("--url", server.url, "--namespace", namespace)


@pytest.fixture
def on(where: tuple[str, ...]) -> Any:
    """Runs a command on the conversations of this test."""

    def on(*arguments: str, **options: Any) -> Done:
        return run(*where, *arguments, **options)

    return on
