"""The routes in an application of the user's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount

from redis_history import HistoryStore, user
from redis_history.errors import ConfigurationError
from redis_history.web import Action, Limits, LiveView, allow_all
from tests.support.web import Stream, at, client, listening

#: Paths below a conversation that can be read.
READS = ((), ("messages",), ("messages", "m"), ("messages", "m", "originals"), ("events",))


class Rights:
    """An `authorize` that records the questions."""

    def __init__(self, *allowed: tuple[str | None, Action]) -> None:
        self.allowed = set(allowed)
        self.asked: list[tuple[str | None, Action]] = []

    def __call__(self, request: Request, conversation_id: str | None, action: Action) -> bool:
        self.asked.append((conversation_id, action))
        return (conversation_id, action) in self.allowed


def mounted(store: Any, **options: Any) -> Starlette:
    return Starlette(routes=[Mount("/history", LiveView(store, **{"authorize": allow_all} | options))])


async def test_mounted_where_the_application_wants(store: Any) -> None:
    await store.append("c", user("hello"))
    async with client(mounted(store), headers={}) as web:
        assert (await web.get("/history", follow_redirects=True)).status_code == 200
        assert (await web.get("/history/")).headers["content-type"].startswith("text/html")
        assert (await web.get("/history/static/index.html")).status_code == 200
        listed = (await web.get("/history/v1/conversations")).json()["conversations"]
        assert [one["id"] for one in listed] == ["c"]
        assert "content-security-policy" in (await web.get("/history/v1/status")).headers
        await store.append("a/b", user("slash"))
        assert (await web.get("/history/" + at("a/b", "messages"))).json()["messages"][0]["text"] == "slash"
        assert (await web.get("/history/v1/nothing")).json()["code"] == "not_found"
    async with client(mounted(store, page=False), headers={}) as web:
        assert (await web.get("/history/")).status_code == 404
        assert (await web.get("/history/static/index.html")).status_code == 404
        assert (await web.get("/history/v1/status")).status_code == 200


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
    async with client(mounted(store, authorize=authorize, read_only=False), headers={}) as web:
        listed = (await web.get("/history/v1/conversations", params={"limit": 1})).json()
        assert ([one["id"] for one in listed["conversations"]], listed["next"]) == (["mine too"], "1")
        where = {"limit": 1, "cursor": listed["next"]}
        listed = (await web.get("/history/v1/conversations", params=where)).json()
        assert [one["id"] for one in listed["conversations"]] == ["mine"]
        assert listed["total"] is None
        hits = (await web.get("/history/v1/search", params={"q": "suitcase", "limit": 2})).json()["hits"]
        assert {hit["conversation"] for hit in hits} == {"mine", "mine too"}
        for path in (*(at("yours", *what) for what in READS), "v1/search?conversation=yours&q=x"):
            refused = await web.get(f"/history/{path}")
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
        assert (await web.get("/history/" + at("mine", "messages"))).status_code == 200
        refused = await web.post("/history/" + at("mine", "messages"), json={"text": "x"})
        assert refused.status_code == 403
        rights.allowed.clear()
        for path in ("status", "conversations", "search?q=x", "events"):
            assert (await web.get(f"/history/v1/{path}")).status_code == 403


@pytest.mark.proves("other-origins")
@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}]
)
async def test_a_mounted_view_rejects_changes_from_other_origins(store: Any, headers: dict[str, str]) -> None:
    """The cookie of the user's own application may come with what such a page sends."""
    async with client(mounted(store, read_only=False), headers=headers) as web:
        refused = await web.post("/history/" + at("c", "messages"), json={"text": "x"})
        assert (refused.status_code, refused.json()["code"]) == (403, "wrong_origin")
        assert await store.get("c") == []


async def test_unknown_and_forbidden_conversations_look_the_same(store: Any) -> None:
    await store.append("there", user("1"))
    async with client(mounted(store, authorize=Rights()), headers={}) as web:
        answers = [await web.get("/history/" + at(name)) for name in ("there", "nobody")]
        assert answers[0].status_code == answers[1].status_code == 403
        assert answers[0].content == answers[1].content


@pytest.mark.parametrize("answer", [None, 1, "yes", object()])
async def test_only_true_allows(store: Any, answer: Any) -> None:
    async with client(mounted(store, authorize=lambda *_: answer), headers={}) as web:
        assert (await web.get("/history/v1/status")).status_code == 403


async def test_errors_of_authorize(store: Any, caplog: Any) -> None:
    def sign_in(*_: Any) -> bool:
        raise HTTPException(401, "sign in first")

    def broken(*_: Any) -> bool:
        raise KeyError("secret")

    async with client(mounted(store, authorize=sign_in), headers={}) as web:
        refused = await web.get("/history/v1/status")
        assert (refused.status_code, refused.text) == (401, "sign in first"), "as the application answers it"
    async with client(mounted(store, authorize=broken), headers={}) as web:
        refused = await web.get("/history/v1/status")
        assert (refused.status_code, "secret" in refused.text) == (500, False)
    assert "the live view failed" in caplog.text


