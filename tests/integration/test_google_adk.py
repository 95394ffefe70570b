"""The contract of ADK's session services, side by side with its own in-memory service."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from redis_history import AsyncHistoryStore, user
from redis_history.integrations.google_adk import AdkSessionService, _message


@pytest.fixture(params=["adk", "redis"])
def service(request: pytest.FixtureRequest, async_store: AsyncHistoryStore) -> BaseSessionService:
    return InMemorySessionService() if request.param == "adk" else AdkSessionService(async_store)


WHERE = {"app_name": "shop", "user_id": "ann/1"}


def event(text: str | None, author: str = "user", **more: Any) -> Event:
    part = [] if text is None else [types.Part(text=text)]
    role = "user" if author == "user" else "model"
    return Event(
        author=author, invocation_id="i", content=types.Content(role=role, parts=part) if part else None, **more
    )


def delta(**state: Any) -> EventActions:
    return EventActions(state_delta={key.replace("__", ":"): value for key, value in state.items()})


async def read(service: BaseSessionService, session_id: str, **config: Any) -> Session:
    found = await service.get_session(
        **WHERE, session_id=session_id, config=GetSessionConfig(**config) if config else None
    )
    assert found is not None
    return found


async def test_events_come_back_equal(service: BaseSessionService) -> None:
    session = await service.create_session(**WHERE, session_id=" s/1 ", state={"a": 1})
    assert session.id == "s/1"
    blob = types.Blob(data=b"12", mime_type="image/png")
    call = types.FunctionCall(id="c1", name="find", args={"q": 2**70})
    result = types.FunctionResponse(id="c1", name="find", response={"r": [1, None]})
    parts = [types.Part(text="hm", thought=True, thought_signature=b"s"), types.Part(function_call=call)]
    events = [
        event("Hi"),
        Event(author="bot", content=types.Content(role="model", parts=parts), long_running_tool_ids={"c1"}),
        Event(author="bot", content=types.Content(role="user", parts=[types.Part(function_response=result)])),
        Event(author="bot", content=types.Content(role="model", parts=[types.Part(inline_data=blob)])),
        event(None, "bot", actions=delta(b=[1], temp__c=3), error_code="E"),
    ]
    for one in events:
        await service.append_event(session, one)
    found = await read(service, "s/1")
    assert found.events == session.events == events
    assert found.state == {"a": 1, "b": [1]}
    assert session.state == {"a": 1, "b": [1], "temp:c": 3}
    assert found.last_update_time == events[-1].timestamp


async def test_parts_of_the_events_are_read(service: BaseSessionService) -> None:
    session = await service.create_session(**WHERE, session_id="s")
    for number in range(5):
        await service.append_event(session, event(f"{number}", timestamp=100.0 + number))
    for config, expected in (
        ({"num_recent_events": 2}, "34"),
        ({"num_recent_events": 0}, ""),
        ({"after_timestamp": 102.0}, "234"),
        ({"after_timestamp": 101.0, "num_recent_events": 2}, "34"),
        ({"after_timestamp": 200.0}, ""),
    ):
        found = await read(service, "s", **config)
        texts = [one.content.parts[0].text for one in found.events if one.content and one.content.parts]
        assert "".join(map(str, texts)) == expected, config


async def test_state_has_scopes(service: BaseSessionService) -> None:
    first = await service.create_session(**WHERE, session_id="1", state={"app:a": 1, "user:u": 2, "own": 3})
    second = await service.create_session(**WHERE, session_id="2")
    other = await service.create_session(app_name="shop", user_id="bob", session_id="1")
    assert first.state == {"app:a": 1, "user:u": 2, "own": 3}
    assert second.state == {"app:a": 1, "user:u": 2}
    assert other.state == {"app:a": 1}
    await service.append_event(second, event("x", actions=delta(app__a=5, user__u=6, own=7)))
    assert (await read(service, "1")).state == {"app:a": 5, "user:u": 6, "own": 3}
    assert (await read(service, "2")).state == {"app:a": 5, "user:u": 6, "own": 7}
    assert await service.get_user_state(**WHERE) == {"u": 6}
    assert await service.get_user_state(app_name="shop", user_id="bob") == {}


async def test_sessions_are_listed_and_deleted(service: BaseSessionService) -> None:
    for number in range(3):
        session = await service.create_session(**WHERE, session_id=f"{number}", state={"user:u": 1, "n": number})
    await service.create_session(app_name="shop", user_id="bob", session_id="0")
    await service.create_session(app_name="other", user_id="ann/1", session_id="0")
    await service.append_event(session, event("x"))
    listed = (await service.list_sessions(**WHERE)).sessions
    assert [(one.id, one.events, one.state) for one in listed] == [
        (f"{n}", [], {"user:u": 1, "n": n}) for n in range(3)
    ]
    assert len((await service.list_sessions(app_name="shop")).sessions) == 4
    assert (await service.list_sessions(app_name="none")).sessions == []
    await service.delete_session(**WHERE, session_id="1")
    await service.delete_session(**WHERE, session_id="1")
    assert await service.get_session(**WHERE, session_id="1") is None
    assert [one.id for one in (await service.list_sessions(**WHERE)).sessions] == ["0", "2"]


async def test_wrong_uses_raise_the_errors_of_the_framework(service: BaseSessionService) -> None:
    session = await service.create_session(**WHERE, session_id="s")
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHERE, session_id="s")
    await service.delete_session(**WHERE, session_id="s")
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, event("x"))
    assert await service.get_session(**WHERE, session_id="s") is None


async def test_a_repeated_event_is_stored_once_and_a_partial_one_never(service: BaseSessionService) -> None:
    session = await service.create_session(**WHERE, session_id="s")
    one = event("x", actions=delta(n=1))
    await service.append_event(session, one)
    await service.append_event(session, one.model_copy(deep=True))
    await service.append_event(session, event("y", id=one.id))
    await service.append_event(session, event("z", partial=True))
    assert len((await read(service, "s")).events) == len(session.events) == 2


async def test_concurrent_changes_of_shared_state_are_merged(async_store: AsyncHistoryStore) -> None:
    service = AdkSessionService(async_store)
    sessions = [await service.create_session(**WHERE, session_id=f"{number}") for number in range(8)]
    await asyncio.gather(
        *(
            service.append_event(session, event("x", actions=delta(**{f"app__k{number}": number})))
            for number, session in enumerate(sessions)
        )
    )
    assert (await read(service, "0")).state == {f"app:k{number}": number for number in range(8)}


async def test_a_process_that_dies_after_an_event_leaves_its_change_of_state(async_store: AsyncHistoryStore) -> None:
    service = AdkSessionService(async_store)
    session = await service.create_session(**WHERE, session_id="s", state={"a": 0})
    await service.append_event(session, event("x", actions=delta(a=1)))
    died = event("y", actions=delta(a=2, b=2**70, n=float("nan"), app__c=2))
    await async_store.append("adk/shop/ann%2F1/s", _message(died))  # the first write of append_event
    for config in ({}, {"num_recent_events": 0}, {"num_recent_events": 1}):
        state = (await read(service, "s", **config)).state
        assert math.isnan(state.pop("n"))
        assert state == {"a": 2, "b": 2**70, "app:c": 2}
    await service.append_event(session, event("z", actions=delta(a=3)))
    await service.append_event(session, died)  # a late repeat changes nothing
    other = await service.create_session(**WHERE, session_id="other")
    assert other.state == {"app:c": 2}
    found = (await read(service, "s")).state
    assert (found["a"], found["b"]) == (3, 2**70)


class Model(BaseLlm):
    """Calls a tool for each question, and answers with its result, in a stream. Remembers what it was sent."""

    requests: list[Any] = []  # noqa: RUF012 -- a pydantic field

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:
        contents = [content.model_dump(exclude_none=True) for content in llm_request.contents]
        self.requests.append(
            re.sub("adk-[0-9a-f-]+", "random", repr([contents, llm_request.config.system_instruction]))
        )
        last = (llm_request.contents[-1].parts or [])[-1]
        if last.function_response is None:
            part = types.Part.from_function_call(name="add", args={"a": 2, "b": 3})
            yield LlmResponse(content=types.Content(role="model", parts=[part]))
            return
        said = f"It is {last.function_response.response}."
        for text, partial in ((said[:5], True), (said[5:], True), (said, False)):
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]), partial=partial)


def add(a: int, b: int, tool_context: ToolContext) -> int:
    """Add two numbers."""
    tool_context.state["user:sums"] = tool_context.state.get("user:sums", 0) + 1
    return a + b


@pytest.mark.proves("frameworks")
async def test_the_model_is_sent_the_same_as_with_the_service_in_memory(async_store: AsyncHistoryStore) -> None:
    requests, states = [], []
    theirs = InMemorySessionService()
    for kept in (True, False):
        model = Model(model="scripted", requests=[])
        for text in ("What is 2 + 3?", "And again?"):  # all is new, as after a restart
            agent = LlmAgent(
                name="bot", model=model, tools=[add], instruction="Sums: {user:sums?}.", output_key="answer"
            )
            service = theirs if kept else AdkSessionService(async_store)
            runner = Runner(agent=agent, app_name="shop", session_service=service, auto_create_session=True)
            said = types.Content(role="user", parts=[types.Part(text=text)])
            streaming = RunConfig(streaming_mode=StreamingMode.SSE)
            events = [
                one
                async for one in runner.run_async(
                    user_id="ann/1", session_id="s", new_message=said, run_config=streaming
                )
            ]
            assert sum(one.partial is True for one in events) == 2
        requests.append(model.requests)
        states.append((await read(service, "s")).state)
    assert requests[0] == requests[1]
    assert len(requests[0]) == 4
    assert states[0] == states[1] == {"answer": "It is {'result': 5}.", "user:sums": 2}


async def test_messages_of_another_framework_are_events(async_store: AsyncHistoryStore) -> None:
    service = AdkSessionService(async_store)
    await service.create_session(**WHERE, session_id="s")
    [listed] = await async_store.list_conversations(agent_name="shop")
    await async_store.append(listed.conversation_id, user("From the web", id="m1"))
    [found] = (await read(service, "s")).events
    assert (found.id, found.author, found.content.parts[0].text) == ("m1", "user", "From the web")  # type: ignore
