"""Chats for tests: served, asked and read as front ends do."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from redis_history import AsyncHistoryStore, assistant, tool_use
from redis_history.web import ChatEndpoints, allow_all
from tests.support.web import listening

CHAT = "a chat/with a slash"
PATH = "a%20chat%2Fwith%20a%20slash"


@pytest.fixture
async def serve(store: AsyncHistoryStore) -> AsyncIterator[Callable[..., Any]]:
    """Serves a chat with this answer; returns a client of it."""
    async with AsyncExitStack() as stack:

        async def serve(answer: Any, **options: Any) -> httpx.AsyncClient:
            chat = ChatEndpoints(answer=answer, **{"store": store, "authorize": allow_all} | options)
            app = Starlette(routes=[chat.mount("/api/chat"), Mount("/", Response(status_code=418))])
            port = await stack.enter_async_context(listening(app))
            await stack.enter_async_context(chat)  # ends before the server does
            client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/chat", timeout=20)
            return await stack.enter_async_context(client)

        yield serve


def asked(words: str, id_: str = "u1", **more: Any) -> dict[str, Any]:
    message = {"id": id_, "role": "user", "parts": [{"type": "text", "text": words}]}
    return {"id": CHAT, "messages": [message], "trigger": "submit-message", **more}


async def chunks_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


async def ask(
    client: httpx.AsyncClient, body: dict[str, Any], answered: asyncio.Event | None = None
) -> list[dict[str, Any]]:
    """The chunks of an answer. Sets `answered` when its stream begins, or fails."""
    answered = answered or asyncio.Event()
    try:
        async with client.stream("POST", "", json=body) as response:
            answered.set()
            assert response.status_code == 200, await response.aread()
            return [chunk async for chunk in chunks_of(response)]
    finally:
        answered.set()


def text_in(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


def speaker(store: AsyncHistoryStore) -> Callable[[Any], Any]:
    """Repeats the last message, in parts."""

    async def answer(run: Any) -> None:
        last = (await store.get(run.conversation_id))[-1]
        async with run.stream(interval=0.0) as reply:
            for word in ("You ", "said: ", last.text):
                await reply.write(word)

    return answer


def asker(store: AsyncHistoryStore) -> Callable[[Any], Any]:
    """Calls a tool of the front end as often as the message of the user says, always with the same id."""
    wanted = {"one choice": 1, "two choices": 2}

    async def answer(run: Any) -> None:
        messages = await store.get(run.conversation_id)
        turn = messages[max(at for at, one in enumerate(messages) if one.role == "user") :]
        calls = sum(len(one.tool_uses) for one in turn)
        given = [result.content for one in turn for result in one.tool_results]
        if calls == len(given) < wanted[turn[0].text]:
            await run.append(assistant("Choose:", tool_use("call_0", "ask", {})))
        else:
            await run.append(assistant(f"You chose {given}."))

    return answer


async def chosen(client: httpx.AsyncClient, output: str) -> dict[str, Any]:
    """The last message, with this result of the call of the front end."""
    message: dict[str, Any] = (await client.get(f"/{PATH}/messages")).json()[-1]
    call = next(part for part in message["parts"] if part.get("state") == "input-available")
    call.update(state="output-available", output=output)
    return message


async def results(store: AsyncHistoryStore) -> list[Any]:
    return [result.content for one in await store.get(CHAT) for result in one.tool_results]


async def is_waiting(store: AsyncHistoryStore, count: int = 1) -> bool:
    """Whether `count` messages wait for the end of an answer."""
    turns = await store.list_turns(status="running")
    return any(len(turn.message_ids) > count for turn in turns)


class Gate:
    """An answer that begins, and waits to be let through."""

    def __init__(self) -> None:
        self.begun, self.open = asyncio.Event(), asyncio.Event()
        self.calls = 0

    async def begin(self, client: httpx.AsyncClient, body: dict[str, Any]) -> asyncio.Task[list[dict[str, Any]]]:
        """Request this answer, and wait until its stream begins."""
        answered = asyncio.Event()

        async def both() -> None:
            await self.begun.wait()
            await answered.wait()

        asking, begun = asyncio.create_task(ask(client, body, answered)), asyncio.create_task(both())
        await asyncio.wait([asking, begun], return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            begun.cancel()
            await asking  # raises
        return asking

    async def __call__(self, run: Any) -> None:
        self.calls += 1
        async with run.stream(interval=0.0) as reply:
            await reply.write("first ")
            self.begun.set()
            await self.open.wait()
            await reply.write("last")


def after_a_secret(gate: Gate) -> Callable[[Any], Any]:
    """Writes the message a1, and then what the gate lets through."""

    async def answer(run: Any) -> None:
        await run.append(assistant("A secret.", id="a1"))
        await gate(run)

    return answer


async def hide_the_secret(store: AsyncHistoryStore, change: str) -> None:
    """Somebody edits or removes the message a1."""
    if change == "edit":
        await store.update_message(CHAT, assistant("[removed]", id="a1"))
    else:
        await store.delete_messages(CHAT, ["a1"])


async def resumed_by(client: httpx.AsyncClient, gate: Gate, count: int) -> list[list[dict[str, Any]]]:
    """The streams of `count` readers that come in the middle of the answer."""
    reading = asyncio.Barrier(count + 1)

    async def resume() -> list[dict[str, Any]]:
        async with client.stream("GET", f"/{PATH}/stream") as response:
            assert response.status_code == 200
            chunks = chunks_of(response)
            found = [await anext(chunks)]
            await reading.wait()
            return [*found, *[chunk async for chunk in chunks]]

    readers = [asyncio.create_task(resume()) for _ in range(count)]
    await reading.wait()
    gate.open.set()
    return await asyncio.gather(*readers)
