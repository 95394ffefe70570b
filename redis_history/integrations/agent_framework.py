"""A history provider for Microsoft Agent Framework, stored in one conversation for each session."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Unpack

from msgspec.structs import replace

from redis_history import AsyncHistoryStore, HistoryStore, Message, Usage
from redis_history import values as model
from redis_history.agents.tools import SearchOptions
from redis_history.formats import _notes
from redis_history.formats._blocks import file_of, from_template, parts_of, templated
from redis_history.formats._content import dump_arguments, parse_arguments, split_data_url
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._usage import usage_of
from redis_history.integrations._extras import (
    Turns,
    as_messages,
    asynchronous,
    checked_id,
    for_agent,
    newest,
    search_runner,
)
from redis_history.integrations._live import LiveReplies
from redis_history.values._validation import missing
from redis_history.values.message import content_text

try:
    from agent_framework import (
        AgentResponseUpdate,
        FunctionInvocationContext,
        FunctionTool,
        HistoryProvider,
        SessionContext,
    )
    from agent_framework import Message as FrameworkMessage
except ImportError as error:
    raise missing("agent-framework", error) from error

__all__ = ["AgentFrameworkHistory", "from_agent_framework", "search_tool", "to_agent_framework"]

_FORM = "agent_framework"
#: In `after_run`: the message that gets the usage of the run.
_used: ContextVar[tuple[FrameworkMessage, Usage] | None] = ContextVar("redis_history_used", default=None)
_ROLES: Mapping[str, model.Role] = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}


class AgentFrameworkHistory(HistoryProvider):
    """Loads and saves the messages of an agent's sessions. The session id is the conversation id.

    `Agent(client, context_providers=[AgentFrameworkHistory(store)])`. `limit`: load only that number of the newest
    stored messages, without tool results whose call is not among them; None: all. `flags` are those of HistoryProvider
    (`load_messages`, `store_inputs`, …). Messages of other frameworks are converted; `on_loss` gets what they cannot
    represent, None logs it. The caller closes the store. A HistoryStore is used in threads, and so in any event loop.
    """

    def __init__(
        self,
        store: AsyncHistoryStore | HistoryStore,
        source_id: str = "redis_history",
        *,
        limit: int | None = None,
        on_loss: OnLoss | None = None,
        **flags: Any,
    ) -> None:
        self._store = asynchronous(store, type(self).__name__)
        super().__init__(source_id, **flags)
        self._turns = Turns(_FORM, on_loss)
        self._live = LiveReplies(store, self._turns)
        self._limit = limit
        self._on_loss = on_loss

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[FrameworkMessage]:
        """The messages of the session, oldest first, without live replies that are being written. Without a session id:
        none."""
        if session_id is None:
            return []
        found = await self._store.execute(newest(checked_id(session_id), self._limit))
        return to_agent_framework(for_agent(found, cut=self._limit is not None), on_loss=self._on_loss)

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[FrameworkMessage],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append messages, in atomic changes of up to 500 messages and 4 MB. As in the framework's own providers, those
        at the start that repeat the newest stored ones are left out. Messages may also be JSON dicts. Without a session
        id, nothing is stored. Raises InvalidMessageError."""
        messages = _listed(messages)
        if session_id is None or not messages:
            return
        given = [message.to_dict() for message in messages]
        new = self._turns.unfinished(session_id, given)
        if new is None:
            before = await self._store.execute(newest(checked_id(session_id), len(messages) + 1))
            fresh = _new(to_agent_framework(for_agent(before)), messages)
            answer, usage = _used.get() or (None, None)
            new = [
                replace(one, usage=usage) if given is answer else one
                for given, one in zip(fresh, from_agent_framework(fresh), strict=True)
            ]
            new = await self._live.settle(session_id, new)
        await self._store.execute(self._turns.append(session_id, new, given))

    async def after_run(self, *, agent: Any, context: SessionContext, **more: Any) -> None:
        """Save the messages of a run, with the name of the agent: when each call of a model is saved alone, the
        framework itself names the author only after that."""
        response = context.response
        for message in () if response is None else response.messages:
            message.author_name = message.author_name or getattr(agent, "name", None)
        used = None if response is None else _usage_of(response)
        token = _used.set(used)
        try:
            await super().after_run(agent=agent, context=context, **more)
        finally:
            _used.reset(token)

    async def live(
        self, session_id: str, updates: AsyncIterable[AgentResponseUpdate]
    ) -> AsyncIterator[AgentResponseUpdate]:
        """Yields the updates of `agent.run(…, stream=True)`, and stores what the model writes as it comes, with
        `store.stream`. The whole messages of the session then take its place."""
        message_id = None
        async with self._live.stream(checked_id(session_id)) as stream:
            async for update in updates:
                if update.message_id != message_id:
                    stream.end()
                    message_id = update.message_id
                await stream.write(update.text)
                yield update


