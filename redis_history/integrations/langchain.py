"""A chat message history for LangChain, stored in one conversation.

Use it with `RunnableWithMessageHistory` and everything else that accepts a `BaseChatMessageHistory`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, Unpack

from msgspec.structs import replace

from redis_history import AsyncHistoryStore, HistoryStore, Message, TextPart
from redis_history.agents.tools import SearchOptions
from redis_history.errors import (
    ConfigurationError,
    MessageConflictError,
    MessageNotFoundError,
    RedisHistoryError,
    RevisionConflictError,
)
from redis_history.formats import OnLoss, from_langchain, to_langchain
from redis_history.formats._losses import Losses
from redis_history.formats._notes import plain_text
from redis_history.integrations import _extras
from redis_history.store import operations as ops
from redis_history.store.operations import Appended, Steps
from redis_history.store.operations.tasks import Ask
from redis_history.types import ConversationSearchTool, Role
from redis_history.values._validation import check_store, missing
from redis_history.values.ids import MAX_ID_BYTES

try:
    from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        HumanMessage,
        RemoveMessage,
        SystemMessage,
        convert_to_messages,
        message_to_dict,
        messages_from_dict,
    )
    from langchain_core.tools import StructuredTool
    from pydantic_core import to_jsonable_python
except ImportError as error:
    raise missing("langchain", error) from error

__all__ = ["LangChainHistory", "live_replies", "search_tool"]

_logger = logging.getLogger("redis_history")
_ALL = "__remove_all__"  # LangGraph's REMOVE_ALL_MESSAGES
_ROLES: dict[type[BaseMessage], Role] = {HumanMessage: "user", AIMessage: "assistant", SystemMessage: "system"}
_CLASSES = {role: kind for kind, role in _ROLES.items()}
_KEPT = ("content", "tool_calls", "status", "id")  # fields to store also if they have their default
_FIRST = ("content", "name", "tool_calls", "tool_call_id", "status")  # the order that needs no note
_PART = "#part-"  # in ids of messages that are parts of one stored message
#: Fields that may hold any object.
_FREE = ("content", "artifact", "additional_kwargs", "response_metadata", "tool_calls")
_GONE: Any = object()
_IDS = "langchain_ids"  # key of provider_meta: the ids of such messages, when others of them were removed


class LangChainHistory(BaseChatMessageHistory):
    """The messages of the conversation `session_id`. The caller must close the stores.

    Synchronous methods use `store`. Asynchronous methods use `async_store`; without it they use `store` in a thread.
    `limit` returns only that number of the newest messages, without tool results whose call is not among them, because
    models reject these. `on_loss` is called with each `Loss`: content of other frameworks that LangChain's messages
    cannot represent, and objects in a message, such as its `artifact`, that have no JSON form, so that they cannot be
    stored; without it a warning is logged. Messages may also be given as dicts, such as `{"role": …, "content": …}` or
    the dumps of LangChain. Raises InvalidMessageError for other values.

    The id of a LangChain message is its id in the store, as in the state of a LangGraph graph: a message that is added
    again is stored once, a message with other content replaces the stored message, and a `RemoveMessage` removes it. So
    the messages of a state can be added after every step, and only new and changed messages are written. A message
    without an id is always added. All messages that are read have ids. Tool results that another framework stored in a
    single message are several messages here. Each can be changed or removed alone, and the others keep their ids.

    Raises InvalidConversationIdError, and StoreTypeError without a store or for another kind of store.
    """

    def __init__(
        self,
        session_id: str,
        store: HistoryStore | None = None,
        *,
        async_store: AsyncHistoryStore | None = None,
        limit: int | None = None,
        on_loss: OnLoss | None = None,
    ) -> None:
        super().__init__()
        self.session_id = _extras.checked_id(session_id)
        self.limit = limit
        self._store = store
        self._any = _extras.asynchronous_of(store, async_store, type(self).__name__)
        self._on_loss = on_loss
        self._turns = _Turns(on_loss)

    @property
    def messages(self) -> list[BaseMessage]:  # an attribute in the base class
        """All messages, or the newest `limit`, oldest first, without live replies that are being written."""
        return self._converted(self._sync().get(self.session_id, limit=self.limit))

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        self._sync().execute(_restore(self.session_id, self._storable(messages), self._turns))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages in this order, in atomic changes of up to 500 messages and 4 MB; see the class for messages
        with an id."""
        self._sync().execute(_write(self.session_id, self._storable(messages), self._turns))

    def clear(self) -> None:
        """Remove all messages, but keep the conversation."""
        self._sync().clear(self.session_id)

    async def aget_messages(self) -> list[BaseMessage]:
        return self._converted(await self._any.get(self.session_id, limit=self.limit))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        await self._any.execute(_write(self.session_id, self._storable(messages), self._turns))

    async def aclear(self) -> None:
        await self._any.clear(self.session_id)

    def _converted(self, messages: list[Message]) -> list[BaseMessage]:
        kept = _extras.for_agent(messages, cut=self.limit is not None)
        return [converted for message in kept for converted in _to_langchain(message, self._on_loss)]

    def _storable(self, messages: Sequence[Any]) -> list[BaseMessage]:
        kind: Any = BaseMessage
        given = _extras.as_messages(messages, kind, _of_dict, "a message of LangChain")
        with Losses("a stored message", self._on_loss) as losses:
            return [_with_json(message, losses) for message in given]

    def _sync(self) -> HistoryStore:
        if self._store is None:
            raise ConfigurationError("LangChainHistory has only an async_store: use its async methods or pass store=")
        return self._store


