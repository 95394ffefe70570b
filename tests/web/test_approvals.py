"""The HTTP interface: calls that wait for approval, and searches in the conversations of one owner."""

from typing import Any

import pytest
from starlette.requests import Request

from redis_history import AsyncHistoryStore, Conversation, Participant, assistant, tool_use, user
from redis_history.web import LiveView
from redis_history.web.access import Action
from tests.support.web import client


def ann(request: Request) -> Participant:
    return Participant("user", "ann")


def own(request: Request, conversation_id: str | None, action: Action) -> bool:
    return conversation_id is None or conversation_id.startswith("ann")


async def _store(store: AsyncHistoryStore, name: str, owner: str) -> None:
    await store.create_conversation(Conversation(name, user_id=owner, agent_name="bot"))
    await store.append(name, assistant(tool_use("c", "pay", {"sum": 3}, needs_approval=True), id="m"))


async def test_approvals_over_http() -> None:
    async with (
        AsyncHistoryStore("memory://") as store,
        LiveView(store, authorize=own, participant=ann, read_only=False) as view,
        client(view, headers={}) as web,
    ):
        await _store(store, "ann/1", "ann")
        await _store(store, "bob", "bob")
        found = (await web.get("/v1/approvals")).json()["approvals"]
        assert [(one["conversation"], one["call"], one["message"]) for one in found] == [("ann/1", "c", "m")]
        assert (found[0]["tool_name"], found[0]["input"], found[0]["approved"]) == ("pay", {"sum": 3}, None)
        assert (await web.get("/v1/approvals?user_id=bob")).json() == {"approvals": []}
        path = "/v1/conversations/ann%2F1/approvals/c"
        for wrong in ({}, {"approved": "yes"}, {"approved": True, "by": "bob"}, {"approved": True, "reason": 3}):
            assert (await web.post(path, json=wrong)).status_code == 400
        done = (await web.post(path, json={"approved": False, "reason": "too much"})).json()
        assert (done["approved"], done["reason"], done["by"], done["duplicate"]) == (False, "too much", "ann", False)
        again = (await web.post(path, json={"approved": True})).json()
        assert (again["approved"], again["duplicate"]) == (False, True)
        assert (await web.post("/v1/conversations/ann%2F1/approvals/x", json={"approved": True})).status_code == 404
        assert (await web.post("/v1/conversations/bob/approvals/c", json={"approved": True})).status_code == 403
        await web.request("PATCH", "/v1/conversations/ann%2F1", json={"title": "T"})
        assert [event.by for event in await store.log("ann/1")] == [None, None, "ann", "ann"]


@pytest.mark.proves("authorize")
async def test_a_search_of_one_owner_covers_all_of_its_conversations() -> None:
    async with (
        AsyncHistoryStore("memory://", max_conversations=None) as store,
        LiveView(store, authorize=own, participant=ann) as view,
        client(view, headers={}) as web,
    ):
        await store.create_conversation(Conversation("ann/0", user_id="ann"))
        await store.append("ann/0", user("a needle in the hay"))
        for number in range(1, 510):
            await store.create_conversation(Conversation(f"ann/{number}", user_id="ann"))
            await store.append(f"ann/{number}", user("hay"))
        await store.create_conversation(Conversation("shared", user_id="ann"))  # which she may not read
        await store.append("shared", user("another needle, needle"))

        async def search(**parameters: Any) -> tuple[list[str], int, str | None]:
            found = (await web.get("/v1/search", params={"q": "needle", **parameters})).json()
            return [hit["conversation"] for hit in found["hits"]], found["total"], found["incomplete"]

        hits, total, incomplete = await search()
        assert (hits, total) == ([], 0)
        assert incomplete is not None
        assert "user_id" in incomplete
        assert await search(user_id="ann") == (["ann/0"], 1, None)
        assert await search(user_id="bob") == ([], 0, None)
        assert (await web.get("/v1/search?q=x&user_id=ann&conversation=ann%2F0")).status_code == 400
        many = await search(q="hay", user_id="ann", limit=3)
        assert len(many[0]) == 3


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("count", [20, 60, 150])
async def test_a_search_of_one_owner_counts_only_what_may_be_read(count: int) -> None:
    """Whether the other conversation has better matches, worse ones or none, the answer is the same."""
    async with (
        AsyncHistoryStore("memory://") as store,
        LiveView(store, authorize=own, participant=ann) as view,
        client(view, headers={}) as web,
    ):
        for name in ("ann/0", "shared"):
            await store.create_conversation(Conversation(name, user_id="ann"))
        await store.append_many("ann/0", [user("zebra lion", id=f"m{number}") for number in range(count)])
        found = set()
        for hidden in (None, "zebra and nothing else of interest in this long line of words", "zebra lion lion zebra"):
            await store.clear("shared")
            await store.append_many("shared", [user(hidden) for _ in range(70) if hidden])
            answered = (await web.get("/v1/search?q=zebra lion&user_id=ann")).json()
            found.add((answered["total"], len(answered["hits"]), answered["incomplete"]))
            assert {hit["conversation"] for hit in answered["hits"]} == {"ann/0"}
        assert found == {(count, 20, None)}
