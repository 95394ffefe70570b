"""Vercel AI SDK: the UI messages of `useChat`, and the parts of a UI message stream.

| UI message | `Message` |
|---|---|
| a `user` or `system` message | one message of that role |
| an `assistant` message | for each step (`step-start`): one message, and one of role `tool` for its results |
| `text`, `reasoning` | a text or reasoning part |
| `tool-NAME`, `dynamic-tool` | a tool_use part; with an output, also a tool_result part |
| `file` | an attachment |
| `source-url`, `data-NAME`, unknown parts | an opaque part |
| `metadata`, other keys | `provider_meta["vercel_ai"]` |

The first message has the id of the UI message, the others `ID.1`, `ID.2` …; so a chat may be saved again after each
answer, and messages that are stored already are recognised. `to_vercel_ai` puts the messages of an id together again.
Messages from elsewhere become one UI message for each run of assistant and tool messages. It reports as losses:
attachments without a URL or media type, signatures of reasoning, opaque parts of other providers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import Json, Shape, note_of, noted, opaque, read_block, stored_value, write_block
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

__all__ = ["from_vercel_ai", "to_vercel_ai", "vercel_ai_stream"]

_FORM = "vercel_ai"
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_RESULT = ("output", "errorText")


def from_vercel_ai(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Messages for UI messages. Raises InvalidMessageError for dicts that are not UI messages."""
    return [message for index, raw in enumerate(messages) for message in _from(raw, f"messages[{index}]")]


