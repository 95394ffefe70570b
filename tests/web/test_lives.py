"""A deleted id can be reused by another user. Clients see content only from the life of the conversation that
`authorize` was asked about."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from redis_history import AsyncHistoryStore, Conversation, Participant, user
from redis_history.store.operations import ReadLife
from redis_history.web import Action, Limits, LiveView
from tests.support.web import Stream, at, client, listening
from tests.web.test_routes import mounted

#: Rights are rechecked late, so that only a change of the conversation makes a stream ask.
LATE = Limits(heartbeat=0.05, reauthorize=600)


class Owners:
    """An `authorize` as in docs/how-to/chat.md: a conversation is new, or the user's own."""

    def __init__(self, store: AsyncHistoryStore) -> None:
        self.store = store
        self.deletes = ""  # deleted after the question about it

    async def __call__(self, request: Request, conversation_id: str | None, action: Action) -> bool:
        if conversation_id is None:
            return True
        record = await self.store.get_conversation(conversation_id)
        allowed = record is None or record.user_id == request.headers["x-user"]
        if conversation_id == self.deletes and record is not None:
            await self.store.delete_conversation(conversation_id)
            return await self(request, conversation_id, action)
        return allowed


@pytest.fixture
async def follow(store: Any) -> AsyncIterator[Any]:
    """Opens streams of users."""
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(mounted(store, authorize=Owners(store), limits=LATE)))

        async def follow(who: str, path: str = "v1/events") -> Stream:
            headers = {"x_user": who}
            stream = await stack.enter_async_context(Stream(port, path, base="/history", **headers))
            assert stream.status == 200
            await (stream.comment() if path != "v1/events" else stream.event())
            return stream

        yield follow


async def write(store: Any, who: str, name: str, text: str) -> None:
    await store.create_conversation(Conversation(name, user_id=who), exist_ok=True)
    await store.append(name, user(text))


async def until_marked(store: Any, who: str, stream: Stream) -> list[tuple[str, str, str]]:
    """Return the events in the stream of the list up to a new conversation of this user."""
    await write(store, who, f"{who}'s marker", "marker")
    found: list[tuple[str, str, str]] = []
    while (event := await stream.event()) is not None:
        kind, data = event
        if data["conversation"] == f"{who}'s marker":
            await store.delete_conversation(f"{who}'s marker")
            while (event := await stream.event()) and event[0] != "gone":
                pass
            return found
        found.append((kind, data["conversation"], (data.get("last") or {}).get("text", "")))
    raise AssertionError("the stream ended")


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("pause", [True, False], ids=["later", "at once"])
@pytest.mark.full
async def test_the_list_stream_knows_whose_conversation_was_deleted_and_created_again(
    store: Any, follow: Any, pause: bool
) -> None:
    await write(store, "ann", "c", "ann's secret")
    ann, bob = await follow("ann"), await follow("bob")
    await store.append("c", user("and another"))
    assert {event[2] for event in await until_marked(store, "ann", ann)} == {"and another"}
    assert await until_marked(store, "bob", bob) == []
    await store.delete_conversation("c")
    if pause:
        assert await until_marked(store, "ann", ann) == [("gone", "c", "")]
        assert await until_marked(store, "bob", bob) == [], "whose conversation it was cannot be asked any more"
    await write(store, "bob", "c", "bob's secret")
    of_ann, of_bob = await until_marked(store, "ann", ann), await until_marked(store, "bob", bob)
    assert of_ann == ([] if pause else [("gone", "c", "")])
    assert of_bob[-1] == ("changed", "c", "bob's secret")
    await write(store, "bob", "c", "and another")
    assert await until_marked(store, "ann", ann) == []
    assert await until_marked(store, "bob", bob) == [("changed", "c", "and another")]


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("exists", [True, False])
async def test_the_stream_of_a_conversation_ends_when_it_becomes_another_users(
    store: Any, follow: Any, exists: bool
) -> None:
    if exists:
        await write(store, "ann", "c", "ann's")
    ann, bob = await follow("ann", at("c", "events")), await follow("bob")
    if exists:
        await store.append("c", user("and another"))
        assert (await ann.event())[0] == "appended"
        await store.delete_conversation("c")
        assert (await ann.event())[0] == "gone"
    async with store.run("c", agent_name="Bob's agent"):
        await write(store, "bob", "c", "bob's secret")
        assert await ann.event() is None
    assert ("changed", "c", "bob's secret") in await until_marked(store, "bob", bob)


