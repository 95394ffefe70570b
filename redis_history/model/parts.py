"""What a message is made of: an ordered tuple of parts.

Every struct here is open towards the future: a field that a newer version added is kept in
`extra` (by the decoder, see wire.py) and written back untouched. A part of a type this version does not know
becomes an UnknownPart, and is written back untouched as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

__all__ = [
    "PART_TYPES",
    "AttachmentPart",
    "Extra",
    "Modality",
    "OpenStruct",
    "Part",
    "ReasoningPart",
    "TextPart",
    "ToolResultPart",
    "ToolUsePart",
    "UnknownPart",
]

Modality = Literal["text", "image", "audio", "video", "document", "file"]


class OpenStruct(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of everything stored inside a message.

    `forbid_unknown_fields` makes the fast decoder stop at what it would otherwise drop in silence;
    the tolerant decoder then puts it into `extra`.
    """


# The fast decoder must never fill these by itself: what stands in `extra` is written as fields beside the known ones,
# and an unknown part as what it was. At run time their type is therefore one that no stored value has.
if TYPE_CHECKING:
    Extra = dict[str, Any] | None
    UnknownData = dict[str, Any]
else:
    Extra = None
    UnknownData = Literal["&never"]


# The odd name keeps a field called "extra" of a later version from being taken for it.
def _extra() -> Any:
    return msgspec.field(default=None, name="&extra")


class TextPart(OpenStruct, frozen=True, tag="text"):
    """Plain text, as the user or the model wrote it."""

    text: str
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class ReasoningPart(OpenStruct, frozen=True, tag="reasoning"):
    """What a model thought. `signature` is the provider's, opaque: it must go back unchanged."""

    text: str
    signature: str | None = None
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class ToolUsePart(OpenStruct, frozen=True, tag="tool_use"):
    """A call of a tool. `input` is its arguments: usually a dict; a string where a model wrote broken JSON.

    Ids repeat in real conversations: a result belongs to the nearest earlier call of its id.
    """

    id: str
    name: str
    input: Any = msgspec.field(default_factory=dict)
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class ToolResultPart(OpenStruct, frozen=True, tag="tool_result"):
    """What a tool gave back: text, or any JSON-like value such as a provider's list of content blocks."""

    tool_use_id: str
    content: Any = ""
    is_error: bool = False
    name: str | None = None
    provider_meta: dict[str, Any] | None = None
    extra: Extra = _extra()


class AttachmentPart(OpenStruct, frozen=True, tag="attachment"):
    """A file by reference, never its bytes. `size` is in bytes.

    A reference with a scheme is a URI; one of only letters, digits, "-" and "_" is a provider's file id; anything else,
    such as an object key, is never sent to a provider.
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
        return str(self.data.get("type")) if isinstance(self.data, Mapping) else ""


Part = TextPart | ReasoningPart | ToolUsePart | ToolResultPart | AttachmentPart | UnknownPart

#: The parts this version knows, by the `type` they carry on the wire.
PART_TYPES: dict[str, type[OpenStruct]] = {
    "text": TextPart,
    "reasoning": ReasoningPart,
    "tool_use": ToolUsePart,
    "tool_result": ToolResultPart,
    "attachment": AttachmentPart,
}
