"""Chat completions, as OpenAI and Mistral write them: messages with `tool_calls`, and one `tool` message per result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from redis_history.errors import InvalidMessageError
from redis_history.formats._content import dump_arguments, parse_arguments
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import (
    Json,
    Shape,
    as_mappings,
    check_shape,
    content_of,
    for_request,
    foreign_block,
    kept_value,
    note_of,
    noted,
    noted_message,
    noted_original,
    opaque,
    parts_of_content,
    rebuild,
    remember,
    with_note,
)
from redis_history.model import Message, Part, Participant, Role, ToolResultPart, ToolUsePart, UnknownPart


class ChatFormat:
    """Converts chat messages. Subclasses say what differs between the providers."""

    form: ClassVar[str]
    roles: ClassVar[Mapping[str, Role]]
    #: Keys of a request, and keys of a reply that are not content.
    request: ClassVar[Collection[str]]
    metadata: ClassVar[Collection[str]] = ("index", "finish_reason")
    #: Roles whose messages may have null as content.
    null_roles: ClassVar[Collection[str]]
    #: Arguments for `rebuild`: keys of a message, by its role, and of a call, that the original may decide.
    free: ClassVar[Mapping[str, Collection[str]]]
    free_in_calls: ClassVar[Collection[str]] = ()
    not_null: ClassVar[Collection[str]]
    #: Whether only messages of the assistant may have calls, and whether arguments may be an object.
    only_assistant_calls: ClassVar[bool] = False
    object_arguments: ClassVar[bool] = False

    def read_block(self, block: Any) -> Part:
        raise NotImplementedError

    def write_block(self, part: Part, role: Role, shape: Shape) -> tuple[Any, str | None]:
        """The block for a part of a message of this role, and what was lost. Both are None for a part that another key
        carries."""
        raise NotImplementedError

    def write_result(self, part: ToolResultPart, shape: Shape) -> tuple[Any, str | None]:
        """The content of a `tool` message, and what was lost."""
        raise NotImplementedError

    def tool_message(self, part: ToolResultPart, note: Mapping[str, Any], content: Any, shape: Shape) -> Json:
        raise NotImplementedError

    def read_reasoning(self, raw: Mapping[str, Any]) -> Iterable[Part]:
        """The reasoning that keys of the message contain."""
        return ()

    def speaker(self, raw: Mapping[str, Any], role: Role) -> Participant | None:
        return None

    def finish(self, out: Json, message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
        """Changes keys of a rendered message."""
        return out

    def from_(self, messages: Iterable[Mapping[str, Any]]) -> list[Message]:
        return [self._from(item, index) for index, item in as_mappings(messages)]

    def to(self, messages: Iterable[Message], shape: Shape, on_loss: OnLoss | None) -> list[Json]:
        check_shape(shape)
        out: list[Json] = []
        with Losses(self.form, on_loss) as losses:
            for message in messages:
                items = self._to(message, shape, losses)
                if shape == "request":
                    items = [for_request(item, self.request, self.metadata, message.id, losses) for item in items]
                out += items
        return out

    def _from(self, raw: Mapping[str, Any], index: int) -> Message:
        role = self.roles.get(raw["role"], "user")  # an unknown role must not gain the authority of system
        note: Json = {} if raw["role"] == role else {"role": raw["role"]}
        parts = list(self.read_reasoning(raw))
        if role == "tool":
            parts.append(self._result(raw))
        else:
            content = raw.get("content")
            parts.extend(parts_of_content(content, self.read_block, f"message {index}", "text, a list or null"))
        if role == "assistant" or not self.only_assistant_calls:
            if isinstance(calls := raw.get("tool_calls"), list):
                parts.extend(map(self._read_call, calls))
            elif isinstance(call := raw.get("function_call"), Mapping):
                parts.append(self._read_call({"function": call}))
                note["function_call"] = True
        message = Message(role=role, parts=tuple(parts), participant=self.speaker(raw, role))
        where = f"message {index}"
        if role != "tool":
            return noted_original(message, self.form, note, raw, self._render, where)
        result = message.tool_results[0]
        ours = self.tool_message(result, note, self.write_result(result, "original")[0], "original")
        return noted_message(message, self.form, note, raw, ours, where)

    def _result(self, raw: Mapping[str, Any]) -> ToolResultPart:
        given, call_id, name = raw.get("content", ""), raw.get("tool_call_id"), raw.get("name")
        if not isinstance(call_id, str):
            many = raw.get("tool_call_ids")  # SWE-agent writes a list of ids
            call_id = many[0] if isinstance(many, list) and many and isinstance(many[0], str) else ""
        note: Json = {} if given is None or isinstance(given, str) else {"content": True}
        return ToolResultPart(
            tool_use_id=call_id,
            content=kept_value(given, note),
            name=name if isinstance(name, str) else None,
            provider_meta=with_note(self.form, note),
        )

    def _to(self, message: Message, shape: Shape, losses: Losses) -> list[Json]:
        note = note_of(message, self.form)
        out: list[Json] = []
        if "role" in note and shape != "original" and note["role"] not in self.roles:
            losses.add(message.id, None, f"the role {note['role']!r}")
        for index, part in enumerate(message.parts):
            if isinstance(part, ToolResultPart):
                content, lost = self.write_result(part, shape)
                out.append(self.tool_message(part, note, content, shape))
                losses.add(message.id, index, "is_error of a tool result" if part.is_error else None)
                losses.add(message.id, index, lost)
        role: Role = "user" if message.role == "tool" else message.role  # a tool message only contains one result
        carried, rest, calls = not message.parts, [], []
        for index, part in enumerate(message.parts):
            if isinstance(part, ToolResultPart):
                continue
            if self._call(part, shape) is None:
                block, lost = self.write_block(part, role, shape)
                carried = carried or block is not None or lost is None
                losses.add(message.id, index, lost)
            elif role != "assistant" and self.only_assistant_calls:
                losses.add(message.id, index, f"the role {message.role} of a tool call (it becomes assistant)")
                calls.append(part)
                continue
            else:
                carried = True
            rest.append(part)
        if carried:
            out.append(self._render(msgspec.structs.replace(message, parts=tuple(rest), role=role), note, shape))
        if out:
            free = self.free.get(out[-1]["role"], ())
            out[-1] = rebuild(out[-1], note, valid=shape != "original", free=free, not_null=self.not_null)
        if calls:
            called = msgspec.structs.replace(message, role="assistant", parts=tuple(calls))
            out.append(self._render(called, {}, shape))
        return out

    def _render(self, message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
        """The dict of a message without tool results, in the default order of keys."""
        calls, blocks = [], []
        for part in message.parts:
            if (call := self._call(part, shape)) is not None:
                calls.append(call)
            elif (block := self.write_block(part, message.role, shape)[0]) is not None:
                blocks.append(block)
        role = note.get("role", message.role)
        if shape != "original" and self.roles.get(role) != message.role:
            role = message.role
        form = note.get("content", "null" if self.null_with_calls(role, bool(calls)) else "")
        if form == "null" and shape != "original" and role not in self.null_roles:
            form = "text"
        out: Json = {"role": role, "content": content_of(blocks, form)}
        if calls and note.get("function_call") and len(calls) == 1:
            out["function_call"] = calls[0].get("function")
        elif calls:
            out["tool_calls"] = calls
        return self.finish(out, message, note, shape)

    def null_with_calls(self, role: str, calls: bool) -> bool:
        """Whether content that is empty is null."""
        return False

    def _read_call(self, call: Any) -> Part:
        match call:
            case {"function": {"name": str(name), "arguments": raw}}:
                value, style = parse_arguments(raw)
                note: Json = {"arguments": style} if style else {}
            case {"type": "custom", "custom": {"name": str(name), "input": str(value)}}:
                note = {"type": "custom"}
            case _:
                return opaque(self.form, {"tool_call": call})
        id_ = call.get("id")
        part = ToolUsePart(
            id=id_ if isinstance(id_, str) else "", name=name, input=value, provider_meta=with_note(self.form, note)
        )
        try:
            return noted(part, self.form, remember(call, self._write_call(part, "original")))
        except InvalidMessageError:
            return opaque(self.form, {"tool_call": call})

    def _call(self, part: Part, shape: Shape) -> Any:
        """The `tool_calls` item for a part; None if the part is not a tool call."""
        if isinstance(part, UnknownPart):
            block = foreign_block(self.form, part)
            return block["tool_call"] if isinstance(block, Mapping) and "tool_call" in block else None
        if not isinstance(part, ToolUsePart):
            return None
        ours = self._write_call(part, shape)
        return rebuild(ours, note_of(part, self.form), valid=shape != "original", free=self.free_in_calls)

    def _write_call(self, part: ToolUsePart, shape: Shape) -> Json:
        note = note_of(part, self.form)
        if note.get("type") == "custom" and isinstance(part.input, str):
            return {"id": part.id, "type": "custom", "custom": {"name": part.name, "input": part.input}}
        arguments = dump_arguments(part.input, note.get("arguments"))
        given = isinstance(arguments, str) or (self.object_arguments and isinstance(arguments, dict))
        if shape != "original" and not given:
            arguments = dump_arguments(part.input, text=True)
        return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": arguments}}
