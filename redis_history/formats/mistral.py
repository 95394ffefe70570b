"""Mistral's chat completions: the messages of `client.chat.complete`, and its replies.

| Mistral | `Message` |
|---|---|
| a `thinking` chunk | a reasoning part with its signature |
| `image_url`, `document_url`, `file`, `input_audio` | attachments; audio becomes a data URL of an unknown type |
| `reference` (citations), unknown chunks | opaque parts |
| `tool_calls` | tool_use parts with parsed arguments (Mistral may also send an object) |
| `prefix`, unknown keys | `provider_meta["mistral"]` |
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from redis_history.formats._chat import ChatFormat
from redis_history.formats._content import NOT_USABLE, attachment, data_url, is_image, split_data_url, text_or_none
from redis_history.formats._losses import OnLoss
from redis_history.formats._notes import Json, Rendered, Shape, quoted
from redis_history.values import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

_UNKNOWN_AUDIO = "application/octet-stream"
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
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
    return _Mistral(short_ids=short_ids).to(messages, shape, on_loss)


class _Mistral(ChatFormat):
    form = "mistral"
    roles: ClassVar[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}
    request = ("role", "content", "tool_calls", "prefix", "tool_call_id", "name")
    in_results = ("text", "image_url", "document_url", "reference", "file", "input_audio")
    in_own_results = (*in_results, "thinking")  # thinking of other providers has another structure
    result_keys = ("role", "content", "tool_call_id", "name")
    null_roles = ("user", "assistant", "tool")
    free: ClassVar[Mapping[type | str, Collection[str]]] = {
        "assistant": ("content",),
        "tool": ("tool_call_id",),
        ToolUsePart: ("id", "type"),
    }
    not_null: ClassVar[Mapping[type | str, Collection[str]]] = {Message: ("prefix",)}
    only_assistant_calls = True
    object_arguments = True

    def __init__(self, *, short_ids: bool = False) -> None:
        self._short_ids = short_ids

    def prepared(self, message: Message) -> Message:
        return _with_short_ids(message) if self._short_ids else message

    def known(self, block: Any) -> Part | None:
        match block:
            case {"type": "text", "text": str(text)}:
                return TextPart(text=text)
            case {"type": "thinking", "thinking": list(chunks)}:
                text, signature = _text_of(chunks), text_or_none(block.get("signature"))
                part = ReasoningPart(text=text, signature=signature, provider_meta=self.meta({"type": "thinking"}))
                if chunks == [{"type": "text", "text": text}]:
                    return part
                return quoted(part, self.form, {"chunks": chunks})
            case {"type": "image_url", "image_url": str(url)}:
                return attachment(self.form, "image", url)
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                return attachment(self.form, "image", url, note={"object": True})
            case {"type": "document_url", "document_url": str(url)}:
                return attachment(self.form, "document", url, name=block.get("document_name"))
            case {"type": "file", "file_id": str(id_)}:
                return attachment(self.form, "document", id_, uploaded=True)
            case {"type": "input_audio", "input_audio": str(data)}:
                # An audio chunk does not say its type.
                url = data if data.startswith(("http://", "https://")) else data_url(_UNKNOWN_AUDIO, data)
                return AttachmentPart(modality="audio", reference=url)
        return None

    def own_block(self, part: Part, role: Role, shape: Shape) -> Rendered:
        block, lost = super().own_block(part, role, shape)
        if block is None or role != "system" or shape == "original":
            return block, lost
        if not (isinstance(block, Mapping) and block.get("type") in ("text", "thinking")):
            return None, "content other than text in a system message"
        return block, lost

    def is_empty(self, item: Json) -> bool:
        return item["role"] == "assistant" and not item.get("content") and not item.get("tool_calls")

    def reasoning(self, part: ReasoningPart, shape: Shape) -> Rendered:
        chunks = self.note(part).get("chunks")
        if not isinstance(chunks, list) or _text_of(chunks) != part.text:
            chunks = [{"type": "text", "text": part.text}]
        out: Json = {"type": "thinking", "thinking": chunks}
        if part.signature is None:
            return out, None
        if not self.is_foreign(part):
            return {**out, "signature": part.signature}, None
        if not part.text:
            return None, "reasoning that only another provider can decrypt"
        return out, "the signature of another provider"

    def file(self, part: AttachmentPart, shape: Shape) -> Rendered:
        if part.modality == "video":
            return None, "video, which the API does not accept"
        how, url = self.source(part, shape)
        if how == "uploaded":
            lost = f"the modality {part.modality} of an uploaded file" if part.modality in ("audio", "image") else None
            return {"type": "file", "file_id": url}, lost
        if url is None:
            return None, NOT_USABLE
        mime, data = split_data_url(url)
        if part.modality == "audio":
            return {"type": "input_audio", "input_audio": url if data is None else data}, None
        if is_image(part) or (part.modality is None and (mime or "").startswith("image/")):
            return {"type": "image_url", "image_url": {"url": url} if self.note(part).get("object") else url}, None
        named = {} if part.name is None else {"document_name": part.name}
        return {"type": "document_url", "document_url": url, **named}, None


def _text_of(chunks: Any) -> str:
    found = (chunk.get("text") for chunk in chunks if isinstance(chunk, Mapping))
    return "".join(text for text in found if isinstance(text, str))


def _with_short_ids(message: Message) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolUsePart):
            part = replace(part, id=_short_id(part.id))
        elif isinstance(part, ToolResultPart):
            part = replace(part, tool_use_id=_short_id(part.tool_use_id))
        parts.append(part)
    return replace(message, parts=tuple(parts))


def _short_id(id_: str) -> str:
    if _SHORT_ID.fullmatch(id_):
        return id_
    number = int.from_bytes(hashlib.blake2b(id_.encode(), digest_size=8).digest(), "big")
    return "".join(_ALPHABET[number // 62**place % 62] for place in range(9))
