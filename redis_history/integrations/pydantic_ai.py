"""A message history for Pydantic AI, stored in one conversation.

history = PydanticAIHistory("c1", store)
result = await agent.run("Hi", message_history=await history.load())
await history.append(result.new_messages())
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Unpack, get_type_hints

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
from redis_history.errors import InvalidMessageError
from redis_history.formats import OnLoss
from redis_history.formats._blocks import from_template, templated
from redis_history.formats._content import parsed, split_data_url
from redis_history.formats._losses import Losses
from redis_history.formats._marks import marked
from redis_history.formats._notes import foreign_block, note_of, noted, opaque, quoted, stored_value, with_note
from redis_history.formats._pairing import pieces_of
from redis_history.formats._usage import usage_of
from redis_history.formats.approvals import denial
from redis_history.integrations import _approvals, _extras
from redis_history.integrations._live import LiveReplies
from redis_history.store.operations import Appended, Steps
from redis_history.types import Part, Role
from redis_history.values._validation import check_store, missing
from redis_history.values.pairs import without_lone_results

try:
    from pydantic import TypeAdapter
    from pydantic_ai import DeferredToolRequests, DeferredToolResults, Tool, ToolDenied
    from pydantic_ai.messages import (
        BaseToolCallPart,
        BaseToolReturnPart,
        BinaryContent,
        BinaryImage,
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        UserPromptPart,
    )
    from pydantic_ai.messages import TextPart as ModelTextPart
except ImportError as error:
    raise missing("pydantic-ai", error) from error

if TYPE_CHECKING:
    from pydantic_ai.result import StreamedRunResult

__all__ = ["PydanticAIHistory", "from_pydantic_ai", "search_tool", "to_pydantic_ai"]

_FORM = "pydantic_ai"
_PLAIN = "plain"  # a key of items: the image was a BinaryContent
#: From Pydantic AI's provider names to the format whose provider signed the thinking.
_SIGNED_BY = {"anthropic": "anthropic", "openai": "openai_responses", "mistral": "mistral", "google": "gemini"}
_MODEL_PARTS = ("text", "thinking", "tool-call")
#: The classes of a message of one text.
_TEXTS: dict[Role, tuple[Any, Any]] = {
    "user": (ModelRequest, UserPromptPart),
    "system": (ModelRequest, SystemPromptPart),
    "assistant": (ModelResponse, ModelTextPart),
}
_KINDS: dict[str, Role] = {"system-prompt": "system", "user-prompt": "user"}


class PydanticAIHistory:
    """Loads and appends the messages of a conversation for Pydantic AI. The caller must close the store.
    `on_loss` is as in `formats.to_openai_chat`.

    With a HistoryStore, `load` and `append` use it in threads; `load_sync` and `append_sync` are for `run_sync`.
    """

    def __init__(
        self, conversation_id: str, store: AsyncHistoryStore | HistoryStore, *, on_loss: OnLoss | None = None
    ) -> None:
        self._any = _extras.asynchronous(store, type(self).__name__)
        self.conversation_id = _extras.checked_id(conversation_id)
        self._store = store
        self._on_loss = on_loss
        self._turns = _extras.Turns(_FORM, on_loss)
        self._live = LiveReplies(store, self._turns)

    async def load(self, *, limit: int | None = None) -> list[ModelMessage]:
        """The messages for `message_history`, without a live reply that is being written. `limit`: read only that
        number of the newest stored messages, without tool results whose call is not among them."""
        return self._converted(await self._any.execute(_extras.newest(self.conversation_id, limit)), limit)

    async def append(self, messages: Iterable[ModelMessage], output: Any = None) -> None:
        """Append the result of `result.new_messages()`, in atomic changes of up to 500 stored messages and 4 MB.

        `output`: `result.output`. If it is a DeferredToolRequests, its calls wait for `store.decide`.
        """
        await self._any.execute(self._append(_listed(messages), output))

    async def decisions(self) -> DeferredToolResults | None:
        """The decisions on the calls that wait, for `deferred_tool_results`, with `load()` as the history; None while
        one of them waits, or if no call needs approval."""
        return _results(await self._any.execute(_approvals.decisions(self.conversation_id)))

    async def live(self, run: StreamedRunResult[Any, Any]) -> AsyncIterator[str]:
        """Yields the text of a run of `agent.run_stream`, and stores it as it comes, with `store.stream`; also all
        other new messages of the run, so that there is nothing left to append."""
        async with self._live.stream(self.conversation_id) as stream:
            before = run.new_messages()
            await self.append(before)
            async for text in run.stream_text(delta=True):
                await stream.write(text)
                yield text
            stream.end()
            new = from_pydantic_ai(run.new_messages()[len(before) :])
            new = await self._live.settle(self.conversation_id, new)
            await self._any.execute(self._turns.append(self.conversation_id, new))

    def _append(self, given: list[ModelMessage], output: Any) -> Steps[list[Appended]]:
        messages = self._turns.unfinished(self.conversation_id, given)
        messages = from_pydantic_ai(given) if messages is None else messages
        if isinstance(output, DeferredToolRequests):
            messages = _approvals.with_requests(messages, {call.tool_call_id for call in output.approvals})
        return self._turns.append(self.conversation_id, messages, given)

    def load_sync(self, *, limit: int | None = None) -> list[ModelMessage]:
        """Like `load`, for synchronous code with a HistoryStore. Raises StoreTypeError for an AsyncHistoryStore."""
        return self._converted(self._sync().execute(_extras.newest(self.conversation_id, limit)), limit)

    def append_sync(self, messages: Iterable[ModelMessage], output: Any = None) -> None:
        """Like `append`, for synchronous code with a HistoryStore. Raises StoreTypeError for an AsyncHistoryStore."""
        self._sync().execute(self._append(_listed(messages), output))

    def decisions_sync(self) -> DeferredToolResults | None:
        """Like `decisions`, for synchronous code with a HistoryStore. Raises StoreTypeError for an
        AsyncHistoryStore."""
        return _results(self._sync().execute(_approvals.decisions(self.conversation_id)))

    def _sync(self) -> HistoryStore:
        check_store(self._store, "this method of PydanticAIHistory", HistoryStore)
        return self._store  # type: ignore[return-value]

    def _converted(self, messages: list[Message], limit: int | None) -> list[ModelMessage]:
        found = _extras.ended(messages)
        return to_pydantic_ai(found if limit is None else without_lone_results(found), on_loss=self._on_loss)


def search_tool(
    store: HistoryStore | AsyncHistoryStore, conversation_id: str, **options: Unpack[SearchOptions]
) -> Tool[Any]:
    """The tool `conversation_search` of `conversation_search_tool`, as a tool of Pydantic AI.

    The options and errors are those of `conversation_search_tool`.
    """
    tool, run = _extras.search_runner(store, conversation_id, **options)

    async def search(**arguments: Any) -> str:
        return await run(arguments)

    return Tool.from_schema(search, tool.name, tool.description, tool.parameters)


def _results(found: Mapping[str, Mapping[str, Any]] | None) -> DeferredToolResults | None:
    if found is None:
        return None
    results = DeferredToolResults()
    for call_id, decision in found.items():
        reason = _approvals.reason_of(decision)
        denied = ToolDenied() if reason is None else ToolDenied(denial(reason))
        results.approvals[call_id] = decision["approved"] or denied
        if isinstance(by := decision.get("by"), str):
            results.answered_by[call_id] = by
    return results


def _listed(messages: Iterable[Any]) -> list[ModelMessage]:
    kinds: Any = (ModelRequest, ModelResponse)

    def read(raw: dict[str, Any]) -> ModelMessage:
        return ModelMessagesTypeAdapter.validate_python([raw])[0]

    return _extras.as_messages(messages, kinds, read, "a ModelMessage of Pydantic AI")


def from_pydantic_ai(messages: Iterable[ModelMessage]) -> list[Message]:
    """Convert to messages. A request with parts of the system, the user and a tool becomes one message for each. The
    JSON form of a message, as `ModelMessagesTypeAdapter` dumps it, is accepted, too.

    Raises InvalidMessageError for other values.
    """
    messages = _listed(messages)
    dumps = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    for message, dump in zip(messages, dumps, strict=True):
        for part, raw in zip(message.parts, dump["parts"], strict=True):
            if isinstance(part, BaseToolCallPart):
                raw["args"] = _extras.plain_or(part.args, raw["args"])
            elif isinstance(part, BaseToolReturnPart):
                raw["content"] = _extras.plain_or(part.content, raw["content"])
            elif isinstance(part, UserPromptPart) and not isinstance(part.content, str):
                for item, dumped in zip(part.content, raw["content"], strict=True):
                    if type(item) is BinaryContent and item.is_image:
                        dumped[_PLAIN] = True
    return [message for dump in dumps for message in _from_dump(dump)]


def to_pydantic_ai(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[ModelMessage]:
    """Convert to Pydantic AI's messages. Its own messages are restored exactly. `on_loss` is called with each `Loss`:
    content of other frameworks that Pydantic AI cannot represent."""
    found: list[Any] = []  # messages, and what Pydantic AI validates
    names: dict[str, str] = {}  # tool names by id, of the nearest earlier call
    with Losses(_FORM, on_loss) as losses:
        for given in messages:
            if (built := _built(given)) is not None:
                found.append(built)
                continue
            for message, losses.places in pieces_of(given, every=True):
                names |= {part.id: part.name for part in message.tool_uses}
                note, parts = note_of(message, _FORM), list(_to_parts(message, names, losses))
                kind = "response" if message.role == "assistant" else "request"
                if note.get("inside") and found:
                    last = found[-1] if isinstance(found[-1], dict) else vars(found[-1])
                    if last["kind"] == kind:
                        found[-1] = {**last, "parts": [*last["parts"], *parts]}
                        continue
                if parts or not message.parts:
                    found.append({**note.get("around", {"kind": kind}), "parts": parts})
    try:
        restored = ModelMessagesTypeAdapter.validate_python(found)
    except ValueError as error:
        raise InvalidMessageError(f"this version of Pydantic AI cannot read a stored message: {error}") from error
    for own, raw in zip(restored, found, strict=True):
        for piece, dump in zip(own.parts, raw["parts"], strict=True) if isinstance(raw, dict) else ():
            if isinstance(piece, UserPromptPart) and isinstance(dump, dict) and isinstance(dump["content"], list):
                piece.content = list(map(_as_given, piece.content, dump["content"]))
    return restored


def _as_given(item: Any, dump: Any) -> Any:
    """An item of a user's message in its class: validation makes every image a BinaryImage, which equals no other."""
    if isinstance(item, BinaryImage) and isinstance(dump, dict) and dump.get(_PLAIN):
        return BinaryContent(
            item.data,
            media_type=item.media_type,
            identifier=dump.get("identifier"),
            vendor_metadata=item.vendor_metadata,
        )
    return item


