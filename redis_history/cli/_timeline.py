"""Prints messages and changes for people: author, time and content, with tool calls next to their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from redis_history import values as model
from redis_history.agents.compaction.summaries import read_summary
from redis_history.cli._output import counted, json_line, name, one_line, put, visible
from redis_history.formats.json_form import to_json
from redis_history.values import events
from redis_history.values.message import content_text
from redis_history.values.pairs import pairs_of
from redis_history.values.runs import RunInfo
from redis_history.values.turns import Turn

_STYLES = {"user": "bold cyan", "assistant": "bold green", "system": "bold magenta", "tool": "bold yellow"}
_RESULT_LINES, _RESULT_CHARACTERS, _INPUT_CHARACTERS = 12, 1500, 400

#: The results of the calls of a message, by the index of the part with the call.
_Results = dict[int, Any]


def _turns(messages: Iterable[model.Message]) -> Iterator[tuple[model.Message, _Results]]:
    """Each message with the results of its calls that directly follow it."""
    run: list[model.Message] = []  # a message, and the messages of nothing but results after it
    for message in messages:
        if not message.parts or not all(isinstance(part, model.ToolResultPart) for part in message.parts):
            yield from _with_results(run)
            run = []
        run.append(message)
    yield from _with_results(run)


def _with_results(run: list[model.Message]) -> Iterator[tuple[model.Message, _Results]]:
    pairs = pairs_of(run)
    beside = {
        index
        for index, message in enumerate(run)
        if index and all((index, part) in pairs.call_of for part in range(len(message.parts)))
    }
    results = {call[1]: run[index].parts[part] for call, (index, part) in pairs.answered.items() if index in beside}
    for index, message in enumerate(run):
        if index not in beside:
            yield message, {} if index else results


def author(message: model.Message) -> str:
    """The name of a message's author, or its role."""
    participant = message.participant
    return name(message.role if participant is None else participant.display_name or participant.id)


