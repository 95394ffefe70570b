"""The state that the routes of one application share, and its streams."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from redis_history._async.store import AsyncHistoryStore
from redis_history._sync.store import HistoryStore
from redis_history.errors import ConfigurationError, InvalidCursorError, RedisHistoryError
from redis_history.events import Cursor
from redis_history.model import Participant
from redis_history.web._answers import Refused
from redis_history.web._asking import Asked
from redis_history.web._encoding import frame
from redis_history.web._overview import Overview
from redis_history.web._streaming import EndSignals, EventStream
from redis_history.web._watch import Hub
from redis_history.web.access import Access, Authorize, Permits, Places, SignedIn, called

__all__ = ["Limits", "View"]

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
        if min(self.streams, self.streams_per_address) < 1:
            raise ConfigurationError("streams and streams_per_address must be at least 1")
        if min(self.heartbeat, self.patience, self.reauthorize) <= 0 or self.grace < 0:
            raise ConfigurationError(
                "heartbeat, patience and reauthorize must be more than 0 seconds, grace at least 0"
            )


class View:
    """The shared state of the routes of one application: the store, the access rules, and the subscriptions."""

    def __init__(
        self,
        store: AsyncHistoryStore,
        *,
        authorize: Authorize,
        participant: SignedIn | None = None,
        read_only: bool = True,
        address: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        if isinstance(store, HistoryStore):
            raise ConfigurationError(
                "the live view runs in an event loop: pass an AsyncHistoryStore with the same URL and namespace; "
                "the HistoryStore that the rest of the application uses may stay"
            )
        if not isinstance(store, AsyncHistoryStore):
            raise ConfigurationError(f"the live view needs an AsyncHistoryStore, not {type(store).__name__}")
        if not callable(authorize):
            raise ConfigurationError(
                f"authorize must be a function of (request, conversation_id, action), plain or async, not "
                f"{type(authorize).__name__}; redis_history.web.allow_all lets everyone in"
            )
        if participant is not None and not callable(participant):
            raise ConfigurationError(
                f"participant must be a function of (request), plain or async, not {type(participant).__name__}"
            )
        limits = limits or Limits()
        self.store = store
        self.access = Access(authorize)
        self.read_only = read_only
        self.address = address
        self.limits = limits
        self._participant = participant
        self._closed = False
        self._ended = -_ENDING  # the time of the last SIGINT or SIGTERM
        self._signals = EndSignals(self._end_streams)
        self._ending: asyncio.Task[None] | None = None
        self._places = Places(limits.streams, limits.streams_per_address)
        self._hub = Hub(store, heartbeat=limits.heartbeat, grace=limits.grace)
        self._overview = Overview(store, heartbeat=limits.heartbeat, grace=limits.grace)

    async def signed_in(self, request: Request) -> Participant | None:
        """The signed-in user, as the author of messages that this request appends."""
        if self._participant is None:
            return None
        who = await called(self._participant, request)
        if who is not None and not isinstance(who, Participant):
            raise TypeError(f"participant(request) must return a Participant or None, not {type(who).__name__}")
        return who

    async def events(self, asked: Asked) -> Response:
        """`GET api/events`: the stream of one conversation, or of the list of all conversations."""
        request, name = asked.request, asked.conversation_id
        if name is None:
            permits = Permits(self.access, request, self.limits.reauthorize)
            return self._stream(
                request, self._overview.follow(permits), lambda: self.access.allows(request, None, "list")
            )
        chunks = await self._from(request, asked, name)
        return self._stream(request, chunks, lambda: self.access.allows(request, name, "read"))

    async def start(self) -> None:
        """Accept streams, also after `aclose`."""
        self._closed = False

    async def aclose(self) -> None:
        """End all streams, and reject new ones until `start`. Other requests are still answered."""
        self._closed = True
        await self._let_go()

    async def _let_go(self) -> None:
        await self._overview.aclose()
        await self._hub.aclose()

    def _end_streams(self) -> None:
        self._ended = time.monotonic()
        self._ending = asyncio.create_task(self._let_go())

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
        give_back = self._places.take(request)
        self._signals.add()

        def over() -> None:
            self._signals.remove()
            give_back()

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
