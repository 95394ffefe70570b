"""OpenAI's Responses API: lists of input items, and the output items of replies.

| Responses API | `Message` |
|---|---|
| a message item with role `user`, `system` or `developer` | one message; `developer` becomes `system` and is restored |
| output items: `reasoning`, a message, `function_call` … | parts of one assistant message |
| `function_call_output` | a message with role `tool` |
| `encrypted_content` of a reasoning item | the signature of the reasoning part; the item's summary is the text |
| `input_image`, `input_file` | attachments |
| `output_text`, `refusal` | text parts; `annotations` (citations) are in `provider_meta["openai_responses"]` |
| items of the API's own tools (`web_search_call` …), unknown items | opaque parts |

An assistant message ends before an item of another role, and before a second message item if there was no tool call.
So parallel calls stay in one message, as other providers require.

`to_openai_responses` reports as losses: reasoning that is not from this API, audio, video, files in an assistant
message, files uploaded to other providers, `is_error` of a tool result, the role of a message with tool calls if it
is not `assistant`, opaque parts of other providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats._loss import Losses, OnLoss
from redis_history.formats._responses_parts import (
    FORM,
    block_of,
    call_of,
    part_of_block,
    part_of_item,
    reasoning_of,
    result_of,
)
from redis_history.formats._shape import (
    Json,
    Shape,
    as_mapping,
    check_shape,
    foreign_block,
    note_of,
    noted,
    noted_message,
    opaque,
    parts_of_content,
    rebuild,
)
from redis_history.model import (
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)

__all__ = ["from_openai_responses", "to_openai_responses"]

_ROLES: dict[str, Role] = {"user": "user", "system": "system", "developer": "system"}


def from_openai_responses(items: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert items to messages, in order, with new ids and without timestamps. Several output items can become one
    message.

    Raises InvalidMessageError, with the index, for an item that the API does not define.
    """
    out: list[Message] = []
    turn = _Turn()
    for index, item in enumerate(items):
        raw = as_mapping(item, index, role=False)
        kind = raw.get("type", "message")
        if kind == "message" and raw.get("role") != "assistant":
            out += turn.end()
            out.append(_message(as_mapping(raw, index), index))
        elif kind == "message":
            if not turn.goes_on:
                out += turn.end()
            turn.say(_spoken(raw, index))
        elif isinstance(kind, str):
            part = part_of_item(raw)
            if isinstance(part, ToolResultPart) or kind.endswith(("_output", "_approval_response")):
                out += turn.end()
                out.append(Message(role="tool", parts=(part,)))
            else:
                turn.add(part)
        else:
            raise InvalidMessageError(f"item {index}: type must be a string, not {kind!r}"[:120])
    return [*out, *turn.end()]


