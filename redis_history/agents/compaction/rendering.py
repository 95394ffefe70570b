"""Render messages and tool calls as text for summarizers. Pure.

Summarizers see the texts of all parts but reasoning, also of those that are kept opaque for one provider. Base64 is
replaced by a marker such as "[image]".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from redis_history.values import AttachmentPart, Message, Part, TextPart, ToolResultPart, ToolUsePart, UnknownPart
from redis_history.values.contents import readable, readable_text, texts_in
from redis_history.values.message import content_text
from redis_history.values.pairs import OpenCalls, agent_of
from redis_history.values.quoting import as_data, plain_name
from redis_history.values.sizes import as_text

#: Maximum characters of a tool call or result. The agent usually states the findings of a long one afterwards.
_TOOL_CHARACTERS: Final = 4_000
#: Opaque parts with reasoning, which is not part of the conversation.
_REASONING: Final = frozenset(("reasoning", "thinking", "redacted_thinking"))


def render(message: Message, most: int) -> str:
    """A message as one line of JSON of at most `most` characters (at least 400). Leaves out reasoning, which is not
    part of the conversation. Empty if the message has no other content."""
    parts = [found for part in message.parts if (found := _record(part, most))]
    if not parts:
        return ""
    head: dict[str, Any] = {"role": message.role}
    if name := _name(message):
        head["name"] = name
    only_text = all(len(part) == 1 and "text" in part for part in parts)
    text = "\n".join(part["text"] for part in parts) if only_text else ""
    line = as_data({**head, "text": text} if only_text else {**head, "parts": parts})
    if len(line) > most and not only_text:
        text = as_data(parts)
    room = most
    while len(line) > most:
        line = as_data({**head, "text": clipped(text, room)})
        room = min(room * most // len(line), room - 1)  # JSON escapes are longer than the characters
    return line


def said(message: Message, most: int) -> str:
    """A message on one line of at most `most` characters: "Ann (user): …". Empty for a message without text."""
    records = [found for part in message.parts if (found := _record(part, 4 * most))]
    pieces = [one.get("text") or f"[{', '.join(f'{key}: {one[key]}' for key in one if one[key])}]" for one in records]
    return " ".join(f"{speaker(message)}: {' '.join(pieces)}".split())[:most].rstrip() if pieces else ""


def speaker(message: Message) -> str:
    """The author of a message: the display name followed by the role, or the role alone. So no name can imitate a
    role."""
    name = _name(message)
    return f"{name} ({message.role})" if name else message.role.capitalize()


def _name(message: Message) -> str:
    participant = message.participant
    return plain_name(participant.display_name) if participant is not None and participant.display_name else ""


def chunks(messages: Iterable[Message], characters: int) -> Iterator[str]:
    """The JSON lines of messages, in portions of at most `characters` characters."""
    lines: list[str] = []
    size = 0
    for message in messages:
        line = render(message, characters)
        if lines and size + len(line) + 1 > characters:
            yield "\n".join(lines)
            lines, size = [], 0
        if line:
            lines.append(line)
            size += len(line) + 1
    if lines:
        yield "\n".join(lines)


def clipped(text: str, most: int) -> str:
    """The text; if it is too long, its beginning and end."""
    if len(text) <= most:
        return text
    mark = f" […{len(text) - most:,} characters left out…] "
    room = max(0, most - len(mark))
    head = room * 2 // 3
    return text[:head] + mark + text[len(text) - (room - head) :] if room else text[:most]


def text_to_summarize(part: Part) -> str:
    """The text of a text part, of a tool result, or of a part that is kept opaque; "" for other parts."""
    if isinstance(part, TextPart):
        return readable_text(part.text)[0]
    if isinstance(part, ToolResultPart):
        content, _ = readable(part.content)
        # Of data, only what people may have written.
        return content_text(content) or "\n".join(text for text in texts_in(content) if " " in text)
    if isinstance(part, UnknownPart) and part.type not in _REASONING:
        return "\n".join(texts_in(readable(part.data)[0]))
    return ""


def _record(part: Part, most: int) -> dict[str, str]:
    limit = min(most, _TOOL_CHARACTERS)
    if isinstance(part, ToolUsePart):
        return {"calls": part.name[:limit], "with": clipped(as_text(readable(part.input)[0] or ""), limit)}
    if isinstance(part, AttachmentPart):
        return {"file": readable_text(part.name or part.reference or part.id or "unnamed")[0][:limit]}
    if isinstance(part, ToolResultPart):
        content, _ = readable(part.content)
        outcome = content_text(content) or as_text(content)
        return {"tool": (part.name or "")[:limit], "error" if part.is_error else "result": clipped(outcome, limit)}
    text = text_to_summarize(part)
    if isinstance(part, UnknownPart) and not isinstance(part.data.get("text"), str):
        return {"item": part.type[:limit], "content": clipped(text, limit)} if text else {}
    text = clipped(text, most).strip()
    return {"text": text} if text else {}


# Short descriptions of tool calls

#: Maximum characters of one input, and of a line. A line has the same limit as a sentence of the summary.
_INPUT: Final = 80
_LINE: Final = 300


class _Calls:
    """The calls of one tool by one speaker."""

    def __init__(self, caller: str, name: str) -> None:
        self.caller = caller
        self.name = name
        self.count = self.failed = 0
        self.inputs: dict[str, None] = {}

    def line(self, room: int) -> str:
        """The number of calls, and as many of the newest inputs as fit into `room` characters."""
        times = {1: "once", 2: "twice"}.get(self.count, f"{self.count:,} times")
        line = f"{self.caller} called {self.name} {times}" + (f" ({self.failed:,} failed)" if self.failed else "")
        left = room - len(line) - len(": …; ")
        shown: list[str] = []
        for one in reversed(self.inputs):
            if len(one) + 2 > left:
                break
            shown.append(one)
            left -= len(one) + 2
        more = "…; " if len(shown) < len(self.inputs) else ""
        return f"{line}: {more}{'; '.join(reversed(shown))}" if shown else line


def call_lines(messages: Iterable[Message], room: int) -> list[str]:
    """A line for each tool of each speaker, most calls first, in at most `room` characters including line ends."""
    found: dict[tuple[str, str], _Calls] = {}
    waiting: OpenCalls[_Calls] = OpenCalls()
    for message in messages:
        for part in message.parts:
            if type(part) is ToolUsePart:
                key = speaker(message), " ".join(part.name.split())
                calls = found.setdefault(key, _Calls(*key))
                calls.count += 1
                if given := _brief(readable(part.input)[0]):
                    calls.inputs.pop(given, None)  # move it to the end, because it is the newest
                    calls.inputs[given] = None
                waiting.call(part.id, agent_of(message), calls)
            elif type(part) is ToolResultPart:
                answered = waiting.answer(part.tool_use_id, agent_of(message))
                if answered is not None and part.is_error:
                    answered.failed += 1
    ordered = sorted(found.values(), key=lambda calls: -calls.count)
    lines: list[str] = []
    for number, calls in enumerate(ordered):
        share = min(_LINE, room // (len(ordered) - number)) - 1
        line = calls.line(share)
        if len(line) < min(_LINE, room):
            lines.append(line)
            room -= len(line) + 1
    if ordered and not lines:  # not even the shortest line fits
        lines.append(clipped(ordered[0].line(0), max(0, min(_LINE, room))))
    return lines


def _brief(given: Any) -> str:
    """An input on one line; only the value if there is a single argument."""
    if isinstance(given, Mapping) and len(given) == 1:
        [given] = given.values()
    elif not given:
        return ""
    line = " ".join(as_text(given)[: 4 * _INPUT].split())
    return line if len(line) <= _INPUT else line[: _INPUT - 1] + "…"
