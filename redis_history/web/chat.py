"""The endpoints of a chat. Its answers survive closed tabs, lost networks and restarts of the web server."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import unquote
from weakref import WeakValueDictionary

from msgspec.structs import replace
from starlette.datastructures import URLPath
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Router
from starlette.types import Receive, Scope, Send

from redis_history.agents._async.turn_worker import AsyncWorker
from redis_history.agents.compaction.summaries import try_in_thread
from redis_history.store._async.runs import AsyncRun
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.operations import FindMessage, ReadTogether
from redis_history.store.operations.usage import check_budget
from redis_history.values import Message, Participant, Position
from redis_history.values._validation import (
    check_choice,
    check_function,
    check_integer,
    check_names,
    check_store,
    check_text,
    is_coroutine_function,
)
from redis_history.values.runs import RunInfo
from redis_history.values.turns import Turn
from redis_history.web._feed import Feed, Reader
from redis_history.web._http import EndSignals, EventStream, Refused, answer, bad_input, read_body
from redis_history.web._places import ChatLimits, Place, Places
from redis_history.web._questions import Question, find, is_owed, runs_of, turn_of
from redis_history.web.access import Authorize, Guarded, SignedIn
from redis_history.web.client_messages import Asked
from redis_history.web.protocols import AgUi, AiSdk, Protocol
from redis_history.web.routing import path_id, path_of
from redis_history.web.stored_chat import Kept, Rights, StoredChat, edited

_logger = logging.getLogger("redis_history")
T = TypeVar("T")

#: Bytes of a request that is read in a thread.
_LARGE: Final = 256_000
#: Seconds that answers have to end when the application stops.
_GRACE: Final = 5.0
#: The longest pause between two looks, in seconds, for an answer to end that was stopped, and for another process to
#: ask. Altogether they last about 8 and 0.5 seconds.
_STOPPING: Final = 2.7
_SOON: Final = 0.25

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

    A message asks for an answer in the change that stores it, as `store.ask` does, and its request streams the answer
    from wherever it is written. With `answer`, this process answers, too: `answer(run)` is called in the background, as
    by an `AsyncWorker`, and independent of the request: a client that leaves stops nothing. A plain function is called
    in a thread, with a run whose methods block. An error that it raises ends the run as "failed", and is logged.
    Without `answer`, workers in other processes answer. `attempts`: how often an answer is begun that raises an error,
    or whose process dies; then the client gets the error, and may ask again. Endpoints and workers of one store that
    answer differently need an `agent_name` each.

    `protocol`: "ai-sdk" for `useChat` of the AI SDK with `DefaultChatTransport`, "ag-ui" for `HttpAgent` of AG-UI. Both
    have `POST /` (send a message, stream the answer), `GET /{id}/stream` (the answer that is being written, from its
    start, or a failed one with its error; without one 204, or with AG-UI the messages), `POST /{id}/stop` and
    `GET /{id}/messages`.

    `authorize(request, conversation_id, action)`, plain or async, returns whether the request may do the action:
    "read", "append", "fork", "stop" or "delete"; see `Action`. A message needs "append", and with AG-UI also "read", as
    streams contain the conversation. To edit a message, or to answer it again, also needs "delete", unless it is in a
    fork, and "stop" while an answer is being written. `participant(request)` returns the signed-in user, the author of
    the messages, whose id becomes the owner (`user_id`) of a new chat and of its forks. `agent_name`: the agent that is
    asked. `busy`: what happens to a message while an answer is owed: "queue" answers it afterwards, together with the
    others that wait, unless these are `max_waiting` (status 429); "refuse" rejects it with status 409.
    `client_tools`: the names of the tools that run in the browser; results of others are rejected. `limits`: see
    `ChatLimits`. `origins`: the origins of front ends that are served elsewhere, such as "https://app.example.com".
    `hosts`: the host names of the application, as for `LiveView`.

    When the application stops, its streams end immediately, with an error that asks clients to reconnect. Answers
    that it writes have 5 seconds to end; then the next process begins them again. Pass `lifespan` to the application,
    or use `async with` in its lifespan. The caller closes the store.
    Raises ConfigurationError for another store than an AsyncHistoryStore, or a wrong option.
    """

    place = "ChatEndpoints"

    def __init__(
        self,
        store: AsyncHistoryStore,
        answer: Answerer | None = None,
        *,
        authorize: Authorize,
        participant: SignedIn | None = None,
        protocol: Literal["ai-sdk", "ag-ui"] = "ai-sdk",
        agent_name: str | None = None,
        busy: Literal["queue", "refuse"] = "queue",
        attempts: int = 1,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        client_tools: Iterable[str] = (),
        max_waiting: int = 10,
        limits: ChatLimits | None = None,
    ) -> None:
        check_store(store, "ChatEndpoints", AsyncHistoryStore)
        super().__init__(authorize, participant, origins, hosts)
        check_function(answer, "answer", "a function of (run)")
        check_choice(protocol, "protocol", tuple(_PROTOCOLS))
        check_choice(busy, "busy", ("queue", "refuse"))
        check_integer(attempts, "attempts", 1, 1000)
        check_integer(max_waiting, "max_waiting", 1)
        self._store, self._answer = store, answer
        self._limits = limits or ChatLimits()
        self._protocol = _PROTOCOLS[protocol](store, self._limits.messages)
        self._chat = StoredChat(store, check_names(client_tools, "client_tools"), self._limits.messages, agent_name)
        self._places = Places(self._limits)
        self._agent_name, self._busy, self._max_waiting, self._attempts = agent_name, busy, max_waiting, attempts
        self._worker: AsyncWorker | None = None  # while it works
        self._working: asyncio.Task[None] | None = None
        self._feeds: dict[tuple[Any, ...], Feed] = {}
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._signals = EndSignals(self._end_streams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await Router(lifespan=self.lifespan)(scope, receive, send)  # closes a WebSocket
            return
        self._work()
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

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._work()
        return self

    async def aclose(self) -> None:
        """End streams immediately, so that clients reconnect to another process, and answers within 5 seconds."""
        self._end_streams()
        working, self._working = self._working, None
        if working is not None:
            await asyncio.wait([working])

    def _end_streams(self) -> None:
        self._closed = True
        for feed in self._feeds.values():
            feed.cut()
        if self._worker is not None:
            self._worker.stop(_GRACE)
            self._worker = None

    # The worker

    def _work(self) -> None:
        """Begin to answer turns, unless this process already does, or only asks."""
        if self._answer is None or self._closed or (self._working is not None and not self._working.done()):
            return
        options: dict[str, Any] = {"agent_name": self._agent_name, "attempts": self._attempts}
        self._worker = AsyncWorker(self._store, self._call, concurrency=self._limits.answers, **options)
        self._working = asyncio.create_task(self._worker.run(), name="redis_history-chat-worker")
        self._working.add_done_callback(_log_end)

    async def _call(self, run: AsyncRun) -> None:
        """Call the user's function in its run."""
        answer: Any = self._answer
        if is_coroutine_function(answer):
            outcome = answer(run)
        else:  # in a new thread: the few threads of the event loop are needed by `authorize`
            outcome, error = await try_in_thread(answer, _Blocking(run, asyncio.get_running_loop()))
            if error is not None:
                raise error
        if isinstance(outcome, Awaitable):
            await outcome

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
        with self._places.stream(user) as place, self._places.asking(asked.fork or chat):
            kept = None if asked.replaces is None else await self._chat.replaced(asked)
            edit = None if kept is None else edited(asked, kept, user)
            if asked.fork is not None and kept is not None:
                await self._places.take_answer(user, asked.fork, self._is_owed)
                source = await rights.confirm(chat)  # whose owner is that of the fork if nobody is signed in
                owner = user.id if user is not None else None if source is None else source.user_id
                await self._store.execute(check_budget(owner))
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
            asked = await _aside(len(body), self._protocol.read, given)
        if asked.fork is not None and asked.replaces is None:
            raise bad_input("a fork needs the messageId of the message that it edits or answers again")
        return asked, rights

    async def _begin(
        self, asked: Asked, kept: Message | None, edit: Message | None, rights: Rights, user: Participant | None,
        place: Place,
    ) -> Response:  # fmt: skip
        """Store a request, and ask for its answer, unless it is a copy. `kept`: the message that is answered again.
        `edit`: its new content, if any."""
        chat = asked.conversation_id
        record = await rights.confirm(chat)
        new = 1 if kept is not None else await self._chat.count_new(asked)
        if new or not await self._is_answered(asked):
            await self._check_room(asked, kept, user, new)
            owner = None if user is None else user.id
            await self._store.execute(check_budget(owner if record is None else record.user_id))
        if kept is not None:
            question, last = await self._ask_again(chat, kept, edit, rights), kept
        else:
            stored = await self._chat.keep(asked, rights, user, record)
            question, last = stored.question or await self._asked_before(chat, stored), stored.last
        self._places.asked(user, chat)
        return self._stream(asked, question, last.position, rights, place)

    async def _is_answered(self, asked: Asked) -> bool:
        """Whether this request, which adds nothing, is answered, or will be."""
        last = await self._chat.last_of(asked)
        if last is None:
            return False
        found = await find(self._store, asked.conversation_id, Question.of(last, self._agent_name))
        return found.waits or (found.run is not None and found.run.is_active)

    async def _asked_before(self, chat: str, stored: Kept) -> Question:
        """The question of a request that was stored before. It is asked again if it has no answer."""
        question, wait = Question.of(stored.asked_with, self._agent_name), 0.001
        while True:
            found = await find(self._store, chat, question)
            if found.waits or found.run is not None or stored.asked_with.role == "user" or wait > _SOON:
                break
            await asyncio.sleep(wait)  # another process may have stored a response, and be about to ask
            wait *= 2
        failed = found.run is not None and found.run.status in ("failed", "interrupted")
        if found.waits or (found.run is not None and not (failed and self._protocol.repeats_failed)):
            return question
        return await self._chat.ask_again(chat, stored.asked_with)

    async def _ask_again(self, chat: str, kept: Message, edit: Message | None, rights: Rights) -> Question:
        """Remove what follows a message, give it its new content, and ask for another answer."""
        assert kept.position is not None  # noqa: S101 -- it is stored
        newest = await self._store.get(chat, limit=1)
        await self._stop_answers(chat, rights)
        await self._chat.following(chat, kept.position)  # an archived message can neither be changed nor shown
        if edit is not None:
            await self._store.update_message(chat, edit)
        await self._chat.remove(chat, kept.position, newest[-1].position if newest else None)
        return await self._chat.ask_again(chat, kept)

    async def _stop_answers(self, chat: str, rights: Rights) -> None:
        """Stop the answer that is being written, because it is replaced, too, and wait for its end."""
        wait = 0.001
        while (run := await self._store.get_run(chat)) is not None and run.is_active:
            if wait > _STOPPING:
                detail = "the answer that is being written has not stopped yet; try again"
                raise Refused(409, "conflict", detail, {"Retry-After": "5"})
            if run.status == "active":
                await rights.ask(chat, "stop")
                await self._store.stop_run(chat)
            await asyncio.sleep(wait)
            wait *= 1.5

    async def _check_room(self, asked: Asked, kept: Message | None, user: Participant | None, new: int) -> None:
        """Raises Refused unless this request with `new` messages may ask for an answer."""
        chat = asked.conversation_id
        await self._places.take_answer(user, chat, self._is_owed)
        turn = await turn_of(self._store, chat, self._agent_name)
        run = await self._store.get_run(chat)
        if self._busy == "refuse" and (is_owed(turn) or (run is not None and run.is_active)):
            raise Refused(409, "conflict", "an answer is being written; wait for its end, or stop it")
        if is_owed(turn) and await self._waiting(turn, run) + max(new, 1) > self._max_waiting:
            detail = f"at most {self._max_waiting} messages may wait for an answer here, the limit (max_waiting)"
            raise Refused(429, "too_many", detail, {"Retry-After": "5"})
        is_over = run is not None and run.status == "completed" and not is_owed(turn)
        if not asked.is_named and kept is not None and is_over:
            detail = "the last message has its answer; to replace it, name the message in forwardedProps.messageId"
            raise Refused(409, "conflict", detail)

    async def _waiting(self, turn: Turn, run: RunInfo | None) -> int:
        """The number of messages, up to `max_waiting`, whose answer has not begun. The turn names only the first
        message of each request."""
        chat = turn.conversation_id
        reads = tuple(FindMessage(chat, one, "none") for one in turn.message_ids)
        begun = run.first_sequence if turn.status == "running" and run is not None else 0
        named = [
            one for one in await self._store.backend.execute(ReadTogether(reads))
            if one is not None and one.position is not None and one.position.sequence >= begun
        ]  # fmt: skip
        if not named:
            return 0
        first = min(one.position for one in named)
        since = first._replace(sequence=first.sequence - 1)
        later = await self._store.get(chat, roles=["user"], since=since, limit=self._max_waiting, contents=False)
        return max(len(named), len(later))

    async def _is_owed(self, chat: str) -> bool:
        return is_owed(await turn_of(self._store, chat, self._agent_name))

    async def _resume(self, http: Request, chat: str) -> Response:
        rights = Rights(self, self._store, http)
        await rights.ask(chat, "read")
        self._check_open()
        with self._places.stream(await self.signed_in(http)) as place:
            answered = await self._present(chat)
            if answered is None and not self._protocol.has_snapshots:
                return Response(status_code=204)
            after = await self._protocol.resumed_after(chat)
            return self._stream(Asked(chat), answered, after, rights, place, resumed=True)

    async def _present(self, chat: str) -> Question | str | None:
        """The question that is or will be answered, or the run that is active without one. Or the last one if it has
        failed, because its stream ends with an error: the client learns it in no other way."""
        turn = await turn_of(self._store, chat, self._agent_name)
        run = await self._store.get_run(chat)
        is_active = run is not None and run.is_active
        if turn is not None and (turn.status == "running" or (turn.status == "owed" and not is_active)):
            own = turn.run_id if turn.status == "running" else None
            former = (one for one in runs_of(run) if one.run_id != own)
            return Question.again(turn.message_ids[0], self._agent_name, former)
        if run is not None and (is_active or run.status in ("interrupted", "failed")):
            return run.run_id
        return None

    async def _stop(self, http: Request, chat: str) -> Response:
        rights = Rights(self, self._store, http)
        await rights.ask(chat, "stop")
        async with self._lock(chat):  # a request that is about to ask does so first
            await rights.confirm(chat)
            is_dropped = False
            if await self._is_owed(chat):  # also what came during the answer, which would be the next turn
                is_dropped = await self._store.drop_turn(chat, agent_name=self._agent_name)
            if not await self._store.stop_run(chat) and not is_dropped:
                newest = await self._store.get(chat, limit=1)
                if newest and newest[-1].role == "user":  # another process may be about to ask
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
        self, asked: Asked, answered: Question | str | None, after: Position | None, rights: Rights, place: Place, *,
        resumed: bool = False,
    ) -> Response:  # fmt: skip
        self._check_open()
        chat = asked.conversation_id
        asked = replace(asked, messages=(), results=(), responses={})  # stored, perhaps large, and a stream is long
        key = (rights.identity(chat), chat, answered, resumed, after, asked.run_id, asked.message_id)
        feed = self._feeds.get(key)
        if feed is None or feed.is_over:
            feed = self._feeds[key] = Feed(self._protocol.stream(asked, answered, after, resumed=resumed))
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


def _log_end(working: asyncio.Task[None]) -> None:
    """Log why a worker ended without being stopped."""
    error = None if working.cancelled() else working.exception()
    if error is not None:
        _logger.warning("the worker of a chat ended: %s", error)


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