async def test_a_reader_stays_when_its_conversation_is_created_again(store: Any, follow: Any) -> None:
    await write(store, "ann", "c", "1")
    ann = await follow("ann", at("c", "events"))
    await store.delete_conversation("c")
    await write(store, "ann", "c", "2")
    last = (await store.append("c", user("3", id="last"))).revision
    seen = 0
    while seen < last:  # in events, or as a reset to a later state
        event = await ann.event()
        assert event is not None
        seen = event[1].get("revision", 0) if event[0] != "gone" else 0
    await store.append("c", user("4"))
    assert (await ann.event())[0] == "appended"


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("path", ["v1/conversations?last=1", "v1/search?q=secret"])
async def test_what_was_read_before_a_question_is_not_shown_for_its_answer(store: Any, path: str) -> None:
    """The conversation is deleted while the question is answered, and then everybody might read it."""
    await write(store, "ann", "c", "ann's secret")
    rights = Owners(store)
    async with client(
        mounted(store, authorize=rights), headers={"x-user": "bob"}, base_url="http://localhost/history/"
    ) as web:
        rights.deletes = "c"
        answered = await web.get(path)
    assert answered.status_code == 200
    assert "secret" not in answered.text
    assert '"c"' not in answered.text


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("what", ["", "/messages", "/messages/m", "/run", "search"])
async def test_a_conversation_that_another_user_creates_after_a_question_is_not_shown(store: Any, what: str) -> None:
    path = "v1/search?q=secret&conversation=c" if what == "search" else f"v1/conversations/c{what}"
    rights = Owners(store)

    async def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        allowed = await rights(request, conversation_id, action)
        if await store.get_conversation("c") is None:
            await store.create_conversation(Conversation("c", user_id="ann", title="ann's secret"))
            await store.append("c", user("ann's secret", id="m"))
        return allowed

    async with client(
        mounted(store, authorize=authorize), headers={"x-user": "bob"}, base_url="http://localhost/history/"
    ) as web:
        answered = await web.get(path)
        assert (answered.status_code, answered.json()["code"]) == (403, "forbidden")
        shown = await web.get(path, headers={"x-user": "ann"})
        assert shown.status_code == 200


@pytest.mark.proves("authorize")
async def test_pages_of_the_list_tell_nothing_of_hidden_conversations(store: Any) -> None:
    async def read(params: Any) -> Any:
        return (await web.get("v1/conversations", params=params)).json()

    async with client(
        mounted(store, authorize=Owners(store)), headers={"x-user": "ann"}, base_url="http://localhost/history/"
    ) as web:
        for name in ("a1", "a2", "a3"):
            await write(store, "ann", name, "hers")
        pages = [await read({"limit": 1})]
        while pages[-1]["next"]:
            pages.append(await read({"limit": 1, "cursor": pages[-1]["next"]}))
        assert [page["conversations"][0]["id"] for page in pages] == ["a3", "a2", "a1"]
        await asyncio.gather(*(write(store, "bob", f"b{number}", "his") for number in range(40)))
        again = [await read({"limit": 1, **({"cursor": page["next"]} if page else {})}) for page in (None, *pages[:-1])]
        assert again == pages
        for name in ("a3", "a1"):
            await store.append(name, user("moves to the front"))
        rest = await read({"limit": 5, "cursor": pages[1]["next"]})
        assert [one["id"] for one in rest["conversations"]] == [], "it is before the place now"
        rest = await read({"limit": 5, "cursor": pages[0]["next"]})
        assert [one["id"] for one in rest["conversations"]] == ["a2"], "the place of a3, which has moved"


