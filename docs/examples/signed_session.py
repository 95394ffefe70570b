"""The live view behind a sign-in, with a signed session cookie: `uvicorn signed_session:app`.

Needs `pip install itsdangerous`, and in the environment SESSION_SECRET, a random text that all processes share.
"""

import asyncio
import hashlib
import hmac
import os
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Mount, Route

from redis_history import AsyncHistoryStore, Participant
from redis_history.web import LiveView


def hashed(password, salt=None):
    salt = salt or os.urandom(16)
    return salt, hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1)


# Yours: where users, their passwords (never stored as they are) and their conversations come from.
USERS = {"ann": hashed("correct horse"), "bob": hashed("battery staple")}
MEMBERS = {"chat-1": {"ann"}, "chat-2": {"ann", "bob"}}

NOBODY = hashed(os.urandom(16).hex())  # an unknown name takes as long as a wrong password
MOST_BYTES = 1000  # of a body, before anybody has signed in
hashing = asyncio.Semaphore(
    2
)  # each takes 16 MB and 50 ms of a processor; limit the attempts of an address at your proxy


class SignIn(msgspec.Struct):
    name: str
    password: str


PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>Sign in</title>
<form>
  <p><label>Name <input name=name autocomplete=username required></label>
  <p><label>Password <input name=password type=password autocomplete=current-password required></label>
  <p><button>Sign in</button> <output></output>
</form>
<script>
document.forms[0].addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = JSON.stringify(Object.fromEntries(new FormData(event.target)));
  const answer = await fetch("", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  if (answer.ok) location = "/history/";
  else document.querySelector("output").textContent = await answer.text();
});
</script>"""


def check_page(request):
    """Without this, a page of another site could sign its visitors in under a name of its own, and read what they
    write. The cookie does not prevent it, because there is none yet."""
    origin = request.headers.get("origin")  # browsers send it with each POST
    is_own = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if not is_own or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise HTTPException(403, "a page of another site sent this request")
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":  # no form can send it
        raise HTTPException(415, "Content-Type: application/json is needed")


async def read_sign_in(request):
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > MOST_BYTES:
            raise HTTPException(413, f"at most {MOST_BYTES} bytes")
        body += chunk
    try:
        return msgspec.json.decode(body, type=SignIn)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise HTTPException(400, "a JSON object with name and password is needed") from error


async def sign_in_page(request):
    return HTMLResponse(PAGE, headers={"X-Frame-Options": "DENY", "Cache-Control": "no-store"})


async def sign_in(request):
    check_page(request)
    given = await read_sign_in(request)
    salt, expected = USERS.get(given.name, NOBODY)
    async with hashing:  # in a thread, because it would hold up all other requests
        _, found = await asyncio.to_thread(hashed, given.password, salt)
    if not hmac.compare_digest(found, expected):
        return PlainTextResponse("wrong name or password", 401)
    request.session.clear()
    request.session["user"] = given.name  # signed: the browser can read it, and cannot change it
    return PlainTextResponse("signed in")


async def sign_out(request):
    check_page(request)
    request.session.clear()  # a copy of the cookie stays valid until it expires
    return PlainTextResponse("signed out")


async def authorize(request, conversation_id, action):
    name = request.session.get("user")
    if name not in USERS:
        return False
    return action == "list" or (action in ("read", "append") and name in MEMBERS.get(conversation_id, ()))


async def participant(request):
    return Participant("user", request.session["user"])


store = AsyncHistoryStore(os.environ.get("REDIS_HISTORY_URL", "redis://localhost:6379/0"), namespace="support")
view = LiveView(store, authorize=authorize, participant=participant, read_only=False, sign_in="/sign-in")


@asynccontextmanager
async def lifespan(app):
    async with store, view:
        yield


sessions = Middleware(
    SessionMiddleware,  # its cookie is HttpOnly
    secret_key=os.environ["SESSION_SECRET"],
    max_age=12 * 3600,
    same_site="strict",
    https_only=os.environ.get("INSECURE") != "1",  # set it to try this on your own machine, without TLS
)
app = Starlette(
    routes=[
        Route("/sign-in", sign_in_page, methods=["GET"]),
        Route("/sign-in", sign_in, methods=["POST"]),
        Route("/sign-out", sign_out, methods=["POST"]),
        Mount("/history", view),
    ],
    middleware=[sessions],
    lifespan=lifespan,
)
