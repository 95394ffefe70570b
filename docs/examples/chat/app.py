"""A chat backend: `uvicorn app:app`. In place of a model, it repeats the last message."""

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from redis_history import AsyncHistoryStore
from redis_history.web import ChatEndpoints, LiveView, allow_all

store = AsyncHistoryStore(os.environ.get("REDIS_HISTORY_URL", "embedded://"), namespace="chat")


async def answer(run):
    messages = await store.get(run.conversation_id)
    async with run.stream() as reply:
        for word in messages[-1].text.split():  # the tokens of your model
            await reply.write(f"{word} ")
            await asyncio.sleep(0.1)


built = Path(__file__).with_name("page")
missing = "The page is not built yet: run `npm install && npm run build` in the folder of app.py, and start it again."
page = StaticFiles(directory=built, html=True) if built.is_dir() else PlainTextResponse(missing, 404)


def application(chat):
    view = LiveView(store, authorize=allow_all, page=False)  # its events tell idle tabs what others write

    @asynccontextmanager
    async def lifespan(app):
        async with store, chat, view:
            yield

    routes = [chat.mount("/api/chat"), Mount("/history", view), Mount("/", page)]
    return Starlette(routes=routes, lifespan=lifespan)


app = application(ChatEndpoints(store, answer, authorize=allow_all))  # yours: check who may read and write a chat
