"""OpenAI's Responses API: lists of input items, and the output items of replies.

| Responses API | `Message` |
|---|---|
| a message item with role `user`, `system` or `developer` | one message; `developer` becomes `system` and is restored |
| output items: `reasoning`, a message, `function_call` … | parts of one assistant message |
| `function_call_output` | a message with role `tool` |
| `encrypted_content` of a reasoning item | the signature of the reasoning part. The item's summary is the text |
| `annotations` (citations) of a text | `provider_meta["openai_responses"]` |
| items of the API's own tools (`web_search_call` …), unknown items, items without type and role | opaque parts |

An assistant message ends before an item of another role, and before a second message item without a tool call
between them. So parallel calls stay in one message, as other providers require.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from redis_history.errors import InvalidMessageError
from redis_history.formats import _content, _notes
from redis_history.formats._blocks import converted
from redis_history.formats._format import Format
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._sdk_objects import ADDED, PARSED, Places, without
from redis_history.formats._usage import unwrapped
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
from redis_history.values.pairing import pairing
from redis_history.values.quoting import file_hint
from redis_history.values.usage import Usage

_PHASES = ("commentary", "final_answer")
_IN_RESULTS = ("input_text", "input_image", "input_file")
#: Keys of items that the API rejects when it gets its items back, and that litellm adds.
_OF_REPLIES = frozenset(("created_by", "provider_specific_fields"))


def from_openai_responses(items: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert items to messages, in order, with new ids and without timestamps. Several output items can become one
    message.

    Raises InvalidMessageError, with the index, for an item that is not a dict or has content of a wrong type.
    """
    return _Responses().read_items(items)


