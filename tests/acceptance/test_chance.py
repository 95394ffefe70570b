"""The generator of the module `random` is the program's: what its seed gives is not used up here."""

from __future__ import annotations

from typing import Any

import pytest

from redis_history import HistoryStore, RetryPolicy, user
from redis_history.errors import BackendUnavailableError
from tests.support.chance import untouched
from tests.support.servers import free_port


def test_calls_that_are_repeated() -> None:
    told: list[Any] = []
    patient = RetryPolicy(deadline=1.0, on_retry=told.append)
    with (
        untouched(),
        HistoryStore(f"redis://127.0.0.1:{free_port()}", retry=patient) as store,
        pytest.raises(BackendUnavailableError),
    ):
        store.append("c", user("x"))
    assert len({details.wait_for for details in told}) > 2, "the waits are random"
