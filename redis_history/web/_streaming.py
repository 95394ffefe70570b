"""A response of server-sent events.

sse-starlette would be a dependency for less than this: it replaces a method of uvicorn's server for the whole process,
with a flag that nothing takes back, leaves a task behind that looks every half second, and makes four tasks for each
client; what it formats is formatted here once for all clients, and its pings come from the ring as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["EventStream"]

#: The first that is sent: now the client knows that it is connected; and after how many milliseconds to come again.
_OPENING: Final = b"retry: 2000\n: open\n\n"


class EventStream(Response):
    """Sends what `chunks` yields until it ends, the client leaves, or it has taken nothing for `patience` seconds."""

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], *, patience: float, when_over: Callable[[], object]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"})
        self._chunks, self._patience, self._when_over = chunks, patience, when_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await self._stream(receive, send)
        finally:
            self._when_over()
            await self._chunks.aclose()

    async def _stream(self, receive: Receive, send: Send) -> None:
        tasks = [asyncio.ensure_future(self._send_all(send)), asyncio.ensure_future(_left(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], TimeoutError | OSError):
            raise outcomes[0]

    async def _send_all(self, send: Send) -> None:
        await self._send(send, _OPENING)
        async for chunk in self._chunks:
            await self._send(send, chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, chunk: bytes) -> None:
        async with asyncio.timeout(self._patience):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
