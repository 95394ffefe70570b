"""Anthropic Messages: `MessageParam` lists, the `message` of API replies and of Claude Code sessions.

| Anthropic | `Message` |
|---|---|
| a `user` message with only tool results | role `tool`; restored as `user` |
| the separate `system` value | a first message with role `system`; see `to_anthropic_system` |
| a message with role `system` in the list | role `system`; restored in the list |
| `thinking`, `redacted_thinking` | a reasoning part with its signature |
| `server_tool_use`, `web_search_tool_result` … | tool_use and tool_result parts. The note has the type |
| a repeated id of a call, or one with other characters than letters, digits, `_`, `-` | restored; others are replaced |
| `image`, `document` (base64, URL, file id) | an attachment; base64 becomes a data URL without decoding |
| `cache_control`, `citations`, unknown keys, unknown blocks | `provider_meta["anthropic"]`. An opaque part |
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from redis_history.formats._blocks import converted
from redis_history.formats._content import (
    NOT_USABLE,
    anthropic_file,
    as_object,
    given_arguments,
    is_image,
    split_data_url,
    text_or_none,
)
from redis_history.formats._format import Format
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import FORMS, Json, Rendered, Shape, content_of, parts_of_content, value_of
from redis_history.formats._sdk_objects import ADDED, PARSED, Places, plain
from redis_history.values import (
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

_IN_RESULTS = ("text", "image", "search_result", "document", "tool_reference", "browser_state")
#: Characters that ids of calls may not have.
_OTHER = re.compile(r"[^a-zA-Z0-9_-]")
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def from_anthropic(messages: Iterable[Mapping[str, Any]], *, system: str | list[Any] | None = None) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps. A `system` value becomes the
    first message.

    Raises InvalidMessageError, with the index, for an item that is not an Anthropic message.
    """
    format_ = _Anthropic()
    out = format_.from_(messages)
    if system is None:
        return out
    first = format_.read_message({"role": "system", "content": plain(system)}, 0)
    note = {key: value for key, value in format_.note(first).items() if key != "in_list"}
    return [replace(first, provider_meta=format_.meta(note) or {}), *out]


