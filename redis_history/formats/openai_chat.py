"""OpenAI chat completions, also of compatible servers (DeepSeek, vLLM, Ollama, litellm …).

| chat completions | `Message` |
|---|---|
| role `developer`; `function` | `system`; `tool`. The original role is restored |
| any other role (`exit` of mini-swe-agent) | `user`. The original role is restored |
| `reasoning_content`, `reasoning`, `reasoning_details` of OpenRouter | a reasoning part |
| `refusal`; `audio` of a reply | a text part; the audio is restored as long as the text is its transcript |
| `tool_calls` (of any role), `function_call` | tool_use parts with parsed arguments. The original JSON is restored |
| unknown blocks, keys | an opaque part; `provider_meta["openai_chat"]` |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from redis_history.formats._chat import ChatFormat, Kind
from redis_history.formats._content import attachment, data_url, is_image, reference_note, split_data_url
from redis_history.formats._losses import OnLoss
from redis_history.formats._notes import Json, Rendered, Shape
from redis_history.formats._sdk_objects import Places
from redis_history.values import AttachmentPart, Message, Part, Role, TextPart, UnknownPart

#: The block types that a message of each role may contain.
_BLOCKS = {"user": ("text", "image_url", "input_audio", "file"), "assistant": ("text", "refusal")}


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
    form = "openai_chat"
    roles: ClassVar[Mapping[str, Role]] = {
        "user": "user",
        "assistant": "assistant",
        "system": "system",
        "tool": "tool",
        "developer": "system",
        "function": "tool",
    }
    reasoning_keys = ("reasoning_content", "reasoning")
    text_keys = ("refusal", "audio")
    request = (
        *("role", "content", "tool_call_id", "name", "tool_calls", "function_call", "refusal", "audio"),
        *("reasoning_details", *reasoning_keys),  # OpenRouter requires its reasoning_details in the next request
    )
    #: The API knows the audio of a reply by its id.
    sdk_keys: ClassVar[Places] = {
        **ChatFormat.sdk_keys,
        "audio": frozenset(("data", "expires_at", "transcript")),
    }
    in_results = in_own_results = ("text",)
    result_keys = ("role", "tool_call_id", "name", "content")
    null_roles = ("assistant",)
    null_with_calls = True
    free: ClassVar[Mapping[type | str, Collection[str]]] = {"assistant": ("content",)}
    not_null: ClassVar[Mapping[type | str, Collection[str]]] = {Message: ("name", "tool_calls")}
    authors: ClassVar[Mapping[str, Kind]] = {"user": "user", "assistant": "agent", "system": "system"}

    def known(self, block: Any) -> Part | None:
        match block:
            case {"type": "text", "text": str(text)}:
                return TextPart(text=text)
            case {"type": "refusal", "refusal": str(text)}:
                return TextPart(text=text, provider_meta={self.form: {"type": "refusal"}})
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                return attachment(self.form, "image", url)
            case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
                return attachment(self.form, "audio", data_url(f"audio/{kind}", data))
            case {"type": "file", "file": Mapping() as file}:
                uploaded, name, inline = (file.get(key) for key in ("file_id", "filename", "file_data"))
                if all(value is None or isinstance(value, str) for value in (uploaded, name, inline)):
                    reference = uploaded if inline is None else inline
                    note = {} if reference is None else reference_note(reference, uploaded=inline is None)
                    meta = self.meta(note)
                    return AttachmentPart(name=name, modality="document", reference=reference, provider_meta=meta)
        return None

    def own_block(self, part: Part, role: Role, shape: Shape) -> Rendered:
        block, lost = super().own_block(part, role, shape)
        if shape == "original" or not isinstance(block, Mapping) or isinstance(part, UnknownPart):
            return block, lost
        if block["type"] == "refusal" and role != "assistant":
            return {"type": "text", "text": block["refusal"]}, None
        return (block, lost) if block["type"] in _BLOCKS.get(role, ("text",)) else (None, f"a file of role {role}")

    def text(self, part: TextPart, shape: Shape) -> Rendered:
        kind = "refusal" if self.note(part).get("type") == "refusal" else "text"
        return {"type": kind, kind: part.text}, None

    def file(self, part: AttachmentPart, shape: Shape) -> Rendered:
        block = self._file(part, shape)
        if block is None:
            return None, "a file that the API does not accept"
        is_image_file = block["type"] == "file" and part.modality == "image"
        return block, "the modality image of an uploaded file" if is_image_file else None

    def _file(self, part: AttachmentPart, shape: Shape) -> Json | None:
        how, url = self.source(part, shape)
        mime, data = split_data_url(url)
        if is_image(part) and how != "uploaded" and part.reference is not None:
            return {"type": "image_url", "image_url": {"url": url}} if how else None
        if part.modality == "audio" and data is not None and mime is not None:
            kind = mime.partition("/")[2]
            if shape != "original":
                kind = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}.get(kind, kind)
                if kind not in ("wav", "mp3"):
                    return None
            return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
        if part.modality == "video" or (part.modality == "audio" and not self.is_own(part)):
            return None
        if how in ("url", "") and shape != "original":
            return None  # only the Responses API accepts a file by URL
        own = how == "uploaded"
        file = {"file_id": url if own else None, "filename": part.name, "file_data": None if own else url}
        return {"type": "file", "file": {key: value for key, value in file.items() if value is not None}}
