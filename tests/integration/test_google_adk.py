"""The contract of ADK's session services, side by side with its own in-memory service."""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from msgspec.structs import replace

from redis_history import AsyncHistoryStore, Conversation, user
from redis_history.integrations.google_adk import AdkSessionService, _message
from redis_history.store.operations import ReadPage
from tests.support.faces import act_after

WHERE = {"app_name": "shop", "user_id": "ann/1"}


def event(text: str | None, author: str = "user", **more: Any) -> Event:
    part = [] if text is None else [types.Part(text=text)]
    role = "user" if author == "user" else "model"
    return Event(
        author=author, invocation_id="i", content=types.Content(role=role, parts=part) if part else None, **more
    )


def delta(**state: Any) -> EventActions:
    return EventActions(state_delta={key.replace("__", ":"): value for key, value in state.items()})


CALL = types.FunctionCall(id="c1", name="find", args={"q": 2**70})
RESULT = types.FunctionResponse(id="c1", name="find", response={"r": [1, None]})
BLOB = types.Blob(data=b"12", mime_type="image/png")


def parts(role: str, *parts: types.Part, **more: Any) -> Event:
    return Event(author="bot", content=types.Content(role=role, parts=[*parts]), **more)


THOUGHT = types.Part(text="hm", thought=True, thought_signature=b"s")
EVENTS = [
    event("Hi", timestamp=100.0),
    parts("model", THOUGHT, types.Part(function_call=CALL), long_running_tool_ids={"c1"}, timestamp=101.0),
    parts("user", types.Part(function_response=RESULT), timestamp=102.0),
    event(None, "bot", actions=delta(own=[1], temp__c=3, app__a=5, user__u=6), error_code="E", timestamp=103.0),
    parts("model", types.Part(inline_data=BLOB), timestamp=104.0),
]


async def read(service: BaseSessionService, session_id: str, **config: Any) -> Session:
    found = await service.get_session(
        **WHERE, session_id=session_id, config=GetSessionConfig(**config) if config else None
    )
    assert found is not None
    return found


async def observations(service: BaseSessionService) -> AsyncIterator[Any]:
    """The results and errors of the methods of a session service."""
    first = await service.create_session(**WHERE, session_id=" s/1 ", state={"app:a": 1, "user:u": 2, "own": 3})
    other = await service.create_session(app_name="shop", user_id="bob", session_id="1")
    yield first.id, dict(first.state), other.state
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHERE, session_id="s/1")
    for one in EVENTS:
        await service.append_event(first, one.model_copy(deep=True))
    for again in (EVENTS[-1], event("y", id=EVENTS[-1].id, timestamp=105.0), event("z", partial=True)):
        await service.append_event(first, again.model_copy(deep=True))
    yield first.events, first.state
    found = await read(service, "s/1")
    yield found.events, found.state, found.last_update_time
    for config in ({"num_recent_events": 2}, {"num_recent_events": 0}, {"after_timestamp": 102.0}):
        yield (await read(service, "s/1", **config)).events
    yield (await read(service, "s/1", after_timestamp=101.0, num_recent_events=2)).events
    for number in range(3):
        await service.create_session(**WHERE, session_id=f"{number}", state={"n": number})
    await service.create_session(app_name="other", user_id="ann/1", session_id="0")
    for where in (WHERE, {"app_name": "shop"}, {"app_name": "none"}):
        listed = (await service.list_sessions(**where)).sessions
        yield sorted((one.user_id, one.id, str(one.events), str(one.state)) for one in listed)
    for user_id in ("ann/1", "bob"):
        yield await service.get_user_state(app_name="shop", user_id=user_id)
    await service.delete_session(**WHERE, session_id="s/1")
    await service.delete_session(**WHERE, session_id="s/1")
    yield await service.get_session(**WHERE, session_id="s/1")
    with pytest.raises(SessionNotFoundError):
        await service.append_event(first, event("x"))


async def test_it_does_what_the_service_in_memory_does(async_store: AsyncHistoryStore) -> None:
    theirs = [one async for one in observations(InMemorySessionService())]
    ours = [one async for one in observations(AdkSessionService(async_store))]
    assert len(ours) == 13
    for number, (expected, found) in enumerate(zip(theirs, ours, strict=True)):
        assert found == expected, number
    assert ours[0] == ("s/1", {"app:a": 1, "user:u": 2, "own": 3}, {"app:a": 1})


