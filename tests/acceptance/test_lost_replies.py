"""Replies of writes are lost, late or cancelled: each message is stored once, and the caller learns what is known."""

import asyncio
import time
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError

from redis_history import AsyncHistoryStore, HistoryStore, RetryPolicy, user
from redis_history.errors import BackendUnavailableError, OutcomeUnknownError
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start
from tests.support.wire import SECOND


@pytest.mark.proves("unknown-outcome")
def test_a_late_retry_raises_outcome_unknown(server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store:
        store.append("c", user("a", id="a"))
        backend: Any = store._backend
        node = backend._server.node
        node.clock.learn(int(time.time() * SECOND) - 200 * SECOND)
        store.delete_messages("c", ["z"])  # its only copy was refused as late, and is sent with a later time
        pipeline = node.pipeline

        def lost(commands: Any, **options: Any) -> None:
            node.pipeline = pipeline
            raise ConnectionError("nobody knows how much of it was sent")

        node.clock.learn(int(time.time() * SECOND) - 200 * SECOND)
        node.pipeline = lost
        with pytest.raises(OutcomeUnknownError):
            store.delete_messages("c", ["a"])
        assert [message.id for message in store.get("c")] == ["a"]


def test_a_write_that_was_never_sent_raises_backend_unavailable(own_server: Start) -> None:
    server = own_server(tcp=True)
    with HistoryStore(server.url, search="off", retry=RetryPolicy(deadline=0.3)) as store:
        server.kill()
        with pytest.raises(BackendUnavailableError) as caught:
            store.clear("c")
        assert not isinstance(caught.value, OutcomeUnknownError)


def test_a_write_without_a_connection_raises_backend_unavailable(own_server: Start) -> None:
    """As behind a load balancer without a server, which accepts connections and closes them."""
    proxy = LossyProxy(own_server(tcp=True).port)
    with HistoryStore(f"redis://127.0.0.1:{proxy.port}/0", search="off", retry=RetryPolicy(deadline=0.3)) as store:
        store.append("c", user("x"))
        proxy.refuse()
        with pytest.raises(BackendUnavailableError) as caught:
            store.append("c", user("y"))
        assert not isinstance(caught.value, OutcomeUnknownError)
    proxy.close()


def test_a_write_that_waited_for_a_connection_in_vain_raises_backend_unavailable(own_server: Start) -> None:
    pool = redis.BlockingConnectionPool.from_url(own_server().url, max_connections=1, timeout=0.1)
    with redis.Redis(connection_pool=pool) as client:
        store = HistoryStore(client=client, search="off", retry=RetryPolicy(deadline=0.3))
        store.append("c", user("x"))
        taken = pool.get_connection()
        with pytest.raises(BackendUnavailableError) as caught:
            store.append("c", user("y"))
        assert not isinstance(caught.value, OutcomeUnknownError)
        pool.release(taken)
        store.close()
        pool.disconnect()


@pytest.mark.proves("at-most-once")
@pytest.mark.parametrize("reply", ["LOADING Redis is loading the dataset in memory", "NOAUTH Authentication required."])
async def test_an_error_reply_concerns_only_its_own_call(server: RealServer, namespace: str, reply: str) -> None:
    """Not the other calls of the pipeline, although redis-py raises these errors like those of a lost connection."""
    fails = [b"EVAL", f"return redis.error_reply('{reply}')".encode(), b"0"]
    async with AsyncHistoryStore(server.url, namespace=namespace, retry=RetryPolicy(deadline=0)) as store:
        await store.append("c", user("first"))
        backend: Any = store._backend
        failing = [backend._server.node.execute(fails, writes=True) for _ in range(4)]
        writing = [store.append("c", user(str(number))) for number in range(20)]
        outcomes = await asyncio.gather(*writing[:10], *failing, *writing[10:], return_exceptions=True)
        failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert [str(error) for error in failed] == [reply.partition(" ")[2]] * 4
        assert len(await store.get("c")) == 21


@pytest.mark.proves("stored-once")
def test_one_reply_in_five_is_lost_and_each_message_is_stored_once(own_server: Start, full: bool) -> None:
    count = 1000 if full else 300
    server = own_server(tcp=True)
    proxy = LossyProxy(server.port, loss=0.2)
    patient = RetryPolicy(deadline=30.0, first_wait=0.001, longest_wait=0.01)
    with HistoryStore(f"redis://127.0.0.1:{proxy.port}/0", retry=patient) as store:
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
