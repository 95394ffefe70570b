"""Expired conversations leave nothing behind, even if no client runs."""

from __future__ import annotations

import pytest

from redis_history import HistoryStore, user
from tests.support.servers import Start, wait_until


@pytest.mark.proves("ttl")
def test_nothing_is_left_when_nobody_runs(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url, ttl=1) as store:
        for number in range(100):
            store.append_many(f"c{number}", [user(str(index)) for index in range(5)])
    with server.client() as client:
        keys = {what: len(list(client.scan_iter(match=what, count=1000))) for what in ("rh2:*}:c", "rhd2:*")}
        assert keys["rhd2:*"] == 100 * 5, "a search document of each message"
        assert client.dbsize() == 100 * 3 + sum(keys.values())
        # The server deletes by itself, without being asked for the keys.
        wait_until(lambda: client.dbsize() == 0, "the server to be empty")
