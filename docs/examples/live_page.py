"""A page of your own that follows one conversation: `uvicorn live_page:app`."""

import os
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from redis_history import AsyncHistoryStore
from redis_history.web import LiveView

PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><ul id="list"></ul><script>
const path = "history/v1/conversations/chat-1/"
const show = (m) => list.appendChild(document.createElement("li")).textContent = `${m.role}: ${m.text}`
const follow = async () => {
  const start = await (await fetch(path + "messages")).json()
  list.replaceChildren()
  start.messages.forEach(show)
  const events = new EventSource(path + "events?after=" + start.cursor)
  events.addEventListener("appended", (event) => JSON.parse(event.data).messages.forEach(show))
  events.addEventListener("reset", () => { events.close(); follow() })
}
follow()</script>"""


def authorize(request, conversation_id, action):  # yours: who is it, and what may they see?
    return (conversation_id, action) == ("chat-1", "read")


store = AsyncHistoryStore(os.environ.get("REDIS_HISTORY_URL", "redis://localhost:6379/0"), namespace="support")
view = LiveView(store, authorize=authorize, page=False)


@asynccontextmanager
async def lifespan(app):
    async with store, view:
        yield


pages = [Route("/", lambda request: HTMLResponse(PAGE)), Mount("/history", view)]
app = Starlette(routes=pages, lifespan=lifespan)
