"""Split messages above the size cap into several, with notes in place of content that is too large. Pure.

Frameworks hand over whole turns, and one result of a tool can exceed the cap. `fitted` keeps all content that fits:
the parts of a large message become several messages, and a part that is too large alone becomes a note of its size. A
result stays the result of its call, so that no call is left open. `joined` puts such messages together again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from redis_history.errors import MessageTooLargeError
from redis_history.values._caps import MAX_MESSAGE_BYTES
from redis_history.values.contents import kind_of_base64
from redis_history.values.ids import MAX_ID_BYTES
from redis_history.values.message import Message
from redis_history.values.parts import AttachmentPart, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from redis_history.values.wire import body_digest, encode_body

#: The key of `provider_meta` with the id of the message whose parts go on in this one.
_CONTINUES: Final = "redis_history_continues"
#: Maximum bytes of a message without its parts, and of a value of its notes when these are too large.
_MOST_AROUND: Final = MAX_MESSAGE_BYTES // 2
_SMALL: Final = 4_000
#: An image that providers accept, of one transparent pixel.
_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


class NotStored(NamedTuple):
    """Content that is too large: the index of its part (None for content outside the parts) and a reason."""

    part: int | None
    reason: str


class Fitted(NamedTuple):
    """The messages that together hold one message, each within the cap, and the content they lack."""

    messages: list[Message]
    lacks: list[NotStored]


def fits(message: Message) -> bool:
    """Whether a message can be stored. Raises InvalidMessageError if it never can."""
    try:
        encode_body(message)
    except MessageTooLargeError:
        return False
    return True


def fitted(message: Message, *, whole: bool = False) -> Fitted:
    """The message, as several if it is above the cap: the first has its id and metadata. `whole`: as one message, with
    notes also in the place of parts that fit alone. Raises InvalidMessageError."""
    if fits(message):
        return Fitted([message], [])
    around, lacks = _around(message)
    parts = list(message.parts)
    for at, part in enumerate(parts):
        if not fits(replace(around, parts=(part,))):
            parts[at] = _note_for(part)
            lacks.append(NotStored(at, _reason(part)))
    message = replace(around, parts=tuple(parts))
    if fits(message):
        return Fitted([message], lacks)
    if whole:
        return _in_one(message, lacks)
    pieces = list(_halves(message))
    first, *rest = pieces
    others = [
        replace(
            around,
            id=_id_of_piece(message.id, number),
            parts=piece,
            metadata={},
            sources=(),
            extra=None,
            provider_meta={_CONTINUES: message.id},
            usage=None,
        )
        for number, piece in enumerate(rest, 2)
    ]
    return Fitted([replace(message, parts=first), *others], lacks)


def joined(messages: Iterable[Message]) -> list[Message]:
    """The messages with the parts that `fitted` has moved to others in their former places. Those whose beginning is
    not among the messages stay as they are."""
    parts: dict[str, list[Part]] = {}
    found: list[Message] = []
    for message in messages:
        before = parts.get(str(message.provider_meta.get(_CONTINUES))) if continues(message) else None
        if before is None:
            parts[message.id] = list(message.parts)
            found.append(message)
        else:
            before += message.parts
    return [
        message if len(parts[message.id]) == len(message.parts) else replace(message, parts=tuple(parts[message.id]))
        for message in found
    ]


def continues(message: Message) -> bool:
    """Whether the parts of a message belong to an earlier one."""
    return bool(message.provider_meta) and _CONTINUES in message.provider_meta


def shrunk(value: Any, most: int) -> Any:
    """A JSON value of at most about `most` bytes: its longest texts are replaced by notes, and images by a pixel. None
    if that is not enough."""
    sizes = sorted(_text_sizes(value), reverse=True)
    excess, longest = _bytes_of(value) - most, 0
    for size in sizes:
        if excess <= 0:
            break
        excess, longest = excess - size, size
    return _without_long_texts(value, longest) if excess <= 0 and longest > _SMALL else None


def _around(message: Message) -> tuple[Message, list[NotStored]]:
    """The message without parts, and with notes only as far as they fit."""
    around = replace(message, parts=())
    if fits(around) and len(encode_body(around)) <= _MOST_AROUND:
        return around, []
    small = replace(
        around,
        provider_meta=_small_values(message.provider_meta),
        metadata=_small_values(message.metadata),
        extra=None if message.extra is None else _small_values(message.extra),
        sources=message.sources if _bytes_of(message.sources) <= _SMALL else (),
    )
    return small, [NotStored(None, f"metadata of {_bytes_of(around):,} bytes")]


def _small_values(values: Mapping[str, Any], level: int = 0) -> dict[str, Any]:
    """The small values, and the small content of the others. A note of an adapter has its fields at the second level,
    which may be packed JSON, so a long text there is left out; in the values of these fields it is replaced."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if _bytes_of(value) <= _SMALL:
            found[key] = value
        elif isinstance(value, Mapping):
            small = _small_values(value, level + 1) if level < 1 else shrunk(value, MAX_MESSAGE_BYTES // 4)
            found |= {} if small is None else {key: small}
    return found


def _in_one(message: Message, lacks: list[NotStored]) -> Fitted:
    parts = list(message.parts)
    sizes = list(map(_bytes_of, parts))
    excess = sum(sizes) + _bytes_of(replace(message, parts=())) - MAX_MESSAGE_BYTES
    for at in sorted(range(len(parts)), key=sizes.__getitem__, reverse=True):
        if excess <= 0:
            break
        note = _note_for(parts[at])
        lacks.append(NotStored(at, _reason(parts[at])))
        excess -= sizes[at] - _bytes_of(note)
        parts[at] = note
    changed = replace(message, parts=tuple(parts))
    if not fits(changed):  # it has too many values
        lacks = [NotStored(None, f"{len(parts):,} parts")]
        changed = replace(message, parts=(TextPart(text=_note(f"{len(parts):,} parts")),))
    return Fitted([changed], lacks)


def _halves(message: Message) -> Iterator[tuple[Part, ...]]:
    """The parts of a message in portions that fit. Reasoning stays with the part that follows it."""
    parts = message.parts
    middle = len(parts) // 2
    borders = (at for at in range(1, len(parts)) if not isinstance(parts[at - 1], ReasoningPart))
    border = min(borders, key=lambda at: abs(at - middle), default=middle)
    if len(parts) < 2 or fits(message):
        yield parts
        return
    for half in (parts[:border], parts[border:]):
        yield from _halves(replace(message, parts=half))


def _id_of_piece(message_id: str, number: int) -> str:
    """The id of a further message, the same for every repetition of a call."""
    given = f"{message_id}#{number}"
    return given if len(given.encode()) <= MAX_ID_BYTES else f"{body_digest(message_id.encode()).hex()}#{number}"


def _note(what: str) -> str:
    return f"[{what} is too large to store: a message has at most {MAX_MESSAGE_BYTES:,} bytes]"


def _sized(part: Part) -> str:
    match part:
        case ToolResultPart():
            return f"result of {_bytes_of(part.content):,} bytes"
        case ToolUsePart():
            return f"input of {_bytes_of(part.input):,} bytes"
        case AttachmentPart():
            named = f"{part.modality or 'file'} {(part.name or '')[:200]}".strip()
            return f"{named} of {_bytes_of(part.reference):,} bytes"
        case TextPart() | ReasoningPart():
            return f"text of {_bytes_of(part.text):,} bytes"
    return f"{part.type[:80]} of {_bytes_of(part.data):,} bytes"


def _reason(part: Part) -> str:
    return f"{_sized(part)}, which is too large to store: a message has at most {MAX_MESSAGE_BYTES:,} bytes"


def _note_for(part: Part) -> Part:
    """The note that replaces a part that is too large. It opens or answers the same pair."""
    note = _note(_sized(part))
    match part:
        case ToolResultPart():
            meta = None if part.provider_meta is None else _small_values(part.provider_meta)
            return replace(part, content=note, is_error=True, provider_meta=meta, extra=None)
        case ToolUsePart():
            meta = None if part.provider_meta is None else _small_values(part.provider_meta)
            given = shrunk(part.input, MAX_MESSAGE_BYTES // 4) if isinstance(part.input, Mapping) else None
            return replace(part, input=given or {"note": note}, provider_meta=meta, extra=None)
        case TextPart() | ReasoningPart() | AttachmentPart():
            return TextPart(text=note)
    data = shrunk(part.data, MAX_MESSAGE_BYTES // 4)
    return replace(part, data=data or {**_small_values(part.data), "note": note})


def _text_sizes(value: Any, depth: int = 0) -> Iterator[int]:
    if isinstance(value, str | bytes):
        yield _bytes_of(value)
    elif isinstance(value, Mapping | list | tuple) and depth < 100:
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _text_sizes(item, depth + 1)


def _without_long_texts(value: Any, longest: int) -> Any:
    if isinstance(value, str | bytes):
        return value if _bytes_of(value) < longest else _instead_of(value)
    if isinstance(value, Mapping):
        return {key: _without_long_texts(item, longest) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_long_texts(item, longest) for item in value]
    return value


def _instead_of(value: str | bytes) -> str:
    """A note, in the form that the place of the text needs: base64 stays base64, and an image an image."""
    note = _note(f"text of {_bytes_of(value):,} bytes")
    if isinstance(value, bytes):
        return note
    if value.startswith("data:"):
        return f"data:image/png;base64,{_PIXEL}" if value.startswith("data:image/") else f"data:,{note}"
    kind = kind_of_base64(value)
    if kind is None:
        return note
    return _PIXEL if kind == "image" else base64.b64encode(note.encode()).decode()


def _bytes_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    try:
        return len(msgspec.msgpack.encode(value))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return MAX_MESSAGE_BYTES
