"""Messages of Bedrock's Converse API, which Strands Agents also has: `{"role": …, "content": [block, …]}`.

| Converse | `Message` |
|---|---|
| a `user` message with only tool results | role `tool`; restored as `user` |
| `toolUse`, `toolResult` | tool_use and tool_result parts; a result with one text is that text |
| `reasoningContent` | a reasoning part with its signature |
| `image`, `document`, `audio`, `video` with bytes or in S3 | an attachment; bytes become a data URL |
| other blocks (`citationsContent`, `cachePoint`, …) | an opaque part; bytes in it become base64 |
| other keys, such as `metadata` and `tracking_id` | `provider_meta["bedrock"]` |
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from redis_history.formats._blocks import converted
from redis_history.formats._content import (
    NOT_USABLE,
    as_object,
    data_url,
    given_arguments,
    is_image,
    parsed,
    split_data_url,
    standard_base64,
    text_or_none,
)
from redis_history.formats._format import Format
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._marks import marked, pair_of
from redis_history.formats._notes import Json, Rendered, Shape, opaque, parts_of_content, read_block, value_of
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
from redis_history.values.pairing import is_result

_BYTES: Final = "__bytes_encoded__"  # as in the JSON of Strands
_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
_DOCUMENTS: Final = {
    "pdf": "application/pdf",
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "html": "text/html",
    "txt": "text/plain",
    "md": "text/markdown",
}
_FORMATS: Final = {mime: name for name, mime in _DOCUMENTS.items()}
_IMAGES: Final = ("png", "jpeg", "gif", "webp")
_FILES: Final = ("image", "document", "audio", "video")
_IN_RESULTS: Final = ("text", "image", "document")
#: Characters that names of documents may not have.
_OTHER: Final = re.compile(r"[^a-zA-Z0-9\s\-()\[\]]+")


def from_bedrock(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps.

    Raises InvalidMessageError, with the index, for an item that is not a message of the Converse API.
    """
    return _Bedrock().from_(packed(message) for message in messages)


