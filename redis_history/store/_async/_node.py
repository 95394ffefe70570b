"""A server of Redis, and the clients of redis-py that talk to it."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakSet

from hiredis import pack_command
from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    MovedError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from redis_history.store._async._runtime import Lanes, Request, begin_again, drop_client, socket_timeout, time_limit
from redis_history.store.lanes import EXCHANGES, Kind, kind_of
from redis_history.store.leases import Contact
from redis_history.store.operations.failures import is_read_only, is_transient, not_executed
from redis_history.store.operations.settings import ServerClock

#: The error of calls whose connections are closed while they use them.
CLOSED: Final = "the connections were closed"
#: The version of RESP, unless a URL says otherwise. With 3, redis-py asks each new connection for notifications of
#: maintenance, which calls that are retried anyway do not need.
PROTOCOL: Final = 2


def client_of(pool: Any, settings: dict[str, Any], connected: Any) -> Redis:
    """A client with a separate pool, whose connections are made as `pool` would make them with these settings. Each
    new connection awaits `connected`."""
    own = {"redis_connect_func": connected, "socket_timeout": socket_timeout(settings.get("socket_timeout"))}
    return Redis(
        connection_pool=ConnectionPool(
            connection_class=pool.connection_class, max_connections=pool.max_connections, **(settings | own)
        )
    )


def _copy(failure: Exception) -> Exception:
    """A copy of an exception that several calls raise, because each raise adds to the traceback."""
    own = copy.copy(failure).with_traceback(failure.__traceback__)
    # As the cause, because a raise while another error is handled replaces the context.
    own.__cause__ = failure.__cause__ or failure.__context__
    return own


def _answer(request: Request, replies: list[Any]) -> None:
    """Give a request its replies, or the error of a server that is loading or wants a password."""
    failure: Exception | None = next((reply for reply in replies if isinstance(reply, ConnectionError)), None)
    if failure is None:
        request.answer(replies)
        return
    failure = _copy(failure)  # of the confirmation, it is the error of several requests
    request.fail(not_executed(failure) if all(isinstance(reply, Exception) for reply in replies) else failure)


class AsyncNode:
    """A server. Sends commands through clients of redis-py, and knows the server's time.

    `make` returns a new client, one for each lane. Its argument is the function that each new connection awaits.
    `timeout` limits an exchange, in seconds. Without these, all lanes use the `client` of the user.
    """

    def __init__(
        self,
        *,
        make: Callable[[Any], Redis] | None = None,
        timeout: float | None = None,
        client: Redis | None = None,
    ) -> None:
        self.timeout = timeout
        self.clock = ServerClock()
        self.contact = Contact()
        #: Whether the server notifies subscribers, or the scripts publish, and whether it can confirm writes, as far as
        #: is known.
        self.announces = self.confirms = False
        #: Raised when a connection was lost: then all others are closed before they are used again, because they may
        #: lead to the same replica, or behind Sentinels to a former primary.
        self.losses = 0
        self._make = make
        self._clients: list[Redis] = []
        self._address: tuple[Any, Any] | None = None
        self._connections: WeakSet[Any] = WeakSet()
        self._closed = False
        self.client = self._new_client() if client is None else client
        pool = self.client.connection_pool
        self.database = int(pool.connection_kwargs.get("db") or 0)
        connect_timeout = pool.connection_kwargs.get("socket_connect_timeout")
        #: Seconds for a new connection and its handshake: a server that hangs accepts connections, too, and redis-py
        #: limits the handshake only by `socket_timeout`.
        self.connect_timeout = None if timeout is None or connect_timeout is None else timeout + connect_timeout
        direct = make is not None
        self._lanes = {kind: Lanes(self._new_lane, kind, direct=direct) for kind in EXCHANGES}

    async def execute(self, words: Sequence[bytes], *, writes: bool = False) -> Any:
        """The reply to a command. Raises errors of redis-py."""
        (reply,) = await self.pipeline([words], writes=writes)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def pipeline(
        self, commands: Sequence[Sequence[bytes]], *, writes: bool = False, confirm: Sequence[bytes] | None = None
    ) -> list[Any]:
        """The replies to several commands in one round trip, on one connection; errors are values. `confirm` is a
        command that confirms them, which other requests may share. Its reply comes last."""
        size = sum(sum(map(len, words)) for words in commands)
        kind: Kind = kind_of(size, writes=writes, confirmed=confirm is not None)
        replies: list[Any] = await self._lanes[kind].send(Request(commands, confirm, size))
        return replies

    async def time(self) -> int:
        """Ask for the server's time, in microseconds."""
        seconds, microseconds = await self.execute([b"TIME"], writes=True)
        now = int(seconds) * 1_000_000 + int(microseconds)
        self.clock.learn(now)
        return now

    async def disconnect(self) -> None:
        """Close idle connections."""
        for client in [*self._clients] or [self.client]:
            await client.connection_pool.disconnect(inuse_connections=False)

    async def aclose(self) -> None:
        """Close all connections of clients that the store made. Calls that use one end with a ConnectionError."""
        self._closed = self._make is not None
        for client in [*self._clients]:
            await client.connection_pool.disconnect()
        for lanes in self._lanes.values():
            await lanes.aclose()

    # For lanes

    @property
    def is_closed(self) -> bool:
        return self._closed

    def forget(self) -> None:
        """Note that a connection was lost or made: the address may now belong to another or a restarted server."""
        self.clock.forget()
        self.announces = self.confirms = False

    def lost(self) -> None:
        """Note that a connection failed, or leads to a server that must no longer be used."""
        self.losses += 1
        self.forget()

    async def _connected(self, connection: Any) -> None:
        """Run redis-py's own setup of a new connection."""
        await connection.on_connect()
        address = (getattr(connection, "host", None), getattr(connection, "port", None))
        if address != self._address:  # behind Sentinels, another server has become the primary
            if self._address is not None:
                self.losses += 1
            self._address = address
        if connection in self._connections or not self.clock.is_near:
            self.forget()
        # Otherwise it is the first connection of a lane, to a server that has just answered on another connection.
        self._connections.add(connection)

    @property
    def owns_clients(self) -> bool:
        """Whether this node made its clients. Otherwise all lanes use the client of the user."""
        return self._make is not None

    def another_client(self, former: Redis) -> Redis:
        """A new client that replaces a client of this node."""
        if former in self._clients:  # not if an interrupt came after this step the last time
            self._clients.remove(former)
        return self._new_client()

    def _new_client(self) -> Redis:
        assert self._make is not None  # noqa: S101
        client = self._make(self._connected)
        self._clients.append(client)
        return client

    def _new_lane(self) -> AsyncLane:
        return AsyncLane(self, self.client if self._make is None else self._new_client())


