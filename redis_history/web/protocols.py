"""The messages that chat front ends send and read: the AI SDK and AG-UI."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from redis_history._async.store import AsyncHistoryStore
from redis_history.formats import from_vercel_ai, to_vercel_ai
from redis_history.integrations import ai_sdk
from redis_history.model import Message, Position, tool
from redis_history.model.pairs import open_calls
from redis_history.model.runs import RunInfo
from redis_history.web._http import bad_input

T = TypeVar("T")

#: Messages of a conversation that a client gets.
LISTED: Final = 1000


class Asked(Struct):
    """A request for an answer.

    `messages` are to be stored; `results` too, if their calls wait for one; and `responses` to requests for approval,
    by the ids of these. `replaces`: the id of the message after which everything is removed, and which `messages`
    changes, if there are any and it does not `keep` its content. `fork`: the id of a new conversation for this, a fork
    up to that message; the present one stays as it is. `run_id`: of the protocol. `message_id`: of the message of the
    client that the answer continues, which has these `calls`.
    """

    conversation_id: str
    messages: Sequence[Message] = ()
    results: Sequence[Message] = ()
    replaces: str | None = None
    fork: str | None = None
    run_id: str | None = None
    message_id: str | None = None
    calls: frozenset[str] = frozenset()
    responses: Mapping[str, dict[str, Any]] = {}
    keep: bool = False


def new_results(results: Sequence[Message], stored: Sequence[Message]) -> list[Message]:
    """The messages to store for results of front-end tools: the newest for each call that waits for one, without those
    that an earlier copy of the request has stored. Models may use the id of a call again."""
    waiting = Counter(call.id for _, calls in open_calls(stored) for call in calls)
    kept = {one.id: {result.tool_use_id for result in one.tool_results} for one in stored if one.tool_results}
    found = []
    for one in reversed(results):
        known = set[str]().union(*(kept.get(_result_id(one, part.tool_use_id), ()) for part in one.tool_results))
        new = []
        for part in reversed(one.tool_results):
            if waiting[part.tool_use_id] > 0 and part.tool_use_id not in known:
                waiting[part.tool_use_id] -= 1
                new.append(part)
        if new:
            found.append(tool(*reversed(new), id=_result_id(one, new[-1].tool_use_id)))
    return found[::-1]


def _result_id(message: Message, call_id: str) -> str:
    """The id of the stored message for results in a message of the client, of which this one comes first."""
    return f"{message.id}.{call_id}"[:200]


class Protocol(abc.ABC):
    """The form of requests and answers."""

    headers: ClassVar[Mapping[str, str]] = {}
    #: The last event of a stream that is cut before its answer ends, so that the client reconnects.
    farewell: bytes
    #: Whether a client that reconnects gets the conversation, also if no answer is being written.
    has_snapshots: ClassVar[bool] = False
    #: Whether a client sends a message again to get another answer after a failed one.
    repeats_failed: ClassVar[bool] = False

    def __init__(self, store: AsyncHistoryStore) -> None:
        self._store = store

    def answered_by(self, run: RunInfo | None, message: Message) -> str | None:
        """The id of the run that answers a stored message, if `run`, the newest, has begun or lists it since."""
        if run is None or message.timestamp is None:
            return None
        # To the millisecond, because the times at which callers began to wait have no more digits.
        stored = message.timestamp.replace(microsecond=message.timestamp.microsecond // 1000 * 1000)
        if run.started_at >= stored:
            failed = run.status in ("failed", "interrupted") and self.repeats_failed
            return next((place.run_id for place in run.waiting), None) if failed else run.run_id
        return next((place.run_id for place in run.waiting if place.since >= stored), None)

    async def resumed_after(self, chat: str) -> Position | None:
        """The position after which the messages come that a client gets which reconnects. None: the run began then."""
        return None

    @abc.abstractmethod
    def read(self, body: Any) -> Asked:
        """The request in the body of `POST /`. Raises Refused, InvalidMessageError."""

    @abc.abstractmethod
    def write(self, messages: list[Message]) -> Any:
        """Messages as JSON."""

    @abc.abstractmethod
    def stream(
        self, asked: Asked, run_id: str | None, after: Position | None, *, resumed: bool
    ) -> AsyncGenerator[bytes, None]:
        """The server-sent events of the answer of a run, from its start: those that are known at the same time
        together, and b"" while nothing happens."""


class _Options(Struct, rename="camel"):
    """Further wishes of a client: see `replaces` and `fork` of Asked."""

    message_id: str | None = None
    fork: str | None = None


class _Response(Struct, omit_defaults=True):
    """The response of a user to a request for approval of a call."""

    id: str
    approved: bool
    reason: str | None = None


class _UiRequest(_Options, rename="camel", kw_only=True):
    """The body of a request of the AI SDK. Other fields are the application's own."""

    id: str
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"


def _converted(given: Any, kind: type[T]) -> T:
    """An object of the client. Raises Refused."""
    try:
        return convert(given, kind)
    except ValidationError as error:
        raise bad_input(f"the body of the request is wrong: {error}") from error


