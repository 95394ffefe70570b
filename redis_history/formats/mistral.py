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
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from redis_history.formats._chat import ChatFormat
from redis_history.formats._content import (
    NOT_USABLE,
    attachment,
    converted,
    data_url,
    file_id,
    is_image,
    is_web_url,
    split_data_url,
)
from redis_history.formats._losses import OnLoss
from redis_history.formats._notes import Json, Shape, is_foreign, note_of, read_block, value_of, with_note, write_block
from redis_history.model import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

_FORM = "mistral"
_IN_RESULTS = ("text", "image_url", "document_url", "reference", "file", "input_audio")
_SOUND = "application/octet-stream"
_SHORT = re.compile(r"[A-Za-z0-9]{9}")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def from_mistral(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps.

    Raises InvalidMessageError, with the index, for an item that is not a chat message.
    """
    return _Mistral().from_(messages)


def to_mistral(
    messages: Iterable[Message], *, short_ids: bool = False, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to dicts of the chat API. Each tool result gets its own `tool` message, before the rest of its message.

    Mistral's own models only accept tool call ids of nine letters and digits. `short_ids` replaces other ids with such
    ids; equal ids get equal replacements. `shape` and `on_loss` are as in `to_openai_chat`.
    """
    return _Mistral().to(map(_shortened, messages) if short_ids else messages, shape, on_loss)


class _Mistral(ChatFormat):
    form = _FORM
    roles: ClassVar[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}
    request = frozenset(("role", "content", "tool_calls", "prefix", "tool_call_id", "name"))
    null_roles = ("user", "assistant", "tool")
    free: ClassVar[Mapping[str, Collection[str]]] = {"assistant": ("content",), "tool": ("tool_call_id",)}
    free_in_calls = ("id", "type")
    not_null = ("prefix",)
    only_assistant_calls = True
    object_arguments = True

    def read_block(self, block: Any) -> Part:
        return read_block(_FORM, block, _known(block), _write)

    def write_block(self, part: Part, role: Role, shape: Shape) -> tuple[Any, str | None]:
        block, lost = write_block(_FORM, part, _write, shape)
        if block is None or role != "system" or shape == "original":
            return block, lost
        if not (isinstance(block, Mapping) and block.get("type") in ("text", "thinking")):
            return None, "content other than text in a system message"
        return block, lost

    def write_result(self, part: ToolResultPart, shape: Shape) -> tuple[Any, str | None]:
        note = note_of(part, _FORM)
        content = value_of(part.content, note)
        own = _FORM in (part.provider_meta or {})
        if content is None or (own and (shape == "original" or content == [])):
            return content, None
        # Other providers have blocks of the same name with another structure.
        native = (*_IN_RESULTS, "thinking") if own else _IN_RESULTS
        return converted(content, native, lambda inner: _write(inner, shape)[0])

    def tool_message(self, part: ToolResultPart, note: Mapping[str, Any], content: Any, shape: Shape) -> Json:
        named = {} if part.name is None else {"name": part.name}
        role = note.get("role", "tool") if shape == "original" else "tool"
        return {"role": role, "content": content, "tool_call_id": part.tool_use_id, **named}


def _known(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "thinking", "thinking": list(chunks)}:
            text, signature = _text_of(chunks), block.get("signature")
            note: Json = {"type": "thinking"}
            if chunks != [{"type": "text", "text": text}]:
                note["chunks"] = chunks
            signed = signature if isinstance(signature, str) else None
            return ReasoningPart(text=text, signature=signed, provider_meta=with_note(_FORM, note))
        case {"type": "image_url", "image_url": str(url)}:
            return attachment(_FORM, "image", url)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return attachment(_FORM, "image", url, note={"object": True})
        case {"type": "document_url", "document_url": str(url)}:
            return attachment(_FORM, "document", url, name=block.get("document_name"))
        case {"type": "file", "file_id": str(id_)}:
            return attachment(_FORM, "document", id_, uploaded=True)
        case {"type": "input_audio", "input_audio": str(data)}:
            # An audio chunk does not say its type.
            return AttachmentPart(modality="audio", reference=data if is_web_url(data) else data_url(_SOUND, data))
    return None


def _text_of(chunks: Any) -> str:
    found = (chunk.get("text") for chunk in chunks if isinstance(chunk, Mapping))
    return "".join(text for text in found if isinstance(text, str))


def _write(part: Part, shape: Shape) -> tuple[Json | None, str | None]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}, None
        case ReasoningPart():
            return _thinking(part)
        case AttachmentPart():
            return _file(part, shape)
    return None, "a part of an unknown kind"


def _thinking(part: ReasoningPart) -> tuple[Json | None, str | None]:
    chunks = note_of(part, _FORM).get("chunks")
    if not isinstance(chunks, list) or _text_of(chunks) != part.text:
        chunks = [{"type": "text", "text": part.text}]
    out: Json = {"type": "thinking", "thinking": chunks}
    if part.signature is None:
        return out, None
    if not is_foreign(part, _FORM):
        return {**out, "signature": part.signature}, None
    if not part.text:
        return None, "reasoning that only another provider can decrypt"
    return out, "the signature of another provider"


def _file(part: AttachmentPart, shape: Shape) -> tuple[Json | None, str | None]:
    reference = part.reference
    mime, data = split_data_url(reference)
    if part.modality == "video":
        return None, "video, which the API does not accept"
    if (uploaded := file_id(part, _FORM)) is not None:
        lost = None if part.modality not in ("audio", "image") else f"the modality {part.modality} of an uploaded file"
        return {"type": "file", "file_id": uploaded}, lost
    if reference is None or (data is None and shape != "original" and not is_web_url(reference)):
        return None, NOT_USABLE
    if part.modality == "audio":
        return {"type": "input_audio", "input_audio": reference if data is None else data}, None
    if is_image(part) or (part.modality is None and (mime or "").startswith("image/")):
        url = {"url": reference} if note_of(part, _FORM).get("object") else reference
        return {"type": "image_url", "image_url": url}, None
    named = {} if part.name is None else {"document_name": part.name}
    return {"type": "document_url", "document_url": reference, **named}, None


def _shortened(message: Message) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolUsePart):
            part = msgspec.structs.replace(part, id=_short(part.id))
        elif isinstance(part, ToolResultPart):
            part = msgspec.structs.replace(part, tool_use_id=_short(part.tool_use_id))
        parts.append(part)
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
