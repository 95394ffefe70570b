"""Host names under which the chat and the live view are reached, pages of other origins, and headers of responses."""

import json
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from redis_history import AsyncHistoryStore, user
from redis_history.errors import ConfigurationError
from redis_history.web import ChatEndpoints, LiveView, allow_all
from tests.support.web import Stream, at, client, listening
from tests.web.chatting import asked, speaker
from tests.web.test_security import check_headers

FRONT = "https://app.example.com"


async def everybody(*_: Any) -> bool:
    return True


async def nobody(*_: Any) -> bool:
    return False


@asynccontextmanager
async def served(store: AsyncHistoryStore, **options: Any) -> Any:
    """A client of a chat and a live view with these options."""
    settings = {"authorize": everybody} | options
    async with (
        ChatEndpoints(store, speaker(store), **settings) as chat,
        LiveView(store, read_only=False, **settings) as view,
        client(Starlette(routes=[chat.mount("/chat"), Mount("/history", view)]), headers={}) as web,
    ):
        yield web


#: A request of each kind to each application: the method, the path, the body, and the status if it is permitted.
REQUESTS: tuple[tuple[str, str, Any, int], ...] = (
    ("POST", "/chat", asked("hi"), 200),
    ("POST", "/chat/c/stop", {}, 204),
    ("GET", "/chat/c/messages", None, 200),
    ("GET", "/chat/c/stream", None, 204),
    ("GET", "/history/v1/conversations", None, 200),
    ("GET", f"/history/{at('c', 'messages')}", None, 200),
    ("POST", f"/history/{at('c', 'messages')}", {"text": "hi", "id": "m1"}, 201),
    ("DELETE", f"/history/{at('c', 'messages', 'm1')}", None, 204),
)


async def statuses(web: Any, headers: dict[str, str]) -> list[int]:
    found = []
    for method, path, body, _ in REQUESTS:
        answered = await web.request(method, path, json=body, headers=headers)
        check_headers(answered.headers)
        found.append(answered.status_code)
    return found


PERMITTED = [status for *_, status in REQUESTS]
#: The status of each request if changes are rejected.
READ_ONLY = [403 if method not in ("GET", "HEAD") else status for method, *_, status in REQUESTS]


@pytest.mark.proves("other-origins")
async def test_host_names(store: Any) -> None:
    """DNS rebinding: evil.example resolves to this server, so the browser sees its page as same-origin. The page needs
    no cookie if all clients may perform all actions."""
    local = ("localhost", "LOCALHOST:8000", "app.localhost", "127.0.0.1:1", "[::1]:8000", "192.168.0.7", "testserver")
    evil = ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "", "x/y")
    named = ("chat.example.com", "Chat.Example.com.:443", "a.b.example.org")
    hosts = ("Chat.example.com", "*.example.org")
    cases: tuple[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]], ...] = (
        ({"authorize": allow_all}, local, (*evil, *named)),
        ({"authorize": allow_all, "hosts": hosts}, (*local[:-1], *named), (*evil, "testserver", "example.org")),
        ({"hosts": hosts}, (*local[:-1], *named), (*evil, "testserver", "example.org")),
        ({"authorize": allow_all, "hosts": ["*"]}, ("evil.example", *named), ()),
        ({}, (*local, *evil, *named), ()),  # a session of the user's own application protects it
    )
    for options, known, unknown in cases:
        async with served(store, **options) as web:
            for host in known:
                got = await web.get("/chat/c/messages", headers={"Host": host})
                assert got.status_code == 200, (options, host)
            for host in unknown:
                for origin in ({}, {"Origin": f"http://{host}"}):
                    for method, path, body, _ in REQUESTS:
                        refused = await web.request(method, path, json=body, headers={"Host": host, **origin})
                        assert (refused.status_code, refused.json()["code"]) == (403, "wrong_host"), (options, host)
                        check_headers(refused.headers)
                for path in ("/history/", "/history/static/app.js"):
                    assert (await web.get(path, headers={"Host": host})).status_code == 403
    assert await store.get("c") == []


