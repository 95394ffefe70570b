"""The live view behind a sign-in, with a signed session cookie: `uvicorn signed_session:app`.

Needs `pip install itsdangerous`, and in the environment SESSION_SECRET, a random text that all processes share.
"""

import hashlib
import hmac
import os
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from redis_history import AsyncHistoryStore, Participant
from redis_history.web import LiveView


def digest(password, salt):
    return hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1)


# Yours: where users, their passwords (never stored as they are) and their conversations come from.
USERS = {"ann": digest("correct horse", b"a"), "bob": digest("battery staple", b"b")}
MEMBERS = {"chat-1": {"ann"}, "chat-2": {"ann", "bob"}}


async def sign_in(request):
    given = await request.json()
    name, password = str(given.get("name")), str(given.get("password"))
    if not hmac.compare_digest(digest(password, name[:1].encode()), USERS.get(name, b"")):
        return PlainTextResponse("wrong name or password", 401)
    request.session.clear()
    request.session["user"] = name  # signed: the browser can read it, and cannot change it
    return PlainTextResponse("signed in")


async def sign_out(request):
    request.session.clear()
    return PlainTextResponse("signed out")


async def authorize(request, conversation_id, action):
    name = request.session.get("user")
    if action == "list":
        return name is not None
    return action in ("read", "append") and name in MEMBERS.get(conversation_id, ())


async def participant(request):
    return Participant("user", request.session["user"])


store = AsyncHistoryStore(os.environ.get("REDIS_HISTORY_URL", "redis://localhost:6379/0"), namespace="support")
view = LiveView(store, authorize=authorize, participant=participant, read_only=False)


@asynccontextmanager
async def lifespan(app):
    async with store, view:
        yield


sessions = Middleware(
    SessionMiddleware,
    secret_key=os.environ["SESSION_SECRET"],
    max_age=12 * 3600,
    same_site="strict",
    https_only=os.environ.get("INSECURE") != "1",  # set it to try this on your own machine, without TLS
)
app = Starlette(
    routes=[
        Route("/sign-in", sign_in, methods=["POST"]),
        Route("/sign-out", sign_out, methods=["POST"]),
        Mount("/history", view),
    ],
    middleware=[sessions],
    lifespan=lifespan,
)