class AiSdk(Protocol):
    """The request of `DefaultChatTransport`: all messages of the client, and what it wants with the last of them."""

    headers: ClassVar[Mapping[str, str]] = {
        name: value for name, value in ai_sdk.HEADERS.items() if name != "content-type"
    }
    farewell = ai_sdk.CUT

    def read(self, body: Any) -> Asked:
        given = _converted(body, _UiRequest)
        last = given.messages[-1]
        if given.trigger == "regenerate-message":
            # The requests before may all have been refused: then the message is new.
            new = from_vercel_ai([last]) if last.get("role") == "user" and given.fork is None else ()
            return Asked(given.id, new, replaces=str(last.get("id", "")), fork=given.fork, keep=True)
        # Results and responses may be those of an earlier message, which has this id.
        named = (one for one in given.messages if one.get("id") == given.message_id and one.get("role") == "assistant")
        last = next(named, last)
        found = from_vercel_ai([last])
        if last.get("role") == "user":
            return Asked(given.id, found, replaces=given.message_id, fork=given.fork)
        responded = [part.get("approval") for part in last["parts"] if part.get("state") == "approval-responded"]
        return Asked(
            given.id,
            results=[one for one in found if one.tool_results],
            responses={one.id: to_builtins(one) for one in (_converted(given, _Response) for given in responded)},
            message_id=last["id"],
            calls=frozenset(call.id for one in found for call in one.tool_uses),
        )

    async def resumed_after(self, chat: str) -> Position | None:
        """The stream replaces one UI message of the client: that which is being written, or else the last one. An
        earlier one may be of the same run, if the user has sent a message in the meantime."""
        stored = await self._store.get(chat, limit=LISTED)
        written = next((at for at, one in enumerate(stored) if one.status == "streaming"), len(stored) - 1)
        shown = self.write(stored[: written + 1])
        if not shown:
            return Position(0, 0)
        if shown[-1]["role"] != "assistant":
            return stored[-1].position
        names = ((one.id, one.provider_meta.get("vercel_ai", {}).get("of")) for one in stored)
        first = next(at for at, ids in enumerate(names) if shown[-1]["id"] in ids)
        return stored[first - 1].position if first else Position(0, 0)

    def write(self, messages: list[Message]) -> Any:
        return to_vercel_ai(messages, on_loss=lambda loss: None)

    async def stream(
        self, asked: Asked, run_id: str | None, after: Position | None, *, resumed: bool
    ) -> AsyncGenerator[bytes, None]:
        options: dict[str, Any] = {"run_id": run_id, "after": after, "whole": resumed}
        options |= {"message_id": asked.message_id, "calls": asked.calls}
        async for chunks in ai_sdk.chunks_of(self._store, asked.conversation_id, **options):
            yield b"".join(map(ai_sdk.frame, chunks))
        yield ai_sdk.DONE


class AgUi(Protocol):
    """The request of `HttpAgent`: a `RunAgentInput` with all messages of the client."""

    headers: ClassVar[Mapping[str, str]] = {"cache-control": "no-cache"}
    has_snapshots = True
    repeats_failed = True

    def __init__(self, store: AsyncHistoryStore) -> None:
        super().__init__(store)
        from redis_history.integrations import ag_ui  # needs an extra

        self._form = ag_ui
        self.farewell = self._frame(ag_ui.CUT)

    def read(self, body: Any) -> Asked:
        try:
            given = self._form.RunAgentInput.model_validate(body)
        except ValueError as error:
            raise bad_input(f"the body must be a RunAgentInput: {str(error)[:500]}") from error
        wanted = _converted(given.forwarded_props if isinstance(given.forwarded_props, dict) else {}, _Options)
        found = self._form.from_ag_ui(given)
        users = [one for one in found if one.role == "user"]
        results = [one for one in found if one.role == "tool"]
        if not found:  # the client asks again
            last = wanted.message_id or next((one.id for one in reversed(given.messages) if one.role == "user"), None)
            if last is None:
                raise bad_input("messages must have a message of the user")
            return Asked(given.thread_id, replaces=last, fork=wanted.fork, run_id=given.run_id)
        return Asked(given.thread_id, users, results, wanted.message_id, wanted.fork, given.run_id)

    def write(self, messages: list[Message]) -> Any:
        return [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in self._form.to_ag_ui(messages)]

    async def stream(
        self, asked: Asked, run_id: str | None, after: Position | None, *, resumed: bool
    ) -> AsyncGenerator[bytes, None]:
        replaces = asked.replaces is not None
        snapshot = resumed or replaces  # the client may have what is replaced
        chat = asked.conversation_id
        async for events in self._form.events_of(self._store, chat, run_id, after, asked.run_id, snapshot, replaces):
            yield b"".join(map(self._frame, events))

    def _frame(self, event: Any) -> bytes:
        return b"data: %b\n\n" % event.model_dump_json(by_alias=True, exclude_none=True).encode()
