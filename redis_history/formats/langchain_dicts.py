"""LangChain's serialized messages: `messages_to_dict`, `dumpd` or `dumps`. LangChain itself is not needed.

| LangChain | `Message` |
|---|---|
| `human`, `ai`, `system`, `tool`, `function` | `user`, `assistant`, `system`, `tool` |
| `chat` | its `role` if that is `user`, `assistant` or `system`; else `user` |
| `tool_calls`; `invalid_tool_calls` | tool_use parts; `provider_meta["langchain"]` |
| `status` of a tool message | `is_error` of the tool_result part |
| `text-plain`, `source_type: "text"` | text |
| files in any form: `source_type`, OpenAI's `image_url`, Anthropic's `source` … | attachments |
| `id`, `name`, `response_metadata`, unknown keys and blocks | `provider_meta["langchain"]`; opaque parts |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from redis_history.errors import InvalidMessageError
from redis_history.formats import _content, _notes
from redis_history.formats._blocks import converted, from_template, templated
from redis_history.formats._format import Format
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._marks import marked, pair_in
from redis_history.formats._usage import usage_of
from redis_history.values import (
    AttachmentPart,
    Message,
    Modality,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from redis_history.values.pairing import pairing

_ROLES: dict[str, Role] = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
_TYPES: dict[str, str] = {"user": "human", "assistant": "ai", "system": "system", "tool": "tool"}
_CHAT_ROLES: dict[str, Role] = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
_MODALITIES: dict[str, Modality] = {"image": "image", "audio": "audio", "video": "video", "file": "document"}


def from_langchain(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps.

    Raises InvalidMessageError, with the index, for an item that is not a serialized LangChain message.
    """
    return _LangChain().from_(messages, role=False)


