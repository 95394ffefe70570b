"""Limits the connections of a web server that this package runs, and the time that a client may take."""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

#: Seconds in which a request must be complete, and in which a client must accept what is sent to it.
_PATIENCE: Final = 15.0
#: File descriptors for everything but clients: listeners, connections to Redis, files.
_RESERVED: Final = 128
_MOST: Final = 10_000
#: Connections that are accepted before this program looks at them. The reserve has room for two such rounds, because a
#: connection that another one replaces is closed in the next round.
BACKLOG: Final = 32


class _Connection:
    """A connection of a client. It is aborted when the time runs out that was given for the present step."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.requests = 0  # more than one if the client did not wait for a response
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, patience: float | None) -> None:
        """Give the client `patience` seconds from now; None: all the time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (patience and asyncio.get_running_loop().call_later(patience, self.transport.abort)) or None


class ConnectionLimit:
    """An ASGI application that runs another one behind limits.

    A connection is aborted if its request is not complete within 15 seconds, or if its client accepts nothing of a
    response for as long. When file descriptors become scarce, a new connection replaces the oldest connection that
    waits without a request; so connections without a token keep nobody out. Pass `protocol` to uvicorn as `http`.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._limit = max(16, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED))
        #: By the address of the client.
        self._open: dict[Any, _Connection] = {}
        #: Those without a request, the first of them first.
        self._waiting: dict[Any, _Connection] = {}

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        from uvicorn.protocols.http.auto import AutoHTTPProtocol

        limit = self

        class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                limit._opened(transport)
                self._address = _address(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                limit._closed(self._address)

        return Protocol

    def _opened(self, transport: asyncio.Transport) -> None:
        if len(self._open) >= self._limit:
            longest = next(iter(self._waiting), None)
            (transport if longest is None else self._waiting.pop(longest).transport).abort()
        address = _address(transport)
        self._open[address] = connection = _Connection(transport)
        self._wait_for_request(address, connection)

    def _closed(self, address: Any) -> None:
        self._waiting.pop(address, None)
        if connection := self._open.pop(address, None):
            connection.expect(None)

    def _wait_for_request(self, address: Any, connection: _Connection) -> None:
        self._waiting[address] = connection
        connection.expect(_PATIENCE)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        address = scope.get("client") and tuple(scope["client"])
        connection = self._open.get(address)
        if connection is None:  # no request, or its connection has gone
            await self._app(scope, receive, send)
            return
        self._waiting.pop(address, None)
        connection.requests += 1
        complete = False

        async def receive_in_time() -> Any:
            nonlocal complete
            message = await receive()
            if not complete and not message.get("more_body", False):
                complete = True
                connection.expect(None)
            return message

        async def send_in_time(message: Any) -> None:
            connection.expect(_PATIENCE)
            await send(message)
            connection.expect(None)

        try:
            await self._app(scope, receive_in_time, send_in_time)
        finally:
            connection.requests -= 1
            if not connection.requests and address in self._open:
                self._wait_for_request(address, connection)


def _address(transport: asyncio.Transport) -> Any:
    return tuple(transport.get_extra_info("peername")[:2])
