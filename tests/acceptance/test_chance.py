"""The generator of the module `random` is the program's: what its seed gives is not used up here."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from redis_history import Compressor, HistoryStore, RetryPolicy, user
from redis_history.errors import BackendUnavailableError
from tests.support.chance import untouched
from tests.support.servers import RealServer, free_port, wait_until


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


def test_changes_and_who_hears_of_them(server: RealServer, namespace: str) -> None:
    seen: list[Any] = []
    with untouched(), HistoryStore(server.url, namespace=namespace, poll_interval=0.05) as store:
        store.on_change("c", seen.append)
        store.append("c", user("x"))
        wait_until(lambda: len(seen) == 1, "the event")
        assert len(store.list_conversations()) == 1


def test_a_compressor_whose_work_fails() -> None:
    def failing(*_: Any) -> str:
        raise RuntimeError("no summary today")

    with untouched(), HistoryStore("memory://") as store:
        for name in "ab":
            store.append_many(name, [user(f"{number}") for number in range(40)])
        compressor = Compressor(store, failing, max_messages=20, first_wait=0.05, sweep_interval=0.05)
        thread = threading.Thread(target=compressor.run)
        thread.start()
        try:
            wait_until(lambda: compressor.stats.failed > 3, "it to have failed repeatedly")
        finally:
            compressor.stop()
            thread.join()
