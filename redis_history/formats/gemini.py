"""Gemini's contents (`Content`, `ContentDict`) of google-genai and the REST API.

| Gemini | `Message` |
|---|---|
| role `model`; `user`; `function` | `assistant`; `user`; `tool` |
| a content with only function responses | role `tool`; restored as `user` |
| the separate system instruction | a first message with role `system`; see `to_gemini_system` |
| a part with `thought` | a reasoning part; `thought_signature` is its signature |
| `thought_signature` on another part | `provider_meta["gemini"]` of that part |
| `function_call`, `function_response` | tool_use and tool_result parts; a missing id is made of name and number |
| a response `{"output": …}` or `{"error": …}` | the value is the content; `error` sets `is_error` |
| `inline_data`; `file_data` | attachments: a data URL; the URI |
| `executable_code`, `video_metadata`, unknown keys | an opaque part; `provider_meta["gemini"]` |

Keys in camel case (`functionCall`) and bytes are accepted and restored. New output has keys in snake case and base64
text for bytes; both the SDK and the REST API accept these.

`to_gemini` reports as losses: signatures of other providers (their reasoning becomes a thought without a signature),
files that are neither inline nor a URL, files in a tool result, arguments that are not an object, opaque parts of
other providers.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats._content import NOT_USABLE, as_object, data_url, parts_of, split_data_url
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import (
    Json,
    Shape,
    Write,
    as_mappings,
    check_shape,
    is_foreign,
    note_of,
    noted,
    noted_message,
    opaque,
    rebuild,
    remember,
    stored_value,
    value_of,
    with_note,
    write_block,
)
from redis_history.model import (
    AttachmentPart,
    Message,
    Modality,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

_FORM = "gemini"
_ROLES: dict[str, Role] = {"user": "user", "model": "assistant", "system": "system", "function": "tool"}
_NAMES: dict[str, str] = {"user": "user", "assistant": "model", "tool": "user", "system": "system"}
_MODALITIES: dict[str, Modality] = {"image": "image", "audio": "audio", "video": "video"}
_UNKNOWN = "application/octet-stream"

_PART_KEYS = [
    "inline_data",
    "file_data",
    "function_call",
    "function_response",
    "executable_code",
    "code_execution_result",
    "thought_signature",
    "video_metadata",
    "media_resolution",
    "part_metadata",
    "tool_call",
    "tool_response",
]
_INNER_KEYS = ("mime_type", "file_uri", "display_name", "partial_args", "will_continue", "start_offset", "end_offset")


def from_gemini(contents: Iterable[Mapping[str, Any]], *, system: Any = None) -> list[Message]:
    """Convert each content to a `Message`, in order, with new ids and without timestamps. `system` (a content, a part
    or text) becomes the first message.

    Raises InvalidMessageError, with the index, for an item that is not a content.
    """
    out = [_from(item, index) for index, item in as_mappings(contents, role=False)]
    return out if system is None else [_from_system(system), *out]


def to_gemini(
    messages: Iterable[Message], *, shape: Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to contents, without system messages: pass these with `to_gemini_system`.

    `on_loss` is called with each `Loss`; without it a warning is logged. `shape` is as in `to_openai_chat`.
    """
    check_shape(shape)
    names: dict[str, str] = {}  # tool names by id, of the nearest earlier call
    out: list[Json] = []
    with Losses(_FORM, on_loss) as losses:
        for message in messages:
            names |= {part.id: part.name for part in message.tool_uses}
            note = note_of(message, _FORM)
            if message.role == "system" and not note.get("in_list"):
                continue
            parts = _parts(message, names, losses)
            if message.parts and not parts:
                continue  # all of its content was lost, and reported
            role = _NAMES[message.role]
            if "role" in note and (shape == "original" or note["role"] in _ROLES):
                role = note["role"]
            elif "role" in note:
                losses.add(message.id, None, f"the role {note['role']!r}")
            out.append(rebuild({"role": role, "parts": parts}, note))
    return out


