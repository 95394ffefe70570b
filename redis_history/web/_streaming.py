"""A response with server-sent events.

Does not use sse-starlette. That package replaces a method of uvicorn's server for the whole process, with a flag that
is never reset; leaves behind a task that polls every half second; and creates four tasks for each client. Here each
event is formatted once for all clients, and heartbeats come from the ring.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncGenerator, Callable
from types import FrameType
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["EndSignals", "EventStream"]

#: Sent first: sets the milliseconds before a reconnect, and shows the client that it is connected.
_OPENING: Final = b"retry: 2000\n: open\n\n"


class EventStream(Response):
    """Sends `chunks` until they end, the client disconnects, or it accepts no data for `patience` seconds."""

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


class EndSignals:
    """Calls `end` in the event loop when the process gets SIGINT or SIGTERM, and then the signal's former handler.

    A server such as uvicorn waits until open streams have ended, and only then ends the application's lifespan. It
    sends no message to open streams, so this class handles the signal. It is active while there are streams, in the
    main thread, and only for signals that already have a handler in Python.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._streams = 0
        self._handlers: dict[int, tuple[object, Callable[[int, FrameType | None], object]]] = {}

    def add(self) -> None:
        """Call when a stream begins."""
        self._streams += 1
        if self._streams == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                former = signal.getsignal(number)
                if callable(former):
                    handler = self._handler(former)
                    signal.signal(number, handler)
                    self._handlers[number] = (handler, former)

    def remove(self) -> None:
        """Call when a stream has ended."""
        self._streams -= 1
        if not self._streams:
            for number, (handler, former) in self._handlers.items():
                if signal.getsignal(number) is handler:
                    signal.signal(number, former)
            self._handlers.clear()

    def _handler(self, former: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
        loop = asyncio.get_running_loop()

        def handle(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and with it its streams
                loop.call_soon_threadsafe(self._end)
            former(number, frame)

        return handle
