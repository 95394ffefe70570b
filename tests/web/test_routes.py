"""The live view in a user's application: where it is mounted, and which requests `authorize` allows."""

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.testclient import TestClient

from redis_history import AsyncHistoryStore, HistoryStore, user
from redis_history.errors import ConfigurationError
from redis_history.store.retry import RetryPolicy
from redis_history.web import Action, ChatEndpoints, Limits, LiveView, allow_all
from tests.support.servers import free_port
from tests.support.web import Stream, at, client, listening
from tests.web.chatting import speaker
from tests.web.test_security import check_headers

#: Paths below a conversation that can be read.
READS = ((), ("messages",), ("messages", "m"), ("messages", "m", "originals"), ("events",))
QUICK = Limits(heartbeat=0.05, reauthorize=0.1)
C = at("c", "events")


class Rights:
    """An `authorize` that knows what is allowed."""

    def __init__(self, *allowed: tuple[str | None, Action]) -> None:
        self.allowed = set(allowed)

    def __call__(self, request: Request, conversation_id: str | None, action: Action) -> bool:
        return (conversation_id, action) in self.allowed


def mounted(store: Any, **options: Any) -> Starlette:
    return Starlette(routes=[Mount("/history", LiveView(store, **{"authorize": allow_all} | options))])


def client_of(store: Any, *, headers: Any = None, **options: Any) -> Any:
    return client(mounted(store, **options), headers=headers or {}, base_url="http://localhost/history/")


async def test_mounted_where_the_application_wants(store: Any) -> None:
    await store.append("a/b", user("slash"))
    async with client_of(store) as web:
        assert (await web.get("http://localhost/history", follow_redirects=True)).status_code == 200
        assert (await web.get("")).headers["content-type"].startswith("text/html")
        assert (await web.get("static/index.html")).status_code == 200
        assert [one["id"] for one in (await web.get("v1/conversations")).json()["conversations"]] == ["a/b"]
        assert "content-security-policy" in (await web.get("v1/status")).headers
        assert (await web.get(at("a/b", "messages"))).json()["messages"][0]["text"] == "slash"
        assert (await web.get("v1/nothing")).json()["code"] == "not_found"
    async with client_of(store, page=False) as web:
        statuses = [(await web.get(path)).status_code for path in ("", "static/index.html", "v1/status")]
        assert statuses == [404, 404, 200]


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("kind", ["plain", "async", "object"])
async def test_authorize_is_asked_for_every_conversation(store: Any, kind: str) -> None:
    for name in ("mine", "yours", "mine too"):
        await store.append(name, user("suitcase", id="m"))
    rights = Rights((None, "list"), ("mine", "read"), ("mine too", "read"))

    async def slowly(request: Request, conversation_id: str | None, action: Action) -> bool:
        await asyncio.sleep(0)
        return rights(request, conversation_id, action)

    class Later:
        async def __call__(self, request: Request, conversation_id: str | None, action: Action) -> bool:
            return rights(request, conversation_id, action)

    authorize: Any = {"plain": rights, "async": slowly, "object": Later()}[kind]
    async with client_of(store, authorize=authorize, read_only=False) as web:
        listed = (await web.get("v1/conversations", params={"limit": 1})).json()
        assert [one["id"] for one in listed["conversations"]] == ["mine too"]
        listed = (await web.get("v1/conversations", params={"limit": 1, "cursor": listed["next"]})).json()
        assert [one["id"] for one in listed["conversations"]] == ["mine"]
        assert (listed["next"], listed["total"]) == (None, None)
        hits = (await web.get("v1/search", params={"q": "suitcase", "limit": 2})).json()["hits"]
        assert {hit["conversation"] for hit in hits} == {"mine", "mine too"}
        for path in (*(at("yours", *what) for what in READS), "v1/search?conversation=yours&q=x", at("nobody")):
            refused = await web.get(path)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
        assert (await web.get(at("yours"))).content == (await web.get(at("nobody"))).content, "ids do not leak"
        assert (await web.get(at("mine", "messages"))).status_code == 200
        assert (await web.post(at("mine", "messages"), json={"text": "x"})).status_code == 403
        rights.allowed.clear()
        for path in ("status", "conversations", "search?q=x", "events"):
            assert (await web.get(f"v1/{path}")).status_code == 403


