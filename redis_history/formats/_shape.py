"""How an original dict differs from the one we would write, remembered so that it can be given back exactly.

A *note* is what `remember` returns and `rebuild` uses: `set` (keys only the original has, or values of its envelope
that differ), `null` (keys that were null where we write something empty), `without` (keys only we would write),
`keys` (its order of keys), `in` (notes of nested dicts). Most originals need none. A note never overrules content
that we have: a message edited after its import must not turn back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

import msgspec

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

#: How faithful a rendering is. "valid": what the provider's own types accept, and otherwise as it came; "original":
#: as it came, whatever that was; "request": as "valid", without what only replies have.
Shape = Literal["valid", "original", "request"]

#: The forms under whose names notes are kept, and signatures belong to.
FORMS = ("anthropic", "gemini", "mistral", "openai_chat", "openai_responses")

_CONTENT = frozenset(("content", "text", "refusal", "reasoning", "thinking", "signature", "arguments", "input", "name"))
_CONTENT |= {"id", "tool_calls", "tool_call_id", "tool_use_id", "is_error", "data", "url", "file_id", "file_data"}
_ENVELOPE = frozenset(("type", "role", "tool_call_id"))
_CONTENT |= {"args", "reasoning", "response", "output", "parts", "summary", "encrypted_content"}
_ASSUMED = frozenset(("detail", "status"))  # what a provider's types ask for, though an original may do without
_WHOLE = _ENVELOPE | {"input", "arguments", "args", "response"}  # compared as one value, never field by field


def remember(original: Mapping[str, Any], ours: Mapping[str, Any]) -> Json:
    """The note with which `rebuild(ours, note)` equals `original`, order of keys included; {} if they are the same.

    Raises InvalidMessageError if content differs: then `ours` is no rendering of `original`.
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
                raise InvalidMessageError(f"{key!r} cannot be {str(value)[:60]!r} here")
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
    """`ours` as the noted original was written. Content that `ours` has by now wins over what the note says.

    With `valid`, so do all keys of `ours` but the `free` ones, and keys of `not_null` that were null are left out: the
    provider's types ask for that, whatever the original had.
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
    """What `holder` (a message or part) remembers of its life in `form`; {} if nothing."""
    meta = getattr(holder, "provider_meta", None)
    note = meta.get(form) if meta else None
    return note if isinstance(note, Mapping) else {}


def with_note(form: str, note: Json) -> Json | None:
    """The `provider_meta` of a part with this note."""
    return {form: note} if note else None


def noted(part: Any, form: str, note: Json) -> Part:
    """`part`, with `note` beside what it remembers of `form` already."""
    if not note:
        return part  # type: ignore[no-any-return]
    kept: Part = msgspec.structs.replace(part, provider_meta={form: {**note_of(part, form), **note}})
    return kept


def noted_message(
    message: Message, form: str, note: Json, raw: Mapping[str, Any], ours: Mapping[str, Any], where: str
) -> Message:
    """`message` with its note, and what else it takes to make `raw` of it again, of which `ours` is our rendering.

    Raises InvalidMessageError, which says `where`, as `remember` does.
    """
    try:
        note |= remember(raw, ours)
    except InvalidMessageError as error:
        raise InvalidMessageError(f"{where}: {error}") from error
    return msgspec.structs.replace(message, provider_meta={form: note}) if note else message


def is_foreign(part: Part, form: str) -> bool:
    """Whether a part came from another provider than `form`. One that came from none is nobody's."""
    meta = getattr(part, "provider_meta", None) or {}
    return form not in meta and any(name in meta for name in FORMS)


def check_shape(shape: Shape) -> None:
    """Raises InvalidInputError unless it is one."""
    if shape not in get_args(Shape):
        raise InvalidInputError(f"the shape {shape!r} is not one of {', '.join(get_args(Shape))}")


def opaque(form: str, block: Any) -> UnknownPart:
    """A block of the provider that has no part of ours; its type is prefixed, so it is never taken for one."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    return UnknownPart(data={"type": f"{form}/{kind}", "block": block})


def part_or_opaque(form: str, block: Any, part: Part | None, render: Callable[[Part, Shape], Json | None]) -> Part:
    """`part`, the one for a block, with the note by which it becomes that block again; opaque if there is none, or if
    `render` would make other content of it."""
    if part is None:
        return opaque(form, block)
    try:
        note = remember(block, render(part, "original") or {})
    except InvalidMessageError:
        return opaque(form, block)
    if render(part, "valid") is None:
        note["own"] = True  # it takes this one, since it came from there
    return noted(part, form, note)


def parts_of_content(content: Any, part_of_block: Callable[[Any], Part], where: str, forms: str) -> tuple[Part, ...]:
    """The parts of a message's content: text, blocks, or nothing. Raises InvalidMessageError for anything else."""
    if isinstance(content, list):
        return tuple(map(part_of_block, content))
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    if content is not None:
        raise InvalidMessageError(f"{where}: content is {forms}, not {type(content).__name__}")
    return ()


def foreign_block(form: str, part: Part) -> Any:
    """The block inside an opaque part of this `form`, else None."""
    return part.data.get("block") if isinstance(part, UnknownPart) and part.type.startswith(f"{form}/") else None


def as_mapping(item: Any, index: int, *, role: bool = True) -> Mapping[str, Any]:
    """`item` as a dict (with a role); SDK objects (pydantic) are taken too. Raises InvalidMessageError."""
    if isinstance(item, Message):
        raise InvalidMessageError(f"message {index} is a Message already")
    if not isinstance(item, Mapping) and hasattr(item, "model_dump"):
        item = item.model_dump(exclude_unset=True)
    if not isinstance(item, Mapping):
        raise InvalidMessageError(f"message {index} is not a dict but {type(item).__name__}")
    if role and not isinstance(item.get("role"), str):
        raise InvalidMessageError(f"message {index} has no role; it has {', '.join(map(str, item))[:80] or 'nothing'}")
    return item
