"""The endpoints of a chat. Its answers survive closed tabs, lost networks and restarts of the web server."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace
from starlette.datastructures import URLPath
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Router
from starlette.types import Receive, Scope, Send

from redis_history._async.runs import AsyncRun
from redis_history._async.store import AsyncHistoryStore
from redis_history._validation import check_choice, check_function, check_seconds, check_text, is_coroutine_function
from redis_history.compaction.summaries import try_in_thread
from redis_history.errors import MessageNotFoundError, RedisHistoryError, RevisionConflictError, RunStopped
from redis_history.formats.vercel_ai import with_responses
from redis_history.integrations._extras import check_store, with_content
from redis_history.model import Conversation, Message, Position
from redis_history.model.runs import RunInfo
from redis_history.web._feed import Feed
from redis_history.web._http import EndSignals, EventStream, Refused, answer, bad_input, failure, json_body
from redis_history.web.access import Authorize, Guarded, SignedIn
from redis_history.web.protocols import LISTED, AgUi, AiSdk, Asked, Protocol, new_results
from redis_history.web.routing import path_id, path_of

_logger = logging.getLogger("redis_history")
T = TypeVar("T")

#: Bytes of a request: front ends send the whole conversation with each message.
_MAX_BODY: Final = 16_000_000
#: Seconds for which a client may accept no data.
_PATIENCE: Final = 60.0
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
    the messages, whose id becomes the owner (`user_id`) of a new chat. `agent_name`: of the runs. `busy`: what happens
    to a message while an answer is being written: "queue" answers it afterwards, if that ends within `wait` seconds;
    "refuse" rejects it with status 409.

    When the application stops, its streams end immediately, with an error that asks clients to reconnect. Answers
    that it writes have 5 seconds to end; then they are interrupted, and can be asked for again. Pass `lifespan` to the
    application, or use `async with` in its lifespan. The caller closes the store.
    Raises ConfigurationError for another store than an AsyncHistoryStore, or a wrong option.
    """

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
    ) -> None:
        check_store(store, "ChatEndpoints", AsyncHistoryStore)
        super().__init__(authorize, participant)
        check_function(answer, "answer", "a function of (run)", optional=False)
        check_choice(protocol, "protocol", tuple(_PROTOCOLS))
        check_choice(busy, "busy", ("queue", "refuse"))
        check_seconds(wait, "wait", 0)
        self._store, self._answer = store, answer
        self._protocol = _PROTOCOLS[protocol](store)
        self._agent_name, self._busy, self._wait = agent_name, busy, wait
        self._tasks: set[asyncio.Task[None]] = set()
        self._feeds: dict[tuple[Any, ...], Feed] = {}
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._signals = EndSignals(self._end_streams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await Router(lifespan=self.lifespan).lifespan(scope, receive, send)
            return
        http = Request(scope, receive)
        try:
            response = await self._route(http)
        except ClientDisconnect:
            return  # nobody is there to answer
        except Exception as error:  # noqa: BLE001 -- each becomes a response
            response = failure(error)
        await response(scope, receive, send)

    def mount(self, path: str) -> BaseRoute:
        """A route for Starlette or FastAPI at this path, such as "/api/chat". Unlike `Mount`, it answers `POST` at the
        path itself, without a redirect."""
        check_text(path, "path")
        return _Route(self, "/" + path.strip("/"))

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
        asked = self._protocol.read(await json_body(http, _MAX_BODY))
        await self.check(http, asked.conversation_id, "append")
        if asked.fork is not None:
            await self.check(http, asked.conversation_id, "fork")
            await self.check(http, asked.fork, "append")
        elif asked.replaces is not None:
            await self.check(http, asked.conversation_id, "delete")
        if self._protocol.has_snapshots:
            await self.check(http, asked.fork or asked.conversation_id, "read")
        self._check_open()
        kept = None if asked.replaces is None else await self._replaced(asked)
        if asked.fork is not None:
            await self._store.fork(asked.conversation_id, asked.fork, through=kept)
            asked.conversation_id = asked.fork
        lock = self._beginning.setdefault(asked.conversation_id, asyncio.Lock())
        async with lock:  # a copy of a request finds the run of the first one
            return await self._begin(asked, kept, http)

    async def _begin(self, asked: Asked, kept: Message | None, http: Request) -> Response:
        """Store a request, and begin its answer, unless it is a copy. `kept`: see `_replaced`."""
        chat = asked.conversation_id
        active = await self._store.get_run(chat)
        if active is not None and active.is_active:
            if self._busy == "refuse" and (kept is not None or not await self._is_copy(asked, active)):
                raise Refused(409, "conflict", "an answer is being written; wait for its end, or stop it")
            if kept is not None:  # the answer that is being written is replaced, too
                await self.check(http, chat, "stop")
                await self._store.stop_run(chat)
        if kept is not None:
            await self._following(chat, kept.position)  # an archived message can neither be changed nor shown
            await self._edit(asked, kept, http)
            last: Message | None = kept
            after = kept.position
        else:
            last, repeated = await self._keep(asked, http)
            after = None if last is None else last.position
            if repeated and last is not None:  # its answer is being written, or was
                # Another process may have stored it, and be about to begin its run.
                run_id = await self._awaited(chat, 0.5, lambda run: self._protocol.answered_by(run, last))
                if run_id is not None:
                    return self._stream(asked, run_id, after)
        run = self._store.run(chat, agent_name=self._agent_name, wait=self._wait, cancel=True)
        replaced = None
        if kept is not None and after is not None:
            newest = await self._store.get(chat, limit=1)
            replaced = after, newest[-1].position if newest else None
        work = self._work(run, replaced, None if last is None else last.id)
        task = asyncio.create_task(work, name=f"redis_history-answer-{run.run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await self._until_known(chat, run.run_id, task)
        return self._stream(asked, run.run_id, after)

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
        await self.check(http, chat, "read")
        run = await self._store.get_run(chat)
        run_id = None
        # An answer that has failed is sent too, because its stream ends with an error: nobody else tells the client.
        if run is not None and (run.is_active or run.waiting or run.status in ("interrupted", "failed")):
            run_id = run.waiting[0].run_id if run.waiting and not run.is_active else run.run_id
        elif not self._protocol.has_snapshots:
            return Response(status_code=204)
        after = await self._protocol.resumed_after(chat)
        return self._stream(Asked(chat), run_id, after, resumed=True)

    async def _stop(self, http: Request, chat: str) -> Response:
        await self.check(http, chat, "stop")
        await self._store.stop_run(chat)
        return Response(status_code=204)

    async def _messages(self, http: Request, chat: str) -> Response:
        await self.check(http, chat, "read")
        return answer(self._protocol.write(await self._store.get(chat, limit=LISTED)))

    def _check_open(self) -> None:
        """Raises Refused once the application ends, which a client that reconnects immediately would delay."""
        if self._closed:
            raise Refused(503, "ending", "the application is ending", {"Retry-After": "5"})

    def _stream(self, asked: Asked, run_id: str | None, after: Position | None, *, resumed: bool = False) -> Response:
        self._check_open()
        key = (asked.conversation_id, run_id, resumed, after, asked.run_id, asked.message_id)
        feed = self._feeds.get(key)
        if feed is None or feed.is_cut:
            feed = self._feeds[key] = Feed(self._protocol.stream(asked, run_id, after, resumed=resumed))
        feed.readers += 1
        self._signals.watch()

        def end() -> None:
            feed.readers -= 1
            if feed.readers:
                return
            feed.cut()
            if self._feeds.get(key) is feed:
                del self._feeds[key]
            if not self._feeds:
                self._signals.unwatch()

        cut: dict[str, Any] = {"is_cut": lambda: feed.is_cut, "farewell": self._protocol.farewell}
        response = EventStream(feed.read(), patience=_PATIENCE, on_end=end, **cut)
        response.headers.update(self._protocol.headers)
        return response

    # Storage

    async def _replaced(self, asked: Asked) -> Message | None:
        """The message of the user that is answered again or edited; None: it is new."""
        kept = await self._store.get_message(asked.conversation_id, asked.replaces) if asked.replaces else None
        if kept is None and (asked.fork is not None or not asked.messages):
            raise Refused(404, "not_found", f"there is no message {str(asked.replaces)[:64]!r} in this conversation")
        if kept is None:
            asked.replaces = None
        elif kept.role != "user":
            raise bad_input("only the message of a user can be edited or answered again")
        elif asked.keep:
            asked.messages = ()
        return kept

    async def _edit(self, asked: Asked, kept: Message, http: Request) -> None:
        """Store the new content of a message, if there is any: the last one, which may have another id."""
        if asked.messages:
            [*_, changed] = await self._authored(asked, http)
            await self._store.update_message(asked.conversation_id, with_content(kept, changed))

    async def _keep(self, asked: Asked, http: Request) -> tuple[Message | None, bool]:
        """Store what the request adds. Returns the message to answer, and whether a former request has stored it."""
        store, chat = self._store, asked.conversation_id
        authored = await self._authored(asked, http)
        stored = await store.get(chat, limit=LISTED) if asked.results or len(authored) > 1 else []
        # Front ends repeat messages without an answer. The earlier ones stay as they are stored.
        known = {one.id for one in stored}
        added = [*new_results(asked.results, stored), *(one for one in authored[:-1] if one.id not in known)]
        added += authored[-1:]
        if asked.responses:
            answered, is_new = await self._respond(asked)
            if not added:
                return answered, not is_new
        if not added:
            given = _given(asked, stored)
            return given, given is not None
        author = added[-1].participant
        if author is not None:
            record = await store.get_conversation(chat)
            if record is None:
                record = await store.create_conversation(Conversation(chat, user_id=author.id), exist_ok=True)
            if record.user_id != author.id:  # perhaps somebody else has begun it after the first check
                await self.check(http, chat, "append")
        done = await store.append_many(chat, added)
        return done[-1].message, all(one.duplicate for one in done)

    async def _respond(self, asked: Asked) -> tuple[Message | None, bool]:
        """Store responses of the user to requests for approval. Returns the message with the last of these requests,
        and whether a response is new."""
        is_new = False
        while True:
            snapshot = await self._store.snapshot(asked.conversation_id, limit=LISTED)
            found = ((one, with_responses(one, asked.responses)) for one in snapshot.messages)
            changed = next((new for one, new in found if new not in (one, None)), None)
            if changed is None:
                return _given(asked, snapshot.messages), is_new
            with suppress(RevisionConflictError):  # somebody else may have responded: read again
                revision = snapshot.cursor.revision
                await self._store.update_message(asked.conversation_id, changed, expected_revision=revision)
                is_new = True

    async def _is_copy(self, asked: Asked, run: RunInfo) -> bool:
        """Whether a run answers an earlier copy of this request."""
        if asked.messages:
            last = await self._store.get_message(asked.conversation_id, asked.messages[-1].id)
        else:
            stored = await self._store.get(asked.conversation_id, limit=LISTED)
            last = None if new_results(asked.results, stored) else _given(asked, stored)
        return last is not None and self._protocol.answered_by(run, last) is not None

    async def _authored(self, asked: Asked, http: Request) -> list[Message]:
        """The messages of a request, with their author."""
        user = await self.signed_in(http) if asked.messages else None
        return [replace(one, participant=user) if one.role == "user" else one for one in asked.messages]

    async def _remove(self, chat: str, after: Position, through: Position | None) -> None:
        """Remove the messages between two positions, and answers that were still being written there; messages that
        users have sent in the meantime stay."""

        def is_replaced(one: Message) -> bool:
            old = through is not None and one.position is not None and one.position <= through
            return old or one.role in ("assistant", "tool")

        removed = [one.id for one in await self._following(chat, after) if is_replaced(one)]
        for start in range(0, len(removed), LISTED):
            await self._store.delete_messages(chat, removed[start : start + LISTED])

    async def _following(self, chat: str, after: Position | None) -> list[Message]:
        """The messages after another one. A summary in its place or behind it is expanded first, because it may stand
        for this message and former ones, too."""
        assert after is not None  # noqa: S101 -- of a stored message
        since, tried = after._replace(sequence=after.sequence - 1), set[str]()
        while True:
            found = [one async for one in self._store.iter(chat, since=since)]
            summary = next((one.id for one in found if one.is_summary and one.id not in tried), None)
            if summary is None:
                return [one for one in found if one.position is not None and one.position > after]
            tried.add(summary)
            with suppress(MessageNotFoundError):  # it is a copy, or was expanded or replaced meanwhile
                await self._store.expand(chat, summary)

    # The answer

    async def _work(
        self, run: AsyncRun, replaced: tuple[Position, Position | None] | None, answered: str | None
    ) -> None:
        """Call the user's function in its run. Independent of any request. `replaced`: between which positions messages
        are removed first: in the run, because nobody else writes an answer there then. `answered`: the id of the
        message that it answers."""
        try:
            async with run:
                chat = run.conversation_id
                left: Any = self._store.get_message(chat, answered) if answered else self._store.get(chat, limit=1)
                if not await left:  # an answer would create the chat again
                    raise MessageNotFoundError("the message or its chat was removed while it waited")
                if replaced is not None:
                    await self._remove(chat, *replaced)
                if is_coroutine_function(self._answer):
                    outcome: Any = self._answer(run)
                else:  # in a thread of its own: the event loop has few, which `authorize` needs, and waits for them
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


def _given(asked: Asked, stored: list[Message]) -> Message | None:
    """The last stored message that has results for the same calls as a request, or responses to the same requests for
    approval."""
    calls = {result.tool_use_id for one in asked.results for result in one.tool_results}

    def is_given(one: Message) -> bool:
        return bool(calls.intersection(part.tool_use_id for part in one.tool_results)) or (
            with_responses(one, asked.responses) == one
        )

    return next(filter(is_given, reversed(stored)), None)


class _Route(BaseRoute):
    """The path of an application, and everything below it."""

    def __init__(self, app: ChatEndpoints, path: str) -> None:
        self.app, self.path = app, path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root) if scope["type"] == "http" else ""
        if path != self.path and not path.startswith(f"{self.path}/"):
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
