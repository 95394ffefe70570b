"""Totals and budgets over HTTP, and a chat whose user has used up a budget."""

import asyncio
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, Conversation, Usage, assistant, user
from redis_history.values import Participant
from redis_history.web import LiveView, allow_all
from tests.support.servers import until
from tests.support.web import client
from tests.web.chatting import CHAT, ask, asked, speaker, text_in

ONE = Usage(100, 10, 40, 0.25, "m")


async def test_totals_by_day_and_agent(store: AsyncHistoryStore) -> None:
    for name, owner, agent in (("c", 7, "a"), ("d", "7", "b")):
        await store.create_conversation(Conversation(name, user_id=owner, agent_name=agent))
        await store.append(name, assistant("x", id="m", usage=ONE, timestamp=f"2026-01-0{1 + (name == 'd')}"))
    await store.set_budget(7, cost=1.0, period="total")
    one = {"input_tokens": 100, "output_tokens": 10, "cached_tokens": 40, "cost": 0.25, "model": None}
    async with client(LiveView(store, authorize=allow_all), headers={}) as web:
        found = (await web.get("/v1/usage")).json()
        assert found["usage"] == {name: value and 2 * value for name, value in one.items()}
        assert found["groups"] == [{"name": day, "usage": one} for day in ("2026-01-01", "2026-01-02")]
        found = (await web.get("/v1/usage?user_id=7&by=agent")).json()
        assert (found["usage"], found["groups"]) == (one, [{"name": "a", "usage": one}])
        assert (found["budget"]["cost"], found["budget"]["used"], found["budget"]["exhausted"]) == (1.0, one, False)
        found = (await web.get('/v1/usage?user_id="7"&since=2026-01-02&until=2026-01-02')).json()
        assert (found["usage"], found["budget"]) == (one, None)
        assert (await web.get("/v1/usage?until=2025-12-31&agent_name=a")).json()["groups"] == []
        for wrong in ("by=user", "since=now", "until=2026-13-01", "model=m"):
            assert (await web.get(f"/v1/usage?{wrong}")).status_code == 400, wrong
        conversation = (await web.get("/v1/conversations/c")).json()
        assert (conversation["usage"], conversation["estimated_tokens"]) == (one, 1)
        [message] = (await web.get("/v1/conversations/c/messages")).json()["messages"]
        assert message["usage"] == one | {"model": "m"}
        assert message["reply"] == {"model": "m", "input_tokens": 100, "output_tokens": 10, "cost": 0.25}


@pytest.mark.proves("budgets")
@pytest.mark.parametrize("period", ["day", "total"])
async def test_a_chat_answers_402_when_the_budget_is_used_up(serve: Any, store: AsyncHistoryStore, period: Any) -> None:
    chat = await serve(speaker(store), participant=lambda request: Participant("user", "ann"))
    assert text_in(await ask(chat, asked("one"))) == "You said: one"
    assert (await store.get_conversation(CHAT)).user_id == "ann"  # type: ignore[union-attr]
    await store.append(CHAT, assistant("costly", usage=ONE))
    await store.set_budget("ann", tokens=110, period=period)
    for body in (asked("two", "u2"), asked("two", "u3") | {"id": "a new chat"}):
        refused = await chat.post("", json=body)
        assert (refused.status_code, refused.json()["code"]) == (402, "budget_exceeded")
        assert ("Retry-After" in refused.headers) == (period == "day")
        assert "ann" not in refused.text
    assert [message.id for message in await store.get(CHAT) if message.role == "user"] == ["u1"]
    assert await store.get_conversation("a new chat") is None
    await store.set_budget("ann", tokens=1000, period=period)
    assert text_in(await ask(chat, asked("two", "u2"))) == "You said: two"
    await store.append("other", user("of nobody"))


@pytest.mark.proves("budgets")
async def test_a_question_waits_while_another_run_reserves_the_budget(serve: Any, store: AsyncHistoryStore) -> None:
    chat = await serve(speaker(store), participant=lambda request: Participant("user", "ann"))
    await store.create_conversation(Conversation("other", user_id="ann"))
    await store.set_budget("ann", tokens=1000, period="day", reserve=1.0)
    async with store.run("other"):
        asking = asyncio.create_task(ask(chat, asked("one")))

        async def is_refused() -> bool:
            run = await store.get_run(CHAT)
            return run is not None and not run.is_active

        await until(is_refused, "the answer to be put off")
    assert text_in(await asking) == "You said: one"