@pytest.mark.proves("authorize")
async def test_stopping_an_agent_is_a_right_of_its_own(store: Any) -> None:
    rights = Rights(("c", "read"), ("c", "append"), ("c", "delete"))
    async with client_of(store, authorize=rights, read_only=False) as web, store.run("c", agent_name="Ada") as run:
        shown = (await web.get(at("c", "run"))).json()["run"]
        assert (shown["agent_name"], shown["status"]) == ("Ada", "active")
        assert (await web.post(at("c", "stop"), json={})).status_code == 403
        assert (await store.get_run("c")).status == "active"
        rights.allowed.add(("c", "stop"))
        assert (await web.post(at("c", "stop"), json={"run_id": "another"})).json() == {"stopping": False}
        done = await web.post(at("c", "stop"), json={"run_id": run.run_id, "reason": "enough"})
        assert (done.status_code, done.json()) == (200, {"stopping": True})
        assert await run.wait_stop(10)
        assert run.stop_reason == "enough"


@pytest.mark.proves("other-origins")
@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}]
)
async def test_a_mounted_view_rejects_changes_from_other_origins(store: Any, headers: dict[str, str]) -> None:
    """The request of such a page may have the cookie of the user's own application."""
    async with client_of(store, read_only=False, headers=headers) as web:
        refused = await web.post(at("c", "messages"), json={"text": "x"})
        assert (refused.status_code, refused.json()["code"]) == (403, "wrong_origin")
        assert await store.get("c") == []


@pytest.mark.parametrize("result", [None, 1, "yes", object()])
async def test_only_true_allows(store: Any, result: Any) -> None:
    async with client_of(store, authorize=lambda *_: result) as web:
        assert (await web.get("v1/status")).status_code == 403


async def test_errors_of_authorize(store: Any, caplog: Any) -> None:
    def sign_in(*_: Any) -> bool:
        raise HTTPException(401, "sign in first")

    def broken(*_: Any) -> bool:
        raise KeyError("secret")

    async with client_of(store, authorize=sign_in) as web:
        refused = await web.get("v1/status")
        assert (refused.status_code, refused.text) == (401, "sign in first"), "as the application answers it"
    async with client_of(store, authorize=broken) as web:
        refused = await web.get("v1/status")
        assert (refused.status_code, "secret" in refused.text) == (500, False)
    assert "the live view failed" in caplog.text


@pytest.mark.proves("browser-text")
@pytest.mark.parametrize("path", ["v1/status", "v1/conversations/c/messages", "", "static/nothing", "static/%2e%2e/x"])
@pytest.mark.parametrize("where", ["mounted", "in an application with an answer", "alone"])
async def test_answers_to_exceptions_have_the_headers(store: Any, path: str, where: str) -> None:
    def authorize(*_: Any) -> bool:
        raise HTTPException(401, "sign in first")

    async def own(request: Request, error: Exception) -> Response:
        return PlainTextResponse("its own", error.status_code)  # type: ignore[attr-defined]

    view = LiveView(store, authorize=authorize, sign_in="/sign-in")
    app: Any = view
    if where != "alone":
        handlers: Any = {HTTPException: own} if where != "mounted" else {}
        app = Starlette(routes=[Mount("/history", view)], exception_handlers=handlers)
    async with client(app, headers={}, base_url=f"http://localhost{'' if where == 'alone' else '/history'}/") as web:
        refused = await web.get(path)
        assert refused.status_code == (404 if "static" in path else 401)
        assert (refused.text == "its own") == ("answer" in where)
        check_headers(refused.headers)


@pytest.mark.parametrize("kind", [ChatEndpoints, LiveView])
@pytest.mark.parametrize("is_mounted", [True, False])
async def test_a_web_socket_is_closed(store: Any, kind: Any, is_mounted: bool) -> None:
    app = kind(store, authorize=allow_all)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    scope = {
        "type": "websocket",
        "path": "/a/",
        "raw_path": b"/a/",
        "root_path": "",
        "headers": [],
        "query_string": b"",
    }
    await (Starlette(routes=[Mount("/a", app)]) if is_mounted else app)(scope, receive, send)
    assert sent == ["websocket.close"]