def to_openai_responses(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to items. `on_loss` is called with each `Loss`; without it a warning is logged."""
    check_shape(shape)
    losses = Losses(FORM, on_loss)
    out: list[Json] = []
    for message in messages:
        out += _assistant(message, shape, losses) if message.role == "assistant" else _other(message, shape, losses)
    losses.close()
    return out


class _Turn:
    """Collects the parts of an assistant message from several items."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._said = False
        self._called = False

    @property
    def goes_on(self) -> bool:
        """Whether the next message item belongs to this message."""
        return self._called or not self._said

    def say(self, parts: Iterable[Part]) -> None:
        self._parts += parts
        self._said = True

    def add(self, part: Part) -> None:
        self._parts.append(part)
        self._called = self._called or isinstance(part, ToolUsePart)

    def end(self) -> list[Message]:
        found = [Message(role="assistant", parts=tuple(self._parts))] if self._parts else []
        self.__init__()  # type: ignore[misc]
        return found


def _message(raw: Mapping[str, Any], index: int) -> Message:
    role = _ROLES.get(raw["role"], "user")  # an unknown role must not gain the authority of system
    note: Json = {} if raw["role"] == role else {"role": raw["role"]}
    content = raw.get("content")
    read = partial(part_of_block, spoken="input_text")
    parts = parts_of_content(content, read, f"item {index}", "text or blocks")
    message = Message(role=role, parts=parts)
    if (form := _form(content)) != _form(_render(message, note, "original")["content"]):
        note["content"] = form
    return noted_message(message, FORM, note, raw, _render(message, note, "original"), f"item {index}")


def _spoken(raw: Mapping[str, Any], index: int) -> list[Part]:
    """The parts of a message item of the assistant. The note of the first part has the other keys of the item."""
    content = raw.get("content")
    around = {key: value for key, value in raw.items() if key != "content"}
    if isinstance(content, str):
        plain = list(raw) == ["role", "content"]
        return [noted(TextPart(text=content), FORM, {} if plain else {"item": around, "order": list(raw)})]
    if isinstance(content, list) and content:
        parts = [part_of_block(block, "output_text") for block in content]
        if not any(isinstance(part, UnknownPart) for part in parts):
            first = noted(parts[0], FORM, {"item": around, "order": list(raw), "blocks": True})
            return [first, *(noted(part, FORM, {"inside": True}) for part in parts[1:])]
    if content is not None and not isinstance(content, list):
        raise InvalidMessageError(f"item {index}: content must be text or blocks, not {type(content).__name__}")
    return [opaque(FORM, dict(raw))]


def _assistant(message: Message, shape: Shape, losses: Losses) -> list[Json]:
    out: list[Json] = []
    inside: Json | None = None  # the last message item, if the next part may belong to it
    for index, part in enumerate(message.parts):
        lost: str | None = None
        item: Json | None = None
        if isinstance(part, TextPart):
            note = note_of(part, FORM)
            if inside is not None and note.get("inside"):
                inside["content"].append(block_of(part, "output_text", shape)[0])
                continue
            item = _said(part, note, shape)
            inside = item if isinstance(item["content"], list) else None
        else:
            inside = None
            item, lost = _item(part, message, index, shape)
        if item is not None:
            out.append(item)
        if lost is not None:
            losses.add(message.id, index, lost)
    return out or ([] if message.parts else [{"role": "assistant", "content": ""}])


def _said(part: TextPart, note: Mapping[str, Any], shape: Shape) -> Json:
    around = note.get("item")
    if not isinstance(around, Mapping):
        return {"role": "assistant", "content": part.text}
    content: Any = part.text
    if note.get("blocks"):
        if shape != "original" and not (isinstance(around.get("id"), str) and isinstance(around.get("status"), str)):
            return {"role": "assistant", "content": part.text}  # the API requires an id for blocks
        content = [block_of(part, "output_text", shape)[0]]
    whole = {**around, "content": content}
    return {key: whole[key] for key in note.get("order", ()) if key in whole} | whole


def _item(part: Part, message: Message, index: int, shape: Shape) -> tuple[Json | None, str | None]:
    if isinstance(part, ReasoningPart):
        return reasoning_of(part, message, index, shape)
    if isinstance(part, ToolUsePart):
        return call_of(part, shape), None
    if isinstance(part, ToolResultPart):
        return result_of(part, shape)
    if isinstance(part, UnknownPart):
        block = foreign_block(FORM, part)
        return block, None if block is not None else "an opaque part of another provider"
    return None, "a file in an assistant message"


def _other(message: Message, shape: Shape, losses: Losses) -> list[Json]:
    note = note_of(message, FORM)
    if "role" in note and shape != "original" and note["role"] not in _ROLES:
        losses.add(message.id, None, f"the role {note['role']!r}")
    before: list[Json] = []
    after: list[Json] = []
    carried = not message.parts
    for index, part in enumerate(message.parts):
        item: Json | None
        if isinstance(part, ToolResultPart):
            item, lost = result_of(part, shape)
            before.append(item)
        elif isinstance(part, ToolUsePart):
            lost = f"the role {message.role} of a tool call"
            after.append(call_of(part, shape))
        elif isinstance(part, UnknownPart) and message.role == "tool":
            item, lost = _item(part, message, index, shape)
            before += [] if item is None else [item]
        else:
            block, lost = block_of(part, "input_text", shape)
            carried = carried or block is not None
        if lost is not None:
            losses.add(message.id, index, lost)
    said = [rebuild(_render(message, note, shape), note, valid=shape != "original")] if carried else []
    return [*before, *said, *after]


def _render(message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
    """The message item of a message, in the default order of keys."""
    blocks = []
    for part in message.parts:
        if isinstance(part, ToolResultPart | ToolUsePart) or (isinstance(part, UnknownPart) and message.role == "tool"):
            continue
        block, _ = block_of(part, "input_text", shape)
        if block is not None:
            blocks.append(block)
    role = note.get("role", message.role)
    if shape != "original" and _ROLES.get(role) != message.role:
        role = message.role
    if role == "tool":
        role = "user"
    form = note.get("content")
    if not blocks:
        empty: Json = {"list": [], "null": None} if shape == "original" else {"list": []}
        return {"role": role, "content": empty.get(form or "", "")}
    plain = len(blocks) == 1 and isinstance(blocks[0], Mapping) and list(blocks[0]) == ["type", "text"]
    return {"role": role, "content": blocks[0]["text"] if plain and form != "list" else blocks}


def _form(content: Any) -> str:
    return "null" if content is None else "list" if isinstance(content, list) else "text"
