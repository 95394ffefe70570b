"""The requests and streams of chat front ends: the AI SDK and AG-UI."""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Raw, Struct

from redis_history.formats import to_vercel_ai
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.values import Message, Position
from redis_history.web import ai_sdk
from redis_history.web import client_messages as client
from redis_history.web._answers import newest_messages
from redis_history.web._http import Refused, bad_input
from redis_history.web._questions import Question
from redis_history.web.client_messages import Asked

#: Messages of a conversation that a client gets.
LISTED = 1000


class Protocol(abc.ABC):
    """The form of requests and answers."""

    headers: ClassVar[Mapping[str, str]] = {}
    #: The last event of a stream that is cut before its answer ends, so that the client reconnects.
    farewell: bytes
    #: Whether a client that reconnects gets the conversation, also if no answer is being written.
    has_snapshots: ClassVar[bool] = False
    #: Whether a client sends a message again to get another answer after a failed one.
    repeats_failed: ClassVar[bool] = False

    def __init__(self, store: AsyncHistoryStore, size: int) -> None:
        """`size`: the bytes of messages that one request reads at most."""
        self._store, self._size = store, size

    async def resumed_after(self, chat: str) -> Position | None:
        """The position after which the messages come that a client gets which reconnects. None: the run began then."""
        return None

    @abc.abstractmethod
    def begin(self, body: bytearray) -> tuple[str, Any]:
        """The id of the chat in the body of `POST /`, and what `read` needs. Parses nothing else of the body,
        because the rights of the sender are not yet known. Raises Refused."""

    @abc.abstractmethod
    def read(self, given: Any) -> Asked:
        """The request. Raises Refused, InvalidInputError."""

    @abc.abstractmethod
    def write(self, messages: list[Message]) -> Any:
        """Messages as JSON."""

    @abc.abstractmethod
    def stream(
        self, asked: Asked, answered: Question | str | None, after: Position | None, *, resumed: bool
    ) -> AsyncGenerator[bytes, None]:
        """The server-sent events of the answer to a question, or of the run with this id, from its start: those that
        are known at the same time together, and b"" while nothing happens."""


class _Options(Struct, rename="camel"):
    """Further wishes of a client: see `replaces` and `fork` of Asked."""

    message_id: str | None = None
    fork: str | None = None


class _UiRequest(_Options, rename="camel", kw_only=True):
    """The body of a request of the AI SDK. Other fields are the application's own."""

    id: str
    messages: Raw
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"


class AiSdk(Protocol):
    """The request of `DefaultChatTransport`: all messages of the client, and what it wants with the last of them."""

    headers: ClassVar[Mapping[str, str]] = {
        name: value for name, value in ai_sdk.HEADERS.items() if name != "content-type"
    }
    farewell = ai_sdk.CUT

    def begin(self, body: bytearray) -> tuple[str, Any]:
        given = client.decoded(body, _UiRequest)
        return given.id, given

    def read(self, given: _UiRequest) -> Asked:
        found = client.listed(given.messages, client.UiHead, "messages must be UI messages")
        last, raw = found[-1]
        if given.trigger == "regenerate-message":
            asked = Asked(given.id, replaces=last.id, fork=given.fork, keep=True)
            if last.role == "user" and given.fork is None:
                # The requests before may all have been refused: then the message is new.
                try:
                    asked.messages = [client.ui_user_message(raw)]
                except Refused as error:
                    asked.refusal = error
            return asked
        # Results and responses may be those of an earlier message, which has this id.
        named = (one for one in reversed(found) if one[0].id == given.message_id and one[0].role == "assistant")
        newest, (last, raw) = last, next(named, (last, raw))
        if last.role == "user":
            return Asked(given.id, [client.ui_user_message(raw)], replaces=given.message_id, fork=given.fork)
        answers = client.ui_answers(raw) if last.role == "assistant" else None
        if answers is None or not (answers.results or answers.responses):
            raise bad_input(
                "the last message must be the user's, or have results of tools in the browser or responses to requests "
                f"for approval; it has the role {last.role!r} and none of these"
            )
        return Asked(
            given.id,
            results=answers.results,
            responses=answers.responses,
            fork=given.fork,
            message_id=answers.message_id,
            calls=answers.calls,
            copy=newest.id if newest.role == "user" else None,
        )

    async def resumed_after(self, chat: str) -> Position | None:
        """The stream replaces one UI message of the client: that which is being written, or else the last one. An
        earlier one may be of the same run, if the user has sent a message in the meantime."""

        def shown_of(stored: list[Message]) -> Any:
            written = next((at for at, one in enumerate(stored) if one.status == "streaming"), len(stored) - 1)
            return self.write(stored[: written + 1])

        def is_enough(stored: list[Message]) -> bool:
            return len(shown_of(stored)) > 1  # the last one is whole

        stored, _ = await newest_messages(self._store, chat, is_enough, most=LISTED, size=self._size)
        shown = shown_of(stored)
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
        self, asked: Asked, answered: Question | str | None, after: Position | None, *, resumed: bool
    ) -> AsyncGenerator[bytes, None]:
        options: dict[str, Any] = {**_named(answered), "after": after, "whole": resumed}
        options |= {"message_id": asked.message_id, "calls": asked.calls}
        async for chunks in ai_sdk.chunks_of(self._store, asked.conversation_id, **options):
            yield b"".join(map(ai_sdk.frame, chunks))
        yield ai_sdk.DONE


