"""Gemini's contents (`Content`, `ContentDict`) of google-genai and the REST API.

| Gemini | `Message` |
|---|---|
| role `model`; `user`; `function` | `assistant`; `user`; `tool` |
| a content with only function responses | role `tool`; restored as `user` |
| the separate system instruction | a first message with role `system`; see `to_gemini_system` |
| a part with `thought` | a reasoning part; `thought_signature` is its signature |
| `thought_signature` on another part | `provider_meta["gemini"]` of that part |
| `function_call`, `function_response` | tool_use and tool_result parts; a missing id is made of name and number |
| a response `{"output": …}` or `{"error": …}` | the value is the content; `error` sets `is_error` |
| `inline_data`; `file_data` | attachments: a data URL; the URI |
| `executable_code`, `video_metadata`, unknown keys | an opaque part; `provider_meta["gemini"]` |

Keys in camel case (`functionCall`) and bytes are accepted and restored. New output has keys in snake case and base64
text for bytes; both the SDK and the REST API accept these.

`to_gemini` reports as losses: signatures of other providers (their reasoning becomes a thought without a signature),
files that are neither inline nor a URL, files in a tool result, arguments that are not an object, opaque parts of
other providers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats._gemini_keys import to_camel, to_snake
from redis_history.formats._gemini_parts import FORM, part_of, render, synthetic_id
from redis_history.formats._loss import Losses, OnLoss
from redis_history.formats._shape import (
    Json,
    Shape,
    as_mapping,
    check_shape,
    note_of,
    noted,
    noted_message,
    opaque,
    rebuild,
)
from redis_history.model import Message, Part, Role, TextPart, ToolResultPart, UnknownPart

__all__ = ["from_gemini", "to_gemini", "to_gemini_system"]

_ROLES: dict[str, Role] = {"user": "user", "model": "assistant", "system": "system", "function": "tool"}
_NAMES: dict[str, str] = {"user": "user", "assistant": "model", "tool": "user", "system": "system"}


def from_gemini(contents: Iterable[Mapping[str, Any]], *, system: Any = None) -> list[Message]:
    """Convert each content to a `Message`, in order, with new ids and without timestamps. `system` (a content, a part
    or text) becomes the first message.

    Raises InvalidMessageError, with the index, for an item that is not a content.
    """
    out = [_from(as_mapping(item, index, role=False), index) for index, item in enumerate(contents)]
    return out if system is None else [_from_system(system), *out]


def to_gemini(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to contents, without system messages: pass these with `to_gemini_system`.

    `on_loss` is called with each `Loss`; without it a warning is logged.
    """
    check_shape(shape)
    losses = Losses(FORM, on_loss)
    names: dict[str, str] = {}  # tool names by id, of the nearest earlier call
    out: list[Json] = []
    for message in messages:
        names |= {part.id: part.name for part in message.tool_uses}
        note = note_of(message, FORM)
        if message.role == "system" and not note.get("in_list"):
            continue
        if (item := _to(message, note, shape, names, losses)) is not None:
            out.append(item)
    losses.close()
    return out


def to_gemini_system(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> dict[str, Any] | None:
    """The system instruction: one content with all system messages; None without system messages."""
    losses = Losses(FORM, on_loss)
    parts: list[Any] = []
    note: Mapping[str, Any] = {}
    found = [m for m in messages if m.role == "system" and not note_of(m, FORM).get("in_list")]
    for message in found:
        note = note_of(message, FORM)
        parts.extend(_parts(message, {}, losses))
    losses.close()
    if not found:
        return None
    return rebuild({"parts": parts}, note if len(found) == 1 else {})


def _from_system(system: Any) -> Message:
    if isinstance(system, str):
        return Message(role="system", parts=(TextPart(text=system),) if system else ())
    items = system if isinstance(system, list | tuple) else [system]
    texts = [{"text": item} if isinstance(item, str) else as_mapping(item, 0, role=False) for item in items]
    raw = texts[0] if len(texts) == 1 and "parts" in texts[0] else {"parts": texts}
    parts = tuple(_parts_of(raw, 0))
    ours = {"parts": list(raw.get("parts") or ())}
    return noted_message(Message(role="system", parts=parts), FORM, {}, raw, ours, "content 0")


def _from(raw: Mapping[str, Any], index: int) -> Message:
    given = raw.get("role")
    role: Role = "user" if given is None else _ROLES.get(given, "user") if isinstance(given, str) else "user"
    parts = tuple(_parts_of(raw, index))
    if role in ("user", "tool") and parts and all(isinstance(part, ToolResultPart) for part in parts):
        role = "tool"
    elif role == "tool":
        role = "user"
    note: Json = {"in_list": True} if role == "system" else {}
    ours: Json = {"role": _NAMES[role], "parts": list(raw.get("parts") or ())}
    if given is not None and given != ours["role"]:
        note["role"] = given
        ours["role"] = given
    return noted_message(Message(role=role, parts=parts), FORM, note, raw, ours, f"content {index}")


def _parts_of(raw: Mapping[str, Any], index: int) -> Iterable[Part]:
    items = raw.get("parts")
    if items is None:
        items = ()
    if not isinstance(items, list | tuple):
        raise InvalidMessageError(f"content {index}: parts must be a list, not {type(items).__name__}")
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        if not isinstance(item, Mapping) and hasattr(item, "model_dump"):
            item = item.model_dump(exclude_unset=True)
        yield _part(item, seen)


def _part(item: Any, seen: Counter[tuple[str, str]]) -> Part:
    if not isinstance(item, Mapping):
        return opaque(FORM, item)
    snake = to_snake(item)
    camel = snake.keys() != item.keys() or snake != dict(item)
    if camel and to_camel(snake) != dict(item):
        return opaque(FORM, dict(item))  # the part mixes both spellings of keys
    call_id = ""
    for kind in ("function_call", "function_response"):
        if isinstance(snake.get(kind), Mapping) and isinstance(name := snake[kind].get("name"), str):
            seen[kind, name] += 1
            call_id = synthetic_id(name, seen[kind, name])
    part = part_of(snake, call_id)
    if isinstance(part, UnknownPart):
        return opaque(FORM, dict(item))
    return noted(part, FORM, {"camel": True}) if camel else part


def _to(
    message: Message, note: Mapping[str, Any], shape: Shape, names: Mapping[str, str], losses: Losses
) -> Json | None:
    parts = _parts(message, names, losses)
    if message.parts and not parts:
        return None  # all of its content was lost, and reported
    role = _NAMES[message.role]
    if "role" in note:
        if shape == "original" or note["role"] in _ROLES:
            role = note["role"]
        else:
            losses.add(message.id, None, f"the role {note['role']!r}")
    return rebuild({"role": role, "parts": parts}, note)


def _parts(message: Message, names: Mapping[str, str], losses: Losses) -> list[Any]:
    out = []
    for index, part in enumerate(message.parts):
        named = names.get(part.tool_use_id) if isinstance(part, ToolResultPart) else None
        item, lost = render(part, named)
        if item is not None:
            out.append(to_camel(item) if note_of(part, FORM).get("camel") else item)
        if lost is not None:
            losses.add(message.id, index, lost)
    return out
