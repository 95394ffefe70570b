"""Mistral's chat completions: the messages of `client.chat.complete`, and its replies.

| Mistral | `Message` |
|---|---|
| `content` as a string or chunks; null, "" or missing | parts; the note says which of these it was |
| a `thinking` chunk | a reasoning part with its signature |
| `image_url`, `document_url`, `file`, `input_audio` | attachments; audio becomes a data URL of an unknown type |
| `reference` (citations), unknown chunks | opaque parts |
| `tool_calls` | tool_use parts with parsed arguments (Mistral may also send an object) |
| a `tool` message | a tool_result part |
| `prefix`, unknown keys | `provider_meta["mistral"]` |

`to_mistral` reports as losses: signatures of other providers (their reasoning becomes thinking without a signature),
video, files uploaded to other providers, `is_error` of a tool result, content other than text and thinking in a system
message, the role of a message with tool calls if it is not `assistant` (it becomes `assistant`), opaque parts of
other providers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from redis_history.formats._calls import call_of, part_of_call
from redis_history.formats._loss import Losses, OnLoss
from redis_history.formats._mistral_parts import FORM, part_of_block, render, result_content
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
from redis_history.model import Message, Part, Role, ToolResultPart, ToolUsePart

__all__ = ["from_mistral", "to_mistral"]

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}
_REQUEST = frozenset(("role", "content", "tool_calls", "prefix", "tool_call_id", "name"))
_SHORT = re.compile(r"[A-Za-z0-9]{9}")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def from_mistral(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps.

    Raises InvalidMessageError, with the index, for an item that is not a chat message.
    """
    return [_from(as_mapping(item, index), index) for index, item in enumerate(messages)]