async def test_a_conversation_that_others_began_becomes_a_session(async_store: AsyncHistoryStore) -> None:
    service = AdkSessionService(async_store)
    where = {"app_name": "shop", "user_id": "ann", "session_id": "s"}
    await async_store.ask("adk/shop/ann/s", user("q"))
    assert await service.get_session(**where) is None
    made = await service.create_session(**where, state={"own": 1, "user:lang": "en"})
    assert ([one.content.parts[0].text for one in made.events], made.state) == (["q"], {"own": 1, "user:lang": "en"})  # type: ignore[union-attr, index]
    await service.append_event(made, event("a"))
    assert len((await service.get_session(**where)).events) == 2  # type: ignore[union-attr]
    assert [one.id for one in (await service.list_sessions(app_name="shop", user_id="ann")).sessions] == ["s"]
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**where)
    await async_store.create_conversation(Conversation("adk/shop/ann/t", user_id="bob", metadata={"a": 1}))
    with pytest.raises(AlreadyExistsError):
        await service.create_session(app_name="shop", user_id="ann", session_id="t")


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


async def test_the_last_of_two_concurrent_changes_in_a_session_stays(async_store: AsyncHistoryStore) -> None:
    service, other = AdkSessionService(async_store), AdkSessionService(async_store)
    session = await service.create_session(**WHERE, session_id="s")
    second = await read(other, "s")
    later = event("y", actions=delta(user__k=2, own=2))
    act_after(async_store, ReadPage, lambda: other.append_event(second, later))
    await service.append_event(session, event("x", actions=delta(user__k=1, own=1)))
    assert (await read(service, "s")).state == {"user:k": 2, "own": 2}


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


async def test_a_process_that_dies_after_a_live_reply_leaves_its_change_of_state(
    async_store: AsyncHistoryStore,
) -> None:
    """Another event, which is after the place of the reply, was applied in the meantime."""
    service = AdkSessionService(async_store)
    session = await service.create_session(**WHERE, session_id="s", state={"a": 0})
    async with async_store.stream("adk/shop/ann%2F1/s") as reply:
        await reply.write("y")
        await service.append_event(session, event("x", actions=delta(a=1, x=1)))
        assert [found.author for found in (await read(service, "s")).events] == ["user"], "the reply is not whole"
    died = _message(event("y", "bot", actions=delta(a=2, user__y=2)))
    place = {name: getattr(reply.message, name) for name in ("id", "timestamp", "sequence")}
    await async_store.update_message("adk/shop/ann%2F1/s", replace(died, **place))  # the last write before its death
    for config in ({}, {"num_recent_events": 0}):
        assert (await read(service, "s", **config)).state == {"a": 2, "x": 1, "user:y": 2}
    await service.append_event(session, event("z", actions=delta(x=3)))
    assert (await read(service, "s")).state == {"a": 2, "x": 3, "user:y": 2}
    assert (await service.create_session(**WHERE, session_id="other")).state == {"user:y": 2}


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


async def test_a_fork_of_the_conversation_is_no_second_session(async_store: AsyncHistoryStore) -> None:
    service = AdkSessionService(async_store)
    session = await service.create_session(**WHERE, session_id="s", state={"a": 1, "user:b": 2})
    await service.append_event(session, event("Hi"))
    await async_store.fork("adk/shop/ann%2F1/s", "experiment")
    assert [one.id for one in (await service.list_sessions(**WHERE)).sessions] == ["s"]
    await service.delete_session(**WHERE, session_id="s")
    assert (await service.list_sessions(**WHERE)).sessions == []
    assert [one.text for one in await async_store.get("experiment")] == ["Hi"]


async def test_messages_of_another_framework_are_events(async_store: AsyncHistoryStore) -> None:
    service = AdkSessionService(async_store)
    await service.create_session(**WHERE, session_id="s")
    [listed] = await async_store.list_conversations(agent_name="shop")
    await async_store.append(listed.conversation_id, user("From the web", id="m1"))
    [found] = (await read(service, "s")).events
    assert (found.id, found.author, found.content.parts[0].text) == ("m1", "user", "From the web")  # type: ignore


async def test_the_times_of_sessions_are_those_of_their_events(async_store: AsyncHistoryStore) -> None:
    service = AdkSessionService(async_store)
    for number, time in ((1, 3000.0), (2, 1000.5), (3, 2000.25)):
        session = await service.create_session(**WHERE, session_id=str(number))
        await service.append_event(session, Event(author="user", timestamp=time))
    late = await service.create_session(**WHERE, session_id="4")
    listed = (await service.list_sessions(app_name="shop", user_id="ann/1")).sessions
    assert [(one.id, one.last_update_time) for one in listed[:3]] == [("2", 1000.5), ("3", 2000.25), ("1", 3000.0)]
    assert listed[3].last_update_time == late.last_update_time
    assert (await read(service, "2", num_recent_events=0)).last_update_time == 1000.5
