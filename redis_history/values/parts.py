"""The parts of a message.

Parts are stored as arrays: an integer for the type, then the fields in their order, without those at the end that have
their default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

Modality = Literal["text", "image", "audio", "video", "document", "file"]


class OpenStruct(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of everything stored inside a message. `provider_meta` has details of a provider, `extra` the fields of a
    newer version, by name. Both are kept unchanged.

    Reading is faster with `gc=False`, which is safe because `encode_body` accepts only values without cycles.
    """


class TextPart(OpenStruct, frozen=True, tag=1):
    """Plain `text`, as the user or the model wrote it."""

    type: ClassVar[str] = "text"
    text: str
    provider_meta: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None


class ReasoningPart(OpenStruct, frozen=True, tag=2):
    """The reasoning of a model as `text`; not part of `message.text`. `signature` is opaque and must be sent back
    unchanged."""

    type: ClassVar[str] = "reasoning"
    text: str
    signature: str | None = None
    provider_meta: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None


class ToolUsePart(OpenStruct, frozen=True, tag=3):
    """A call of the tool `name`. `input` has its arguments: usually a dict, but a string if a model wrote broken JSON.

    `id` is that of the call. Ids repeat in real conversations: a result belongs to the nearest earlier call of its id.
    """

    type: ClassVar[str] = "tool_use"
    id: str
    name: str
    input: Any = msgspec.field(default_factory=dict)
    provider_meta: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None


class ToolResultPart(OpenStruct, frozen=True, tag=4):
    """The result of the call `tool_use_id`. `content` is text, or any JSON value such as a provider's list of content
    blocks. `is_error`: the tool failed. `name` is that of the tool."""

    type: ClassVar[str] = "tool_result"
    tool_use_id: str
    content: Any = ""
    is_error: bool = False
    name: str | None = None
    provider_meta: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None


class AttachmentPart(OpenStruct, frozen=True, tag=5):
    """A file by reference, never its bytes: `id`, `name`, `size` in bytes, `modality` ("text", "image", "audio",
    "video", "document" or "file"), `mime_type`, and `reference`.

    A reference with a scheme is a URI. A reference of letters, digits, "-" and "_" is a file id of a provider. Others,
    such as object keys, are never sent to a provider.
    """

    type: ClassVar[str] = "attachment"
    id: str | None = None
    name: str | None = None
    size: int | None = None
    modality: Modality | None = None
    mime_type: str | None = None
    reference: str | None = None
    provider_meta: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None


class UnknownPart(OpenStruct, frozen=True, tag=0):
    """A part of a type that this version does not know, or that only one provider has. `data` is its map, `type`
    included. The key `pair` of the map says which call it opens or answers: `{"opens": id}`, `{"answers": id}`."""

    data: dict[str, Any]

    @property
    def type(self) -> str:
        """The `type` in its map."""
        return str(self.data.get("type")) if isinstance(self.data, Mapping) else ""


Part = TextPart | ReasoningPart | ToolUsePart | ToolResultPart | AttachmentPart | UnknownPart

#: The known parts, by their `type`.
PART_TYPES: dict[str, type[TextPart | ReasoningPart | ToolUsePart | ToolResultPart | AttachmentPart]] = {
    kind.type: kind for kind in (TextPart, ReasoningPart, ToolUsePart, ToolResultPart, AttachmentPart)
}
