"""The examples of the documentation, as servers of their own: a page in a real browser, WebSockets, signed sessions."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from playwright.async_api import expect

from redis_history import HistoryStore, assistant, user
from tests.docs.pages import DOCS, blocks
from tests.support.servers import DEADLINE, RealServer, free_port, wait_until
from tests.support.web import Stream, at
from tests.web.browsing import Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOUNTED = """
from starlette.applications import Starlette
from starlette.routing import Mount
from redis_history import AsyncHistoryStore
from redis_history.web import LiveView, allow_all
view = LiveView(AsyncHistoryStore("memory://"), authorize=allow_all)
bare = Starlette(routes=[Mount("/history", view)])
mounted = Starlette(routes=[Mount("/history", view)], lifespan=view.lifespan)
"""
SOCKETS = """
import os
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
store = AsyncHistoryStore(os.environ["REDIS_HISTORY_URL"], namespace="support")
async def endpoint(websocket):
    await send_live(websocket, store, "chat-1")
async def obvious(websocket):
    await websocket.accept()
    async for one in live(store, "chat-1"):
        await websocket.send_json(one)
app = Starlette(routes=[WebSocketRoute("/live", endpoint), WebSocketRoute("/obvious", obvious)])
"""


@contextlib.contextmanager
def running(
    url: str, port: int, app: str, folder: Path = DOCS / "examples", log: Path = Path(os.devnull)
) -> Iterator[Any]:
    """An application under uvicorn, without a limit for its end. `log`: what it writes."""
    argv = [sys.executable, "-m", "uvicorn", "--app-dir", str(folder), app, "--port", str(port)]
    env = {**os.environ, "REDIS_HISTORY_URL": url, "SESSION_SECRET": "a secret of the tests", "INSECURE": "1"}
    with log.open("w") as written:
        process = subprocess.Popen(argv, env=env, stdout=written, stderr=subprocess.STDOUT)

    def answers() -> bool:
        assert process.poll() is None
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/").status_code in (200, 404)
        return False

    try:
        wait_until(answers, "the example")
        yield process
    finally:
        process.kill()
        process.wait()


def end(process: Any, how: signal.Signals = signal.SIGTERM) -> None:
    """End it by a signal; subprocess.TimeoutExpired if it does not end."""
    process.send_signal(how)
    process.wait(timeout=DEADLINE)


@pytest.mark.full
async def test_the_page_follows_through_a_restart(own_server: Callable[..., RealServer], windows: Windows) -> None:
    url, port = own_server().url, free_port()
    with HistoryStore(url, namespace="support") as store:
        store.append("chat-1", user("<b>Hello?</b>"))
        with running(url, port, "live_page:app") as process:
            window = await windows(f"http://127.0.0.1:{port}/")
            await window.page.goto(window.address)
            lines = window.page.locator("li")
            await expect(lines).to_have_text(["user: <b>Hello?</b>"])
            store.append("chat-1", assistant("Good morning."))
            await expect(lines).to_have_count(2)
            window.outage = True
            end(process)
        store.append("chat-1", user("Are you there?"))
        with running(url, port, "live_page:app"):
            shown = ["user: <b>Hello?</b>", "assistant: Good morning.", "user: Are you there?"]
            await expect(lines).to_have_text(shown)
            store.clear("chat-1")
            store.append("chat-1", user("Again."))
            await expect(lines).to_have_text([*shown, "user: Again."])
            others = await window.page.evaluate("fetch('history/v1/conversations/chat-2/messages').then(r => r.status)")
            assert others == 403


async def test_the_chat_without_its_page_says_what_to_build(tmp_path: Path) -> None:
    folder = tmp_path / "chat"
    shutil.copytree(DOCS / "examples" / "chat", folder, ignore=shutil.ignore_patterns("node_modules", "page"))
    port = free_port()
    with running("memory://", port, "app:app", folder):
        async with httpx.AsyncClient() as web:
            assert "npm run build" in (await web.get(f"http://127.0.0.1:{port}/")).text


@pytest.mark.proves("shutdown")
@pytest.mark.parametrize("words", [12, pytest.param(100, marks=pytest.mark.full)])  # ten are written in a second
async def test_a_server_that_stops_during_an_answer_logs_no_error(
    own_server: Callable[..., RealServer], words: int, tmp_path: Path
) -> None:
    """Its clients are asked to reconnect. The answer has five seconds to end."""
    url, port = own_server("plain").url, free_port()
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "word " * words}]}
    body, log = {"id": "c", "messages": [message]}, tmp_path / "log"
    with running(url, port, "app:app", DOCS / "examples" / "chat", log) as process:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as web,
            web.stream("POST", "/api/chat", json=body) as response,
        ):
            lines = response.aiter_lines()
            while "text-delta" not in await anext(lines):
                pass
            process.send_signal(signal.SIGTERM)
            assert "Reconnect" in "".join([line async for line in lines])
        process.wait(timeout=DEADLINE)
    errors = log.read_text()
    assert "Application shutdown complete" in errors
    assert not re.search("ERROR|WARNING|Traceback", errors), errors
    with HistoryStore(url, namespace="chat") as store:
        assert store.get("c")[1].status == ("complete" if words == 12 else "interrupted")


@pytest.mark.proves("shutdown")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.full
async def test_open_streams_do_not_keep_a_server(tmp_path: Path, how: signal.Signals) -> None:
    """With and without the lifespan of the view."""
    tmp_path.joinpath("views.py").write_text(MOUNTED)
    for app, base in (("views:bare", "/history"), ("views:mounted", "/history"), ("views:view", "")):
        port = free_port()
        with running("", port, app, tmp_path) as process:
            async with Stream(port, at("chat-1", "events"), base=base) as one, Stream(port, base=base) as listed:
                await one.comment()
                await listed.event()
                end(process, how)
                assert (await one.event(), await listed.event()) == (None, None)


@pytest.mark.proves("shutdown")
@pytest.mark.full
async def test_the_websocket_of_the_documentation(own_server: Callable[..., RealServer], tmp_path: Path) -> None:
    recipe = next(one for one in blocks(DOCS / "how-to" / "ui.md") if "def send_live" in one.content)
    tmp_path.joinpath("sockets.py").write_text(recipe.content + SOCKETS)
    url, port = own_server().url, free_port()
    address = f"ws://127.0.0.1:{port}/"
    with HistoryStore(url, namespace="support") as store, running(url, port, "sockets:app", tmp_path) as process:
        async with websockets.connect(f"{address}live") as socket:
            assert json.loads(await socket.recv())["kind"] == "snapshot"
            store.append("chat-1", user("1"))
            cursor = json.loads(await socket.recv())["cursor"]
        store.append("chat-1", user("2"))
        async with (
            websockets.connect(f"{address}live?cursor={cursor}") as socket,
            websockets.connect(f"{address}obvious") as other,
        ):
            missed = json.loads(await socket.recv())
            assert (missed["kind"], [one["text"] for one in missed["data"]]) == ("appended", ["2"])
            await other.recv()
            end(process)


@pytest.mark.proves("forged-session")
@pytest.mark.full
async def test_a_signed_session(own_server: Callable[..., RealServer]) -> None:
    url, port = own_server().url, free_port()
    base = f"http://127.0.0.1:{port}/"
    messages = "history/" + at("chat-1", "messages")
    with running(url, port, "signed_session:app"), HistoryStore(url, namespace="support") as store:
        store.append("chat-1", user("1"))
        async with httpx.AsyncClient(base_url=base) as web, httpx.AsyncClient(base_url=base) as other:
            opened = await web.get("history/")
            assert (opened.status_code, opened.headers["location"]) == (303, "/sign-in")
            assert "autocomplete=current-password" in (await web.get("sign-in")).text
            forged = {"x-user": "ann", "cookie": "session=eyJ1c2VyIjogImFubiJ9.x.y"}
            assert (await web.get("history/v1/conversations", headers=forged)).status_code == 403
            for name, password in (("ann", "x"), ("nobody", "")):
                assert (await web.post("sign-in", json={"name": name, "password": password})).status_code == 401
            signed_in = await web.post("sign-in", json={"name": "ann", "password": "correct horse"})
            cookie = signed_in.headers["set-cookie"].lower()
            assert (signed_in.status_code, "httponly" in cookie, "samesite=strict" in cookie) == (200, True, True)
            listed = (await web.get("history/v1/conversations")).json()["conversations"]
            assert [one["id"] for one in listed] == ["chat-1"]
            assert (await web.post(messages, json={"text": "2"})).status_code == 201
            for fields in ({"role": "system"}, {"participant": {"kind": "user", "id": "bob"}}):
                assert (await web.post(messages, json={"text": "3", **fields})).status_code == 403
            assert (await web.request("DELETE", "history/" + at("chat-1"), json={})).status_code == 403
            await other.post("sign-in", json={"name": "bob", "password": "battery staple"})
            assert (await other.get(messages)).status_code == 403
            assert (await web.get("history/")).status_code == 200
            for headers in ({"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}):
                assert (await web.post("sign-out", json={}, headers=headers)).status_code == 403
            assert (await web.get("history/v1/conversations")).status_code == 200
            await web.post("sign-out", json={})
            assert (await web.get("history/v1/conversations")).status_code == 403
        authors = [(one.role, one.participant and one.participant.id) for one in store.get("chat-1")]
        assert authors == [("user", None), ("user", "ann")]


@pytest.mark.proves("forged-session")
@pytest.mark.full
async def test_who_cannot_sign_in(own_server: Callable[..., RealServer]) -> None:
    """A page of another site cannot sign its visitor in under a name that it chooses. Invalid bodies are rejected."""
    url, port = own_server().url, free_port()
    right = {"name": "ann", "password": "correct horse"}
    form = {"Content-Type": "text/plain"}
    refused: tuple[tuple[int, Any, dict[str, str]], ...] = (
        (403, right, {"Origin": "http://evil.test"}), (403, right, {"Origin": "null"}),
        (403, right, {"Origin": f"http://127.0.0.1:{port + 1}"}), (403, right, {"Sec-Fetch-Site": "same-site"}),
        (415, right, form), (415, right, {"Content-Type": "application/x-www-form-urlencoded"}), (415, b"[]", form),
        (400, [], {}), (400, {}, {}), (400, "ann", {}), (400, {"name": 1, "password": 1}, {}), (400, b"{", {}),
        (400, b"[" * 900, {}), (400, b"\xff", {}), (400, rb'{"name": "ann", "password": "\ud800"}', {}),
        (413, {**right, "password": "a" * 5_000_000}, {}),
        (401, {**right, "password": "x" * 800}, {}), (401, {**right, "name": "nobody"}, {}),
    )  # fmt: skip
    with running(url, port, "signed_session:app"):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/") as web:
            for status, body, headers in refused:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                headers = {"Content-Type": "application/json"} | headers
                answered = await web.post("sign-in", content=content, headers=headers)
                assert answered.status_code == status, (body if len(content) < 1000 else len(content), headers)
                assert "set-cookie" not in answered.headers
            assert (await web.post("sign-in", json=right, headers={"Origin": f"http://127.0.0.1:{port}"})).is_success


@pytest.mark.full
async def test_the_page_of_the_sign_in(own_server: Callable[..., RealServer], windows: Windows) -> None:
    url, port = own_server().url, free_port()
    with running(url, port, "signed_session:app"), HistoryStore(url, namespace="support") as store:
        store.append("chat-1", user("For members only."))
        window = await windows(f"http://127.0.0.1:{port}/")
        page = window.page
        await page.goto(f"http://127.0.0.1:{port}/history/")
        assert page.url.endswith("/sign-in")
        await page.get_by_label("Name").fill("ann")
        await page.get_by_label("Password").fill("wrong")
        window.outage = True  # the browser reports the status 401
        await page.get_by_role("button").click()
        await expect(page.locator("output")).to_have_text("wrong name or password")
        await page.get_by_label("Password").fill("correct horse")
        await page.get_by_role("button").click()
        await expect(page.locator("#conversations")).to_contain_text("For members only.")