def search_tool(
    store: HistoryStore | AsyncHistoryStore, conversation_id: str | None = None, **options: Unpack[SearchOptions]
) -> FunctionTool:
    """The tool `conversation_search` of `conversation_search_tool`, as a tool of Agent Framework.

    `conversation_id` None: the conversation of the session in which the agent runs. The other options and the errors
    are those of `conversation_search_tool`.
    """
    tool, _ = search_runner(store, conversation_id or "any", **options)

    async def search(ctx: FunctionInvocationContext, **arguments: Any) -> str:
        session_id = conversation_id or (ctx.session.session_id if ctx.session is not None else None)
        if session_id is None:
            return "There is no earlier conversation to search."
        return await search_runner(store, session_id, **options)[1](arguments)

    return FunctionTool(name=tool.name, description=tool.description, input_model=tool.parameters, func=search)


def from_agent_framework(messages: Sequence[FrameworkMessage]) -> list[Message]:
    """Messages of Agent Framework, or their JSON dicts, as messages of this package. `to_agent_framework` returns equal
    ones. Raises InvalidMessageError."""
    return [_from(message.to_dict(exclude_none=True), index) for index, message in enumerate(_listed(messages))]


def to_agent_framework(messages: Sequence[Message], *, on_loss: OnLoss | None = None) -> list[FrameworkMessage]:
    """Stored messages as messages of Agent Framework. `on_loss` gets what they cannot represent; None logs it."""
    with Losses(_FORM, on_loss) as losses:
        return [_built(message, losses) for message in messages]


def _usage_of(response: Any) -> tuple[FrameworkMessage, Usage] | None:
    """The last message of the assistant in a response, and the usage of the response."""
    answers = [message for message in response.messages if str(message.role) == "assistant"]
    usage = usage_of(getattr(response, "usage_details", None), model=getattr(response, "model_id", None))
    return None if usage is None or not answers else (answers[-1], usage)


def _listed(messages: Sequence[FrameworkMessage]) -> list[FrameworkMessage]:
    def read(raw: dict[str, Any]) -> FrameworkMessage:
        if "contents" not in raw and isinstance(raw.get("content"), str):  # as chat completions have it
            raw["contents"] = [raw.pop("content")]
        contents = [{"type": "text", "text": one} if isinstance(one, str) else one for one in raw["contents"]]
        return FrameworkMessage.from_dict({**raw, "contents": contents})

    return as_messages(messages, FrameworkMessage, read, "a Message of Agent Framework")


def _new(stored: Sequence[FrameworkMessage], given: Sequence[FrameworkMessage]) -> Sequence[FrameworkMessage]:
    """The messages of `given` without those at its start that repeat the newest stored ones. A single message of a
    user without an id counts as new, because people say the same twice."""
    known, found = list(map(_identity, stored)), list(map(_identity, given))
    for count in range(min(len(known), len(found)), 0, -1):
        alone = count == 1 and stored[-1].role == "user" and not stored[-1].message_id
        if known[-count:] == found[:count] and not alone:
            return given[count:]
    return given


def _identity(message: FrameworkMessage) -> Any:
    return message.message_id or (str(message.role), repr([content.to_dict() for content in message.contents]))


def _from(raw: dict[str, Any], index: int) -> Message:
    where = f"messages[{index}]"
    contents = raw.get("contents")
    parts = _notes.parts_of_content(
        contents, lambda one: _notes.read_block(_FORM, one, _part(one), _write), where, "a list"
    )
    author = raw.get("author_name")
    message = Message(
        role=_ROLES.get(str(raw.get("role")), "user"),
        parts=parts,
        participant=model.Participant("agent", author) if author and raw.get("role") == "assistant" else None,
    )
    ours = _rendered(message)
    raw = {**{key: raw[key] for key in ours if key in raw}, **raw}  # their order means nothing
    return _notes.noted_message(message, _FORM, {}, raw, ours, where)


def _rendered(message: Message, losses: Losses | None = None) -> dict[str, Any]:
    contents = []
    for at, part in enumerate(message.parts):
        block, lost = _notes.write_block(_FORM, part, _write, "original")
        if losses is not None:
            losses.add(message.id, at, lost)
        if block is not None:
            if not _is_whole(block) and not _notes.note_of(part, _FORM).get("loose"):  # the result was edited
                files = [item for item in block["items"] if item.get("type") != "text"]
                block = {**block, "items": [*_items(block["result"]), *files]}
            contents.append(block)
    author = message.participant
    named = {"author_name": author.display_name or author.id} if author is not None and author.kind == "agent" else {}
    return {"type": "message", "role": message.role, "contents": contents, **named, "additional_properties": {}}


