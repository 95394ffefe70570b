"""Turns in the live view: Send asks, and what is owed is seen, retried and dropped."""

import asyncio
from typing import Any

import pytest
from playwright.async_api import expect

from redis_history import AsyncHistoryStore, AsyncWorker, user
from tests.support.web import Stream, at, client, listening
from tests.web.browsing import Site, Windows


@pytest.mark.proves("authorize")
async def test_turns_need_their_rights(make: Any, store: Any) -> None:
    for name, owner in (("mine", "ann"), ("other", "bob")):
        await store.ask(name, user("Hello", id=f"{owner}-1"))
    refused: set[tuple[str | None, str]] = set()

    async def authorize(request: Any, conversation_id: str | None, action: str) -> bool:
        return conversation_id != "other" and (conversation_id, action) not in refused

    async with client(make(authorize=authorize, read_only=False)) as web:
        found = (await web.get("v1/turns")).json()["turns"]
        assert [(one["conversation"], one["status"], one["message_ids"]) for one in found] == [
            ("mine", "owed", ["ann-1"])
        ]
        assert (await web.get("v1/turns?status=parked")).json()["turns"] == []
        assert (await web.get("v1/turns?status=lost")).status_code == 400
        for name in ("turns", "retry", "drop"):
            path = at("other", name)
            response = await (web.get(path) if name == "turns" else web.post(path, json={}))
            assert response.status_code == 403
        for name, right in (("retry", "append"), ("drop", "stop")):
            refused = {("mine", right)}
            assert (await web.post(at("mine", name), json={})).status_code == 403
            refused = set()
            changed = (await web.post(at("mine", name), json={"agent_name": None})).json()
            assert changed == {"changed": True}
            assert (await web.post(at("mine", name), json={"agent_name": 1})).status_code == 400
        assert (await web.post(at("mine", "drop"), json={})).json() == {"changed": False}
        assert (await web.get(at("mine", "turns"))).json() == {"turns": []}
        for wrong in ({"ask": 1}, {"ask": True, "agent_name": 1}):
            assert (await web.post(at("mine", "messages"), json={"text": "x"} | wrong)).status_code == 400
    assert [turn.conversation_id for turn in await store.list_turns()] == ["other"]


async def test_turns_reach_the_readers_of_streams(make: Any, store: Any) -> None:
    app = make(read_only=False)
    async with listening(app) as port, Stream(port, at("c", "events")) as stream, Stream(port) as listed:
        await stream.comment()
        await listed.event()
        async with client(app) as web:
            asked = await web.post(
                at("c", "messages"), json={"text": "Hello", "id": "u1", "ask": True, "agent_name": "a"}
            )
            assert asked.status_code == 201
        found = dict(await stream.events(2))
        assert (found["turn"]["turns"][0]["message_ids"], found["turn"]["turns"][0]["agent_name"]) == (["u1"], "a")
        while (await listed.event())[1].get("turn") != "owed":
            pass
        await store.drop_turn("c")
        assert await stream.event() == ("turn", {"conversation": "c", "turns": []})
        while (await listed.event())[1].get("turn", "") is not None:
            pass
    async with listening(app) as port, Stream(port, at("c", "events")) as stream:
        await stream.comment()
        await store.ask("c", user("More", id="u2"), agent_name="a")
        assert {kind for kind, _ in await stream.events(2)} == {"appended", "turn"}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.full
async def test_a_page_asks_and_shows_what_is_owed(windows: Windows, desk: Site) -> None:
    fails = [True]

    async def answer(run: Any) -> None:
        if fails:
            raise ValueError(fails.pop())
        async with run.stream() as reply:
            await reply.write("The answer.")

    name = desk.name("turn")
    async with AsyncHistoryStore(desk.url, namespace=desk.store.namespace) as store:
        await store.append(name, user("Earlier."))
        window = await windows(desk.address)
        page = await window.open(name)
        activity, tag = page.locator("#activity"), page.locator(f"#conversations [data-id={name}] [data-turn]")
        await page.locator("#composer textarea").fill("Hello?")
        await page.keyboard.press("Enter")
        await expect(activity).to_contain_text("owes an answer since")
        await expect(tag).to_have_text("owed")
        await expect(page.locator("#retry")).to_be_hidden()
        for turn in await store.list_turns():  # of other tests
            if turn.conversation_id != name:
                await store.drop_turn(turn.conversation_id)
        worker = AsyncWorker(store, answer, attempts=1)
        working = asyncio.create_task(worker.run())
        await expect(activity).to_contain_text("has failed: ValueError")
        await expect(tag).to_have_text("parked")
        await page.reload()
        await window.live()
        await expect(tag).to_have_text("parked")
        await page.locator("#retry").click()
        await expect(page.locator(".row").last).to_contain_text("The answer.")
        await expect(tag).to_have_count(0)
        await expect(activity).to_be_hidden()
        worker.stop()
        await working
        await page.locator("#composer textarea").fill("And now?")
        await page.keyboard.press("Enter")
        await page.locator("#drop").click()
        await expect(activity).to_be_hidden()
        assert await store.list_turns() == []
