"""The state that the routes of one application share, and its streams."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from types import FrameType
from typing import Final

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from redis_history._async.store import AsyncHistoryStore
from redis_history._sync.store import HistoryStore
from redis_history._validation import check_function, check_integer, check_seconds, refuse
from redis_history.errors import ConfigurationError, InvalidCursorError, RedisHistoryError
from redis_history.events import Cursor
from redis_history.model import Participant
from redis_history.web._events import frame
from redis_history.web._http import Asked, EventStream, Refused
from redis_history.web._hub import Hub
from redis_history.web.access import Access, Authorize, Permits, Places, SignedIn, called

_logger = logging.getLogger("redis_history")

#: Seconds after SIGINT or SIGTERM without new streams: browsers reconnect at once, which would delay the shutdown.
_ENDING: Final = 5.0


class Limits(Struct, frozen=True, kw_only=True):
    """Limits and times of the live view. Times are in seconds.

    `streams`: the maximum number of open streams; `streams_per_address`: of one client address. `heartbeat`: the
    longest silence of a stream. `patience`: ends a stream whose client accepts no data for so long. `reauthorize`:
    the interval in which a stream asks `authorize` again. `grace`: how long a subscription outlives its last stream.
    """

    streams: int = 1000
    streams_per_address: int = 100
    heartbeat: float = 15.0
    patience: float = 60.0
    reauthorize: float = 30.0
    grace: float = 5.0

    def __post_init__(self) -> None:
        for name in ("streams", "streams_per_address"):
            check_integer(getattr(self, name), name, 1)
        for name in ("heartbeat", "patience", "reauthorize", "grace"):
            check_seconds(getattr(self, name), name, 0, above=name != "grace")


class View:
    """The shared state of the routes of one application: the store, the access rules, and the subscriptions."""

    def __init__(
        self,
        store: AsyncHistoryStore,
        *,
        authorize: Authorize,
        participant: SignedIn | None = None,
        read_only: bool = True,
        page: bool = True,
        address: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        if isinstance(store, HistoryStore):
            raise ConfigurationError(
                "the live view runs in an event loop: pass an AsyncHistoryStore with the same URL and namespace; "
                "the HistoryStore that the rest of the application uses may stay"
            )
        if not isinstance(store, AsyncHistoryStore):
            refuse(store, "store", "an AsyncHistoryStore")
        kind = "a function of (request, conversation_id, action), such as redis_history.web.allow_all"
        check_function(authorize, "authorize", kind, optional=False)
        check_function(participant, "participant", "a function of (request)")
        limits = limits or Limits()
        self.store = store
        self.access = Access(authorize)
        self.read_only = read_only
        self.page = page
        self.address = address
        self.limits = limits
        self._participant = participant
        self._closed = False
        self._ended = -_ENDING  # the time of the last SIGINT or SIGTERM
        self._signals = EndSignals(self._end_streams)
        self._ending: asyncio.Task[None] | None = None
        self._places = Places(limits.streams, limits.streams_per_address)
        self._hub = Hub(store, heartbeat=limits.heartbeat, grace=limits.grace)

    async def signed_in(self, request: Request) -> Participant | None:
        """The signed-in user, as the author of messages that this request appends."""
        if self._participant is None:
            return None
        who = await called(self._participant, request)
        if who is not None and not isinstance(who, Participant):
            raise TypeError(f"participant(request) must return a Participant or None, not {type(who).__name__}")
        return who

    async def events(self, asked: Asked) -> Response:
        """The stream of one conversation, or of the list of all conversations."""
        request, name = asked.request, asked.conversation_id
        if name is None:
            chunks = self._hub.follow_all(self.permits(request))
        else:
            chunks = await self._from(request, asked, name)
        return self._stream(
            request, chunks, lambda: self.access.allows(request, name, "list" if name is None else "read")
        )

    def permits(self, request: Request) -> Permits:
        """The conversations that the client may read."""
        return Permits(self.access, request, self.limits.reauthorize)

    async def start(self) -> None:
        """Accept streams, also after `aclose`."""
        self._closed = False

    async def aclose(self) -> None:
        """End all streams, and reject new ones until `start`. Other requests are still answered."""
        self._closed = True
        await self._hub.aclose()

    def _end_streams(self) -> None:
        self._ended = time.monotonic()
        self._ending = asyncio.create_task(self._hub.aclose())

    async def _from(self, request: Request, asked: Asked, name: str) -> AsyncGenerator[bytes, None]:
        """The events after the client's cursor, from the Last-Event-ID header, which is newer, or from the URL."""
        after = asked.text("after")
        if after is not None:
            Cursor.parse(after)
        seen = request.headers.get("last-event-id") or after
        try:
            cursor = None if seen is None else Cursor.parse(seen)
        except InvalidCursorError:  # a browser cannot correct its header
            head = (await self.store.snapshot(name, limit=1)).cursor
            data = {"conversation": name, "cursor": str(head), "revision": head.revision, "reason": "cursor_invalid"}
            return self._hub.follow(name, str(head), frame("reset", data, str(head)))
        if cursor is None:
            cursor = (await self.store.snapshot(name, limit=1)).cursor
        return self._hub.follow(name, str(cursor))

    def _stream(
        self, request: Request, chunks: AsyncGenerator[bytes, None], allowed: Callable[[], Awaitable[bool]]
    ) -> Response:
        if self._closed or time.monotonic() - self._ended < _ENDING:
            raise Refused(503, "ending", "the live view is ending", {"Retry-After": "5"})
        release = self._places.acquire(request)
        self._signals.add()

        def over() -> None:
            self._signals.remove()
            release()

        return EventStream(self._allowed(chunks, allowed), patience=self.limits.patience, when_over=over)

    async def _allowed(
        self, chunks: AsyncGenerator[bytes, None], allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """The chunks, while regular checks of `allowed` succeed. Ends after an error: the client reconnects, and gets
        the error response."""
        ask_at = time.monotonic() + self.limits.reauthorize
        async with aclosing(chunks):
            try:
                async for chunk in chunks:
                    if time.monotonic() >= ask_at:
                        if not await allowed():
                            return
                        ask_at = time.monotonic() + self.limits.reauthorize
                    yield chunk
            except HTTPException:
                return
            except RedisHistoryError as error:
                _logger.warning("a stream of the live view ended: %s", error)
            except Exception:
                _logger.exception("a stream of the live view failed")


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
            with suppress(RuntimeError):  # the event loop is closed, and with it its streams
                loop.call_soon_threadsafe(self._end)
            former(number, frame)

        return handle
