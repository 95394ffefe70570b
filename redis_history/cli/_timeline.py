"""Prints messages and changes for people: author, time and content, with tool calls next to their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Any, Final, NamedTuple, cast

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from redis_history.cli._output import counted, json_line, name, one_line, put, visible
from redis_history.compaction.summaries import read_summary
from redis_history.events import (
    ConversationDeleted,
    ConversationUpdated,
    Event,
    HistoryCleared,
    HistoryCompacted,
    HistoryExpanded,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    ReplyEnded,
    ReplyGrew,
    Reset,
    ResetReason,
)
from redis_history.json_form import to_json
from redis_history.model import (
    AttachmentPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.model.message import content_text
from redis_history.model.pairs import pairs_of

_STYLES = {"user": "bold cyan", "assistant": "bold green", "system": "bold magenta", "tool": "bold yellow"}
_RESULT_LINES, _RESULT_CHARACTERS, _INPUT_CHARACTERS = 12, 1500, 400


def _turns(messages: Iterable[Message]) -> Iterator[tuple[Message, dict[int, ToolResultPart]]]:
    """Each message with the results that directly follow it, by the index of the part that they answer."""
    run: list[Message] = []
    for message in messages:
        if run and message.parts and all(isinstance(part, ToolResultPart) for part in message.parts):
            run.append(message)
            continue
        yield from _with_results(run)
        run = [message]
        if not message.tool_uses:
            yield message, {}
            run = []
    yield from _with_results(run)


def _with_results(run: list[Message]) -> Iterator[tuple[Message, dict[int, ToolResultPart]]]:
    """A message with its results, and the messages after it that have other results."""
    pairs = pairs_of(run)
    beside = {
        index
        for index, message in enumerate(run)
        if index and all((index, at) in pairs.call_of for at in range(len(message.parts)))
    }
    for index, message in enumerate(run):
        if index not in beside:
            places = {} if index else {call[1]: place for call, place in pairs.answered.items() if place[0] in beside}
            yield message, {at: cast("ToolResultPart", run[i].parts[part]) for at, (i, part) in places.items()}


def who(message: Message) -> str:
    """The name of a message's author, or its role."""
    participant = message.participant
    return name(message.role if participant is None else participant.display_name or participant.id)


class Timeline:
    """Prints messages one below the other. `tools`, `reasoning`: whether to show these parts; `full`: whether to show
    long parts in full. `archived(message)`: whether a message is in the archive."""

    def __init__(
        self,
        screen: Console,
        *,
        tools: bool = True,
        reasoning: bool = True,
        full: bool = False,
        archived: Callable[[Message], bool] | None = None,
    ) -> None:
        self._screen = screen
        self._tools = tools
        self._reasoning = reasoning
        self._full = full
        self._archived = archived
        self._day: date | None = None

    def together(self, messages: Iterable[Message]) -> None:
        """Print a complete list of messages, with calls and results side by side."""
        for message, results in _turns(messages):
            self.one(message, results)

    def one(self, message: Message, results: dict[int, ToolResultPart] | None = None, note: str = "") -> None:
        """Print a message, with the results of its calls and a note."""
        body = [line for part in self._parts(message, results or {}) for line in part]
        if not body and message.parts:
            return  # all its parts are hidden
        self.head(message, note)
        for text, indent in body or [(Text("(empty)", style="dim"), 2)]:
            put(self._screen, text, indent)
        self._screen.print()

    def grow(self, before: Message, message: Message, amid: bool) -> bool:
        """Print what a reply has more than before. `amid`: whether the last line is not ended; returned as well."""
        for place, part in enumerate(message.parts):
            old = before.parts[place] if place < len(before.parts) else None
            if part == old:
                continue
            if amid and old is None:
                self._screen.print()
                amid = False
            if isinstance(part, TextPart):
                more = part.text[len(old.text) if isinstance(old, TextPart) else 0 :]
                shown = visible(more).replace("\n", "\n  ")
                self._screen.print(Text(shown if amid else f"  {shown}"), end="", soft_wrap=True)
                amid = True
            else:
                for line in self._parts(replace(message, parts=(part,), sources=()), {}):
                    for text, indent in line:
                        put(self._screen, text, indent)
        return amid

    def head(self, message: Message, note: str = "") -> None:
        """Print the time and the author of a message."""
        time = message.timestamp.astimezone() if message.timestamp else None
        if time is not None and time.date() != self._day:
            self._day = time.date()
            self._screen.print(Text(f"── {self._day.isoformat()} ──", style="dim"))
        head = Text.assemble((f"{time.strftime('%H:%M:%S') if time else '':8}  ", "dim"))
        if message.is_summary:
            head.append("Summary of earlier messages", style="bold magenta")
        else:
            shown = who(message)
            head.append(shown, style=_STYLES[message.role])
            if shown != message.role:
                head.append(f"  {message.role}", style="dim")
        notes = [note, message.scope or "", "interrupted" if message.status == "interrupted" else ""]
        notes.append("archived" if self._archived and self._archived(message) else "")
        if said := " · ".join(filter(None, notes)):
            head.append(f"  {said}", style="dim")
        self._screen.print(head)

    def _parts(self, message: Message, results: dict[int, ToolResultPart]) -> Iterator[list[tuple[Text, int]]]:
        if message.is_summary:
            yield [(Text(visible(read_summary(message)), style="italic"), 2)]
            return
        for place, part in enumerate(message.parts):
            match part:
                case TextPart():
                    yield [(Text(visible(part.text)), 2)] if part.text else []
                case ReasoningPart():
                    if self._reasoning and part.text:
                        yield [(Text(visible(part.text), style="dim italic"), 2)]
                case ToolUsePart():
                    if self._tools:
                        yield [(self._call(part), 2)]
                        if place in results:
                            yield [(self._result(results[place], beside=True), 4)]
                case ToolResultPart():
                    if self._tools:
                        yield [(self._result(part), 2)]
                case AttachmentPart():
                    yield [(_attachment(part), 2)]
                case UnknownPart():
                    yield [(Text(f"(a part of the type {part.type!a}, which this version does not know)", "dim"), 2)]
        if message.sources:
            named = (source.document_name or source.document_id or "?" for source in message.sources)
            yield [(Text(f"sources: {', '.join(map(name, named))}", style="dim"), 2)]

    def _call(self, part: ToolUsePart) -> Text:
        said = part.input
        if isinstance(said, dict):
            inside = ", ".join(f"{name(str(key))}={_json(value)}" for key, value in said.items())
        else:
            inside = _json(said)
        if not self._full and len(inside) > _INPUT_CHARACTERS:
            inside = f"{inside[:_INPUT_CHARACTERS]}… ({len(inside):,} characters)"
        return Text.assemble(("→ ", "yellow"), (name(part.name), "yellow"), f"({inside})")

    def _result(self, part: ToolResultPart, *, beside: bool = False) -> Text:
        said = visible(content_text(part.content)) or _json(part.content)
        sign = ("✗ ", "red") if part.is_error else ("← ", "yellow")
        named = "" if beside else f"{name(part.name or part.tool_use_id)}: "
        aligned = self._cut(said).replace("\n", "\n  ")
        return Text.assemble(sign, (named, "yellow"), (aligned, "red" if part.is_error else ""))

    def _cut(self, text: str) -> str:
        if self._full:
            return text
        lines = text.split("\n")
        short = "\n".join(lines[:_RESULT_LINES])[:_RESULT_CHARACTERS]
        if len(short) == len(text):
            return text
        return f"{short}… ({len(lines):,} lines, {len(text):,} characters; --full shows all)"


