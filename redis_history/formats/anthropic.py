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

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from redis_history.formats._content import (
    NOT_USABLE,
    as_object,
    attachment,
    converted,
    data_url,
    file_id,
    is_image,
    is_web_url,
    split_data_url,
)
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import (
    Json,
    Shape,
    as_mappings,
    check_shape,
    content_of,
    for_request,
    is_foreign,
    kept_value,
    note_of,
    noted_original,
    parts_of_content,
    read_block,
    rebuild,
    value_of,
    with_note,
    write_block,
)
from redis_history.model import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)

_FORM = "anthropic"
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_REQUEST = ("role", "content")
_METADATA = ("id", "type", "model", "usage", "stop_reason", "stop_sequence", "stop_details", "container")
_IN_RESULTS = ("text", "image", "search_result", "document", "tool_reference", "browser_state")
_IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))


def from_anthropic(messages: Iterable[Mapping[str, Any]], *, system: str | list[Any] | None = None) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps. A `system` value becomes the
    first message.

    Raises InvalidMessageError, with the index, for an item that is not an Anthropic message.
    """
    out = [_from(item, index) for index, item in as_mappings(messages)]
    if system is None:
        return out
    first = _from({"role": "system", "content": system}, 0)
    note = {key: value for key, value in note_of(first, _FORM).items() if key != "in_list"}
    return [msgspec.structs.replace(first, provider_meta=with_note(_FORM, note) or {}), *out]


def to_anthropic(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to dicts of the Messages API, without system messages: pass these with `to_anthropic_system`.

    `on_loss` is called with each `Loss`; without it a warning is logged. `shape="request"` leaves out keys that only
    replies have, such as `usage`, because the API rejects them in a request.
    """
    check_shape(shape)
    out: list[Json] = []
    with Losses(_FORM, on_loss) as losses:
        for message in messages:
            note = note_of(message, _FORM)
            if message.role == "system" and not note.get("in_list"):
                continue
            before = losses.count
            ours = _render(message, note, shape, losses)
            if message.parts and losses.count - before >= len(message.parts) and not ours["content"]:
                continue  # all of its content was lost, and reported
            item = rebuild(ours, note, valid=shape != "original")
            out.append(for_request(item, _REQUEST, _METADATA, message.id, losses) if shape == "request" else item)
    return out


def to_anthropic_system(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> str | list[dict[str, Any]] | None:
    """The `system` value: the original value for one system message, the blocks of all for several, None for none.

    The value can contain text only. Other content is reported as a loss. `shape` and `on_loss` as in `to_anthropic`.
    """
    check_shape(shape)
    contents: list[Any] = []
    with Losses(_FORM, on_loss) as losses:
        for message in messages:
            note = note_of(message, _FORM)
            if message.role == "system" and not note.get("in_list"):
                contents.append(_render(message, note, shape, losses)["content"])
    if len(contents) < 2:
        return contents[0] if contents else None
    return [b for c in contents for b in ([{"type": "text", "text": c}] if isinstance(c, str) else c)]


def _from(raw: Mapping[str, Any], index: int) -> Message:
    role = _ROLES.get(raw["role"], "user")  # an unknown role must not gain the authority of system
    note: Json = {} if raw["role"] == role else {"role": raw["role"]}
    parts = parts_of_content(raw.get("content"), _read, f"message {index}", "text or blocks")
    if role == "user" and parts and all(isinstance(part, ToolResultPart) for part in parts):
        role = "tool"
    if role == "system":
        note["in_list"] = True
    message = Message(role=role, parts=parts)
    return noted_original(message, _FORM, note, raw, _render, f"message {index}")


def _render(message: Message, note: Mapping[str, Any], shape: Shape, losses: Losses | None = None) -> Json:
    """The dict of a message, in the default order of keys."""
    losses = losses or Losses(_FORM, None)
    blocks = []
    for index, part in enumerate(message.parts):
        not_null = ("content", "is_error") if isinstance(part, ToolResultPart) else ()
        block, lost = write_block(_FORM, part, _write, shape, not_null)
        if block is not None and message.role == "system" and shape != "original":
            own = note.get("in_list") and isinstance(part, UnknownPart)  # such as tool_addition
            if not own and not (isinstance(block, Mapping) and block.get("type") == "text"):
                block, lost = None, "content other than text in a system message"
        if block is not None:
            blocks.append(block)
        losses.add(message.id, index, lost)
    role = "user" if message.role == "tool" else message.role
    if "role" in note and shape == "original":
        role = note["role"]
    elif "role" in note:
        losses.add(message.id, None, f"the role {note['role']!r}")
    return {"role": role, "content": content_of(blocks, note.get("content", ""), None if shape == "original" else "")}


def _read(block: Any) -> Part:
    return read_block(_FORM, block, _known(block), _write)


def _known(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "thinking", "thinking": str(text)}:
            signature = block.get("signature")
            # Only the provider that signed the reasoning accepts the signature, so the note names it.
            return ReasoningPart(
                text=text,
                signature=signature if isinstance(signature, str) else None,
                provider_meta={_FORM: {"type": "thinking"}},
            )
        case {"type": "redacted_thinking", "data": str(data)}:
            return ReasoningPart(text="", signature=data, provider_meta={_FORM: {"type": "redacted_thinking"}})
        case {"type": str(kind), "id": str(id_), "name": str(name), "input": dict(value)} if kind.endswith("tool_use"):
            note: Json = {} if kind == "tool_use" else {"type": kind}
            arguments = kept_value(value, note)
            return ToolUsePart(id=id_, name=name, input=arguments, provider_meta=with_note(_FORM, note))
        case {"type": str(kind), "tool_use_id": str(id_)} if kind.endswith("tool_result"):
            # Results of the provider's own tools can be encrypted, and are only accepted under their own type.
            note = {} if kind == "tool_result" else {"type": kind}
            wrong = block.get("is_error") is True
            content = block.get("content")
            if not note and content is not None and converted(content, _IN_RESULTS, lambda part: None)[0] != content:
                note["content"] = True
            kept = kept_value(content, note)
            return ToolResultPart(tool_use_id=id_, content=kept, is_error=wrong, provider_meta=with_note(_FORM, note))
        case {"type": "image" | "document" as kind, "source": Mapping() as source}:
            return _attachment(kind, block, source)
    return None


def _attachment(kind: Any, block: Mapping[str, Any], source: Mapping[str, Any]) -> AttachmentPart | None:
    name = block.get("title")
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(data)}:
            return attachment(_FORM, kind, data_url(mime, data), name=name)
        case {"type": "url", "url": str(url)}:
            return attachment(_FORM, kind, url, name=name)
        case {"type": "file", "file_id": str(id_)}:
            return attachment(_FORM, kind, id_, name=name, uploaded=True)
    return None


