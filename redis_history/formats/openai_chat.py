"""OpenAI chat completions, and the many servers that speak it (DeepSeek, vLLM, Ollama, litellm …).

| theirs | ours |
|---|---|
| role `developer`; `function` | `system`; `tool`: the original is given back |
| any other role (`exit` of mini-swe-agent) | `user`: an unknown role must not gain a system's authority |
| `content` string or blocks; null, "" or missing | text and attachment parts; which of these it was is remembered |
| `reasoning_content`, `reasoning` | a reasoning part |
| `tool_calls` (of any role), `function_call` | tool_use parts, arguments parsed; odd JSON is given back as it was |
| a `tool` message | a tool_result part, its content untouched |
| unknown blocks, keys | an opaque part; `provider_meta["openai_chat"]` |

The form cannot carry, and `to_openai_chat` reports: reasoning of other providers, files by URL, the error mark of a
tool result and blocks other than text in one, opaque parts of other providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from redis_history.errors import InvalidMessageError
from redis_history.formats._loss import Losses, OnLoss
from redis_history.formats._openai_parts import FORM, block_of, call_of, part_of_block, part_of_call, result_content
from redis_history.formats._shape import Json, as_mapping, note_of, rebuild, remember
from redis_history.model import Message, Part, Participant, ReasoningPart, Role, TextPart, ToolResultPart

__all__ = ["from_openai_chat", "to_openai_chat"]

_ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "developer": "system",
    "function": "tool",
}
_KINDS: dict[str, Literal["user", "agent", "system"]] = {"user": "user", "assistant": "agent", "system": "system"}
_REASONING = ("reasoning_content", "reasoning")


def from_openai_chat(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """One message of ours for each of theirs, in order, with new ids and no timestamps.

    Raises InvalidMessageError, with the index, for what is not a chat message.
    """
    return [_from(as_mapping(item, index), index) for index, item in enumerate(messages)]


def to_openai_chat(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[dict[str, Any]]:
    """Their dicts. A message with several tool results becomes one `tool` message each, before the rest of it.

    `on_loss` is called for all that the form cannot carry; without it a warning is logged.
    """
    losses = Losses(FORM, on_loss)
    out = [item for message in messages for item in _to(message, losses)]
    losses.close()
    return out


def _from(raw: Mapping[str, Any], index: int) -> Message:
    role = _ROLES.get(raw["role"], "user")
    content = raw.get("content")
    note: Json = {} if raw["role"] == role else {"role": raw["role"]}
    parts: list[Part] = []
    for key in _REASONING:
        if isinstance(raw.get(key), str) and not parts:
            parts.append(ReasoningPart(text=raw[key], provider_meta={FORM: {"key": key}}))
    if role == "tool":
        parts.append(_result(raw))
    elif isinstance(content, list):
        parts.extend(map(part_of_block, content))
    elif isinstance(content, str):
        parts.extend([TextPart(text=content)] if content else ())
    elif content is not None:
        raise InvalidMessageError(f"message {index}: content is text, a list or null, not {type(content).__name__}")
    if isinstance(calls := raw.get("tool_calls"), list):
        parts.extend(map(part_of_call, calls))
    elif isinstance(call := raw.get("function_call"), Mapping):
        parts.append(part_of_call({"function": call}))
        note["function_call"] = True
    name = raw.get("name")
    kind = _KINDS.get(role)
    who = Participant(kind=kind, id=name) if kind and isinstance(name, str) and name else None
    message = Message(role=role, parts=tuple(parts), participant=who)
    if role != "tool" and (form := _form(raw)) != _form(_render(message, note)):
        note["content"] = form
    try:
        note |= remember(raw, _one(message, note))
    except InvalidMessageError as error:
        raise InvalidMessageError(f"message {index}: {error}") from error
    return msgspec.structs.replace(message, provider_meta={FORM: note}) if note else message


def _result(raw: Mapping[str, Any]) -> ToolResultPart:
    content = raw.get("content", "")
    call_id, name = raw.get("tool_call_id"), raw.get("name")
    if not isinstance(call_id, str):
        many = raw.get("tool_call_ids")  # SWE-agent's way
        call_id = many[0] if isinstance(many, list) and many and isinstance(many[0], str) else ""
    meta = None if content is None or isinstance(content, str) else {FORM: {"content": True}}
    return ToolResultPart(
        tool_use_id=call_id, content=content, name=name if isinstance(name, str) else None, provider_meta=meta
    )


def _one(message: Message, note: Mapping[str, Any]) -> Json:
    """The single dict for a message that came from a single dict."""
    if message.role == "tool":
        return _tool(message.tool_results[0], note)
    return _render(message, note)


def _to(message: Message, losses: Losses) -> list[Json]:
    note = note_of(message, FORM)
    results = message.tool_results
    out: list[Json] = []
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolResultPart):
            out.append(_tool(part, note))
            content, lost = result_content(part)
            out[-1]["content"] = content
            if part.is_error:
                losses.add(message.id, index, "the error mark of a tool result")
            if lost:
                losses.add(message.id, index, lost)
    rest = msgspec.structs.replace(message, parts=tuple(p for p in message.parts if not isinstance(p, ToolResultPart)))
    if (rest.parts and message.role != "tool") or not results:
        out.append(_render(rest, note))
    for index, part in enumerate(message.parts):
        if _is_lost(part, only_results=message.role == "tool" and bool(results)):
            losses.add(message.id, index, f"a {_name(part)} part in a message of role {message.role}")
    out[-1] = rebuild(out[-1], note)
    return out


def _is_lost(part: Part, *, only_results: bool) -> bool:
    if isinstance(part, ToolResultPart):
        return False
    return only_results or not (_is_reasoning(part) or call_of(part) is not None or block_of(part) is not None)


def _is_reasoning(part: Part) -> bool:
    return isinstance(part, ReasoningPart) and note_of(part, FORM).get("key") in _REASONING


def _name(part: Part) -> str:
    return type(part).__name__.removesuffix("Part").lower()


def _tool(part: ToolResultPart, note: Mapping[str, Any]) -> Json:
    named = {} if part.name is None else {"name": part.name}
    return {"role": note.get("role", "tool"), "tool_call_id": part.tool_use_id, **named, "content": part.content}


def _render(message: Message, note: Mapping[str, Any]) -> Json:
    """The dict of a message without tool results, in our order of keys."""
    calls = [call for part in message.parts if (call := call_of(part)) is not None]
    blocks = [b for part in message.parts if call_of(part) is None and (b := block_of(part)) is not None]
    out: Json = {"role": note.get("role", message.role), "content": _content(blocks, note.get("content"), bool(calls))}
    if calls and note.get("function_call") and len(calls) == 1:
        out["function_call"] = calls[0].get("function")
    elif calls:
        out["tool_calls"] = calls
    for part in message.parts:
        if isinstance(part, ReasoningPart) and _is_reasoning(part):
            out[note_of(part, FORM)["key"]] = part.text
    return out


def _content(blocks: list[Any], form: str | None, calls: bool) -> Any:
    if not blocks:
        return {"list": [], "text": "", "null": None}.get(form or ("null" if calls else "text"), "")
    plain = len(blocks) == 1 and isinstance(blocks[0], Mapping) and list(blocks[0]) == ["type", "text"]
    return blocks[0]["text"] if plain and form != "list" else blocks


def _form(raw: Mapping[str, Any]) -> str:
    content = raw.get("content")
    return "null" if content is None else "list" if isinstance(content, list) else "text"
