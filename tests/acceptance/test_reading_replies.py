"""What becomes of a call, and of its connection, whatever the server replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio.connection import ConnectionPool as RedisPool
from redis.exceptions import BusyLoadingError, ConnectionError, InvalidResponse, ResponseError, TimeoutError

from redis_history import AsyncHistoryStore, user
from redis_history._async import _connections
from redis_history._async._connections import ConnectionPool
from redis_history.backends.redis.resp import NEED_MORE, ReplyReader
from tests.support.servers import RealServer

PING = b"*1\r\n$4\r\nPING\r\n"
SILENCE = b""


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[int]:
    """A server that answers PING with these bytes, and hangs up then; with SILENCE at the end it waits."""
    talks: set[Any] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        commands = ReplyReader(Exception)  # they have the form of replies
        with_rest = True
        while with_rest and (data := await reader.read(4096)):
            commands.feed(data)
            while (command := commands.take()) is not NEED_MORE:
                if command != [b"PING"]:
                    writer.write(b"+OK\r\n")
                    continue
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                with_rest = pieces[-1] == SILENCE
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*talks)


@pytest.mark.parametrize(
    ("pieces", "wanted", "kept"),
    [
        ((b"+PO", b"NG\r\n", SILENCE), b"PONG", True),
        ((b">2\r\n$7\r\nmessage\r\n:1\r\n+PONG\r\n", SILENCE), b"PONG", True),
        ((b"-ERR no\r\n", SILENCE), ResponseError, True),
        ((b"+PONG\r\n+PONG\r\n", SILENCE), b"PONG", False),
        ((b"+PONG\r\n>2\r\n$7\r\nmess", SILENCE), b"PONG", False),
        ((b"-LOADING\r\n", SILENCE), BusyLoadingError, False),
        ((b"$x\r\n", SILENCE), InvalidResponse, False),
        ((b"*2\r\n:1\r\n", SILENCE), TimeoutError, False),
        ((b"*2\r\n:1\r\n",), ConnectionError, False),
    ],
)
async def test_a_connection_is_kept_only_after_exactly_one_reply(
    pieces: tuple[bytes, ...], wanted: Any, kept: bool
) -> None:
    async with answering(*pieces) as port:
        url = f"redis://127.0.0.1:{port}?protocol=2"
        pool = ConnectionPool(lambda: RedisPool.from_url(url, socket_timeout=0.2), keep=True)
        connection = await pool.acquire()
        await pool.send(connection, PING)
        if isinstance(wanted, bytes):
            assert await pool.read(connection) == wanted
            await pool.release(connection)
        else:
            with pytest.raises(wanted) as caught:
                await pool.read(connection)
            assert caught.type is wanted
            await (pool.release if kept else pool.discard)(connection)
        assert connection.is_connected is kept
        await pool.aclose()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("ours", [True, False])
async def test_stores_with_either_parser(
    server: RealServer, namespace: str, monkeypatch: pytest.MonkeyPatch, protocol: int, ours: bool
) -> None:
    if not ours:  # as if hiredis were installed
        monkeypatch.setattr(_connections, "_SLOW", ())
    separator = "&" if "?" in server.url else "?"
    async with AsyncHistoryStore(f"{server.url}{separator}protocol={protocol}", namespace=namespace) as store:
        appended = await store.append_many("c", [user("x" * 1000) for _ in range(1000)])
        assert await store.get("c", limit=1000) == [item.message for item in appended]
        await store.append("d", user("y" * 500_000))
        assert (await store.get("d"))[0].text == "y" * 500_000
