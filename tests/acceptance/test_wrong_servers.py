"""Servers that cannot be used, and foreign or corrupt keys: a named error, in bounded time."""

import logging
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from redis_history import AsyncHistoryStore, HistoryStore, RetryPolicy, errors, user
from redis_history.store.operations.keys import Keyspace
from tests.support.faces import FACES, open_store
from tests.support.proxy import accepted
from tests.support.servers import RealServer

BRIEF = RetryPolicy(deadline=0.2)


@contextmanager
def answering(answer: Any) -> Iterator[int]:
    """A server on loopback that answers each line with `answer(line)`."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                if reply := answer(line):
                    self.wfile.write(reply)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_client_of_the_other_kind_is_refused(server: RealServer) -> None:
    with pytest.raises(errors.ConfigurationError, match="asyncio"):
        HistoryStore(client=redis.asyncio.Redis())
    with pytest.raises(errors.ConfigurationError), server.client() as client:
        AsyncHistoryStore(client=client)
    with pytest.raises(errors.ConfigurationError), server.client() as client:
        HistoryStore("redis://localhost", client=client)


@pytest.mark.proves("named-errors")
def test_a_web_server() -> None:
    def answer(line: bytes) -> bytes:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"

    with (
        answering(answer) as port,
        HistoryStore(f"redis://127.0.0.1:{port}", retry=BRIEF) as store,
        pytest.raises(errors.UnsupportedServerError),
    ):
        store.append("c", user("x"))


@FACES
async def test_a_server_that_resets_connections(face: str) -> None:
    """The error says so in plain words, also after a first try that ended otherwise."""

    def reset_all() -> None:
        for number, connection in enumerate(accepted(listener)):
            connection.recv(1 << 16)
            if number:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        resetting = threading.Thread(target=reset_all)
        resetting.start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        try:
            async with open_store(face, url, retry=BRIEF) as store:
                with pytest.raises(errors.BackendUnavailableError, match=r"deadline: it closed the connection$"):
                    await store.get("c")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            resetting.join()


@FACES
async def test_a_server_that_waits_for_more_of_a_tls_handshake(face: str) -> None:
    """As Redis does at a port without TLS."""
    with answering(lambda line: None) as port:
        url = f"rediss://127.0.0.1:{port}?socket_connect_timeout=0.1"
        async with open_store(face, url, retry=BRIEF) as store:
            with pytest.raises(errors.BackendUnavailableError, match="TLS"):
                await store.append("c", user("x"))


def test_a_foreign_key(server: RealServer, namespace: str) -> None:
    keys = Keyspace(namespace).conversation("c")
    with server.client() as client, HistoryStore(server.url, namespace=namespace) as store:
        client.set(keys.messages, "foreign")
        with pytest.raises(errors.CorruptDataError):
            store.get("c")
        client.set(keys.state, "foreign")
        with pytest.raises(errors.CorruptDataError):
            store.append("c", user("x"))


@pytest.mark.proves("corrupt", "stored-text")
def test_a_corrupt_member_is_reported_and_the_rest_is_read(
    server: RealServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keyspace(namespace).conversation("c")
    hostile = [b"", b"\xc1", b"\x93\xcf", b"\x90" * 50_000, b"\x91" * 50_000, b"\xdf\xff\xff\xff\xff" * 10]
    with server.client() as client, HistoryStore(server.url, namespace=namespace) as store:
        store.append_many("c", [user(str(number), timestamp=number) for number in range(5)])
        for number, member in enumerate(hostile):
            client.zadd(keys.messages, {member: number * 1_000_000 - 1})
        with caplog.at_level(logging.ERROR, "redis_history"):
            assert [message.text for message in store.get("c")] == ["0", "1", "2", "3", "4"]
        assert len(caplog.records) == len(hostile)
        assert [message.text for message in store.iter("c", batch=2)] == ["0", "1", "2", "3", "4"]
        assert [message.text for message in store.get("c", limit=2)] == ["3", "4"]
        assert [message.text for message in store.get("c", since=2)] == ["3", "4"]


@pytest.mark.proves("corrupt")
def test_a_corrupt_entry_of_the_log_gives_a_reset(server: RealServer, namespace: str) -> None:
    keys = Keyspace(namespace).conversation("c")
    with server.client() as client, HistoryStore(server.url, namespace=namespace) as store:
        store.append("c", user("0"))
        cursor = store.snapshot("c").cursor
        store.append("c", user("1"))
        store.append_many("c", [user("2"), user("3")])
        client.lset(keys.log, 2, client.lindex(keys.log, 2)[:10] + b"\xc1")
        with store.subscribe("c", after=cursor) as changes:
            events = [changes.get(timeout=10) for _ in range(2)]
        assert [getattr(event, "reason", None) for event in events] == [None, "log_unreadable"]


#: Damaged values: no number, no text, no MessagePack, nested too deep, out of every range.
DAMAGES = (b"", b"\xc1", b"\x93\xcf", b"\x91" * 50_000, b"9" * 400, b"-1", b"nan", b"text")


@pytest.mark.full
def test_any_damaged_value_of_a_conversation_raises_an_error_of_the_package(server: RealServer, namespace: str) -> None:
    """Every field and every entry of the log in turn. Other conversations stay readable and listed."""
    keys = Keyspace(namespace).conversation("c")
    with server.client() as client, HistoryStore(server.url, namespace=namespace, retry=BRIEF) as store:
        store.append_many("other", [user("x"), user("y")])
        with store.run("c"):
            store.append("c", user("x"))
            store.update_conversation("c", title="t", user_id=5)
        cursor = store.snapshot("c").cursor
        store.update_conversation("c", metadata={"a": 1})
        before = {key: client.dump(key) for key in client.keys(Keyspace(namespace).patterns[0])}
        fields, entries = client.hkeys(keys.state), client.llen(keys.log)
        assert len(fields) > 10
        assert entries > 1
        calls: list[Callable[[], Any]] = [
            lambda: store.append("c", user("y")),
            lambda: store.update_conversation("c", title="u"),
            lambda: store.delete_messages("c", ["y"]),
            lambda: store.get("c"),
            lambda: store.get_conversation("c"),
            lambda: store.get_run("c"),
            lambda: store.snapshot("c"),
            lambda: list(store.log("c")),
            lambda: store.subscribe("c", after=cursor).close(),
            lambda: store.fork("c", new_id="copy"),
            lambda: store.clear("c"),
        ]
        for place in (*fields, *range(entries)):
            for damage in DAMAGES:
                if isinstance(place, bytes):
                    client.hset(keys.state, place, damage)
                else:
                    client.lset(keys.log, place, damage)
                listed = {one.conversation_id for one in store.list_conversations()}
                assert "other" in listed <= {"c", "other"}
                for call in calls:
                    # A damaged time looks like a clock that is ahead, and the call waits for it.
                    with suppress(errors.CorruptDataError, errors.ConflictError, errors.BackendUnavailableError):
                        call()
                assert len(store.get("other")) == 2
                for key in client.keys(Keyspace(namespace).patterns[0]):
                    client.delete(key)
                for key, value in before.items():
                    client.restore(key, 0, value)


def test_the_users_client_is_used_and_stays_open(server: RealServer, namespace: str) -> None:
    for options in ({}, {"decode_responses": True}, {"protocol": 2}, {"protocol": 3}):
        client: Any = redis.Redis(unix_socket_path=str(server.socket), **options)
        with HistoryStore(client=client, namespace=namespace) as store, store.subscribe("c") as subscription:
            appended = store.append("c", user("naïve"))
            assert store.get("c")[-1] == appended.message
            assert subscription.get(timeout=10) is not None
        assert client.ping()
        client.close()
