"""Authorization by the application, and what the live view and a chat have in common."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, Literal, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from redis_history.values import Participant
from redis_history.values._validation import check_function, is_coroutine_function
from redis_history.values.ids import check_conversation_id
from redis_history.web._http import HEADERS, Refused, failure, with_headers
from redis_history.web._origins import Callers

#: "list": list conversations, or search in all of them; each result also needs "read". "read": read a conversation
#: and its future changes. "append": append to it as the signed-in user. "append_as": append with any role and
#: participant, for trusted services. "fork": copy it to a new conversation. "pin": pin a message. "stop": stop the run
#: of the agent that works on it. "decide": approve or deny a tool call. "edit": replace the text of a message.
#: "rename": change its title. "delete": delete messages or the conversation, or replace a summary with its original
#: messages. "erase": delete all conversations of a user. "usage": read the totals of tokens and cost, and budgets, of
#: all users.
Action = Literal[
    "list", "read", "append", "append_as", "fork", "pin", "edit", "stop", "decide", "rename", "delete", "erase", "usage"
]
#: `authorize(request, conversation_id, action)` returns whether to allow the action. The id is None for "list", "erase"
#: and "usage".
Authorize = Callable[[Request, str | None, Action], bool | Awaitable[bool]]
#: `participant(request)` returns the signed-in user, the author of appended messages; None: an author without a name.
SignedIn = Callable[[Request], Participant | Awaitable[Participant | None] | None]

#: Key in a request's scope: the time to renew its cookie, in seconds since 1970.
SIGNED_IN_UNTIL: Final = "redis_history.signed_in_until"


async def allow_all(request: Request, conversation_id: str | None, action: Action) -> bool:
    """An `authorize` that allows everything to everyone who can reach the view."""
    return True


async def holder(request: Request, conversation_id: str | None, action: Action) -> bool:
    """The `authorize` of `redis-history serve`: the token allows everything but "append_as" and "erase". A stream ends
    when its cookie must be renewed. The browser then reconnects."""
    return action not in ("append_as", "erase") and time.time() < request.scope.get(SIGNED_IN_UNTIL, math.inf)


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the application: a coroutine function, or a plain function, which runs in a thread."""
    if is_coroutine_function(function):
        return await function(*arguments)
    result = await asyncio.to_thread(function, *arguments)
    return await result if isinstance(result, Awaitable) else result


class Guarded(ABC):
    """Asks the application which actions a client may perform, and ends with the application."""

    #: Its name in the log.
    place: ClassVar[str]

    def __init__(
        self, authorize: Authorize, participant: SignedIn | None, origins: Iterable[str], hosts: Iterable[str]
    ) -> None:
        kind = "a function of (request, conversation_id, action), such as redis_history.web.allow_all"
        check_function(authorize, "authorize", kind, optional=False)
        check_function(participant, "participant", "a function of (request)")
        self._authorize, self._participant = authorize, participant
        self._callers = Callers(origins, hosts, is_open=authorize is allow_all)
        self._closed = False

    def protected(self, request: Request, send: Send, **headers: str) -> Send:
        """A `send` that adds the headers of each response; `headers`: others instead of `HEADERS`."""
        return with_headers(send, {**HEADERS, **headers, **self._callers.headers(request)})

    def preflight(self, request: Request) -> Response | None:
        """The answer to a browser that asks whether a page may send a request. Call this first: raises Refused for a
        request that names another host."""
        self._callers.check_host(request)
        return self._callers.preflight(request)

    def failure(self, error: Exception) -> Response:
        """The response to a request that failed with an exception."""
        return failure(error, self.place)

    async def allows(self, request: Request, conversation_id: str | None, action: Action) -> bool:
        """Whether `authorize` allows the action."""
        return await call(self._authorize, request, conversation_id, action) is True

    async def check(self, request: Request, conversation_id: str | None, *actions: Action) -> None:
        """Check that at least one action is allowed, and that no page of another origin requests a change. Raises
        Refused otherwise."""
        if conversation_id is not None:
            check_conversation_id(conversation_id)
        self._callers.check_origin(request)
        for action in actions:
            if await self.allows(request, conversation_id, action):
                return
        raise Refused(403, "forbidden", f"this request needs the right {' or '.join(map(repr, actions))}")

    async def signed_in(self, request: Request) -> Participant | None:
        """The signed-in user, as the author of messages that this request appends."""
        user = None if self._participant is None else await call(self._participant, request)
        if user is not None and not isinstance(user, Participant):
            raise TypeError(f"participant(request) must return a Participant or None, not {type(user).__name__}")
        return user

    async def __aenter__(self) -> Self:
        self._closed = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """A `lifespan` for an application without one."""
        async with self:
            yield

    @abstractmethod
    async def aclose(self) -> None:
        """End all streams, and reject new ones."""
