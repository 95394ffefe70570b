"""Turns above the limit of a change or a message, in each adapter: fitting content is stored, and losses are named."""

import asyncio
import base64
import itertools
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
from agent_framework import Content
from agent_framework import Message as FrameworkMessage
from google.adk.events import Event
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from pydantic_ai.messages import (
    BinaryContent,
    BinaryImage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from redis_history import HistoryStore, Message
from redis_history.errors import BackendUnavailableError
from redis_history.formats._losses import Loss
from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.claude_agent_sdk import ClaudeSessionStore
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.langchain import LangChainHistory
from redis_history.integrations.llama_index import LlamaIndexChatStore, LlamaIndexMemoryStore
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory
from redis_history.store.operations import Append
from redis_history.values.pairs import open_calls, pairs_of

KEY = {"project_key": "p", "session_id": "0f8fad5b-d9cb-469f-a165-70867728950e"}
WHERE = {"app_name": "a", "user_id": "u", "session_id": "s"}
#: Characters of results.
pytestmark = pytest.mark.usefixtures("small_caps")
SOME, MUCH, TOO_MUCH = 10_000, 1_000_000, 4_500_000


class Adapter:
    """An adapter with methods to `write` a turn, to `read` all turns, and to build the messages of a turn."""

    def __init__(self, store: HistoryStore, on_loss: Callable[[Loss], None] | None = None) -> None:
        self.store, self.on_loss = store, on_loss

    def write(self, turn: list[Any]) -> None:
        raise NotImplementedError

    def read(self) -> list[Any]:
        raise NotImplementedError

    def said(self, text: str) -> Any:
        raise NotImplementedError

    def calls(self, sizes: list[int]) -> list[Any]:
        """Return parallel calls, and their results with these sizes."""
        raise NotImplementedError

    def stored(self) -> list[Message]:
        [record] = [one for one in self.store.list_conversations() if one.message_count]
        return self.store.get(record.conversation_id)


class LangChain(Adapter):
    def write(self, turn: list[Any]) -> None:
        self.history = getattr(self, "history", None) or LangChainHistory("s", self.store, on_loss=self.on_loss)
        self.history.add_messages(turn)

    def read(self) -> list[Any]:
        return [one.model_copy(update={"id": None}) for one in LangChainHistory("s", self.store).messages]

    def said(self, text: str) -> Any:
        return HumanMessage(text)

    def calls(self, sizes: list[int]) -> list[Any]:
        called = [{"name": "f", "args": {}, "id": f"c{n}", "type": "tool_call"} for n in range(len(sizes))]
        results = [ToolMessage("x" * size, tool_call_id=f"c{n}", name="f") for n, size in enumerate(sizes)]
        return [AIMessage("", tool_calls=called), *results]


class OpenAIAgents(Adapter):
    def write(self, turn: list[Any]) -> None:
        self.session = getattr(self, "session", None) or AgentsSession("s", self.store, on_loss=self.on_loss)
        asyncio.run(self.session.add_items(turn))

    def read(self) -> list[Any]:
        return list(asyncio.run(AgentsSession("s", self.store).get_items()))

    def said(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def calls(self, sizes: list[int]) -> list[Any]:
        called = [
            {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(len(sizes))
        ]
        return called + [
            {"type": "function_call_output", "call_id": f"c{n}", "output": "x" * size} for n, size in enumerate(sizes)
        ]


class PydanticAI(Adapter):
    def write(self, turn: list[Any]) -> None:
        self.history = getattr(self, "history", None) or PydanticAIHistory("s", self.store, on_loss=self.on_loss)
        self.history.append_sync(turn)

    def read(self) -> list[Any]:
        return PydanticAIHistory("s", self.store).load_sync()

    def said(self, text: str) -> Any:
        return ModelRequest(parts=[UserPromptPart(text)])

    def calls(self, sizes: list[int]) -> list[Any]:
        called = ModelResponse(parts=[ToolCallPart("f", {}, f"c{n}") for n in range(len(sizes))])
        results = [ToolReturnPart("f", "x" * size, f"c{n}") for n, size in enumerate(sizes)]
        return [called, ModelRequest(parts=results)]


class AgentFramework(Adapter):
    def write(self, turn: list[Any]) -> None:
        self.history = getattr(self, "history", None) or AgentFrameworkHistory(self.store, on_loss=self.on_loss)
        asyncio.run(self.history.save_messages("s", turn))

    def read(self) -> list[Any]:
        return [one.to_dict() for one in asyncio.run(AgentFrameworkHistory(self.store).get_messages("s"))]

    def said(self, text: str) -> Any:
        return FrameworkMessage("user", [text])

    def calls(self, sizes: list[int]) -> list[Any]:
        called = [Content.from_function_call(f"c{n}", "f", arguments={}) for n in range(len(sizes))]
        results = [Content.from_function_result(f"c{n}", result="x" * size) for n, size in enumerate(sizes)]
        return [FrameworkMessage("assistant", called), FrameworkMessage("tool", results)]


class LlamaIndex(Adapter):
    def write(self, turn: list[Any]) -> None:
        self.memory = getattr(self, "memory", None) or LlamaIndexMemoryStore(self.store, on_loss=self.on_loss)
        asyncio.run(self.memory.add_messages("s", turn))

    def read(self) -> list[Any]:
        return [one.model_dump() for one in asyncio.run(LlamaIndexMemoryStore(self.store).get_messages("s"))]

    def said(self, text: str) -> Any:
        return ChatMessage(role="user", content=text)

    def calls(self, sizes: list[int]) -> list[Any]:
        called = [
            {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(len(sizes))
        ]
        results = [
            ChatMessage(role="tool", content="x" * size, additional_kwargs={"tool_call_id": f"c{n}", "name": "f"})
            for n, size in enumerate(sizes)
        ]
        return [ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": called}), *results]


class Claude(Adapter):
    count = 0

    def write(self, turn: list[Any]) -> None:
        asyncio.run(ClaudeSessionStore(self.store, on_loss=self.on_loss).append(KEY, turn))  # type: ignore[typeddict-item]

    def read(self) -> list[Any]:
        return asyncio.run(ClaudeSessionStore(self.store).load(KEY)) or []  # type: ignore[typeddict-item]

    def entry(self, role: str, content: Any, **more: Any) -> Any:
        Claude.count += 1
        return {"type": role, "uuid": f"u{self.count}", "message": {"role": role, "content": content}, **more}

    def said(self, text: str) -> Any:
        return self.entry("user", text)

    def calls(self, sizes: list[int]) -> list[Any]:
        called = [{"type": "tool_use", "id": f"c{n}", "name": "f", "input": {}} for n in range(len(sizes))]
        results = [
            {"type": "tool_result", "tool_use_id": f"c{n}", "content": "x" * size} for n, size in enumerate(sizes)
        ]
        return [self.entry("assistant", called), self.entry("user", results)]


class Adk(Adapter):
    def write(self, turn: list[Any]) -> None:
        asyncio.run(self._write(turn))

    async def _write(self, turn: list[Any]) -> None:
        service = AdkSessionService(self.store, on_loss=self.on_loss)
        session = await service.get_session(**WHERE) or await service.create_session(**WHERE)
        for event in turn:
            await service.append_event(session, event)

    def read(self) -> list[Any]:
        session = asyncio.run(AdkSessionService(self.store).get_session(**WHERE))
        assert session is not None
        return [event.model_dump(exclude={"id"}) for event in session.events]

    def said(self, text: str) -> Any:
        return Event(author="user", content=types.Content(role="user", parts=[types.Part(text=text)]))

    def calls(self, sizes: list[int]) -> list[Any]:
        called = [
            types.Part(function_call=types.FunctionCall(id=f"c{n}", name="f", args={})) for n in range(len(sizes))
        ]
        results = [
            types.Part(function_response=types.FunctionResponse(id=f"c{n}", name="f", response={"r": "x" * size}))
            for n, size in enumerate(sizes)
        ]
        return [
            Event(author="bot", content=types.Content(role="model", parts=called)),
            Event(author="bot", content=types.Content(role="user", parts=results)),
        ]


ADAPTERS = [LangChain, OpenAIAgents, PydanticAI, AgentFramework, LlamaIndex, Claude, Adk]


def dumped(messages: list[Any]) -> list[Any]:
    """Messages in the form of `read`."""
    found = []
    for one in messages:
        if isinstance(one, Event):
            found.append(one.model_dump(exclude={"id"}))
        elif isinstance(one, ChatMessage):
            found.append(one.model_dump())
        else:
            found.append(one.to_dict() if isinstance(one, FrameworkMessage) else one)
    return found


@pytest.fixture
def store() -> Any:
    with HistoryStore("memory://", max_messages=None, search="off") as made:
        yield made


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_turn_of_many_messages(adapter: type[Adapter], store: HistoryStore) -> None:
    one = adapter(store)
    turn = [one.said(f"{number} " + "word " * 2_000) for number in range(600)]
    one.write(turn)
    assert one.read() == dumped(turn)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_parallel_results_are_read_as_they_were(adapter: type[Adapter], store: HistoryStore) -> None:
    one = adapter(store)
    turn = [one.said("Go"), *one.calls([MUCH] * 9), one.said("Done?")]
    one.write(turn)
    assert one.read() == dumped(turn)
    assert open_calls(one.stored()) == []
    results = [part for message in one.stored() for part in message.tool_results]
    assert len(results) == 9
    assert not any(result.is_error for result in results)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_result_above_the_cap_closes_its_call(
    adapter: type[Adapter], store: HistoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    losses: list[Loss] = []
    one = adapter(store, losses.append)
    before, after = one.said("Go"), one.said("Done?")
    with caplog.at_level(logging.WARNING, "redis_history"):
        one.write([before, *one.calls([SOME, TOO_MUCH, SOME]), after])
    found = one.read()
    assert [found[0], found[-1]] == dumped([before, after])
    stored = one.stored()
    assert open_calls(stored) == []
    assert len(pairs_of(stored).answered) == 3
    results = [part for message in stored for part in message.tool_results]
    assert [result.is_error for result in results] == [False, True, False]
    assert "is too large to store" in str(results[1].content)
    assert "is too large to store" in str(found)
    assert [len(str(results[at].content)) >= SOME for at in (0, 2)] == [True, True]
    [loss] = losses
    assert loss.message_id in {message.id for message in stored}
    assert "result of 4,500,0" in loss.reason
    assert "is stored without its result of 4,500,0" in caplog.text


@pytest.mark.parametrize("adapter", [LangChain, OpenAIAgents, PydanticAI, AgentFramework, LlamaIndex, Claude])
def test_a_turn_that_fails_in_the_middle_can_be_repeated(adapter: type[Adapter]) -> None:
    with HistoryStore("memory://", max_messages=None, search="off") as store:
        one = adapter(store)
        turn = [one.said(f"{number} " + "x" * MUCH) for number in range(12)]
        one.write([one.said("Hello")])
        execute, calls = store.backend.execute, itertools.count()

        def fail_once(op: Any) -> Any:
            if isinstance(op, Append) and next(calls) == 1:
                raise BackendUnavailableError("the server did not answer")
            return execute(op)

        store.backend.execute = fail_once  # type: ignore[method-assign]
        with pytest.raises(BackendUnavailableError, match=r"[36] of 12 messages of this call are stored"):
            one.write(turn)
        one.write(turn)
        assert one.read()[1:] == dumped(turn)
        assert one.store.list_conversations()[0].message_count == 13
        one.write([one.said("Bye")])
        assert one.store.list_conversations()[0].message_count == 14


def test_a_generated_reply_becomes_several_messages(store: HistoryStore) -> None:
    data = base64.b64encode(os.urandom(1_200_000)).decode()
    items: Any = [
        {"role": "user", "content": "Draw."},
        *({"type": "image_generation_call", "id": f"ig{n}", "status": "completed", "result": data} for n in range(4)),
    ]
    session = AgentsSession("s", store)
    asyncio.run(session.add_items(items))
    assert asyncio.run(session.get_items()) == items
    assert asyncio.run(session.get_items(3)) == items[-3:]
    assert asyncio.run(session.pop_item()) == items[-1]
    assert asyncio.run(session.get_items()) == items[:-1]


def test_a_photo_above_the_cap_leaves_the_text(store: HistoryStore) -> None:
    photo = "data:image/jpeg;base64," + base64.b64encode(b"\xff\xd8\xff" * 1_100_000).decode()
    history = LangChainHistory("s", store)
    content = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": photo}}]
    history.add_messages([HumanMessage(content, id="m1"), AIMessage("Nice", id="m2")])
    history.add_messages([HumanMessage(content, id="m1"), AIMessage("Nice", id="m2"), HumanMessage("More", id="m3")])
    assert [message.id for message in history.messages] == ["m1", "m2", "m3"]
    assert "Look" in str(history.messages[0].content)
    assert "is too large to store" in str(history.messages[0].content)
    memory = LlamaIndexMemoryStore(store)
    block = ImageBlock(image=os.urandom(3_300_000), image_mimetype="image/png")
    asyncio.run(memory.add_messages("t", [ChatMessage(role="user", blocks=[TextBlock(text="Look"), block])]))
    assert "Look" in str(asyncio.run(memory.get_messages("t")))


def test_all_messages_are_replaced_by_more_than_one_change(store: HistoryStore) -> None:
    chat = LlamaIndexChatStore(store)
    messages = [ChatMessage(role="user", content=f"{number} " + "x" * MUCH) for number in range(9)]
    for _ in range(2):
        chat.set_messages("s", messages)
        assert chat.get_messages("s") == messages
    history = LangChainHistory("s", store)
    state = [HumanMessage(f"{number} " + "x" * MUCH, id=f"m{number}") for number in range(9)]
    history.add_messages([RemoveMessage(id="__remove_all__"), *state])
    assert history.messages == state


def test_an_entry_above_the_cap_keeps_its_place(store: HistoryStore) -> None:
    claude = Claude(store)
    entries = [
        claude.said("a"),
        {"type": "attachment", "uuid": "big", "parentUuid": "u1", "data": "x" * TOO_MUCH, "list": [1, None]},
        claude.entry("user", "b", toolUseResult={"stdout": "x" * TOO_MUCH}, parentUuid="big"),
        claude.said("c"),
    ]
    claude.write(entries)
    found = claude.read()
    assert [found[0], found[3]] == [entries[0], entries[3]]
    assert {**found[1], "data": ""} == {**entries[1], "data": ""}
    assert "too large to store" in found[1]["data"]
    assert (found[2]["parentUuid"], found[2]["message"]) == ("big", entries[2]["message"])
    claude.write(entries)
    assert claude.read() == found, "each entry is stored once"


def test_text_of_a_model_is_one_part() -> None:
    """A run that begins and ends with text is not split."""
    with HistoryStore("memory://", search="off") as store:
        history = PydanticAIHistory("s", store)
        said = [
            ModelResponse(parts=[TextPart("a" * MUCH), TextPart("b" * MUCH), TextPart("c" * 2 * MUCH), TextPart("d")])
        ]
        history.append_sync(said)
        assert history.load_sync() == said


def test_images_of_pydantic_ai_are_read_in_their_class() -> None:
    raw = os.urandom(1_200_000)
    plain, image = (kind(data=raw, media_type="image/png") for kind in (BinaryContent, BinaryImage))
    said = [ModelRequest(parts=[UserPromptPart(content=["Look", one])]) for one in (plain, plain, image, plain)]
    with HistoryStore("memory://", search="off") as store:
        history = PydanticAIHistory("s", store)
        history.append_sync(said)
        assert history.load_sync() == said