def live_replies(store: HistoryStore | AsyncHistoryStore, conversation_id: str) -> BaseCallbackHandler:
    """A callback that stores the output of a model while it is streamed, with `store.stream`. A `LangChainHistory` or
    `ConversationMiddleware` then stores the whole message in its place.

    Pass it in `callbacks` of the agent's model, as `ChatOpenAI(model, callbacks=[live_replies(store, id)])`. In the
    config of a call it would also store the output of models in tools and in other middleware. With an
    AsyncHistoryStore, use the asynchronous methods of the model or agent. A model that does not stream writes no live
    reply. LangChain logs errors of the store, and the model continues. Raises InvalidConversationIdError.
    """
    check_store(store, "live_replies", HistoryStore, AsyncHistoryStore)
    _extras.checked_id(conversation_id)
    if isinstance(store, AsyncHistoryStore):
        return _AsyncLiveReplies(store, conversation_id)
    return _LiveReplies(store, conversation_id)


class _Live:
    """The replies of runs. `None`: this one failed, and is written by the history alone."""

    def __init__(self, store: Any, conversation_id: str) -> None:
        self._store = store
        self._conversation_id = conversation_id
        self._replies: dict[Any, Any] = {}
        self._ids: dict[Any, str] = {}

    def _write(self, token: Any, chunk: Any, run: Any) -> Steps[None]:
        text = token if chunk is None else chunk.text
        id_ = getattr(getattr(chunk, "message", None), "id", None)
        if id_ and (run not in self._ids or not id_.startswith("lc_run-")):  # the provider's id, if there is one
            self._ids[run] = id_
        if text and run not in self._replies:
            self._replies[run] = self._store.stream(self._conversation_id, id=self._ids.get(run) or f"lc_run--{run}")
        reply = self._replies.get(run)
        if text and reply is not None:
            try:
                yield Ask(reply.write, (text,))
            except RedisHistoryError:
                self._replies[run] = None
                yield Ask(_extras.close_of(reply))
                raise

    def _end(self, run: Any, *, complete: bool) -> Steps[None]:
        self._ids.pop(run, None)
        reply = self._replies.pop(run, None)
        if reply is not None:
            yield Ask(reply.finish if complete else _extras.close_of(reply))


class _LiveReplies(_Live, BaseCallbackHandler):
    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: Any, **_: Any) -> None:
        self._store.execute(self._write(token, chunk, run_id))

    def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
        self._store.execute(self._end(run_id, complete=True))

    def on_llm_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        self._store.execute(self._end(run_id, complete=False))


