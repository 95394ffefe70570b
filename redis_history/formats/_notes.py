"""Notes on how an original dict differs from its rendering, so that the original can be restored exactly.

`remember` returns a *note* and `rebuild` applies it. Its keys: `set` (keys that only the original has, or that have
other values there), `null` (keys that were null where the rendering is empty), `without` (keys that only the rendering
has), `keys` (the original order of keys), `in` (notes of nested dicts). Most originals need no note. A note never
overrides content: a message that was edited after its import must keep the edit.

Values that cannot be stored, such as integers beyond 64 bits, are stored as JSON text. Tuples are stored as lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec

from redis_history.errors import InvalidMessageError
from redis_history.formats._marks import marked, pair_of
from redis_history.formats._sdk_objects import plain
from redis_history.values import AttachmentPart, Message, Part, TextPart, UnknownPart
from redis_history.values.notes import QUOTES, digest_of, is_current

Json = dict[str, Any]
_Holder = TypeVar("_Holder", bound=msgspec.Struct)  # a part or message

#: How closely the output follows the original. "valid": the original, corrected where the provider's own types reject
#: it; "original": the exact original; "request": like "valid", without keys that only replies have.
Shape = Literal["valid", "original", "request"]

#: The output for a part, None if the format cannot represent it; and what was lost, or None.
Rendered = tuple[Any, str | None]
Write = Callable[[Part, Shape], Rendered]

#: Keys of `provider_meta` that hold notes. They also identify the provider of a signature.
FORMS = ("anthropic", "bedrock", "gemini", "mistral", "openai_chat", "openai_responses")

_ENVELOPE = frozenset(("type", "role", "tool_call_id"))
_CONTENT = frozenset(("content", "text", "refusal", "reasoning", "thinking", "signature", "arguments", "input", "name"))
_CONTENT |= {"id", "tool_calls", "tool_call_id", "tool_use_id", "is_error", "data", "url", "file_id", "file_data"}
_CONTENT |= {"args", "response", "output", "parts", "summary", "encrypted_content"}
_ASSUMED = frozenset(("detail", "status"))  # required by a provider's types, but missing in some originals
_WHOLE = _ENVELOPE | {"input", "arguments", "args", "response"}  # compared as one value, never field by field
#: Keys of blocks that quote their text, or places in it.
_QUOTING = frozenset(("logprobs", "annotations", "citations", "rawInput", "items"))
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_FILE_NAMES = ("title", "filename", "document_name", "display_name", "name")
_MAX_DEPTH = 90  # the message model allows 100, and the message itself needs some of them


def remember(original: Mapping[str, Any], ours: Mapping[str, Any]) -> Json:
    """The note for which `rebuild(ours, note)` equals `original`, including the order of keys; {} if both are equal.

    Raises InvalidMessageError if the content differs, because then `ours` is not a rendering of `original`.
    """
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
    note: Json = {"set": extra, "null": null, "without": [key for key in ours if key not in original], "in": nested}
    note = {key: value for key, value in note.items() if value}
    if list(rebuild(ours, note)) != list(original) or any(map(extra.get, _QUOTING)):
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
    if not note:
        return out
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


def _same(original: Any, ours: Any) -> bool:
    return _equal(original, ours) or _equal(_with_lists(original), ours)


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other or repr(one) == repr(other))  # NaN is not equal to itself


# Values that cannot be stored


def storable(value: Any) -> bool:
    """Whether a message can hold this value: integers of 64 bits, finite numbers, valid text, lists instead of tuples,
    not nested too deep."""
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return False
    except TypeError:
        pass  # the model reports objects of other types
    return _fits((value,), 0)


def _fits(values: Iterable[Any], level: int) -> bool:
    for value in values:
        if isinstance(value, tuple) or (isinstance(value, float) and not math.isfinite(value)):
            return False  # 1e400 is valid JSON, but infinity as a Python float
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if inner and (level > _MAX_DEPTH or not _fits(inner, level + 1)):
            return False
    return True


def stored_value(value: Any) -> tuple[Any, bool]:
    """`value` with lists for its tuples, or its JSON text if a message cannot hold it; and whether it is the text."""
    if isinstance(value, str) or storable(value):
        return value, False
    value = _with_lists(value)
    return (value, False) if storable(value) else (json.dumps(value, default=str), True)


def _with_lists(value: Any) -> Any:
    """`value` with lists for its tuples, as in JSON; unchanged if it is nested too deep to be stored."""
    try:
        return _lists(value)
    except RecursionError:
        return value


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


def kept_value(value: Any, note: Json) -> Any:
    """`value` as it is stored. Marks `note` if that is JSON text, for `value_of`."""
    stored, is_text = stored_value(value)
    if is_text:
        note["parsed"] = True
    return stored


def value_of(stored: Any, note: Mapping[str, Any]) -> Any:
    """The value that `kept_value` stored, or what an edit has put in its place."""
    if note.get("parsed") and isinstance(stored, str):
        with suppress(ValueError, RecursionError):
            return json.loads(stored)
    return stored


# Notes of messages and parts


def note_of(holder: Any, form: str) -> Mapping[str, Any]:
    """The note of a message or part for `form`, without quotes of former content; {} without a note."""
    if not getattr(holder, "provider_meta", None):
        return _NOTHING
    note = _kept_note(holder, form)
    if QUOTES not in note:
        return note
    rest = {key: value for key, value in note.items() if key != QUOTES}
    quotes = note[QUOTES]
    if not is_current(quotes, holder):
        return rest
    found = {key: value for key, value in _unpacked(quotes).items() if key not in ("of", "json")}
    if "set" in found:
        found["set"] = {**rest.get("set", {}), **found["set"]}
    return {**rest, **found}


def _meta_of(holder: Any) -> Mapping[str, Any]:
    return getattr(holder, "provider_meta", None) or _NOTHING


def _kept_note(holder: Any, form: str) -> Mapping[str, Any]:
    note = _meta_of(holder).get(form)
    return _unpacked(note) if note and isinstance(note, Mapping) else _NOTHING


def _unpacked(note: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**note, **json.loads(note["json"])} if isinstance(note.get("json"), str) else note


def with_note(form: str, note: Mapping[str, Any]) -> Json | None:
    """The `provider_meta` for a part with this note; None for an empty note."""
    if not note:
        return None
    own = {key: value for key, value in note.items() if key != QUOTES} if QUOTES in note else note
    kept, is_text = stored_value(own)
    found = {"json": kept} if is_text else kept
    return {form: {**found, QUOTES: note[QUOTES]} if QUOTES in note else found}


def noted(part: _Holder, form: str, note: Json) -> _Holder:
    """`part` with `note` merged into its note for `form`. Quotes of the content apply only to this content."""
    if not note:
        return part
    note, extra, quotes = dict(note), note.get("set", {}), {}
    if quoting := {key: extra[key] for key in _QUOTING if extra.get(key)}:
        quotes["set"] = quoting
        note["set"] = {key: value for key, value in extra.items() if key not in quoting}
    if "raw" in note.get("arguments", ()):
        quotes["arguments"] = note.pop("arguments")
    meta = {**_meta_of(part), **(with_note(form, {**_kept_note(part, form), **note}) or {})}
    part = msgspec.structs.replace(part, provider_meta=meta or None)
    return quoted(part, form, quotes) if quotes else part


def quoted(holder: _Holder, form: str, note: Json) -> _Holder:
    """A part or message with a further note for `form` that holds only as long as its content is the present one."""
    kept, is_text = stored_value(note)
    before = _kept_note(holder, form)
    quotes = {**before.get(QUOTES, {}), "of": digest_of(holder), **({"json": kept} if is_text else kept)}
    meta = {**_meta_of(holder), **(with_note(form, {**before, QUOTES: quotes}) or {})}
    return msgspec.structs.replace(holder, provider_meta=meta)


def noted_message(
    message: Message, form: str, note: Json, raw: Mapping[str, Any], ours: Mapping[str, Any], where: str
) -> Message:
    """`message` with `note` and the note that restores `raw`. `ours` is the rendering of the message.

    Raises InvalidMessageError like `remember`. The error text begins with `where`.
    """
    try:
        note |= remember(raw, ours)
    except InvalidMessageError as error:
        raise InvalidMessageError(f"{where}: {error}") from error
    return msgspec.structs.replace(message, provider_meta=with_note(form, note)) if note else message


def plain_text(message: Message, form: str) -> str | None:
    """The text of a message that consists of one plain text, without notes for `form`; None for other messages."""
    text = lone_text(message)
    return None if text is None or note_of(message, form) else text


def lone_text(message: Message) -> str | None:
    """The text of a message that consists of one plain text; None for other messages."""
    if len(message.parts) != 1:
        return None
    [part] = message.parts
    return part.text if type(part) is TextPart and not part.provider_meta else None


# Blocks


def opaque(form: str, block: Any, kind: str | None = None) -> UnknownPart:
    """An opaque part for a block without an equivalent. Its type gets a prefix, so it cannot match a known type."""
    if kind is None and isinstance(block, Mapping):
        kind = block.get("type")
    stored, is_text = stored_value(block)
    return UnknownPart(data={"type": f"{form}/{kind}", "json" if is_text else "block": stored})


def foreign_block(form: str, part: Part) -> Any:
    """The block inside an opaque part of this `form`; None for other parts."""
    if not isinstance(part, UnknownPart) or not part.type.startswith(f"{form}/"):
        return None
    return json.loads(part.data["json"]) if isinstance(part.data.get("json"), str) else part.data.get("block")


def read_block(
    form: str, block: Any, part: Part | None, write: Write, kept: Any = None, pair: Json | None = None
) -> Part:
    """`part` with the note that restores `block`. An opaque part with `kept` (by default, the block) if `part` is None,
    or `write` gives other content. `pair`: what it opens and answers, if `block` does not say it."""
    return marked(_read_block(form, block, part, write, block if kept is None else kept), pair or pair_of(block))


def _read_block(form: str, block: Any, part: Part | None, write: Write, kept: Any) -> Part:
    if part is None:
        return opaque(form, kept)
    try:
        note = remember(block, write(part, "original")[0] or {})
    except InvalidMessageError:
        return opaque(form, kept)
    if write(part, "valid")[0] is None:
        note["own"] = True  # the block came from this provider, so the provider accepts it
    return noted(part, form, note)


def write_block(
    form: str, part: Part, write: Write, shape: Shape, not_null: Collection[str] = (), free: Collection[str] = ()
) -> Rendered:
    """The block for a part, as it was if it came from this provider."""
    if isinstance(part, UnknownPart):
        block = foreign_block(form, part)
        return block, None if block is not None else "an opaque part of another provider"
    note = note_of(part, form)
    ours, lost = write(part, "original" if note.get("own") else shape)
    if ours is not None:
        ours = rebuild(ours, note, valid=shape != "original", free=free, not_null=not_null)
        if isinstance(part, AttachmentPart) and part.name and not _has_name(ours, part.name):
            lost = "the name of a file" if lost is None else f"{lost}, and the name of a file"
    return ours, lost


def _has_name(block: Json, name: str) -> bool:
    holders = [block, *(value for value in block.values() if isinstance(value, Mapping))]
    return any(holder.get(key) == name for holder in holders for key in _FILE_NAMES)


def parts_of_content(content: Any, read: Callable[[Any], Part], where: str, forms: str) -> tuple[Part, ...]:
    """The parts of a message's content: text, blocks or None. Raises InvalidMessageError for other content."""
    if isinstance(content, list):
        return tuple(map(read, content))
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    if content is not None:
        raise InvalidMessageError(f"{where}: content must be {forms}, not {type(content).__name__}")
    return ()


def content_of(blocks: list[Any], form: str, null: Any = None) -> Any:
    """The content of a message: a single plain text as a string, unless it was a list. `null` stands for null."""
    if not blocks:
        return {"list": [], "null": null}.get(form, "")
    plain = len(blocks) == 1 and isinstance(blocks[0], Mapping) and list(blocks[0]) == ["type", "text"]
    return blocks[0]["text"] if plain and form != "list" else blocks


def as_mappings(items: Iterable[Any], *, role: bool = True) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """The items as dicts, with their index, and with a role if `role`. SDK objects (pydantic models) are converted,
    also those inside the items.

    Raises InvalidMessageError for anything else.
    """
    for index, item in enumerate(items):
        if isinstance(item, Message):
            raise InvalidMessageError(f"message {index} must be a dict of the provider, not a Message")
        item = plain(item)
        if not isinstance(item, Mapping):
            raise InvalidMessageError(f"message {index} must be a dict, not {type(item).__name__}")
        if role and not isinstance(item.get("role"), str):
            keys = ", ".join(map(str, item))[:80] or "none"
            raise InvalidMessageError(f"message {index} must have a role; keys: {keys}")
        yield index, item