def to_gemini_system(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> dict[str, Any] | None:
    """The system instruction: one content with all system messages; None without system messages. `on_loss` as in
    `to_gemini`."""
    found = [m for m in messages if m.role == "system" and not note_of(m, _FORM).get("in_list")]
    with Losses(_FORM, on_loss) as losses:
        parts = [item for message in found for item in _parts(message, {}, losses)]
    note = note_of(found[0], _FORM) if len(found) == 1 else {}
    return rebuild({"parts": parts}, note) if found else None


def _from_system(system: Any) -> Message:
    if isinstance(system, str):
        return Message(role="system", parts=(TextPart(text=system),) if system else ())
    items = system if isinstance(system, list | tuple) else [system]
    texts = [item for _, item in as_mappings(({"text": t} if isinstance(t, str) else t for t in items), role=False)]
    raw = texts[0] if len(texts) == 1 and "parts" in texts[0] else {"parts": texts}
    message = Message(role="system", parts=tuple(_parts_of(raw, 0)))
    return noted_message(message, _FORM, {}, raw, {"parts": list(raw.get("parts") or ())}, "content 0")


def _from(raw: Mapping[str, Any], index: int) -> Message:
    given = raw.get("role")
    role: Role = _ROLES.get(given, "user") if isinstance(given, str) else "user"
    parts = tuple(_parts_of(raw, index))
    if role in ("user", "tool"):
        role = "tool" if parts and all(isinstance(part, ToolResultPart) for part in parts) else "user"
    note: Json = {"in_list": True} if role == "system" else {}
    ours: Json = {"role": _NAMES[role], "parts": list(raw.get("parts") or ())}
    if given is not None and given != ours["role"]:
        note["role"] = ours["role"] = given
    return noted_message(Message(role=role, parts=parts), _FORM, note, raw, ours, f"content {index}")


def _parts_of(raw: Mapping[str, Any], index: int) -> Iterable[Part]:
    items = raw.get("parts") or ()
    if not isinstance(items, list | tuple):
        raise InvalidMessageError(f"content {index}: parts must be a list, not {type(items).__name__}")
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        if not isinstance(item, Mapping) and hasattr(item, "model_dump"):
            item = item.model_dump(exclude_unset=True)
        yield _read(item, seen)


def _parts(message: Message, names: Mapping[str, str], losses: Losses) -> list[Any]:
    out = []
    for index, part in enumerate(message.parts):
        named = names.get(part.tool_use_id) if isinstance(part, ToolResultPart) else None
        item, lost = write_block(_FORM, part, _writer(named), "original")
        note = note_of(part, _FORM)
        if item is not None:
            item = _with_bytes(item) if note.get("bytes") else item
            out.append(_to_camel(item) if note.get("camel") else item)
        losses.add(message.id, index, lost)
    return out


# Parts. Their keys are in snake case here.


def _read(item: Any, seen: Counter[tuple[str, str]]) -> Part:
    if not isinstance(item, Mapping):
        return opaque(_FORM, item)
    snake = _to_snake(item)
    camel = snake.keys() != item.keys() or snake != dict(item)
    if camel and _to_camel(snake) != dict(item):
        return opaque(_FORM, dict(item))  # the part mixes both spellings of keys
    raw = _on_bytes(snake, bytes, lambda data: base64.b64encode(data).decode())
    call_id = ""
    for kind in ("function_call", "function_response"):
        if isinstance(raw.get(kind), Mapping) and isinstance(name := raw[kind].get("name"), str):
            seen[kind, name] += 1
            call_id = _made_id(name, seen[kind, name])
    part = _known(raw, call_id)
    if part is None:
        return opaque(_FORM, dict(item))
    try:
        note = remember(raw, _write(part, None)[0] or {})
    except InvalidMessageError:
        return opaque(_FORM, dict(item))
    note |= {"bytes": True} if raw != snake else {}
    return noted(part, _FORM, note | ({"camel": True} if camel else {}))


def _made_id(name: str, count: int) -> str:
    """An id for a call that has none: its name, and its number among the calls of that name in one content. Results
    get their ids by the same rule, so they match their calls even when converted separately."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "call"
    return plain if count == 1 else f"{plain}-{count}"


def _known(raw: Mapping[str, Any], call_id: str) -> Part | None:
    match raw:
        case {"thought": True, "text": str(text)}:
            signature = raw.get("thought_signature")
            signed = signature if isinstance(signature, str) else None
            return ReasoningPart(text=text, signature=signed, provider_meta={_FORM: {"thought": True}})
        case {"text": str(text)}:
            return TextPart(text=text)
        case {"function_call": {"name": str(name)} as call}:
            id_, args = _id_or(call, call_id), call.get("args")
            if args is not None and not isinstance(args, dict):
                return None
            value, is_text = stored_value(args or {})
            flags = {"no_id": not _has_id(call), "no_args": args is None, "parsed": is_text}
            return ToolUsePart(id=id_, name=name, input=value, provider_meta=_flagged(flags))
        case {"function_response": {"name": str(name), "response": dict(response)} as result}:
            # By convention the response has one key, `output` or `error`. Any other response is the result itself.
            single = next(iter(response)) if list(response) in (["output"], ["error"]) else ""
            content, is_text = stored_value(response[single] if single else response)
            return ToolResultPart(
                tool_use_id=_id_or(result, call_id),
                content=content,
                is_error=single == "error",
                name=name,
                provider_meta=_flagged({"no_id": not _has_id(result), "parsed": is_text}),
            )
        case {"inline_data": {"data": str(data)} as blob}:
            mime = blob.get("mime_type")
            named = mime if isinstance(mime, str) else None
            return _attachment(data_url(named or _UNKNOWN, data), named, blob.get("display_name"))
        case {"file_data": {"file_uri": str(uri)} as file}:
            mime = file.get("mime_type")
            named = mime if isinstance(mime, str) else None
            return _attachment(uri, named, file.get("display_name"), {_FORM: {"file": True}})
    return None


def _has_id(raw: Mapping[str, Any]) -> bool:
    return isinstance(raw.get("id"), str) and raw["id"] != ""


def _id_or(raw: Mapping[str, Any], call_id: str) -> str:
    return str(raw["id"]) if _has_id(raw) else call_id


def _flagged(flags: Mapping[str, bool]) -> Json | None:
    return with_note(_FORM, {name: True for name, flag in flags.items() if flag})


def _attachment(reference: str, mime: str | None, name: Any, meta: Json | None = None) -> AttachmentPart:
    shown = name if isinstance(name, str) else None
    return AttachmentPart(modality=_modality(mime), name=shown, mime_type=mime, reference=reference, provider_meta=meta)


def _modality(mime: str | None) -> Modality:
    return _MODALITIES.get((mime or "").partition("/")[0], "document")


def _writer(tool_name: str | None) -> Write:
    return lambda part, shape: _write(part, tool_name)


def _write(part: Part, tool_name: str | None) -> tuple[Json | None, str | None]:
    """The Gemini part, and what was lost. `tool_name` is that of the call, for a result without a name."""
    note = note_of(part, _FORM)
    match part:
        case TextPart():
            return {"text": part.text}, None
        case ReasoningPart():
            return _thought(part)
        case ToolUsePart():
            value, lost = as_object(part.input, own=bool(note.get("parsed")))
            call = {} if note.get("no_id") else {"id": part.id}
            args = {"args": value} if value or not note.get("no_args") else {}
            return {"function_call": {**call, "name": part.name, **args}}, lost
        case ToolResultPart():
            return _result(part, note, tool_name)
        case AttachmentPart():
            return _file(part, note)
    return None, "a part of an unknown kind"


def _thought(part: ReasoningPart) -> tuple[Json | None, str | None]:
    out: Json = {"text": part.text, "thought": True}
    if part.signature is None:
        return out, None
    if is_foreign(part, _FORM):
        if not part.text:
            return None, "reasoning that only another provider can decrypt"
        return out, "the signature of another provider"
    if _FORM not in (part.provider_meta or {}) and not _is_base64(part.signature):
        return out, "a signature that is not base64"
    return {**out, "thought_signature": part.signature}, None


def _result(part: ToolResultPart, note: Mapping[str, Any], tool_name: str | None) -> tuple[Json, str | None]:
    content, lost = value_of(part.content, note), None
    name = part.name if part.name is not None else tool_name
    if name is None:
        name, lost = part.tool_use_id, "the name of the tool (its call is missing; the id is used instead)"
    found = parts_of(content)
    if found is not None and any(isinstance(inner, AttachmentPart) for inner in found):
        content = [{"type": "text", "text": inner.text} for inner in found if isinstance(inner, TextPart)]
        lost = "files in a tool result"
    wrapped = part.is_error or not isinstance(content, dict) or list(content) in (["output"], ["error"])
    response = {"error" if part.is_error else "output": content} if wrapped else content
    id_: Json = {} if note.get("no_id") else {"id": part.tool_use_id}
    return {"function_response": {**id_, "name": name, "response": response}}, lost


def _file(part: AttachmentPart, note: Mapping[str, Any]) -> tuple[Json | None, str | None]:
    reference = part.reference
    own = _FORM in (part.provider_meta or {})
    mime, data = split_data_url(reference)
    # Only one of Google's two APIs accepts a display name. It is restored if the original had it, but never added.
    lost = "the name of a file" if part.name is not None and not own else None
    if data is not None and not note.get("file"):
        if not own and not _is_base64(data):
            return None, "inline content that is not base64"
        kind = part.mime_type if mime == _UNKNOWN else mime
        return {"inline_data": {**({} if kind is None else {"mime_type": kind}), "data": data}}, lost
    if reference is None or not (own or re.match(r"(https?|gs)://", reference)):
        return None, NOT_USABLE
    kind = part.mime_type or (None if own else mimetypes.guess_type(part.name or reference.partition("?")[0])[0])
    if not own and lost is None and part.modality in _MODALITIES and part.modality != _modality(kind):
        lost = f"the modality {part.modality}: the MIME type of the file does not say it"
    return {"file_data": {**({} if kind is None else {"mime_type": kind}), "file_uri": reference}}, lost


# Bytes and the two spellings of keys: `function_call` in Python, `functionCall` on the wire


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _with_bytes(item: Json) -> Json:
    return _on_bytes(item, str, lambda text: base64.b64decode(text.replace("-", "+").replace("_", "/")))


def _on_bytes(item: Json, kind: type, convert: Callable[[Any], Any]) -> Json:
    """`item` with the two values that can be bytes converted, where they are of this kind."""
    out = dict(item)
    if isinstance(out.get("thought_signature"), kind):
        out["thought_signature"] = convert(out["thought_signature"])
    blob = out.get("inline_data")
    if isinstance(blob, Mapping) and isinstance(blob.get("data"), kind):
        out["inline_data"] = {**blob, "data": convert(blob["data"])}
    return out


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(map(str.capitalize, rest))


# Values of other keys belong to the caller: their keys are not converted.
_SNAKE = {_camel(key): key for key in _PART_KEYS}, {_camel(key): key for key in _INNER_KEYS}
_CAMEL = {key: _camel(key) for key in _PART_KEYS}, {key: _camel(key) for key in _INNER_KEYS}


def _to_snake(part: Mapping[str, Any]) -> Json:
    return _renamed(part, *_SNAKE)


def _to_camel(part: Mapping[str, Any]) -> Json:
    """The inverse of `_to_snake`, for a part whose keys were all in camel case."""
    return _renamed(part, *_CAMEL)


def _renamed(part: Mapping[str, Any], names: Mapping[str, str], inner: Mapping[str, str]) -> Json:
    out: Json = {}
    for key, value in part.items():
        if isinstance(value, Mapping) and (key in names or key in names.values()):
            value = {inner.get(name, name): item for name, item in value.items()}
        out[names.get(key, key)] = value
    return out
