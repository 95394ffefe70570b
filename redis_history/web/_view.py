"""The parts that the routes of one application share, and its streams."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from redis_history._async.store import AsyncHistoryStore
from redis_history._sync.store import HistoryStore
from redis_history.errors import ConfigurationError, InvalidCursorError, RedisHistoryError
from redis_history.events import Cursor
from redis_history.web._asking import Asked
from redis_history.web._encoding import frame
from redis_history.web._overview import Overview
from redis_history.web._streaming import EventStream
from redis_history.web._watch import Hub
from redis_history.web.access import Access, Authorize, Permits, Places

__all__ = ["Limits", "View"]

_logger = logging.getLogger("redis_history")


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds and times of the live view; times in seconds.

    `streams` may be open at once, `streams_per_address` of one client address. A stream says something at least every
    `heartbeat`; is ended when its client takes nothing for `patience`; and asks `authorize` again every
    `reauthorize`. What is watched is let go `grace` after its last stream.
    """

    streams: int = 1000
    streams_per_address: int = 100
    heartbeat: float = 15.0
    patience: float = 60.0
    reauthorize: float = 30.0
    grace: float = 5.0

    def __post_init__(self) -> None:
        if min(self.streams, self.streams_per_address) < 1:
            raise ConfigurationError("the live view needs room for at least one stream: streams, streams_per_address")
        if min(self.heartbeat, self.patience, self.reauthorize) <= 0 or self.grace < 0:
            raise ConfigurationError("heartbeat, patience and reauthorize are more than 0 seconds, grace at least 0")


class View:
    """What the routes of one application share: the store, what is allowed, and what is watched."""

    def __init__(
        self,
        store: AsyncHistoryStore,
        *,
        authorize: Authorize | None,
        read_only: bool,
        address: str | None,
        limits: Limits,
    ) -> None:
        if isinstance(store, HistoryStore):
            raise ConfigurationError(
                "the live view runs in an event loop: give it an AsyncHistoryStore of the same URL and namespace; "
                "the HistoryStore that the rest of the application uses may stay"
            )
        if not isinstance(store, AsyncHistoryStore):
            raise ConfigurationError(f"the live view needs an AsyncHistoryStore, not {type(store).__name__}")
        if authorize is not None and not callable(authorize):
            raise ConfigurationError("authorize is a function of (request, conversation_id, action), plain or async")
        self.store = store
        self.access = Access(authorize)
        self.read_only = read_only
        self.address = address
        self.limits = limits
        self._places = Places(limits.streams, limits.streams_per_address)
        self._hub = Hub(store, heartbeat=limits.heartbeat, grace=limits.grace)
        self._overview = Overview(store, heartbeat=limits.heartbeat, grace=limits.grace)

    async def events(self, request: Request) -> Response:
        """`GET api/events`: a stream of one conversation, or of the list of all."""
        asked = Asked(request)
        if asked.text("conversation") is None:
            await self.access.check(request, None, "list")
            permits = Permits(self.access, request, self.limits.reauthorize)
            return self._stream(
                request, self._overview.follow(permits), lambda: self.access.allows(request, None, "list")
            )
        name = asked.conversation()
        await self.access.check(request, name, "read")
        chunks = await self._from(request, asked, name)
        return self._stream(request, chunks, lambda: self.access.allows(request, name, "read"))

    async def aclose(self) -> None:
        """End all streams."""
        await self._overview.aclose()
        await self._hub.aclose()

    async def _from(self, request: Request, asked: Asked, name: str) -> AsyncGenerator[bytes, None]:
        """The events after what the client has seen: by its header, which is newer, or by the URL."""
        after = asked.text("after")
        if after is not None:
            Cursor.parse(after)
        seen = request.headers.get("last-event-id") or after
        try:
            cursor = None if seen is None else Cursor.parse(seen)
        except InvalidCursorError:  # a browser cannot do better by itself
            head = (await self.store.snapshot(name, limit=1)).cursor
            data = {"conversation": name, "cursor": str(head), "revision": head.revision, "reason": "cursor_invalid"}
            return self._hub.follow(name, str(head), frame("reset", data, str(head)))
        if cursor is None:
            cursor = (await self.store.snapshot(name, limit=1)).cursor
        return self._hub.follow(name, str(cursor))

    def _stream(
        self, request: Request, chunks: AsyncGenerator[bytes, None], allowed: Callable[[], Awaitable[bool]]
    ) -> Response:
        give_back = self._places.take(request)
        return EventStream(self._allowed(chunks, allowed), patience=self.limits.patience, when_over=give_back)

    async def _allowed(
        self, chunks: AsyncGenerator[bytes, None], allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """The same while it is allowed, which is asked from time to time. If it fails it ends: the client comes again,
        and is told then."""
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
                _logger.warning("a stream of the live view ends: %s", error)
            except Exception:
                _logger.exception("a stream of the live view failed")
