"""Notes on how an original dict differs from the rendered one, so that the original can be restored exactly.

`remember` returns a *note* and `rebuild` applies it. Its keys: `set` (keys that only the original has, or different
values of its envelope), `null` (keys that were null where the rendering is empty), `without` (keys that only the
rendering has), `keys` (the original order of keys), `in` (notes of nested dicts). Most originals need no note.
A note never overrides content: a message that was edited after its import must keep the edit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

import msgspec

from redis_history._validation import check_choice
from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.model import Message, Part, TextPart, UnknownPart

__all__ = [
    "FORMS",
    "Json",
    "Shape",
    "as_mapping",
    "check_shape",
    "foreign_block",
    "is_foreign",
    "note_of",
    "noted",
    "noted_message",
    "opaque",
    "part_or_opaque",
    "parts_of_content",
    "rebuild",
    "remember",
    "with_note",
]

Json = dict[str, Any]

#: How closely the output follows the original. "valid": the original, corrected where the provider's own types reject
#: it; "original": the exact original; "request": like "valid", without keys that only replies have.
Shape = Literal["valid", "original", "request"]

#: Keys of `provider_meta` that hold notes. They also identify the provider of a signature.
FORMS = ("anthropic", "gemini", "mistral", "openai_chat", "openai_responses")

_CONTENT = frozenset(("content", "text", "refusal", "reasoning", "thinking", "signature", "arguments", "input", "name"))
_CONTENT |= {"id", "tool_calls", "tool_call_id", "tool_use_id", "is_error", "data", "url", "file_id", "file_data"}
_ENVELOPE = frozenset(("type", "role", "tool_call_id"))
_CONTENT |= {"args", "reasoning", "response", "output", "parts", "summary", "encrypted_content"}
_ASSUMED = frozenset(("detail", "status"))  # required by a provider's types, but missing in some originals
_WHOLE = _ENVELOPE | {"input", "arguments", "args", "response"}  # compared as one value, never field by field


def remember(original: Mapping[str, Any], ours: Mapping[str, Any]) -> Json:
    """The note for which `rebuild(ours, note)` equals `original`, including the order of keys; {} if both are equal.

    Raises InvalidMessageError if the content differs, because then `ours` is not a rendering of `original`.
    """
    note: Json = {}
    extra: Json = {}
    nested: Json = {}
    null: list[str] = []
    for key, value in original.items():
        if key not in ours:
            extra[key] = value
        elif isinstance(value, Mapping) and isinstance(ours[key], Mapping) and key not in _WHOLE:
            if inner := remember(value, ours[key]):
                nested[key] = inner
        elif not _same(value, ours[key]):
            if value is None and not ours[key]:
                null.append(key)
            elif key in _CONTENT:
                raise InvalidMessageError(f"{key!r} must not be {str(value)[:60]!r} here")
            else:
                extra[key] = value
    without = [key for key in ours if key not in original]
    if extra:
        note["set"] = extra
    if null:
        note["null"] = null
    if without:
        note["without"] = without
    if nested:
        note["in"] = nested
    if list(rebuild(ours, note)) != list(original):
        note["keys"] = list(original)
    return note


def rebuild(
    ours: Mapping[str, Any],
    note: Mapping[str, Any],
    *,
    valid: bool = False,
    free: Collection[str] = (),
    not_null: Collection[str] = (),
) -> Json:
    """Apply `note` to `ours`, to restore the form of the original. Current content of `ours` overrides the note.

    With `valid`, all keys of `ours` override the note, except those in `free`, and keys in `not_null` are left out if
    they were null. This satisfies the provider's types even if the original did not.
    """
    out = dict(ours)
    fixed = out.keys() - set(free) if valid else ()
    for key in note.get("without", ()):
        if key in out and (not out[key] or key in _ENVELOPE or key in _ASSUMED) and key not in fixed:
            del out[key]
    for key in note.get("null", ()):
        if not out.get(key) and key not in fixed:
            out[key] = None
    for key, inner in note.get("in", {}).items():
        if isinstance(out.get(key), Mapping):
            out[key] = rebuild(out[key], inner, valid=valid)
    for key, value in note.get("set", {}).items():
        if valid and (key in _ENVELOPE & out.keys() or (value is None and (key in fixed or key in not_null))):
            continue
        if key not in out or key not in _CONTENT:
            out[key] = value
    if keys := note.get("keys"):
        out = {key: out[key] for key in keys if key in out} | out
    return out


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def note_of(holder: Any, form: str) -> Mapping[str, Any]:
    """The note that `holder` (a message or part) has for `form`; {} if there is none."""
    meta = getattr(holder, "provider_meta", None)
    note = meta.get(form) if meta else None
    return note if isinstance(note, Mapping) else {}


def with_note(form: str, note: Json) -> Json | None:
    """The `provider_meta` for a part with this note; None for an empty note."""
    return {form: note} if note else None


def noted(part: Any, form: str, note: Json) -> Part:
    """`part` with `note` merged into its note for `form`."""
    if not note:
        return part  # type: ignore[no-any-return]
    kept: Part = msgspec.structs.replace(part, provider_meta={form: {**note_of(part, form), **note}})
    return kept


def noted_message(
    message: Message, form: str, note: Json, raw: Mapping[str, Any], ours: Mapping[str, Any], where: str
) -> Message:
    """`message` with `note` and the note that restores `raw`. `ours` is the rendering of the message.

    Raises InvalidMessageError like `remember`; the message begins with `where`.
    """
    try:
        note |= remember(raw, ours)
    except InvalidMessageError as error:
        raise InvalidMessageError(f"{where}: {error}") from error
    return msgspec.structs.replace(message, provider_meta={form: note}) if note else message


def is_foreign(part: Part, form: str) -> bool:
    """Whether a part came from a provider other than that of `form`. False for a part that came from no provider."""
    meta = getattr(part, "provider_meta", None) or {}
    return form not in meta and any(name in meta for name in FORMS)


def check_shape(shape: Shape) -> None:
    """Raises InvalidInputError unless it is one."""
    check_choice(shape, "shape", get_args(Shape), InvalidInputError)


def opaque(form: str, block: Any) -> UnknownPart:
    """An opaque part for a block without an equivalent. Its type gets a prefix, so it cannot match a known type."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    return UnknownPart(data={"type": f"{form}/{kind}", "block": block})


