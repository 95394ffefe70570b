"""Chat completions, as OpenAI and Mistral write them: messages with `tool_calls`, and one `tool` message per result."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Literal

from msgspec.structs import replace

from redis_history.formats import _notes
from redis_history.formats._blocks import converted
from redis_history.formats._content import dump_arguments, parse_arguments, text_or_none
from redis_history.formats._format import Format
from redis_history.formats._losses import Losses
from redis_history.formats._sdk_objects import ADDED, PARSED, Places
from redis_history.values import Message, Part, Participant, ReasoningPart, Role, TextPart, ToolResultPart, ToolUsePart

Kind = Literal["user", "agent", "system"]


#: OpenRouter's key of reasoning in blocks.
_DETAILS = "reasoning_details"


class ChatFormat(Format):
    """Converts chat messages. Subclasses say what differs between the providers."""

    metadata = ("index", "finish_reason", "parsed", "annotations")
    sdk_keys: ClassVar[Places] = {"": PARSED, "tool_calls.function": PARSED}
    reply_keys: ClassVar[Places] = {"content": ADDED}
    inside: ClassVar[Places] = {
        # Gemini's compatible API requires its extra_content, with the signatures of calls, in the next request.
        "tool_calls": frozenset(("id", "type", "function", "custom", "extra_content")),
        "tool_calls.function": frozenset(("name", "arguments")),
    }
    results_apart = True
    #: The types of blocks that a tool message may contain, those that it may contain if this provider wrote it, and
    #: the default order of its keys.
    in_results: ClassVar[tuple[str, ...]]
    in_own_results: ClassVar[tuple[str, ...]]
    result_keys: ClassVar[Collection[str]]
    #: Roles whose messages may have null as content, and whether a message with calls has null instead of no text.
    null_roles: ClassVar[Collection[str]]
    null_with_calls: ClassVar[bool] = False
    #: Whether only messages of the assistant may have calls, and whether arguments may be an object.
    only_assistant_calls: ClassVar[bool] = False
    object_arguments: ClassVar[bool] = False
    #: Keys of a message with reasoning as text, and with other text of the assistant.
    reasoning_keys: ClassVar[Collection[str]] = ()
    text_keys: ClassVar[Collection[str]] = ()
    #: For the roles whose messages can have the name of their author: what the author is.
    authors: ClassVar[Mapping[str, Kind]] = {}

    def block(self, part: Part, role: Role, shape: _notes.Shape) -> _notes.Rendered:
        """The block for a part of a message of this role; (None, None) for a part that another key carries."""
        if self._keyed(part, role):
            return None, None
        block, lost = self.own_block(part, role, shape)
        return (block, lost) if block is not None else self.hinted(part, (block, lost), shape)

    def own_block(self, part: Part, role: Role, shape: _notes.Shape) -> _notes.Rendered:
        """The block that this provider has for a part in a message of this role."""
        return self.write(part, shape)

    def read_message(self, raw: Mapping[str, Any], index: int) -> Message:
        where = f"message {index}"
        role, note = self.role_of(raw)
        parts: list[Part] = self._read_reasoning(raw)
        if role == "tool":
            parts.append(self._read_result(raw))
        else:
            parts += _notes.parts_of_content(raw.get("content"), self.read, where, "text, a list or null")
        if role == "assistant":
            parts += self._read_texts(raw)
        if role == "assistant" or not self.only_assistant_calls:
            if isinstance(calls := raw.get("tool_calls"), list):
                parts += map(self._read_call, calls)
            elif isinstance(call := raw.get("function_call"), Mapping):
                parts.append(self._read_call({"function": call}))
                note["function_call"] = True
        name, kind = raw.get("name"), self.authors.get(role)
        author = Participant(kind=kind, id=name) if kind and isinstance(name, str) and name else None
        message = Message(role=role, parts=tuple(parts), participant=author)
        if role != "tool":
            return self.noted(message, note, raw, where)
        ours = self._result_item(message.tool_results[0], note, "original")[0]
        return _notes.noted_message(message, self.form, note, raw, ours, where)

    def write_message(self, message: Message, shape: _notes.Shape, losses: Losses) -> list[_notes.Json]:
        note = self.note(message)
        losses.add(message.id, None, self.lost_role(note, shape))
        role: Role = "user" if message.role == "tool" else message.role  # a tool message only contains one result
        out: list[_notes.Json] = []
        rest: list[Part] = []
        calls: list[Part] = []  # that go into a message of their own
        has_content = not message.parts
        for index, part in enumerate(message.parts):
            lost = None
            if isinstance(part, ToolResultPart):
                item, lost = self._result_item(part, note, shape)
                out.append(item)
                losses.add(message.id, index, "is_error of a tool result" if part.is_error else None)
            elif self._call(part, shape) is None:
                block, lost = self.block(part, role, shape)
                has_content = has_content or block is not None or lost is None
                rest.append(part)
            elif role != "assistant" and self.only_assistant_calls:
                lost = f"the role {message.role} of a tool call (it becomes assistant)"
                calls.append(part)
            else:
                has_content = True
                rest.append(part)
            losses.add(message.id, index, lost)
        if has_content:
            out.append(self.body(replace(message, parts=tuple(rest), role=role), note, shape))
        if out:
            out[-1] = self.rebuilt(out[-1], message, shape)
        if calls:
            out.append(self.body(replace(message, role="assistant", parts=tuple(calls)), {}, shape))
        return out

    def body(self, message: Message, note: Mapping[str, Any], shape: _notes.Shape) -> _notes.Json:
        """The dict of a message without tool results, in the default order of keys."""
        calls, blocks = [], []
        for part in message.parts:
            if (call := self._call(part, shape)) is not None:
                calls.append(call)
            elif (block := self.block(part, message.role, shape)[0]) is not None:
                blocks.append(block)
        role = note.get("role", message.role)
        if shape != "original" and self.roles.get(role) != message.role:
            role = message.role
        null = self.null_with_calls and calls and role == "assistant"
        form = note.get("content", "null" if null else "")
        if form == "null" and shape != "original" and role not in self.null_roles:
            form = "text"
        out: _notes.Json = {"role": role, "content": _notes.content_of(blocks, form)}
        if calls and note.get("function_call") and len(calls) == 1:
            out["function_call"] = calls[0].get("function")
        elif calls:
            out["tool_calls"] = calls
        for part in message.parts:
            out |= self._keyed(part, message.role)
        return out

    # Parts under other keys than that of the content

    def _read_reasoning(self, raw: Mapping[str, Any]) -> list[Part]:
        details = raw.get(_DETAILS) if self.reasoning_keys else None
        found = {key: raw[key] for key in self.reasoning_keys if isinstance(raw.get(key), str)}
        if not found and (text := _text_of(details)):
            found = {_DETAILS: text}
        for key, text in found.items():
            part = ReasoningPart(text=text, provider_meta={self.form: {"key": key}})
            return [_notes.quoted(part, self.form, {"details": details}) if isinstance(details, list) else part]
        return []

    def _read_texts(self, raw: Mapping[str, Any]) -> Iterator[Part]:
        for key in self.text_keys:
            value = raw.get(key)
            recording = value if key == "audio" and isinstance(value, Mapping) else {}
            text = recording.get("transcript") if key == "audio" else value
            if isinstance(text, str) and text:
                part = TextPart(text=text, provider_meta={self.form: {"key": key}})
                quote = {"audio": {**recording, "transcript": ""}}
                yield _notes.quoted(part, self.form, quote) if recording else part

    def _keyed(self, part: Part, role: Role) -> _notes.Json:
        """The keys of a message that carry a part, if its content does not. Recordings and details of another text than
        the present one are left out."""
        if not isinstance(part, TextPart | ReasoningPart):
            return {}
        note = self.note(part)
        key = text_or_none(note.get("key"))
        if key is None:
            return {}
        if isinstance(part, TextPart):
            if role != "assistant" or key not in self.text_keys:
                return {}
            if key != "audio":
                return {key: part.text}
            return {key: {**note["audio"], "transcript": part.text}} if "audio" in note else {}
        if key in self.reasoning_keys:
            return {key: part.text, **({_DETAILS: note["details"]} if "details" in note else {})}
        return {key: note.get("details", [{"type": "reasoning.text", "text": part.text}])} if key == _DETAILS else {}

    # Results

    def _read_result(self, raw: Mapping[str, Any]) -> ToolResultPart:
        content, call_id = raw.get("content", ""), raw.get("tool_call_id")
        if not isinstance(call_id, str):
            many = raw.get("tool_call_ids")  # SWE-agent writes a list of ids
            call_id = many[0] if isinstance(many, list) and many else ""
        note: _notes.Json = {} if content is None or isinstance(content, str) else {"content": True}
        return self.tool_result(call_id, content, note, name=raw.get("name"))

    def _result_item(self, part: ToolResultPart, note: Mapping[str, Any], shape: _notes.Shape) -> _notes.Rendered:
        """The `tool` message of a result. `note` is that of its message."""
        content, lost = self._result_content(part, shape)
        role = note.get("role", "tool")
        is_function = role == "function" and role in self.roles and part.name is not None
        is_function = is_function and isinstance(content, str | None)
        item = {"role": role, "content": content, "tool_call_id": part.tool_use_id, "name": part.name}
        if is_function:  # it may be null, and lacks an id
            item["content"] = content if part.content is not None else None
        elif shape != "original":
            item["role"] = "tool"
        without = {"name"} if part.name is None else {"tool_call_id"} if is_function and not part.tool_use_id else ()
        return {key: item[key] for key in self.result_keys if key not in without}, lost

    def _result_content(self, part: ToolResultPart, shape: _notes.Shape) -> _notes.Rendered:
        content = _notes.value_of(part.content, self.note(part))
        if content is None:
            return None if shape == "original" or "tool" in self.null_roles else "", None
        own = self.is_own(part)
        if own and (shape == "original" or content == []):
            return content, None

        def block_of(part: Part) -> Any:
            block = self.render(part, shape)[0]
            return block if block is not None and block["type"] in self.in_results else None

        return converted(content, self.in_own_results if own else self.in_results, block_of)

    # Calls

    def _read_call(self, call: Any) -> Part:
        pair = {"opens": text_or_none(call.get("id")) or ""} if isinstance(call, Mapping) else {}
        return _notes.read_block(self.form, call, self._known_call(call), self.render, {"tool_call": call}, pair)

    def _known_call(self, call: Any) -> ToolUsePart | None:
        match call:
            case {"function": {"name": str(name)} as function}:
                value, style = parse_arguments(function.get("arguments"))
                note: _notes.Json = {"arguments": style} if style else {}
            case {"type": "custom", "custom": {"name": str(name), "input": str(value)}}:
                note = {"type": "custom"}
            case _:
                return None
        return self.tool_use(text_or_none(call.get("id")) or "", name, value, note)

    def _call(self, part: Part, shape: _notes.Shape) -> Any:
        """The `tool_calls` item for a part; None if the part is not a tool call."""
        if isinstance(part, ToolUsePart):
            return self.write(part, shape)[0]
        block = _notes.foreign_block(self.form, part)
        return block.get("tool_call") if isinstance(block, Mapping) else None

    def call(self, part: ToolUsePart, shape: _notes.Shape) -> _notes.Rendered:
        note = self.note(part)
        if note.get("type") == "custom" and isinstance(part.input, str):
            return {"id": part.id, "type": "custom", "custom": {"name": part.name, "input": part.input}}, None
        arguments = dump_arguments(part.input, note.get("arguments"))
        accepted = isinstance(arguments, str) or (self.object_arguments and isinstance(arguments, dict))
        if shape != "original" and not accepted:
            arguments = dump_arguments(part.input, text=True)
        return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": arguments}}, None


def _text_of(details: Any) -> str:
    """The texts and summaries in the blocks of reasoning."""
    blocks = [one for one in details if isinstance(one, Mapping)] if isinstance(details, list) else []
    found = [block.get("text") or block.get("summary") for block in blocks]
    return "\n\n".join(text for text in found if isinstance(text, str))
