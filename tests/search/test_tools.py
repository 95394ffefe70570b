"""The tool that lets a model search in its own conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redis_history import Message, Participant, user
from redis_history.errors import BackendUnavailableError, InvalidConversationIdError, InvalidInputError
from redis_history.search.highlight import highlights
from redis_history.search.hits import SearchHit
from redis_history.search.query import parse_query
from redis_history.tools import AsyncConversationSearchTool, ConversationSearchTool, conversation_search_tool

LONG = user("filler " * 1_000 + "needle")
HITS = [
    SearchHit(
        Message(
            role="user",
            parts=("I adopted a dog",),
            participant=Participant("user", "u-1", display_name="Ada"),
            timestamp="2026-05-08T13:56:00Z",
        ),
        2.0,
        "mine",
    ),
    SearchHit(LONG, 1.0, "mine", highlights=highlights(LONG, parse_query("needle"))),
]


class Store:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def search(
        self, conversation_id: str, query: str, *, limit: int, token_cap: int | None, highlight: bool
    ) -> list[SearchHit]:
        assert token_cap is None, "what is shown of a hit is cut by the tool"
        assert highlight
        self.asked.append((conversation_id, query, limit))
        if query == "away":
            raise BackendUnavailableError("away")
        if query == "wrong":
            raise InvalidInputError("this query is wrong")
        return [] if query == "nothing" else HITS[:limit]


class AsyncStore(Store):
    async def search(self, conversation_id: str, query: str, **options: Any) -> list[SearchHit]:  # type: ignore[override]
        return super().search(conversation_id, query, **options)


def test_what_a_model_is_told() -> None:
    store = Store()
    tool = conversation_search_tool(store, "mine")
    assert isinstance(tool, ConversationSearchTool)
    told = tool(query="dog")
    assert store.asked == [("mine", "dog", 5)]
    head, first, second = told.split("\n\n")
    assert head == "2 messages found, the best first."
    assert first == "[1] 2026-05-08 13:56 UTC, Ada (user): I adopted a dog"
    assert second.startswith("[2] user: … filler")
    assert "needle" in second
    assert len(second) < 1_200
    assert tool(query="nothing").startswith("No message found.")
    assert tool.run({"query": "dog", "limit": 1}).startswith("1 message found")
    assert tool.run(b'{"query": "dog", "limit": 1}') == tool.run('{"query": "dog", "limit": 1}')


async def test_the_same_with_await() -> None:
    store = AsyncStore()
    tool = conversation_search_tool(store, "mine")
    assert isinstance(tool, AsyncConversationSearchTool)
    assert await tool(query="dog") == conversation_search_tool(Store(), "mine")(query="dog")
    assert (await tool.run("no json")).startswith("Error: ")
    assert await tool.run({"query": "wrong"}) == "Error: this query is wrong"
    assert store.asked == [("mine", "dog", 5), ("mine", "wrong", 5)]


@pytest.mark.parametrize(
    ("limit", "asked"),
    [(None, 5), (1, 1), (20, 20), (1_000_000, 20), ("7", 7), (3.0, 3), (10**400, 20)],
)
def test_limits(limit: Any, asked: int) -> None:
    store = Store()
    conversation_search_tool(store, "mine").run({"query": "dog", "limit": limit})
    assert store.asked == [("mine", "dog", asked)]


@pytest.mark.parametrize(
    "arguments",
    [
        None, [], 7, "", "{", "[]", "null", b"\xff", {}, {"query": None}, {"query": 3}, {"query": " "},
        {"query": ["x"]},
        {"query": "x", "limit": 0}, {"query": "x", "limit": -1}, {"query": "x", "limit": "many"},
        {"query": "x", "limit": 1.5}, {"query": "x", "limit": True}, {"query": "x", "limit": float("inf")},
        {"query": "x", "conversation_id": "other"}, {"query": "x", 3: 4}, {"query": "x", "limit": "²"},
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_told_to_the_model(arguments: Any) -> None:
    store = Store()
    told = conversation_search_tool(store, "mine").run(arguments)
    assert told.startswith("Error: ")
    assert "mine" not in told
    assert store.asked == []


def test_what_the_store_raises_goes_through() -> None:
    with pytest.raises(BackendUnavailableError):
        conversation_search_tool(Store(), "mine")(query="away")
    assert conversation_search_tool(Store(), "mine")(query="wrong") == "Error: this query is wrong"


def test_declarations() -> None:
    tool = conversation_search_tool(Store(), "mine")
    schema = tool.parameters
    assert set(schema["properties"]) == {"query", "limit"}
    assert schema["required"] == ["query"]
    chat = tool.to_openai_chat()
    assert chat == tool.to_mistral()
    assert chat["type"] == "function"
    assert chat["function"] == {
        "name": "conversation_search", "description": tool.description, "parameters": schema
    }  # fmt: skip
    assert tool.to_openai_responses() == {"type": "function", **chat["function"], "strict": False}
    assert tool.to_anthropic()["input_schema"] == schema
    gemini = tool.to_gemini()
    assert "additionalProperties" not in gemini["parameters"]
    assert gemini["parameters"]["properties"] == schema["properties"]
    for declaration in (chat, tool.to_openai_responses(), tool.to_anthropic(), gemini):
        assert "mine" not in json.dumps(declaration)


@pytest.mark.filterwarnings("ignore")  # of the providers' packages, at import
@pytest.mark.parametrize(
    ("form", "module", "kind"),
    [
        ("anthropic", "anthropic.types", "ToolParam"),
        ("openai_chat", "openai.types.chat", "ChatCompletionFunctionToolParam"),
        ("openai_responses", "openai.types.responses", "FunctionToolParam"),
        ("mistral", "mistralai.client.models", "Tool"),
        ("gemini", "google.genai.types", "FunctionDeclaration"),
    ],
)
def test_declarations_are_valid_for_the_providers_types(form: str, module: str, kind: str) -> None:
    pydantic = pytest.importorskip("pydantic")
    taken = pydantic.TypeAdapter(getattr(pytest.importorskip(module), kind))
    given = getattr(conversation_search_tool(Store(), "mine"), f"to_{form}")()
    found = taken.validate_python(given)
    told = taken.dump_python(found, mode="json", exclude_none=True)
    assert "conversation_search" in json.dumps(told)
    with pytest.raises(pydantic.ValidationError):
        taken.validate_python({**given, "name": 3, "function": 3})


@pytest.mark.parametrize("conversation_id", ["", "x" * 513, None, 3])
def test_the_conversation_is_checked_at_once(conversation_id: Any) -> None:
    with pytest.raises(InvalidConversationIdError):
        conversation_search_tool(Store(), conversation_id)
    with pytest.raises(InvalidInputError, match="needs a store"):
        conversation_search_tool(None, "mine")  # type: ignore[call-overload]