@pytest.mark.proves("other-origins")
@pytest.mark.full
async def test_origins(store: Any) -> None:
    async with served(store, origins=[FRONT, "http://localhost:3000/", "https://other.example:443", "app://x"]) as web:
        for origin in (FRONT, "http://localhost:3000", "https://other.example", "app://x"):
            for more in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "10.0.0.1:8000"}):
                assert await statuses(web, {"Origin": origin, **more}) == PERMITTED, origin
        for origin in (
            *("https://app.example.com.evil.example", "http://app.example.com", f"{FRONT}:8443", "null", ""),
            *("https://evil.example", f"{FRONT}/", FRONT.upper()),
        ):
            assert await statuses(web, {"Origin": origin}) == READ_ONLY, origin
        assert await statuses(web, {"Sec-Fetch-Site": "cross-site"}) == READ_ONLY
        assert await statuses(web, {"Origin": "http://localhost"}) == PERMITTED, "its own"
    async with served(store) as web:
        assert await statuses(web, {"Origin": FRONT}) == READ_ONLY
        assert "vary" not in (await web.get("/chat/c/messages")).headers


@pytest.mark.proves("other-origins")
async def test_headers_for_pages_of_other_origins(store: Any) -> None:
    async with served(store, origins=[FRONT]) as web:
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
        for path in ("/chat", "/chat/c/stop", f"/history/{at('c', 'messages')}", "/history/v1/events"):
            answered = await web.options(path, headers={"Origin": FRONT, **asks})
            assert (answered.status_code, answered.content) == (204, b"")
            check_headers(answered.headers)
            assert answered.headers["access-control-allow-origin"] == FRONT
            assert answered.headers["access-control-allow-credentials"] == "true"
            assert answered.headers["access-control-allow-headers"] == "authorization,content-type"
            methods = set(answered.headers["access-control-allow-methods"].split(", "))
            assert methods == {"GET", "HEAD", "POST", "PATCH", "DELETE"}
            refused = await web.options(path, headers={"Origin": "https://evil.example", **asks})
            assert refused.status_code in (404, 405)
            assert "access-control-allow-origin" not in refused.headers
        for path in ("/chat/c/messages", "/chat/nothing", "/history/v1/conversations", "/history/v1/nothing"):
            for origin, named in ((FRONT, True), ("https://evil.example", False)):
                answered = await web.get(path, headers={"Origin": origin})
                assert ("access-control-allow-origin" in answered.headers) == named, "errors too"
                assert answered.headers["vary"] == "Origin", "no cache takes the one for the other"
    async with served(store, authorize=nobody, origins=[FRONT]) as web:
        refused = await web.get("/chat/c/messages", headers={"Origin": FRONT})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (403, FRONT)


@pytest.mark.proves("other-origins")
async def test_wrong_origins_and_hosts(store: Any) -> None:
    wrong: tuple[tuple[str, Any], ...] = (
        ("origins", FRONT), ("origins", [1]), ("origins", ["*"]), ("origins", ["null"]), ("origins", ["x.example"]),
        ("origins", [f"{FRONT}/chat"]), ("origins", ["https://"]), ("origins", ["https://u@x"]), ("origins", None),
        ("hosts", "x.example"), ("hosts", ["https://x.example"]), ("hosts", ["x.example:80"]), ("hosts", ["a.*.x"]),
        ("hosts", [""]), ("hosts", [" x"]), ("hosts", [None]),
    )  # fmt: skip
    for name, value in wrong:
        for make in (
            lambda **options: ChatEndpoints(store, speaker(store), **options),
            lambda **options: LiveView(store, **options),
        ):
            with pytest.raises(ConfigurationError, match=name):
                make(authorize=allow_all, **{name: value})


@pytest.mark.proves("other-origins")
async def test_every_response_of_a_chat_has_the_headers(store: Any, caplog: Any) -> None:
    gone = AsyncHistoryStore("redis://127.0.0.1:1/0")
    await gone.aclose()
    async with (
        ChatEndpoints(store, speaker(store), authorize=everybody) as chat,
        listening(Starlette(routes=[chat.mount("/chat")])) as port,
        httpx.AsyncClient() as web,
    ):
        base = f"http://127.0.0.1:{port}/chat"
        async with web.stream("POST", base, json=asked("hi")) as streamed:
            check_headers(streamed.headers)
            assert streamed.headers["content-type"].startswith("text/event-stream")
            await streamed.aread()
        for method, path, options, status in (
            ("GET", "/c/messages", {}, 200), ("HEAD", "/c/messages", {}, 200), ("GET", "/c/stream", {}, 204),
            ("POST", "/c/stop", {}, 204), ("GET", "/nothing", {}, 404), ("POST", "", {"json": []}, 400),
            ("POST", "", {"content": b"{"}, 415), ("PUT", "", {}, 404), ("GET", "/=_w/messages", {}, 400),
            ("POST", "", {"json": asked("hi"), "headers": {"Origin": "https://evil.example"}}, 403),
        ):  # fmt: skip
            answered = await web.request(method, base + path, **options)
            assert answered.status_code == status, (method, path, answered.text)
            check_headers(answered.headers)
    async with ChatEndpoints(gone, speaker(store), authorize=everybody) as chat, client(chat, headers={}) as web:
        failed = await web.get("/c/messages")
        assert (failed.status_code, failed.json()["code"]) == (503, "no_server")
        check_headers(failed.headers)
    assert "ChatEndpoints cannot reach its store" in caplog.text
    assert "the live view" not in caplog.text