def _from_dump(dump: dict[str, Any]) -> Iterator[Message]:
    around = {key: value for key, value in dump.items() if key != "parts" and value is not None}
    if around.get("state") == "complete":  # the default
        del around["state"]
    note: dict[str, Any] = {"around": around} if around.keys() > {"kind"} else {}
    role: Role | None = None
    parts: list[Part] = []
    for raw in dump["parts"]:
        own: Role = "assistant" if dump["kind"] == "response" else _KINDS.get(raw["part_kind"], "tool")
        if raw["part_kind"] == "retry-prompt" and not raw.get("tool_name"):
            own = "user"
        if role not in (None, own):
            yield Message(role=role, parts=tuple(parts), provider_meta=with_note(_FORM, note) or {})
            note, parts = {"inside": True}, []
        role = own
        parts += _parts(raw)
    empty: Role = "assistant" if dump["kind"] == "response" else "user"
    usage = usage_of(dump.get("usage"), model=dump.get("model_name"))
    yield Message(role=role or empty, parts=tuple(parts), provider_meta=with_note(_FORM, note) or {}, usage=usage)


def _parts(raw: dict[str, Any]) -> Iterator[Part]:
    """The parts for one message part of Pydantic AI. The first part keeps the other fields, to restore the original."""
    rest = {key: value for key, value in raw.items() if value is not None and key not in ("content", "args")}
    content = raw.get("content")
    kind = raw["part_kind"]
    if kind in ("system-prompt", "text", "user-prompt") and isinstance(content, str):
        yield TextPart(text=content, provider_meta=with_note(_FORM, rest))
    elif kind == "user-prompt":
        for index, item in enumerate(content or [""]):
            yield noted(_item(item), _FORM, {"inside": True} if index else {**rest, "list": len(content or ())})
    elif kind == "thinking" and isinstance(content, str):
        signature = raw.get("signature")
        owner = _SIGNED_BY.get(str(raw.get("provider_name")).partition("-")[0])
        marks = {owner: {"id": raw["id"]} if raw.get("id") else {"type": "thinking"}} if owner and signature else {}
        rest.pop("signature", None)
        meta = {**(with_note(_FORM, rest) or {}), **marks}
        yield ReasoningPart(text=content, signature=signature, provider_meta=meta)
    elif kind == "tool-call":
        args = raw.get("args")
        value, is_text = stored_value({} if args is None else parsed(args))
        original: Any = None
        if isinstance(args, str) and (is_text or isinstance(value, str)):
            value, rest["args"] = args, "text"
        elif isinstance(args, str):
            rest["args"] = "text"
            original = None if json.dumps(value) == args else {"args": {"text": args}}
        elif args is None or is_text:
            rest["args"] = "none" if args is None else "parsed"
        own = with_note(_FORM, rest)
        call = ToolUsePart(id=raw["tool_call_id"], name=raw["tool_name"], input=value, provider_meta=own)
        yield call if original is None else quoted(call, _FORM, original)
    elif kind == "tool-return" or (kind == "retry-prompt" and raw.get("tool_name")):
        value, is_text = stored_value(content)
        rest |= {"parsed": True} if is_text else {}
        yield ToolResultPart(
            tool_use_id=raw["tool_call_id"],
            content=value,
            is_error=kind == "retry-prompt" or raw.get("outcome", "success") != "success",
            name=raw["tool_name"],
            provider_meta=with_note(_FORM, rest),
        )
    else:
        # Tools that the provider runs itself: call and result are in one reply.
        verb = {"builtin-tool-call": "opens", "builtin-tool-return": "answers"}.get(kind)
        pair = {verb: str(raw["tool_call_id"]), "hosted": True} if verb and raw.get("tool_call_id") else {}
        yield marked(opaque(_FORM, raw, kind), pair)


