"""Convert the input and output of an agent to messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

from msgspec.structs import replace

from redis_history.errors import InvalidInputError
from redis_history.values import Message, Part, Participant, TextPart, assistant, user
from redis_history.values._validation import refuse
from redis_history.values.replies import merged

#: Metadata of the channel, which an answer inherits from the message that it answers.
_CHANNEL = ("channel_type", "channel_name", "channel_id", "thread_id")


def from_inbound(value: Any, author: Participant | None = None) -> list[Message]:
    """Convert a Message, text, a chat dict, parts or a list of messages. A list counts as the tool results at its end,
    or as its last message, because the others are from earlier calls.

    Raises InvalidInputError for anything else.
    """
    if isinstance(value, list | tuple) and value and not _are_parts(value):
        results = list(takewhile(_is_result, reversed(value)))[::-1]
        return [message for item in results or value[-1:] for message in _from_one(item, author)]
    return _from_one(value, author)


def _is_result(value: Any) -> bool:
    """Whether this is a message with the result of a tool. Those of parallel calls come together."""
    role = value.role if isinstance(value, Message) else value.get("role") if isinstance(value, Mapping) else None
    return role in ("tool", "function")


def _from_one(value: Any, author: Participant | None) -> list[Message]:
    if isinstance(value, Message):
        return [value]  # unchanged: it may already be stored, and different content would be a conflict
    found = _messages(value, "user", "inbound")
    return [
        replace(one, participant=author) if one.participant is None and one.role == "user" else one for one in found
    ]


def from_outbound(value: Any) -> list[Message]:
    """Convert a Message, text, a chat dict, parts or a list of these; None gives no message. Raises InvalidInputError
    for anything else."""
    if isinstance(value, list | tuple) and not _are_parts(value):
        return [message for item in value for message in _messages(item, "assistant", "outbound")]
    return _messages(value, "assistant", "outbound")


def read_chunk(chunk: Any) -> Message | Part | str | None:
    """A chunk of a stream, if it is a message, a part or text; None for another type."""
    return chunk if isinstance(chunk, Message | str | Part) else None


def from_chunks(chunks: Sequence[Any]) -> list[Message]:
    """Join the streamed chunks to one message; Messages among them stay separate. Raises InvalidInputError if no chunk
    belongs to either kind."""
    found: list[Message] = []
    parts: list[Part] = []
    known = False

    def close_message() -> None:
        if any(type(part) is not TextPart or part.text.strip() for part in parts):
            found.append(assistant(list(merged((), parts))))
        parts.clear()

    for chunk in chunks:
        piece = read_chunk(chunk)
        if isinstance(piece, Message):
            close_message()
            found.append(piece)
        elif piece:
            parts.append(TextPart(piece) if isinstance(piece, str) else piece)
        known = known or piece is not None
    close_message()
    if chunks and not known:
        raise InvalidInputError(
            f"the {len(chunks)} chunks of type {type(chunks[0]).__name__} are not text, parts or messages: yield their "
            "text, or pass outbound="
        )
    return found


def answering(
    messages: Iterable[Message], inbound: Message | None, agent: Participant | None, *, interrupted: bool = False
) -> list[Message]:
    """Complete answers: the status, and the participant, the scope, the trace and the channel where they are absent."""

    def complete(message: Message) -> Message:
        if message.sequence is not None:  # already stored; appending it unchanged changes nothing
            return message
        fields: dict[str, Any] = {"status": "interrupted"} if interrupted else {}
        if message.participant is None and message.role in ("assistant", "tool"):
            fields["participant"] = agent
        if inbound is not None:
            channel = {key: inbound.metadata[key] for key in _CHANNEL if key in inbound.metadata}
            fields["metadata"] = {**channel, **message.metadata}
            fields["scope"] = message.scope or inbound.scope
            fields["trace_id"] = message.trace_id or inbound.trace_id
        return replace(message, **fields)

    return [complete(message) for message in messages]


def as_participant(given: Any, kind: Any) -> Participant | None:
    """A participant from a Participant or its id. Raises InvalidInputError for anything else."""
    if given is None or isinstance(given, Participant):
        return given
    if not isinstance(given, str) or not given:
        refuse(given, kind, "None, a Participant or its id", InvalidInputError)
    return Participant(kind, given)


def _messages(value: Any, role: Literal["user", "assistant"], name: str) -> list[Message]:
    """A single message from any of the accepted values. Returns None for None and blank text."""
    make = user if role == "user" else assistant
    if value is None:
        return []
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str) and not value.strip():
        return []
    if isinstance(value, str | Part) or _are_parts(value):
        return [make(value)]
    if isinstance(value, Mapping) and ("content" in value or "tool_calls" in value):
        from redis_history.formats import from_openai_chat  # imported here, because most callers do not need it

        return from_openai_chat([{"role": role, **value}])
    raise InvalidInputError(
        f"a value of type {type(value).__name__} is not a Message, text or a chat dict: pass {name}="
    )


def _are_parts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Part) for item in value)