def to_vercel_ai(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[Json]:
    """UI messages for messages. `on_loss` gets each `Loss`; without it a warning is logged."""
    with Losses(_FORM, on_loss) as losses:
        return [_ui_message(group, losses) for group in _groups(messages)]


def vercel_ai_stream(message: Mapping[str, Any]) -> Iterator[Json]:
    """The parts of a UI message stream that build this UI message of the assistant, for an answer that is complete.

    Send each as `data: JSON` in a stream of server-sent events with the header `x-vercel-ai-ui-message-stream: v1`,
    and `data: [DONE]` at the end.
    """
    yield {"type": "start", "messageId": message["id"]}
    open_step = False
    for index, part in enumerate(message["parts"]):
        kind, id_ = part["type"], f"{index}"
        if not open_step or kind == "step-start":
            if open_step:
                yield {"type": "finish-step"}
            yield {"type": "start-step"}
            open_step = True
        if kind in ("text", "reasoning"):
            yield {"type": f"{kind}-start", "id": id_}
            yield {"type": f"{kind}-delta", "id": id_, "delta": part["text"]}
            yield {"type": f"{kind}-end", "id": id_}
        elif _is_call(part):
            call = {"toolCallId": part["toolCallId"], **({"dynamic": True} if kind == "dynamic-tool" else {})}
            yield {"type": "tool-input-available", **call, "toolName": _tool_name(part), "input": part.get("input")}
            if part.get("state") == "output-available":
                yield {"type": "tool-output-available", **call, "output": part.get("output")}
            elif part.get("state") == "output-error":
                yield {"type": "tool-output-error", **call, "errorText": part.get("errorText", "")}
        elif kind == "file":
            yield {"type": "file", "url": part["url"], "mediaType": part["mediaType"]}
        elif kind != "step-start":
            yield dict(part)  # sources and data have the same form in a stream
    if open_step:
        yield {"type": "finish-step"}
    yield {"type": "finish"}


def _from(raw: Mapping[str, Any], where: str) -> Iterator[Message]:
    role, id_, parts = raw.get("role"), raw.get("id"), raw.get("parts")
    if not isinstance(role, str) or role not in _ROLES or not isinstance(id_, str) or not isinstance(parts, list):
        raise InvalidMessageError(f"{where} is not a UI message: it needs an id, a role and a list of parts")
    rest, packed = stored_value({key: value for key, value in raw.items() if key not in ("id", "role", "parts")})
    note: Json = {"of": id_, **({"rest": rest} if rest and rest != "{}" else {}), **({"text": True} if packed else {})}
    found: list[tuple[Role, list[Part], Json]] = [(_ROLES[role], [], note)]
    results: list[Part] = []
    for block in parts:
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise InvalidMessageError(f"{where}: a part is an object with a type, not {str(block)[:60]!r}")
        if block == {"type": "step-start"}:
            if results:
                found.append(("tool", results, {"of": id_}))
                results = []
            if len(found) > 1 or found[0][1] or "step" in note:
                found.append(("assistant", [], {"of": id_}))
            found[-1][2]["step"] = True
            continue
        part, result = _parts(block)
        found[-1][1].append(part)
        results += [result] if result is not None else []
    if results:
        found.append(("tool", results, {"of": id_}))
    for index, (kind, content, its_note) in enumerate(found):
        name = f"{id_}.{index}" if index else id_
        yield Message(id=name, role=kind, parts=tuple(content), provider_meta={_FORM: its_note})


def _parts(block: Mapping[str, Any]) -> tuple[Part, Part | None]:
    """The part for a block, and the result of its call, if it has one."""
    if not _is_call(block):
        return read_block(_FORM, block, _plain_part(block), _write), None
    call = ToolUsePart(id=block["toolCallId"], name=_tool_name(block), input=block.get("input"))
    without = {key: value for key, value in block.items() if key not in _RESULT}
    kept = read_block(_FORM, {**without, "state": "input-available"}, call, _write)
    if not isinstance(kept, ToolUsePart):  # its input cannot be stored as it is
        return opaque(_FORM, dict(block)), None
    state = block.get("state")
    if state not in ("output-available", "output-error"):
        return (kept if state == "input-available" else noted(kept, _FORM, {"state": state})), None
    value, packed = stored_value(block.get("output" if state == "output-available" else "errorText"))
    result = ToolResultPart(tool_use_id=call.id, content=value, is_error=state == "output-error", name=call.name)
    return kept, noted(result, _FORM, {"text": True}) if packed else result


def _plain_part(block: Mapping[str, Any]) -> Part | None:
    kind, text, url = block["type"], block.get("text"), block.get("url")
    if kind == "text" and isinstance(text, str):
        return TextPart(text=text)
    if kind == "reasoning" and isinstance(text, str):
        return ReasoningPart(text=text)
    if kind == "file" and isinstance(url, str) and ":" in url and isinstance(block.get("mediaType"), str):
        return AttachmentPart(reference=url, mime_type=block["mediaType"], name=block.get("filename"))
    return None


def _write(part: Part, shape: Shape) -> tuple[Any, str | None]:
    """The block for a part, and what was lost."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}, None
    if isinstance(part, ReasoningPart):
        return {"type": "reasoning", "text": part.text}, part.signature and "the signature of the reasoning"
    if isinstance(part, ToolUsePart):
        call = {"toolCallId": part.id, "state": "input-available", "input": part.input}
        if "dynamic" in note_of(part, _FORM).get("set", {}).get("type", ""):
            return {"type": "dynamic-tool", "toolName": part.name, **call}, None
        return {"type": f"tool-{part.name}", **call}, None
    if isinstance(part, AttachmentPart) and part.reference and ":" in part.reference and part.mime_type:
        named = {"filename": part.name} if part.name is not None else {}
        return {"type": "file", "mediaType": part.mime_type, "url": part.reference, **named}, None
    return None, "an attachment without a URL or media type"


def _is_call(block: Mapping[str, Any]) -> bool:
    kind = str(block.get("type"))
    named = kind.startswith("tool-") or (kind == "dynamic-tool" and isinstance(block.get("toolName"), str))
    return named and isinstance(block.get("toolCallId"), str)


def _tool_name(block: Mapping[str, Any]) -> str:
    return str(block["toolName"]) if block["type"] == "dynamic-tool" else str(block["type"]).removeprefix("tool-")


def _groups(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """The messages of each UI message."""
    group: list[Message] = []
    for message in messages:
        of = note_of(message, _FORM).get("of")
        if group:
            same = of is not None and of == note_of(group[0], _FORM).get("of")
            answers = message.role in ("assistant", "tool") and group[0].role in ("assistant", "tool")
            if not (same or (of is None and answers)):
                yield group
                group = []
        group.append(message)
    if group:
        yield group


def _ui_message(group: list[Message], losses: Losses) -> Json:
    first = group[0]
    note = note_of(first, _FORM)
    blocks: list[Json] = []
    calls: dict[str, Json] = {}
    for index, message in enumerate(group):
        own = note_of(message, _FORM)
        if own.get("step") or ("of" not in own and index and message.role == "assistant"):
            blocks.append({"type": "step-start"})
        for at, part in enumerate(message.parts):
            if isinstance(part, ToolResultPart):
                _put_result(part, calls, blocks)
                continue
            block, lost = write_block(_FORM, part, _write, "original")
            losses.add(message.id, at, lost)
            if block is None:
                continue
            if isinstance(part, ToolUsePart):
                block["state"] = note_of(part, _FORM).get("state", "input-available")
                calls[part.id] = block
            blocks.append(block)
    role = "assistant" if first.role == "tool" else first.role
    rest = json.loads(note["rest"]) if note.get("text") else note.get("rest", {})
    return {"id": note.get("of", first.id), "role": role, **rest, "parts": blocks}


def _put_result(part: ToolResultPart, calls: dict[str, Json], blocks: list[Json]) -> None:
    """Put a result into the block of its call."""
    block = calls.get(part.tool_use_id)
    if block is None:  # its call is elsewhere
        block = {
            "type": "dynamic-tool",
            "toolName": part.name or "unknown",
            "toolCallId": part.tool_use_id,
            "input": None,
        }
        blocks.append(block)
    value = json.loads(part.content) if note_of(part, _FORM).get("text") else part.content
    if part.is_error:
        block |= {"state": "output-error", "errorText": value if isinstance(value, str) else str(value)}
    else:
        block |= {"state": "output-available", "output": value}
