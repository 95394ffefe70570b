"""AG-UI: an answer as events of the package `ag-ui-protocol`, for `HttpAgent` of `@ag-ui/client`.

`redis_history.web.ChatEndpoints` with `protocol="ag-ui"` has all endpoints of a chat. Needs
`pip install 'redis_history[ag-ui]'`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import orjson

from redis_history import values as model
from redis_history.formats.json_form import to_json
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.values._validation import check_store, missing
from redis_history.values.approvals import asks, names_of
from redis_history.values.pairs import open_calls
from redis_history.web._answers import ERRORS, SIZE, Answer, newest_messages
from redis_history.web._questions import Question, follow

try:
    from ag_ui import core
except ImportError as error:
    raise missing("ag-ui", error) from error

__all__ = ["events", "to_ag_ui"]

#: The last event of a stream that is cut before its answer ends.
CUT: Final = core.RunErrorEvent(message="The stream was cut before the end of the answer.", code="reconnect")


async def events(
    store: AsyncHistoryStore,
    conversation_id: str,
    *,
    run_id: str | None = None,
    after: model.Position | None = None,
    protocol_run_id: str | None = None,
    snapshot: bool = False,
) -> AsyncIterator[core.BaseEvent | None]:
    """The events of the answer of a run from its start, as it is written, until the run ends: RUN_STARTED, text,
    reasoning, tool calls and results, then RUN_FINISHED (after a stop with the outcome "cancelled", and "interrupt" if
    calls wait for approval) or RUN_ERROR. No event is sent during pauses.

    `run_id`: the run to follow, also if it still waits for its turn; None: the active run. Without an active run, no
    events follow. `after`: the position of the message that it answers. `protocol_run_id`: the id of the run in the
    events, by default that of the store's run. `snapshot`: for a client that reconnects. RUN_STARTED is then followed
    by the messages of the conversation with the answer so far, and by the rest of the answer; also without a run. A
    snapshot also follows if sent content is edited or removed. Raises ConfigurationError for another store than an
    AsyncHistoryStore.
    """
    check_store(store, "events", AsyncHistoryStore)
    async for found in events_of(store, conversation_id, run_id, after, protocol_run_id, snapshot):
        for event in found or (None,):
            yield event


async def events_of(
    store: AsyncHistoryStore, conversation_id: str, run_id: str | None, after: model.Position | None,
    protocol_run_id: str | None, snapshot: bool, replaces: bool = False, size: int = SIZE,
    question: Question | None = None,
) -> AsyncIterator[list[core.BaseEvent]]:  # fmt: skip
    """The `events` in groups of those that are available together. `replaces`: the answer replaces the messages that
    former runs wrote after the message. `size`: bytes of the messages of a snapshot."""
    writer: _Writer | None = None

    async def shown(answer: Answer) -> core.MessagesSnapshotEvent:
        stored, _ = await newest_messages(store, conversation_id, size=size)
        own = {message.id: message for message in answer.messages}
        known = [own.get(one.id, one) for one in stored if one.id in own or answer.precedes(one)]
        return core.MessagesSnapshotEvent(messages=to_ag_ui(known))

    options: dict[str, Any] = {"question": question, "run_id": run_id, "after": after, "replaces": replaces}
    async for answer in follow(store, conversation_id, **options):
        found: list[core.BaseEvent] = []
        if writer is not None and writer.is_outdated(answer):
            found += [*writer.ends, await shown(answer)]
            writer.skip(answer)
        if writer is None and (answer.run is not None or answer.done):
            name = protocol_run_id or (answer.run.run_id if answer.run is not None else run_id) or ""
            writer = _Writer(conversation_id, name)
            found.append(core.RunStartedEvent(thread_id=conversation_id, run_id=name))
            if snapshot:
                found.append(await shown(answer))
                writer.skip(answer)
        if writer is not None:
            found += writer.events(answer)
        yield found
    if writer is None and snapshot:
        run: dict[str, Any] = {"thread_id": conversation_id, "run_id": protocol_run_id or ""}
        stored, _ = await newest_messages(store, conversation_id, size=size)
        found = [core.RunStartedEvent(**run), core.MessagesSnapshotEvent(messages=to_ag_ui(stored))]
        yield [*found, core.RunFinishedEvent(**run)]


class _Writer:
    """Writes the new content of an answer since the last call."""

    def __init__(self, conversation_id: str, run_id: str) -> None:
        self._conversation_id, self._run_id = conversation_id, run_id
        self._texts: dict[tuple[str, int], str] = {}  # as far as the client has them
        self._begun: dict[tuple[str, int], list[core.BaseEvent]] = {}  # texts, and how they end
        self._ended: dict[tuple[str, int], Any] = {}  # parts that are complete, as the client has them

    def skip(self, answer: Answer) -> None:
        """Note that the client has this part of the answer from a snapshot."""
        self._texts, self._begun, self._ended = {}, {}, {}
        for message, index, part, complete in self._parts(answer):
            is_text = isinstance(part, model.TextPart | model.ReasoningPart)
            if is_text:
                self._texts[message.id, index] = part.text
            if complete or not is_text:
                self._ended[message.id, index] = _shown(part)

    def is_outdated(self, answer: Answer) -> bool:
        """Whether content that the client has was edited or removed."""
        parts = {(message.id, at): part for message, at, part, _ in self._parts(answer)}
        if not (self._texts.keys() | self._ended.keys()) <= parts.keys():
            return True
        growing = ((parts[key], text) for key, text in self._texts.items() if key not in self._ended)
        return any(shown != _shown(parts[key]) for key, shown in self._ended.items()) or any(
            not getattr(part, "text", "").startswith(text) for part, text in growing
        )

    @property
    def ends(self) -> list[core.BaseEvent]:
        """The ends of the texts that are being written."""
        return [event for end in self._begun.values() for event in end]

    def events(self, answer: Answer) -> Iterator[core.BaseEvent]:
        for message, index, part, complete in self._parts(answer):
            if (message.id, index) not in self._ended:
                yield from self._part(message, index, part, complete)
        if answer.done:
            yield self._end(answer)

    def _parts(self, answer: Answer) -> Iterator[tuple[model.Message, int, Any, bool]]:
        """The parts of an answer, and whether each is complete."""
        for message in answer.messages:
            complete = answer.done or message.status != "streaming"
            for index, part in enumerate(message.parts):
                yield message, index, part, complete or index < len(message.parts) - 1

    def _part(self, message: model.Message, index: int, part: Any, complete: bool) -> Iterator[core.BaseEvent]:
        key, name = (message.id, index), _part_id(message, index)
        match part:
            case model.TextPart(text=text) | model.ReasoningPart(text=text):
                start, content, end = _TEXT if isinstance(part, model.TextPart) else _REASONING
                known = self._texts.get(key, "")
                if key not in self._begun:
                    self._begun[key] = [event(message_id=name) for event in end]
                    yield from (event(message_id=name) for event in start)
                if len(text) > len(known):  # an empty delta is not a valid event
                    yield content(message_id=name, delta=text[len(known) :])
                self._texts[key] = text
                if complete:
                    yield from self._begun.pop(key)
            case model.ToolUsePart():
                parent = _part_id(message, _text_before(message, index))
                yield core.ToolCallStartEvent(tool_call_id=part.id, tool_call_name=part.name, parent_message_id=parent)
                yield core.ToolCallArgsEvent(tool_call_id=part.id, delta=_json(part.input))
                yield core.ToolCallEndEvent(tool_call_id=part.id)
            case model.ToolResultPart():
                yield core.ToolCallResultEvent(
                    message_id=name, tool_call_id=part.tool_use_id, content=_text_of(part.content)
                )
        if complete or not isinstance(part, model.TextPart | model.ReasoningPart):
            self._ended[key] = _shown(part)

    def _end(self, answer: Answer) -> core.BaseEvent:
        if answer.end in ERRORS:
            return core.RunErrorEvent(message=ERRORS[answer.end], code=answer.end)
        outcome: Any = None
        if answer.end == "stopped":
            outcome = core.RunFinishedCancelledOutcome()
        elif interrupts := [*_interrupts(answer.messages)]:
            outcome = core.RunFinishedInterruptOutcome(interrupts=interrupts)
        return core.RunFinishedEvent(thread_id=self._conversation_id, run_id=self._run_id, outcome=outcome)


def _interrupts(messages: Sequence[model.Message]) -> Iterator[core.Interrupt]:
    """The calls that wait for approval."""
    for _, calls in open_calls(messages):
        for call in filter(asks, calls):
            message = f"Approve the call of {call.name}?"
            yield core.Interrupt(
                id=names_of(call)[-1], reason="tool_approval", message=message, tool_call_id=call.id,
                response_schema=_DECISION,
            )  # fmt: skip


#: The answer to an interrupt.
_DECISION: Final = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}

#: The events that begin a text, continue it and end it.
_TEXT: Final[Any] = (
    (partial(core.TextMessageStartEvent, role="assistant"),),
    core.TextMessageContentEvent,
    (core.TextMessageEndEvent,),
)
_REASONING: Final[Any] = (
    (core.ReasoningStartEvent, partial(core.ReasoningMessageStartEvent, role="reasoning")),
    core.ReasoningMessageContentEvent,
    (core.ReasoningMessageEndEvent, core.ReasoningEndEvent),
)


def _shown(part: Any) -> Any:
    """The content of a part that clients may see."""
    match part:
        case model.TextPart(text=text) | model.ReasoningPart(text=text):
            return text
        case model.ToolUsePart():
            return part.id, part.name, part.input
        case model.ToolResultPart():
            return part.tool_use_id, part.content, part.is_error
    return None


def _part_id(message: model.Message, index: int) -> str:
    """The id of the AG-UI message for a part. Each text and each result is a separate message."""
    return message.id if index == 0 else f"{message.id}:{index}"


def _text_before(message: model.Message, index: int) -> int:
    """The index of the part whose AG-UI message has a call: the last text before it, or else the first call."""
    texts = [at for at, part in enumerate(message.parts[:index]) if isinstance(part, model.TextPart)]
    return (
        texts[-1] if texts else next(at for at, part in enumerate(message.parts) if isinstance(part, model.ToolUsePart))
    )


def _text_of(content: Any) -> str:
    """The result of a tool as text: structured content as JSON."""
    return content if isinstance(content, str) else _json(content)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=to_json).decode()


def to_ag_ui(messages: Iterable[model.Message]) -> list[Any]:
    """AG-UI messages for stored messages, with the ids that their events have. An assistant message with several texts
    becomes several. Content without a message in the protocol, such as sources, is left out."""
    found: list[Any] = []
    for message in messages:
        who = message.participant
        name = None if who is None else who.display_name or who.id
        if message.role == "user":
            found.append(
                core.UserMessage.model_validate({"id": message.id, "content": _user_content(message), "name": name})
            )
        elif message.role == "system":
            found.append(core.SystemMessage(id=message.id, content=message.text))
        else:
            found += _assistant(message, name)
    return found


def _assistant(message: model.Message, name: str | None) -> Iterator[Any]:
    current: Any = None
    for index, part in enumerate(message.parts):
        if isinstance(part, model.TextPart):
            current = core.AssistantMessage(id=_part_id(message, index), content=part.text, name=name)
            yield current
        elif isinstance(part, model.ReasoningPart):
            yield core.ReasoningMessage(id=_part_id(message, index), content=part.text)
        elif isinstance(part, model.ToolUsePart):
            if current is None:
                current = core.AssistantMessage(id=_part_id(message, index), name=name)
                yield current
            call = core.ToolCall(id=part.id, function=core.FunctionCall(name=part.name, arguments=_json(part.input)))
            current.tool_calls = [*(current.tool_calls or ()), call]
        elif isinstance(part, model.ToolResultPart):
            text = _text_of(part.content)
            yield core.ToolMessage(
                id=_part_id(message, index),
                tool_call_id=part.tool_use_id,
                content=text,
                error=text if part.is_error else None,
            )


def _user_content(message: model.Message) -> str | list[dict[str, Any]]:
    """A text, or a list of texts and media."""
    found: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, model.TextPart):
            found.append({"type": "text", "text": part.text})
        elif isinstance(part, model.AttachmentPart) and part.reference:
            kind = (part.mime_type or "").partition("/")[0]
            source = {"type": "url", "value": part.reference, "mimeType": part.mime_type}
            if part.reference.startswith("data:") and ";base64," in part.reference:
                source |= {"type": "data", "value": part.reference.partition(";base64,")[2]}
            found.append({"type": kind if kind in ("image", "audio", "video") else "document", "source": source})
    return found if any(one["type"] != "text" for one in found) else message.text
