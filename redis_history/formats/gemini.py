"""Gemini's contents (`Content`, `ContentDict`) of google-genai and the REST API.

| Gemini | `Message` |
|---|---|
| role `model`; `user`; `function` | `assistant`; `user`; `tool` |
| a content with only function responses | role `tool`; restored as `user`, one content for all that follow each other |
| the separate system instruction | a first message with role `system`; see `to_gemini_system` |
| a part with `thought` | a reasoning part; `thought_signature` is its signature |
| `thought_signature` on another part | `provider_meta["gemini"]` of that part |
| `function_call`, `function_response` | tool_use and tool_result parts. A missing id is made of name and number |
| a response without an id, or with one that its call lacks | answers the first open call of its name |
| a response `{"output": …}` or `{"error": …}` | the value is the content; `error` sets `is_error` |
| the `parts` of a function response (images) | blocks of the content, behind a text block with the response |
| `inline_data`; `file_data` | attachments: a data URL in standard base64. The URI |
| `executable_code`, `video_metadata`, unknown keys | an opaque part; `provider_meta["gemini"]` |

Keys in camel case (`functionCall`), bytes and URL-safe base64 are accepted and restored. New output has keys in snake
case and base64 text for bytes; both the SDK and the REST API accept these.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from redis_history.errors import InvalidMessageError
from redis_history.formats import _marks, _notes
from redis_history.formats._blocks import file_of, parts_of
from redis_history.formats._content import (
    NOT_USABLE,
    UNKNOWN_TYPE,
    accepted_data_url,
    as_object,
    base64_style,
    data_url,
    parsed,
    split_data_url,
    standard_base64,
    styled_base64,
    text_or_none,
)
from redis_history.formats._format import Format
from redis_history.formats._losses import Losses, OnLoss
from redis_history.values import (
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
from redis_history.values.contents import readable
from redis_history.values.quoting import file_hint

_NAMES: dict[str, str] = {"user": "user", "assistant": "model", "tool": "user", "system": "system"}
_MODALITIES: dict[str, Modality] = {"image": "image", "audio": "audio", "video": "video"}

# The keys of a part, and of the value of such a key. Values of other keys belong to the caller.
_PART_KEYS = (
    *("inline_data", "file_data", "function_call", "function_response", "executable_code", "code_execution_result"),
    *("thought_signature", "video_metadata", "media_resolution", "part_metadata", "tool_call", "tool_response"),
)
_INNER_KEYS = ("mime_type", "file_uri", "display_name", "partial_args", "will_continue", "start_offset", "end_offset")


def from_gemini(contents: Iterable[Mapping[str, Any]], *, system: Any = None) -> list[Message]:
    """Convert each content to a `Message`, in order, with new ids and without timestamps. `system` (a content, a part
    or text) becomes the first message.

    Raises InvalidMessageError, with the index, for an item that is not a content.
    """
    format_ = _Gemini()
    out = format_.from_(contents, role=False)
    return out if system is None else [format_.read_system(system), *out]


def to_gemini(
    messages: Iterable[Message], *, shape: _notes.Shape = "valid", on_loss: OnLoss | None = None
) -> list[dict[str, Any]]:
    """Convert to contents, without system messages: pass these with `to_gemini_system`.

    `on_loss` is called with each `Loss`; without it a warning is logged. `shape` is as in `to_openai_chat`.
    """
    return _Gemini().to(messages, shape, on_loss)


def to_gemini_system(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> dict[str, Any] | None:
    """The system instruction: one content with all system messages; None without system messages. `on_loss` as in
    `to_gemini`."""
    format_ = _Gemini()
    found = [m for m in messages if m.role == "system" and not format_.note(m).get("in_list")]
    with Losses(format_.form, on_loss) as losses:
        parts = [item for message in found for item in format_.write_parts(message, "valid", losses)]
    note = format_.note(found[0]) if len(found) == 1 else {}
    return _notes.rebuild({"parts": parts}, note) if found else None


class _Call(NamedTuple):
    """`has_id`: the model gave the call its id."""

    id: str
    name: str | None
    has_id: bool


#: The id of the call that a part makes or answers, and the note that restores the id that it has itself.
_Id = tuple[str | None, _notes.Json]


class _Gemini(Format):
    form = "gemini"
    request = ("role", "parts")
    metadata = ("finish_reason", "token_count", "index")
    roles: ClassVar[Mapping[str, Role]] = {"user": "user", "model": "assistant", "system": "system", "function": "tool"}

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}  # the name of the nearest earlier call, by id
        self._ids = _Ids()
        self._after_results = False  # whether the last content has only results of tools
        self._results: list[Any] | None = None  # its parts, if further results belong to it

    # Messages

    def read_system(self, system: Any) -> Message:
        if isinstance(system, str):
            return Message(role="system", parts=(TextPart(text=system),) if system else ())
        items = system if isinstance(system, list | tuple) else [system]
        parts = ({"text": item} if isinstance(item, str) else item for item in items)
        found = [item for _, item in _notes.as_mappings(parts, role=False)]
        raw = found[0] if len(found) == 1 and "parts" in found[0] else {"parts": found}
        message = Message(role="system", parts=self._read_parts(raw, 0))
        return _notes.noted_message(message, self.form, {}, raw, {"parts": list(raw.get("parts") or ())}, "content 0")

    def read_message(self, raw: Mapping[str, Any], index: int) -> Message:
        given = raw.get("role")
        role: Role = self.roles.get(given, "user") if isinstance(given, str) else "user"
        parts = self._read_parts(raw, index)
        if role in ("user", "tool"):
            role = "tool" if parts and all(isinstance(part, ToolResultPart) for part in parts) else "user"
        note: _notes.Json = {"in_list": True} if role == "system" else {}
        if self._after_results and role != "assistant" and parts and isinstance(parts[0], ToolResultPart):
            note["apart"] = True  # else it would become one content with the last one
        self._after_results = role == "tool"
        ours: _notes.Json = {"role": _NAMES[role], "parts": list(raw.get("parts") or ())}
        if given is not None and given != ours["role"]:
            note["role"] = ours["role"] = given
        return _notes.noted_message(Message(role=role, parts=parts), self.form, note, raw, ours, f"content {index}")

    def _read_parts(self, raw: Mapping[str, Any], index: int) -> tuple[Part, ...]:
        items = raw.get("parts") or ()
        if not isinstance(items, list | tuple):
            raise InvalidMessageError(f"content {index}: parts must be a list, not {type(items).__name__}")
        found = [_renamed(item, *_TO_SNAKE) if isinstance(item, Mapping) else {} for item in items]
        return tuple(map(self._read_part, items, found, self._ids.of(found)))

    def write_message(self, message: Message, shape: _notes.Shape, losses: Losses) -> list[_notes.Json]:
        self._tools |= {part.id: part.name for part in message.tool_uses}
        note = self.note(message)
        if message.role == "system" and not note.get("in_list"):
            return []
        parts = self.write_parts(message, shape, losses)
        if message.parts and not parts:
            return []  # all of its content was lost, and reported
        results, self._results = self._results, None
        if message.role != "assistant" and message.tool_results:
            if len(message.tool_results) == len(message.parts):
                self._results = parts
            if results is not None and type(message.parts[0]) is ToolResultPart and not note.get("apart"):
                results += parts  # the API wants the results of parallel calls in one content
                self._results = self._results and results
                return []
        lost = self.lost_role(note, shape)
        losses.add(message.id, None, lost)
        role = note["role"] if "role" in note and lost is None else _NAMES[message.role]
        return [_notes.rebuild({"role": role, "parts": parts}, note)]

    def is_empty(self, item: _notes.Json) -> bool:
        return not item["parts"]

    def write_parts(self, message: Message, shape: _notes.Shape, losses: Losses) -> list[Any]:
        out = []
        for index, part in enumerate(message.parts):
            item, lost = self.write(part, "original")
            note = self.note(part)
            item = self.hinted(part, (item, lost), shape)[0]
            if item is not None and not (shape == "request" and item == {"text": ""}):
                item = _on_bytes(item, str, _decoded) if note.get("bytes") else item
                out.append(_renamed(item, *_TO_CAMEL) if note.get("camel") else item)
            losses.add(message.id, index, lost)
        return out

    # Parts, with keys in snake case

    def _read_part(self, item: Any, snake: _notes.Json, id_: _Id) -> Part:
        if not isinstance(item, Mapping):
            return _notes.opaque(self.form, item)
        camel = snake != item
        raw = _on_bytes(snake, bytes, lambda data: base64.b64encode(data).decode())
        part = self._known(raw, id_)
        try:
            if part is None or (camel and _renamed(snake, *_TO_CAMEL) != item):  # it mixes both spellings of keys
                raise InvalidMessageError("a part that only Gemini has")
            note = _notes.remember(raw, self.render(part, "original")[0] or {})
        except InvalidMessageError:
            return _marks.marked(_notes.opaque(self.form, dict(item)), _pair_of(raw, id_))
        note |= {"bytes": True} if raw != snake else {}
        return _notes.noted(part, self.form, note | ({"camel": True} if camel else {}))

    def _known(self, raw: Mapping[str, Any], given: _Id) -> Part | None:
        id_, note = given
        note = dict(note)
        match raw:
            case {"thought": True, "text": str(text)}:
                signature = text_or_none(raw.get("thought_signature"))
                return ReasoningPart(text=text, signature=signature, provider_meta={self.form: {"thought": True}})
            case {"text": str(text)}:
                return TextPart(text=text)
            case {"function_call": {"name": str(name)} as call} if id_ is not None:
                args = call.get("args")
                if args is not None and not isinstance(args, dict):
                    return None
                note |= {"no_args": True} if args is None else {}
                # The signature of the first parallel call covers all of them: see values/reasoning_parts.py.
                signature = text_or_none(raw.get("thought_signature"))
                note |= {} if signature is None else {"signature": signature}
                return self.tool_use(id_, name, args or {}, note)
            case {"function_response": Mapping() as result} if id_ is not None:
                tool, response = result.get("name"), result.get("response")
                if not isinstance(tool, str | None) or not isinstance(response, dict | None):
                    return None
                note |= {"no_name": True} if tool is None else {}
                # By convention the response has one key, `output` or `error`. Any other response is the result itself.
                single = next(iter(response)) if response and list(response) in (["output"], ["error"]) else ""
                note |= {"no_response": True} if response is None else {}
                content = response[single] if response and single else response
                if single and isinstance(content, dict):
                    note["wrapped"] = True
                if isinstance(files := result.get("parts"), list) and files:
                    content, note = _with_files(content, files, note)
                return self.tool_result(id_, content, note, name=tool, is_error=single == "error")
            case {"inline_data": {"data": str(data)} as blob}:
                mime = text_or_none(blob.get("mime_type"))
                meta = _notes.with_note(self.form, {"base64": style} if (style := base64_style(data)) else {})
                return _attachment(data_url(mime or UNKNOWN_TYPE, standard_base64(data)), mime, blob, meta)
            case {"file_data": {"file_uri": str(uri)} as file}:
                return _attachment(uri, text_or_none(file.get("mime_type")), file, {self.form: {"file": True}})
        return None

    def text(self, part: TextPart, shape: _notes.Shape) -> _notes.Rendered:
        return {"text": part.text}, None

    def call(self, part: ToolUsePart, shape: _notes.Shape) -> _notes.Rendered:
        note = self.note(part)
        value, lost = as_object(part.input, own=bool(note.get("parsed")))
        call = {} if note.get("no_id") else {"id": part.id}
        args = {"args": value} if value or not note.get("no_args") else {}
        signed = {"thought_signature": note["signature"]} if note.get("signature") else {}
        return {"function_call": {**call, "name": part.name, **args}, **signed}, lost

    def reasoning(self, part: ReasoningPart, shape: _notes.Shape) -> _notes.Rendered:
        out: _notes.Json = {"text": part.text, "thought": True}
        if part.signature is None:
            return out, None
        if self.is_foreign(part):
            if not part.text:
                return None, "reasoning that only another provider can decrypt"
            return out, "the signature of another provider"
        if not self.is_own(part) and not _is_base64(part.signature):
            return out, "a signature that is not base64"
        return {**out, "thought_signature": part.signature}, None

    def result(self, part: ToolResultPart, shape: _notes.Shape) -> _notes.Rendered:
        note = self.note(part)
        content, lost = _notes.value_of(part.content, note), None
        name = part.name if part.name is not None else self._tools.get(part.tool_use_id)
        if name is None and not note.get("no_name"):
            name, lost = part.tool_use_id, "the name of the tool (its call is missing; the id is used instead)"
        files: list[Any] = []
        if isinstance(content, list) and any(map(_is_file, content)):
            files = [block for block in content if _is_file(block)]
            content = _response(content, as_json=note.get("json", False))
        elif (found := parts_of(content)) is not None and any(isinstance(one, AttachmentPart) for one in found):
            texts = (file_hint(one) if isinstance(one, AttachmentPart) else one.text for one in found)  # type: ignore[union-attr]
            content = [{"type": "text", "text": text} for text in texts]
            lost = "files in a tool result"
        elif not self.is_own(part) and any(name in (part.provider_meta or {}) for name in _notes.FORMS):
            content, media = readable(content) if not isinstance(content, str) else (content, [])
            lost = "files in a tool result" if media else lost
        wrapped = part.is_error or not isinstance(content, dict) or list(content) in (["output"], ["error"])
        wrapped = wrapped or bool(note.get("wrapped"))
        response = {"error" if part.is_error else "output": content} if wrapped else content
        response = None if content is None and note.get("no_response") else response
        id_: _notes.Json = {} if note.get("no_id") else {"id": note.get("id", part.tool_use_id)}
        named = {} if part.name is None and note.get("no_name") else {"name": name}
        held = {"parts": files} if files else {}
        return {"function_response": {**id_, **named, "response": response, **held}}, lost

    def file(self, part: AttachmentPart, shape: _notes.Shape) -> _notes.Rendered:
        url, own = part.reference, self.is_own(part)
        mime, data = split_data_url(url if own or url is None else accepted_data_url(url))
        # Just one of Google's two APIs accepts a display name. It is restored if the original had it, but never added.
        if data is not None and not self.note(part).get("file"):
            if not own and not _is_base64(data):
                return None, "inline content that is not base64"
            style = self.note(part).get("base64", "")
            data = styled_base64(data, style)
            kind = part.mime_type if mime == UNKNOWN_TYPE else mime
            return {"inline_data": {**({} if kind is None else {"mime_type": kind}), "data": data}}, None
        if url is None or not (own or re.match(r"(https?|gs)://", url)):
            return None, NOT_USABLE
        guesses = () if own else (part.name or "", url.partition("?")[0])
        kind = part.mime_type or next(filter(None, (mimetypes.guess_type(guess)[0] for guess in guesses)), None)
        lost = None
        if not own and part.modality in _MODALITIES and part.modality != _modality(kind):
            lost = f"the modality {part.modality}: the MIME type of the file does not say it"
        return {"file_data": {**({} if kind is None else {"mime_type": kind}), "file_uri": url}}, lost


class _Ids:
    """The ids of the calls and responses of one conversion."""

    def __init__(self) -> None:
        self._open: list[_Call] = []  # without a response; those of the last turn of the model first
        self._last = 0  # the number of these, until a content without calls follows

    def of(self, parts: list[_notes.Json]) -> list[_Id]:
        """For each part of a content: the id of the call that it makes or answers, and the note that restores its own.

        A call without an id gets its name, and its number among those of this name in the content, as id. So does a
        response without a call, so that they match even when converted separately.
        """
        found: list[_Id] = []
        numbers: Counter[tuple[str, Any]] = Counter()
        responses = [one for part in parts if isinstance(one := part.get("function_response"), Mapping)]
        named = {_given_id(one) for one in responses}
        calls: list[_Call] = []
        for part in parts:
            id_, note = None, _notes.Json()
            for kind in ("function_call", "function_response"):
                if not isinstance(item := part.get(kind), Mapping):
                    continue
                id_, name = _given_id(item), text_or_none(item.get("name"))
                numbers[kind, name] += 1
                call = self._answered(id_, name, named) if kind == "function_response" else None
                if call is not None and call.id != id_:
                    note = {"no_id": True} if id_ is None else {"id": id_}
                    id_ = call.id
                elif id_ is None and name is not None:
                    id_, note = _made_id(name, numbers[kind, name]), {"no_id": True}
                if kind == "function_call" and id_ is not None:
                    calls.append(_Call(id_, name, not note))
            found.append((id_, note))
        self._open[self._last : self._last] = calls  # parallel calls may come in several contents
        self._last = self._last + len(calls) if calls else 0
        return found

    def _answered(self, id_: str | None, name: str | None, others: Collection[str | None]) -> _Call | None:
        """The call that a response answers: the one with its id, else the first one of its name in the last turn with
        such a call. `others` are the ids of all responses of its content."""
        found = [call for call in self._open if call.id == id_] or [
            call
            for call in self._open
            if call.name == name and (call.id not in others if id_ is None else not call.has_id)
        ]
        if not found:
            return None
        self._open.remove(found[0])
        return found[0]


def _given_id(item: Mapping[str, Any]) -> str | None:
    return text_or_none(item.get("id")) or None


def _made_id(name: str, number: int) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "call"
    return plain if number == 1 else f"{plain}-{number}"


def _is_file(block: Any) -> bool:
    """Whether this is a file in Gemini's own form, as its function responses have them."""
    return isinstance(block, Mapping) and "type" not in block and file_of(block) is not None