class _AsyncLiveReplies(_Live, AsyncCallbackHandler):
    """A reply ends at the latest with the task that called the model: of a task that is cancelled, as when a stream is
    left, LangChain reports neither an end nor an error."""

    run_inline = True  # in the task that calls the model

    def __init__(self, store: Any, conversation_id: str) -> None:
        super().__init__(store, conversation_id)
        self._callers: dict[Any, tuple[asyncio.Task[Any], Callable[[asyncio.Task[Any]], None]]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def on_llm_start(self, *_: Any, run_id: Any, **__: Any) -> None:
        def left(_: asyncio.Task[Any]) -> None:
            task = asyncio.get_running_loop().create_task(self._leave(run_id))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        if (caller := asyncio.current_task()) is not None:
            caller.add_done_callback(left)
            self._callers[run_id] = caller, left

    on_chat_model_start = on_llm_start

    async def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: Any, **_: Any) -> None:
        if run_id in self._callers:
            await self._store.execute(self._write(token, chunk, run_id))

    async def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
        await self._finish(run_id, complete=True)

    async def on_llm_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        await self._finish(run_id, complete=False)

    async def _leave(self, run_id: Any) -> None:
        try:
            await self._finish(run_id, complete=False)
        except RedisHistoryError as error:
            _logger.warning("a live reply of %r could not be ended: %s", self._conversation_id[:80], error)

    async def _finish(self, run_id: Any, *, complete: bool) -> None:
        caller, left = self._callers.pop(run_id, (None, None))
        if caller is not None and left is not None:
            caller.remove_done_callback(left)
        await self._store.execute(self._end(run_id, complete=complete))


def search_tool(
    store: HistoryStore | AsyncHistoryStore, conversation_id: str, **options: Unpack[SearchOptions]
) -> StructuredTool:
    """The tool `conversation_search` of `conversation_search_tool`, as a LangChain tool.

    The tool of an asynchronous store can only be called with `ainvoke`. The options and errors are
    those of `conversation_search_tool`.
    """
    tool, run = _extras.search_runner(store, conversation_id, **options)

    async def search(**arguments: Any) -> str:
        return await run(arguments)

    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.parameters,
        func=(lambda **arguments: tool.run(arguments)) if isinstance(tool, ConversationSearchTool) else None,
        coroutine=search,
    )


class _Turns(_extras.Turns):
    """Stores messages of LangChain, each as one message."""

    def __init__(self, on_loss: OnLoss | None) -> None:
        super().__init__("langchain", on_loss, whole=True)
        #: `provider_meta` that all messages get that are stored or changed.
        self.mark: Mapping[str, Any] = {}
        #: Sequences of the messages that were appended.
        self.sequences: list[int] = []

    def message(self, given: BaseMessage) -> Message:
        message = _to_message(given)
        return replace(message, provider_meta={**message.provider_meta, **self.mark}) if self.mark else message

    def append(self, *arguments: Any, **options: Any) -> Steps[list[Appended]]:
        done = yield from super().append(*arguments, **options)
        self.sequences += [one.message.sequence or 0 for one in done if not one.duplicate]
        return done


def _changes(messages: Sequence[BaseMessage]) -> Iterator[list[BaseMessage] | dict[str, None] | None]:
    """The changes that these messages mean, in order: messages to add, ids of some to remove, None to remove all."""
    added: dict[Any, BaseMessage] = {}
    removed: dict[str, None] = {}
    for index, message in enumerate(messages):
        removes = isinstance(message, RemoveMessage)
        if added and removes:
            yield list(added.values())
            added = {}
        if removed and not removes:
            yield removed
            removed = {}
        if not removes:
            added[message.id or index] = message  # the last message of an id, in the place of the first
        elif message.id == _ALL:
            yield None
            removed = {}
        else:
            removed[str(message.id)] = None
    if added or removed:
        yield list(added.values()) or removed


def _write(key: str, messages: Sequence[BaseMessage], turns: _Turns) -> Steps[None]:
    """Make the changes that these messages mean. A call that removes all messages and adds others is one change."""
    removes_all = False
    for change in _changes(messages):
        if isinstance(change, list):
            yield from (_restore if removes_all else _add)(key, change, turns)
            removes_all = False
        elif change is None:
            removes_all = True
        elif not removes_all:
            yield from _replace(key, change, turns)
    if removes_all:
        yield ops.Clear(key)


