"""Applications behind a proxy that strips a part of the path, with the live view and the chat mounted at any path."""

from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from redis_history import AsyncHistoryStore
from redis_history.web import ChatEndpoints, LiveView, allow_all
from tests.support.marks import some
from tests.support.web import listening
from tests.web.chatting import asked, speaker

#: Ids that are changed in a path, or that once had a special meaning in a path.
IDS = ("c", "a/b", "~", "~YWI", "~c/d", "=x", "100%25", "旅行")


async def plain(request: Any) -> Response:
    return Response()


class Stripping:
    """A middleware that strips a prefix from the path alone, and adds it to `root_path`."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(self._prefix)
        await self._app({**scope, "path": path, "root_path": self._prefix}, receive, send)


def starlette(chat: Any, view: Any) -> Any:
    routes = [chat.mount("/chat"), Mount("/history", view), Route("/plain/{id}/messages", plain)]
    return Starlette(routes=routes)


def starlette_mount(chat: Any, view: Any) -> Any:
    return Starlette(routes=[Mount("/chat", chat), Mount("/history", view), Route("/plain/{id}/messages", plain)])


def fastapi(chat: Any, view: Any, **options: Any) -> Any:
    app = FastAPI(**options)
    app.router.routes.append(chat.mount("/chat"))
    app.mount("/history", view)
    app.add_api_route("/plain/{id}/messages", lambda id: None)
    return app


def fastapi_mount(chat: Any, view: Any) -> Any:
    app = FastAPI(root_path="/app")
    app.mount("/chat", chat)
    app.mount("/history", view)
    app.add_api_route("/plain/{id}/messages", lambda id: None)
    return app


def nested(chat: Any, view: Any) -> Any:
    return Starlette(routes=[Mount("/app", starlette(chat, view))])


def stripping(chat: Any, view: Any) -> Any:
    return Stripping(starlette(chat, view), "/app")


#: Deployments in which every id is tried.
EVERY_ID = ("no proxy", "uvicorn --root-path, Mount", "a middleware that strips it")
#: The application, options of uvicorn, and what is before the paths of the application in a request.
DEPLOYMENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no proxy": (starlette, {}, ""),
    "no proxy, Mount": (starlette_mount, {}, ""),
    "uvicorn --root-path": (starlette, {"root_path": "/app"}, ""),
    "uvicorn --root-path, Mount": (starlette_mount, {"root_path": "/app"}, ""),
    "uvicorn --root-path /c, the beginning of /chat": (starlette, {"root_path": "/c"}, ""),
    "FastAPI(root_path), a proxy that strips it": (lambda *apps: fastapi(*apps, root_path="/app"), {}, ""),
    "FastAPI(root_path), a proxy that does not": (lambda *apps: fastapi(*apps, root_path="/app"), {}, "/app"),
    "FastAPI(root_path), Mount": (fastapi_mount, {}, ""),
    "FastAPI(root_path='/h'), the beginning of /history": (lambda *apps: fastapi(*apps, root_path="/h"), {}, ""),
    "an application in another one": (nested, {}, "/app"),
    "a middleware that strips it": (stripping, {}, "/app"),
}


@pytest.mark.filterwarnings("ignore:The `root_path` parameter")  # it is still in use
@pytest.mark.parametrize("deployment", some([*DEPLOYMENTS], each=2))
@pytest.mark.parametrize("protocol", ["ai-sdk", pytest.param("ag-ui", marks=pytest.mark.full)])
async def test_chat_and_view_behind_a_proxy(store: AsyncHistoryStore, deployment: str, protocol: Any) -> None:
    make, options, before = DEPLOYMENTS[deployment]
    chat = ChatEndpoints(store, speaker(store), authorize=allow_all, protocol=protocol)
    view = LiveView(store, authorize=allow_all)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(make(chat, view), **options))
        await stack.enter_async_context(chat)
        web = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}{before}", timeout=20, follow_redirects=True)
        )
        assert (await web.get("/plain/x/messages")).status_code == 200, "a plain route"
        for name in IDS if deployment in EVERY_ID else IDS[:3]:
            body: dict[str, Any] = asked("hi", f"m {name}") | {"id": name}
            if protocol == "ag-ui":
                message = {"id": f"m {name}", "role": "user", "content": "hi"}
                rest = {"state": {}, "tools": [], "context": [], "forwardedProps": {}, "runId": f"run {name}"}
                body = {"threadId": name, "messages": [message], **rest}
            path = f"/chat/{quote(name, safe='')}"
            statuses = {
                "POST": (await web.post("/chat/" if "Mount" in deployment else "/chat", json=body)).status_code,
                "messages": (await web.get(f"{path}/messages")).status_code,
                "stream": (await web.get(f"{path}/stream")).status_code,
                "stop": (await web.post(f"{path}/stop")).status_code,
            }
            stream = 200 if protocol == "ag-ui" else 204
            assert statuses == {"POST": 200, "messages": 200, "stream": stream, "stop": 204}, name
            assert len((await web.get(f"{path}/messages")).json()) == 2
            read = await web.get(f"/history/v1/conversations/{quote(name, safe='')}/messages")
            assert [one["text"] for one in read.json()["messages"]] == ["hi", "You said: hi"]
        assert (await web.get("/chat/c/nothing")).status_code == 404
        for path in ("/history/", "/history/static/app.js", "/history/v1/conversations"):
            assert (await web.get(path)).status_code == 200, path
        assert (await web.get("/history/nothing")).status_code == 404


@pytest.mark.parametrize("path", ["/", "chat", "/chat/"])
async def test_the_path_of_a_route(store: AsyncHistoryStore, path: str) -> None:
    chat = ChatEndpoints(store, speaker(store), authorize=allow_all)
    app = Starlette(routes=[chat.mount(path)])
    async with chat, listening(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as web:
        where = f"/{path.strip('/')}".rstrip("/")
        assert (await web.get(f"{where}/c/messages")).json() == []
