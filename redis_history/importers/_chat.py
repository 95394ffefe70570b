"""Import plain lists of provider messages: OpenAI chat completions and Anthropic messages, as JSON or JSONL.

A record is a list of messages, or an object with `messages` (fine-tuning files), also inside `body` or `request` (batch
files). If each line is a single message, the lines form one conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.formats import from_anthropic, from_openai_chat
from redis_history.importers._convert import each, rest, scalar
from redis_history.importers.source import Source
from redis_history.importers.transcript import Transcript, Turn, build

__all__ = ["anthropic", "chat", "is_chat", "openai_chat"]

Form = Literal["openai_chat", "anthropic"]
_ANTHROPIC_BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"))
_KEYS = ("conversation_id", "id", "custom_id", "session_id", "thread_id")
_TIMES = ("timestamp", "created_at")


def is_chat(record: Any) -> bool:
    """Whether `record` is a message, a list of messages, or an object that contains such a list."""
    found = _messages(record)
    if found is None:
        return isinstance(record, dict) and isinstance(record.get("role"), str)
    return all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in found)


def openai_chat(source: Source) -> Iterator[Transcript]:
    """Read all conversations as chat completions."""
    return _read(source, "openai_chat")


def anthropic(source: Source) -> Iterator[Transcript]:
    """Read all conversations as Anthropic messages."""
    return _read(source, "anthropic")


def chat(source: Source) -> Iterator[Transcript]:
    """Read each conversation in the format of its blocks; the two formats differ only in these."""
    return _read(source, None)


def _read(source: Source, form: Form | None) -> Iterator[Transcript]:
    if source.head and isinstance(source.head[0], dict) and "role" in source.head[0]:
        yield from _lines(source, form)
    else:
        yield from each(source, lambda source, line, record: _conversation(source, line, record, form))


def _conversation(source: Source, line: int, record: Any, form: Form | None) -> Transcript:
    messages = _messages(record)
    if messages is None:
        raise InvalidMessageError("the record must be a list of messages or an object with `messages`")
    outer = record if isinstance(record, dict) else {}
    system = outer.get("system")
    if form is None:
        form = "anthropic" if system is not None or _is_anthropic(messages) else "openai_chat"
    key = next(filter(None, (scalar(outer.get(name)) for name in _KEYS)), None)
    return build(
        _turns(messages, form, system),
        format=form,
        key=f"{source.name}:{key or line}",
        on_bad_line=source.problem,
        title=scalar(outer.get("title")),
        metadata=rest(outer, "messages", "title"),
        form=form,
    )


def _lines(source: Source, form: Form | None) -> Iterator[Transcript]:
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
    yield build(turns, format=form, key=source.name, on_bad_line=source.problem, form=form)


def _turns(messages: list[Any], form: Form, system: Any) -> list[Turn]:
    if form == "openai_chat":
        converted = from_openai_chat(messages)
    elif system is None or isinstance(system, str | list):
        converted = from_anthropic(messages, system=system)
    else:
        raise InvalidMessageError("`system` must be text or blocks")
    before = len(converted) - len(messages)
    turns = [Turn(message) for message in converted[:before]]
    for raw, message in zip(messages, converted[before:], strict=True):
        time = next((raw[name] for name in _TIMES if raw.get(name) is not None), None)
        turns.append(Turn(message, id=_id(raw), time=time, at=time, original=raw))
    return turns


def _id(raw: Mapping[str, Any]) -> str | None:
    value = raw.get("id")
    return value if isinstance(value, str) and value else None


def _messages(record: Any) -> list[Any] | None:
    if isinstance(record, list) and record:
        return record
    return next((found for found in _nested(record) if isinstance(found, list)), None)


def _nested(record: Any) -> Iterator[Any]:
    if isinstance(record, dict):
        yield record.get("messages")
        for key in ("body", "request"):
            if isinstance(record.get(key), dict):
                yield record[key].get("messages")


def _is_anthropic(messages: list[Any]) -> bool:
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") in _ANTHROPIC_BLOCKS:
                return True
    return False