def to_anthropic(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to dicts of the Messages API, without system messages: pass these with `to_anthropic_system`.

    `on_loss` is called with each `Loss`; without it a warning is logged. `shape="request"` leaves out keys that only
    replies have, such as `usage`, because the API rejects them in a request.
    """
    return _Anthropic().to(messages, shape, on_loss)


def to_anthropic_system(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> str | list[dict[str, Any]] | None:
    """The `system` value: the original value for one system message, the blocks of all for several, None for none.

    The value can contain text only. Other content is reported as a loss. `shape` and `on_loss` as in `to_anthropic`.
    """
    contents = [item["content"] for item in _AnthropicSystem().to(messages, shape, on_loss)]
    if len(contents) < 2:
        return contents[0] if contents else None
    return [b for c in contents for b in ([{"type": "text", "text": c}] if isinstance(c, str) else c)]


class _Anthropic(Format):
    form = "anthropic"
    roles: ClassVar[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
    request: ClassVar[tuple[str, ...]] = ("role", "content")
    sdk_keys: ClassVar[Places] = {"content": PARSED}
    reply_keys: ClassVar[Places] = {"content": ADDED, "content.citations": frozenset(("file_id",))}
    metadata = (
        "file_id",
        "index",
        "id",
        "type",
        "model",
        "usage",
        "stop_reason",
        "stop_sequence",
        "stop_details",
        "container",
    )
    not_null: ClassVar[Mapping[type | str, tuple[str, ...]]] = {ToolResultPart: ("content", "is_error")}

    def __init__(self) -> None:
        self._ids: set[str] = set()  # of the calls that were read
        self._used: set[str] = set()  # the ids of the calls that were written
        self._written: dict[str, list[str]] = {}  # these, by the ids that the calls had
        self._renamed: set[int] = set()  # the places of parts with another id, in the message that is written

    def prepared(self, message: Message) -> Message:
        """The message with ids of calls as the API wants them: each once, of its characters."""
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, ToolUsePart):
                id_ = part.id
                if not self.note(part).get("id"):
                    plain = _OTHER.sub("_", part.id) or "call"
                    others = (f"{plain}-{number}" for number in itertools.count(2))
                    id_ = next(one for one in itertools.chain((plain,), others) if one not in self._used)
                self._used.add(id_)
                self._written.setdefault(part.id, []).append(id_)
                part = part if id_ == part.id else replace(part, id=id_)
            elif isinstance(part, ToolResultPart) and (known := self._written.get(part.tool_use_id)):
                id_ = known.pop() if len(known) > 1 else known[0]
                part = part if id_ == part.tool_use_id else replace(part, tool_use_id=id_)
            parts.append(part)
        self._renamed = {at for at, part in enumerate(parts) if part is not message.parts[at]}
        return replace(message, parts=tuple(parts)) if self._renamed else message

    def read_message(self, raw: Mapping[str, Any], index: int) -> Message:
        where = f"message {index}"
        role, note = self.role_of(raw)
        parts = parts_of_content(raw.get("content"), self.read, where, "text or blocks")
        if role == "user" and parts and all(isinstance(part, ToolResultPart) for part in parts):
            role = "tool"
        if role == "system":
            note["in_list"] = True
        return self.noted(Message(role=role, parts=parts), note, raw, where)

    def write_message(self, message: Message, shape: Shape, losses: Losses) -> list[Json]:
        note = self.note(message)
        if message.role == "system" and not note.get("in_list"):
            return []
        blocks = self.blocks(message, shape, losses)
        losses.add(message.id, None, self.lost_role(note, shape))
        if message.parts and not blocks:
            return []  # all of its content was lost, and reported
        return [self.rebuilt(self._item(message, note, shape, blocks), message, shape)]

    def body(self, message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
        return self._item(message, note, shape, self.blocks(message, shape))

    def _item(self, message: Message, note: Mapping[str, Any], shape: Shape, blocks: list[Any]) -> Json:
        role = "user" if message.role == "tool" else message.role
        if shape == "original":
            role = note.get("role", role)
        null = None if shape == "original" else ""
        return {"role": role, "content": content_of(blocks, note.get("content", ""), null)}

    def blocks(self, message: Message, shape: Shape, losses: Losses | None = None) -> list[Any]:
        in_list = self.note(message).get("in_list")
        out = []
        for index, part in enumerate(message.parts):
            block, lost = self.write(part, shape)
            if block is not None and message.role == "system" and shape != "original":
                own = in_list and isinstance(part, UnknownPart)  # such as tool_addition
                if not own and not (isinstance(block, Mapping) and block.get("type") == "text"):
                    block, lost = None, "content other than text in a system message"
            if block is None:
                block, lost = self.hinted(part, (block, lost), shape)
            if block is not None and not (_is_blank(block) and self._rejects_blank(part, shape)):
                out.append(block)
            if losses is not None:
                lost = lost or ("the id of a tool call, which the API rejects" if index in self._renamed else None)
                losses.add(message.id, index, lost)
        return out

    def _rejects_blank(self, part: Part, shape: Shape) -> bool:
        """Whether a text without content is left out: in a request, and if another provider wrote it."""
        meta = getattr(part, "provider_meta", None) or {}
        others = self.form not in meta and any(name in meta for name in FORMS)
        return shape == "request" or (shape == "valid" and others)

    def is_empty(self, item: Json) -> bool:
        content = item["content"]
        return not (content.strip() if isinstance(content, str) else content)

    def known(self, block: Any) -> Part | None:
        match block:
            case {"type": "text", "text": str(text)}:
                return TextPart(text=text)
            case {"type": "thinking", "thinking": str(text)}:
                # Other providers than the one behind the signature reject it, so the note names the provider.
                meta = {self.form: {"type": "thinking"}}
                return ReasoningPart(text=text, signature=text_or_none(block.get("signature")), provider_meta=meta)
            case {"type": "redacted_thinking", "data": str(data)}:
                return ReasoningPart(text="", signature=data, provider_meta={self.form: {"type": "redacted_thinking"}})
            case {"type": str(kind), "id": str(id_), "name": str(name)} if kind.endswith("tool_use"):
                value, note = given_arguments(block.get("input"))
                if not isinstance(value, dict):
                    return None
                note |= {} if kind == "tool_use" else {"type": kind}
                note |= {"id": True} if id_ in self._ids or _OTHER.search(id_) or not id_ else {}
                self._ids.add(id_)
                return self.tool_use(id_, name, value, note)
            case {"type": str(kind), "tool_use_id": str(id_)} if kind.endswith("tool_result"):
                # Results of the provider's own tools can be encrypted, and are only accepted under their own type.
                note = {} if kind == "tool_result" else {"type": kind}
                content = block.get("content")
                if not note and content is not None and converted(content, _IN_RESULTS, lambda _: None)[0] != content:
                    note["content"] = True
                return self.tool_result(id_, content, note, is_error=block.get("is_error") is True)
            case {"type": "image" | "document" as kind, "source": Mapping() as source}:
                return anthropic_file(kind, source, block.get("title"))
        return None

    def reasoning(self, part: ReasoningPart, shape: Shape) -> Rendered:
        if self.note(part).get("type") == "redacted_thinking":
            return {"type": "redacted_thinking", "data": part.signature or ""}, None
        if self.is_foreign(part):
            return None, "reasoning of another provider"
        if not self.is_own(part) and part.signature is None:
            return None, "reasoning without a signature, which the API rejects"
        return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}, None

    def call(self, part: ToolUsePart, shape: Shape) -> Rendered:
        note = self.note(part)
        value, lost = as_object(part.input, own=bool(note.get("parsed")))
        if shape == "original" and value == {}:
            value = note.get("empty", value)
        return {"type": note.get("type", "tool_use"), "id": part.id, "name": part.name, "input": value}, lost

    def result(self, part: ToolResultPart, shape: Shape) -> Rendered:
        note = self.note(part)
        content, lost = value_of(part.content, note), None
        kind = note.get("type", "tool_result")
        as_it_was = note.get("content") and (shape == "original" or content == [])
        if kind == "tool_result" and content is not None and not as_it_was:
            content, lost = converted(content, _IN_RESULTS, lambda inner: self.render(inner, shape)[0])
            if shape == "request" and isinstance(content, list):
                content = [block for block in content if not _is_blank(block)]
        elif kind != "tool_result" and shape != "original" and not _is_content_of(kind, content):
            content = {"type": f"{kind}_error", "error_code": "unavailable"}
            lost = f"the edited content of a {kind} (the API gets an error, because it accepts only its own content)"
        out: Json = {"type": kind, "tool_use_id": part.tool_use_id}
        if content is not None:
            out["content"] = content
        return ({**out, "is_error": True} if part.is_error else out), lost

    def file(self, part: AttachmentPart, shape: Shape) -> Rendered:
        if part.modality in ("audio", "video"):
            return None, f"{part.modality}, which the API does not accept"
        image = is_image(part)
        source: Json
        match self.source(part, shape):
            case "uploaded", uploaded:
                source = {"type": "file", "file_id": uploaded}
            case "inline", url:
                mime, data = split_data_url(url)
                mime = mime or part.mime_type
                source = {"type": "base64", "media_type": mime, "data": data}
                if shape != "original" and mime not in (_IMAGES if image else ("application/pdf",)):
                    text = None if image or mime is None or not mime.startswith("text/") else _decoded(data)
                    if text is None:
                        return None, f"a file of type {mime}, which the API does not accept inline"
                    source = {"type": "text", "media_type": "text/plain", "data": text}
            case "url", url:
                source = {"type": "url", "url": url}
            case _:
                return None, NOT_USABLE
        if image:
            return {"type": "image", "source": source}, None
        return {"type": "document", "source": source, **({} if part.name is None else {"title": part.name})}, None


class _AnthropicSystem(_Anthropic):
    """The messages of the separate `system` value."""

    request = ()

    def write_message(self, message: Message, shape: Shape, losses: Losses) -> list[Json]:
        note = self.note(message)
        if message.role != "system" or note.get("in_list"):
            return []
        return [self._item(message, note, shape, self.blocks(message, shape, losses))]


def _is_blank(block: Any) -> bool:
    """Whether this is a text without content, which the API rejects."""
    return isinstance(block, dict) and block.get("type") == "text" and not str(block.get("text")).strip()


def _is_content_of(kind: str, content: Any) -> bool:
    """Whether a result of a tool of the provider can have this content: objects of matching types, such as
    web_search_result in a web_search_tool_result."""
    if kind == "mcp_tool_result" and isinstance(content, str):
        return True
    of = "" if kind == "mcp_tool_result" else kind.removesuffix("_tool_result")
    items = content if isinstance(content, list) else [content]
    return all(isinstance(item, Mapping) and of in str(item.get("type")) for item in items)


def _decoded(data: Any) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
