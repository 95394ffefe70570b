"""Prints messages for people: author, time and content, with tool calls next to their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from redis_history.cli._console import put
from redis_history.cli._text import json_line, name, one_line, visible
from redis_history.compaction.summaries import read_summary
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

__all__ = ["Timeline", "who"]

_STYLES = {"user": "bold cyan", "assistant": "bold green", "system": "bold magenta", "tool": "bold yellow"}
_RESULT_LINES, _RESULT_CHARACTERS, _INPUT_CHARACTERS, _LONGEST_LINE = 12, 1500, 400, 2000


class _Turn(NamedTuple):
    """A message, and the results of its calls from the messages right after it, by the index of the call's part."""

    message: Message
    results: dict[int, ToolResultPart]


def paired(messages: Iterable[Message]) -> Iterator[_Turn]:
    """Joins tool calls with the results that directly follow them, and skips messages that only have such results.

    Ids may repeat: a result belongs to the nearest earlier call of its id that has no result yet.
    """
    waiting: _Turn | None = None
    for message in messages:
        if waiting is not None and message.parts and all(isinstance(p, ToolResultPart) for p in message.parts):
            places = _answered(waiting, message.tool_results)
            if places is not None:
                waiting.results.update(places)
                continue
        if waiting is not None:
            yield waiting
            waiting = None
        turn = _Turn(message, {})
        if message.tool_uses:
            waiting = turn
        else:
            yield turn
    if waiting is not None:
        yield waiting


def _answered(turn: _Turn, results: Sequence[ToolResultPart]) -> dict[int, ToolResultPart] | None:
    """The results by the index of the call that they answer; None unless each result answers a call."""
    places: dict[int, ToolResultPart] = {}
    for result in results:
        for place, part in reversed(list(enumerate(turn.message.parts))):
            free = place not in turn.results and place not in places
            if isinstance(part, ToolUsePart) and part.id == result.tool_use_id and free:
                places[place] = result
                break
        else:
            return None
    return places


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
        for turn in paired(messages):
            self.one(turn.message, turn.results)

    def one(self, message: Message, results: dict[int, ToolResultPart] | None = None, note: str = "") -> None:
        """Print a message, with the results of its calls and a note."""
        body = [line for part in self._parts(message, results or {}) for line in part]
        if not body and message.parts:
            return  # all its parts are hidden
        self._head(message, note)
        for text, indent in body or [(Text("(empty)", style="dim"), 2)]:
            put(self._screen, text, indent)
        self._screen.print()

    def _head(self, message: Message, note: str) -> None:
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
        notes = [note, message.scope or "", "archived" if self._archived and self._archived(message) else ""]
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
