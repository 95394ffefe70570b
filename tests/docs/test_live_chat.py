"""docs/examples/live_chat.py: readers that reload, vanish, and see their server stop; and loops over real SDKs."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.docs.pages import DOCS
from tests.support.servers import RealServer, until
from tests.support.web import Stream, listening

TEXT = "Grüße 😀 an alle die hier lesen"


@pytest.fixture
async def chat(own_server: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    server: RealServer = own_server()
    monkeypatch.setenv("REDIS_HISTORY_URL", server.url)
    monkeypatch.setenv("SECONDS_PER_WORD", "0.05")
    monkeypatch.syspath_prepend(DOCS / "examples")
    module = importlib.reload(importlib.import_module("live_chat"))
    module.server = server
    yield module
    await module.store.aclose()


class Page:
    """The state of a browser: the `text` of the newest reply, by the rule of the documentation for JavaScript."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/chats/c"
        self.text = self.status = ""

    async def _request(self, method: str, **options: Any) -> Any:
        async with httpx.AsyncClient() as web:
            return (await web.request(method, self._url, **options)).raise_for_status().json()

    async def load(self) -> str:
        found = await self._request("GET")
        for message in found["messages"]:
            if message["role"] == "assistant":
                self._show(message)
        return str(found["cursor"])

    def _show(self, message: Any) -> None:
        self.text = "".join(part["text"] for part in message["parts"])
        self.status = message.get("status", "complete")

    def take(self, event: dict[str, Any]) -> None:
        if event["event"] == "reply_grew":
            self.text = event["delta"] if event["whole"] else self.text + event["delta"]
        elif event["event"] == "reply_ended":
            self._show(event["message"])

    async def ask(self, text: str = TEXT) -> None:
        await self._request("POST", params={"text": text})


async def drain(socket: Any) -> None:
    while True:
        await socket.recv()


async def data_of(stream: Stream) -> dict[str, Any]:
    found = await stream.event()
    assert found is not None
    return found[1]


async def test_a_page_that_is_reloaded_amid_a_reply(chat: Any) -> None:
    async with listening(chat.app, lifespan="on") as port:
        page = Page(port)
        async with Stream(port, f"chats/c/events?after={await page.load()}") as stream:
            await page.ask()
            while "😀" not in page.text:
                page.take(await data_of(stream))
            stream.writer.transport.abort()  # it vanishes
        page = Page(port)
        cursor = await page.load()
        assert page.status == "streaming"
        assert page.text.startswith("Grüße 😀 ")
        async with Stream(port, f"chats/c/events?after={cursor}") as stream:
            while page.status != "complete":
                page.take(await data_of(stream))
                assert f"{TEXT} ".startswith(page.text)
        assert page.text == f"{TEXT} "


async def test_sockets_that_vanish_leave_nothing_and_a_server_stops(chat: Any) -> None:
    async with listening(chat.app, lifespan="on", ws="websockets-sansio") as port:
        url = f"ws://127.0.0.1:{port}/chats/c/socket"
        page = Page(port)
        await page.load()
        before = len(asyncio.all_tasks())
        for _ in range(20):
            (await connect(url)).transport.abort()
        async with connect(url) as socket:
            await page.ask()
            while page.status != "complete":
                page.take(json.loads(await socket.recv()))
        assert page.text == f"{TEXT} "
        await until(lambda: len(asyncio.all_tasks()) <= before + 2, "the tasks to end")
        channels = [name for name in chat.server.watcher.pubsub_channels() if b"doorbell" not in name]
        assert len(channels) <= 2  # of one subscription
        stream = await Stream(port, "chats/c/events").connect()
        socket = await connect(url)
        await page.ask("word " * 1000)
        page.take(json.loads(await socket.recv()))
    with pytest.raises(ConnectionClosed):
        await drain(socket)
    await stream.__aexit__()
    async with chat.AsyncHistoryStore(chat.server.url, namespace="support") as store:
        message = (await store.get("c"))[-1]
        assert message.status == "interrupted"
        assert ("word " * 1000).startswith(message.text)


WORDS = ("It ", "is ", "😀.")
OPENAI = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in WORDS]
ANTHROPIC = [
    {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [],
     "model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *[{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS],
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]  # fmt: skip


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_the_stream_of_a_provider(chat: Any, provider: str) -> None:
    asked: list[Any] = []

    async def model(request: Request) -> StreamingResponse:
        asked.append(await request.json())

        async def frames() -> AsyncIterator[str]:
            if provider == "anthropic":
                for event in ANTHROPIC:
                    yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            else:
                common = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
                for event in OPENAI:
                    yield f"data: {json.dumps({**common, **event})}\n\n"
                yield "data: [DONE]\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    async with listening(Starlette(routes=[Route("/{path:path}", model, methods=["POST"])])) as port:
        await chat.store.append("c", chat.user("What is it?"))
        base = f"http://127.0.0.1:{port}"
        client: Any
        if provider == "openai":
            client, words = openai.AsyncOpenAI(api_key="x", base_url=f"{base}/v1"), chat.openai_words
        else:
            client, words = anthropic.AsyncAnthropic(api_key="x", base_url=base), chat.anthropic_words
        async with client:
            await chat.answer("c", lambda messages: words(messages, client, "m"))
    assert [message.text for message in await chat.store.get("c")] == ["What is it?", "It is 😀."]
    assert "What is it?" in str(asked[0]["messages"])
    assert asked[0]["stream"] is True
