"""Replies get lost; nothing is stored twice, nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, HistoryStore, RetryPolicy, requests, user
from redis_history.backends.redis.calls import Attempt
from redis_history.errors import MessageConflictError
from tests.support.faces import open_store
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start
from tests.support.steps import first_call

# With the usual fsync once a second a killed server may lose the last writes.
ALWAYS = ("--appendfsync", "always")
PATIENT = RetryPolicy(deadline=30.0, first_wait=0.001, longest_wait=0.01)


@pytest.mark.proves("stored-once")
def test_one_reply_in_five_is_lost_and_each_message_is_stored_once(own_server: Start, full: bool) -> None:
    count = 1000 if full else 300
    server = own_server(tcp=True)
    proxy = LossyProxy(server.port, loss=0.2)
    with HistoryStore(f"redis://127.0.0.1:{proxy.port}/0", retry=PATIENT) as store:
        appended = [store.append("c", user(str(number))) for number in range(count)]
    proxy.close()
    assert proxy.dropped > count / 6
    assert not any(item.duplicate for item in appended), "an earlier try of the same call is not a duplicate"
    with HistoryStore(server.url) as store:
        stored = store.get("c")
        assert stored == [item.message for item in appended]
        assert [message.sequence for message in stored] == list(range(1, count + 1))
        assert [message.text for message in stored] == [str(number) for number in range(count)]
        assert store.snapshot("c").cursor.revision == count


@pytest.mark.proves("threads")
async def test_a_cancelled_append_leaves_the_connection_in_order(server: RealServer, namespace: str) -> None:
    """The reply of a cancelled call must not be taken for that of the next one."""
    async with AsyncHistoryStore(server.url, namespace=namespace) as store:
        await store.append("c", user("0"))
        for number in range(200):
            task = asyncio.create_task(store.append("c", user(f"cancelled {number}", id=f"m{number}")))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            kept = await store.append("c", user(f"cancelled {number}", id=f"m{number}"))
            assert kept.message.id == f"m{number}"
        assert [message.id for message in (await store.get("c"))[1:]] == [f"m{number}" for number in range(200)]


@pytest.mark.proves("retries")
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_server_that_is_away_for_a_moment_is_waited_for(own_server: Start, face: str) -> None:
    server = own_server(options=ALWAYS)
    async with open_store(face, server.url, retry=RetryPolicy(deadline=20.0, longest_wait=0.05)) as store:
        await store.append("c", user("before"))
        server.kill()
        waiting = asyncio.create_task(store.append("c", user("during")))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        await asyncio.to_thread(server.start)
        await waiting
        await store.append("c", user("after"))
        assert [message.text for message in await store.get("c")] == ["before", "during", "after"]


@pytest.mark.proves("at-most-once")
def test_a_message_that_was_changed_before_its_append_is_repeated(server: RealServer, namespace: str) -> None:
    """The reply of an append is lost, and the message is edited before the retry: that is not a conflict."""
    with HistoryStore(server.url, namespace=namespace) as store:
        backend: Any = store._backend
        with server.client() as client:
            sent = 1_000_000 * int(client.time()[0])
        op = requests.append_one("c", user("x", id="m"))
        [first] = backend.execute(op)
        store.update_message("c", user("edited", id="m"))
        call = first_call(op, backend._settings)
        attempt = Attempt()
        attempt.uncertain = True
        attempt.sent = sent
        assert call.decode(backend._reply(call, attempt)) == [first]
        with pytest.raises(MessageConflictError):
            store.append("c", user("x", id="m"))
        assert [message.text for message in store.get("c")] == ["edited"]
