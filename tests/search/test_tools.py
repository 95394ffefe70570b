"""The tool that lets a model search in its own conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history import (
    HistoryStore,
    Message,
    Participant,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import BackendUnavailableError, InvalidConversationIdError, InvalidInputError
from redis_history.search.hits import SearchHit, highlights
from redis_history.search.query import parse_query
from redis_history.tokens import TokenCounter
from redis_history.tools import AsyncConversationSearchTool, ConversationSearchTool, conversation_search_tool
from tests.property.strategies import messages
from tests.support.prompts import HOSTILE

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

    def get(self, conversation_id: str, *, limit: int) -> list[Message]:
        return []

    def search(self, conversation_id: str, query: str, **options: Any) -> list[SearchHit]:
        assert options["token_cap"] is None, "what is shown of a hit is cut by the tool"
        assert options["highlight"]
        limit = options["limit"] // 2
        self.asked.append((conversation_id, query, limit))
        if query == "away":
            raise BackendUnavailableError("away")
        if query == "wrong":
            raise InvalidInputError("this query is wrong")
        return [] if query == "nothing" else HITS[:limit]


class AsyncStore(Store):
    async def get(self, conversation_id: str, *, limit: int) -> list[Message]:  # type: ignore[override]
        return []

    async def search(self, conversation_id: str, query: str, **options: Any) -> list[SearchHit]:  # type: ignore[override]
        return super().search(conversation_id, query, **options)


def data(told: str) -> list[str]:
    """The lines between the delimiters, which nobody can guess."""
    _, begin, *lines, end = told.split("\n")
    assert begin.startswith("<messages-")
    assert end == begin.replace("<", "</")
    return lines


def test_what_a_model_is_told() -> None:
    store = Store()
    tool = conversation_search_tool(store, "mine")
    assert isinstance(tool, ConversationSearchTool)
    told = tool(query="dog")
    assert store.asked == [("mine", "dog", 5)]
    head, begin, first, second, end = told.split("\n")
    assert head.startswith("2 messages found, the best first.")
    assert end == begin.replace("<", "</")
    assert json.loads(first) == {
        "number": 1, "time": "2026-05-08 13:56 UTC", "role": "user", "name": "Ada", "text": "I adopted a dog",
    }  # fmt: skip
    assert json.loads(second)["text"].startswith("… filler")
    assert "needle" in second
    assert len(second) < 1_200
    assert tool(query="nothing").startswith("No message found.")
    assert tool.run({"query": "dog", "limit": 1}).startswith("1 message found")
    assert data(tool.run(b'{"query": "dog", "limit": 1}')) == data(tool.run('{"query": "dog", "limit": 1}'))


@pytest.mark.proves("model-text")
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_ends_the_data_or_becomes_an_instruction(hostile: str) -> None:
    with HistoryStore("memory://") as store:
        tool = conversation_search_tool(store, "mine", include=["current_turn"])
        store.append("mine", user("a dog"))
        head, begin, *_ = tool(query="dog").split("\n")
        forged = hostile.replace("MARK", begin.removeprefix("<messages-").removesuffix(">"))
        store.append("mine", user(forged + " a cat", participant=Participant("user", "u1", forged)))
        again, begin, line, end = tool(query="cat").splitlines()
    assert (again, end) == (head, begin.replace("<", "</"))
    found = json.loads(line)
    assert found["text"] == forged + " a cat"
    assert found["role"] == "user"
    assert "</" not in line
    assert begin not in line


async def test_the_same_with_await() -> None:
    store = AsyncStore()
    tool = conversation_search_tool(store, "mine")
    assert isinstance(tool, AsyncConversationSearchTool)
    assert data(await tool(query="dog")) == data(conversation_search_tool(Store(), "mine")(query="dog"))
    assert (await tool.run("no json")).startswith("Error: ")
    assert await tool.run({"query": "wrong"}) == "Error: this query is wrong"
    assert store.asked == [("mine", "dog", 5), ("mine", "wrong", 5)]


@pytest.mark.proves("search-tool")
@pytest.mark.parametrize(
    ("limit", "asked"),
    [(None, 5), (1, 1), (20, 20), (1_000_000, 20), ("7", 7), (3.0, 3), (10**400, 20)],
)
def test_limits(limit: Any, asked: int) -> None:
    store = Store()
    conversation_search_tool(store, "mine").run({"query": "dog", "limit": limit})
    assert store.asked == [("mine", "dog", asked)]


@pytest.mark.proves("search-tool")
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
    with pytest.raises(InvalidInputError):
        conversation_search_tool(None, "mine")  # type: ignore[call-overload]


COUNTERS: list[TokenCounter | None] = [
    None,
    len,
    lambda text: len(text.split()),
    lambda text: len(text.encode()) // 3 + 3,
    lambda text: 7 * (len(text) % 5) + len(text) // 4,
]


@pytest.mark.proves("token-cap")
@given(
    st.lists(st.tuples(messages(), st.integers(1, 200)), max_size=20),
    st.integers(1, 1_000),
    st.sampled_from(COUNTERS),
)
def test_an_answer_never_has_more_tokens_than_the_cap(
    found: list[tuple[Message, int]], cap: int, counter: TokenCounter | None
) -> None:
    class Fixed(Store):
        def search(self, conversation_id: str, query: str, **options: Any) -> list[SearchHit]:
            said = [replace(message, parts=message.parts * times) for message, times in found]
            return [SearchHit(one, 1.0, "mine", highlights=highlights(one, parse_query("a 0"))) for one in said]

    tool = conversation_search_tool(Fixed(), "mine", token_cap=cap, token_counter=counter)
    for arguments in ({"query": "a"}, {"query": ""}, {"unknown": 1}):
        told = tool.run(arguments)
        assert (-(-len(told) // 4) if counter is None else counter(told) if told else 0) <= cap


def test_what_does_not_fit_is_left_out() -> None:
    told = conversation_search_tool(Store(), "mine", token_cap=75)(query="dog")
    [line] = data(told)
    assert json.loads(line)["text"] == "I adopted a dog"
    assert len(told) <= 300
    both = conversation_search_tool(Store(), "mine", token_cap=130)(query="dog")
    _, second = data(both)
    assert json.loads(second)["text"].endswith("needle"), "cut to the passage that matches"
    assert len(both) <= 520
    assert len(conversation_search_tool(Store(), "mine", token_cap=None)(query="dog")) > 1_000
    nothing = conversation_search_tool(Store(), "mine", token_cap=5)(query="dog")
    assert "dog" not in nothing, "no text of a message without the delimiters around it"
    assert len(nothing) <= 20


@pytest.mark.parametrize(
    "options",
    [
        {"token_cap": 0},
        {"token_cap": True},
        {"token_cap": "5"},
        {"token_counter": 5},
        {"include": "reasoning"},
        {"include": ["x"]},
    ],
)
def test_bad_options(options: Any) -> None:
    with pytest.raises(InvalidInputError):
        conversation_search_tool(Store(), "mine", **options)


# Messages that the tool leaves out


def talk(*, named: bool = True) -> list[Message]:
    """Two exchanges with searches of the model, and a third in progress."""
    answer = conversation_search_tool(Store(), "mine")(query="dog")
    name = "conversation_search" if named else None
    return [
        user("My dog is called Rex", id="rex"),
        assistant("A nice name for a dog", id="nice"),
        user("What is my dog called?", id="asked"),
        assistant([tool_use("call-1", "conversation_search", {"query": "dog name"})], id="call"),
        tool([ToolResultPart("call-1", answer, name=name)], id="result"),
        assistant([ReasoningPart("They mean the dog from before"), TextPart("Rex")], id="answered"),
        assistant([ReasoningPart("The dog barks"), TextPart("Your dog barks")], id="both"),
        user("And how old is the dog?", id="now"),
        assistant([tool_use("call-2", "conversation_search", {"query": "dog age"})], id="call now"),
    ]


def texts_found(store: HistoryStore, **options: Any) -> list[str]:
    return texts_of(conversation_search_tool(store, "c", **options)(query="dog", limit=20))


def texts_of(answer: str) -> list[str]:
    return [json.loads(line)["text"] for line in data(answer)]


@pytest.mark.proves("search-tool")
@pytest.mark.parametrize("named", [True, False])
def test_own_searches_the_current_turn_and_reasoning_are_left_out(named: bool) -> None:
    with HistoryStore("memory://") as store:
        store.append_many("c", talk(named=named))
        plain = {"My dog is called Rex", "A nice name for a dog", "What is my dog called?", "Your dog barks"}
        assert {*texts_found(store)} == plain
        assert {*texts_found(store, include=["current_turn"])} == plain | {"And how old is the dog?"}
        assert {*texts_found(store, include=["reasoning"])} == plain | {"Rex"}
        own = {*texts_found(store, include=["own_searches"])} - plain
        assert len(own) == 2
        assert len(texts_found(store, include=["own_searches", "current_turn", "reasoning"])) == 9
        store.append("c", assistant("Seven years", id="done"))
        assert "And how old is the dog?" in texts_found(store), "the turn is over"


@pytest.mark.proves("search-tool")
def test_many_own_searches_leave_room_for_other_messages() -> None:
    with HistoryStore("memory://") as store:
        store.append_many("c", [user("the dog is old"), assistant("I see")])
        for n in range(40):
            call = tool_use(f"call-{n}", "conversation_search", {"query": "dog dog dog"})
            result = ToolResultPart(f"call-{n}", "dog", name="conversation_search")
            store.append_many("c", [user(f"question {n}"), assistant([call]), tool([result]), assistant("Well")])
        assert texts_found(store) == ["the dog is old"]


def test_hits_of_one_exchange_stand_together() -> None:
    with HistoryStore("memory://") as store:
        for name in ("first", "second", "third"):
            said = [user(f"{name} dog"), assistant("hm"), assistant(f"{name} answer about a dog {'and more ' * 9}")]
            store.append_many("c", [*said, assistant("done")])
        found = [text.split()[0] for text in texts_found(store)]
    assert len(found) == 6
    assert found[::2] == found[1::2], "each exchange has two hits, one after the other"


@pytest.mark.proves("search-tool")
def test_earlier_questions_and_their_answers_do_not_hide_what_they_were_about() -> None:
    with HistoryStore("memory://") as store:
        store.append_many("c", [user("We adopted a puppy in March"), assistant("Congratulations on the puppy")])
        search = conversation_search_tool(store, "c")
        for n, asked in enumerate(["When did we adopt the puppy?", "Did we adopt a puppy in March or May?"] * 5):
            store.append("c", user(asked))
            found = search(query=asked)
            call, result = (
                tool_use(f"call-{n}", "conversation_search", {"query": asked}),
                tool_result(f"call-{n}", found),
            )
            store.append_many("c", [assistant([call]), tool(result), assistant("You adopt a puppy in March")])
        text = "In June we moved to Porto. When did we adopt the puppy?"
        call = tool_use("last", "conversation_search", {"query": "adopt puppy"})
        store.append_many("c", [user(text), assistant([call]), tool(tool_result("last", "March")), assistant("March")])
        store.append("c", user("In which month did we adopt the puppy?"))
        assert "We adopted a puppy in March" in texts_of(search(query="month adopt puppy", limit=2))
        assert texts_of(search(query="moved to Porto", limit=1)) == [text], "its search was for something else"
        every = conversation_search_tool(store, "c", include=["own_searches"])
        assert "We adopted a puppy in March" not in texts_of(every(query="month adopt puppy", limit=2))