def to_mistral(
    messages: Iterable[Message], *, short_ids: bool = False, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to dicts of the chat API. Each tool result gets its own `tool` message, before the rest of its message.

    Mistral's own models only accept tool call ids of nine letters and digits. `short_ids` replaces other ids with such
    ids; equal ids get equal replacements. `on_loss` is called with each `Loss`; without it a warning is logged.
    """
    check_shape(shape)
    losses = Losses(FORM, on_loss)
    out = [item for m in messages for item in _to(_shortened(m) if short_ids else m, shape, losses)]
    losses.close()
    return [{key: item[key] for key in item if key in _REQUEST} for item in out] if shape == "request" else out


def _from(raw: Mapping[str, Any], index: int) -> Message:
    role = _ROLES.get(raw["role"], "user")  # an unknown role must not gain the authority of system
    content = raw.get("content")
    note: Json = {} if raw["role"] == role else {"role": raw["role"]}
    parts: list[Part] = []
    if role == "tool":
        parts.append(_result(raw))
    else:
        parts.extend(parts_of_content(content, part_of_block, f"message {index}", "text, a list or null"))
    if role == "assistant" and isinstance(calls := raw.get("tool_calls"), list):
        parts.extend(part_of_call(FORM, call) for call in calls)
    message = Message(role=role, parts=tuple(parts))
    if role != "tool" and (form := _form(raw)) != _form(_render(message, note, "original")):
        note["content"] = form
    return noted_message(message, FORM, note, raw, _one(message, note), f"message {index}")


def _result(raw: Mapping[str, Any]) -> ToolResultPart:
    content, call_id, name = raw.get("content", ""), raw.get("tool_call_id"), raw.get("name")
    return ToolResultPart(
        tool_use_id=call_id if isinstance(call_id, str) else "",
        content=content,
        name=name if isinstance(name, str) else None,
        provider_meta=None if content is None or isinstance(content, str) else {FORM: {"content": True}},
    )


def _one(message: Message, note: Mapping[str, Any]) -> Json:
    """The dict for a message that was converted from one dict."""
    if message.role == "tool":
        return _tool(message.tool_results[0], note, message.tool_results[0].content, "original")
    return _render(message, note, "original")


def _to(message: Message, shape: Shape, losses: Losses) -> list[Json]:
    note = note_of(message, FORM)
    out: list[Json] = []
    if "role" in note and shape != "original":
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
    calls = tuple(part for part in rest if call_of(FORM, part, shape) is not None)
    if message.role != "assistant" and calls:
        rest = tuple(part for part in rest if part not in calls)
    carried = False
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolResultPart) or (part in calls and message.role == "assistant"):
            carried = carried or not isinstance(part, ToolResultPart)
        elif part in calls:
            losses.add(message.id, index, f"the role {message.role} of a tool call (it becomes assistant)")
        else:
            block, lost = _block(part, message.role, shape)
            carried = carried or block is not None
            if lost is not None:
                losses.add(message.id, index, lost)
    if carried or not message.parts:
        out.append(_render(msgspec.structs.replace(message, parts=rest), note, shape))
    if out:
        free = {"assistant": ("content",), "tool": ("tool_call_id",)}.get(out[-1]["role"], ())
        out[-1] = rebuild(out[-1], note, valid=shape != "original", free=free, not_null=("prefix",))
    if message.role != "assistant" and calls:
        out.append(_render(msgspec.structs.replace(message, role="assistant", parts=calls), {}, shape))
    return out


def _block(part: Part, role: Role, shape: Shape) -> tuple[Any, str | None]:
    block, lost = render(part, shape)
    fits = role != "system" or shape == "original" or block is None
    if not fits and not (isinstance(block, Mapping) and block.get("type") in ("text", "thinking")):
        return None, "content other than text in a system message"
    return block, lost


def _tool(part: ToolResultPart, note: Mapping[str, Any], content: Any, shape: Shape) -> Json:
    named = {} if part.name is None else {"name": part.name}
    role = note.get("role", "tool") if shape == "original" else "tool"
    return {"role": role, "content": content, "tool_call_id": part.tool_use_id, **named}


def _render(message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
    """The dict of a message without tool results, in the default order of keys."""
    calls = [call for part in message.parts if (call := call_of(FORM, part, shape)) is not None]
    blocks = [b for part in message.parts if (b := _block(part, message.role, shape)[0]) is not None]
    role = note.get("role", message.role) if shape == "original" or message.role == "tool" else message.role
    if role == "tool":  # a tool message without a result
        role = "user"
    form = note.get("content")
    if form == "null" and role == "system" and shape != "original":
        form = "text"
    out: Json = {"role": role, "content": _content(blocks, form)}
    return {**out, "tool_calls": calls} if calls else out


def _content(blocks: list[Any], form: str | None) -> Any:
    if not blocks:
        return {"list": [], "null": None}.get(form or "text", "")
    plain = len(blocks) == 1 and isinstance(blocks[0], Mapping) and list(blocks[0]) == ["type", "text"]
    return blocks[0]["text"] if plain and form != "list" else blocks


def _form(raw: Mapping[str, Any]) -> str:
    content = raw.get("content")
    return "null" if content is None else "list" if isinstance(content, list) else "text"


def _shortened(message: Message) -> Message:
    parts = []
    for part in message.parts:
        if isinstance(part, ToolUsePart):
            parts.append(msgspec.structs.replace(part, id=_short(part.id)))
        elif isinstance(part, ToolResultPart):
            parts.append(msgspec.structs.replace(part, tool_use_id=_short(part.tool_use_id)))  # type: ignore[arg-type]
        else:
            parts.append(part)  # type: ignore[arg-type]
    return msgspec.structs.replace(message, parts=tuple(parts))


def _short(id_: str) -> str:
    if _SHORT.fullmatch(id_):
        return id_
    number = int.from_bytes(hashlib.blake2b(id_.encode(), digest_size=8).digest(), "big")
    out = ""
    for _ in range(9):
        number, digit = divmod(number, 62)
        out += _ALPHABET[digit]
    return out
