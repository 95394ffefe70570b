"""Prompts from a real server."""

import pytest

from redis_history import HistoryStore, assemble_prompt, user
from tests.support.servers import Start


@pytest.mark.proves("prompts")
def test_a_prompt_is_one_read(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client, server.client() as other:
        store.append_many("c", [user(str(n), scope="dm") for n in range(600)])
        other.ping()
        seen = []
        with client.monitor() as monitor:
            assemble_prompt(store, "c", "a", "A", {"max_turns_to_load": 600}, lambda messages, previous: "summary")
            assemble_prompt(store, "c", "a", "A", {"scope": "dm"})
            other.echo("that was it")
            for command in monitor.listen():
                seen.append(command["command"].split()[0])
                if seen[-1] == "ECHO":
                    break
    assert seen == ["ZRANGE", "ZRANGE", "ECHO"]