def _item(item: Any) -> Part:
    """The part for an item of a user's prompt. Its note has what else the item has."""
    match item:
        case str():
            return TextPart(text=item)
        case {"kind": "text-content", "content": str(text)}:
            return TextPart(text=text, provider_meta=with_note(_FORM, {"item": {**item, "content": ""}}))
    return templated(_FORM, item) or TextPart(text="", provider_meta=with_note(_FORM, {"item": item}))


def _built(message: Message) -> ModelMessage | None:
    """The message of Pydantic AI for one text, as most are, in half the time of its validation; None for any other."""
    classes, note = _TEXTS.get(message.role), note_of(message, _FORM)
    if classes is None or len(message.parts) != 1 or type(part := message.parts[0]) is not TextPart or "inside" in note:
        return None
    whole, piece = classes
    try:
        parts = [piece(content=part.text, **_arguments(piece, note_of(part, _FORM)))]
        return whole(parts=parts, **_arguments(whole, note.get("around", {})))  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError):  # it has other fields, or cannot be read
        return None


def _arguments(kind: Any, dump: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a class for fields of its JSON. Those of any text, and defaults, need no validation."""
    texts, defaults, readers = _fields(kind)
    arguments = {}
    for name, value in dump.items():
        if type(value) is str and name in texts:
            arguments[name] = value
        elif value != defaults.get(name):
            arguments[name] = readers[name](value)
    return arguments


@cache
def _fields(kind: Any) -> tuple[set[str], dict[str, Any], dict[str, Any]]:
    """The fields of a class that take any text, the defaults, and what reads a field from JSON."""
    hints = get_type_hints(kind)
    own = {one.name: one.default for one in fields(kind)}
    readers = {name: TypeAdapter(hints[name]).validate_python for name in own}
    return {name for name in own if hints[name] == str | None}, own, {**readers, "timestamp": datetime.fromisoformat}


def _to_parts(message: Message, names: Mapping[str, str], losses: Losses) -> Iterator[dict[str, Any]]:
    from_model, done = message.role == "assistant", 0
    for index, part in enumerate(message.parts):
        if index < done:
            continue
        note = note_of(part, _FORM)
        if isinstance(part, UnknownPart):
            found, lost = foreign_block(_FORM, part), None
        elif note and not note.get("inside"):
            found, lost = _restored(part, note), None
            if found is not None and "list" in note:
                own = [part, *takewhile(lambda one: note_of(one, _FORM).get("inside"), message.parts[index + 1 :])]
                items = [item for item in map(_present, own) if item is not None]
                found["content"], done = items if note["list"] or items != [""] else [], index + len(own)
        else:
            found, lost = _converted(part, message.role, names)
        if found is not None and (isinstance(part, UnknownPart) or (found["part_kind"] in _MODEL_PARTS) == from_model):
            yield found
        else:
            lost = f"a {type(part).__name__.removesuffix('Part').lower()} part in a message of role {message.role}"
        losses.add(message.id, index, lost)


def _present(part: Part) -> Any:
    """The item of a user's prompt for its part; None if Pydantic AI has no such item."""
    if isinstance(part, AttachmentPart):
        return from_template(_FORM, part) or _file(part)
    item = note_of(part, _FORM).get("item")
    if not isinstance(part, TextPart) or item is None:
        return part.text if isinstance(part, TextPart) else None
    return {**item, "content": part.text} if "content" in item else part.text or item


def _restored(part: Part, note: Mapping[str, Any]) -> dict[str, Any] | None:
    """The original part of Pydantic AI, with the current content of `part`."""
    rest = {key: value for key, value in note.items() if key not in ("args", "parsed", "list", "item", "template")}
    match part:
        case TextPart() if "list" not in note:
            return {**rest, "content": part.text}
        case TextPart() | AttachmentPart():
            return rest
        case ReasoningPart():
            return {**rest, "content": part.text, "signature": part.signature}
        case ToolUsePart():
            return {**rest, "tool_name": part.name, "tool_call_id": part.id, "args": _args(part, note.get("args"))}
        case ToolResultPart():
            return {**rest, "content": parsed(part.content) if note.get("parsed") else part.content}
    return None


def _args(part: ToolUsePart, form: Any) -> Any:
    if form == "none" and not part.input:
        return None
    if form == "parsed":
        return parsed(part.input)
    if isinstance(form, dict) and parsed(form["text"]) == part.input:
        return form["text"]
    if form is not None or not isinstance(part.input, dict):
        return part.input if isinstance(part.input, str) else json.dumps(part.input)
    return part.input


def _converted(part: Part, role: Role, names: Mapping[str, str]) -> tuple[dict[str, Any] | None, str | None]:
    """The part of Pydantic AI for a part of another framework, and what was lost."""
    match part:
        case TextPart():
            kind = {"assistant": "text", "system": "system-prompt"}.get(role, "user-prompt")
            return {"part_kind": kind, "content": part.text}, None
        case ReasoningPart():
            lost = None if part.signature is None else "the signature of reasoning"
            return {"part_kind": "thinking", "content": part.text}, lost
        case ToolUsePart():
            args = part.input if isinstance(part.input, dict | str) else json.dumps(part.input)
            return {"part_kind": "tool-call", "tool_name": part.name, "args": args, "tool_call_id": part.id}, None
        case ToolResultPart():
            id_ = part.tool_use_id
            name = part.name or names.get(id_) or "unknown"
            outcome = {"outcome": "failed"} if part.is_error else {}
            result = {"tool_name": name, "content": part.content, "tool_call_id": id_}
            return {"part_kind": "tool-return", **result, **outcome}, None
        case AttachmentPart() if (item := _file(part)) is not None:
            return {"part_kind": "user-prompt", "content": [item]}, None if part.name is None else "the name of a file"
    return None, None


def _file(part: AttachmentPart) -> dict[str, Any] | None:
    mime, data = split_data_url(part.reference)
    if data is not None:
        return {"kind": "binary", "data": data, "media_type": mime or part.mime_type or "application/octet-stream"}
    if part.reference is None or not part.reference.startswith(("http://", "https://")):
        return None
    kind = part.modality if part.modality in ("image", "audio", "video") else "document"
    typed = {"media_type": part.mime_type} if part.mime_type else {}
    return {"kind": f"{kind}-url", "url": part.reference, **typed}
