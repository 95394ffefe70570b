"""The options of `capture`, and how it reads a call of the agent. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from redis_history.agents.capturing.mapping import from_chunks, from_inbound, from_outbound
from redis_history.errors import InvalidInputError
from redis_history.values import Message, Participant
from redis_history.values._validation import check_choice, check_function
from redis_history.values.ids import check_conversation_id

#: Called with the error, the conversation id (None if unknown) and the messages that were not recorded.
OnError = Callable[[Exception, str | None, list[Message]], object]
IdOrFunction = str | Callable[..., str] | None


class Settings(Struct, frozen=True):
    """The validated options of `capture`. Raises ConfigurationError, InvalidConversationIdError."""

    conversation_id: IdOrFunction = None
    agent: Participant | None = None
    user: Participant | None = None
    inbound: Callable[..., Any] | None = None
    outbound: Callable[[Any], Any] | None = None
    on_error: OnError | None = None
    live: bool = True

    def __post_init__(self) -> None:
        if self.conversation_id is not None and not callable(self.conversation_id):
            check_conversation_id(self.conversation_id)
        for name in ("inbound", "outbound"):
            check_function(getattr(self, name), name)
        check_choice(self.live, "live", (True, False))

    @property
    def shows_chunks(self) -> bool:
        """Whether an answer is shown while the agent streams it."""
        return self.live and self.outbound is None

    def read_call(
        self, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, list[Message]]:
        """The conversation id and the input messages of a call. Raises the errors of the caller's functions, and
        InvalidInputError if either cannot be determined."""
        given = _given(signature, args, kwargs)
        value = self.inbound(*args, **kwargs) if self.inbound is not None else _first_message(given)
        messages = from_inbound(value, self.user)
        return self._conversation(given, args, kwargs), messages

    def read_turn(self, message: Any, conversation_id: str | None) -> tuple[str, list[Message]]:
        """The same for a turn of the context manager. Raises like `read_call`."""
        args = () if message is None else (message,)
        value = message if self.inbound is None or message is None else self.inbound(message)
        found = conversation_id if conversation_id is not None else self._conversation({}, args, {})
        check_conversation_id(found)
        return found, from_inbound(value, self.user)

    def read_result(self, result: Any) -> list[Message]:
        """The messages for the return value of an agent."""
        return from_outbound(result if self.outbound is None else self.outbound(result))

    def read_chunks(self, chunks: list[Any]) -> list[Message]:
        """The messages for the chunks that an agent streamed."""
        return from_chunks(chunks) if self.outbound is None else from_outbound(self.outbound(chunks))

    def _conversation(self, given: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        found: Any = self.conversation_id
        if callable(found):
            found = found(*args, **kwargs)
        if found is None:
            found = given.get("conversation_id")
        if found is None:
            raise InvalidInputError(
                "the call has no conversation id: pass conversation_id=, an id or a function of the arguments"
            )
        check_conversation_id(found)
        return str(found)


def _given(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of their parameters. Wrong arguments are ignored here, because the call of the agent
    raises the error."""
    names = [] if signature is None else [*signature.parameters]
    numbers = map(str, range(len(names), len(args)))
    return dict(zip([*names, *numbers], args, strict=False)) | kwargs


def _first_message(given: dict[str, Any]) -> Any:
    for name, value in given.items():
        if name == "conversation_id":
            continue
        if isinstance(value, Message | str) or (isinstance(value, Mapping) and "content" in value):
            return value
        if isinstance(value, list | tuple) and value and isinstance(value[-1], Message | Mapping):
            return value
    raise InvalidInputError("no argument of the call is a Message, text or a chat dict: pass inbound=")