#: A page that uses a chat, reads its messages, stops it, and reads and follows the live view. Failures are null.
PAGE = """<!doctype html><title>A page elsewhere</title><script>
async function ask(base, body) {
  const attempt = (work) => work().catch(() => null);
  const json = { "Content-Type": "application/json", "X-Own": "1" };
  const send = (path, value, method = "POST") =>
    fetch(base + path, { method, headers: json, credentials: "include", body: JSON.stringify(value) });
  const read = (path) => fetch(base + path, { credentials: "include" });
  const follow = () => new Promise((resolve, reject) => {
    const events = new EventSource(base + "/history/v1/events", { withCredentials: true });
    events.addEventListener("hello", () => { events.close(); resolve("hello"); });
    events.onerror = () => { events.close(); reject(); };
  });
  return {
    answer: await attempt(async () => (await (await send("/chat", body)).text()).includes("You said: hi")),
    messages: await attempt(async () => (await (await read("/chat/c/messages")).json()).length),
    stop: await attempt(async () => (await send("/chat/c/stop", {})).status),
    refused: await attempt(async () => (await (await read("/chat/nothing")).json()).code),
    append: await attempt(async () => (await send("/history/v1/conversations/c/messages", { text: "x" })).status),
    rename: await attempt(async () => (await send("/history/v1/conversations/c", { title: "T" }, "PATCH")).status),
    tag: await attempt(async () => (await read("/history/v1/conversations/c/messages")).headers.get("etag") !== null),
    follow: await attempt(follow),
  };
}
</script>"""


@pytest.mark.proves("other-origins")
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.full
async def test_a_page_of_another_origin_in_a_browser(
    chromium: Browser, server: Any, namespace: str, named: bool
) -> None:
    page_of_it = Starlette(routes=[Route("/", lambda request: HTMLResponse(PAGE))])
    context = await chromium.new_context()
    async with AsyncHistoryStore(server.url, namespace=namespace) as store, listening(page_of_it) as elsewhere:
        front = f"http://127.0.0.1:{elsewhere}"
        options: dict[str, Any] = {"authorize": everybody, "origins": [front] if named else []}
        chat = ChatEndpoints(store, speaker(store), **options)
        view = LiveView(store, read_only=False, **options)
        app = Starlette(routes=[chat.mount("/chat"), Mount("/history", view)])
        async with listening(app) as port, chat, view:  # streams end before the server does
            page = await context.new_page()
            await page.goto(front)
            body = asked("hi") | {"id": "c"}
            found = await page.evaluate(f"ask('http://127.0.0.1:{port}', {json.dumps(body)})")
            await page.close()
        stored = [one.text for one in await store.get("c")]
        title = getattr(await store.get_conversation("c"), "title", None)
    await context.close()
    if named:
        assert found == {
            "answer": True, "messages": 2, "stop": 204, "refused": "not_found", "append": 201, "rename": 200,
            "tag": True, "follow": "hello",
        }  # fmt: skip
        assert (stored, title) == (["hi", "You said: hi", "x"], "T")
    else:
        assert set(found.values()) == {None}
        assert (stored, title) == ([], None)


async def test_streams_have_the_headers_of_origins(store: Any) -> None:
    await store.append("c", user("x"))
    async with (
        LiveView(store, authorize=everybody, origins=[FRONT]) as view,
        listening(view) as port,
        Stream(port, at("c", "events"), Origin=FRONT) as stream,
    ):
        check_headers(stream.headers)
        assert stream.headers["access-control-allow-origin"] == FRONT
