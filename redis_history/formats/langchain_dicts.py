"""LangChain's serialized messages: `messages_to_dict`, `dumpd` or `dumps`. LangChain itself is not needed.

| LangChain | `Message` |
|---|---|
| `human`, `ai`, `system`, `tool`, `function` | `user`, `assistant`, `system`, `tool` |
| `chat` | its `role` if that is `user`, `assistant` or `system`; else `user` |
| `content` as text or blocks | text, reasoning and attachment parts |
| `tool_calls`; `invalid_tool_calls` | tool_use parts; `provider_meta["langchain"]` |
| `status` of a tool message | `is_error` of the tool_result part |
| `id`, `name`, `response_metadata`, unknown keys and blocks | `provider_meta["langchain"]`; opaque parts |

`to_langchain` reports as losses: signatures of reasoning that did not come through LangChain, opaque parts of other
providers, tool calls in messages whose role is not `assistant`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from redis_history.errors import InvalidMessageError
from redis_history.formats._content import (
    as_object,
    attachment,
    converted,
    data_url,
    file_id,
    split_data_url,
)
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import (
    Json,
    as_mappings,
    content_of,
    foreign_block,
    kept_value,
    note_of,
    noted,
    noted_message,
    opaque,
    parts_of_content,
    read_block,
    rebuild,
    remember,
    value_of,
    with_note,
    write_block,
)
from redis_history.model import (
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

_FORM = "langchain"

_ROLES: dict[str, Role] = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
_NAMES: dict[str, str] = {"user": "human", "assistant": "ai", "system": "system", "tool": "tool"}
_CHAT: dict[str, Role] = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
_CLASSES = {"Human": "human", "AI": "ai", "System": "system", "Tool": "tool", "Function": "function", "Chat": "chat"}
_MODALITIES: dict[str, Modality] = {"image": "image", "audio": "audio", "video": "video", "file": "document"}


def from_langchain(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps.

    Raises InvalidMessageError, with the index, for an item that is not a serialized LangChain message.
    """
    return [_from(*_unwrapped(item, index), index) for index, item in as_mappings(messages, role=False)]


def to_langchain(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[dict[str, Any]]:
    """Convert to the dicts of `messages_to_dict`, for `messages_from_dict`. Each tool result gets its own message.

    `on_loss` is called with each `Loss`; without it a warning is logged.
    """
    with Losses(_FORM, on_loss) as losses:
        return [item for message in messages for item in _to(message, losses)]


def _unwrapped(raw: Mapping[str, Any], index: int) -> tuple[str, Mapping[str, Any]]:
    """The type of a message and its data, from any of the serialized forms."""
    match raw:
        case {"type": str(kind), "data": Mapping() as data}:
            return kind, data
        case {"lc": int(), "id": [*_, str(name)], "kwargs": Mapping() as data}:
            plain = name.removesuffix("Chunk").removesuffix("Message")
            return _CLASSES.get(plain, plain.lower()), data
        case {"type": str(kind), "content": _}:
            return kind, raw
    raise InvalidMessageError(f"message {index} is not a LangChain message; its keys: {', '.join(map(str, raw))[:80]}")


def _from(kind: str, data: Mapping[str, Any], index: int) -> Message:
    plain = kind.removesuffix("MessageChunk").lower() if kind.endswith("MessageChunk") else kind
    role = _CHAT.get(str(data.get("role")), "user") if plain == "chat" else _ROLES.get(plain, "user")
    content = data.get("content")
    parts: list[Part] = []
    if role == "tool":
        parts.append(_result(data, content))
    else:
        parts.extend(parts_of_content(content, _part, f"message {index}", "text or a list"))
    calls = data.get("tool_calls")
    if role == "assistant" and isinstance(calls, list):
        parts.extend(map(_use, calls))
    message = Message(role=role, parts=tuple(parts))
    note: Json = {} if kind == _NAMES[role] else {"type": kind}
    note |= {"list": True} if isinstance(content, list) else {}
    return noted_message(message, _FORM, note, data, _data(message, note), f"message {index}")


def _result(data: Mapping[str, Any], given: Any) -> ToolResultPart:
    id_, name = data.get("tool_call_id"), data.get("name")
    note: Json = {} if isinstance(given, str) else {"content": True}
    content = kept_value(given, note)
    return ToolResultPart(
        tool_use_id=id_ if isinstance(id_, str) else "",
        content=content,
        is_error=data.get("status") == "error",
        name=name if isinstance(name, str) else None,
        provider_meta=with_note(_FORM, note),
    )


def _use(call: Any) -> Part:
    match call:
        case {"name": str(name), "args": args, "id": str(id_)}:
            note: Json = {}
            value = kept_value(args, note)
            part = ToolUsePart(id=id_, name=name, input=value, provider_meta=with_note(_FORM, note))
            try:
                return noted(part, _FORM, remember(call, _call(part)[0]))
            except InvalidMessageError:
                pass
    return opaque(_FORM, {"tool_call": call})


def _call(part: ToolUsePart) -> tuple[Json, str | None]:
    args, lost = as_object(part.input, own=bool(note_of(part, _FORM).get("parsed")))
    return {"name": part.name, "args": args, "id": part.id, "type": "tool_call"}, lost


def _part(block: Any) -> Part:
    if isinstance(block, str):
        return TextPart(text=block, provider_meta={_FORM: {"bare": True}})
    return read_block(_FORM, block, _known(block), lambda part, shape: _block(part))


def _known(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "reasoning", "reasoning": str(text)}:
            return ReasoningPart(text=text, provider_meta={_FORM: {"type": "reasoning"}})
        case {"type": "thinking", "thinking": str(text)}:
            signed = block.get("signature")
            signature = signed if isinstance(signed, str) else None
            return ReasoningPart(text=text, signature=signature, provider_meta={_FORM: {"type": "thinking"}})
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return AttachmentPart(modality="image", reference=url, provider_meta={_FORM: {"type": "image_url"}})
        case {"type": "image" | "audio" | "video" | "file" as kind, "url": str(url)}:
            return attachment(_FORM, _MODALITIES[kind], url, mime_type=block.get("mime_type"))
        case {"type": "image" | "audio" | "video" | "file" as kind, "file_id": str(id_)}:
            return attachment(_FORM, _MODALITIES[kind], id_, uploaded=True)
        case {"type": "image" | "audio" | "video" | "file" as kind, "base64": str(data), "mime_type": str(mime)}:
            return AttachmentPart(modality=_MODALITIES[kind], reference=data_url(mime, data), mime_type=mime)
    return None


def _block(part: Part) -> tuple[Any, str | None]:
    """The LangChain block for a part, and what was lost, or None."""
    note = note_of(part, _FORM)
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}, None
        case ReasoningPart():
            if note.get("type") == "thinking":
                signed = {} if part.signature is None else {"signature": part.signature}
                return {"type": "thinking", "thinking": part.text, **signed}, None
            lost = None if part.signature is None else "the signature of reasoning"
            return {"type": "reasoning", "reasoning": part.text}, lost
        case AttachmentPart():
            return _file(part, note)
    return None, "a part of an unknown kind"


