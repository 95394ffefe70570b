"""A chat whose replies are seen as they are written: `uvicorn --timeout-graceful-shutdown 2 live_chat:app`."""

import asyncio
import json
import os
from contextlib import aclosing, asynccontextmanager

from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse

from redis_history import AsyncHistoryStore, user
from redis_history.formats import to_anthropic, to_openai_chat
from redis_history.formats.json_form import to_json

store = AsyncHistoryStore(os.environ.get("REDIS_HISTORY_URL", "redis://localhost:6379/0"), namespace="support")


async def echo(messages):  # in place of a model
    for word in messages[-1].text.split():
        await asyncio.sleep(float(os.environ.get("SECONDS_PER_WORD", "0.1")))
        yield f"{word} "


async def openai_words(messages, client, model):
    stream = await client.chat.completions.create(model=model, messages=to_openai_chat(messages), stream=True)
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


async def anthropic_words(messages, client, model):
    asked = to_anthropic(messages, shape="request")
    async with client.messages.stream(model=model, max_tokens=1000, messages=asked) as stream:
        async for text in stream.text_stream:
            yield text


async def answer(chat, words=echo):
    messages = await store.get(chat)
    async with store.stream(chat) as reply:
        async for text in words(messages):
            await reply.write(text)


answering = set()  # a reply is written to its end, also when its reader has left


@asynccontextmanager
async def lifespan(app):
    async with store:
        yield
        for task in answering:  # replies that are not complete end as "interrupted"
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


app = FastAPI(lifespan=lifespan)  # yours: check who may read and write a chat


@app.post("/chats/{chat}")
async def ask(chat: str, text: str):
    await store.append(chat, user(text))
    task = asyncio.create_task(answer(chat))
    answering.add(task)
    task.add_done_callback(answering.discard)


@app.get("/chats/{chat}")
async def show(chat: str):  # then follow the changes after this cursor; the same after a reload
    snapshot = await store.snapshot(chat)
    return {"cursor": str(snapshot.cursor), "messages": [to_json(message) for message in snapshot.messages]}


async def changes_of(chat, cursor):
    async with store.subscribe(chat, after=cursor) as changes:
        async for event in changes:
            yield str(event.cursor), json.dumps(to_json(event))


@app.get("/chats/{chat}/events")
async def events(chat: str, request: Request, after: str | None = None):
    async def frames():
        async with aclosing(changes_of(chat, request.headers.get("last-event-id", after))) as changes:
            async for cursor, data in changes:
                yield f"id: {cursor}\ndata: {data}\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream")


@app.websocket("/chats/{chat}/socket")
async def socket(websocket: WebSocket, chat: str, after: str | None = None):
    async def send():
        async with aclosing(changes_of(chat, after)) as changes:
            async for _, data in changes:
                await websocket.send_text(data)

    await websocket.accept()
    sending = asyncio.create_task(send())
    try:
        while True:
            await websocket.receive_text()  # raises when the client leaves, or the server stops
    except WebSocketDisconnect:
        pass
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
