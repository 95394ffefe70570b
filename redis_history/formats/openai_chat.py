"""OpenAI chat completions, also of compatible servers (DeepSeek, vLLM, Ollama, litellm …).

| chat completions | `Message` |
|---|---|
| role `developer`; `function` | `system`; `tool`; the original role is restored |
| any other role (`exit` of mini-swe-agent) | `user`: an unknown role must not gain the authority of `system` |
| `content` as a string or blocks; null, "" or missing | text and attachment parts; the note says which one |
| `reasoning_content`, `reasoning` | a reasoning part |
| `tool_calls` (of any role), `function_call` | tool_use parts with parsed arguments; the original JSON is restored |
| a `tool` message | a tool_result part with unchanged content |
| unknown blocks, keys | an opaque part; `provider_meta["openai_chat"]` |

`to_openai_chat` reports as losses: reasoning of other providers, files by URL, video, audio other than WAV and MP3,
files in an assistant or system message, `is_error` of a tool result and its blocks other than text, roles that the API
does not define, opaque parts of other providers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal

from redis_history.formats._chat import ChatFormat
from redis_history.formats._content import (
    attachment,
    converted,
    data_url,
    file_id,
    is_image,
    is_web_url,
    reference_note,
    split_data_url,
)
from redis_history.formats._losses import OnLoss
from redis_history.formats._notes import Json, Shape, note_of, read_block, value_of, with_note, write_block
from redis_history.model import (
    AttachmentPart,
    Message,
    Part,
    Participant,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    UnknownPart,
)

_FORM = "openai_chat"
_KINDS: dict[str, Literal["user", "agent", "system"]] = {"user": "user", "assistant": "agent", "system": "system"}
_REASONING = ("reasoning_content", "reasoning")
#: The block types that a message of each role may contain.
_BLOCKS = {"user": frozenset(("text", "image_url", "input_audio", "file")), "assistant": frozenset(("text", "refusal"))}


def from_openai_chat(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert each dict to a `Message`, in order, with new ids and without timestamps.

    Raises InvalidMessageError, with the index, for an item that is not a chat message.
    """
    return _OpenAI().from_(messages)