def _file(part: AttachmentPart, note: Mapping[str, Any]) -> tuple[Json | None, str | None]:
    if note.get("type") == "image_url":
        return {"type": "image_url", "image_url": {"url": part.reference}}, None
    if part.reference is None:
        return None, "a file without a reference"
    kind = {"image": "image", "audio": "audio", "video": "video"}.get(part.modality or "", "file")
    if (uploaded := file_id(part, _FORM)) is not None:
        return {"type": kind, "file_id": uploaded}, None
    mime, data = split_data_url(part.reference)
    if data is not None:
        return {"type": kind, "base64": data, "mime_type": mime or part.mime_type or "application/octet-stream"}, None
    typed = {} if part.mime_type is None else {"mime_type": part.mime_type}
    return {"type": kind, "url": part.reference, **typed}, None


def _to(message: Message, losses: Losses) -> list[Json]:
    note = note_of(message, _FORM)
    out: list[Json] = []
    rest: list[Part] = []
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolResultPart):
            own = note if message.role == "tool" else {}
            content, lost = _content_of_result(part)
            out.append(_wrapped("tool", rebuild(_tool_data(part, content), own), own))
        elif isinstance(part, ToolUsePart):
            lost = _call(part)[1] if message.role == "assistant" else f"a tool call by role {message.role}"
            rest += [part] if message.role == "assistant" else []
        else:
            block, lost = _written(part)
            rest += [] if block is None else [part]
        losses.add(message.id, index, lost)
    if rest or not message.parts:
        role: Role = "user" if message.role == "tool" else message.role
        plain = msgspec.structs.replace(message, role=role, parts=tuple(rest))
        out.append(_wrapped(_NAMES[role], rebuild(_data(plain, note), note), note))
    return out


def _written(part: Part) -> tuple[Any, str | None]:
    """The block for a part, as it was if it came through LangChain, and what was lost."""
    if isinstance(part, TextPart) and note_of(part, _FORM).get("bare"):
        return part.text, None
    return write_block(_FORM, part, lambda one, shape: _block(one), "original")  # type: ignore[no-any-return]


def _wrapped(kind: str, data: Json, note: Mapping[str, Any]) -> Json:
    given = str(note.get("type", kind))
    return {"type": given, "data": {**data, "type": given} if "type" not in data else data}


def _data(message: Message, note: Mapping[str, Any]) -> Json:
    """The data of a message, in the default order of keys."""
    if message.role == "tool" and message.tool_results:
        result = message.tool_results[0]
        return _tool_data(result, _content_of_result(result)[0])
    blocks: list[Any] = []
    calls: list[Any] = []
    for part in message.parts:
        opened = foreign_block(_FORM, part)
        if isinstance(opened, Mapping) and "tool_call" in opened:
            calls.append(opened["tool_call"])
        elif isinstance(part, ToolUsePart):
            calls.append(rebuild(_call(part)[0], note_of(part, _FORM)))
        elif (block := _written(part)[0]) is not None:
            blocks.append(block)
    out: Json = {"content": content_of(blocks, "list" if note.get("list") else "")}
    return {**out, "tool_calls": calls} if message.role == "assistant" else out


def _tool_data(part: ToolResultPart, content: Any) -> Json:
    named = {} if part.name is None else {"name": part.name}
    status = "error" if part.is_error else "success"
    return {"content": content, **named, "tool_call_id": part.tool_use_id, "status": status}


def _content_of_result(part: ToolResultPart) -> tuple[Any, str | None]:
    note = note_of(part, _FORM)
    content = value_of(part.content, note)
    if isinstance(content, str) or note.get("content"):
        return content, None
    return converted(content, (), lambda inner: _block(inner)[0])
