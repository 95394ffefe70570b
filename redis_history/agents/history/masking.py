"""A plugin that shows old tool results as references, and a tool that fetches one for a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec.structs import replace

from redis_history.agents.history.history import History, Plugin
from redis_history.errors import ConfigurationError, InvalidInputError
from redis_history.values import Message, Part, ToolResultPart, ToolUsePart
from redis_history.values._validation import check_integer, check_names
from redis_history.values.pairs import pairs_of
from redis_history.values.ranges import pinned_groups
from redis_history.values.sizes import as_text, message_tokens

_NAME = "retrieve_tool_result"


class RetrieveTool:
    """A tool that fetches a masked result. Call it with the arguments from the model; `parameters` is their schema."""

    name = _NAME
    description = (
        "Retrieve the full result of an earlier tool call that is shown as [MASKED - ref: …] in the conversation. "
        "Use it when you need to look at that result again."
    )

    def __init__(self) -> None:
        self._history: History | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return {
            "type": "object",
            "properties": {
                "tool_call_id": {"type": "string", "description": "The ref of the masked tool result"},
                "occurrence": {"type": "integer", "description": "The occurrence, if the marker names one"},
            },
            "required": ["tool_call_id"],
        }

    def __call__(self, tool_call_id: str, occurrence: int | None = None) -> str:
        """The result as text or JSON. For an unknown id, a sentence that says so, for the model to read.

        Raises InvalidInputError if its plugin was not registered with a history.
        """
        if self._history is None:
            raise InvalidInputError("the masking plugin has no history yet: call history.use(plugin) first")
        found = self._history.get_tool_result(tool_call_id, occurrence)
        if found is None:
            return f"No tool result found for id: {tool_call_id}"
        return as_text(found)


class ToolResultMasking(Plugin):
    """See `tool_result_masking`."""

    def __init__(
        self,
        keep_recent_results: int,
        exclude: Iterable[str] | None,
        include: Iterable[str] | None,
        min_tokens_to_mask: int | None,
    ) -> None:
        if exclude is not None and include is not None:
            raise ConfigurationError("exclude and include cannot be given together")
        check_integer(keep_recent_results, "keep_recent_results")
        check_integer(min_tokens_to_mask, "min_tokens_to_mask", optional=True)
        self._keep = keep_recent_results
        # Results that were fetched must stay readable.
        self._exclude = frozenset(() if exclude is None else check_names(exclude, "exclude")) | {_NAME}
        self._include = None if include is None else frozenset(check_names(include, "include"))
        self._least = min_tokens_to_mask
        self._history: History | None = None
        self.retrieve_tool = RetrieveTool()

    def on_registered(self, history: History) -> None:
        if self._history is not None and self._history is not history:
            raise InvalidInputError("this masking plugin belongs to another history: make one for each")
        self._history = self.retrieve_tool._history = history

    def transform(self, entries: list[Message]) -> Sequence[Message]:
        counts: Counter[str] = Counter()
        # The occurrences as `get_tool_result` counts them. Another plugin may have hidden some of them here.
        occurrences: dict[tuple[str, str], list[int]] = {}
        for message in entries if self._history is None else self._history.get_snapshot():
            for result in message.tool_results:
                counts[result.tool_use_id] += 1
                occurrences.setdefault((message.id, result.tool_use_id), []).append(counts[result.tool_use_id])
        candidates: list[tuple[int, int, str]] = []  # message, part, marker
        call_of, pins = pairs_of(entries).call_of, pinned_groups(entries)
        for index, message in enumerate(entries):
            for at, part in enumerate(message.parts):
                if type(part) is not ToolResultPart:
                    continue
                if not (numbers := occurrences.get((message.id, part.tool_use_id))):
                    continue  # it could not be read again
                number = numbers.pop(0)
                occurrence = f", occurrence: {number}" if counts[part.tool_use_id] > 1 else ""
                call = call_of.get((index, at))
                called = None if call is None else entries[call[0]].parts[call[1]]
                name = called.name if type(called) is ToolUsePart else part.name or ""
                if not pins[index] and self._masks(name, part):
                    candidates.append((index, at, f"[MASKED - ref: {part.tool_use_id}{occurrence}]"))
        shown = list(entries)
        for index, at, marker in candidates[: max(0, len(candidates) - self._keep)]:
            parts: list[Part] = list(shown[index].parts)
            parts[at] = replace(cast(ToolResultPart, parts[at]), content=marker)
            shown[index] = replace(shown[index], parts=tuple(parts))
        return shown

    def _masks(self, name: str, part: ToolResultPart) -> bool:
        if name in self._exclude or (self._include is not None and name not in self._include):
            return False
        if self._least is None:
            return True
        message = Message(id="-", role="tool", parts=(part,))
        tokens = message_tokens(message) if self._history is None else self._history.count_tokens(message)
        return tokens >= self._least


def tool_result_masking(
    *,
    keep_recent_results: int = 2,
    exclude: Iterable[str] | None = None,
    include: Iterable[str] | None = None,
    min_tokens_to_mask: int | None = None,
) -> ToolResultMasking:
    """A plugin that shows older tool results as `[MASKED - ref: <id>]`, all but the newest `keep_recent_results`.
    Stored entries do not change.

    `exclude` names tools whose results are never masked; `include` names the only tools whose results are masked. Both
    together raise ConfigurationError. Results of fewer than `min_tokens_to_mask` tokens, and those of pinned messages
    and calls, are never masked. Results that are never masked do not count for `keep_recent_results`. If an id is
    repeated, the marker contains the occurrence.
    Give `.retrieve_tool` to the model.
    """
    return ToolResultMasking(keep_recent_results, exclude, include, min_tokens_to_mask)