def to_openai_chat(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to dicts of the chat API. Each tool result gets its own `tool` message, before the rest of its message.

    `on_loss` is called with each `Loss`; without it a warning is logged. `shape="original"` also restores messages that
    the API does not accept, such as unknown roles. `shape="request"` leaves out keys that the API does not define, and
    reports those with content.
    """
    return _OpenAI().to(messages, shape, on_loss)


class _OpenAI(ChatFormat):
    form = _FORM
    roles: ClassVar[Mapping[str, Role]] = {
        "user": "user",
        "assistant": "assistant",
        "system": "system",
        "tool": "tool",
        "developer": "system",
        "function": "tool",
    }
    # OpenRouter requires its reasoning_details in the next request.
    request = frozenset(
        (
            *("role", "content", "tool_call_id", "name", "tool_calls", "function_call", "refusal", "audio"),
            *("reasoning_details", *_REASONING),
        )
    )
    null_roles = ("assistant",)
    free: ClassVar[Mapping[str, Collection[str]]] = {"assistant": ("content",)}
    not_null = ("name", "tool_calls")

    def read_block(self, block: Any) -> Part:
        return read_block(_FORM, block, _known(block), _write)

    def write_block(self, part: Part, role: Role, shape: Shape) -> tuple[Any, str | None]:
        if isinstance(part, ReasoningPart) and note_of(part, _FORM).get("key") in _REASONING:
            return None, None
        block, lost = write_block(_FORM, part, _write, shape)
        if shape == "original" or not isinstance(block, Mapping) or isinstance(part, UnknownPart):
            return block, lost
        if block["type"] == "refusal" and role != "assistant":
            return {"type": "text", "text": block["refusal"]}, None
        return (block, lost) if block["type"] in _BLOCKS.get(role, ("text",)) else (None, f"a file of role {role}")

    def write_result(self, part: ToolResultPart, shape: Shape) -> tuple[Any, str | None]:
        note = note_of(part, _FORM)
        content = value_of(part.content, note)
        if (shape == "original" and (content is None or note)) or (content == [] and note):
            return content, None
        return ("", None) if content is None else converted(content, ("text",), _text_block)

    def tool_message(self, part: ToolResultPart, note: Mapping[str, Any], content: Any, shape: Shape) -> Json:
        named = {} if part.name is None else {"name": part.name}
        role = note.get("role", "tool")
        function = role == "function" and named and isinstance(content, str)
        if shape != "original" and role != "tool" and not function:
            role = "tool"
        return {"role": role, "tool_call_id": part.tool_use_id, **named, "content": content}

    def read_reasoning(self, raw: Mapping[str, Any]) -> Iterable[Part]:
        found = [key for key in _REASONING if isinstance(raw.get(key), str)]
        return [ReasoningPart(text=raw[key], provider_meta={_FORM: {"key": key}}) for key in found[:1]]

    def speaker(self, raw: Mapping[str, Any], role: Role) -> Participant | None:
        name, kind = raw.get("name"), _KINDS.get(role)
        return Participant(kind=kind, id=name) if kind and isinstance(name, str) and name else None

    def null_with_calls(self, role: str, calls: bool) -> bool:
        return calls and role == "assistant"

    def finish(self, out: Json, message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
        for part in message.parts:
            if isinstance(part, ReasoningPart) and (key := note_of(part, _FORM).get("key")) in _REASONING:
                out[key] = part.text
        return out


def _known(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "refusal", "refusal": str(text)}:
            return TextPart(text=text, provider_meta={_FORM: {"type": "refusal"}})
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return attachment(_FORM, "image", url)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return attachment(_FORM, "audio", data_url(f"audio/{kind}", data))
        case {"type": "file", "file": Mapping() as file}:
            id_, name, content = (file.get(key) for key in ("file_id", "filename", "file_data"))
            if all(value is None or isinstance(value, str) for value in (id_, name, content)):
                reference = id_ if content is None else content
                note = {} if reference is None else reference_note(reference, is_file_id=content is None)
                meta = with_note(_FORM, note)
                return AttachmentPart(name=name, modality="document", reference=reference, provider_meta=meta)
    return None


def _write(part: Part, shape: Shape) -> tuple[Json | None, str | None]:
    if isinstance(part, TextPart):
        kind = "refusal" if note_of(part, _FORM).get("type") == "refusal" else "text"
        return {"type": kind, kind: part.text}, None
    block = _file(part, shape) if isinstance(part, AttachmentPart) else None
    if block is None:
        reasoning = isinstance(part, ReasoningPart)
        return None, "reasoning of another provider" if reasoning else "a file that the API does not accept"
    uploaded_image = block["type"] == "file" and isinstance(part, AttachmentPart) and part.modality == "image"
    return block, "the modality image of an uploaded file" if uploaded_image else None


def _file(part: AttachmentPart, shape: Shape) -> Json | None:
    reference = part.reference
    mime, data = split_data_url(reference)
    uploaded = file_id(part, _FORM)
    if is_image(part) and reference is not None and uploaded is None:
        usable = data is not None or is_web_url(reference) or shape == "original"
        return {"type": "image_url", "image_url": {"url": reference}} if usable else None
    if part.modality == "audio" and data is not None and mime is not None:
        kind = mime.partition("/")[2]
        if shape != "original":
            kind = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}.get(kind, kind)
            if kind not in ("wav", "mp3"):
                return None
        return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
    if part.modality == "video" or (part.modality == "audio" and _FORM not in (part.provider_meta or {})):
        return None
    if uploaded is None and data is None and shape != "original":
        return None  # only the Responses API accepts a file by URL
    named = {"file_id": uploaded, "filename": part.name, "file_data": reference if uploaded is None else None}
    return {"type": "file", "file": {key: value for key, value in named.items() if value is not None}}


def _text_block(part: Part) -> Json | None:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else None