def _restore(key: str, messages: Sequence[BaseMessage], turns: _Turns) -> Steps[None]:
    """Replace all messages. Stored messages keep what LangChain does not know."""

    def merge(before: list[Message]) -> list[Message]:
        stored = {message.id: message for message in before}
        new = []
        for given in messages:
            old = stored.get(given.id or "")
            found = [] if old is None else _to_langchain(old, lambda loss: None)
            if old is None or [one.id for one in found] != [given.id]:
                new.append(turns.message(given))
            else:
                new.append(old if found == [given] else _extras.with_content(old, turns.message(given)))
        return new

    yield from _extras.replace_all(key, merge, turns)


def _add(key: str, messages: list[BaseMessage], turns: _Turns) -> Steps[None]:
    if (again := turns.unfinished(key, messages)) is not None:
        yield from turns.append(key, again, messages)
        return
    if _is_new(messages):
        with suppress(MessageConflictError):
            yield from turns.append(key, list(map(turns.message, messages)), messages)
            return
    changed, new = _difference(messages, (yield from ops.read_messages(key, include_archived=True)), turns.mark)
    if changed:
        yield from _replace(key, changed, turns)
    yield from turns.append(key, list(map(turns.message, new)), messages)


def _replace(key: str, changes: Mapping[str, BaseMessage | None], turns: _Turns) -> Steps[None]:
    """Replace the messages with these ids, or remove them (None). If a stored message is several messages here,
    only their parts change."""
    while (record := (yield ops.ReadConversation(key))) is not None:
        revision = record.revision
        gone: list[str] = []
        try:
            for message in (yield from ops.read_messages(key, include_archived=True)):
                kept = _changed(message, changes, turns)
                if kept is None:
                    gone.append(message.id)
                elif kept != message:
                    with suppress(MessageNotFoundError):  # an archived message stays as it is
                        [kept], losses = turns.fit([kept])
                        yield from ops.change_message(key, kept, revision)
                        turns.report(losses)
                        revision += 1
        except RevisionConflictError:
            continue  # another writer was faster: read again
        for at in range(0, len(gone), _extras.BATCH):
            yield ops.DeleteMessages.of(key, gone[at : at + _extras.BATCH])
        return


def _changed(message: Message, changes: Mapping[str, BaseMessage | None], turns: _Turns) -> Message | None:
    """The stored message after changes of the messages that it is here; None if nothing of it is left."""
    found = _to_langchain(message, lambda loss: None)
    given = {at: changes[str(one.id)] for at, one in enumerate(found) if one.id in changes}
    if not given:
        return message
    if [one.id for one in found] == [message.id] and (new := given[0]) is not None:
        return _extras.with_content(message, turns.message(new))
    shares = {at: () if one is None else _to_message(one).parts for at, one in given.items()}
    parts = _extras.with_shares(message, lambda one: _to_langchain(one, lambda loss: None), shares)
    if not parts:
        return None
    ids = [one.id for at, one in enumerate(found) if shares.get(at, True)]
    meta = message.provider_meta if len(ids) == len(found) else {**message.provider_meta, _IDS: ids}
    return replace(message, parts=parts, provider_meta=meta)


def _is_new(messages: list[BaseMessage]) -> bool:
    """Whether these are probably new, and not a state that is saved again: then reading what is stored can wait."""
    ids = [message.id for message in messages if message.id]
    return not ids or (len(messages) <= 2 and not any(_PART in id_ for id_ in ids))


