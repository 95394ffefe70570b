"""Vercel AI SDK: the UI messages of `useChat`. Their stream is in redis_history.integrations.ai_sdk.

| UI message | `Message` |
|---|---|
| an `assistant` message | for each step (`step-start`): one message, and a `tool` message for its results |
| `tool-NAME`, `dynamic-tool` | a tool_use part; with an output, also a tool_result part |
| `approval` of a call | the request for approval: see redis_history.values.approvals |
| a call that the user denied | a tool_use part, and a tool_result part with `is_error` that says so, with the reason |
| `source-url`, `data-NAME`, unknown parts | an opaque part |
| `metadata`, other keys | `provider_meta["vercel_ai"]` |

The first message has the id of the UI message, the others `ID.1`, `ID.2` …; so a chat may be saved again after each
answer, and stored messages are recognized. `to_vercel_ai` joins the messages of an id again. Messages from elsewhere
become one UI message for each run of assistant and tool messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from redis_history import values as model
from redis_history.errors import InvalidMessageError
from redis_history.formats._content import parsed
from redis_history.formats._format import Format
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import Json, Rendered, Shape, noted, opaque, read_block, stored_value
from redis_history.formats._sdk_objects import plain
from redis_history.formats.approvals import denial, denied
from redis_history.values.approvals import approval_in, asking

#: Keys of a decision that are not for front ends.
_OWN = ("by", "decision", "resumes")


def from_vercel_ai(messages: Iterable[Mapping[str, Any]]) -> list[model.Message]:
    """Messages for UI messages. Raises InvalidMessageError for dicts that are not UI messages."""
    format_ = _VercelAI()
    return [message for index, raw in enumerate(messages) for message in format_.read_ui_message(plain(raw), index)]


def approval_of(part: model.ToolUsePart) -> Json | None:
    """The request for approval of a call, with its `id`, and with `approved` once a user has responded; or None."""
    approval = approval_in(part)
    if approval is None:
        return None
    return {"id": part.id, **{key: value for key, value in approval.items() if key not in _OWN}}


def to_vercel_ai(messages: Iterable[model.Message], *, on_loss: OnLoss | None = None) -> list[Json]:
    """UI messages for messages. `on_loss` gets each `Loss`; without it a warning is logged."""
    format_ = _VercelAI()
    with Losses(format_.form, on_loss) as losses:
        return [format_.write_ui_message(group, losses) for group in format_.groups(messages)]


def ui_message_of(messages: list[model.Message]) -> Json:
    """The one UI message of an answer: of messages of role assistant and tool, of which there is at least one. What
    it cannot carry is left out."""
    format_ = _VercelAI()
    with Losses(format_.form, lambda loss: None) as losses:
        return format_.write_ui_message(messages, losses)


def _denial_in(block: Mapping[str, Any]) -> str | None:
    """The text that the model reads about a call that the user denied, or None for other parts of a UI message."""
    approval = block.get("approval")
    response: Mapping[str, Any] = approval if isinstance(approval, Mapping) else {}
    refused = block.get("state") == "approval-responded" and response.get("approved") is False
    return denial(response.get("reason")) if refused or block.get("state") == "output-denied" else None


def _state_of(approval: Json | None) -> str:
    """The state of a call without a result."""
    if approval is None:
        return "input-available"
    return "approval-responded" if "approved" in approval else "approval-requested"


class _VercelAI(Format):
    form = "vercel_ai"
    roles: ClassVar[Mapping[str, model.Role]] = {"user": "user", "assistant": "assistant", "system": "system"}

    def read_ui_message(self, raw: Mapping[str, Any], index: int) -> Iterator[model.Message]:
        role, id_, parts = self.roles.get(str(raw.get("role"))), raw.get("id"), raw.get("parts")
        if role is None or not isinstance(id_, str) or not isinstance(parts, list):
            raise InvalidMessageError(f"messages[{index}] must be a UI message, with an id, a role and a list of parts")
        rest, is_text = stored_value({key: value for key, value in raw.items() if key not in ("id", "role", "parts")})
        note: Json = {"of": id_, **({"rest": rest} if rest else {}), **({"text": True} if is_text else {})}
        found: list[tuple[model.Role, list[model.Part], Json]] = [(role, [], note)]
        results: list[model.Part] = []
        for block in parts:
            if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
                raise InvalidMessageError(f"messages[{index}]: a part must have a type, not be {str(block)[:60]!r}")
            if block == {"type": "step-start"}:
                if results:
                    found.append(("tool", results, {"of": id_}))
                    results = []
                if len(found) > 1 or found[0][1] or "step" in note:
                    found.append(("assistant", [], {"of": id_}))
                found[-1][2]["step"] = True
                continue
            part, result = self._read_part(block)
            found[-1][1].append(part)
            results += [] if result is None else [result]
        if results:
            found.append(("tool", results, {"of": id_}))
        for number, (kind, content, its_note) in enumerate(found):
            name = f"{id_}.{number}" if number else id_
            yield model.Message(id=name, role=kind, parts=tuple(content), provider_meta={self.form: its_note})

    def _read_part(self, block: Mapping[str, Any]) -> tuple[model.Part, model.Part | None]:
        """The part for a block, and the result of its call or None."""
        if not _is_call(block):
            return self.read(block), None
        call = model.ToolUsePart(id=block["toolCallId"], name=_tool_name(block), input=block.get("input"))
        approval = block.get("approval")
        kept, is_text = (
            stored_value(dict(approval)) if isinstance(approval, Mapping) and "id" in approval else (None, True)
        )
        left = ("output", "errorText") if is_text else ("output", "errorText", "approval")
        asked = {key: value for key, value in block.items() if key not in left}
        part = read_block(self.form, {**asked, "state": "input-available"}, call, self.render)
        if not isinstance(part, model.ToolUsePart):  # its input cannot be stored
            return opaque(self.form, dict(block)), None
        if not is_text:
            part = asking(part, kept)
        state = block.get("state")
        if state not in ("output-available", "output-error", _state_of(None if is_text else kept)):
            part = noted(part, self.form, {"state": state})
        if _denial_in(block) is not None:
            return part, denied(part, approval.get("reason") if isinstance(approval, Mapping) else None)
        if state not in ("output-available", "output-error"):
            return part, None
        value, is_text = stored_value(block.get("output" if state == "output-available" else "errorText"))
        result = model.ToolResultPart(
            tool_use_id=call.id, content=value, is_error=state == "output-error", name=call.name
        )
        return part, noted(result, self.form, {"text": True} if is_text else {})

    def known(self, block: Any) -> model.Part | None:
        match block:
            case {"type": "text", "text": str(text)}:
                return model.TextPart(text=text)
            case {"type": "reasoning", "text": str(text)}:
                return model.ReasoningPart(text=text)
            case {"type": "file", "url": str(url), "mediaType": str(mime)} if ":" in url:
                return model.AttachmentPart(reference=url, mime_type=mime, name=block.get("filename"))
        return None

    def reasoning(self, part: model.ReasoningPart, shape: Shape) -> Rendered:
        return {"type": "reasoning", "text": part.text}, part.signature and "the signature of the reasoning"

    def call(self, part: model.ToolUsePart, shape: Shape) -> Rendered:
        call = {"toolCallId": part.id, "state": "input-available", "input": part.input}
        if "dynamic" in self.note(part).get("set", {}).get("type", ""):
            return {"type": "dynamic-tool", "toolName": part.name, **call}, None
        return {"type": f"tool-{part.name}", **call}, None

    def file(self, part: model.AttachmentPart, shape: Shape) -> Rendered:
        if not part.reference or ":" not in part.reference or not part.mime_type:
            return None, "an attachment without a URL or media type"
        named = {} if part.name is None else {"filename": part.name}
        return {"type": "file", "mediaType": part.mime_type, "url": part.reference, **named}, None

    def groups(self, messages: Iterable[model.Message]) -> Iterator[list[model.Message]]:
        """The messages of each UI message."""
        group: list[model.Message] = []
        for message in messages:
            of = self.note(message).get("of")
            if group:
                answers = message.role in ("assistant", "tool")
                # User messages are never merged, because users may choose the id of another message.
                same = answers and of is not None and of == self.note(group[0]).get("of")
                answers = answers and group[0].role in ("assistant", "tool")
                if not (same or (of is None and answers)):
                    yield group
                    group = []
            group.append(message)
        if group:
            yield group

    def write_ui_message(self, group: list[model.Message], losses: Losses) -> Json:
        blocks: list[Json] = []
        calls: dict[str, Json] = {}
        for index, message in enumerate(group):
            note = self.note(message)
            if note.get("step") or ("of" not in note and index and message.role == "assistant"):
                blocks.append({"type": "step-start"})
            for at, part in enumerate(message.parts):
                if isinstance(part, model.ToolResultPart):
                    self._write_result(part, calls, blocks)
                    continue
                block, lost = self.write(part, "original")
                losses.add(message.id, at, lost)
                if block is None:
                    continue
                if isinstance(part, model.ToolUsePart):
                    approval = approval_of(part)
                    block |= {} if approval is None else {"approval": approval}
                    block["state"] = self.note(part).get("state") or _state_of(approval)
                    calls[part.id] = block
                blocks.append(block)
        first, note = group[0], self.note(group[0])
        role = "assistant" if first.role == "tool" else first.role
        rest = json.loads(note["rest"]) if note.get("text") else note.get("rest", {})
        return {"id": note.get("of", first.id), "role": role, **rest, "parts": blocks}

    def _write_result(self, part: model.ToolResultPart, calls: dict[str, Json], blocks: list[Json]) -> None:
        """Put a result into the block of its call."""
        block = calls.get(part.tool_use_id)
        if block is None:  # its call is in another UI message
            name = {"toolName": part.name or "unknown", "toolCallId": part.tool_use_id}
            block = {"type": "dynamic-tool", **name, "input": None}
            blocks.append(block)
        if part.is_error and part.content == _denial_in(block):
            return  # the call says it
        value = parsed(part.content) if self.note(part).get("text") else part.content
        if part.is_error:
            block |= {"state": "output-error", "errorText": value if isinstance(value, str) else str(value)}
        else:
            block |= {"state": "output-available", "output": value}


def _is_call(block: Mapping[str, Any]) -> bool:
    kind = str(block.get("type"))
    named = kind.startswith("tool-") or (kind == "dynamic-tool" and isinstance(block.get("toolName"), str))
    return named and isinstance(block.get("toolCallId"), str)


def _tool_name(block: Mapping[str, Any]) -> str:
    return str(block["toolName"]) if block["type"] == "dynamic-tool" else str(block["type"]).removeprefix("tool-")
