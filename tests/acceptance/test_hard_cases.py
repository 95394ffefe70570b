"""Regressions."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_history import AsyncHistoryStore, HistoryStore, MessagesAppended, Reset, RetryPolicy, user
from redis_history.backends.redis.keys import Keyspace
from redis_history.errors import BackendRefusedError
from tests.support.servers import RealServer, wait_until


async def test_a_subscriber_goes_on_behind_a_change_larger_than_one_read(server: RealServer, namespace: str) -> None:
    async with AsyncHistoryStore(server.url, namespace=namespace) as store, store.subscribe("c") as subscription:
        for number in range(3):
            await store.append("c", user(f"{number}" * 1_500_000))
            event = await subscription.get(timeout=10)
            assert event is not None
            assert (type(event), event.revision) == (MessagesAppended, number + 1)


async def test_a_lost_log_gives_one_reset(server: RealServer, namespace: str) -> None:
    """If only the log's key is gone, for example evicted, the newest cursor has missed nothing."""
    keys = Keyspace(namespace).conversation("c")
    async with AsyncHistoryStore(server.url, namespace=namespace, poll_interval=0.05) as store:
        await store.append("c", user("0"))
        async with store.subscribe("c") as subscription:
            old = (await store.snapshot("c")).cursor
            await store.append("c", user("1"))
            with server.client() as client:
                client.unlink(keys.log)
            event = await subscription.get(timeout=10)
            assert isinstance(event, Reset)
            assert (event.reason, event.revision) == ("log_trimmed", 2)
            assert await subscription.get(timeout=0.3) is None
            await store.append("c", user("2"))
            event = await subscription.get(timeout=10)
            assert event is not None
            assert event.revision == 3
        async with store.subscribe("c", after=old) as subscription:
            assert isinstance(await subscription.get(timeout=10), Reset)


def test_a_callback_goes_on_when_reading_was_refused_for_a_while(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    seen: list[int] = []
    errors: list[Exception] = []

    def on_error(error: Exception, event: Any) -> None:
        errors.append(error)
        raise ValueError("reporting fails as well")

    url = f"unix://app:secret@{server.socket}"
    with HistoryStore(url, poll_interval=0.05) as reader, HistoryStore(server.url) as writer:
        reader.on_change("c", lambda event: seen.append(event.revision), on_error=on_error)
        writer.append("c", user("0"))
        wait_until(lambda: seen == [1], "the first change")
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "app", "-evalsha", "-eval")
            writer.append("c", user("1"))
            wait_until(lambda: errors, "the refusal to be told")
            client.execute_command("ACL", "SETUSER", "app", "+evalsha", "+eval")
        wait_until(lambda: seen == [1, 2], "the change after it")
    assert isinstance(errors[0], BackendRefusedError)


def test_a_doorbell_without_the_right_to_listen_warns_once(
    own_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = own_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-subscribe")
    caplog.set_level(logging.WARNING, "redis_history")
    url = f"unix://app:secret@{server.socket}"
    with HistoryStore(url, poll_interval=0.05) as store, store.subscribe("c") as subscription:
        for number in range(3):
            store.append("c", user(str(number)))
            event = subscription.get(timeout=10)
            assert event is not None
            assert event.revision == number + 1
        wait_until(lambda: "subscribe" in caplog.text.lower(), "the warning")
    assert len(caplog.records) == 1


def test_the_flag_is_set_again_after_a_silent_reconnect(own_server: Callable[..., RealServer]) -> None:
    """redis-py connects a user's client anew by itself; a restarted server has forgotten the setting."""
    server = own_server(options=("--appendfsync", "always"))
    client: Any = redis.Redis(unix_socket_path=str(server.socket))
    retry = RetryPolicy(deadline=20)
    with HistoryStore(client=client, poll_interval=1.0, retry=retry) as store, store.subscribe("c") as subscription:
        store.append("c", user("0"))
        assert subscription.get(timeout=10) is not None
        server.kill()
        server.start()
        store.append("c", user("1"))
        assert subscription.get(timeout=10) is not None

        def flag() -> bool:
            with server.client() as other:
                return "K" in other.config_get("notify-keyspace-events")["notify-keyspace-events"]

        wait_until(flag, "the flag")
    client.close()


def test_a_forked_child_has_a_doorbell_of_its_own(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with HistoryStore(server.url, poll_interval=60.0) as store, store.subscribe("c") as subscription:
        store.append("c", user("0"))
        assert subscription.get(timeout=10) is not None
        # Quiet for so long that only a doorbell can bring the next change in time.
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with store.subscribe("c") as own:
                    os.write(write, b"ready")
                    event = own.get(timeout=10)
                    os.write(write, b"-%d" % (event.revision if event else 0))
            finally:
                os._exit(0)
        assert os.read(read, 5) == b"ready"
        store.append("c", user("1"))
        assert os.read(read, 5) == b"-2"
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
        event = subscription.get(timeout=10)
        assert event is not None
        assert event.revision == 2
