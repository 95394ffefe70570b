"""Converts messages of a file one by one, so that each invalid message is reported without affecting others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.formats import from_anthropic, from_langchain, from_openai_chat, from_openai_responses
from redis_history.integrations.importers._columns import scalar, time_of
from redis_history.integrations.importers._records import Form, is_langchain
from redis_history.integrations.importers._sharegpt import chat_messages
from redis_history.integrations.importers.transcript import Turn
from redis_history.values import Message, TextPart, Usage

_CHAT_ROLES: Final = ("user", "assistant", "system", "developer", "tool", "function")
#: The roles of messages; of LangChain, whose messages have types instead, those of a `ChatMessage`.
_ROLES: Final[Mapping[Form, Sequence[str]]] = {
    "openai_chat": _CHAT_ROLES,
    "sharegpt": _CHAT_ROLES,
    "openai_responses": ("user", "assistant", "system", "developer"),
    "anthropic": ("user", "assistant", "system"),
    "langchain": ("user", "human", "assistant", "ai", "system"),
}
_CONVERT: Final[Mapping[Form, Callable[[list[Any]], list[Message]]]] = {
    "openai_chat": from_openai_chat,
    "sharegpt": from_openai_chat,
    "openai_responses": from_openai_responses,
    "anthropic": from_anthropic,
    "langchain": from_langchain,
}
#: Keys with content for which messages have no part.
_CONTENT: Final = ("refusal", "audio", "invalid_tool_calls", "additional_kwargs")
#: Reports a problem of a line.
Report = Callable[[int, str], None]


class Item(NamedTuple):
    """A message of a file: its line, the message, the columns around it, and the usage beside it."""

    line: int
    message: Any
    columns: Mapping[str, Any]
    usage: Usage | None = None


def turns_of(items: list[Item], form: Form, report: Report) -> Iterator[Turn]:
    messages: list[Any] = [item.message for item in items]
    kept: list[tuple[Item, Message]] = []
    for number, (item, message) in enumerate(zip(items, _chats(messages, form), strict=True)):
        try:
            converted = _converted(message, form)
        except InvalidInputError as error:
            report(item.line, str(error).replace(" 0", f" {number}", 1))
            continue
        if form == "openai_responses":
            kept.append((item, converted))
        else:
            yield _turn(converted, item, form)
    # Several items of the Responses API can be one message, which has their parts in order.
    rest = iter(kept)
    for whole in from_openai_responses(item.message for item, _ in kept):
        first, converted = next(rest)
        last, count = first, len(converted.parts)
        while count < len(whole.parts):
            last, converted = next(rest)
            count += len(converted.parts)
        yield _turn(whole, first._replace(usage=last.usage), form)


def _turn(message: Message, item: Item, form: Form) -> Turn:
    """A message with the id, the time and the usage of its item: of several, the id and the time of the first, and the
    usage of the last."""
    if item.usage is not None:
        message = replace(message, usage=item.usage)
    id_ = scalar(_data(item.message, form).get("id")) or scalar(item.columns.get("id"))
    time = time_of(item.columns)
    return Turn(message, id=id_, time=time, at=time, line=item.line)


def _chats(messages: list[Any], form: Form) -> Iterable[Any]:
    return chat_messages(messages) if form == "sharegpt" else messages


def _converted(message: Any, form: Form) -> Message:
    """Convert a message. Raises InvalidMessageError for an unknown role, or without content."""
    if isinstance(message, InvalidMessageError):
        raise message
    if form == "langchain" and not is_langchain(message):
        raise InvalidMessageError("message 0 is none of LangChain")
    if form == "openai_responses" and isinstance(message, dict) and not message.keys() & {"role", "type"}:
        raise InvalidMessageError("message 0 has neither a role nor a type")
    (found,) = _CONVERT[form]([message])
    data, known = _data(message, form), _ROLES[form]
    if "role" in data and (role := data["role"]) not in known:
        raise InvalidMessageError(f"message 0 has the unknown role {str(role)[:40]!r}; known roles: {', '.join(known)}")
    is_empty = all(isinstance(part, TextPart) and not part.text for part in found.parts)
    if form == "openai_responses":  # an opaque block may be empty, and a reply becomes a part
        is_empty = "role" in message and _is_blank(message.get("content"))
    if is_empty and not any(data.get(name) for name in _CONTENT):
        raise InvalidMessageError(f"message 0 of role {found.role} is empty: it has neither text nor anything else")
    return found


def _is_blank(content: Any) -> bool:
    blocks = content if isinstance(content, list) else []
    return not content or (bool(blocks) and all(isinstance(one, dict) and one.get("text") == "" for one in blocks))


def _data(message: Mapping[str, Any], form: Form) -> Mapping[str, Any]:
    """Where a message has its content: LangChain's have it in `data` or `kwargs`."""
    keys = ("data", "kwargs") if form == "langchain" else ()
    return next((message[key] for key in keys if isinstance(message.get(key), Mapping)), message)
