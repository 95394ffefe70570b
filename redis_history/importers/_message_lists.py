"""Import lists of messages of OpenAI chat completions, Anthropic and LangChain, as JSON or JSONL.

A record is a list of messages, or an object with `messages` (fine-tuning files), also inside `body` or `request` (batch
files). If each line is a single message, the lines form one conversation. LangChain's messages are those that
`messages_to_dict`, `dumpd` or `dumps` wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Literal

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.formats import from_anthropic, from_langchain, from_openai_chat
from redis_history.importers.source import Source, each
from redis_history.importers.transcript import Transcript, Turn, build, scalar

_Form = Literal["openai_chat", "anthropic", "langchain"]
_ANTHROPIC_BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"))
_KEYS = ("conversation_id", "id", "custom_id", "session_id", "thread_id")
_LANGCHAIN_KEYS = ("session_id", "conversation_id", "thread_id", "id")
_LANGCHAIN_TYPES = frozenset(("human", "ai", "system", "tool", "function", "chat"))
_TIMES = ("timestamp", "created_at")


def is_chat(record: Any) -> bool:
    """Whether `record` is a message, a list of messages, or an object that contains such a list."""
    found = _messages(record)
    items = [record] if found is None else found
    return all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in items)


def is_langchain(record: Any) -> bool:
    """The same for messages of LangChain."""
    return all(map(_is_langchain_message, _messages(record) or [record]))


def read_chats(source: Source, form: _Form | None = None) -> Iterator[Transcript]:
    """Read each conversation in this form; None: OpenAI's or Anthropic's, which differ only in the blocks."""
    first = source.head[0] if source.head else None
    if _is_langchain_message(first) if form == "langchain" else isinstance(first, dict) and "role" in first:
        yield from _lines(source, form)
    else:
        yield from each(source, partial(_conversation, form=form))


def _conversation(source: Source, line: int, record: Any, form: _Form | None) -> Transcript:
    messages = _messages(record)
    if messages is None:
        raise InvalidMessageError("the record must be a list of messages or an object with `messages`")
    outer = record if isinstance(record, dict) else {}
    system = outer.get("system")
    if form is None:
        form = "anthropic" if system is not None or _is_anthropic(messages) else "openai_chat"
    keys = _LANGCHAIN_KEYS if form == "langchain" else _KEYS
    key = next(filter(None, (scalar(outer.get(name)) for name in keys)), None)
    return build(
        _turns(messages, form, system),
        format=form,
        key=f"{source.name}:{key or line}",
        on_bad_line=source.problem,
        title=scalar(outer.get("title")),
        metadata={name: value for name, value in outer.items() if name not in ("messages", "title")},
    )


def _lines(source: Source, form: _Form | None) -> Iterator[Transcript]:
    records = source.of_one_conversation()
    if not records:
        return
    if form is None:
        form = "anthropic" if _is_anthropic([record for _, record in records]) else "openai_chat"
    turns: list[Turn] = []
    for line, record in records:
        try:
            turns.extend(turn._replace(line=line) for turn in _turns([record], form, None))
        except InvalidInputError as error:
            source.problem(line, str(error))
    yield build(turns, format=form, key=source.name, on_bad_line=source.problem)


def _turns(messages: list[Any], form: _Form, system: Any) -> list[Turn]:
    if form == "langchain":
        return [_langchain_turn(message) for message in messages]
    if form == "openai_chat":
        converted = from_openai_chat(messages)
    elif system is None or isinstance(system, str | list):
        converted = from_anthropic(messages, system=system)
    else:
        raise InvalidMessageError("`system` must be text or blocks")
    extra = len(converted) - len(messages)  # a message with the value of `system`
    turns = [Turn(message) for message in converted[:extra]]
    for raw, message in zip(messages, converted[extra:], strict=True):
        time = next((raw[name] for name in _TIMES if raw.get(name) is not None), None)
        id_ = raw["id"] if isinstance(raw.get("id"), str) else None
        turns.append(Turn(message, id=id_, time=time, at=time))
    return turns


def _langchain_turn(record: Any) -> Turn:
    (message,) = from_langchain([record])
    data = next((record[key] for key in ("data", "kwargs") if isinstance(record.get(key), Mapping)), record)
    return Turn(message, id=scalar(data.get("id")))


def _is_langchain_message(record: Any) -> bool:
    match record:
        case {"type": str(kind), "data": {"content": _}}:
            return kind.removesuffix("MessageChunk").lower() in _LANGCHAIN_TYPES
        case {"lc": int(), "id": [*_, str(name)], "kwargs": Mapping()}:
            return name.endswith(("Message", "MessageChunk"))
        case {"type": str(kind), "content": _}:
            return kind in _LANGCHAIN_TYPES and "role" not in record
    return False


def _messages(record: Any) -> list[Any] | None:
    """The messages of a record; None if it has none."""
    if isinstance(record, list):
        return record or None
    if isinstance(record, dict):
        for outer in (record, record.get("body"), record.get("request")):
            found = outer.get("messages") if isinstance(outer, dict) else None
            if isinstance(found, list):
                return found
    return None


def _is_anthropic(messages: list[Any]) -> bool:
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    blocks = chain.from_iterable(content for content in contents if isinstance(content, list))
    return any(isinstance(block, dict) and str(block.get("type")) in _ANTHROPIC_BLOCKS for block in blocks)
