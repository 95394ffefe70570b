"""Chat stores for LlamaIndex, on top of a HistoryStore: one for `Memory`, one for the older chat memories."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Unpack

from msgspec.structs import replace

from redis_history import (
    AsyncHistoryStore,
    AttachmentPart,
    HistoryStore,
    Message,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.agents.tools import SearchOptions
from redis_history.errors import MessageNotFoundError, RevisionConflictError
from redis_history.formats import OnLoss
from redis_history.formats._blocks import from_template, templated
from redis_history.formats._content import parsed, split_data_url
from redis_history.formats._losses import Losses
from redis_history.formats._notes import foreign_block, note_of, opaque, plain_text, quoted, stored_value
from redis_history.formats._pairing import pieces_of
from redis_history.formats._usage import usage_of
from redis_history.integrations import _extras
from redis_history.integrations._live import LiveReplies
from redis_history.types import ConversationSearchTool, Part, Role
from redis_history.values._validation import check_store, missing

try:
    from llama_index.core.agent.workflow import AgentOutput, AgentStream
    from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.storage.chat_store.base import BaseChatStore
    from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
    from llama_index.core.tools import FunctionTool
    from llama_index.core.workflow import Event
except ImportError as error:
    raise missing("llama-index", error) from error

__all__ = ["LlamaIndexChatStore", "LlamaIndexMemoryStore", "search_tool"]

_FORM = "llama_index"
_ARCHIVED, _CUT = "llama_index_archived", "llama_index_cut"  # keys of provider_meta; cut: some parts were deleted
_ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "assistant": "assistant", "chatbot": "assistant", "model": "assistant",
    "tool": "tool", "function": "tool",
}  # fmt: skip
_PLAIN: dict[MessageRole, Role] = {
    MessageRole.USER: "user", MessageRole.SYSTEM: "system", MessageRole.ASSISTANT: "assistant"
}  # fmt: skip
_GIVEN = {role: given for given, role in _PLAIN.items()}
#: The kinds of files, and the fields with their types.
_FILES = {"image": "image_mimetype", "audio": "format", "video": "video_mimetype"}


class LlamaIndexChatStore(BaseChatStore):
    """A chat store whose keys are conversation ids. Asynchronous methods use the store in threads. The caller must
    close the store.

    `on_loss` is called with each `Loss`: content of other frameworks' messages that a ChatMessage cannot represent.
    Messages may also be JSON dicts. Raises InvalidMessageError for other values.
    """

    _store: HistoryStore = PrivateAttr()
    _on_loss: OnLoss | None = PrivateAttr()
    _turns: _extras.Turns = PrivateAttr()

    def __init__(self, store: HistoryStore, *, on_loss: OnLoss | None = None) -> None:
        super().__init__()
        check_store(store, type(self).__name__, HistoryStore)
        self._store = store
        self._on_loss = on_loss
        self._turns = _extras.Turns(_FORM, on_loss)

    @classmethod
    def class_name(cls) -> str:
        return "LlamaIndexChatStore"

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replace all messages. Up to 1,000 messages and 4 MB are one atomic change. Stored messages keep what a
        ChatMessage does not have: id, time, author, pin and other metadata."""
        _set(self._store, key, messages, MessageStatus.ACTIVE, self._turns)

    def get_messages(self, key: str) -> list[ChatMessage]:
        """All messages, oldest first, without live replies that are being written."""
        return _all(_extras.ended(self._store.get(key)), self._on_loss)

    def add_message(self, key: str, message: ChatMessage) -> None:
        self._store.execute(self._turns.append(key, list(map(from_llama_index, _listed([message])))))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        found = self.get_messages(key)
        return found if self._store.delete_conversation(key) else None

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        return _delete(self._store, key, idx, self._on_loss) if idx >= 0 else None

    def delete_last_message(self, key: str) -> ChatMessage | None:
        removed = _delete(self._store, key, -1, self._on_loss, limit=1)
        return removed or _delete(self._store, key, -1, self._on_loss)  # the newest one is none here

    def get_keys(self) -> list[str]:
        return _keys(self._store)


