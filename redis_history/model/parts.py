"""The parts of a message.

The decoder (wire.py) keeps fields that a newer version added in `extra`, and parts of unknown types as UnknownPart.
Both are written back unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

Modality = Literal["text", "image", "audio", "video", "document", "file"]


class OpenStruct(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of everything stored inside a message. `extra` has the fields that a newer version added, and
    `provider_meta` details of a provider; both are kept unchanged.

    `forbid_unknown_fields` makes the fast decoder reject unknown fields, which it would otherwise drop. The tolerant
    decoder then keeps them in `extra`.
    """


# The fast decoder must never fill these fields, so their type at run time is one that no stored value has.
if TYPE_CHECKING:
    Extra = dict[str, Any] | None
    UnknownData = dict[str, Any]
else:
    Extra = None
    UnknownData = Literal["&never"]


# The odd name avoids confusion with a field "extra" of a later version.
def _extra() -> Any:
    return msgspec.field(default=None, name="&extra")


class TextPart(OpenStruct, frozen=True, tag="text"):
    """Plain `text`, as the user or the model wrote it."""

    text: str
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class ReasoningPart(OpenStruct, frozen=True, tag="reasoning"):
    """The reasoning of a model as `text`; not part of `message.text`. `signature` is opaque and must be sent back
    unchanged."""

    text: str
    signature: str | None = None
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class ToolUsePart(OpenStruct, frozen=True, tag="tool_use"):
    """A call of the tool `name`. `input` has its arguments: usually a dict; a string if a model wrote broken JSON.

    `id` is that of the call. Ids repeat in real conversations: a result belongs to the nearest earlier call of its id.
    """

    id: str
    name: str
    input: Any = msgspec.field(default_factory=dict)
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class ToolResultPart(OpenStruct, frozen=True, tag="tool_result"):
    """The result of the call `tool_use_id`. `content` is text, or any JSON value such as a provider's list of content
    blocks. `is_error`: the tool failed. `name` is that of the tool."""

    tool_use_id: str
    content: Any = ""
    is_error: bool = False
    name: str | None = None
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class AttachmentPart(OpenStruct, frozen=True, tag="attachment"):
    """A file by reference, never its bytes: `id`, `name`, `size` in bytes, `modality` ("text", "image", "audio",
    "video", "document" or "file"), `mime_type`, and `reference`.

    A reference with a scheme is a URI. A reference of letters, digits, "-" and "_" is a file id of a provider. Others,
    such as object keys, are never sent to a provider.
    """

    id: str | None = None
    name: str | None = None
    size: int | None = None
    modality: Modality | None = None
    mime_type: str | None = None
    reference: str | None = None
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class UnknownPart(msgspec.Struct, frozen=True, tag="&unknown"):
    """A part of a type that a newer version added; `data` holds all of it, `type` included."""

    data: UnknownData

    @property
    def type(self) -> str:
        """The type that the newer version stored."""
        return str(self.data.get("type")) if isinstance(self.data, Mapping) else ""


Part = TextPart | ReasoningPart | ToolUsePart | ToolResultPart | AttachmentPart | UnknownPart

#: The known parts, by their stored `type`.
PART_TYPES: dict[str, type[OpenStruct]] = {
    "text": TextPart,
    "reasoning": ReasoningPart,
    "tool_use": ToolUsePart,
    "tool_result": ToolResultPart,
    "attachment": AttachmentPart,
}
