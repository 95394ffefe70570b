"""OpenAI chat completions, also of compatible servers (DeepSeek, vLLM, Ollama, litellm …).

| chat completions | `Message` |
|---|---|
| role `developer`; `function` | `system`; `tool`; the original role is restored |
| any other role (`exit` of mini-swe-agent) | `user`: an unknown role must not gain the authority of `system` |
| `content` as a string or blocks; null, "" or missing | text and attachment parts; the note says which one |
| `reasoning_content`, `reasoning` | a reasoning part |
| `tool_calls` (of any role), `function_call` | tool_use parts with parsed arguments; the original JSON is restored |
| a `tool` message | a tool_result part with unchanged content |
| unknown blocks, keys | an opaque part; `provider_meta["openai_chat"]` |

`to_openai_chat` reports as losses: reasoning of other providers, files by URL, video, audio other than WAV and MP3,
files in an assistant or system message, `is_error` of a tool result and its blocks other than text, roles that the API
does not define, opaque parts of other providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from redis_history.formats._calls import call_of, part_of_call
from redis_history.formats._loss import Losses, OnLoss
from redis_history.formats._openai_parts import FORM, block_of, part_of_block, result_content
from redis_history.formats._shape import (
    Json,
    Shape,
    as_mapping,
    check_shape,
    note_of,
    noted_message,
    parts_of_content,
    rebuild,
)
from redis_history.model import (
    AttachmentPart,
    Message,
    Part,
    Participant,
    ReasoningPart,
    Role,
    ToolResultPart,
    UnknownPart,
)

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
_REQUEST = frozenset(("role", "content", "tool_call_id", "name", "tool_calls", "function_call", "refusal", "audio"))
_REQUEST |= {*_REASONING}
#: The block types that a message of each role may contain.
_BLOCKS = {"user": frozenset(("text", "image_url", "input_audio", "file")), "assistant": frozenset(("text", "refusal"))}


def from_openai_chat(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps.

    Raises InvalidMessageError, with the index, for an item that is not a chat message.
    """
    return [_from(as_mapping(item, index), index) for index, item in enumerate(messages)]


def to_openai_chat(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to dicts of the chat API. Each tool result gets its own `tool` message, before the rest of its message.

    `on_loss` is called with each `Loss`; without it a warning is logged. `shape="original"` also restores messages that
    the API does not accept, such as unknown roles. `shape="request"` leaves out keys that the API does not define.
    """
    check_shape(shape)
    losses = Losses(FORM, on_loss)
    out = [item for message in messages for item in _to(message, shape, losses)]
    losses.close()
    return [{key: item[key] for key in item if key in _REQUEST} for item in out] if shape == "request" else out


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
    else:
        parts.extend(parts_of_content(content, part_of_block, f"message {index}", "text, a list or null"))
    if isinstance(calls := raw.get("tool_calls"), list):
        parts.extend(part_of_call(FORM, call) for call in calls)
    elif isinstance(call := raw.get("function_call"), Mapping):
        parts.append(part_of_call(FORM, {"function": call}))
        note["function_call"] = True
    name = raw.get("name")
    kind = _KINDS.get(role)
    who = Participant(kind=kind, id=name) if kind and isinstance(name, str) and name else None
    message = Message(role=role, parts=tuple(parts), participant=who)
    if role != "tool" and (form := _form(raw)) != _form(_render(message, note, "original")):
        note["content"] = form
    return noted_message(message, FORM, note, raw, _one(message, note), f"message {index}")


def _result(raw: Mapping[str, Any]) -> ToolResultPart:
    content = raw.get("content", "")
    call_id, name = raw.get("tool_call_id"), raw.get("name")
    if not isinstance(call_id, str):
        many = raw.get("tool_call_ids")  # SWE-agent writes a list of ids
        call_id = many[0] if isinstance(many, list) and many and isinstance(many[0], str) else ""
    meta = None if content is None or isinstance(content, str) else {FORM: {"content": True}}
    return ToolResultPart(
        tool_use_id=call_id, content=content, name=name if isinstance(name, str) else None, provider_meta=meta
    )


def _one(message: Message, note: Mapping[str, Any]) -> Json:
    """The dict for a message that was converted from one dict."""
    if message.role == "tool":
        part = message.tool_results[0]
        return _tool(part, note, part.content, "original")
    return _render(message, note, "original")


def _to(message: Message, shape: Shape, losses: Losses) -> list[Json]:
    note = note_of(message, FORM)
    out: list[Json] = []
    if "role" in note and shape != "original" and note["role"] not in _ROLES:
        losses.add(message.id, None, f"the role {note['role']!r}")
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolResultPart):
            content, lost = result_content(part, shape)
            out.append(_tool(part, note, content, shape))
            if part.is_error:
                losses.add(message.id, index, "is_error of a tool result")
            if lost:
                losses.add(message.id, index, lost)
    rest = tuple(part for part in message.parts if not isinstance(part, ToolResultPart))
    alone = message.role == "tool" and (rest or not message.parts)
    role = "user" if alone else message.role  # a tool message can only contain one result
    carried = False
    for index, part in enumerate(message.parts):
        if not isinstance(part, ToolResultPart):
            lost = _lost(part, role, shape)
            carried = carried or lost is None
            if lost is None and isinstance(part, AttachmentPart) and part.modality == "image":
                block = _block(part, role, shape)
                lost = "the modality image of an uploaded file" if block["type"] == "file" else None
            if lost is not None:
                losses.add(message.id, index, lost)
    if carried or not message.parts:
        out.append(_render(msgspec.structs.replace(message, parts=rest, role=role), note, shape))
    if out:
        free = ("content",) if out[-1]["role"] == "assistant" else ()
        out[-1] = rebuild(out[-1], note, valid=shape != "original", free=free, not_null=("name", "tool_calls"))
    return out


def _lost(part: Part, role: Role, shape: Shape) -> str | None:
    if _is_reasoning(part) or call_of(FORM, part, shape) is not None or _block(part, role, shape) is not None:
        return None
    return f"a {type(part).__name__.removesuffix('Part').lower()} part in a message of role {role}"


def _block(part: Part, role: Role, shape: Shape) -> Any:
    block = block_of(part, shape)
    if shape == "original" or not isinstance(block, Mapping) or isinstance(part, UnknownPart):
        return block
    if block["type"] == "refusal" and role != "assistant":
        return {"type": "text", "text": block["refusal"]}
    return block if block["type"] in _BLOCKS.get(role, ("text",)) else None


def _is_reasoning(part: Part) -> bool:
    return isinstance(part, ReasoningPart) and note_of(part, FORM).get("key") in _REASONING


def _tool(part: ToolResultPart, note: Mapping[str, Any], content: Any, shape: Shape) -> Json:
    named = {} if part.name is None else {"name": part.name}
    role = note.get("role", "tool")
    if shape != "original" and (
        role not in _ROLES or (role == "function" and not (named and isinstance(content, str)))
    ):
        role = "tool"
    return {"role": role, "tool_call_id": part.tool_use_id, **named, "content": content}


def _render(message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
    """The dict of a message without tool results, in the default order of keys."""
    calls = [call for part in message.parts if (call := call_of(FORM, part, shape)) is not None]
    blocks = [b for part in message.parts if (b := _block(part, message.role, shape)) is not None]
    role = note.get("role", message.role)
    if shape != "original" and _ROLES.get(role) != message.role:
        role = "user" if message.role == "tool" else message.role
    form = note.get("content")
    if form == "null" and shape != "original" and role != "assistant":
        form = "text"
    out: Json = {"role": role, "content": _content(blocks, form, bool(calls) and role == "assistant")}
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
