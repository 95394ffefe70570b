"""Who may do what: the question to the application, and bounds on how much one client may have."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from starlette.requests import Request

from redis_history.web._answers import Refused

__all__ = ["Access", "Action", "Authorize", "Permits", "Places"]

#: "list": ask for conversations, or search in all of them; those found are asked about one by one. "read": see a
#: conversation, now and as it goes on. "write": change it.
Action = Literal["list", "read", "write"]
#: `authorize(request, conversation_id, action)`; the id is None for "list".
Authorize = Callable[[Request, str | None, Action], bool | Awaitable[bool]]

_REMEMBERED: Final = 10_000


class Access:
    """Asks `authorize`; None allows everything. A plain function is called in a thread."""

    def __init__(self, authorize: Authorize | None) -> None:
        self._authorize = authorize
        self.open = authorize is None
        call = getattr(authorize, "__call__", None)  # noqa: B004 -- an object may have a coroutine function there
        self._waits = inspect.iscoroutinefunction(authorize) or inspect.iscoroutinefunction(call)

    async def allows(self, request: Request, conversation_id: str | None, action: Action) -> bool:
        if self._authorize is None:
            return True
        if self._waits:
            outcome = self._authorize(request, conversation_id, action)
        else:
            outcome = await asyncio.to_thread(self._authorize, request, conversation_id, action)
        return (await outcome if isinstance(outcome, Awaitable) else outcome) is True

    async def check(self, request: Request, conversation_id: str | None, action: Action) -> None:
        if not await self.allows(request, conversation_id, action):
            raise Refused(403, "forbidden", "you may not do that here")


class Permits:
    """What one client may read, for a stream of many conversations: asked once, and again after `seconds`."""

    def __init__(self, access: Access, request: Request, seconds: float) -> None:
        self._access, self._request, self._seconds = access, request, seconds
        self._known: dict[str, tuple[bool, float]] = {}

    async def __call__(self, conversation_id: str) -> bool:
        if self._access.open:
            return True
        now = time.monotonic()
        known = self._known.get(conversation_id)
        if known is None or known[1] <= now:
            while len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            allowed = await self._access.allows(self._request, conversation_id, "read")
            known = self._known[conversation_id] = (allowed, now + self._seconds)
        return known[0]


class Places:
    """For how many streams there is room: in all, and for one address."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._taken: Counter[str] = Counter()
        self._total = 0

    def take(self, request: Request) -> Callable[[], None]:
        """Take a place; what this returns gives it back. Raises Refused."""
        client = request.client.host if request.client else ""
        if self._total >= self._most:
            raise Refused(503, "too_many_streams", "there are too many open streams", {"Retry-After": "10"})
        if self._taken[client] >= self._most_of_one:
            raise Refused(429, "too_many_streams", "this address has too many open streams", {"Retry-After": "10"})
        self._taken[client] += 1
        self._total += 1

        def give_back() -> None:
            self._total -= 1
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]

        return give_back