def _with_files(content: Any, files: list[Any], note: _notes.Json) -> tuple[list[Any], _notes.Json]:
    """The content of a result with files: a text block with the response, and the files."""
    if not content and isinstance(content, dict):
        return files, note
    is_text = isinstance(content, str)
    text = content if is_text else json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return [{"type": "text", "text": text}, *files], note if is_text else {**note, "json": True}


def _response(content: list[Any], *, as_json: bool) -> Any:
    """The response of a result with files, which `_with_files` made its content of."""
    found = parts_of([block for block in content if not _is_file(block)])
    if found is None:
        return {}
    text = "\n".join(one.text for one in found if isinstance(one, TextPart))
    return parsed(text) if as_json else text


def _pair_of(raw: Mapping[str, Any], given: _Id) -> _marks.Pair:
    """The pair of an opaque part."""
    if given[0] is None:
        return _marks.pair_of(raw)
    return {"opens" if "function_call" in raw else "answers": given[0]}


def _attachment(url: str, mime: str | None, raw: Mapping[str, Any], meta: _notes.Json | None = None) -> AttachmentPart:
    name = text_or_none(raw.get("display_name"))
    return AttachmentPart(modality=_modality(mime), name=name, mime_type=mime, reference=url, provider_meta=meta)


def _modality(mime: str | None) -> Modality:
    return _MODALITIES.get((mime or "").partition("/")[0], "document")