def to_langchain(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[dict[str, Any]]:
    """Convert to the dicts of `messages_to_dict`, for `messages_from_dict`. Each tool result gets its own message.

    `on_loss` is called with each `Loss`; without it a warning is logged.
    """
    return _LangChain().to(messages, "original", on_loss)


class _LangChain(Format):
    form = "langchain"
    results_apart = True

    def read_message(self, raw: Mapping[str, Any], index: int) -> Message:
        kind, data = _type_and_data(raw, index)
        plain = kind.removesuffix("MessageChunk").lower() if kind.endswith("MessageChunk") else kind
        role = _CHAT_ROLES.get(str(data.get("role")), "user") if plain == "chat" else _ROLES.get(plain, "user")
        content, calls = data.get("content"), data.get("tool_calls")
        if role == "tool":
            parts: tuple[Part, ...] = (self._read_result(data, content),)
        else:
            parts = _notes.parts_of_content(content, self.read, f"message {index}", "text or a list")
        if role == "assistant" and isinstance(calls, list):
            parts = _with_copies(parts, tuple(map(self._read_call, calls)))
        details = data.get("response_metadata")
        names = [details.get(name) for name in ("model_name", "model")] if isinstance(details, Mapping) else []
        usage = usage_of(data.get("usage_metadata"), model=next(filter(None, names), None))
        message = Message(role=role, parts=parts, usage=usage)
        note: _notes.Json = {} if kind == _TYPES[role] else {"type": kind}
        note |= {"list": True} if isinstance(content, list) else {}
        note |= {"loose": True} if _without_old_calls(data) != data else {}
        return _notes.noted_message(
            message, self.form, note, data, self.body(message, note, "original"), f"message {index}"
        )

    def write_message(self, message: Message, shape: _notes.Shape, losses: Losses) -> list[_notes.Json]:
        note = self.note(message)
        out: list[_notes.Json] = []
        rest: list[Part] = []
        for index, part in enumerate(message.parts):
            if isinstance(part, ToolResultPart):
                own = note if message.role == "tool" else {}
                data, lost = self._result_data(part)
                out.append(_typed("tool", _notes.rebuild(data, own), own))
            elif isinstance(part, ToolUsePart):
                lost = f"a tool call by role {message.role}"
                if message.role == "assistant":
                    lost = self.call(part, shape)[1]
                    rest.append(part)
            else:
                block, lost = self.write(part, shape)
                rest += [] if block is None else [part]
            losses.add(message.id, index, lost)
        if rest or not message.parts:
            role: Role = "user" if message.role == "tool" else message.role
            body = self.body(replace(message, role=role, parts=tuple(rest)), note, shape)
            data = _notes.rebuild(body, note)
            out.append(_typed(_TYPES[role], data if note.get("loose") else _without_old_calls(data), note))
        return out

    def body(self, message: Message, note: Mapping[str, Any], shape: _notes.Shape) -> _notes.Json:
        if message.role == "tool" and message.tool_results:
            data: _notes.Json = self._result_data(message.tool_results[0])[0]
            return data
        blocks: list[Any] = []
        calls: list[Any] = []
        for part in message.parts:
            opened = _notes.foreign_block(self.form, part)
            if isinstance(opened, Mapping) and "tool_call" in opened:
                calls.append(opened["tool_call"])
            elif isinstance(part, ToolUsePart):
                calls.append(self.write(part, shape)[0])
            elif (block := self.write(part, shape)[0]) is not None:
                blocks.append(block)
        out: _notes.Json = {"content": _notes.content_of(blocks, "list" if note.get("list") else "")}
        return {**out, "tool_calls": calls} if message.role == "assistant" else out

    # Calls and results

    def _read_call(self, call: Any) -> Part:
        part = None
        match call:
            case {"name": str(name), "args": args, "id": str(id_)}:
                part = self.tool_use(id_, name, args, {})
        pair = {"opens": _content.text_or_none(call.get("id")) or ""} if isinstance(call, Mapping) else {}
        return _notes.read_block(self.form, call, part, self.render, {"tool_call": call}, pair)

    def call(self, part: ToolUsePart, shape: _notes.Shape) -> _notes.Rendered:
        args, lost = _content.as_object(part.input, own=bool(self.note(part).get("parsed")))
        return {"name": part.name, "args": args, "id": part.id, "type": "tool_call"}, lost

    def _read_result(self, data: Mapping[str, Any], content: Any) -> ToolResultPart:
        note: _notes.Json = {} if isinstance(content, str) else {"content": True}
        failed = data.get("status") == "error"
        return self.tool_result(data.get("tool_call_id"), content, note, name=data.get("name"), is_error=failed)

    def _result_data(self, part: ToolResultPart) -> _notes.Rendered:
        note = self.note(part)
        content, lost = _notes.value_of(part.content, note), None
        if not isinstance(content, str) and not note.get("content"):
            content, lost = converted(content, (), lambda inner: self.render(inner, "original")[0])
        named = {} if part.name is None else {"name": part.name}
        status = "error" if part.is_error else "success"
        return {"content": content, **named, "tool_call_id": part.tool_use_id, "status": status}, lost

    # Blocks

    def read(self, block: Any) -> Part:
        if isinstance(block, str):
            return TextPart(text=block, provider_meta={self.form: {"bare": True}})
        return super().read(block)

    def write(self, part: Part, shape: _notes.Shape) -> _notes.Rendered:
        if isinstance(part, TextPart) and self.note(part).get("bare"):
            return part.text, None
        return super().write(part, shape)

    def known(self, block: Any) -> Part | None:
        match block:
            case {"type": "text", "text": str(text)}:
                return TextPart(text=text)
            case {"type": "text-plain", "text": str(text)} | {"type": "file", "source_type": "text", "text": str(text)}:
                return TextPart(text=text, provider_meta={self.form: {"type": block["type"]}})
            case {"type": "reasoning", "reasoning": str(text)}:
                return ReasoningPart(text=text, provider_meta={self.form: {"type": "reasoning"}})
            case {"type": "thinking", "thinking": str(text)}:
                meta = {self.form: {"type": "thinking"}}
                return ReasoningPart(
                    text=text, signature=_content.text_or_none(block.get("signature")), provider_meta=meta
                )
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                return AttachmentPart(modality="image", reference=url, provider_meta={self.form: {"type": "image_url"}})
            case {"type": "image" | "audio" | "video" | "file" as kind, "url": str(url)}:
                return _content.attachment(self.form, _MODALITIES[kind], url, mime_type=block.get("mime_type"))
            case {"type": "image" | "audio" | "video" | "file" as kind, "file_id": str(id_)}:
                return _content.attachment(self.form, _MODALITIES[kind], id_, uploaded=True)
            case {"type": "image" | "audio" | "video" | "file" as kind, "base64": str(data), "mime_type": str(mime)}:
                if _content.base64_style(data):
                    return templated(self.form, block)
                return AttachmentPart(
                    modality=_MODALITIES[kind], reference=_content.data_url(mime, data), mime_type=mime
                )
        return templated(self.form, block)

    def text(self, part: TextPart, shape: _notes.Shape) -> _notes.Rendered:
        return {"type": self.note(part).get("type", "text"), "text": part.text}, None

    def reasoning(self, part: ReasoningPart, shape: _notes.Shape) -> _notes.Rendered:
        if self.note(part).get("type") == "thinking":
            signed = {} if part.signature is None else {"signature": part.signature}
            return {"type": "thinking", "thinking": part.text, **signed}, None
        lost = None if part.signature is None else "the signature of reasoning"
        return {"type": "reasoning", "reasoning": part.text}, lost

    def file(self, part: AttachmentPart, shape: _notes.Shape) -> _notes.Rendered:
        url = part.reference
        if (block := from_template(self.form, part)) is not None:
            return block, None
        if self.note(part).get("type") == "image_url":
            return {"type": "image_url", "image_url": {"url": url}}, None
        if url is None:
            return None, "a file without a reference"
        kind = part.modality if part.modality in ("image", "audio", "video") else "file"
        if (uploaded := _content.file_id(part, self.form)) is not None:
            return {"type": kind, "file_id": uploaded}, None
        mime, data = _content.split_data_url(url)
        if data is not None:
            mime = mime or part.mime_type or "application/octet-stream"
            return {"type": kind, "base64": data, "mime_type": mime}, None
        return {"type": kind, "url": url, **({} if part.mime_type is None else {"mime_type": part.mime_type})}, None


def _with_copies(content: Iterable[Part], calls: Iterable[Part]) -> tuple[Part, ...]:
    """The parts of a message with calls. A provider block for a call is kept or removed with the call."""
    ids = {id_ for call in calls for id_ in pairing(call).opens}
    copies: set[str] = set()
    parts: list[Part] = []
    for part in content:
        copied = next((id_ for id_ in pairing(part).opens if id_ in ids), None)
        if copied is not None:
            copies.add(copied)
            part = marked(part, {"opens": f"copy/{copied}"})
        parts.append(part)
    for call in calls:
        *_, id_ = pairing(call).opens
        parts.append(marked(call, {**pair_in(call), "answers": f"copy/{id_}"}) if id_ in copies else call)
        copies.discard(id_)
    return tuple(parts)


def _type_and_data(raw: Mapping[str, Any], index: int) -> tuple[str, Mapping[str, Any]]:
    """The type of a message and its data, from any of the serialized forms."""
    match raw:
        case {"type": str(kind), "data": Mapping() as data}:
            return kind, data
        case {"lc": int(), "id": [*_, str(name)], "kwargs": Mapping() as data}:
            return name.removesuffix("Chunk").removesuffix("Message").lower(), data
        case {"type": str(kind), "content": _}:
            return kind, raw
    raise InvalidMessageError(f"message {index} is not a LangChain message; its keys: {', '.join(map(str, raw))[:80]}")


def _without_old_calls(data: Mapping[str, Any]) -> _notes.Json:
    """The data without other forms of its calls if they differ from `tool_calls`, because these were edited. LangChain
    reads the calls from these forms, too."""
    out = dict(data)
    invalid = {str(call.get("id")) for call in _dicts(data.get("invalid_tool_calls"))}
    now = {str(call.get("id")): call.get("args") for call in _dicts(data.get("tool_calls"))}

    def is_old(id_: str, text: Any) -> bool:
        return id_ not in invalid and (id_ not in now or _content.parsed(text or "{}") != now[id_])

    if any(is_old(str(one.get("id")), one.get("args")) for one in _dicts(data.get("tool_call_chunks"))):
        del out["tool_call_chunks"]
    kwargs = data.get("additional_kwargs")
    if isinstance(kwargs, Mapping):
        raw = [(str(one.get("id")), one.get("function")) for one in _dicts(kwargs.get("tool_calls"))]
        if any(is_old(id_, it.get("arguments")) for id_, it in raw if isinstance(it, Mapping)):
            out["additional_kwargs"] = {key: value for key, value in kwargs.items() if key != "tool_calls"}
    return out


def _dicts(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _typed(kind: str, data: _notes.Json, note: Mapping[str, Any]) -> _notes.Json:
    kind = str(note.get("type", kind))
    return {"type": kind, "data": {**data, "type": kind} if "type" not in data else data}