def _built(message: Message, losses: Losses) -> FrameworkMessage:
    note = _notes.note_of(message, _FORM)
    text, own = _notes.lone_text(message), note.get("set", {})
    if text is not None and message.participant is None and note.keys() <= {"set"} and own.keys() <= {"message_id"}:
        return FrameworkMessage(message.role, [text], message_id=own.get("message_id"))  # in a fraction of the time
    return FrameworkMessage.from_dict(_notes.rebuild(_rendered(message, losses), note))


def _part(block: Mapping[str, Any]) -> model.Part | None:
    """The part for a content item, or None for content that is kept unchanged."""
    kind, text, call_id = block.get("type"), block.get("text"), block.get("call_id")
    if kind == "text" and isinstance(text, str):
        return model.TextPart(text=text)
    if kind == "text_reasoning" and isinstance(text, str):
        return model.ReasoningPart(text=text)
    if kind == "function_call" and isinstance(call_id, str) and isinstance(block.get("name"), str):
        arguments, style = parse_arguments(block.get("arguments"))
        call = model.ToolUsePart(id=call_id, name=block["name"], input=arguments)
        return _notes.noted(call, _FORM, {"arguments": style} if style else {})
    if kind == "function_result" and isinstance(call_id, str) and isinstance(block.get("result"), str):
        items = block.get("items")
        if _has_files(items) and _is_whole(block):
            return model.ToolResultPart(tool_use_id=call_id, content=items)
        result = model.ToolResultPart(tool_use_id=call_id, content=block["result"])
        return _notes.noted(result, _FORM, {} if _is_whole(block) else {"loose": True})
    return templated(_FORM, block) if kind in ("data", "uri") else None


def _write(part: model.Part, shape: _notes.Shape) -> tuple[Any, str | None]:
    """The content for a part, and what was lost."""
    rest: dict[str, Any] = {"additional_properties": {}}
    if isinstance(part, model.TextPart):
        return {"type": "text", "text": part.text, **rest}, None
    if isinstance(part, model.ReasoningPart):
        lost = part.signature and "the signature of the reasoning"
        return {"type": "text_reasoning", "text": part.text, **rest}, lost
    if isinstance(part, model.ToolUsePart):
        arguments = dump_arguments(part.input, _notes.note_of(part, _FORM).get("arguments"))
        call = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": arguments}
        return {**call, "hosted": False, **rest}, None
    if isinstance(part, model.ToolResultPart):
        text = content_text(part.content)
        items, lost = _result_items(part.content, text)
        result = {"type": "function_result", "call_id": part.tool_use_id, "result": text, "items": items}
        return {**result, **rest}, lost
    if isinstance(part, model.AttachmentPart):
        block = from_template(_FORM, part) or _file(part)
        return block, None if block is not None else "an attachment without a URI and media type"
    return None, "a part of an unknown kind"


def _file(part: model.AttachmentPart) -> dict[str, Any] | None:
    mime, data = split_data_url(part.reference)
    mime = part.mime_type or mime
    if not mime or not (data or "://" in (part.reference or "")):
        return None
    kind = "uri" if data is None else "data"
    return {"type": kind, "uri": part.reference, "media_type": mime, "additional_properties": {}}


def _has_files(items: Any) -> bool:
    return isinstance(items, list) and any(file_of(item) is not None for item in items)


def _result_items(content: Any, text: str) -> tuple[list[Any], str | None]:
    """The items of a function's result, and what was lost: those of Agent Framework as they are, and files of others
    as its data."""
    if text == content:
        return _items(text), None
    found = parts_of(content)
    if found is None:
        return _items(text), "what is not text in the tool result"
    items: list[Any] = []
    for block, part in zip(content, found, strict=True):
        item = _items(part.text)[0] if isinstance(part, model.TextPart) else _file(part)  # type: ignore[arg-type]
        own = block if "additional_properties" in block else item
        items += [] if own is None else [own]
    return items, None if len(items) == len(content) else "files in the tool result"


def _items(text: str) -> list[Any]:
    return [{"type": "text", "text": text, "additional_properties": {}}]


def _is_whole(block: Mapping[str, Any]) -> bool:
    """Whether the items of a function's result have its text."""
    if block.get("type") != "function_result" or not isinstance(items := block.get("items"), list):
        return True
    texts = [item.get("text") for item in items if isinstance(item, Mapping) and item.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str) and text) == block.get("result")