@dataclass
class Timeline:
    """Prints messages one below the other. `tools`, `reasoning`: whether to show these parts; `full`: whether to show
    long parts in full. `archived(message)`: whether a message is in the archive. `edited`: ids of edited messages."""

    screen: Console
    tools: bool
    reasoning: bool
    full: bool
    archived: Callable[[model.Message], bool] = lambda message: False
    edited: frozenset[str] = frozenset()
    _day: date | None = None  # of the message that was printed last

    def print_all(self, messages: Iterable[model.Message]) -> None:
        """Print messages, with calls and results side by side."""
        for message, results in _turns(messages):
            self.print(message, results)

    def print(self, message: model.Message, results: _Results | None = None, note: str = "") -> None:
        """Print a message, with the results of its calls and a note."""
        lines = list(self._lines(message, results or {}))
        if not lines and message.parts:
            return  # all its parts are hidden
        self.head(message, note)
        for text, indent in lines or [(Text("(empty)", style="dim"), 2)]:
            put(self.screen, text, indent)
        self.screen.print()

    def grow(self, before: model.Message, message: model.Message, within_line: bool) -> bool:
        """Print what is new in a reply since `before`. Takes and returns whether the last line is unfinished."""
        for index, part in enumerate(message.parts):
            old = before.parts[index] if index < len(before.parts) else None
            if part == old:
                continue
            if within_line and old is None:
                self.screen.print()
                within_line = False
            if isinstance(part, model.TextPart):
                more = visible(part.text[len(old.text) if isinstance(old, model.TextPart) else 0 :]).replace(
                    "\n", "\n  "
                )
                self.screen.print(Text(more if within_line else f"  {more}"), end="", soft_wrap=True)
                within_line = True
            else:
                for text, indent in self._lines(replace(message, parts=(part,), sources=()), {}):
                    put(self.screen, text, indent)
        return within_line

    def head(self, message: model.Message, note: str = "") -> None:
        """Print the time and the author of a message."""
        time = message.timestamp.astimezone() if message.timestamp else None
        if time is not None and time.date() != self._day:
            self._day = time.date()
            self.screen.print(Text(f"── {self._day.isoformat()} ──", style="dim"))
        head = Text.assemble((f"{time.strftime('%H:%M:%S') if time else '':8}  ", "dim"))
        if message.is_summary:
            head.append("Summary of earlier messages", style="bold magenta")
        else:
            head.append(author(message), style=_STYLES[message.role])
            if author(message) != message.role:
                head.append(f"  {message.role}", style="dim")
        notes = [note, message.scope, message.status == "interrupted" and "interrupted"]
        notes += [message.id in self.edited and "edited", message.is_pinned and "pinned"]
        notes.append(self.archived(message) and "archived")
        if shown := " · ".join(note for note in notes if note):
            head.append(f"  {shown}", style="dim")
        self.screen.print(head)

    def _lines(self, message: model.Message, results: _Results) -> Iterator[tuple[Text, int]]:
        """The content of a message, each piece with its indentation."""
        if message.is_summary:
            yield Text(visible(read_summary(message)), style="italic"), 2
            return
        for index, part in enumerate(message.parts):
            match part:
                case model.TextPart() if part.text:
                    yield Text(visible(part.text)), 2
                case model.ReasoningPart() if part.text and self.reasoning:
                    yield Text(visible(part.text), style="dim italic"), 2
                case model.ToolUsePart() if self.tools:
                    yield self._call(part), 2
                    if index in results:
                        yield self._result(results[index], ""), 4
                case model.ToolResultPart() if self.tools:
                    yield self._result(part, f"{name(part.name or part.tool_use_id)}: "), 2
                case model.AttachmentPart():
                    yield _attachment(part), 2
                case model.UnknownPart():
                    yield Text(f"(a part of the type {part.type!a}, which this version does not know)", "dim"), 2
        if message.sources:
            names = (source.document_name or source.document_id or "?" for source in message.sources)
            yield Text(f"sources: {', '.join(map(name, names))}", style="dim"), 2

    def _call(self, part: model.ToolUsePart) -> Text:
        if isinstance(part.input, dict):
            arguments = ", ".join(f"{name(str(key))}={_json(value)}" for key, value in part.input.items())
        else:
            arguments = _json(part.input)
        if not self.full and len(arguments) > _INPUT_CHARACTERS:
            arguments = f"{arguments[:_INPUT_CHARACTERS]}… ({len(arguments):,} characters)"
        return Text.assemble(("→ ", "yellow"), (name(part.name), "yellow"), f"({arguments})")

    def _result(self, part: model.ToolResultPart, prefix: str) -> Text:
        text = visible(content_text(part.content)) or _json(part.content)
        lines = text.split("\n")
        short = "\n".join(lines[:_RESULT_LINES])[:_RESULT_CHARACTERS]
        if not self.full and len(short) < len(text):
            text = f"{short}… ({len(lines):,} lines, {len(text):,} characters; --full shows all)"
        sign, style = ("✗ ", "red") if part.is_error else ("← ", "yellow")
        aligned = text.replace("\n", "\n  ")
        return Text.assemble((sign, style), (prefix, "yellow"), (aligned, "red" if part.is_error else ""))


def _json(value: Any) -> str:
    return one_line(json_line(to_json(value)).decode())


def _attachment(part: model.AttachmentPart) -> Text:
    size = None if part.size is None else f"{part.size:,} bytes"
    facts = ", ".join(name(one) for one in (part.modality, part.mime_type, size, part.reference) if one)
    return Text.assemble(("▤ ", "blue"), (name(part.name or part.id or "attachment"), "blue"), f"  {facts}")


_REASONS: Final[dict[events.ResetReason, str]] = {
    "log_trimmed": "there were more changes than the change log keeps",
    "log_unreadable": "an entry of the change log cannot be read",
    "conversation_missing": "the conversation does not exist any more",
    "conversation_replaced": "the conversation was deleted and created again",
    "server_rewound": "the server has lost changes that it had confirmed",
}