class LlamaIndexMemoryStore(AsyncDBChatStore):
    """The store of a LlamaIndex `Memory`: pass it as `chat_store` of `Memory.from_defaults`.

    Keys are conversation ids. Methods use the store in threads, so that they work in any event loop. The caller must
    close the store. Messages that `Memory` archives stay in the conversation, with a mark in `provider_meta`.
    `on_loss` is called with each `Loss`; without it a warning is logged. Messages may also be JSON dicts. Raises
    InvalidMessageError for other values.
    """

    _store: HistoryStore = PrivateAttr()
    _on_loss: OnLoss | None = PrivateAttr()
    _turns: _extras.Turns = PrivateAttr()
    _live: LiveReplies = PrivateAttr()

    def __init__(self, store: HistoryStore, *, on_loss: OnLoss | None = None) -> None:
        super().__init__()
        check_store(store, type(self).__name__, HistoryStore)
        self._store = store
        self._on_loss = on_loss
        self._turns = _extras.Turns(_FORM, on_loss)
        self._live = LiveReplies(store, self._turns)

    @classmethod
    def class_name(cls) -> str:
        return "LlamaIndexMemoryStore"

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """The messages of this status (None: of any), oldest first, without live replies that are being written: at
        most `limit`, after the first `offset`."""
        found = await _extras.in_thread(self._read, key, status)
        start = offset or 0
        return _all(found, self._on_loss)[start : None if limit is None else start + limit]

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        return len(await self.get_messages(key, status))

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Append messages in this order, in atomic changes of up to 500 messages and 4 MB."""
        messages = _listed(messages)
        given = [status, *messages]
        converted = self._turns.unfinished(key, given)
        if converted is None:
            converted = await self._live.settle(key, _with_status(messages, status))
        await _extras.asynchronous(self._store, type(self).__name__).execute(self._turns.append(key, converted, given))

    async def live(self, key: str, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        """Yields the events of an agent's `handler.stream_events()`, and stores what the model writes as it comes, with
        `store.stream`. The whole messages of the agent's memory then take its place."""
        async with self._live.stream(key) as stream:
            async for event in events:
                if isinstance(event, AgentStream):
                    await stream.write(event.delta)
                elif isinstance(event, AgentOutput):
                    stream.end()
                yield event

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace all messages. Up to 1,000 messages and 4 MB are one atomic change. Stored messages keep what a
        ChatMessage does not have: id, time, author, pin and other metadata."""
        await _extras.in_thread(_set, self._store, key, messages, status, self._turns)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Remove and return the message at index `idx` of all messages, from 0; None if there is no such message."""
        if idx < 0:
            return None
        return await _extras.in_thread(_delete, self._store, key, idx, self._on_loss)

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete the messages with this status. `status=None` deletes the conversation."""
        if status is None:
            await _extras.in_thread(self._store.delete_conversation, key)
        elif found := [one.id for one in await _extras.in_thread(self._store.get, key) if _status(one) == status]:
            await _extras.in_thread(self._store.delete_messages, key, found)

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest `n` active messages and return them. Concurrent calls return different messages. Tool
        results that another framework stored in one message are taken together."""
        return await _extras.in_thread(self._take_oldest, key, n, archive=False)

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest `n` active messages and return them, like `delete_oldest_messages`."""
        return await _extras.in_thread(self._take_oldest, key, n, archive=True)

    async def get_keys(self) -> list[str]:
        return await _extras.in_thread(_keys, self._store)

    def _read(self, key: str, status: MessageStatus | None) -> list[Message]:
        # An agent reads its memory while its reply is written.
        return [one for one in _extras.ended(self._store.get(key)) if status is None or _status(one) == status]

    def _take_oldest(self, key: str, n: int, *, archive: bool) -> list[ChatMessage]:
        taken: list[ChatMessage] = []
        while len(taken) < n:
            record = self._store.get_conversation(key)
            active = self._read(key, MessageStatus.ACTIVE)
            if record is None or not active:
                break
            # With each change the revision grows by one.
            for revision, message in enumerate(active, record.revision):
                if len(taken) >= n:
                    break
                try:
                    if archive:
                        self._store.update_message(key, _marked(message), expected_revision=revision)
                    else:
                        self._store.delete_messages(key, [message.id], expected_revision=revision)
                except (RevisionConflictError, MessageNotFoundError):
                    break  # another writer was faster: read again
                taken += _to_llama_index(message, self._on_loss)
        return taken


def search_tool(
    store: HistoryStore | AsyncHistoryStore, conversation_id: str, **options: Unpack[SearchOptions]
) -> FunctionTool:
    """The tool `conversation_search` of `conversation_search_tool`, as a tool of LlamaIndex.

    The options and errors are those of `conversation_search_tool`.
    """
    tool, run = _extras.search_runner(store, conversation_id, **options)

    def search(query: str, limit: int = 5) -> str:
        return str(tool(query, limit))

    async def search_async(query: str, limit: int = 5) -> str:
        return await run({"query": query, "limit": limit})

    is_sync = isinstance(tool, ConversationSearchTool)
    return FunctionTool.from_defaults(
        fn=search if is_sync else None, async_fn=search_async, name=tool.name, description=tool.description
    )


def _set(
    store: HistoryStore, key: str, messages: Sequence[ChatMessage], status: MessageStatus, turns: _extras.Turns
) -> None:
    messages = _listed(messages)
    given = [message.model_dump_json() for message in messages]

    def merge(stored: list[Message]) -> list[Message]:
        before = [one for one in _extras.ended(stored) if _status(one) == status]
        known = [(one, found[0]) for one in before if len(found := _to_llama_index(one, lambda loss: None)) == 1]
        new = _with_status(messages, status)
        matcher = SequenceMatcher(None, [one.model_dump_json() for _, one in known], given, autojunk=False)
        for old, at, size in matcher.get_matching_blocks():
            new[at : at + size] = [one for one, _ in known[old : old + size]]
        return new

    store.execute(_extras.replace_all(key, merge, turns))


def _delete(
    store: HistoryStore, key: str, idx: int, on_loss: OnLoss | None, *, limit: int | None = None
) -> ChatMessage | None:
    """Remove and return a message; None if there is no such message. If a stored message appears as several messages
    here, only the matching part is removed."""
    while True:
        record = store.get_conversation(key)
        found = [(one, _to_llama_index(one, lambda loss: None)) for one in _extras.ended(store.get(key, limit=limit))]
        places = [(one, at) for one, converted in found for at in range(len(converted))]
        if record is None or not -len(places) <= idx < len(places):
            return None
        message, at = places[idx]
        parts = _extras.with_shares(message, lambda one: _to_llama_index(one, lambda loss: None), {at: ()})
        try:
            if parts:
                kept = _marked(replace(message, parts=parts), _CUT)
                store.update_message(key, kept, expected_revision=record.revision)
            else:
                store.delete_messages(key, [message.id], expected_revision=record.revision)
        except (RevisionConflictError, MessageNotFoundError):
            continue  # another writer was faster: read again
        return _to_llama_index(message, on_loss)[at]


def _keys(store: HistoryStore) -> list[str]:
    return [one.conversation_id for one in store.iter_conversations() if one.message_count]


def _status(message: Message) -> MessageStatus:
    return MessageStatus.ARCHIVED if _ARCHIVED in message.provider_meta else MessageStatus.ACTIVE


def _marked(message: Message, key: str = _ARCHIVED) -> Message:
    # A repeated identical update succeeds at any revision. So two calls must write different messages.
    return replace(message, provider_meta={**message.provider_meta, key: {"by": uuid.uuid4().hex}})


def _with_status(messages: Sequence[ChatMessage], status: MessageStatus) -> list[Message]:
    converted = map(from_llama_index, messages)
    return list(map(_marked, converted) if status == MessageStatus.ARCHIVED else converted)


def _listed(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return _extras.as_messages(messages, ChatMessage, lambda raw: ChatMessage(**raw), "a ChatMessage")


def from_llama_index(given: ChatMessage) -> Message:
    """A ChatMessage as a message of this package."""
    role = _PLAIN.get(given.role)
    if role is not None and type(given) is ChatMessage and len(given.blocks) == 1 and not given.additional_kwargs:
        [block] = given.blocks
        if type(block) is TextBlock:  # most messages, in a fraction of the time
            return Message(role=role, parts=(TextPart(text=block.text),))
    dump = given.model_dump(mode="json")
    dump["additional_kwargs"] = _extras.plain_or(given.additional_kwargs, dump["additional_kwargs"])
    for block, dumped in zip(given.blocks, dump["blocks"], strict=True):
        if isinstance(block, ToolCallBlock):
            dumped["tool_kwargs"] = _extras.plain_or(block.tool_kwargs, dumped["tool_kwargs"])
    parts = tuple(_parts(dump))
    kwargs = dump["additional_kwargs"]
    usage = usage_of(kwargs.get("usage") or kwargs) if isinstance(kwargs, dict) else None
    message = Message(role=_ROLES.get(str(dump["role"]), "user"), parts=parts, usage=usage)
    # If the parts cannot restore the original exactly, keep the original as well.
    with Losses(_FORM, lambda loss: None) as losses:
        if [again.model_dump(mode="json") for again in _built(message, losses)] == [dump]:
            return message
    return quoted(message, _FORM, dump)


def _all(messages: Iterable[Message], on_loss: OnLoss | None) -> list[ChatMessage]:
    return [converted for message in messages for converted in _to_llama_index(message, on_loss)]


def _to_llama_index(message: Message, on_loss: OnLoss | None) -> Sequence[ChatMessage]:
    role = _GIVEN.get(message.role)
    if role is not None and (text := plain_text(message, _FORM)) is not None:
        return [ChatMessage(role=role, blocks=[TextBlock(text=text)])]
    dump = dict(note_of(message, _FORM))
    if "blocks" in dump:
        return [ChatMessage.model_validate(dump)]
    with Losses(_FORM, on_loss) as losses:
        pieces = pieces_of(message, every=True)  # from another framework, or edited
        return [one for piece, losses.places in pieces for one in _built(piece, losses)]


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
    return templated(_FORM, block) or opaque(_FORM, block, str(block.get("block_type")))


def _arguments(value: Any) -> Any:
    """The value of arguments, which may be JSON text. A value that cannot be stored stays or becomes text."""
    found, is_text = stored_value(parsed(value))
    return value if is_text and isinstance(value, str) else found


def _built(message: Message, losses: Losses) -> list[ChatMessage]:
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
            if isinstance(part, ReasoningPart) and part.signature is not None:
                losses.add(message.id, index, "the signature of reasoning")
        else:
            losses.add(message.id, index, f"a {type(part).__name__.removesuffix('Part').lower()} part")
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
        case UnknownPart():
            return foreign_block(_FORM, part)  # type: ignore[no-any-return]
        case AttachmentPart(reference=str(url)):
            mime, data = split_data_url(url)
            if (block := from_template(_FORM, part)) is not None:
                return block  # type: ignore[no-any-return]
            if data is None and "://" not in url:
                return None
            kind = part.modality if part.modality in _FILES else "document"
            held = {"url": url} if data is None else {"data" if kind == "document" else kind: data}
            if kind == "document":
                return {"block_type": kind, **held, "title": part.name, "document_mimetype": part.mime_type or mime}
            return {"block_type": kind, **held, **({} if data is None else {_FILES[kind]: mime})}
    return None
