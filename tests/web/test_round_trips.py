"""How often one answer goes to the server of the store, and to `authorize`: bounded, whatever is asked and stored."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from redis_history import AsyncHistoryStore, AttachmentPart, Conversation, system, user
from redis_history.integrations.ai_sdk import ui_message_stream
from redis_history.store._async.redis_backend import AsyncRedisBackend
from redis_history.web import Action, LiveView
from redis_history.web.routing import API
from tests.support.servers import RealServer
from tests.support.web import Stream, at, client, listening

#: Conversations, and messages of the long one.
MANY = 1200
LISTED = "v1/conversations?last=1&limit=1000"
SEARCHED = "v1/search?q=suitcase&limit=100"
#: For each endpoint: the largest request, and the maximum number of round trips. (A listing reads the
#: names of the conversations, and their records 500 per call; messages come 200 per call. A change looks
#: twice which life of the conversation there is.)
COSTS: dict[str, tuple[str, dict[str, Any] | None, int]] = {
    "GET /v1/status": ("v1/status", None, 2),
    "GET /v1/conversations": (LISTED, None, 15),
    "GET /v1/conversations/{conversation}": (at("long"), None, 3),
    "GET /v1/conversations/{conversation}/messages": (
        at("long", "messages", limit="1000", include_archived="1"), None, 9),
    "GET /v1/conversations/{conversation}/messages/{message}": (at("long", "messages", "m7"), None, 2),
    "GET /v1/conversations/{conversation}/messages/{message}/originals": (
        at("long", "messages", "summary", "originals", limit="1000"), None, 17),
    "GET /v1/conversations/{conversation}/messages/{message}/images/{image}": (
        at("shown", "messages", "m", "images", "0"), None, 3),
    "GET /v1/rights": ("v1/rights?conversation=c1", None, 1),
    "POST /v1/conversations/{conversation}/messages/{message}/edit": (
        at("c1", "messages", "m", "edit"), {"text": "x"}, 9),
    "POST /v1/conversations/{conversation}/messages/{message}/retry": (
        at("c1", "messages", "m", "retry"), {}, 16),
    "GET /v1/search": (SEARCHED, None, 8),
    "PATCH /v1/conversations/{conversation}": (at("c1"), {"title": "T"}, 5),
    "POST /v1/conversations/{conversation}/messages": (at("c1", "messages"), {"text": "x"}, 6),
    "PATCH /v1/conversations/{conversation}/messages/{message}": (at("c1", "messages", "m"), {"pinned": True}, 6),
    "DELETE /v1/conversations/{conversation}/messages/{message}": (at("c1", "messages", "m"), None, 5),
    "GET /v1/conversations/{conversation}/run": (at("c1", "run"), None, 1),
    "GET /v1/conversations/{conversation}/turns": (at("c1", "turns"), None, 1),
    "POST /v1/conversations/{conversation}/retry": (at("c1", "retry"), {}, 8),
    "GET /v1/approvals": ("v1/approvals", None, 4),
    "GET /v1/usage": ("v1/usage", None, 4),
    "GET /v1/turns": ("v1/turns?limit=1000", None, 4),
    "POST /v1/conversations/{conversation}/drop": (at("c1", "drop"), {}, 3),
    "POST /v1/conversations/{conversation}/stop": (at("c1", "stop"), {}, 3),
    "DELETE /v1/conversations/{conversation}": (at("c1"), None, 5),
}  # fmt: skip
#: Not in the table: streams, changes that are made in as many steps as they need, and a document of the package.
OTHERS = {
    "GET /v1/events",
    "GET /v1/conversations/{conversation}/events",
    "POST /v1/conversations/{conversation}/messages/{message}/expand",
    "POST /v1/conversations/{conversation}/fork",
    "DELETE /v1/users/{user}",
    "GET /v1/openapi.json",
    "POST /v1/conversations/{conversation}/approvals/{call}",
}


class Count:
    """Round trips to the server, and questions to `authorize`."""

    def __init__(self) -> None:
        self.trips = self.questions = 0

    async def authorize(self, request: Request, conversation_id: str | None, action: Action) -> bool:
        self.questions += 1
        return not request.headers.get("x-nothing") or conversation_id is None


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    counted = Count()
    send = AsyncRedisBackend._exchange

    async def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        counted.trips += 1
        return await send(self, *arguments, **options)

    monkeypatch.setattr(AsyncRedisBackend, "_exchange", counting)
    return counted


@pytest.fixture
async def full_store(server: RealServer, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    """A store with many conversations. One of them has a summary, with many messages before it that it did not
    replace."""
    async with AsyncHistoryStore(server.url, namespace=namespace) as store:
        await store.create_conversation(Conversation("mine", user_id="ann"))
        for number in range(MANY):
            await store.append(f"c{number}", user("a suitcase", id="m"))
        for first in range(0, MANY, 600):
            some = range(first, first + 600)
            await store.append_many("long", [(system if n % 2 else user)(f"m{n}", id=f"m{n}") for n in some])
        await store.append("shown", user(AttachmentPart(reference="data:image/png;base64,aaaa"), id="m"))
        summary = user("all", id="summary", metadata={"is_summary": True})
        await store.compact("long", through=f"m{MANY - 2}", summary=summary)
        yield store


@pytest.mark.proves("bounded-requests")
@pytest.mark.full
async def test_round_trips_are_bounded(full_store: AsyncHistoryStore, count: Count) -> None:
    assert COSTS.keys() | OTHERS == {f"{method} {path}" for path, by in API.items() for method in by}
    view = LiveView(full_store, authorize=count.authorize, read_only=False)
    async with client(view, headers={}) as web:

        async def counted(method: str, path: str, body: Any, most: int, headers: Any = None) -> Any:
            count.trips = count.questions = 0
            answered = await web.request(method, path, headers=headers, **({} if body is None else {"json": body}))
            assert answered.status_code in (200, 201, 204), answered.text
            assert count.trips <= most, path
            assert count.questions <= 501, path
            return answered

        for what, (path, body, most) in COSTS.items():
            method = what.split()[0]
            if method == "GET":
                await web.get(path)  # the server learns its scripts
            await counted(method, path, body, most)
        for path, most, key in ((LISTED, 15, "conversations"), (SEARCHED, 8, "hits")):
            assert (await counted("GET", path, None, most, {"x-nothing": "1"})).json()[key] == [], "without rights"
        found, cursor = [], ""
        while cursor is not None:
            path = f"v1/conversations?user_id=ann&limit=5&cursor={cursor}"
            page = (await counted("GET", path, None, 15)).json()
            found, cursor = [*found, *(one["id"] for one in page["conversations"])], page["next"]
            assert count.questions <= 5
        assert found == ["mine"]
        seen: list[str] = []
        where: dict[str, str] = {}
        while True:  # most messages before the summary do not belong to it
            path = at("long", "messages", "summary", "originals", limit="40", **where)
            page = (await counted("GET", path, None, 7)).json()
            seen = [one["id"] for one in page["messages"]] + seen
            if not page["more"]:
                break
            where = {"before": page["before"]}
        assert seen == [f"m{n}" for n in range(0, MANY, 2)]
    async with listening(view) as port:
        for path in ("v1/events", at("long", "events")):
            count.trips = 0
            async with Stream(port, path) as stream:
                await stream.comment()
                assert count.trips <= 12


async def test_a_change_of_an_answer_is_read_once(store: AsyncHistoryStore, count: Count) -> None:
    async with store.run("answer") as run, run.stream(interval=0.0) as reply:
        await reply.write("0 ")
        stream = ui_message_stream(store, "answer")

        async def shows(word: str) -> None:
            while word not in (await anext(stream)).get("delta", ""):
                pass

        await shows("0 ")
        before = count.trips
        for number in range(1, 21):
            await reply.write(f"{number} ")
            await shows(f"{number} ")
        assert count.trips - before < 50  # 20 writes, and 20 reads
