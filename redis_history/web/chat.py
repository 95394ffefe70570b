"""The endpoints of a chat. Its answers survive closed tabs, lost networks and restarts of the web server."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Literal, TypeVar
from urllib.parse import unquote
from weakref import WeakValueDictionary

from msgspec.structs import replace
from starlette.datastructures import URLPath
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Router
from starlette.types import Receive, Scope, Send

from redis_history.agents.compaction.summaries import try_in_thread
from redis_history.errors import MessageNotFoundError, RedisHistoryError, RunStopped
from redis_history.store._async.runs import AsyncRun
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.operations import LeaveRun
from redis_history.store.operations.usage import check_budget
from redis_history.values import Message, Participant, Position
from redis_history.values._validation import (
    check_choice,
    check_function,
    check_integer,
    check_names,
    check_seconds,
    check_store,
    check_text,
    is_coroutine_function,
)
from redis_history.values.runs import RunInfo
from redis_history.web._feed import Feed, Reader
from redis_history.web._http import EndSignals, EventStream, Refused, answer, read_body
from redis_history.web._places import ChatLimits, Place, Places
from redis_history.web.access import Authorize, Guarded, SignedIn
from redis_history.web.client_messages import Asked
from redis_history.web.protocols import AgUi, AiSdk, Protocol
from redis_history.web.routing import path_id, path_of
from redis_history.web.stored_chat import Rights, StoredChat, edited

_logger = logging.getLogger("redis_history")
T = TypeVar("T")

#: Bytes of a request that is read in a thread.
_LARGE: Final = 256_000
#: Seconds that answers have to end when the application stops.
_GRACE: Final = 5.0

#: The user's code: a coroutine function of an AsyncRun, or a plain function of a run whose methods block.
Answerer = Callable[[Any], Awaitable[object] | object]
_PROTOCOLS: Final[dict[str, type[Protocol]]] = {"ai-sdk": AiSdk, "ag-ui": AgUi}


class ChatEndpoints(Guarded):
    """A chat backend as an ASGI application. In a Starlette application, `chat.mount("/api/chat")` is a route for it;
    others mount it as they do, and may redirect `POST /api/chat` to `/api/chat/`::

        async def answer(run):
            messages = await store.get(run.conversation_id)
            async with run.stream() as reply:
                async for token in model(messages):
                    await reply.write(token)

    `answer(run)` is called in the background for each message of a user, in a run of the conversation, and independent
    of the request: a client that leaves stops nothing. A plain function is called in a thread, with a run whose methods
    block. An error that it raises ends the run as "failed", and is logged.

    `protocol`: "ai-sdk" for `useChat` of the AI SDK with `DefaultChatTransport`, "ag-ui" for `HttpAgent` of AG-UI. Both
    have `POST /` (send a message, stream the answer), `GET /{id}/stream` (the answer that is being written, from its
    start, or a failed one with its error; without one 204, or with AG-UI the messages), `POST /{id}/stop` and
    `GET /{id}/messages`.

    `authorize(request, conversation_id, action)`, plain or async, returns whether the request may do the action:
    "read", "append", "fork", "stop" or "delete"; see `Action`. A message needs "append", and with AG-UI also "read", as
    streams contain the conversation. To edit a message, or to answer it again, also needs "delete", unless it is in a
    fork, and "stop" while an answer is being written. `participant(request)` returns the signed-in user, the author of
    the messages, whose id becomes the owner (`user_id`) of a new chat and of its forks. `agent_name`: of the runs.
    `busy`: what happens to a message while an answer is being written: "queue" answers it afterwards, if that ends
    within `wait` seconds, unless `max_waiting` others wait (status 429); "refuse" rejects it with status 409.
    `client_tools`: the names of the tools that run in the browser; results of others are rejected. `limits`: see
    `ChatLimits`. `origins`: the origins of front ends that are served elsewhere, such as "https://app.example.com".
    `hosts`: the host names of the application, as for `LiveView`.

    When the application stops, its streams end immediately, with an error that asks clients to reconnect. Answers
    that it writes have 5 seconds to end; then they are interrupted, and can be asked for again. Pass `lifespan` to the
    application, or use `async with` in its lifespan. The caller closes the store.
    Raises ConfigurationError for another store than an AsyncHistoryStore, or a wrong option.
    """

    place = "ChatEndpoints"

    def __init__(
        self,
        store: AsyncHistoryStore,
        answer: Answerer,
        *,
        authorize: Authorize,
        participant: SignedIn | None = None,
        protocol: Literal["ai-sdk", "ag-ui"] = "ai-sdk",
        agent_name: str | None = None,
        busy: Literal["queue", "refuse"] = "queue",
        wait: float = 120.0,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        client_tools: Iterable[str] = (),
        max_waiting: int = 10,
        limits: ChatLimits | None = None,
    ) -> None:
        check_store(store, "ChatEndpoints", AsyncHistoryStore)
        super().__init__(authorize, participant, origins, hosts)
        check_function(answer, "answer", "a function of (run)", optional=False)
        check_choice(protocol, "protocol", tuple(_PROTOCOLS))
        check_choice(busy, "busy", ("queue", "refuse"))
        check_seconds(wait, "wait", 0)
        check_integer(max_waiting, "max_waiting", 1)
        self._store, self._answer = store, answer
        self._limits = limits or ChatLimits()
        self._protocol = _PROTOCOLS[protocol](store, self._limits.messages)
        self._chat = StoredChat(store, check_names(client_tools, "client_tools"), self._limits.messages)
        self._places = Places(self._limits)
        self._agent_name, self._busy, self._wait, self._max_waiting = agent_name, busy, wait, max_waiting
        self._tasks: set[asyncio.Task[None]] = set()
        self._feeds: dict[tuple[Any, ...], Feed] = {}
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._signals = EndSignals(self._end_streams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await Router(lifespan=self.lifespan).lifespan(scope, receive, send)
            return
        http = Request(scope, receive)
        send = self.protected(http, send)
        try:
            response = self.preflight(http) or await self._route(http)
        except ClientDisconnect:
            return  # the client has disconnected
        except Exception as error:  # noqa: BLE001 -- each becomes a response
            response = self.failure(error)
        await response(scope, receive, send)

    def mount(self, path: str) -> BaseRoute:
        """A route for Starlette or FastAPI at this path, such as "/api/chat". Unlike `Mount`, it answers `POST` at the
        path itself, without a redirect."""
        check_text(path, "path")
        return _Route(self, f"/{path.strip('/')}".rstrip("/"))

    async def aclose(self) -> None:
        """End streams immediately, so that clients reconnect to another process, and answers within 5 seconds."""
        self._end_streams()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end_streams(self) -> None:
        self._closed = True
        for feed in self._feeds.values():
            feed.cut()

    # Requests

    async def _route(self, http: Request) -> Response:
        match http.method, [*filter(None, path_of(http.scope).split(b"/"))]:
            case "POST", []:
                return await self._send(http)
            case "GET" | "HEAD", [chat, b"stream"]:
                return await self._resume(http, path_id(chat))
            case "POST", [chat, b"stop"]:
                return await self._stop(http, path_id(chat))
            case "GET" | "HEAD", [chat, b"messages"]:
                return await self._messages(http, path_id(chat))
        raise Refused(404, "not_found", "there is no such path, or it has another method")

    async def _send(self, http: Request) -> Response:
        asked, rights = await self._read(http)
        chat = asked.conversation_id
        if asked.fork is not None:
            await rights.ask(chat, "fork")
            await rights.ask(asked.fork, "append")
        elif asked.replaces is not None:
            await rights.ask(chat, "delete")
        if self._protocol.has_snapshots:
            await rights.ask(asked.fork or chat, "read")
        self._check_open()
        user = await self.signed_in(http)
        with self._places.stream(user) as place:
            kept = None if asked.replaces is None else await self._chat.replaced(asked)
            edit = None if kept is None else edited(asked, kept, user)
            if asked.fork is not None and kept is not None:
                self._places.check_answer(user)
                await self._chat.fork(asked, rights, kept, user, asked.fork)
                asked.conversation_id = asked.fork
            async with self._lock(asked.conversation_id):  # a copy of a request finds the run of the first one
                return await self._begin(asked, kept, edit, rights, user, place)

    async def _read(self, http: Request) -> tuple[Asked, Rights]:
        """Read a request, and check the right of its user to append. Returns the request and the rights."""
        limits, rights = self._limits, Rights(self, self._store, http)
        with self._places.body() as grow:
            remedy = "ChatLimits(body=...): a request needs only the last message"
            body = await read_body(http, limits.body, remedy, grow=grow, patience=limits.patience)
            chat, given = await _aside(len(body), self._protocol.begin, body)
            await rights.ask(chat, "append")
            return await _aside(len(body), self._protocol.read, given), rights

    async def _begin(
        self, asked: Asked, kept: Message | None, edit: Message | None, rights: Rights, user: Participant | None,
        place: Place,
    ) -> Response:  # fmt: skip
        """Store a request, and begin its answer, unless it is a copy. `kept`: the message that is answered again.
        `edit`: its new content, if any."""
        chat, former = asked.conversation_id, None
        record = await rights.confirm(chat)
        active = await self._store.get_run(chat)
        copied = None if kept is not None else await self._copied(asked, active)
        if not copied:
            await self._check_room(asked, kept, active, user)
            owner = None if user is None else user.id
            await self._store._steps(check_budget(owner if record is None else record.user_id))
        if kept is not None:
            if active is not None and active.is_active:  # the answer that is being written is replaced, too
                await rights.ask(chat, "stop")
                await self._store.stop_run(chat)
            await self._chat.following(chat, kept.position)  # an archived message can neither be changed nor shown
            if edit is not None:
                await self._store.update_message(chat, edit)
            last = kept
        else:
            last, is_repeated = await self._chat.keep(asked, rights, user, record)
            if is_repeated:  # its answer is being written, or was
                # Another process may have stored it, and be about to begin its run.
                run_id = await self._awaited(chat, 0.5, lambda run: self._protocol.answered_by(run, last))
                if run_id is not None:
                    return self._stream(asked, run_id, last.position, rights, place)
                former = _ids_of(await self._store.get_run(chat))
        run = self._store.run(chat, agent_name=self._agent_name, wait=self._wait, cancel=True)
        replaced = None
        if kept is not None and kept.position is not None:
            newest = await self._store.get(chat, limit=1)
            replaced = kept.position, newest[-1].position if newest else None
        work = self._work(run, replaced, last.id, former)
        task = asyncio.create_task(work, name=f"redis_history-answer-{run.run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._places.answer(user))
        await self._until_known(chat, run.run_id, task)
        return self._stream(asked, run.run_id, last.position, rights, place)

    async def _copied(self, asked: Asked, run: RunInfo | None) -> bool:
        """Whether a run answers an earlier copy of this request."""
        if run is None or not (run.is_active or run.waiting):
            return False
        last = await self._chat.is_copy_of(asked)
        return last is not None and self._protocol.answered_by(run, last) is not None

    async def _check_room(
        self, asked: Asked, kept: Message | None, run: RunInfo | None, user: Participant | None
    ) -> None:
        """Raises Refused unless this request may begin an answer, or wait for one."""
        self._places.check_answer(user)
        if run is None:
            return
        if run.is_active and self._busy == "refuse":
            raise Refused(409, "conflict", "an answer is being written; wait for its end, or stop it")
        if len(run.waiting) >= self._max_waiting:
            detail = f"{len(run.waiting)} messages wait for an answer here already, the limit (max_waiting)"
            raise Refused(429, "too_many", detail, {"Retry-After": "5"})
        if not asked.is_named and kept is not None and run.status == "completed":
            detail = "the last message has its answer; to replace it, name the message in forwardedProps.messageId"
            raise Refused(409, "conflict", detail)

    async def _until_known(self, chat: str, run_id: str, task: asyncio.Task[None]) -> None:
        """Wait until other readers find the run: a client that reloads its page immediately looks for it."""

        def is_known(run: RunInfo | None) -> bool | None:
            known = run is not None and run_id in (run.run_id, *(place.run_id for place in run.waiting))
            return known or task.done() or None

        await self._awaited(chat, 2, is_known)

    async def _awaited(self, chat: str, seconds: float, find: Callable[[RunInfo | None], T | None]) -> T | None:
        """Ask `find` about the newest run until it finds something, for about this number of seconds."""
        wait = 0.001
        while (found := find(await self._store.get_run(chat))) is None and wait < seconds:
            await asyncio.sleep(wait)
            wait *= 2
        return found

    async def _resume(self, http: Request, chat: str) -> Response:
        rights = Rights(self, self._store, http)
        await rights.ask(chat, "read")
        self._check_open()
        with self._places.stream(await self.signed_in(http)) as place:
            run = await self._store.get_run(chat)
            run_id = None
            # A failed answer is sent too, because its stream ends with an error: the client learns it in no other way.
            if run is not None and (run.is_active or run.waiting or run.status in ("interrupted", "failed")):
                run_id = run.waiting[0].run_id if run.waiting and not run.is_active else run.run_id
            elif not self._protocol.has_snapshots:
                return Response(status_code=204)
            after = await self._protocol.resumed_after(chat)
            return self._stream(Asked(chat), run_id, after, rights, place, resumed=True)

    async def _stop(self, http: Request, chat: str) -> Response:
        rights = Rights(self, self._store, http)
        await rights.ask(chat, "stop")
        async with self._lock(chat):  # a request that is about to begin its run does so first
            await rights.confirm(chat)
            run = await self._store.get_run(chat)
            waiting = [one.run_id for one in run.waiting if one.agent_name == self._agent_name] if run else []
            if waiting:
                await self._store.backend.execute(LeaveRun(chat, tuple(waiting)))
            if not await self._store.stop_run(chat) and not waiting:
                newest = await self._store.get(chat, limit=1)
                if newest and newest[-1].role == "user":  # another process may be about to begin its answer
                    raise Refused(409, "conflict", "the answer to the last message has not begun; try again")
        return Response(status_code=204)

    async def _messages(self, http: Request, chat: str) -> Response:
        rights = Rights(self, self._store, http)
        await rights.ask(chat, "read")
        found = await self._chat.listed(chat)
        await rights.confirm(chat)
        return answer(self._protocol.write(found))

    def _lock(self, chat: str) -> asyncio.Lock:
        return self._beginning.setdefault(chat, asyncio.Lock())

    def _check_open(self) -> None:
        """Raises Refused once the application ends, which a client that reconnects immediately would delay."""
        if self._closed:
            raise Refused(503, "ending", "the application is ending", {"Retry-After": "5"})

    def _stream(
        self, asked: Asked, run_id: str | None, after: Position | None, rights: Rights, place: Place, *,
        resumed: bool = False,
    ) -> Response:  # fmt: skip
        self._check_open()
        chat = asked.conversation_id
        asked = replace(asked, messages=(), results=(), responses={})  # stored, perhaps large, and a stream is long
        key = (rights.identity(chat), chat, run_id, resumed, after, asked.run_id, asked.message_id)
        feed = self._feeds.get(key)
        if feed is None or feed.is_over:
            feed = self._feeds[key] = Feed(self._protocol.stream(asked, run_id, after, resumed=resumed))
        feed.readers += 1
        self._signals.watch()
        confirm, ask_again = partial(rights.confirm, chat), partial(rights.ask_again, chat)
        reader = Reader(feed, confirm, ask_again, self._limits.reauthorize)

        def end() -> None:
            place.leave()
            feed.readers -= 1
            if feed.readers:
                return
            feed.cut()
            if self._feeds.get(key) is feed:
                del self._feeds[key]
            if not self._feeds:
                self._signals.unwatch()

        cut: dict[str, Any] = {"is_cut": lambda: reader.is_cut, "farewell": self._protocol.farewell}
        response = EventStream(reader.read(), patience=self._limits.patience, on_end=end, **cut)
        response.headers.update(self._protocol.headers)
        place.keep()
        return response

    # The answer

    async def _work(
        self, run: AsyncRun, replaced: tuple[Position, Position | None] | None, answered: str, former: set[str] | None
    ) -> None:
        """Call the user's function in its run, independently of any request. `replaced`: the positions between which
        messages are removed first, during the run, when no other answer is written. `answered`: the id of the message
        to answer. `former`: for a copied request, the runs that did not answer it; any other run did."""
        try:
            async with run:
                chat = run.conversation_id
                if not await self._store.get_message(chat, answered):  # an answer would create the chat again
                    raise MessageNotFoundError("the message or its chat was removed while it waited")
                if former is not None and not _ids_of(await self._store.get_run(chat)) <= {*former, run.run_id}:
                    return
                if replaced is not None:
                    await self._chat.remove(chat, *replaced)
                if is_coroutine_function(self._answer):
                    outcome: Any = self._answer(run)
                else:  # in a new thread: the few threads of the event loop are needed by `authorize`
                    blocking = _Blocking(run, asyncio.get_running_loop())
                    outcome, error = await try_in_thread(self._answer, blocking)
                    if error is not None:
                        raise error
                if isinstance(outcome, Awaitable):
                    await outcome
        except RunStopped:
            pass
        except RedisHistoryError as error:
            _logger.warning("an answer in conversation %r failed: %s", run.conversation_id[:80], error)
        except Exception:
            _logger.exception("an answer in conversation %r failed", run.conversation_id[:80])


def _ids_of(run: RunInfo | None) -> set[str]:
    """The ids of the newest run and of those before it."""
    return set() if run is None else {one.run_id for one in (run, *run.former)}


async def _aside(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that reads `size` bytes: in a thread if they are many, so that other requests go on."""
    if size < _LARGE:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


class _Route(BaseRoute):
    """The path of an application, and everything below it."""

    def __init__(self, app: ChatEndpoints, path: str) -> None:
        self.app, self.path = app, path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        root = scope.get("root_path", "")
        path = unquote(path_of(scope).decode("ascii", "replace")) if scope["type"] == "http" else ""
        if not f"{path}/".startswith(f"{self.path}/"):
            return Match.NONE, {}
        return Match.FULL, {"root_path": root + self.path, "app_root_path": scope.get("app_root_path", root)}

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class _Blocking:
    """An asynchronous object for a thread: its coroutines run in the loop while the thread waits."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target, self._loop = target, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def method(*args: Any, **options: Any) -> Any:
            outcome = value(*args, **options)
            if inspect.iscoroutine(outcome):
                return self._wait(outcome)
            return _Blocking(outcome, self._loop) if hasattr(outcome, "__aenter__") else outcome

        return method

    def __enter__(self) -> _Blocking:
        self._wait(self._target.__aenter__())
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._wait(self._target.__aexit__(*exc_info))

    def _wait(self, outcome: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(outcome, self._loop).result()
