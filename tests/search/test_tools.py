"""The tool that lets a model search in its own conversation."""

import json
from collections import Counter
from functools import partial
from random import Random
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
from redis_history.agents.tools import AsyncConversationSearchTool, ConversationSearchTool, conversation_search_tool
from redis_history.errors import (
    BackendUnavailableError,
    InvalidConversationIdError,
    InvalidInputError,
    RedisHistoryError,
)
from redis_history.store.operations import Page, Steps
from redis_history.store.operations.searching import Asked
from redis_history.store.operations.tasks import Searching
from redis_history.store.search.hits import SearchHit, SearchHits, highlights
from redis_history.store.search.query import parse_query
from redis_history.values.sizes import TokenCounter
from tests.property.strategies import messages
from tests.search.test_quality import Conversation
from tests.search.test_ranking import COUNTERS
from tests.support.prompts import HOSTILE
from tests.support.servers import RealServer
from tests.support.transcripts import FILES, opened

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
    """Remembers its searches."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def execute(self, steps: Steps[Any]) -> Any:
        proceed = partial(next, steps)
        while True:
            try:
                step = proceed()
            except StopIteration as end:
                return end.value
            try:
                outcome = step.task(self) if isinstance(step, Searching) else Page([])
            except RedisHistoryError as error:
                proceed = partial(steps.throw, error)
            else:
                proceed = partial(steps.send, outcome)

    def search(self, conversation_id: str, asked: Asked) -> list[SearchHit]:
        assert asked.token_cap is None, "what is shown of a hit is cut by the tool"
        assert asked.highlight
        limit = asked.limit // 2
        self.asked.append((conversation_id, asked.query, limit))
        if asked.query == "away":
            raise BackendUnavailableError("away")
        if asked.query == "wrong":
            raise InvalidInputError("this query is wrong")
        return [] if asked.query == "nothing" else HITS[:limit]


class AsyncStore(Store):
    async def execute(self, steps: Steps[Any]) -> Any:
        return super().execute(steps)


def data(answer: str) -> list[str]:
    """The lines between the delimiters, which nobody can guess."""
    _, begin, *lines, end = answer.split("\n")
    assert begin.startswith("<messages-")
    assert end == begin.replace("<", "</")
    return lines


def test_the_answer_for_the_model() -> None:
    store = Store()
    tool = conversation_search_tool(store, "mine")
    assert isinstance(tool, ConversationSearchTool)
    answer = tool(query="dog")
    assert store.asked == [("mine", "dog", 5)]
    head, begin, first, second, end = answer.split("\n")
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
        tool = conversation_search_tool(store, "mine")
        store.append_many("mine", [user("a dog"), assistant("I see")])
        head, begin, *_ = tool(query="dog").split("\n")
        forged = hostile.replace("MARK", begin.removeprefix("<messages-").removesuffix(">"))
        said = user(forged + " a cat", participant=Participant("user", "u1", forged))
        store.append_many("mine", [said, assistant("I see")])
        again, begin, line, end = tool(query="cat").splitlines()
    assert (again, end) == (head, begin.replace("<", "</"))
    found = json.loads(line)
    assert found["text"] == forged + " a cat"
    assert found["role"] == "user"
    assert "</" not in line
    assert begin not in line


async def test_the_asynchronous_tool() -> None:
    store = AsyncStore()
    tool = conversation_search_tool(store, "mine")
    assert isinstance(tool, AsyncConversationSearchTool)
    assert data(await tool(query="dog")) == data(conversation_search_tool(Store(), "mine")(query="dog"))
    assert await tool.run({"query": "wrong"}) == "Error: this query is wrong"
    with pytest.raises(BackendUnavailableError):
        await tool(query="away")


@pytest.mark.proves("search-tool")
@pytest.mark.parametrize(("limit", "searched"), [(None, 5), (1, 1), (1_000_000, 20), ("7", 7), (3.0, 3), (10**400, 20)])
def test_limits(limit: Any, searched: int) -> None:
    store = Store()
    conversation_search_tool(store, "mine").run({"query": "dog", "limit": limit})
    assert store.asked == [("mine", "dog", searched)]


@pytest.mark.proves("search-tool")
@pytest.mark.parametrize(
    "arguments",
    [
        None, 7, "{", "[]", b"\xff", {}, {"query": 3}, {"query": " "}, {"query": "x", 3: 4},
        {"query": "x", "limit": 0}, {"query": "x", "limit": "many"}, {"query": "x", "limit": 1.5},
        {"query": "x", "limit": True}, {"query": "x", "limit": float("inf")}, {"query": "x", "limit": "²"},
        {"query": "x", "conversation_id": "other"},
    ],
)  # fmt: skip
def test_wrong_arguments_are_reported_to_the_model(arguments: Any) -> None:
    store = Store()
    answer = conversation_search_tool(store, "mine").run(arguments)
    assert answer.startswith("Error: ")
    assert "mine" not in answer
    assert store.asked == []


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
    adapter = pydantic.TypeAdapter(getattr(pytest.importorskip(module), kind))
    declaration = getattr(conversation_search_tool(Store(), "mine"), f"to_{form}")()
    found = adapter.dump_python(adapter.validate_python(declaration), mode="json", exclude_none=True)
    for part in ("conversation_search", "query", "limit", "required"):
        assert part in json.dumps(found)
    assert "mine" not in json.dumps(declaration)
    assert ("additionalProperties" in json.dumps(declaration)) == (form != "gemini")
    with pytest.raises(pydantic.ValidationError):
        adapter.validate_python({**declaration, "name": 3, "function": 3})


@pytest.mark.parametrize(
    "options",
    [
        {"conversation_id": ""},
        {"store": None},
        {"token_cap": 0},
        {"token_cap": True},
        {"token_counter": 5},
        {"time_zone": "Europe/Berlin"},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((InvalidInputError, InvalidConversationIdError)):
        conversation_search_tool(**{"store": Store(), "conversation_id": "mine", **options})


@pytest.mark.proves("token-cap")
@given(
    st.lists(st.tuples(messages(), st.integers(1, 200)), max_size=20),
    st.integers(1, 1_000),
    st.sampled_from(COUNTERS),
)
@pytest.mark.full
def test_an_answer_never_has_more_tokens_than_the_cap(
    found: list[tuple[Message, int]], cap: int, counter: TokenCounter | None
) -> None:
    class Fixed(Store):
        def search(self, conversation_id: str, asked: Asked) -> list[SearchHit]:
            said = [replace(message, parts=message.parts * times) for message, times in found]
            return [SearchHit(one, 1.0, "mine", highlights=highlights(one, parse_query("a 0"))) for one in said]

    tool = conversation_search_tool(Fixed(), "mine", token_cap=cap, token_counter=counter)
    for arguments in ({"query": "a"}, {"query": ""}, {"unknown": 1}):
        answer = tool.run(arguments)
        assert (-(-len(answer) // 4) if counter is None else counter(answer) if answer else 0) <= cap


def test_messages_that_do_not_fit_are_left_out() -> None:
    def answer(cap: int | None) -> str:
        return conversation_search_tool(Store(), "mine", token_cap=cap)(query="dog")

    assert texts_of(answer(75)) == ["I adopted a dog"]
    _, second = texts_of(answer(130))
    assert second.endswith("needle"), "cut to the passage that matches"
    assert len(answer(None)) > 1_000
    assert "dog" not in answer(5), "no text of a message without the delimiters around it"


# Messages that the tool leaves out


def conversation(*, named: bool = True) -> list[Message]:
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
        store.append_many("c", conversation(named=named))
        plain = {"My dog is called Rex", "A nice name for a dog", "What is my dog called?", "Your dog barks"}
        assert {*texts_found(store)} == plain
        store.append("c", assistant("Seven years", id="done"))
        assert "And how old is the dog?" in texts_found(store), "the turn is over"


@pytest.mark.proves("search-tool")
@pytest.mark.parametrize("limit", [1, 5, 20])
def test_many_own_searches_leave_room_for_other_messages(limit: int) -> None:
    with HistoryStore("memory://", max_messages=None) as store:
        store.append_many("c", [user("the dog is old"), assistant("I see")])
        for n in range(250):
            call = tool_use(f"call-{n}", "conversation_search", {"query": "dog dog dog"})
            asked = [user(f"question {n}"), assistant([call]), tool(tool_result(f"call-{n}", "dog")), assistant("Well")]
            store.append_many("c", asked)
        assert texts_of(conversation_search_tool(store, "c")(query="dog", limit=limit)) == ["the dog is old"]


@pytest.mark.proves("search-tool")
def test_no_message_is_found_twice(server: RealServer, namespace: str) -> None:
    chance = Random(3)
    with HistoryStore(server.url, namespace=namespace, max_messages=None) as store:
        for first in range(0, 400, 100):
            turns = []
            for n in range(first, first + 100):
                text = " ".join(chance.choices(["dog", "cat", "tea", "visa", "train"], k=4))
                call = tool_use(f"call-{n}", "conversation_search", {"query": text})
                turns += [user(f"{text}?"), assistant([call]), tool(tool_result(f"call-{n}", text)), assistant(text)]
            store.append_many("c", turns)
        found: list[str] = []
        execute = store.execute

        def watched(steps: Steps[Any]) -> Any:
            outcome = execute(steps)
            if isinstance(outcome, SearchHits):
                found.extend(hit.message.id for hit in outcome)
            return outcome

        store.execute = watched  # type: ignore[method-assign]
        conversation_search_tool(store, "c")(query="dog cat tea", limit=20)
    assert len(found) == len(set(found)) > 300


@pytest.mark.proves("search-tool")
def test_a_message_found_by_meaning_repeats_no_words(server: RealServer, namespace: str) -> None:
    vectors = {"dog": [1.0, 0.0], "We have a puppy": [1.0, 0.0], "A cat sat on the roof": [0.7, 0.7]}

    def embed(texts: list[str]) -> list[list[float]]:
        return [vectors.get(text, [0.0, 1.0]) for text in texts]

    with HistoryStore(server.url, namespace=namespace, embedder=embed, vectors=2) as store:
        call = tool_use("call", "conversation_search", {"query": "pets"})
        store.append_many("c", [user("We have a puppy"), assistant([call]), tool(tool_result("call", "None"))])
        others = [user("A cat sat on the roof"), *(assistant(f"Rain in Porto {n}") for n in range(20))]
        store.append_many("c", [assistant("Nice"), *others])
        found = texts_of(conversation_search_tool(store, "c")(query="dog", limit=5))
    assert found[0] == "We have a puppy"


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


@pytest.mark.proves("search-tool")
@pytest.mark.full
@pytest.mark.parametrize("path", [one for one in FILES if one.name.startswith("locomo")], ids=lambda path: path.name)
def test_earlier_searches_cost_at_most_one_question_in_forty(path: Any) -> None:
    with opened(path) as file:
        conversations = [Conversation(raw) for raw in json.load(file)]
    hits: Counter[str] = Counter()
    with HistoryStore("memory://", max_messages=None) as store:
        for conversation in conversations:
            for kind in ("without", "with"):
                store.append_many(kind + conversation.name, [user(message.text) for message in conversation.messages])
            for n, (question, gold) in enumerate(conversation.questions[:67]):
                expected = {conversation.messages[sequence - 1].text for sequence in gold}
                for kind in ("without", "with"):
                    answer = conversation_search_tool(store, kind + conversation.name, token_cap=None)(query=question)
                    hits[kind] += not expected.isdisjoint(texts_of(answer))
                hits["all"] += 1
                call = assistant([tool_use(f"call-{n}", "conversation_search", {"query": question})])
                said = assistant(f"{question} It was said: {texts_of(answer)[0]}")
                messages = [user(question), call, tool(tool_result(f"call-{n}", answer)), said]
                store.append_many("with" + conversation.name, messages)
    assert hits["without"] - hits["with"] <= hits["all"] / 40, hits


def _thought(text: str) -> Message:
    return Message(role="assistant", parts=(ReasoningPart("Let me think."), TextPart(text)))


@pytest.mark.proves("search-tool")
@pytest.mark.parametrize(
    ("language", "text", "query"),
    [
        ("english", "We drank green jasmine tea.", '"green tea"'),
        ("german", "Die Häuser waren alt.", "Haus"),
        ("german", "Was war das?", "was"),
    ],
    ids=["a phrase that nothing has", "a stem", "a stop word of another language"],
)
def test_a_message_with_reasoning_is_found_as_by_the_store(language: str, text: str, query: str) -> None:
    with HistoryStore("memory://", language=language) as store:
        store.append("mine", _thought(text))
        [line] = data(conversation_search_tool(store, "mine")(query=query))
        assert json.loads(line)["text"] == text
        assert len(store.search("mine", query)) == 1


@pytest.mark.proves("search-tool")
def test_an_earlier_search_for_a_phrase_does_not_hide_its_words() -> None:
    with HistoryStore("memory://") as store:
        store.append_many("mine", [user("We drank green jasmine tea."), assistant("Nice.")])
        tool_of_model = conversation_search_tool(store, "mine")
        for number in range(3):
            answer = tool_of_model(query='"green tea"')
            [line] = data(answer)
            assert json.loads(line)["text"] == "We drank green jasmine tea."
            call = tool_use(f"call-{number}", "conversation_search", {"query": '"green tea"'})
            turn = [user("What was it?"), Message(role="assistant", parts=(call,))]
            turn.append(tool(tool_result(f"call-{number}", answer, name="conversation_search")))
            store.append_many("mine", [*turn, assistant("Jasmine.")])
