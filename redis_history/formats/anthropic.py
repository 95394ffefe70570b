"""Anthropic Messages: `MessageParam` lists, the `message` of API replies and of Claude Code sessions.

| Anthropic | `Message` |
|---|---|
| a `user` message with only tool results | role `tool`; restored as `user` |
| the separate `system` value | a first message with role `system`; see `to_anthropic_system` |
| a message with role `system` in the list | role `system`; restored in the list |
| `content` as a string or blocks | parts; the note says which of the two it was |
| `thinking`, `redacted_thinking` | a reasoning part with its signature |
| `server_tool_use`, `web_search_tool_result` … | tool_use and tool_result parts; the note has the type |
| `image`, `document` (base64, URL, file id) | an attachment; base64 becomes a data URL without decoding |
| `cache_control`, `citations`, unknown keys, unknown blocks | `provider_meta["anthropic"]`; an opaque part |

`to_anthropic` reports as losses: reasoning that the API did not sign, audio, video, inline files other than PDF and
text, files uploaded to other providers, tool arguments that are not an object, roles that Anthropic does not define,
opaque parts of other providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from redis_history.formats._anthropic_parts import FORM, part_of_block, render
from redis_history.formats._loss import Losses, OnLoss
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
from redis_history.model import Message, Role, ToolResultPart

__all__ = ["from_anthropic", "to_anthropic", "to_anthropic_system"]

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_REQUEST = ("role", "content")


def from_anthropic(messages: Iterable[Mapping[str, Any]], *, system: str | list[Any] | None = None) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps. A `system` value becomes the
    first message.

    Raises InvalidMessageError, with the index, for an item that is not an Anthropic message.
    """
    out = [_from(as_mapping(item, index), index) for index, item in enumerate(messages)]
    if system is None:
        return out
    first = _from({"role": "system", "content": system}, 0)
    return [_annotated(first, {k: v for k, v in note_of(first, FORM).items() if k != "in_list"}), *out]


def to_anthropic(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to dicts of the Messages API, without system messages: pass these with `to_anthropic_system`.

    `on_loss` is called with each `Loss`; without it a warning is logged. `shape="request"` leaves out keys that only
    replies have, such as `usage`, because the API rejects them in a request.
    """
    check_shape(shape)
    losses = Losses(FORM, on_loss)
    out: list[Json] = []
    for message in messages:
        note = note_of(message, FORM)
        if message.role == "system" and not note.get("in_list"):
            continue
        item = _to(message, note, shape, losses)
        if item is not None:
            out.append({key: item[key] for key in item if key in _REQUEST} if shape == "request" else item)
    losses.close()
    return out


def to_anthropic_system(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> str | list[dict[str, Any]] | None:
    """The `system` value: the original value for one system message, the blocks of all for several, None for none.

    The value can contain text only. Other content is reported as a loss, as by `to_anthropic`.
    """
    check_shape(shape)
    losses = Losses(FORM, on_loss)
    contents: list[Any] = []
    for message in messages:
        note = note_of(message, FORM)
        if message.role == "system" and not note.get("in_list"):
            contents.append(_render(message, note, shape, losses)["content"])
    losses.close()
    if len(contents) < 2:
        return contents[0] if contents else None
    return [b for c in contents for b in ([{"type": "text", "text": c}] if isinstance(c, str) else c)]


def _from(raw: Mapping[str, Any], index: int) -> Message:
    role = _ROLES.get(raw["role"], "user")  # an unknown role must not gain the authority of system
    note: Json = {} if raw["role"] == role else {"role": raw["role"]}
    content = raw.get("content")
    parts = parts_of_content(content, part_of_block, f"message {index}", "text or blocks")
    if role == "user" and parts and all(isinstance(part, ToolResultPart) for part in parts):
        role = "tool"
    if role == "system":
        note["in_list"] = True
    message = Message(role=role, parts=parts)
    if (form := _form(raw)) != _form(_render(message, note, "original")):
        note["content"] = form
    return noted_message(message, FORM, note, raw, _render(message, note, "original"), f"message {index}")


def _annotated(message: Message, note: Json) -> Message:
    return msgspec.structs.replace(message, provider_meta={FORM: note} if note else {})


def _to(message: Message, note: Mapping[str, Any], shape: Shape, losses: Losses) -> Json | None:
    before = losses.count
    ours = _render(message, note, shape, losses)
    if message.parts and losses.count - before >= len(message.parts) and not ours["content"]:
        return None  # all of its content was lost, and reported
    return rebuild(ours, note, valid=shape != "original")


def _render(message: Message, note: Mapping[str, Any], shape: Shape, losses: Losses | None = None) -> Json:
    """The dict of a message, in the default order of keys."""
    blocks = []
    for index, part in enumerate(message.parts):
        block, lost = render(part, shape)
        if block is not None and message.role == "system" and shape != "original" and not _is_text(block):
            block, lost = None, "content other than text in a system message"
        if block is not None:
            blocks.append(block)
        if lost is not None and losses is not None:
            losses.add(message.id, index, lost)
    form = note.get("content")
    role = "user" if message.role == "tool" else message.role
    if "role" in note and losses is not None and shape != "original":
        losses.add(message.id, None, f"the role {note['role']!r}")
    else:
        role = note.get("role", role)
    if not blocks:
        empty: Json = {"list": [], "null": None if shape == "original" else ""}
        return {"role": role, "content": empty.get(form or "", "")}
    plain = len(blocks) == 1 and isinstance(blocks[0], Mapping) and list(blocks[0]) == ["type", "text"]
    return {"role": role, "content": blocks[0]["text"] if plain and form != "list" else blocks}


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text"


def _form(raw: Mapping[str, Any]) -> str:
    content = raw.get("content")
    return "null" if content is None else "list" if isinstance(content, list) else "text"