@pytest.mark.parametrize("backend", ["redis", "memory"])
async def test_each_life_has_another_name(backend: str, server: Any, namespace: str) -> None:
    url = server.url if backend == "redis" else "memory://"
    async with AsyncHistoryStore(url, namespace=namespace) as store:
        lives = [await store.backend.execute(ReadLife("c"))]
        for _ in range(2):
            await store.append("c", user("x"))
            lives.append(await store.backend.execute(ReadLife("c")))
            await store.clear("c")
            assert await store.backend.execute(ReadLife("c")) == lives[-1]
            assert (await store.snapshot("c")).cursor.epoch == lives[-1]
            await store.delete_conversation("c")
            assert await store.backend.execute(ReadLife("c")) == lives[0]
        assert len(set(lives)) == 3


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("change", ["another user", "withdrawn"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", at("c", "messages"), b'{"text":"by ann"}'),
        ("PATCH", at("c"), b'{"title":"by ann"}'),
        ("DELETE", at("c"), b"{}"),
        ("POST", at("c", "fork"), b"{}"),
        ("POST", at("c", "stop"), b"{}"),
        ("PATCH", at("c", "messages", "m1"), b'{"pinned":true}'),
        ("DELETE", at("c", "messages", "m1"), b"{}"),
        ("POST", at("c", "messages", "m1", "expand"), b"{}"),
    ],
)
@pytest.mark.full
async def test_a_right_that_ends_while_the_body_is_sent(
    store: AsyncHistoryStore, method: str, path: str, body: bytes, change: str
) -> None:
    was_asked, withdrawn = asyncio.Event(), False

    async def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        was_asked.set()
        return not withdrawn and await Owners(store)(request, conversation_id, action)

    async def content() -> AsyncIterator[bytes]:
        nonlocal withdrawn
        yield body[:1]
        await was_asked.wait()
        await write(store, "bob", "c", "words of bob")
        withdrawn = change == "withdrawn"
        yield body[1:]

    await store.create_conversation(Conversation("elsewhere"))
    view = LiveView(store, authorize=authorize, read_only=False)
    async with listening(view) as port, view, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as web:
        headers = {"content-type": "application/json", "x-user": "bob" if change == "withdrawn" else "ann"}
        refused = await web.request(method, path, content=content(), headers=headers)
    assert (refused.status_code, "words of bob" in refused.text) == (403, False)
    assert [one.text for one in await store.get("c")] == ["words of bob"]
    record = await store.get_conversation("c")
    assert record is not None
    assert (record.user_id, record.title, record.revision) == ("bob", None, 2)
    assert await store.count_conversations() == 2


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("more", [{}, {"ask": True}, {"role": "assistant"}], ids=["plain", "ask", "as"])
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "nameless"])
async def test_one_of_many_users_begins_a_conversation(store: Any, more: dict[str, Any], is_named: bool) -> None:
    """They begin it at the same moment. The others are refused, and nothing of theirs is in it."""
    owners = Owners(store)

    async def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        if is_named and not more.get("role"):
            return await owners(request, conversation_id, action)
        assert conversation_id is not None
        first = await store.get(conversation_id, limit=1)
        return not first or first[0].text == request.headers["x-user"]

    def participant(request: Request) -> Participant:
        return Participant("user", request.headers["x-user"])

    named: Any = {"participant": participant} if is_named else {}
    view = LiveView(store, authorize=authorize, read_only=False, **named)
    users = [f"user {number}" for number in range(5)]
    async with client(view, headers={}) as web:
        for number in range(10):
            name = f"c{number}"
            path = "/" + at(name, "messages")
            sent = [web.post(path, json={"text": one, **more}, headers={"x-user": one}) for one in users]
            statuses = [answered.status_code for answered in await asyncio.gather(*sent)]
            assert sorted(statuses) == [201, 403, 403, 403, 403]
            first = users[statuses.index(201)]
            assert [one.text for one in await store.get(name)] == [first]
            record = await store.get_conversation(name)
            assert record is not None
            assert record.user_id == (first if is_named and not more.get("role") else None)


@pytest.mark.proves("authorize")
@pytest.mark.parametrize(
    ("method", "what", "body"),
    [
        pytest.param("PATCH", "/messages/m1", {"pinned": True}, marks=pytest.mark.full),
        ("PATCH", "", {"title": "by ann"}),
        pytest.param("DELETE", "/messages/m1", None, marks=pytest.mark.full),
        ("POST", "/messages/m1/edit", {"text": "by ann"}),
        pytest.param("POST", "/messages/m1/retry", {}, marks=pytest.mark.full),
        ("POST", "/retry", {}),
        pytest.param("POST", "/drop", {}, marks=pytest.mark.full),
        pytest.param("POST", "/fork", {}, marks=pytest.mark.full),
        ("DELETE", "", None),
    ],
)
async def test_nobody_changes_what_another_user_has_just_begun(store: Any, method: str, what: str, body: Any) -> None:
    """Requests of ann for a conversation that is missing, and then bob's, leave it as he began it."""
    view = LiveView(store, authorize=Owners(store), read_only=False)
    async with client(view, headers={"x-user": "ann"}) as web:
        for number in range(8):
            name = f"c{number}"
            path = f"/{at(name)}{what}"
            sent = [asyncio.create_task(web.request(method, path, json=body)) for _ in range(20)]
            for _ in range(8 * number):
                await asyncio.sleep(0)  # varies when he begins; nothing waits for it
            await store.create_conversation(Conversation(name, user_id="bob"))
            await store.append(name, user("bob's", id="m1"))
            statuses = {answered.status_code for answered in await asyncio.gather(*sent)}
            assert statuses <= {200, 403, 404}
            record = await store.get_conversation(name)
            assert record is not None
            assert (record.user_id, record.revision) == ("bob", 2)
            assert await store.list_turns() == []
            assert await store.list_conversations(forked_from=name) == []


@pytest.mark.proves("authorize")
async def test_a_change_of_a_former_record_comes_without_the_record_of_another_user(store: Any, follow: Any) -> None:
    """The stream is behind: its events are older than the conversation of bob, who used the id again."""
    await store.create_conversation(Conversation("c", user_id="ann"))
    start = (await store.snapshot("c")).cursor
    for number in range(100):
        await store.update_conversation("c", title=f"ann's {number}")
    ann = await follow("ann", at("c", "events", after=str(start)))
    assert (await ann.event())[0] == "conversation"
    await store.delete_conversation("c")
    await store.create_conversation(Conversation("c", user_id="bob", title="bob's secret", metadata={"pin": 1}))
    while (event := await ann.event()) is not None:
        assert "bob" not in str(event)
