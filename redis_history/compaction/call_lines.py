"""Short descriptions of tool calls: the tool, the number of calls, the inputs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from redis_history.compaction.rendering import as_text, clipped, speaker
from redis_history.model import Message, ToolResultPart, ToolUsePart
from redis_history.model.pairs import OpenCalls, agent_of

__all__ = ["call_lines"]

#: Maximum characters of one input, and of a line. A line has the same limit as a sentence of the summary.
_INPUT: Final = 80
_LINE: Final = 300


class _Calls:
    """The calls of one tool by one speaker."""

    def __init__(self, who: str, name: str) -> None:
        self.who = who
        self.name = name
        self.count = self.failed = 0
        self.inputs: dict[str, None] = {}

    @property
    def short(self) -> str:
        times = {1: "once", 2: "twice"}.get(self.count, f"{self.count:,} times")
        failed = f" ({self.failed:,} failed)" if self.failed else ""
        return f"{self.who} called {self.name} {times}{failed}"

    def line(self, room: int) -> str:
        """A line of at most `room` characters: the number of calls, and as many of the newest inputs as fit. Empty if
        nothing fits."""
        line = self.short
        if len(line) > room:
            return ""
        left = room - len(line) - len(": …; ")
        shown: list[str] = []
        for one in reversed(self.inputs):
            if len(one) + 2 > left:
                break
            shown.append(one)
            left -= len(one) + 2
        if not shown:
            return line
        more = "…; " if len(shown) < len(self.inputs) else ""
        return f"{line}: {more}{'; '.join(reversed(shown))}"


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
                if given := _brief(part.input):
                    calls.inputs.pop(given, None)  # move it to the end, because it is the newest
                    calls.inputs[given] = None
                waiting.call(part.id, agent_of(message), calls)
            elif type(part) is ToolResultPart:
                answered = waiting.answer(part.tool_use_id, agent_of(message))
                if answered is not None and part.is_error:
                    answered.failed += 1
    ordered = sorted(found.values(), key=lambda calls: -calls.count)
    return _fitting(ordered, room)


def _fitting(ordered: Sequence[_Calls], room: int) -> list[str]:
    lines = []
    for number, calls in enumerate(ordered):
        share = min(_LINE, room // (len(ordered) - number))
        line = calls.line(share - 1) or calls.line(min(_LINE, room) - 1)
        if line:
            lines.append(line)
            room -= len(line) + 1
    if ordered and not lines:  # not even the shortest line fits
        lines.append(clipped(ordered[0].short, max(0, min(_LINE, room))))
    return lines


def _brief(given: Any) -> str:
    """An input on one line; only the value if there is a single argument."""
    if isinstance(given, Mapping) and len(given) == 1:
        [given] = given.values()
    line = " ".join(as_text(given)[: 4 * _INPUT].split())
    return line if len(line) <= _INPUT else line[: _INPUT - 1] + "…"