def part_or_opaque(form: str, block: Any, part: Part | None, render: Callable[[Part, Shape], Json | None]) -> Part:
    """`part` with the note that restores `block`. An opaque part if `part` is None, or if `render` gives other
    content."""
    if part is None:
        return opaque(form, block)
    try:
        note = remember(block, render(part, "original") or {})
    except InvalidMessageError:
        return opaque(form, block)
    if render(part, "valid") is None:
        note["own"] = True  # the block came from this provider, so the provider accepts it
    return noted(part, form, note)


def parts_of_content(content: Any, part_of_block: Callable[[Any], Part], where: str, forms: str) -> tuple[Part, ...]:
    """The parts of a message's content: text, blocks or None. Raises InvalidMessageError for other content."""
    if isinstance(content, list):
        return tuple(map(part_of_block, content))
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    if content is not None:
        raise InvalidMessageError(f"{where}: content must be {forms}, not {type(content).__name__}")
    return ()


def foreign_block(form: str, part: Part) -> Any:
    """The block inside an opaque part of this `form`; None for other parts."""
    return part.data.get("block") if isinstance(part, UnknownPart) and part.type.startswith(f"{form}/") else None


def as_mapping(item: Any, index: int, *, role: bool = True) -> Mapping[str, Any]:
    """`item` as a dict, with a role if `role`. SDK objects (pydantic models) are converted.

    Raises InvalidMessageError for anything else.
    """
    if isinstance(item, Message):
        raise InvalidMessageError(f"message {index} must be a dict of the provider, not a Message")
    if not isinstance(item, Mapping) and hasattr(item, "model_dump"):
        item = item.model_dump(exclude_unset=True)
    if not isinstance(item, Mapping):
        raise InvalidMessageError(f"message {index} must be a dict, not {type(item).__name__}")
    if role and not isinstance(item.get("role"), str):
        raise InvalidMessageError(f"message {index} must have a role; keys: {', '.join(map(str, item))[:80] or 'none'}")
    return item
