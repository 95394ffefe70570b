"""The web process of the fleet: `uvicorn web:app`. It only asks; the workers answer, see agent.py."""

from contextlib import asynccontextmanager
from pathlib import Path

from agent import store
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from redis_history.web import ChatEndpoints, LiveView, allow_all

chat = ChatEndpoints(store, authorize=allow_all)  # yours: check who may read and write a chat
view = LiveView(store, authorize=allow_all, read_only=False)


@asynccontextmanager
async def lifespan(app):
    async with store, chat, view:
        yield


# The page of the example chat, if it is built: see docs/examples/chat.
built = Path(__file__).parents[1] / "chat" / "page"
page = (
    Mount("/", StaticFiles(directory=built, html=True)) if built.is_dir() else Route("/", RedirectResponse("/history/"))
)
app = Starlette(routes=[chat.mount("/api/chat"), Mount("/history", view), page], lifespan=lifespan)