def _difference(
    messages: list[BaseMessage], stored: list[Message], mark: Mapping[str, Any]
) -> tuple[dict[str, BaseMessage | None], list[BaseMessage]]:
    """The messages that differ from the stored ones, or lack the mark there, by id; and the new messages."""
    known: dict[str | None, BaseMessage] = {}
    ids: set[str | None] = set()  # also of messages whose first part was removed
    unmarked: set[str | None] = set()
    for message in stored:
        found = _to_langchain(message, lambda loss: None)
        known |= {one.id: one for one in found}
        ids.add(message.id)
        if not mark.items() <= message.provider_meta.items():
            unmarked |= {one.id for one in found}
    changed: dict[str, BaseMessage | None] = {
        str(one.id): one for one in messages if one.id in known and (known[one.id] != one or one.id in unmarked)
    }
    new = [one for one in messages if one.id not in known and one.id not in ids]
    return changed, new


def _of_dict(given: dict[str, Any]) -> BaseMessage:
    """The message of a dict, in any form that LangChain reads."""
    is_dump = "role" not in given and ("data" in given or "lc" in given)
    found = messages_from_dict(to_langchain(from_langchain([given]))) if is_dump else convert_to_messages([given])
    return found[0]


def _with_json(message: BaseMessage, losses: Losses) -> BaseMessage:
    """The message with JSON in the place of objects, such as dates, that tools and models add to it. An object without
    a JSON form is left out and reported."""
    changed = {}
    for name in (*_FREE, *(message.model_extra or ())):
        if (value := getattr(message, name, None)) and type(value) is not str:
            found = _json_of(value, name, message.id or "", losses)
            if found is not value:
                changed[name] = None if found is _GONE else found
    return message.model_copy(update=changed) if changed else message


def _json_of(value: Any, name: str, message_id: str, losses: Losses) -> Any:
    """`value` itself if a message can hold it, else its JSON form; _GONE for values without a JSON form."""
    if type(value) in (str, int, float, bool, bytes, type(None)) or (type(value) is datetime and value.tzinfo):
        return value
    try:
        if isinstance(value, dict):
            found = {key: _json_of(item, f"{name}.{key}", message_id, losses) for key, item in value.items()}
            if all(type(key) is str and found[key] is value[key] for key in value):
                return value
            return {str(key): item for key, item in found.items() if item is not _GONE}
        if isinstance(value, list | tuple):
            items = [_json_of(item, name, message_id, losses) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return [None if item is _GONE else item for item in items]
        return to_jsonable_python(value)
    except (ValueError, TypeError, RecursionError):
        losses.add(message_id, None, f"a {type(value).__name__} in {name}, which has no JSON form")
        return _GONE


def _to_message(given: BaseMessage) -> Message:
    id_ = given.id
    usable = isinstance(id_, str) and id_ != "" and len(id_.encode(errors="replace")) <= MAX_ID_BYTES
    own: dict[str, Any] = {"id": id_} if usable else {}
    role = _ROLES.get(type(given))
    if role is not None and (usable or id_ is None) and not given.model_extra:
        fields = given.__dict__
        text = fields["content"]
        if isinstance(text, str) and text and fields == {**_defaults(type(given)), "content": text, "id": id_}:
            return Message(role=role, parts=(TextPart(text=text),), **own)  # most messages, in a fraction of the time
    dump = message_to_dict(given)
    for name, default in _defaults(type(given)).items():  # LangChain restores them
        if name not in _KEPT and getattr(given, name) == default:
            dump["data"].pop(name, None)
    if usable or id_ is None:
        dump["data"].pop("id", None)
    dump["data"] = {key: dump["data"][key] for key in _FIRST if key in dump["data"]} | dump["data"]
    (message,) = from_langchain([dump])
    return replace(message, **own)


@cache
def _defaults(kind: type[BaseMessage]) -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}


def _to_langchain(message: Message, on_loss: OnLoss | None) -> list[BaseMessage]:
    kind = _CLASSES.get(message.role)
    text = plain_text(message, "langchain")
    ids: Any = message.provider_meta.get(_IDS)
    if kind is not None and text is not None and ids is None:  # most messages, in a fraction of the time
        return [kind(content=text, id=message.id)]
    found: list[BaseMessage] = messages_from_dict(to_langchain([message], on_loss=on_loss))
    if ids is None or len(ids) != len(found):
        ids = [f"{message.id}{_PART}{index}" if index else message.id for index in range(len(found))]
    for converted, id_ in zip(found, ids, strict=True):
        converted.id = converted.id or id_
    return found