_RUNS: Final[dict[str, str]] = {
    "active": "is at work",
    "stopping": "was asked to stop",
    "completed": "has finished",
    "failed": "failed",
    "stopped": "was stopped",
    "interrupted": "was interrupted",
}
_MOST_WAITERS: Final = 3


def describe_run(run: RunInfo) -> str:
    """A sentence about the newest run of a conversation: its agent, its start, and the waiting agents."""
    sentence = f"{_agent(run.agent_name)} {_RUNS[run.status]}"
    if run.stop_reason is not None:
        sentence += f" ({one_line(run.stop_reason, 200)})"
    if run.is_active:
        sentence += f", since {run.started_at.astimezone():%H:%M:%S}"
    for place in run.waiting[:_MOST_WAITERS]:
        sentence += f"; {_agent(place.agent_name)} waits since {place.since.astimezone():%H:%M:%S}"
    if (more := len(run.waiting) - _MOST_WAITERS) > 0:
        sentence += f"; {more} more waiting"
    return sentence


_TURNS: Final[dict[str, str]] = {
    "owed": "owes an answer",
    "running": "answers",
    "waiting": "waits for a decision",
    "parked": "has failed to answer",
}


def describe_turn(turn: Turn) -> str:
    """A sentence about an answer that a conversation is owed."""
    sentence = f"{_agent(turn.agent_name)} {_TURNS[turn.status]}"
    if turn.attempt > 1:
        sentence += f", attempt {turn.attempt}"
    if turn.error is not None and turn.status != "running":
        sentence += f" after {one_line(turn.error, 200)}"
    if turn.status == "owed" and turn.due_at > datetime.now(UTC):
        sentence += f", due at {turn.due_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return sentence


def _agent(agent_name: str | None) -> str:
    return name(agent_name) if agent_name else "an agent"


def describe(event: events.Event) -> tuple[tuple[model.Message, ...], str, str]:
    """How to show a change: the messages, a note on each, and a sentence after them."""
    match event:
        case events.MessagesAppended():
            removed = counted(len(event.removed_ids), "message")
            return event.messages, "", f"the oldest {removed} removed to make room" if event.removed_ids else ""
        case events.MessageUpdated():
            return ((event.message,), "edited", "") if event.message else ((), "", "a message edited and deleted")
        case events.ReplyEnded():
            return ((event.message,), "", "") if event.message else ((), "", "a reply written and deleted")
        case events.HistoryCompacted():
            note = f"replaces {counted(event.count, 'message')}"
            return ((event.summary,), note, "") if event.summary else ((), "", f"a former summary {note}")
        case events.MessagesDeleted():
            return (), "", f"{counted(len(event.message_ids), 'message')} deleted"
        case events.RunChanged(run=run):
            return (), "", describe_run(run)
        case events.TurnChanged(turns=turns):
            return (), "", "; ".join(map(describe_turn, turns)) or "no answer is owed"
        case events.HistoryCleared():
            return (), "", "all messages removed"
        case events.HistoryRestored():
            count = len({message.id for message in event.messages} - set(event.removed_ids))
            return (), "", f"all messages replaced by {count:,} others"
        case events.HistoryExpanded():
            return (), "", f"a summary was replaced by its {counted(event.count, 'message')}"
        case events.ConversationUpdated():
            fields = "; ".join(f"{name(key)}: {one_line(str(value), 200)}" for key, value in event.fields.items())
            return (), "", f"the record changed: {fields}" if fields else "the record changed"
        case events.ConversationDeleted():
            return (), "", "the conversation was deleted"
        case events.Reset():
            return (), "", (
                f"some changes are missing: {_REASONS[event.reason]}. `redis-history show` shows the messages that are "
                f"stored now; from revision {event.revision:,} on, all changes follow"
            )  # fmt: skip
    return (), "", ""
