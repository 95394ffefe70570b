"""Expired conversations leave nothing behind, even if others stay or no client runs."""

from __future__ import annotations

import pytest

from redis_history import HistoryStore, user
from tests.support.servers import RealServer, Start, wait_until


def test_one_that_lives_on_does_not_keep_the_others(server: RealServer, namespace: str) -> None:
    with (
        HistoryStore(server.url, namespace=namespace, ttl=0.3) as mortal,
        HistoryStore(server.url, namespace=namespace) as immortal,
    ):
        for number in range(70):  # more than there are buckets, so some share one
            mortal.append(f"mortal {number}", user("x"))
            immortal.append(f"lasting {number}", user("x"))
        wait_until(lambda: immortal.get("mortal 69") == [], "the mortal ones to end")
        wanted = sorted(f"lasting {number}" for number in range(70))
        for _ in range(2):
            assert sorted(one.conversation_id for one in immortal.list_conversations(limit=1000)) == wanted


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