# Bytes, and the two spellings of keys: `function_call` in Python, `functionCall` on the wire


def _decoded(text: str) -> bytes:
    return base64.b64decode(standard_base64(text), validate=True)


def _is_base64(text: str) -> bool:
    try:
        raw = _decoded(text)
    except (binascii.Error, ValueError):
        return False
    # The last letter may contain unused bits, which the types of the SDK reject.
    return base64.b64encode(raw[len(raw) // 3 * 3 :]).decode() in ("", standard_base64(text)[-4:])


def _on_bytes(item: _notes.Json, kind: type, convert: Callable[[Any], Any]) -> _notes.Json:
    """`item` with the values that can be bytes converted, where they are of this kind."""
    out = dict(item)
    result = out.get("function_response")
    if isinstance(result, Mapping) and isinstance(result.get("parts"), list):
        files = [_on_bytes(one, kind, convert) if isinstance(one, dict) else one for one in result["parts"]]
        out["function_response"] = {**result, "parts": files}
    if isinstance(out.get("thought_signature"), kind):
        out["thought_signature"] = convert(out["thought_signature"])
    blob = out.get("inline_data")
    if isinstance(blob, Mapping) and isinstance(blob.get("data"), kind):
        out["inline_data"] = {**blob, "data": convert(blob["data"])}
    return out


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(map(str.capitalize, rest))


_TO_CAMEL = {key: _camel(key) for key in _PART_KEYS}, {key: _camel(key) for key in _INNER_KEYS}
_TO_SNAKE = {_camel(key): key for key in _PART_KEYS}, {_camel(key): key for key in _INNER_KEYS}


def _renamed(part: Mapping[str, Any], names: Mapping[str, str], inner: Mapping[str, str]) -> _notes.Json:
    out: _notes.Json = {}
    for key, value in part.items():
        if isinstance(value, Mapping) and (key in names or key in names.values()):
            value = {inner.get(name, name): item for name, item in value.items()}
        out[names.get(key, key)] = value
    return out