@pytest.mark.proves("forged-session")
@pytest.mark.parametrize("error", [None, HTTPException(401), KeyError("x")], ids=repr)
async def test_streams_are_authorized_again(store: Any, error: Exception | None) -> None:
    """While they are open, and when they resume."""
    rights, failing = Rights((None, "list"), ("c", "read")), asyncio.Event()

    async def authorize(*arguments: Any) -> bool:
        if error is not None and failing.is_set():
            raise error
        return rights(*arguments)

    async with (
        listening(mounted(store, authorize=authorize, limits=QUICK)) as port,
        Stream(port, C, base="/history") as stream,
        Stream(port, base="/history") as listed,
    ):
        await stream.comment()
        await listed.event()
        await store.append("c", user("1"))
        await stream.event()
        failing.set()
        if error is None:
            rights.allowed.clear()
        assert await stream.event() is None
        while await listed.event() is not None:
            pass
        if error is None:
            await store.append("c", user("secret"))
            async with Stream(port, C, base="/history", Last_Event_ID=stream.last_id) as stream:
                assert (stream.status, (await stream.body())["code"]) == (403, "forbidden")


async def test_the_list_stream_sends_only_permitted_conversations(store: Any) -> None:
    rights = Rights((None, "list"), ("mine", "read"))
    async with (
        listening(mounted(store, authorize=rights, limits=QUICK)) as port,
        Stream(port, base="/history") as stream,
    ):
        assert (await stream.event())[0] == "hello"
        for revision in range(1, 4):
            await store.append("yours", user("secret"))
            await store.append("mine", user("1"))
            _, data = await stream.event()
            assert (data["conversation"], data["revision"]) == ("mine", revision)
        rights.allowed.add(("yours", "read"))
        seen: set[str] = set()
        async with asyncio.timeout(20):
            while "yours" not in seen:  # a new right is noticed before long
                await store.append("yours", user("2"))
                seen.add((await stream.event())[1]["conversation"])


async def test_a_list_stream_without_permitted_conversations_sends_heartbeats(store: Any) -> None:
    async def keep_writing() -> None:
        while True:
            await store.append("yours", user("secret"))
            await asyncio.sleep(0.01)

    app = mounted(store, authorize=Rights((None, "list")), limits=Limits(heartbeat=0.1))
    async with listening(app) as port, Stream(port, base="/history") as stream:
        assert (await stream.event())[0] == "hello"
        writing = asyncio.create_task(keep_writing())  # there are always changes, but none for this reader
        await stream.comment()
        await stream.comment()
        writing.cancel()


async def test_wrong_options(store: Any) -> None:
    for wrong in ({"authorize": None}, {"authorize": "everybody"}, {"authorize": True}, {"participant": "ann"}):
        with pytest.raises(ConfigurationError):
            LiveView(store, **({"authorize": allow_all} | wrong))
    with pytest.raises(TypeError):
        LiveView(store)  # type: ignore[call-arg]
    for name in ("streams", "heartbeat"):
        with pytest.raises(ConfigurationError, match=name):
            Limits(**{name: 0})
    with HistoryStore("memory://") as sync_store:
        for not_async in (sync_store, "redis://"):
            with pytest.raises(ConfigurationError):
                LiveView(not_async, authorize=allow_all)  # type: ignore[arg-type]


@pytest.mark.proves("named-errors")
def test_in_a_second_event_loop_the_answer_names_the_loop(caplog: Any) -> None:
    """Two `with TestClient(app)` blocks in a test suite do this. Without a server, the first leaves no connection."""
    store = AsyncHistoryStore(f"redis://127.0.0.1:{free_port()}", retry=RetryPolicy(deadline=0.0))
    chat = ChatEndpoints(store, speaker(store), authorize=allow_all)
    view = LiveView(store, authorize=allow_all)
    app = Starlette(routes=[chat.mount("/chat"), Mount("/history", view)], lifespan=chat.lifespan)
    with TestClient(app) as client:
        assert client.get("/chat/c/messages").status_code == 503
    with TestClient(app) as client:
        for path in ("/chat/c/messages", "/history/v1/conversations"):
            refused = client.get(path)
            assert (refused.status_code, refused.json()["code"]) == (500, "wrong_event_loop")
            assert "belong to the event loop of their first use" in refused.json()["detail"]
    assert "ChatEndpoints runs in another event loop than its store" in caplog.text