def _write(part: Part, shape: Shape) -> tuple[Json | None, str | None]:
    note = note_of(part, _FORM)
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}, None
        case ReasoningPart():
            if note.get("type") == "redacted_thinking":
                return {"type": "redacted_thinking", "data": part.signature or ""}, None
            if is_foreign(part, _FORM):
                return None, "reasoning of another provider"
            if _FORM not in (part.provider_meta or {}) and part.signature is None:
                return None, "reasoning without a signature, which the API rejects"
            return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}, None
        case ToolUsePart():
            value, lost = as_object(part.input, own=bool(note.get("parsed")))
            return {"type": note.get("type", "tool_use"), "id": part.id, "name": part.name, "input": value}, lost
        case ToolResultPart():
            return _result(part, note, shape)
        case AttachmentPart():
            return _file(part, shape)
    return None, "a part of an unknown kind"


def _result(part: ToolResultPart, note: Mapping[str, Any], shape: Shape) -> tuple[Json, str | None]:
    content, lost = value_of(part.content, note), None
    own = note.get("type", "tool_result")
    as_it_was = note.get("content") and (shape == "original" or content == [])
    if own == "tool_result" and content is not None and not as_it_was:
        content, lost = converted(content, _IN_RESULTS, lambda inner: _write(inner, shape)[0])
    out: Json = {"type": own, "tool_use_id": part.tool_use_id}
    if content is not None:
        out["content"] = content
    return ({**out, "is_error": True} if part.is_error else out), lost


def _file(part: AttachmentPart, shape: Shape) -> tuple[Json | None, str | None]:
    if part.modality in ("audio", "video"):
        return None, f"{part.modality}, which the API does not accept"
    image = is_image(part)
    mime, data = split_data_url(part.reference)
    source: Json
    if (uploaded := file_id(part, _FORM)) is not None:
        source = {"type": "file", "file_id": uploaded}
    elif data is not None:
        mime = mime or part.mime_type
        source = {"type": "base64", "media_type": mime, "data": data}
        if shape != "original" and mime not in (_IMAGES if image else ("application/pdf",)):
            text = None if image or mime is None or not mime.startswith("text/") else _decoded(data)
            if text is None:
                return None, f"a file of type {mime}, which the API does not accept inline"
            source = {"type": "text", "media_type": "text/plain", "data": text}
    elif is_web_url(part.reference) or (shape == "original" and part.reference is not None):
        source = {"type": "url", "url": part.reference}
    else:
        return None, NOT_USABLE
    if image:
        return {"type": "image", "source": source}, None
    return {"type": "document", "source": source, **({} if part.name is None else {"title": part.name})}, None


def _decoded(data: str) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