def to_openai_responses(
    messages: Iterable[Message], *, shape: _notes.Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to items. `shape` and `on_loss` are as in `to_openai_chat`."""
    return _Responses().to(messages, shape, on_loss)


class _Responses(Format):
    form = "openai_responses"
    roles: ClassVar[Mapping[str, Role]] = {"user": "user", "system": "system", "developer": "system"}
    metadata = ("created_by", "status", "index")
    sdk_keys: ClassVar[Places] = {"": PARSED, "content": PARSED}
    reply_keys: ClassVar[Places] = {"": _OF_REPLIES, "content": ADDED, "output": _OF_REPLIES}
    not_null: ClassVar[Mapping[type | str, tuple[str, ...]]] = {
        ReasoningPart: ("content", "status"),
        ToolUsePart: ("id", "status", "namespace"),
        ToolResultPart: ("id", "name"),
    }

    def __init__(self) -> None:
        self._is_custom: dict[str, bool] = {}  # whether a call that was written is of a custom tool

    def read_items(self, items: Iterable[Any]) -> list[Message]:
        out: list[Message] = []
        reply: list[Part] = []  # the parts of the assistant message that has begun
        has_message_item = False
        usage: Usage | None = None  # of it
        items, used = unwrapped(items)

        def end() -> None:
            nonlocal has_message_item, usage
            if reply:
                out.append(Message(role="assistant", parts=tuple(reply), usage=usage))
            reply.clear()
            has_message_item, usage = False, None

        for index, raw in _notes.as_mappings(items, role=False):
            if not isinstance(raw.get("role"), str) or raw.get("type") not in (None, "message"):
                part = _notes.read_block(self.form, raw, self._known_item(raw), self.render, dict(raw))
                pair = pairing(part)
                if pair.is_result and not pair.hosted:
                    end()
                    out.append(Message(role="tool", parts=(part,)))
                else:
                    reply.append(part)
            elif raw["role"] == "assistant":
                if has_message_item and not any(pairing(part).opens for part in reply):
                    end()
                reply += self._read_reply(raw, index)
                has_message_item = True
            else:
                end()
                out.append(self.read_message(raw, index))
            if index in used and reply:
                usage = used[index]
                end()
        end()
        return out

    def for_request(self, item: _notes.Json, message_id: str, losses: Losses) -> _notes.Json:
        item = super().for_request(item, message_id, losses)
        if item.get("type") == "custom_tool_call_output":  # the only output whose input type lacks it
            item = without(item, {"": frozenset(("status",))})
        return item

    # Messages

    def read_message(self, raw: Mapping[str, Any], index: int) -> Message:
        role, note = self.role_of(raw)
        content = raw.get("content")
        if isinstance(content, str) and content and not note and list(raw) == ["role", "content"]:
            return Message(role=role, parts=(TextPart(text=content),))  # most messages, in a fraction of the time
        parts = _notes.parts_of_content(content, self._read_input, f"item {index}", "text or blocks")
        return self.noted(Message(role=role, parts=parts), note, raw, f"item {index}")

    def _read_reply(self, raw: Mapping[str, Any], index: int) -> list[Part]:
        """The parts of a message item of the assistant. The note of the first part has the other keys of the item."""
        content = raw.get("content")
        item = {key: value for key, value in raw.items() if key != "content"}
        if isinstance(content, str):
            plain = list(raw) == ["role", "content"]
            return [
                _notes.noted(TextPart(text=content), self.form, {} if plain else {"item": item, "order": list(raw)})
            ]
        if isinstance(content, list) and content:
            parts = [self.read(block) for block in content]
            if all(isinstance(part, TextPart) for part in parts):  # no file, which other APIs refuse in a reply
                # The API accepts blocks of an input without an id.
                is_input = not _has_id(item) and all(block["type"] == "input_text" for block in content)
                own = {"input": True} if is_input else {}
                first = _notes.noted(parts[0], self.form, {"item": item, "order": list(raw), "blocks": True, **own})
                return [first, *(_notes.noted(part, self.form, {"inside": True, **own}) for part in parts[1:])]
        if content is not None and not isinstance(content, list):
            raise InvalidMessageError(f"item {index}: content must be text or blocks, not {type(content).__name__}")
        return [_notes.opaque(self.form, dict(raw))]

    def write_message(self, message: Message, shape: _notes.Shape, losses: Losses) -> list[_notes.Json]:
        text = _notes.plain_text(message, self.form)
        if text is not None and message.role != "tool":  # most messages, in a fraction of the time
            return [{"role": message.role, "content": text}]
        write = self._write_reply if message.role == "assistant" else self._write_other
        return write(message, shape, losses)

    def _write_reply(self, message: Message, shape: _notes.Shape, losses: Losses) -> list[_notes.Json]:
        out: list[_notes.Json] = []
        blocks: list[Any] | None = None  # of the last message item, if the next part may belong to it
        for index, part in enumerate(message.parts):
            if isinstance(part, TextPart):
                if blocks is not None and self.note(part).get("inside"):
                    blocks.append(self._reply_block(part, shape))
                    continue
                item, lost = self._reply_item(part, shape), None
                blocks = item["content"] if isinstance(item["content"], list) else None
            else:
                blocks = None
                item, lost = self._item(part, message, index, shape)
                if item is None and shape != "original" and isinstance(part, AttachmentPart):
                    item = {"role": "assistant", "content": file_hint(part)}
            out += [] if item is None else [item]
            losses.add(message.id, index, lost)
        return out or ([] if message.parts else [{"role": "assistant", "content": ""}])

    def _reply_item(self, part: TextPart, shape: _notes.Shape) -> _notes.Json:
        note = self.note(part)
        item: Any = note.get("item")
        content: Any = part.text
        if not isinstance(item, Mapping):
            return {"role": "assistant", "content": content}
        if note.get("blocks"):
            if shape != "original" and not note.get("input") and not _has_id(item):
                phase = {"phase": item["phase"]} if item.get("phase") in _PHASES else {}
                typed = {"type": item["type"]} if item.get("type") == "message" else {}
                return {**typed, "role": "assistant", "content": content, **phase}  # blocks need an id
            content = [self._reply_block(part, shape)]
        whole = {**item, "content": content}
        return {key: whole[key] for key in note.get("order", ()) if key in whole} | whole

    def _reply_block(self, part: TextPart, shape: _notes.Shape) -> Any:
        return self.write(part, "original" if self.note(part).get("input") else shape)[0]

    def _write_other(self, message: Message, shape: _notes.Shape, losses: Losses) -> list[_notes.Json]:
        losses.add(message.id, None, self.lost_role(self.note(message), shape))
        before: list[_notes.Json] = []
        after: list[_notes.Json] = []
        has_content = not message.parts
        for index, part in enumerate(message.parts):
            if isinstance(part, ToolUsePart):
                after.append(self.write(part, shape)[0])
                lost: str | None = f"the role {message.role} of a tool call"
            elif _is_item(part, message.role):
                item, lost = self._item(part, message, index, shape)
                before += [] if item is None else [item]
            else:
                block, lost = self._block_of_input(part, shape)
                has_content = has_content or block is not None
            losses.add(message.id, index, lost)
        body = self.body(message, self.note(message), shape)
        return [*before, *([self.rebuilt(body, message, shape)] if has_content else []), *after]

    def body(self, message: Message, note: Mapping[str, Any], shape: _notes.Shape) -> _notes.Json:
        inside = [p for p in message.parts if not isinstance(p, ToolUsePart) and not _is_item(p, message.role)]
        written = (self._block_of_input(part, shape)[0] for part in inside)
        blocks = [block for block in written if block is not None]
        role = note.get("role", message.role)
        if shape != "original" and self.roles.get(role) != message.role:
            role = message.role
        content = _notes.content_of(blocks, note.get("content", ""), None if shape == "original" else "")
        return {"role": "user" if role == "tool" else role, "content": content}

    # Blocks of message items

    def _read_input(self, block: Any) -> Part:
        return _notes.read_block(self.form, block, self.known(block), self._input_block)

    def known(self, block: Any) -> Part | None:
        match block:
            case {"type": "input_text" | "output_text", "text": str(text)}:
                return TextPart(text=text)
            case {"type": "refusal", "refusal": str(text)}:
                return TextPart(text=text, provider_meta={self.form: {"type": "refusal"}})
            case {"type": "input_image" | "input_file" as kind}:
                keys = ("image_url",) if kind == "input_image" else ("file_data", "file_url")
                found = {key: block[key] for key in ("file_id", *keys) if block.get(key) is not None}
                if len(found) != 1 or not isinstance(url := next(iter(found.values())), str):
                    return None
                not_a_data_url = "file_data" in found and _content.split_data_url(url)[0] is None
                return _content.attachment(
                    self.form,
                    "image" if kind == "input_image" else "document",
                    url,
                    name=block.get("filename"),
                    uploaded="file_id" in found,
                    note={"data": True} if not_a_data_url else None,
                )
        return None

    def text(self, part: TextPart, shape: _notes.Shape) -> _notes.Rendered:
        if self.note(part).get("type") == "refusal":
            return {"type": "refusal", "refusal": part.text}, None
        return {"type": "output_text", "text": part.text, "annotations": []}, None

    def file(self, part: AttachmentPart, shape: _notes.Shape) -> _notes.Rendered:
        return None, "a file in an assistant message"

    def _block_of_input(self, part: Part, shape: _notes.Shape) -> _notes.Rendered:
        """The block of an input for a part, with its note, or a hint at a file that cannot be sent."""
        block, lost = _notes.write_block(self.form, part, self._input_block, shape)
        if block is None and shape != "original" and isinstance(part, AttachmentPart):
            block = self._input_block(TextPart(file_hint(part)), shape)[0]
        return block, lost

    def _input_block(self, part: Part, shape: _notes.Shape) -> _notes.Rendered:
        if isinstance(part, TextPart):
            return {"type": "input_text", "text": part.text}, None
        if isinstance(part, AttachmentPart):
            return self._file(part, shape)
        return None, f"a {type(part).__name__.removesuffix('Part').lower()} part, which a message item cannot contain"

    def _file(self, part: AttachmentPart, shape: _notes.Shape) -> _notes.Rendered:
        if part.modality in ("audio", "video"):
            return None, f"{part.modality}, which the API does not accept"
        how, url = self.source(part, shape)
        if url is None:
            return None, _content.NOT_USABLE
        if _content.is_image(part):
            return {"type": "input_image", "detail": "auto", "file_id" if how == "uploaded" else "image_url": url}, None
        key = "file_data" if how == "inline" or self.note(part).get("data") else "file_url"
        named = {} if part.name is None else {"filename": part.name}
        return {"type": "input_file", "file_id" if how == "uploaded" else key: url, **named}, None

    # Other items

    def _known_item(self, raw: Mapping[str, Any]) -> Part | None:
        match raw:
            case {"type": "function_call", "call_id": str(id_), "name": str(name)}:
                value, style = _content.parse_arguments(raw.get("arguments"))
                return self.tool_use(id_, name, value, {"arguments": style} if style else {})
            case {"type": "custom_tool_call", "call_id": str(id_), "name": str(name), "input": str(value)}:
                return self.tool_use(id_, name, value, {"type": "custom"})
            case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(id_)}:
                output = raw.get("output")
                note: _notes.Json = {} if raw["type"] == "function_call_output" else {"type": raw["type"]}
                note |= {} if isinstance(output, str) else {"content": True}
                return self.tool_result(id_, output, note)
            case {"type": "reasoning"}:
                key = "content" if raw.get("content") and not raw.get("summary") else "summary"
                given, signature, text = raw.get("id"), raw.get("encrypted_content"), _text_of(raw.get(key))
                if text is None or not isinstance(given, str | None) or not isinstance(signature, str | None):
                    return None
                part = ReasoningPart(text=text, signature=signature, provider_meta=self.meta({"id": given}))
                return _notes.quoted(part, self.form, {key: raw.get(key)})
        return None

    def _item(self, part: Part, message: Message, index: int, shape: _notes.Shape) -> _notes.Rendered:
        item, lost = self.write(part, shape)
        if isinstance(part, ReasoningPart) and item is not None and shape != "original" and item.get("id") is None:
            # the types of the API require an id
            digest = hashlib.blake2b(f"{message.id}/{index}".encode(), digest_size=16).hexdigest()
            item = {"id": f"rs_{digest}", **{key: value for key, value in item.items() if key != "id"}}
        return item, lost

    def reasoning(self, part: ReasoningPart, shape: _notes.Shape) -> _notes.Rendered:
        if self.is_foreign(part):
            return None, "reasoning of another provider"
        if not self.is_own(part) and part.signature is None:
            return None, "reasoning that is not from this API"
        note = self.note(part)
        out: _notes.Json = {"id": note["id"]} if note.get("id") is not None else {}
        out["type"] = "reasoning"
        if isinstance(note.get("content"), list):
            out |= {"summary": [], "content": _unless_edited(note["content"], part.text, "reasoning_text")}
        else:
            out["summary"] = _unless_edited(note.get("summary"), part.text, "summary_text")
        return out if part.signature is None else {**out, "encrypted_content": part.signature}, None

    def call(self, part: ToolUsePart, shape: _notes.Shape) -> _notes.Rendered:
        note = self.note(part)
        if note.get("type") == "custom" and isinstance(part.input, str):
            self._is_custom[part.id] = True
            return {"type": "custom_tool_call", "call_id": part.id, "name": part.name, "input": part.input}, None
        self._is_custom[part.id] = False
        arguments = _content.dump_arguments(part.input, note.get("arguments"), text=shape != "original")
        return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": arguments}, None

    def result(self, part: ToolResultPart, shape: _notes.Shape) -> _notes.Rendered:
        note = self.note(part)
        output, lost = _notes.value_of(part.content, note), None
        if not (note.get("content") and (shape == "original" or output == [])):
            output = "" if output is None else output
            output, lost = converted(output, _IN_RESULTS, lambda inner: self._input_block(inner, shape)[0])
        if part.is_error:
            lost = "is_error of a tool result" if lost is None else f"is_error, and {lost}"
        kind = note.get("type", "function_call_output")
        is_custom = self._is_custom.get(part.tool_use_id)
        if shape != "original" and is_custom is not None:  # the call may have been edited, or be of another API
            kind = "custom_tool_call_output" if is_custom else "function_call_output"
        return {"type": kind, "call_id": part.tool_use_id, "output": output}, lost


def _is_item(part: Part, role: Role) -> bool:
    return isinstance(part, ToolResultPart) or (isinstance(part, UnknownPart) and role == "tool")


def _has_id(item: Mapping[str, Any]) -> bool:
    """Whether a message item of the assistant belongs to a reply, whose types need these keys."""
    return isinstance(item.get("id"), str) and isinstance(item.get("status"), str)


def _text_of(blocks: Any) -> str | None:
    if blocks is None:
        return ""
    if not isinstance(blocks, list):
        return None
    found = [block.get("text") if isinstance(block, Mapping) else None for block in blocks]
    return "\n\n".join(found) if all(isinstance(text, str) for text in found) else None  # type: ignore[arg-type]


def _unless_edited(blocks: Any, text: str, kind: str) -> list[Any]:
    if isinstance(blocks, list) and _text_of(blocks) == text:
        return blocks
    return [{"type": kind, "text": text}] if text else []
