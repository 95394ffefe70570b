"""A chat store for LlamaIndex, on top of a HistoryStore."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from redis_history import (
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
from redis_history.formats import Loss, OnLoss
from redis_history.integrations._extras import missing

try:
    from llama_index.core.base.llms.types import ChatMessage, MessageRole
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.storage.chat_store.base import BaseChatStore
except ImportError as error:
    raise missing("llama-index", error) from error

__all__ = ["LlamaIndexChatStore"]

_FORM = "llama_index"
_PAGE = 200
_BATCH = 500
_ROLES: dict[str, Role] = {
    "user": "user",
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}
_FILES = {"image": ("image", "image_mimetype"), "audio": ("audio", "format"), "video": ("video", "video_mimetype")}


class LlamaIndexChatStore(BaseChatStore):
    """A chat store whose keys are conversation ids. Asynchronous methods use the store in threads. The caller must
    close the store.

    `on_loss` is called with each `Loss`: content of other frameworks' messages that a ChatMessage cannot represent.
    """

    _store: HistoryStore = PrivateAttr()
    _on_loss: OnLoss | None = PrivateAttr()

    def __init__(self, store: HistoryStore, *, on_loss: OnLoss | None = None) -> None:
        super().__init__()
        self._store = store
        self._on_loss = on_loss

    @classmethod
    def class_name(cls) -> str:
        return "LlamaIndexChatStore"

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replace all messages. Up to 1,000 messages are one atomic change."""
        self._store.restore(key, [_ours(message) for message in messages])

    def get_messages(self, key: str) -> list[ChatMessage]:
        """All messages, oldest first; an empty list for an unknown key."""
        return [theirs for message in self._store.get(key) for theirs in _theirs(message, self._on_loss)]

    def add_message(self, key: str, message: ChatMessage) -> None:
        """Append a message."""
        self._store.append(key, _ours(message))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete the conversation and return its messages; None if it does not exist."""
        found = self.get_messages(key)
        return found if self._store.delete_conversation(key) else None

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Remove and return the message at index `idx`, from 0; None if there is no such message."""
        messages = self._store.get(key)
        if not 0 <= idx < len(messages):
            return None
        return self._removed(key, messages[idx])

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Remove and return the newest message; None if there is none."""
        newest = self._store.get(key, limit=1)
        return self._removed(key, newest[0]) if newest else None

    def get_keys(self) -> list[str]:
        """The ids of all conversations that have messages."""
        return list(self._keys())

    def _keys(self) -> Iterator[str]:
        seen: set[str] = set()
        while page := self._store.list_conversations(limit=_PAGE, offset=len(seen)):
            new = [one for one in page if one.conversation_id not in seen]
            seen.update(one.conversation_id for one in new)
            yield from (one.conversation_id for one in new if one.message_count)
            if not new:
                return

    def _removed(self, key: str, message: Message) -> ChatMessage | None:
        if not self._store.delete_messages(key, [message.id]):
            return None  # another caller removed it first
        return next(iter(_theirs(message, self._on_loss)), None)


def _ours(theirs: ChatMessage) -> Message:
    dump = theirs.model_dump(mode="json")
    parts = tuple(_parts(dump))
    message = Message(role=_ROLES.get(str(dump["role"]), "user"), parts=parts)
    # If the parts cannot restore the original exactly, keep the original as well.
    if [again.model_dump(mode="json") for again in _built(message, None)] == [dump]:
        return message
    return Message(role=message.role, parts=parts, provider_meta={_FORM: dump})


def _theirs(message: Message, on_loss: OnLoss | None) -> Sequence[ChatMessage]:
    dump = message.provider_meta.get(_FORM)
    if isinstance(dump, dict) and tuple(_parts(dump)) == message.parts:
        return [ChatMessage.model_validate(dump)]
    return _built(message, on_loss)  # from another framework, or edited


def _parts(dump: dict[str, Any]) -> Iterator[Part]:
    kwargs = dump.get("additional_kwargs") or {}
    blocks = dump.get("blocks") or []
    if (call_id := kwargs.get("tool_call_id")) and _ROLES.get(str(dump["role"])) == "tool":
        texts = [block.get("text", "") for block in blocks if block.get("block_type") == "text"]
        name = kwargs.get("name")
        yield ToolResultPart(
            tool_use_id=str(call_id),
            content="\n".join(texts),
            name=name if isinstance(name, str) else None,
            is_error=kwargs.get("is_error") is True,
        )
        blocks = [block for block in blocks if block.get("block_type") != "text"]
    yield from map(_part, blocks)
    for call in kwargs.get("tool_calls") or ():
        match call:
            case {"id": str(id_), "function": {"name": str(name), "arguments": arguments}}:
                yield ToolUsePart(id=id_, name=name, input=_arguments(arguments))


def _part(block: dict[str, Any]) -> Part:
    match block:
        case {"block_type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"block_type": "thinking"}:
            return ReasoningPart(text=block.get("content") or "")
        case {"block_type": "tool_call", "tool_name": str(name)}:
            return ToolUsePart(
                id=str(block.get("tool_call_id") or ""), name=name, input=_arguments(block.get("tool_kwargs"))
            )
        case {"block_type": "image" | "audio" | "video" as kind, "url": str(url)}:
            mime = block.get(_FILES[kind][1])
            modality: Any = kind
            return AttachmentPart(
                modality=modality, reference=url, mime_type=mime if isinstance(mime, str) and "/" in mime else None
            )
        case {"block_type": "document", "url": str(url)}:
            mime, title = block.get("document_mimetype"), block.get("title")
            return AttachmentPart(modality="document", reference=url, name=title, mime_type=mime)
    return UnknownPart(data={"type": f"{_FORM}/{block.get('block_type')}", "block": block})


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _built(message: Message, on_loss: OnLoss | None) -> list[ChatMessage]:
    """Build ChatMessages from the parts. Each tool result gets its own message."""
    out: list[ChatMessage] = []
    blocks: list[dict[str, Any]] = []
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolResultPart):
            kwargs: dict[str, Any] = {"tool_call_id": part.tool_use_id}
            kwargs |= {} if part.name is None else {"name": part.name}
            kwargs |= {"is_error": True} if part.is_error else {}
            text = part.content if isinstance(part.content, str) else json.dumps(part.content, ensure_ascii=False)
            out.append(ChatMessage(role=MessageRole.TOOL, content=text, additional_kwargs=kwargs))
        elif (block := _block(part)) is not None:
            blocks.append(block)
        elif on_loss is not None:
            on_loss(Loss(message.id, index, f"a {type(part).__name__.removesuffix('Part').lower()} part"))
    if blocks or not message.parts:
        role = "user" if message.role == "tool" else message.role
        out.append(ChatMessage.model_validate({"role": role, "blocks": blocks}))
    return out


def _block(part: Part) -> dict[str, Any] | None:
    match part:
        case TextPart():
            return {"block_type": "text", "text": part.text}
        case ReasoningPart():
            return {"block_type": "thinking", "content": part.text}
        case ToolUsePart():
            kwargs = part.input if isinstance(part.input, dict | str) else json.dumps(part.input)
            return {"block_type": "tool_call", "tool_call_id": part.id, "tool_name": part.name, "tool_kwargs": kwargs}
        case UnknownPart() if part.type.startswith(f"{_FORM}/"):
            block: dict[str, Any] = part.data["block"]
            return block
        case AttachmentPart() if part.reference is not None and "://" in part.reference:
            kind = part.modality if part.modality in _FILES else "document"
            if kind == "document":
                return {
                    "block_type": kind, "url": part.reference, "title": part.name, "document_mimetype": part.mime_type
                }  # fmt: skip
            return {"block_type": kind, "url": part.reference}
    return None