def _json(value: Any) -> str:
    return one_line(json_line(to_json(value)).decode())


def _attachment(part: AttachmentPart) -> Text:
    size = None if part.size is None else f"{part.size:,} bytes"
    said = ", ".join(name(one) for one in (part.modality, part.mime_type, size, part.reference) if one)
    return Text.assemble(("▤ ", "blue"), (name(part.name or part.id or "attachment"), "blue"), f"  {said}")


_REASONS: Final[dict[ResetReason, str]] = {
    "log_trimmed": "there were more changes than the change log keeps",
    "log_unreadable": "an entry of the change log cannot be read",
    "conversation_missing": "the conversation does not exist any more",
    "conversation_replaced": "the conversation was deleted and created again",
    "server_rewound": "the server has lost changes that it had confirmed",
}


class Change(NamedTuple):
    """How to show a change: the messages, each with the note, then the words."""

    words: str = ""
    messages: tuple[Message, ...] = ()
    note: str = ""


def describe(event: Event) -> Change:
    match event:
        case MessagesAppended():
            gone = len(event.removed_ids)
            return Change(
                f"-- the oldest {counted(gone, 'message')} removed to make room" if gone else "", event.messages
            )
        case MessageUpdated():
            return (
                Change("", (event.message,), "edited") if event.message else Change("-- a message edited and deleted")
            )
        case ReplyGrew():
            return Change()
        case ReplyEnded():
            return Change("", (event.message,)) if event.message else Change("-- a reply written and deleted")
        case MessagesDeleted():
            return Change(f"-- {counted(len(event.message_ids), 'message')} deleted")
        case HistoryCleared():
            return Change("-- all messages removed")
        case HistoryRestored():
            left = {message.id for message in event.messages} - set(event.removed_ids)
            return Change(f"-- all messages replaced by {len(left):,} others")
        case HistoryCompacted():
            words = f"replaces {counted(event.count, 'message')}"
            return Change("", (event.summary,), words) if event.summary else Change(f"-- a former summary {words}")
        case HistoryExpanded():
            return Change(f"-- a summary was replaced by its {counted(event.count, 'message')}")
        case ConversationUpdated():
            said = "; ".join(f"{name(key)}: {one_line(str(value), 200)}" for key, value in event.fields.items())
            return Change(f"-- the record changed: {said}" if said else "-- the record changed")
        case ConversationDeleted():
            return Change("-- the conversation was deleted")
        case Reset():
            return Change(
                f"-- some changes are missing: {_REASONS[event.reason]}. `redis-history show` shows the messages that "
                f"are stored now; from revision {event.revision:,} on, all changes follow"
            )
