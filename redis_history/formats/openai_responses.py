"""OpenAI's Responses API: lists of input items, and the output items of replies.

| Responses API | `Message` |
|---|---|
| a message item with role `user`, `system` or `developer` | one message; `developer` becomes `system` and is restored |
| output items: `reasoning`, a message, `function_call` … | parts of one assistant message |
| `function_call_output` | a message with role `tool` |
| `encrypted_content` of a reasoning item | the signature of the reasoning part; the item's summary is the text |
| `input_image`, `input_file` | attachments |
| `output_text`, `refusal` | text parts; `annotations` (citations) are in `provider_meta["openai_responses"]` |
| items of the API's own tools (`web_search_call` …), unknown items, items without type and role | opaque parts |

An assistant message ends before an item of another role, and before a second message item if there was no tool call.
So parallel calls stay in one message, as other providers require.

`to_openai_responses` reports as losses: reasoning that is not from this API, audio, video, files in an assistant
message, files uploaded to other providers, `is_error` of a tool result, the role of a message with tool calls if it
is not `assistant`, opaque parts of other providers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats._content import (
    NOT_USABLE,
    attachment,
    converted,
    dump_arguments,
    file_id,
    is_image,
    is_web_url,
    parse_arguments,
    split_data_url,
)
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import (
    Json,
    Shape,
    Write,
    as_mappings,
    check_shape,
    content_of,
    is_foreign,
    kept_value,
    note_of,
    noted,
    noted_original,
    opaque,
    parts_of_content,
    plain_text,
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
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)

_FORM = "openai_responses"
_ROLES: dict[str, Role] = {"user": "user", "system": "system", "developer": "system"}
_IN_RESULTS = ("input_text", "input_image", "input_file")


def from_openai_responses(items: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert items to messages, in order, with new ids and without timestamps. Several output items can become one
    message.

    Raises InvalidMessageError, with the index, for an item that is not a dict or has content of a wrong type.
    """
    out: list[Message] = []
    parts: list[Part] = []  # of the assistant message that has begun
    said = False

    def end() -> None:
        nonlocal said
        if parts:
            out.append(Message(role="assistant", parts=tuple(parts)))
        parts.clear()
        said = False

    for index, raw in as_mappings(items, role=False):
        if not isinstance(raw.get("role"), str) or raw.get("type") not in (None, "message"):
            part = _part_of_item(raw)
            kind = str(raw.get("type"))
            if isinstance(part, ToolResultPart) or kind.endswith(("_output", "_approval_response")):
                end()
                out.append(Message(role="tool", parts=(part,)))
            else:
                parts.append(part)
        elif raw["role"] == "assistant":
            if said and not any(isinstance(part, ToolUsePart) for part in parts):
                end()
            parts += _read_reply(raw, index)
            said = True
        else:
            end()
            out.append(_message(raw, index))
    end()
    return out


