"""A tool for models: search in the conversation they are in, and in no other."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, overload

import orjson

from redis_history._ids import check_conversation_id
from redis_history.errors import InvalidInputError
from redis_history.search.hits import SearchHit
from redis_history.search.text import searchable

__all__ = [
    "AsyncConversationSearchTool",
    "AsyncSearches",
    "ConversationSearchTool",
    "Searches",
    "conversation_search_tool",
]

NAME: Final = "conversation_search"
DESCRIPTION: Final = (
    "Search the earlier messages of this conversation. Use it when something that was said before is not in view. "
    "Finds messages with any of the words of the query, the best first; put an exact phrase in double quotes."
)
DEFAULT_LIMIT: Final = 5
MAX_LIMIT: Final = 20
#: Characters of one message that a model is shown.
SHOWN: Final = 1_000
#: Of every hit, however long: what is shown of it is cut here, to where the terms are.
_WHOLE: Final[Any] = {"token_cap": None, "highlight": True}


class Searches(Protocol):
    """What the tool needs of a HistoryStore."""

    def search(
        self, conversation_id: str, query: str, *, limit: int, token_cap: int | None, highlight: bool
    ) -> Sequence[SearchHit]: ...


class AsyncSearches(Protocol):
    """What the tool needs of an AsyncHistoryStore."""

    async def search(
        self, conversation_id: str, query: str, *, limit: int, token_cap: int | None, highlight: bool
    ) -> Sequence[SearchHit]: ...


class _Tool:
    """The declaration of the tool, for each provider, and the checks around a call."""

    name = NAME
    description = DESCRIPTION

    def __init__(self, conversation_id: str) -> None:
        check_conversation_id(conversation_id)
        self._conversation_id = conversation_id

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for: words, a question, or a quoted phrase."},
                "limit": {
                    "type": "integer",
                    "description": f"The most messages to return, 1 to {MAX_LIMIT}. Default {DEFAULT_LIMIT}.",
                },
            },
            "required": ["query"],
            "additionalProperties": False,
        }

    def to_openai_chat(self) -> dict[str, Any]:
        """An item of `tools` of OpenAI's chat completions, and of all that speak like it."""
        return {"type": "function", "function": self._function()}

    def to_openai_responses(self) -> dict[str, Any]:
        """An item of `tools` of OpenAI's responses. Not strict: there every parameter would be required."""
        return {"type": "function", **self._function(), "strict": False}

    def to_anthropic(self) -> dict[str, Any]:
        """An item of `tools` of Anthropic's messages."""
        return {"name": self.name, "description": self.description, "input_schema": self.parameters}

    def to_gemini(self) -> dict[str, Any]:
        """An item of `function_declarations` of Gemini's tools."""
        # `parameters` is an OpenAPI schema there, which knows no additionalProperties.
        known = {name: value for name, value in self.parameters.items() if name != "additionalProperties"}
        return {**self._function(), "parameters": known}

    def to_mistral(self) -> dict[str, Any]:
        """An item of `tools` of Mistral's chat completions."""
        return {"type": "function", "function": self._function()}

    def _function(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


class ConversationSearchTool(_Tool):
    """Call it with what the model gave: `tool(query=…, limit=…)`, or `tool.run(arguments)` with its arguments as a
    mapping or as JSON text. The outcome is text for the model, also if its arguments make no sense. What the store
    raises goes through."""

    def __init__(self, store: Searches, conversation_id: str) -> None:
        super().__init__(conversation_id)
        self._store = store

    def __call__(self, query: Any = None, limit: Any = DEFAULT_LIMIT) -> str:
        return self.run({"query": query, "limit": limit})

    def run(self, arguments: Any) -> str:
        asked = _asked(arguments)
        if isinstance(asked, str):
            return asked
        try:
            return _told(self._store.search(self._conversation_id, asked[0], limit=asked[1], **_WHOLE))
        except InvalidInputError as error:
            return f"Error: {error}"


class AsyncConversationSearchTool(_Tool):
    """As ConversationSearchTool, with `await`."""

    def __init__(self, store: AsyncSearches, conversation_id: str) -> None:
        super().__init__(conversation_id)
        self._store = store

    async def __call__(self, query: Any = None, limit: Any = DEFAULT_LIMIT) -> str:
        return await self.run({"query": query, "limit": limit})

    async def run(self, arguments: Any) -> str:
        asked = _asked(arguments)
        if isinstance(asked, str):
            return asked
        try:
            return _told(await self._store.search(self._conversation_id, asked[0], limit=asked[1], **_WHOLE))
        except InvalidInputError as error:
            return f"Error: {error}"


@overload
def conversation_search_tool(store: AsyncSearches, conversation_id: str) -> AsyncConversationSearchTool: ...
@overload
def conversation_search_tool(store: Searches, conversation_id: str) -> ConversationSearchTool: ...
def conversation_search_tool(store: Any, conversation_id: str) -> ConversationSearchTool | AsyncConversationSearchTool:
    """The tool `conversation_search` over one conversation. The model chooses the query and the limit, never the
    conversation. To be awaited if the store is asynchronous.

    Raises InvalidConversationIdError, InvalidInputError for what cannot search.
    """
    search = getattr(store, "search", None)
    if search is None:
        raise InvalidInputError(f"the tool needs a store, not {type(store).__name__}")
    if inspect.iscoroutinefunction(search):
        return AsyncConversationSearchTool(store, conversation_id)
    return ConversationSearchTool(store, conversation_id)


def _asked(arguments: Any) -> tuple[str, int] | str:
    """The query and the limit; or what to tell the model."""
    if isinstance(arguments, str | bytes):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return 'Error: the arguments are not valid JSON. Call it like {"query": "words to find", "limit": 5}.'
    if not isinstance(arguments, Mapping):
        return 'Error: the arguments are an object such as {"query": "words to find", "limit": 5}.'
    unknown = sorted(str(key)[:40] for key in arguments if key not in ("query", "limit"))
    if unknown:
        return f"Error: there is no parameter {', '.join(unknown[:5])}; there are query and limit."
    query = arguments.get("query")
    if not isinstance(query, str) or not query.strip():
        return "Error: query is required: the words or the question to look for, as a string."
    limit = arguments.get("limit")
    if limit is None:
        limit = DEFAULT_LIMIT
    if isinstance(limit, str) and limit.strip().isdecimal() and len(limit) < 10:
        limit = int(limit)
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        return f"Error: limit is a number from 1 to {MAX_LIMIT}."
    return query, min(limit, MAX_LIMIT)


def _told(hits: Sequence[SearchHit]) -> str:
    if not hits:
        return "No message found. Try fewer, other or more general words."
    found = "1 message" if len(hits) == 1 else f"{len(hits)} messages"
    return "\n\n".join((f"{found} found, the best first.", *(_line(n, hit) for n, hit in enumerate(hits, 1))))


def _line(number: int, hit: SearchHit) -> str:
    message = hit.message
    who: str = message.role
    if message.participant is not None:
        who = f"{message.participant.display_name or message.participant.id} ({message.role})"
    when = "" if message.timestamp is None else f"{message.timestamp:%Y-%m-%d %H:%M} UTC, "
    text = message.text or searchable(message)
    if len(text) > SHOWN:
        text = " … ".join(part.text for part in hit.highlights)[:SHOWN] or text[:SHOWN]
        text = f"… {text} …"
    return f"[{number}] {when}{who}: {text}"
