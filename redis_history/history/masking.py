"""A plugin that shows old tool results as references, and a tool that fetches one for a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import orjson
from msgspec.structs import replace

from redis_history._validation import check_integer, check_names
from redis_history.errors import ConfigurationError, InvalidInputError
from redis_history.history.history import History, Plugin
from redis_history.model import Message, Part, ToolResultPart, ToolUsePart
from redis_history.model.pairs import pairs_of
from redis_history.tokens import message_tokens

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
        return found if isinstance(found, str) else orjson.dumps(found, default=str).decode()


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
        candidates: list[tuple[int, int, str, int]] = []
        repeated: set[str] = set()
        for index, place, part, name, occurrence in _results(entries):
            if occurrence > 1:
                repeated.add(part.tool_use_id)
            if name in self._exclude or (self._include is not None and name not in self._include):
                continue
            if self._least is not None and self._tokens(part) < self._least:
                continue
            candidates.append((index, place, part.tool_use_id, occurrence))
        masked = candidates[: max(0, len(candidates) - self._keep)]
        if not masked:
            return entries
        shown = list(entries)
        for index, place, identity, occurrence in masked:
            where = f", occurrence: {occurrence}" if identity in repeated else ""
            message = shown[index]
            parts: list[Part] = list(message.parts)
            parts[place] = replace(cast(ToolResultPart, parts[place]), content=f"[MASKED - ref: {identity}{where}]")
            shown[index] = replace(message, parts=tuple(parts))
        return shown

    def _tokens(self, part: ToolResultPart) -> int:
        message = Message(id="-", role="tool", parts=(part,))
        return message_tokens(message) if self._history is None else self._history.count_tokens(message)


def _results(messages: Sequence[Message]) -> Iterator[tuple[int, int, ToolResultPart, str, int]]:
    """Every tool result, oldest first: index of its message, index of its part, itself, the name of its tool, and which
    of the results of this id it is, from 1."""
    call_of = pairs_of(messages).call_of
    seen: dict[str, int] = {}
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if type(part) is ToolResultPart:
                seen[part.tool_use_id] = seen.get(part.tool_use_id, 0) + 1
                name = part.name or ""
                if (at := call_of.get((index, place))) is not None:
                    name = cast(ToolUsePart, messages[at[0]].parts[at[1]]).name
                yield index, place, part, name, seen[part.tool_use_id]


def tool_result_masking(
    *,
    keep_recent_results: int = 2,
    exclude: Iterable[str] | None = None,
    include: Iterable[str] | None = None,
    min_tokens_to_mask: int | None = None,
) -> ToolResultMasking:
    """A plugin that shows all tool results but the newest as `[MASKED - ref: <id>]`; what is stored stays whole.

    `exclude` names tools whose results are always shown, `include` those that alone are masked; both together raise
    ConfigurationError. Results of fewer than `min_tokens_to_mask` tokens are always shown. These results do not
    count as `keep_recent_results`. The tool of a result is that of the call it answers; where ids
    repeat, the marker tells which occurrence it is. Give `.retrieve_tool` to the model.
    """
    return ToolResultMasking(keep_recent_results, exclude, include, min_tokens_to_mask)