def to_openai_responses(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to items. `shape` and `on_loss` are as in `to_openai_chat`."""
    check_shape(shape)
    out: list[Json] = []
    with Losses(_FORM, on_loss) as losses:
        for message in messages:
            text = plain_text(message, _FORM)
            if text is not None and message.role != "tool":  # most messages, in a fraction of the time
                out.append({"role": message.role, "content": text})
            elif message.role == "assistant":
                out += _assistant(message, shape, losses)
            else:
                out += _other(message, shape, losses)
    return out


# Messages


def _message(raw: Mapping[str, Any], index: int) -> Message:
    role = _ROLES.get(raw["role"], "user")  # an unknown role must not gain the authority of system
    note: Json = {} if raw["role"] == role else {"role": raw["role"]}
    content = raw.get("content")
    if isinstance(content, str) and content and not note and list(raw) == ["role", "content"]:
        return Message(role=role, parts=(TextPart(text=content),))  # most messages, in a fraction of the time
    parts = parts_of_content(content, lambda block: _read(block, _input_block), f"item {index}", "text or blocks")
    message = Message(role=role, parts=parts)
    return noted_original(message, _FORM, note, raw, _render, f"item {index}")


def _read_reply(raw: Mapping[str, Any], index: int) -> list[Part]:
    """The parts of a message item of the assistant. The note of the first part has the other keys of the item."""
    content = raw.get("content")
    around = {key: value for key, value in raw.items() if key != "content"}
    if isinstance(content, str):
        plain = list(raw) == ["role", "content"]
        return [noted(TextPart(text=content), _FORM, {} if plain else {"item": around, "order": list(raw)})]
    if isinstance(content, list) and content:
        parts = [_read(block, _output_block) for block in content]
        if not any(isinstance(part, UnknownPart) for part in parts):
            first = noted(parts[0], _FORM, {"item": around, "order": list(raw), "blocks": True})
            return [first, *(noted(part, _FORM, {"inside": True}) for part in parts[1:])]
    if content is not None and not isinstance(content, list):
        raise InvalidMessageError(f"item {index}: content must be text or blocks, not {type(content).__name__}")
    return [opaque(_FORM, dict(raw))]


def _assistant(message: Message, shape: Shape, losses: Losses) -> list[Json]:
    out: list[Json] = []
    inside: Json | None = None  # the last message item, if the next part may belong to it
    for index, part in enumerate(message.parts):
        item: Json | None
        if isinstance(part, TextPart):
            note = note_of(part, _FORM)
            if inside is not None and note.get("inside"):
                inside["content"].append(write_block(_FORM, part, _output_block, shape)[0])
                continue
            item, lost = _reply(part, note, shape), None
            inside = item if isinstance(item["content"], list) else None
        else:
            inside = None
            item, lost = _item(part, message, index, shape)
        out += [] if item is None else [item]
        losses.add(message.id, index, lost)
    return out or ([] if message.parts else [{"role": "assistant", "content": ""}])


def _reply(part: TextPart, note: Mapping[str, Any], shape: Shape) -> Json:
    around = note.get("item")
    if not isinstance(around, Mapping):
        return {"role": "assistant", "content": part.text}
    content: Any = part.text
    if note.get("blocks"):
        if shape != "original" and not (isinstance(around.get("id"), str) and isinstance(around.get("status"), str)):
            return {"role": "assistant", "content": part.text}  # the API requires an id for blocks
        content = [write_block(_FORM, part, _output_block, shape)[0]]
    whole = {**around, "content": content}
    return {key: whole[key] for key in note.get("order", ()) if key in whole} | whole


def _other(message: Message, shape: Shape, losses: Losses) -> list[Json]:
    note = note_of(message, _FORM)
    if "role" in note and shape != "original" and note["role"] not in _ROLES:
        losses.add(message.id, None, f"the role {note['role']!r}")
    before: list[Json] = []
    after: list[Json] = []
    carried = not message.parts
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolUsePart):
            lost: str | None = f"the role {message.role} of a tool call"
            after.append(_call_item(part, shape))
        elif _is_item(part, message.role):
            item, lost = _item(part, message, index, shape)
            before += [] if item is None else [item]
        else:
            block, lost = write_block(_FORM, part, _input_block, shape)
            carried = carried or block is not None
        losses.add(message.id, index, lost)
    body = [rebuild(_render(message, note, shape), note, valid=shape != "original")] if carried else []
    return [*before, *body, *after]


def _is_item(part: Part, role: Role) -> bool:
    return isinstance(part, ToolResultPart) or (isinstance(part, UnknownPart) and role == "tool")


def _render(message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
    """The message item of a message, in the default order of keys."""
    inside = (p for p in message.parts if not isinstance(p, ToolUsePart) and not _is_item(p, message.role))
    written = (write_block(_FORM, part, _input_block, shape)[0] for part in inside)
    blocks = [block for block in written if block is not None]
    role = note.get("role", message.role)
    if shape != "original" and _ROLES.get(role) != message.role:
        role = message.role
    content = content_of(blocks, note.get("content", ""), None if shape == "original" else "")
    return {"role": "user" if role == "tool" else role, "content": content}


# Blocks of message items


def _read(block: Any, write: Write) -> Part:
    return read_block(_FORM, block, _known_block(block), write)


def _known_block(block: Any) -> Part | None:
    match block:
        case {"type": "input_text" | "output_text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "refusal", "refusal": str(text)}:
            return TextPart(text=text, provider_meta={_FORM: {"type": "refusal"}})
        case {"type": "input_image"}:
            found = {key: block[key] for key in ("file_id", "image_url") if block.get(key) is not None}
        case {"type": "input_file"}:
            found = {key: block[key] for key in ("file_id", "file_data", "file_url") if block.get(key) is not None}
        case _:
            return None
    if len(found) != 1 or not isinstance(reference := next(iter(found.values())), str):
        return None
    return attachment(
        _FORM,
        "image" if block["type"] == "input_image" else "document",
        reference,
        name=block.get("filename"),
        uploaded="file_id" in found,
        note={"data": True} if "file_data" in found and split_data_url(reference)[0] is None else None,
    )


def _output_block(part: Part, shape: Shape) -> tuple[Json | None, str | None]:
    if not isinstance(part, TextPart):
        return None, "a file in an assistant message"
    if note_of(part, _FORM).get("type") == "refusal":
        return {"type": "refusal", "refusal": part.text}, None
    return {"type": "output_text", "text": part.text, "annotations": []}, None


def _input_block(part: Part, shape: Shape) -> tuple[Json | None, str | None]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}, None
    if isinstance(part, AttachmentPart):
        return _file(part, shape)
    return None, f"a {type(part).__name__.removesuffix('Part').lower()} part, which a message item cannot contain"


def _file(part: AttachmentPart, shape: Shape) -> tuple[Json | None, str | None]:
    if part.modality in ("audio", "video"):
        return None, f"{part.modality}, which the API does not accept"
    url = part.reference
    data = split_data_url(url)[1]
    uploaded = file_id(part, _FORM)
    linked = uploaded is None and (data is not None or is_web_url(url) or (shape == "original" and url is not None))
    if not linked and not uploaded:
        return None, NOT_USABLE
    if is_image(part):
        found: Json = {"image_url": url} if linked else {"file_id": uploaded}
        return {"type": "input_image", "detail": "auto", **found}, None
    key = "file_data" if data is not None or note_of(part, _FORM).get("data") else "file_url"
    found = {key: url} if linked else {"file_id": uploaded}
    return {"type": "input_file", **found, **({} if part.name is None else {"filename": part.name})}, None


# Other items


def _part_of_item(raw: Mapping[str, Any]) -> Part:
    part = _known_item(raw)
    if part is None:
        return opaque(_FORM, dict(raw))
    if isinstance(part, ToolUsePart):
        ours = _call(part, "original")
    elif isinstance(part, ToolResultPart):
        ours = _result(part, "original")[0]
    else:
        ours = _reasoning(part)
    try:
        return noted(part, _FORM, remember(raw, ours))
    except InvalidMessageError:
        return opaque(_FORM, dict(raw))


def _known_item(raw: Mapping[str, Any]) -> ToolUsePart | ToolResultPart | ReasoningPart | None:
    match raw:
        case {"type": "function_call", "call_id": str(id_), "name": str(name), "arguments": arguments}:
            value, style = parse_arguments(arguments)
            meta = with_note(_FORM, {"arguments": style} if style else {})
            return ToolUsePart(id=id_, name=name, input=value, provider_meta=meta)
        case {"type": "custom_tool_call", "call_id": str(id_), "name": str(name), "input": str(value)}:
            return ToolUsePart(id=id_, name=name, input=value, provider_meta={_FORM: {"type": "custom"}})
        case {
            "type": "function_call_output" | "custom_tool_call_output" as kind,
            "call_id": str(id_),
            "output": output,
        }:
            note: Json = {} if kind == "function_call_output" else {"type": kind}
            note |= {} if isinstance(output, str) else {"content": True}
            content = kept_value(output, note)
            return ToolResultPart(tool_use_id=id_, content=content, provider_meta=with_note(_FORM, note))
        case {"type": "reasoning"}:
            key = "content" if raw.get("content") and not raw.get("summary") else "summary"
            given, signature, text = raw.get("id"), raw.get("encrypted_content"), _text_of(raw.get(key))
            if text is None or not isinstance(given, str | None) or not isinstance(signature, str | None):
                return None
            meta = with_note(_FORM, {"id": given, key: raw.get(key)})
            return ReasoningPart(text=text, signature=signature, provider_meta=meta)
    return None


def _text_of(blocks: Any) -> str | None:
    if blocks is None:
        return ""
    if not isinstance(blocks, list):
        return None
    found = [block.get("text") if isinstance(block, Mapping) else None for block in blocks]
    return "\n\n".join(found) if all(isinstance(text, str) for text in found) else None  # type: ignore[arg-type]


def _item(part: Part, message: Message, index: int, shape: Shape) -> tuple[Json | None, str | None]:
    note = note_of(part, _FORM)
    match part:
        case ReasoningPart():
            if is_foreign(part, _FORM):
                return None, "reasoning of another provider"
            if _FORM not in (part.provider_meta or {}) and part.signature is None:
                return None, "reasoning that is not from this API"
            ours = _reasoning(part)
            if shape != "original" and ours.get("id") is None:  # the types of the API require one
                digest = hashlib.blake2b(f"{message.id}/{index}".encode(), digest_size=16).hexdigest()
                ours = {"id": f"rs_{digest}", **ours}
            return rebuild(ours, note, valid=shape != "original", not_null=("content", "status")), None
        case ToolUsePart():
            return _call_item(part, shape), None
        case ToolResultPart():
            ours, lost = _result(part, shape)
            if part.is_error:
                lost = "is_error of a tool result" if lost is None else f"is_error, and {lost}"
            return rebuild(ours, note, valid=shape != "original", not_null=("id", "name")), lost
    return write_block(_FORM, part, _output_block, shape)  # type: ignore[no-any-return]


def _reasoning(part: ReasoningPart) -> Json:
    note = note_of(part, _FORM)
    out: Json = {"id": note["id"]} if note.get("id") is not None else {}
    out["type"] = "reasoning"
    if isinstance(note.get("content"), list):
        out |= {"summary": [], "content": _unless_edited(note["content"], part.text, "reasoning_text")}
    else:
        out["summary"] = _unless_edited(note.get("summary"), part.text, "summary_text")
    return out if part.signature is None else {**out, "encrypted_content": part.signature}


def _unless_edited(blocks: Any, text: str, kind: str) -> list[Any]:
    if isinstance(blocks, list) and _text_of(blocks) == text:
        return blocks
    return [{"type": kind, "text": text}] if text else []


def _call_item(part: ToolUsePart, shape: Shape) -> Json:
    not_null = ("id", "status", "namespace")
    return rebuild(_call(part, shape), note_of(part, _FORM), valid=shape != "original", not_null=not_null)


def _call(part: ToolUsePart, shape: Shape) -> Json:
    note = note_of(part, _FORM)
    if note.get("type") == "custom" and isinstance(part.input, str):
        return {"type": "custom_tool_call", "call_id": part.id, "name": part.name, "input": part.input}
    arguments = dump_arguments(part.input, note.get("arguments"), text=shape != "original")
    return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": arguments}


def _result(part: ToolResultPart, shape: Shape) -> tuple[Json, str | None]:
    note = note_of(part, _FORM)
    output, lost = value_of(part.content, note), None
    if not (note.get("content") and (shape == "original" or output == [])):
        output = "" if output is None else output
        output, lost = converted(output, _IN_RESULTS, lambda inner: _input_block(inner, shape)[0])
    return {"type": note.get("type", "function_call_output"), "call_id": part.tool_use_id, "output": output}, lost