class AsyncLane:
    """A client of redis-py that makes one exchange at a time."""

    def __init__(self, node: AsyncNode, client: Redis) -> None:
        self._node = node
        self._client = client
        self._losses = node.losses
        self._unfinished = False

    async def exchange(self, requests: list[Request]) -> None:
        """Send requests in one pipeline, and answer them. An error fails all of them. It is also raised if it is not
        an Exception, such as KeyboardInterrupt."""
        node = self._node
        try:
            if node.is_closed:
                raise ConnectionError(CLOSED)
            if self._unfinished:
                await self._begin_anew()
            elif self._losses != node.losses:
                await self._client.connection_pool.disconnect(inuse_connections=False)
            self._losses = node.losses
            self._unfinished = True
            replies = await self._replies(requests)
            self._unfinished = False
        except BaseException as error:
            if isinstance(error, Exception):  # an interrupt does not mean that the server failed
                node.lost()
                if not isinstance(error, ResponseError):
                    node.contact.failed()
            failure = self._failure(error)
            for request in requests:
                request.fail(_copy(failure))
            if not isinstance(error, Exception):
                raise
        else:
            node.clock.heard()
            if not all(isinstance(reply, Exception) for reply in replies):  # a loading server rejects everything
                node.contact.heard()
            for request in requests:
                count = len(request.commands)
                own, replies = replies[:count], replies[count:]
                _answer(request, own if request.confirm is None else [*own, replies[-1]])

    def _failure(self, error: BaseException) -> Exception:
        """The error of the calls of an exchange. redis-py raises all kinds of errors when a connection is closed, or
        its transport is closing."""
        failure: Exception
        if self._node.is_closed:
            failure = ConnectionError(CLOSED)
        elif isinstance(error, builtins.TimeoutError):  # of the time limit
            failure = TimeoutError("Timeout reading from socket")
        elif isinstance(error, RedisError | OSError):
            return error
        else:
            failure = ConnectionError(f"the exchange failed: {error!r}")
        failure.__cause__ = error
        return failure

    async def _begin_anew(self) -> None:
        """Abandon all former connections. An interrupt can leave a connection with a pending reply or in the middle of
        its handshake, and redis-py's pool with a lock that is never released."""
        former = self._client
        if self._node.owns_clients:
            await drop_client(former)
            self._client = self._node.another_client(former)
        else:
            await former.connection_pool.disconnect(inuse_connections=False)

    async def _replies(self, requests: list[Request]) -> list[Any]:
        commands = [words for request in requests for words in request.commands]
        if (confirm := requests[0].confirm) is not None:
            commands.append(confirm)
        # A pipeline of redis-py does the same, but packs commands in Python, which takes a quarter of an append.
        packed = [pack_command(tuple(words)) for words in commands]
        replies: list[Any] = []
        pool = self._client.connection_pool
        try:
            async with time_limit(self._node.connect_timeout):
                connection = await pool.get_connection()
        except builtins.TimeoutError:
            raise not_executed(TimeoutError("Timeout connecting to server")) from None
        except (RedisError, OSError) as error:
            not_executed(error)
            raise
        try:
            async with time_limit(self._node.timeout) as limit:
                await connection.send_packed_command(packed)
                for _ in commands:
                    if replies:
                        begin_again(limit, self._node.timeout)
                    try:
                        reply = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
                    except ResponseError as error:
                        self._note(error)
                        reply = error
                    except (AuthenticationError, BusyLoadingError) as error:  # to redis-py, a lost connection
                        self._node.lost()
                        reply = error
                    replies.append(reply)
            return replies
        finally:
            if len(replies) < len(commands):  # others may get it from the pool of a user's client
                await connection.disconnect(nowait=True)
            await pool.release(connection)
            if self._node.is_closed:  # closed since the check, and this connection may be new
                await pool.disconnect()

    def _note(self, error: ResponseError) -> None:
        if is_read_only(error):
            self._node.lost()
            self._node.contact.taken_over()
        elif isinstance(error, MovedError) or is_transient(error):
            self._node.forget()