@pytest.mark.proves("forged-session")
async def test_a_resumed_stream_is_authorized_again(store: Any) -> None:
    rights = Rights(("c", "read"))
    async with listening(mounted(store, authorize=rights)) as port:
        async with Stream(port, at("c", "events"), base="/history") as stream:
            await stream.opened()
            await store.append("c", user("1"))
            await stream.event()
            last = stream.last_id
        rights.allowed.clear()
        await store.append("c", user("secret"))
        async with Stream(port, at("c", "events"), base="/history", Last_Event_ID=last) as stream:
            assert (stream.status, (await stream.body())["code"]) == (403, "forbidden")


async def test_an_open_stream_ends_when_it_is_no_longer_allowed(store: Any) -> None:
    rights = Rights((None, "list"), ("c", "read"))
    app = mounted(store, authorize=rights, limits=Limits(heartbeat=0.05, reauthorize=0.1))
    async with (
        listening(app) as port,
        Stream(port, at("c", "events"), base="/history") as stream,
        Stream(port, base="/history") as listed,
    ):
        await stream.opened()
        await listed.event()
        rights.allowed.clear()
        assert await stream.event() is None
        assert await listed.event() is None


async def test_the_list_stream_sends_only_permitted_conversations(store: Any) -> None:
    rights = Rights((None, "list"), ("mine", "read"))
    app = mounted(store, authorize=rights, limits=Limits(heartbeat=0.05, reauthorize=0.1))
    async with listening(app) as port, Stream(port, base="/history") as stream:
        assert (await stream.event())[0] == "hello"
        for revision in range(1, 4):
            await store.append("yours", user("secret"))
            await store.append("mine", user("1"))
            _, data = await stream.event()
            assert (data["conversation"], data["revision"]) == ("mine", revision)
        rights.allowed.add(("yours", "read"))
        told: set[str] = set()
        async with asyncio.timeout(20):
            while "yours" not in told:  # a right that is new is noticed before long
                await store.append("yours", user("2"))
                told.add((await stream.event())[1]["conversation"])


async def test_a_list_stream_without_permitted_conversations_sends_heartbeats(store: Any) -> None:
    app = mounted(store, authorize=Rights((None, "list")), limits=Limits(heartbeat=0.3))
    async with listening(app) as port, Stream(port, base="/history") as stream:
        assert (await stream.event())[0] == "hello"
        writing = asyncio.create_task(keep_writing(store))  # there are news all the time, and none for this reader
        await stream.comment()
        await stream.comment()
        writing.cancel()


async def keep_writing(store: Any) -> None:
    while True:
        await store.append("yours", user("secret"))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [HTTPException(401), KeyError("x")])
async def test_an_open_stream_ends_when_authorize_fails(store: Any, error: Exception) -> None:
    broken = asyncio.Event()

    async def authorize(*_: Any) -> bool:
        if broken.is_set():
            raise error
        return True

    app = mounted(store, authorize=authorize, limits=Limits(heartbeat=0.05, reauthorize=0.1))
    async with listening(app) as port, Stream(port, at("c", "events"), base="/history") as stream:
        await stream.opened()
        broken.set()
        assert await stream.event() is None


async def test_an_application_may_run_in_one_event_loop_after_another(store: Any) -> None:
    """As with test clients, each of which brings its own."""
    app = mounted(store)

    def once() -> None:
        async def look() -> None:
            async with listening(app) as port, Stream(port, at("c", "events"), base="/history") as stream:
                await stream.opened()
                await store.append("c", user("x"))
                assert (await stream.event())[0] == "appended"

        asyncio.run(look())

    for _ in range(2):
        await asyncio.to_thread(once)


@pytest.mark.parametrize(
    "wrong", [{"authorize": None}, {"authorize": "everybody"}, {"authorize": True}, {"participant": "ann"}], ids=str
)
async def test_wrong_options(store: Any, wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        LiveView(store, **({"authorize": allow_all} | wrong))
    with pytest.raises(TypeError):
        LiveView(store)  # type: ignore[call-arg]
    for name in ("streams", "heartbeat"):
        with pytest.raises(ConfigurationError, match=name):
            Limits(**{name: 0})


def test_a_synchronous_store_is_rejected() -> None:
    with HistoryStore("memory://") as sync_store:
        for store in (sync_store, "redis://"):
            with pytest.raises(ConfigurationError):
                LiveView(store, authorize=allow_all)  # type: ignore[arg-type]
