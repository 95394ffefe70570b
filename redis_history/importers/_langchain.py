"""Import lists of messages that LangChain wrote with `messages_to_dict`, `dumpd` or `dumps`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.formats import from_langchain
from redis_history.importers._convert import each, rest, scalar
from redis_history.importers.source import Source
from redis_history.importers.transcript import Transcript, Turn, build

__all__ = ["is_langchain", "langchain"]

_KEYS = ("session_id", "conversation_id", "thread_id", "id")
_TYPES = frozenset(("human", "ai", "system", "tool", "function", "chat"))

_FOREIGN = frozenset(("role", "uuid", "sessionId"))  # keys of provider messages and of Claude Code entries


def is_langchain(record: Any) -> bool:
    """Whether `record` is a message, a list of messages, or an object that contains such a list."""
    found = _messages(record)
    return _is_message(record) if found is None else bool(found) and all(map(_is_message, found))


def langchain(source: Source) -> Iterator[Transcript]:
    """Import one conversation per list. If each line is a single message, the lines form one conversation."""
    if source.head and _is_message(source.head[0]):
        yield from _lines(source)
    else:
        yield from each(source, _conversation)


def _is_message(record: Any) -> bool:
    match record:
        case {"type": str(kind), "data": {"content": _}}:
            return kind.removesuffix("MessageChunk").lower() in _TYPES
        case {"lc": int(), "id": [*_, str(name)], "kwargs": Mapping()}:
            return name.endswith(("Message", "MessageChunk"))
        case {"type": str(kind), "content": _}:
            return kind in _TYPES and _FOREIGN.isdisjoint(record)
    return False


def _messages(record: Any) -> list[Any] | None:
    if isinstance(record, list):
        return record
    found = record.get("messages") if isinstance(record, dict) else None
    return found if isinstance(found, list) else None


def _conversation(source: Source, line: int, record: Any) -> Transcript:
    messages = _messages(record)
    if messages is None:
        raise InvalidMessageError("the record must be a list of LangChain messages or an object with `messages`")
    outer = record if isinstance(record, dict) else {}
    key = next(filter(None, (scalar(outer.get(name)) for name in _KEYS)), None)
    return build(
        [_turn(message) for message in messages],
        format="langchain",
        key=f"{source.name}:{key or line}",
        on_bad_line=source.problem,
        title=scalar(outer.get("title")),
        metadata=rest(outer, "messages", "title"),
    )


def _lines(source: Source) -> Iterator[Transcript]:
    turns = []
    records = source.of_one_conversation()
    if not records:
        return
    for line, record in records:
        try:
            turns.append(_turn(record)._replace(line=line))
        except InvalidInputError as error:
            source.problem(line, str(error))
    yield build(turns, format="langchain", key=source.name, on_bad_line=source.problem)


def _turn(record: Any) -> Turn:
    (message,) = from_langchain([record])
    data = next((record[key] for key in ("data", "kwargs") if isinstance(record.get(key), Mapping)), record)
    return Turn(message, id=scalar(data.get("id")))
