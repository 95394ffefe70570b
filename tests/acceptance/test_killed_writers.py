"""Writers are killed in the middle and started again from the beginning: each message is stored once."""

from __future__ import annotations

import random

import pytest

from redis_history import HistoryStore
from tests.support.forks import Forked, write_messages
from tests.support.servers import Start, wait_until


@pytest.mark.proves("dense")
def test_eight_writers_killed_at_random(own_server: Start, full: bool) -> None:
    server = own_server()
    writers, count, kills = 8, 1000 if full else 300, 30 if full else 6
    chance = random.Random(7)
    running = {str(index): Forked(write_messages, server.url, str(index), count) for index in range(writers)}
    with HistoryStore(server.url) as store:
        for kill in range(1, kills + 1):
            goal = kill * writers * count // (kills + 1)
            wait_until(lambda goal=goal: store.snapshot("c", limit=1).message_count >= goal, f"{goal} messages", 120)
            name = chance.choice(sorted(running))
            running[name].kill()
            running[name] = Forked(write_messages, server.url, name, count)
        for process in running.values():
            process.result(300)
        stored = list(store.iter("c", batch=1000))
        assert [message.sequence for message in stored] == list(range(1, writers * count + 1))
        wanted = {f"{index}-{number}" for index in range(writers) for number in range(count)}
        assert {message.id for message in stored} == wanted
        for index in range(writers):
            mine = [message.id for message in stored if message.id.startswith(f"{index}-")]
            assert mine == [f"{index}-{number}" for number in range(count)]
        assert store.snapshot("c", limit=1).cursor.revision == writers * count
