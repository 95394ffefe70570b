"""Authorization by the application, and limits for each client."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from starlette.requests import Request

from redis_history.model import Participant
from redis_history.web._http import Refused

#: "list": list conversations, or search in all of them; each result also needs "read". "read": read a conversation
#: and its future changes. "append": append to it as the signed-in user. "append_as": append with any role and
#: participant, for trusted services. "rename": change its title. "delete": delete messages or the conversation, or
#: replace a summary with its original messages.
Action = Literal["list", "read", "append", "append_as", "rename", "delete"]
#: `authorize(request, conversation_id, action)` returns whether to allow the action. The id is None for "list".
Authorize = Callable[[Request, str | None, Action], bool | Awaitable[bool]]
#: `participant(request)` returns the signed-in user, the author of appended messages; None: an author without a name.
SignedIn = Callable[[Request], Participant | Awaitable[Participant | None] | None]

#: Key in a request's scope: the time to renew its cookie, in seconds since 1970.
SIGNED_IN_UNTIL: Final = "redis_history.signed_in_until"

_REMEMBERED: Final = 10_000


async def allow_all(request: Request, conversation_id: str | None, action: Action) -> bool:
    """An `authorize` that allows everything to everyone who can reach the view."""
    return True


async def holder(request: Request, conversation_id: str | None, action: Action) -> bool:
    """The `authorize` of `redis-history serve`: the token allows everything but "append_as". A stream ends when its
    cookie must be renewed; the browser then reconnects."""
    return action != "append_as" and time.time() < request.scope.get(SIGNED_IN_UNTIL, math.inf)


class Access:
    """Asks `authorize`. `open`: its answer does not depend on the conversation."""

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize
        self.open = authorize in (allow_all, holder)

    async def allows(self, request: Request, conversation_id: str | None, action: Action) -> bool:
        return await called(self._authorize, request, conversation_id, action) is True

    async def check(self, request: Request, conversation_id: str | None, action: Action) -> None:
        if not await self.allows(request, conversation_id, action):
            raise Refused(403, "forbidden", f"this request needs the right {action!r}")


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of the application: a coroutine function, or a plain function, which runs in a thread."""
    call = getattr(function, "__call__", None)  # noqa: B004 -- its `__call__` may be a coroutine function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        return await function(*arguments)
    outcome = await asyncio.to_thread(function, *arguments)
    return await outcome if isinstance(outcome, Awaitable) else outcome


class Permits:
    """The "read" rights of one client for many conversations, cached for `seconds`."""

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
    """Limits the number of open streams, in total and for each client address."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._used: Counter[str] = Counter()
        self._total = 0

    def acquire(self, request: Request) -> Callable[[], None]:
        """Acquire a place, and return the function that releases it. Raises Refused."""
        client = request.client.host if request.client else ""
        if self._total >= self._most:
            raise Refused(503, "too_many_streams", "there are too many open streams", {"Retry-After": "10"})
        if self._used[client] >= self._most_of_one:
            raise Refused(429, "too_many_streams", "this address has too many open streams", {"Retry-After": "10"})
        self._used[client] += 1
        self._total += 1

        def release() -> None:
            self._total -= 1
            self._used[client] -= 1
            if not self._used[client]:
                del self._used[client]

        return release
