"""How often one answer goes to the server of the store, and to `authorize`: bounded, whatever is asked and stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from redis_history import AsyncHistoryStore, Conversation, system, user
from redis_history._async.redis_backend import AsyncRedisBackend
from redis_history.web import Action, LiveView, allow_all
from redis_history.web.routing import API
from tests.support.servers import RealServer
from tests.support.web import Stream, at, client, listening

#: Conversations, and messages of the long one.
MANY = 1200
#: For each endpoint: the largest request, and the maximum number of round trips. (A listing reads the
#: names of the conversations, and their records 500 at once; messages come 200 at once.)
COSTS: dict[str, tuple[str, dict[str, Any] | None, int]] = {
    "GET /v1/status": ("v1/status", None, 2),
    "GET /v1/conversations": ("v1/conversations?last=1&limit=1000", None, 15),
    "GET /v1/conversations/{conversation}": (at("long"), None, 3),
    "GET /v1/conversations/{conversation}/messages": (
        at("long", "messages", limit="1000", include_archived="1"), None, 9),
    "GET /v1/conversations/{conversation}/messages/{message}": (at("long", "messages", "m7"), None, 2),
    "GET /v1/conversations/{conversation}/messages/{message}/originals": (
        at("long", "messages", "summary", "originals", limit="1000"), None, 17),
    "GET /v1/search": ("v1/search?q=suitcase&limit=100", None, 8),
    "PATCH /v1/conversations/{conversation}": (at("c1"), {"title": "T"}, 3),
    "POST /v1/conversations/{conversation}/messages": (at("c1", "messages"), {"text": "x"}, 2),
    "DELETE /v1/conversations/{conversation}/messages/{message}": (at("c1", "messages", "m"), None, 3),
    "DELETE /v1/conversations/{conversation}": (at("c1"), None, 3),
}  # fmt: skip
#: Tested by themselves: streams, and a change that is made in as many steps as it needs. And a document of the package.
OTHERS = {
    "GET /v1/events",
    "GET /v1/conversations/{conversation}/events",
    "POST /v1/conversations/{conversation}/messages/{message}/expand",
    "GET /v1/openapi.json",
}


class Count:
    """Round trips to the server, and questions to `authorize`."""

    def __init__(self) -> None:
        self.trips = 0
        self.questions = 0

    async def authorize(self, request: Request, conversation_id: str | None, action: Action) -> bool:
        self.questions += 1
        return not request.headers.get("x-nothing") or conversation_id is None


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    counted = Count()
    exchange = AsyncRedisBackend._exchange

    async def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        counted.trips += 1
        return await exchange(self, *arguments, **options)

    monkeypatch.setattr(AsyncRedisBackend, "_exchange", counting)
    return counted


@pytest.fixture
async def full(server: RealServer, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    """A store with many conversations; in one of them a summary, with many messages before it that it did not
    replace."""
    async with AsyncHistoryStore(server.url, namespace=namespace) as store:
        for number in range(MANY):
            await store.append(f"c{number}", user("a suitcase", id="m"))
        for first in range(0, MANY, 600):
            await store.append_many(
                "long", [(system if n % 2 else user)(f"m{n}", id=f"m{n}") for n in range(first, first + 600)]
            )
        await store.compact(
            "long", through=f"m{MANY - 2}", summary=user("all", id="summary", metadata={"is_summary": True})
        )
        yield store


async def asked(web: Any, what: str) -> Any:
    path, body, _ = COSTS[what]
    return await web.request(what.split()[0], path, **({} if body is None else {"json": body}))


@pytest.mark.proves("bounded-requests")
@pytest.mark.parametrize("everyone", [False, True])
async def test_round_trips_of_each_endpoint(full: AsyncHistoryStore, count: Count, everyone: bool) -> None:
    assert COSTS.keys() | OTHERS == {f"{method} {path}" for path, by in API.items() for method in by}
    view = LiveView(full, authorize=allow_all if everyone else count.authorize, read_only=False)
    app = Starlette(routes=[Mount("/", view)])
    async with client(app, headers={}) as web:
        for what, (_, _, most) in COSTS.items():
            await web.get("v1/status")  # a connection
            if what.startswith("GET "):
                await asked(web, what)  # the server learns its scripts
            count.trips = count.questions = 0
            answered = await asked(web, what)
            assert answered.status_code in (200, 201, 204), answered.text
            assert count.trips <= most, what
            assert count.trips or what == "GET /v1/status", what
            assert count.questions <= 501, what


async def test_round_trips_of_clients_with_few_rights(full: AsyncHistoryStore, count: Count) -> None:
    app = Starlette(routes=[Mount("/", LiveView(full, authorize=count.authorize))])
    async with client(app, headers={"x-nothing": "1"}) as web:
        for what in ("GET /v1/conversations", "GET /v1/search"):
            count.trips = count.questions = 0
            answered = (await asked(web, what)).json()
            assert [] in (answered.get("conversations"), answered.get("hits"))
            assert count.trips <= COSTS[what][2], what
            assert count.questions <= 501, what


@pytest.mark.proves("bounded-requests")
async def test_round_trips_of_a_filtered_list(full: AsyncHistoryStore, count: Count) -> None:
    await full.create_conversation(Conversation("mine", user_id="ann"))
    for number in range(600):
        await full.append(f"c{number}", user("again"))
    app = Starlette(routes=[Mount("/", LiveView(full, authorize=count.authorize))])
    async with client(app, headers={}) as web:
        page: dict[str, Any] = {"next": "0"}
        found: list[str] = []
        while page["next"] is not None:
            count.trips = count.questions = 0
            where = {"user_id": "ann", "limit": "5", "cursor": page["next"]}
            page = (await web.get("v1/conversations", params=where)).json()
            found += [one["id"] for one in page["conversations"]]
            assert count.trips <= 15
            assert count.questions <= 5
    assert found == ["mine"]
    async with client(app, headers={}) as web:
        assert (await web.get("v1/conversations?cursor=1000000")).status_code == 400


async def test_round_trips_of_originals(full: AsyncHistoryStore, count: Count) -> None:
    """Most of what stands before the summary is not of it."""
    app = Starlette(routes=[Mount("/", LiveView(full, authorize=count.authorize))])
    seen: list[str] = []
    where: dict[str, str] = {}
    async with client(app, headers={}) as web:
        while True:
            count.trips = 0
            page = (await web.get(at("long", "messages", "summary", "originals", limit="40", **where))).json()
            assert count.trips <= 7
            seen = [one["id"] for one in page["messages"]] + seen
            if not page["more"]:
                break
            where = {"before": page["before"]}
    assert seen == [f"m{n}" for n in range(0, MANY, 2)]


async def test_round_trips_of_opening_a_stream(full: AsyncHistoryStore, count: Count) -> None:
    app = Starlette(routes=[Mount("/", LiveView(full, authorize=count.authorize))])
    async with listening(app) as port:
        for path in ("v1/events", at("long", "events")):
            count.trips = 0
            async with Stream(port, path) as stream:
                await stream.opened()
                assert count.trips <= 12