def to_bedrock(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to dicts of the Converse API, without system messages. `on_loss` is called with each `Loss`; without it a
    warning is logged."""
    found: list[dict[str, Any]] = unpacked(_Bedrock().to(messages, shape, on_loss))
    return found


def packed(value: Any) -> Any:
    """The value with base64 in the place of bytes, as a message can hold it."""
    if isinstance(value, bytes | bytearray):
        return {_BYTES: True, "data": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: packed(inner) for key, inner in value.items()}
    return [packed(inner) for inner in value] if isinstance(value, list | tuple) else value


def unpacked(value: Any) -> Any:
    """The value that was `packed`."""
    if isinstance(value, dict):
        if value.get(_BYTES) is True and (data := _decoded(value.get("data"))) is not None:
            return data
        return {key: unpacked(inner) for key, inner in value.items()}
    return [unpacked(inner) for inner in value] if isinstance(value, list) else value


def _decoded(data: Any) -> bytes | None:
    """The bytes of base64 of any style; None for what is not base64."""
    try:
        return base64.b64decode(standard_base64("".join(data.split())), validate=True)
    except (AttributeError, ValueError):
        return None


class _Bedrock(Format):
    form = "bedrock"
    roles: ClassVar[Mapping[str, Role]] = {"user": "user", "assistant": "assistant"}

    def read_message(self, raw: Mapping[str, Any], index: int) -> Message:
        where = f"message {index}"
        role, note = self.role_of(raw)
        parts = parts_of_content(raw.get("content"), self.read, where, "blocks")
        if role == "user" and parts and all(map(is_result, parts)):
            role = "tool"
        return self.noted(Message(role=role, parts=parts), note, raw, where)

    def write_message(self, message: Message, shape: Shape, losses: Losses) -> list[Json]:
        note = self.note(message)
        if message.role == "system":
            losses.add(message.id, None, "a system message, which Converse takes apart")
            return []
        blocks = []
        for index, part in enumerate(message.parts):
            block, lost = self.hinted(part, self.write(part, shape), shape)
            is_blank = shape != "original" and isinstance(part, TextPart) and not part.text.strip()
            if block is not None and not (is_blank and not self.is_own(message)):
                blocks.append(block)
            losses.add(message.id, index, lost)
        losses.add(message.id, None, self.lost_role(note, shape))
        if message.parts and not blocks:
            return []
        return [self.rebuilt(self._item(message, note, shape, blocks), message, shape)]

    def body(self, message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
        return self._item(message, note, shape, [self.write(part, shape)[0] for part in message.parts])

    def _item(self, message: Message, note: Mapping[str, Any], shape: Shape, blocks: list[Any]) -> Json:
        role = "user" if message.role == "tool" else message.role
        content: Any = blocks
        if shape == "original":
            role = note.get("role", role)
            if note.get("content") == "text":
                content = "".join(block["text"] for block in blocks)
            elif note.get("content") == "null" and not blocks:
                content = None
        return {"role": role, "content": content}

    def read(self, block: Any) -> Part:
        part = self.known(block)
        if part is None and isinstance(block, Mapping):
            return marked(opaque(self.form, block, next(iter(block), None)), pair_of(block))
        return read_block(self.form, block, part, self.render)

    def known(self, block: Any) -> Part | None:
        match block:
            case {"text": str(text)}:
                return TextPart(text=text)
            case {"toolUse": {"toolUseId": str(id_), "name": str(name)} as use}:
                return self.tool_use(id_, name, *given_arguments(use.get("input")))
            case {"toolResult": {"toolUseId": str(id_), "content": list(items)} as result}:
                content, note = _content_of(items)
                is_error = result.get("status") == "error"
                return None if content is None else self.tool_result(id_, content, note, is_error=is_error)
            case {"reasoningContent": {"reasoningText": {"text": str(text)} as found}}:
                meta = {self.form: {"type": "reasoning"}}
                return ReasoningPart(text=text, signature=text_or_none(found.get("signature")), provider_meta=meta)
            case {"reasoningContent": {"redactedContent": {"data": str(data)}}}:
                return ReasoningPart(text="", signature=data, provider_meta={self.form: {"type": "redacted"}})
        return self._file(block) if isinstance(block, Mapping) else None

    def _file(self, block: Mapping[str, Any]) -> AttachmentPart | None:
        for kind in _FILES:
            match block.get(kind):
                case {"format": str(form), "source": {"bytes": {"data": str(data)}}}:
                    reference, note = data_url(_mime(kind, form), data), Json()
                case {"format": str(form), "source": {"location": {"uri": str(reference)}}}:
                    note = {"held": "location"}
                case {"format": str(form), "source": {"s3Location": {"uri": str(reference)}}}:
                    note = {"held": "s3Location"}
                case _:
                    continue
            return AttachmentPart(
                modality=kind,
                name=text_or_none(block[kind].get("name")),
                mime_type=_mime(kind, form),
                reference=reference,
                provider_meta=self.meta(note),
            )
        return None

    def text(self, part: TextPart, shape: Shape) -> Rendered:
        return {"text": part.text}, None

    def reasoning(self, part: ReasoningPart, shape: Shape) -> Rendered:
        kind = self.note(part).get("type")
        if kind == "redacted":
            return {"reasoningContent": {"redactedContent": {_BYTES: True, "data": part.signature or ""}}}, None
        if kind is None:
            return None, "reasoning of another provider"
        signature = {} if part.signature is None else {"signature": part.signature}
        return {"reasoningContent": {"reasoningText": {"text": part.text, **signature}}}, None

    def call(self, part: ToolUsePart, shape: Shape) -> Rendered:
        note = self.note(part)
        own = value_of(part.input, note)
        own = note.get("empty", own) if shape == "original" and own == {} else own
        value, lost = (own, None) if shape == "original" else as_object(own)
        return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": value}}, lost

    def result(self, part: ToolResultPart, shape: Shape) -> Rendered:
        note = self.note(part)
        content, lost = value_of(part.content, note), None
        if isinstance(content, Mapping) and self.is_own(part):
            content = [{"type": "json", "json": content}]
        elif not (isinstance(content, list) and all(_is_item(one, at, note) for at, one in enumerate(content))):
            content, lost = converted(content, ("text",), lambda inner: self.render(inner, shape)[0])
        blocks = [{"text": content}] if isinstance(content, str) else list(map(_item_of, content))
        for at in note.get("json", ()):
            if at < len(blocks) and isinstance(text := blocks[at].get("text"), str) and (value := parsed(text)) != text:
                blocks[at] = {"json": value}
        status = "error" if part.is_error else "success"
        return {"toolResult": {"toolUseId": part.tool_use_id, "status": status, "content": blocks}}, lost

    def file(self, part: AttachmentPart, shape: Shape) -> Rendered:
        kind = part.modality or ("image" if is_image(part) else "document")
        mime, data = split_data_url(part.reference)
        mime = mime or part.mime_type or ""
        form = _FORMATS.get(mime) if kind == "document" else mime.partition("/")[2]
        if part.reference is None or not form or (kind == "image" and form not in _IMAGES and shape != "original"):
            return None, NOT_USABLE
        if data is not None:
            if _decoded(data) is None:
                return None, NOT_USABLE
            source: Json = {"bytes": {_BYTES: True, "data": data}}
        elif part.reference.startswith("s3://") or shape == "original":
            key = self.note(part).get("held", "location")
            source = {key: {**({"type": "s3"} if key == "location" else {}), "uri": part.reference}}
        else:
            return None, NOT_USABLE
        name = {} if kind != "document" else {"name": part.name or "document"}
        if name and shape != "original" and not self.is_own(part):
            name["name"] = _OTHER.sub(" ", name["name"]).strip()[:200] or "document"
        return {kind: {"format": form, **name, "source": source}}, None


def _mime(kind: str, form: str) -> str:
    return _DOCUMENTS.get(form, f"{kind}/{form}") if kind == "document" else f"{kind}/{form}"


# The content of a result is stored in blocks that name their type, which all readers of results know.


def _content_of(items: list[Any]) -> tuple[Any, Json]:
    """The stored content of a result, and its note, which names the items that are kept as they are. None for content
    that no result has."""
    match items:
        case [{"text": str(text), **rest}] if not rest:
            return text, {}
        case [{"json": dict(value), **rest}] if not rest:
            return value, {"json": [0]}
    found: list[Json] = []
    note: Json = {}
    for at, item in enumerate(items):
        match item:
            case {"text": str(text), **rest} if not rest:
                found.append({"type": "text", "text": text})
            case {"json": value, **rest} if not rest:
                found.append({"type": "text", "text": json.dumps(value, ensure_ascii=False)})
                note.setdefault("json", []).append(at)
            case Mapping():
                media = _media_of(item)
                found.append(dict(item) if media is None else media)
                if media is None:
                    note.setdefault("raw", []).append(at)
            case _:
                return None, {}
    return found, note


def _media_of(item: Mapping[str, Any]) -> Json | None:
    """The stored block of an image or document with bytes; None for other items."""
    kind, file = next(iter(item.items()), ("", None))
    if len(item) != 1 or kind not in _IN_RESULTS:
        return None
    match file:
        case {"format": str(form), "source": {"bytes": {"data": str(data)}} as source, **rest}:
            if len(source) == 1 and rest.keys() <= {"name"}:
                media = {"type": "base64", "media_type": _mime(kind, form), "data": data}
                return {"type": kind, "source": media, **({"title": rest["name"]} if rest else {})}
    return None


def _is_item(block: Any, at: int, note: Mapping[str, Any]) -> bool:
    """Whether `_content_of` writes such a block at this place."""
    match block:
        case {"type": "text", "text": str()}:
            return True
        case {"type": "image" | "document", "source": {"type": "base64", "data": data}}:
            return _decoded(data) is not None
    return isinstance(block, Mapping) and at in note.get("raw", ())


def _item_of(block: Any) -> Any:
    """The item of a result for a stored block, or for a block of `Format.render`."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {"text": text}
        case {"type": "json", "json": value}:
            return {"json": value}
        case {
            "type": "image" | "document" as kind,
            "source": {"type": "base64", "media_type": str(mime), "data": data},
        }:
            form = _FORMATS.get(mime) or mime.partition("/")[2]
            named = {"name": block["title"]} if "title" in block else {}
            return {kind: {"format": form, **named, "source": {"bytes": {_BYTES: True, "data": data}}}}
    return block
