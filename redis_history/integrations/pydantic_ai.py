"""A message history for Pydantic AI, stored in one conversation.

history = PydanticAIHistory("c1", store)
result = await agent.run("Hi", message_history=await history.load())
await history.append(result.new_messages())
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from redis_history import (
    AsyncHistoryStore,
    AttachmentPart,
    HistoryStore,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.errors import InvalidMessageError
from redis_history.formats import Loss, OnLoss
from redis_history.integrations._extras import checked_id, missing
from redis_history.model.pairs import without_lone_results

try:
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
except ImportError as error:
    raise missing("pydantic-ai", error) from error

__all__ = ["PydanticAIHistory", "from_pydantic_ai", "to_pydantic_ai"]

_FORM = "pydantic_ai"
_BATCH = 500
#: From Pydantic AI's provider names to the format whose provider signed the thinking.
_SIGNED_BY = {"anthropic": "anthropic", "openai": "openai_responses", "mistral": "mistral", "google": "gemini"}
_SPOKEN = ("text", "thinking", "tool-call")
_KINDS: dict[str, Role] = {"system-prompt": "system", "user-prompt": "user"}


class PydanticAIHistory:
    """Loads and appends the messages of a conversation for Pydantic AI. The caller must close the store."""

    def __init__(self, conversation_id: str, store: AsyncHistoryStore, *, on_loss: OnLoss | None = None) -> None:
        self.conversation_id = checked_id(conversation_id)
        self._store = store
        self._on_loss = on_loss

    async def load(self, *, limit: int | None = None) -> list[ModelMessage]:
        """The messages for `message_history`. `limit`: read only that number of the newest stored messages, without
        tool results whose call is not among them."""
        return self._theirs(await self._store.get(self.conversation_id, limit=limit), limit)

    async def append(self, messages: Iterable[ModelMessage]) -> None:
        """Append the result of `result.new_messages()`, in atomic batches of 500 stored messages."""
        ours = from_pydantic_ai(messages)
        for at in range(0, len(ours), _BATCH):
            await self._store.append_many(self.conversation_id, ours[at : at + _BATCH])

    def load_from(self, store: HistoryStore, *, limit: int | None = None) -> list[ModelMessage]:
        """`load` for a synchronous store."""
        return self._theirs(store.get(self.conversation_id, limit=limit), limit)

    def _theirs(self, messages: list[Message], limit: int | None) -> list[ModelMessage]:
        return to_pydantic_ai(messages if limit is None else without_lone_results(messages), on_loss=self._on_loss)


def from_pydantic_ai(messages: Iterable[ModelMessage]) -> list[Message]:
    """Convert to messages. A request with parts of the system, the user and a tool becomes one message for each."""
    dumps = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return [message for dump in dumps for message in _ours(dump)]


def to_pydantic_ai(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[ModelMessage]:
    """Convert to Pydantic AI's messages. Its own messages are restored exactly. `on_loss` is called with each `Loss`:
    content of other frameworks that Pydantic AI cannot represent."""
    dumps: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # tool names by id, of the nearest earlier call
    for message in messages:
        names |= {part.id: part.name for part in message.tool_uses}
        note = message.provider_meta.get(_FORM)
        parts = list(_theirs(message, names, on_loss))
        if isinstance(note, dict) and note.get("inside") and dumps:
            dumps[-1]["parts"] += parts
        elif parts or not message.parts:
            kind = "response" if message.role == "assistant" else "request"
            around = note.get("around") if isinstance(note, dict) else None
            dumps.append({**(around or {"kind": kind}), "parts": parts})
    try:
        return ModelMessagesTypeAdapter.validate_python(dumps)
    except ValueError as error:
        raise InvalidMessageError(f"this version of Pydantic AI cannot read a stored message: {error}") from error


def _ours(dump: dict[str, Any]) -> Iterator[Message]:
    around = {key: value for key, value in dump.items() if key != "parts" and value is not None}
    note: dict[str, Any] = {"around": around}
    role: Role | None = None
    parts: list[Part] = []
    for raw in dump["parts"]:
        own: Role = "assistant" if dump["kind"] == "response" else _KINDS.get(raw["part_kind"], "tool")
        if raw["part_kind"] == "retry-prompt" and not raw.get("tool_name"):
            own = "user"
        if role not in (None, own):
            yield Message(role=role, parts=tuple(parts), provider_meta={_FORM: note})
            note, parts = {"inside": True}, []
        role = own
        parts += _parts(raw)
    empty: Role = "assistant" if dump["kind"] == "response" else "user"
    yield Message(role=role or empty, parts=tuple(parts), provider_meta={_FORM: note})


def _parts(raw: dict[str, Any]) -> Iterator[Part]:
    """The parts for one message part of Pydantic AI. The first part keeps the other fields, to restore the original."""
    rest = {key: value for key, value in raw.items() if value is not None and key not in ("content", "args")}
    meta = {_FORM: rest}
    content = raw.get("content")
    match raw["part_kind"]:
        case "system-prompt" | "text" | "user-prompt" if isinstance(content, str):
            yield TextPart(text=content, provider_meta=meta)
        case "user-prompt":
            meta[_FORM] = {**rest, "content": content}
            for index, item in enumerate(content or [""]):
                yield _item(item, meta if index == 0 else {_FORM: {"inside": True}})
        case "thinking" if isinstance(content, str):
            signature = raw.get("signature")
            owner = _SIGNED_BY.get(str(raw.get("provider_name")).partition("-")[0])
            marks = {owner: {"id": raw["id"]} if raw.get("id") else {"type": "thinking"}} if owner and signature else {}
            kept = {key: value for key, value in rest.items() if key != "signature"}
            yield ReasoningPart(text=content, signature=signature, provider_meta={_FORM: kept, **marks})
        case "tool-call":
            args = raw.get("args")
            if isinstance(args, str):
                rest["args"] = "text"
                args = _parsed(args)
            elif args is None:
                rest["args"] = "none"
            yield ToolUsePart(
                id=raw["tool_call_id"], name=raw["tool_name"], input={} if args is None else args, provider_meta=meta
            )
            if rest.get("args") == "text" and json.dumps(args) != raw["args"]:
                rest["args"] = {"text": raw["args"]}
        case "tool-return":
            yield ToolResultPart(
                tool_use_id=raw["tool_call_id"],
                content=content,
                is_error=raw.get("outcome", "success") != "success",
                name=raw["tool_name"],
                provider_meta=meta,
            )
        case "retry-prompt" if raw.get("tool_name"):
            yield ToolResultPart(
                tool_use_id=raw["tool_call_id"],
                content=content,
                is_error=True,
                name=raw["tool_name"],
                provider_meta=meta,
            )
        case _:
            yield UnknownPart(data={"type": f"{_FORM}/{raw['part_kind']}", "block": raw})


def _item(item: Any, meta: dict[str, Any]) -> Part:
    match item:
        case str():
            return TextPart(text=item, provider_meta=meta)
        case {"kind": "image-url" | "audio-url" | "video-url" | "document-url" as kind, "url": str(url)}:
            modality: Any = kind.removesuffix("-url")
            return AttachmentPart(
                modality=modality, reference=url, mime_type=item.get("media_type"), provider_meta=meta
            )
        case {"kind": "binary", "data": str(data), "media_type": str(mime)}:
            plain = data.replace("-", "+").replace("_", "/")
            found: Any = mime.partition("/")[0]
            return AttachmentPart(
                modality=found if found in ("image", "audio", "video") else "document",
                reference=f"data:{mime};base64,{plain}",
                mime_type=mime,
                provider_meta=meta,
            )
    return TextPart(text="", provider_meta=meta)  # the first part keeps the original


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _theirs(message: Message, names: Mapping[str, str], on_loss: OnLoss | None) -> Iterator[dict[str, Any]]:
    spoken = message.role == "assistant"
    for index, part in enumerate(message.parts):
        if isinstance(part, UnknownPart) and part.type.startswith(f"{_FORM}/"):
            yield part.data["block"]
            continue
        note = (getattr(part, "provider_meta", None) or {}).get(_FORM)
        if isinstance(note, dict) and note.get("inside"):
            continue
        found = _again(part, note) if isinstance(note, dict) else _anew(part, message.role, names)
        if found is not None and (found["part_kind"] in _SPOKEN) == spoken:
            yield found
        elif on_loss is not None:
            on_loss(Loss(message.id, index, f"a {type(part).__name__.removesuffix('Part').lower()} part"))


def _again(part: Part, note: dict[str, Any]) -> dict[str, Any] | None:
    """The original part of Pydantic AI, with the current content of `part`."""
    rest = {key: value for key, value in note.items() if key != "args"}
    match part:
        case TextPart() if "content" not in note:
            return {**rest, "content": part.text}
        case TextPart() | AttachmentPart():
            return rest
        case ReasoningPart():
            return {**rest, "content": part.text, "signature": part.signature}
        case ToolUsePart():
            return {**rest, "tool_name": part.name, "tool_call_id": part.id, "args": _args(part, note.get("args"))}
        case ToolResultPart():
            return {**rest, "content": part.content}
    return None


def _args(part: ToolUsePart, form: Any) -> Any:
    if form == "none" and not part.input:
        return None
    if isinstance(form, dict) and _parsed(form["text"]) == part.input:
        return form["text"]
    if form is not None or not isinstance(part.input, dict):
        return part.input if isinstance(part.input, str) else json.dumps(part.input)
    return part.input


def _anew(part: Part, role: Role, names: Mapping[str, str]) -> dict[str, Any] | None:
    """The part of Pydantic AI for a part of another framework."""
    match part:
        case TextPart():
            kind = {"assistant": "text", "system": "system-prompt"}.get(role, "user-prompt")
            return {"part_kind": kind, "content": part.text}
        case ReasoningPart():
            return {"part_kind": "thinking", "content": part.text}
        case ToolUsePart():
            args = part.input if isinstance(part.input, dict | str) else json.dumps(part.input)
            return {"part_kind": "tool-call", "tool_name": part.name, "args": args, "tool_call_id": part.id}
        case ToolResultPart():
            id_ = part.tool_use_id
            name = part.name or names.get(id_) or "unknown"
            outcome = {"outcome": "failed"} if part.is_error else {}
            told = {"tool_name": name, "content": part.content, "tool_call_id": id_}
            return {"part_kind": "tool-return", **told, **outcome}
        case AttachmentPart() if part.reference is not None and part.reference.startswith(("http://", "https://")):
            kind = part.modality if part.modality in ("image", "audio", "video") else "document"
            item = {"kind": f"{kind}-url", "url": part.reference}
            if part.mime_type:
                item["media_type"] = part.mime_type
            return {"part_kind": "user-prompt", "content": [item]}
    return None