class _AgRequest(Struct, rename="camel"):
    """A `RunAgentInput`. Tools, context and state are for agents in other places."""

    thread_id: str
    run_id: Annotated[str, Meta(max_length=512)]  # comes back in each event
    messages: Raw
    forwarded_props: Raw = Raw()
    resume: Raw = Raw()


class AgUi(Protocol):
    """The request of `HttpAgent`: a `RunAgentInput` with all messages of the client."""

    headers: ClassVar[Mapping[str, str]] = {"cache-control": "no-cache"}
    has_snapshots = True
    repeats_failed = True

    def __init__(self, store: AsyncHistoryStore, size: int) -> None:
        super().__init__(store, size)
        from redis_history.web import ag_ui  # needs an extra

        self._form = ag_ui
        self.farewell = self._frame(ag_ui.CUT)

    def begin(self, body: bytearray) -> tuple[str, Any]:
        given = client.decoded(body, _AgRequest)
        return given.thread_id, given

    def read(self, given: _AgRequest) -> Asked:
        responses = {} if bytes(given.resume) in (b"", b"null", b"[]") else client.ag_responses(given.resume)
        props = given.forwarded_props
        wanted = client.decoded(props, _Options) if bytes(props).startswith(b"{") else _Options()
        found = client.listed(given.messages, client.AgHead, "messages must be those of a RunAgentInput")
        if (role := found[-1][0].role) in ("system", "developer"):
            raise bad_input(f"the last message must not have the role {role!r}, which no client may send")
        users, results = client.ag_added(found)
        if responses:
            # Behind the question of the user, which the client sends again, come the calls that wait.
            if wanted.message_id is not None:
                raise bad_input("a request with resume edits no message, and answers none again")
            return Asked(given.thread_id, users, results, fork=wanted.fork, run_id=given.run_id, responses=responses)
        if users or results:
            return Asked(given.thread_id, users, results, wanted.message_id, wanted.fork, given.run_id)
        last = wanted.message_id or client.ag_last_user(found)  # the client asks again
        if last is None:
            raise bad_input("messages must have a message of the user")
        is_named = wanted.message_id is not None
        return Asked(given.thread_id, replaces=last, fork=wanted.fork, run_id=given.run_id, is_named=is_named)

    def write(self, messages: list[Message]) -> Any:
        return [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in self._form.to_ag_ui(messages)]

    async def stream(
        self, asked: Asked, answered: Question | str | None, after: Position | None, *, resumed: bool
    ) -> AsyncGenerator[bytes, None]:
        replaces = asked.replaces is not None
        snapshot = resumed or replaces  # the client may have what is replaced
        chat = asked.conversation_id
        named = {"run_id": None, **_named(answered)}
        begun = chat, named.pop("run_id"), after, asked.run_id, snapshot, replaces
        async for events in self._form.events_of(self._store, *begun, size=self._size, **named):
            yield b"".join(map(self._frame, events))

    def _frame(self, event: Any) -> bytes:
        return b"data: %b\n\n" % event.model_dump_json(by_alias=True, exclude_none=True).encode()


def _named(answered: Question | str | None) -> dict[str, Any]:
    """The options for a question or the id of a run."""
    return {"question": answered} if isinstance(answered, Question) else {"run_id": answered}
