"""Usage counts once for each message id, whatever happens to the message, and budgets end runs."""

import asyncio
import random
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import Conversation, Message, Usage, assistant, user
from redis_history.errors import BudgetExceededError, InvalidInputError, InvalidMessageError, RunBusyError
from redis_history.integrations.importers import async_export_messages, async_import_messages
from redis_history.store.operations import Append, ReplyEnd, UpdateMessage, usage
from redis_history.store.operations.usage import KeepBudget, SetBudget, TakeBudget
from tests.conformance.test_stream import execute
from tests.support.servers import until

ONE = Usage(100, 10, 40, 0.25, "m")
NOTHING = Usage()


def answer(name: str, usage: Usage | None = ONE, text: str = "x", **fields: Any) -> Message:
    return assistant(text, id=name, usage=usage, **fields)


def times(count: int, usage: Usage = ONE) -> Usage:
    """The sum of `count` equal usages."""
    return sum([replace(usage, model=None)] * count, Usage())


async def spent(store: Any, conversation_id: str = "c") -> Usage | None:
    return (await store.get_conversation(conversation_id)).usage


async def agrees(store: Any, wanted: Usage, conversation_id: str = "c", **owner: Any) -> None:
    """The conversation and, as it is the only one, the owner and the whole namespace have this total."""
    assert (await spent(store, conversation_id) or Usage()) == wanted
    assert await store.usage(**owner) == await store.usage() == wanted


@pytest.mark.smoke
async def test_usage_is_stored_and_summed(store: Any) -> None:
    await store.create_conversation(Conversation("c", user_id="ann", agent_name="bot"))
    await store.append("c", user("hi"))
    assert await spent(store) is None
    stored = (await store.append("c", answer("a"))).message
    await store.append_many("c", [user("more"), answer("b"), answer("n", None)])
    assert stored.usage == ONE == (await store.get_message("c", "a")).usage
    await agrees(store, times(2), user_id="ann", agent_name="bot")
    assert await store.usage(user_id="bob") == await store.usage(agent_name="other") == NOTHING
    assert await store.usage(user_id="ann", agent_name="other") == NOTHING
    assert times(2).total_tokens == 220


@pytest.mark.smoke
@pytest.mark.proves("usage")
async def test_an_id_counts_once_whatever_happens_to_its_message(stores: Any) -> None:
    """The table of docs/how-to/usage.md."""
    store, capped = stores(), stores(max_messages=2) if stores.backend != "memory" else None
    await store.create_conversation(Conversation("c", user_id="ann"))
    await store.append("c", answer("a"))
    await agrees(store, ONE_TOTAL, user_id="ann")
    await store.append("c", answer("a"))  # again
    await store.append_many("c", [answer("a"), answer("b")])  # with others
    await agrees(store, times(2), user_id="ann")
    await store.update_message("c", answer("a", Usage(7, 1), "edited"))  # another usage
    await agrees(store, times(1) + Usage(7, 1), user_id="ann")
    await store.update_message("c", answer("a", None, "without"))  # a caller that knows no usage
    await agrees(store, times(1) + Usage(7, 1), user_id="ann")
    await store.update_message("c", answer("a"))
    await agrees(store, times(2), user_id="ann")
    await store.delete_messages("c", ["a"])
    await agrees(store, times(2), user_id="ann")
    await store.append("c", answer("a"))  # the id lives again
    await agrees(store, times(2), user_id="ann")
    await store.restore("c", [answer("a"), answer("b"), answer("d")])
    await agrees(store, times(3), user_id="ann")
    await store.clear("c")
    await store.restore("c", [answer("b")])
    await agrees(store, times(3), user_id="ann")
    await store.erase("c", ["b"])
    await store.append("c", answer("b"))
    await agrees(store, times(3), user_id="ann")
    await store.append_many("c", [user("1"), user("2"), answer("e")])
    await store.compact("c", through="e", summary="They talked.")
    summary = (await store.get("c"))[0]
    await store.expand("c", summary.id)
    await agrees(store, times(4), user_id="ann")
    told = assistant("They talked.", id="s", metadata={"is_summary": True}, usage=Usage(5))
    await store.compact("c", through="e", summary=told)
    await agrees(store, times(4) + Usage(5), user_id="ann")
    await store.expand("c", "s")
    if capped is not None:
        await capped.append_many("c", [answer("f"), answer("g"), answer("h")])  # the cap removes others
        await capped.append("c", answer("b"))
        await agrees(store, times(7) + Usage(5), user_id="ann")
    total = await store.usage()
    async with store.stream("c", id="r") as reply:
        await reply.write("x")
        await reply.finish(usage=ONE)
    await agrees(store, total + ONE_TOTAL, user_id="ann")
    await store.delete_conversation("c")
    assert await store.usage(user_id="ann") == total + ONE_TOTAL
    await store.append("c", user("anew"))
    assert await spent(store) is None


ONE_TOTAL = times(1)


@pytest.mark.proves("usage")
async def test_copies_of_a_call_count_once(store: Any) -> None:
    appended = Append.of("c", answer("a"))
    for _ in range(3):
        await execute(store, appended)
    edited = UpdateMessage.of("c", answer("a", Usage(1)))
    await execute(store, edited)
    await store.update_message("c", answer("a", Usage(2)))
    await execute(store, edited)  # late
    await execute(store, appended)
    assert await spent(store) == await store.usage() == Usage(2)


@pytest.mark.proves("usage")
async def test_a_reply_counts_at_its_end(stores: Any) -> None:
    store = stores()
    reply = store.stream("c", id="r")
    await reply.open()
    await reply.write("so far")
    assert await spent(store) is None
    await execute(store, UpdateMessage.of("c", answer("other")))  # unknown: nothing
    assert (await reply.finish(usage={"input_tokens": 3, "model": "m"})).usage == Usage(3, model="m")
    assert await spent(store) == Usage(3)
    assert (await reply.finish()).usage == Usage(3, model="m")
    with pytest.raises(InvalidMessageError, match="output_tokens"):
        async with store.stream("c") as other:
            await other.finish(usage={"output_tokens": -1})
    late = replace((await store.get_message("c", "r")), usage=Usage(9))
    op = replace(UpdateMessage.of("c", late), reply=ReplyEnd("f" * 16))  # of a writer that was replaced
    assert await execute(store, op) is None
    assert await spent(store) == Usage(3)


@pytest.mark.smoke
async def test_a_fork_counts_only_what_is_new_in_it(store: Any) -> None:
    await store.create_conversation(Conversation("c", user_id="ann"))
    await store.append_many("c", [user("q"), answer("a"), answer("b")])
    fork = await store.fork("c", "f", through="a")
    assert fork.usage is None
    await store.update_message("f", answer("a", Usage(1000)))  # counts where it comes from
    await store.append("f", answer("b"))  # was not copied, so it is another message
    await store.append("f", answer("n", Usage(5)))
    assert await spent(store, "f") == times(1) + Usage(5)
    assert await store.usage(user_id="ann") == await store.usage() == times(3) + Usage(5)
    await store.clear("f")
    await store.restore("f", [answer("a"), answer("n", Usage(5))])
    assert await spent(store, "f") == times(1) + Usage(5)
    again = await store.fork("f", "g")
    assert again.usage is None
    await store.append("g", answer("x"))
    assert await store.usage(user_id="ann") == times(4) + Usage(5)


@pytest.mark.smoke
async def test_usage_moves_with_the_record(store: Any) -> None:
    await store.append("c", answer("a", timestamp="2026-01-01T23:59:59Z"))
    await store.append("c", answer("b", timestamp="2026-01-03"))
    await store.append("d", answer("a"))
    assert await store.usage() == times(3)
    await store.update_conversation("c", user_id=1)
    assert await store.usage(user_id=1) == times(2)
    await store.update_conversation("c", user_id="1", agent_name="bot")
    assert await store.usage(user_id=1) == NOTHING
    assert await store.usage(user_id="1", agent_name="bot") == await store.usage(agent_name="bot") == times(2)
    assert await store.usage(user_id="1", until=date(2026, 1, 2)) == times(1)
    await store.update_conversation("c", title="no owner")
    await store.update_conversation("c", user_id=None, agent_name=None)
    assert await store.usage(user_id="1") == await store.usage(agent_name="bot") == NOTHING
    assert await store.usage() == times(3)
    assert await store.usage_by("agent") == {"": times(3)}


async def test_days_are_those_of_messages_in_utc(store: Any) -> None:
    await store.create_conversation(Conversation("c", user_id="ann", agent_name="a"))
    await store.create_conversation(Conversation("d", agent_name="b"))
    await store.append("c", answer("1", timestamp="1969-12-31T23:00:00Z"))
    await store.append("c", answer("2", timestamp="2026-01-01T00:30:00+02:00"))
    await store.append("c", answer("3", timestamp="2026-01-01T12:00:00Z"))
    await store.append("d", answer("4", timestamp="2026-02-01"))
    await store.append("c", answer("5"))
    today = datetime.now(UTC).date()
    assert await store.usage(since=today - timedelta(days=1)) == times(1)
    days = await store.usage_by("day", until="2026-02-01")
    assert list(days) == ["1969-12-31", "2025-12-31", "2026-01-01", "2026-02-01"]
    assert set(map(repr, days.values())) == {repr(times(1))}
    assert await store.usage_by("agent", since="2026-01-01T23:00:00Z") == {"a": times(2), "b": times(1)}
    assert await store.usage_by("day", user_id="ann", since=date(2026, 1, 1), until=date(2026, 1, 1)) == {
        "2026-01-01": times(1)
    }
    # An edit counts on the day of its message.
    await store.update_message("c", answer("2", Usage(1)))
    assert await store.usage(until="2025-12-31", since="2025-12-31") == Usage(1)
    for wrong in ({"since": "tomorrow"}, {"until": object()}, {"user_id": 1.5}, {"agent_name": 3}):
        with pytest.raises(InvalidInputError):
            await store.usage(**wrong)
    with pytest.raises(InvalidInputError, match="group"):
        await store.usage_by("user")


@pytest.mark.proves("usage")
async def test_a_recount_gives_the_totals(stores: Any, full: bool) -> None:
    """A recount agrees with the totals after random operations of concurrent writers."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    one, other = stores(), stores()
    names, owners = ["c", "d", "e"], [None, 1, "1", "ann"]
    ids = [f"m{number}" for number in range(30)]
    for name in names:
        await one.create_conversation(Conversation(name, user_id=chance.choice(owners), agent_name="bot"))
    seen: dict[str, set[str]] = {name: set() for name in names}

    async def act(number: int) -> None:
        store, name = chance.choice([one, other]), chance.choice(names)
        some = [answer(each, Usage(len(each), ids.index(each), cost=0.1)) for each in chance.sample(ids, 3)]
        match chance.randrange(9):
            case 0 | 1 | 2:
                await store.append_many(name, some)
                seen[name] |= {message.id for message in some}
            case 3:
                await store.delete_messages(name, [message.id for message in some])
            case 4:
                await store.clear(name)
            case 5:
                await store.restore(name, some)
                seen[name] |= {message.id for message in some}
            case 6:
                await store.update_conversation(name, user_id=chance.choice(owners), agent_name=chance.choice("ab"))
            case 7:
                await store.fork(name, f"fork {number}")
                await store.delete_conversation(f"fork {number}")
            case 8:
                await store.append(name, user("hi"))

    for start in range(0, 600 if full else 90, 6):
        await asyncio.gather(*map(act, range(start, start + 6)))
    wanted: Counter[Any] = Counter()
    whole = Usage()
    for name in names:
        record = await one.get_conversation(name)
        total = sum((Usage(len(each), ids.index(each), cost=0.1) for each in sorted(seen[name])), Usage())
        assert (record.usage or Usage()) == total, seed
        whole += total
        wanted[record.user_id, type(record.user_id)] += total.output_tokens
    assert await other.usage() == whole
    for owner in owners[1:]:
        assert (await other.usage(user_id=owner)).output_tokens == wanted[owner, type(owner)], seed


@pytest.mark.smoke
async def test_an_export_brings_its_totals(stores: Any, tmp_path: Path) -> None:
    store = stores()
    await store.create_conversation(Conversation("c", user_id="ann", agent_name="bot"))
    await store.append_many("c", [answer("a", timestamp="2026-01-01"), answer("b"), user("q"), answer("d")])
    await store.compact("c", through="b", summary="x")
    await store.delete_messages("c", ["d"])
    await store.append_many("d", [user("without")])
    await store.fork("c", "f")
    path = tmp_path / "all.jsonl"
    await transfer(store, path, async_export_messages)
    other = stores.other() if stores.backend != "memory" else None
    if other is None:
        from redis_history import AsyncHistoryStore

        other = AsyncHistoryStore("memory://")
    async with other:
        await async_import_messages(path, other)
        assert await spent(other) == times(3) == await other.usage(user_id="ann", agent_name="bot")
        assert await other.usage(until="2026-01-01") == times(1)
        assert await spent(other, "d") is None
        await async_import_messages(path, other)  # again: nothing
        await other.append("c", answer("b2"))
        await other.append("c", answer("a"))  # archived: stored already
        assert await spent(other) == times(4) == await other.usage()
        await other.append("f", answer("n", Usage(1)))
        assert (await spent(other, "f"), await other.usage()) == (Usage(1), times(4) + Usage(1))


async def transfer(store: Any, path: Path, move: Any) -> None:
    """Also for a store with the synchronous face."""
    from redis_history.integrations.importers import export_messages

    if hasattr(store, "_target"):
        await asyncio.to_thread(export_messages, store._target, path)
    else:
        await move(store, path)


@pytest.mark.proves("erase-user")
async def test_erasing_a_user_removes_the_totals(store: Any) -> None:
    await store.create_conversation(Conversation("c", user_id="ann"))
    await store.create_conversation(Conversation("d", user_id="bob"))
    await store.append("c", answer("a"))
    await store.append("d", answer("a"))
    await store.set_budget("ann", cost=1)
    assert await store.erase_user("ann") == 1
    assert await store.usage(user_id="ann") == NOTHING
    assert await store.get_budget("ann") is None
    assert await store.usage(user_id="bob") == times(1)
    assert await store.usage() == times(2), "totals of all users name nobody"


async def test_usage_outlives_a_ttl_and_its_ids_do_not(stores: Any) -> None:
    store = stores(ttl=0.4)
    await store.create_conversation(Conversation("c", user_id="ann"))
    await store.append("c", answer("a"))

    async def over() -> bool:
        return await store.get_conversation("c") is None

    await until(over, "the end of the conversation")
    assert await store.usage(user_id="ann") == times(1)
    await store.append("c", answer("a"))
    assert await spent(store) == times(1)


# Budgets


@pytest.mark.smoke
@pytest.mark.proves("budgets")
async def test_a_used_up_budget_refuses_runs(stores: Any) -> None:
    store, other = stores(), stores()
    await store.create_conversation(Conversation("c", user_id="ann"))
    await store.set_budget("ann", tokens=250, cost=10, period="total", reserve=0)
    async with store.run("c") as run:
        await run.append(answer("a"))
    budget = await other.get_budget("ann")
    assert (budget.tokens, budget.cost, budget.period, budget.used) == (250, 10.0, "total", times(1))
    assert (budget.running, budget.resets_at, budget.exhausted) == (0, None, False)
    async with other.run("c") as run:
        await run.append_many([answer("b"), answer("d")])
    for one in (store, other):
        with pytest.raises(BudgetExceededError, match="330 of 250 tokens") as caught:
            async with one.run("c"):
                raise AssertionError
        assert caught.value.budget.exhausted
    assert (await store.get_run("c")).status == "completed", "no run began"
    await store.append("c", user("messages can be written"))
    async with store.run("nobody's"):
        pass
    await store.set_budget("ann", tokens=1000)
    budget = await store.get_budget("ann")
    assert (budget.cost, budget.period) == (None, "month")
    first = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert budget.resets_at in {(at + timedelta(days=32)).replace(day=1) for at in (first, first + timedelta(days=32))}
    async with store.run("c"):
        pass
    await store.set_budget("ann", cost=0.75)
    with pytest.raises(BudgetExceededError, match=r"a cost of 0.75 of 0.75 of this month"):
        async with store.run("c"):
            raise AssertionError
    await store.set_budget("ann")
    assert await store.get_budget("ann") is None
    async with store.run("c"):
        pass


@pytest.mark.smoke
@pytest.mark.proves("budgets")
async def test_requests_at_once_do_not_all_pass(stores: Any) -> None:
    """Each of many takes as much as it has reserved: together they do not exceed the limit."""
    openers = [stores() for _ in range(3)]
    store = openers[0]
    for number in range(15):
        await store.create_conversation(Conversation(f"c{number}", user_id="ann"))
    await store.set_budget("ann", tokens=1000, period="day", reserve=0.25)
    passed: list[int] = []
    refused: list[BudgetExceededError] = []
    done = asyncio.Event()

    async def request(number: int) -> None:
        try:
            async with openers[number % 3].run(f"c{number}") as run:
                passed.append(number)
                if len(passed) + len(refused) < 15:
                    await done.wait()
                await run.append(answer("a", Usage(200, 50)))
        except BudgetExceededError as error:
            refused.append(error)
        if len(refused) == 11:
            done.set()

    await asyncio.gather(*map(request, range(15)))
    assert len(passed) == 4
    for error in refused:
        assert (error.budget.running, error.budget.used, error.budget.exhausted) == (4, Usage(), True)
        assert "reserved" in str(error)
        assert "until" not in str(error), "it is free again when a run ends, not when the next day begins"
    assert (await store.usage(user_id="ann")).total_tokens == 1000
    budget = await store.get_budget("ann")
    assert (budget.running, budget.exhausted) == (0, True)


@pytest.mark.proves("budgets")
async def test_a_run_that_waited_is_judged_again(stores: Any) -> None:
    store, other = stores(), stores()
    await store.create_conversation(Conversation("c", user_id="ann"))
    await store.set_budget("ann", tokens=100, period="total")
    async with store.run("c") as run:
        waiting = asyncio.ensure_future(enter(other.run("c", wait=20)))

        async def waits() -> bool:
            return len((await store.get_run("c")).waiting) == 1

        await until(waits, "the other run to wait")
        await run.append(answer("a"))
    with pytest.raises(BudgetExceededError):
        await waiting
    assert (await store.get_budget("ann")).running == 0
    await store.set_budget("ann", tokens=10_000)
    async with store.run("c"):  # the refused one has left
        with pytest.raises(RunBusyError):
            await enter(other.run("c"))
    assert (await store.get_budget("ann")).running == 0, "a busy run reserves nothing"


@pytest.mark.proves("budgets")
async def test_a_long_run_keeps_its_reservation(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "RESERVED_SECONDS", 1.0)
    store, other = stores(), stores()
    for name in ("c", "d", "nobody's"):
        await store.create_conversation(Conversation(name, user_id=None if name == "nobody's" else "ann"))
    await store.set_budget("ann", tokens=1000, reserve=1.0)
    over = time.monotonic() + 1.3
    async with store.run("nobody's"), store.run("c") as run:
        await until(lambda: time.monotonic() > over, "the reservation to end without a renewal")
        assert (await other.get_budget("ann")).running == 1
        with pytest.raises(BudgetExceededError):
            await enter(other.run("d"))
    assert (await other.get_budget("ann")).running == 0
    assert (await execute(store, KeepBudget("ann", run.run_id))).running == 0, "a late renewal"


async def enter(run: Any) -> None:
    async with run:
        pass


async def test_late_copies_of_a_budget_change_nothing(store: Any) -> None:
    await store.create_conversation(Conversation("c", user_id="ann"))
    await store.set_budget("ann", tokens=5)
    from redis_history.values.usage import limits_of

    old = SetBudget("ann", limits_of(7, None, "day", 0.1))
    await execute(store, old)
    await store.set_budget("ann", tokens=9)
    if store.backend.__class__.__name__.endswith("RedisBackend"):  # memory executes a call once
        await execute(store, old)
    assert (await store.get_budget("ann")).tokens == 9
    stale = TakeBudget("ann", "r", 0, (0, 0, 0, 0))
    assert (await execute(store, stale)).what == "stale"
    assert (await store.get_budget("ann")).running == 0


async def test_owners_with_equal_texts_are_different(store: Any) -> None:
    await store.set_budget(1, tokens=0)
    await store.create_conversation(Conversation("c", user_id="1"))
    await store.create_conversation(Conversation("d", user_id=1))
    await enter(store.run("c"))
    with pytest.raises(BudgetExceededError):
        await enter(store.run("d"))


@pytest.mark.backends("memory")
async def test_wrong_budgets_are_refused(store: Any) -> None:
    wrong: list[dict[str, Any]] = [
        {"tokens": -1},
        {"tokens": 1.5},
        {"cost": float("nan")},
        {"cost": -0.1},
        {"cost": True},
        {"tokens": 1, "period": "week"},
        {"tokens": 1, "reserve": 1.1},
        {"tokens": 1, "reserve": "all"},
    ]
    for one in wrong:
        with pytest.raises(InvalidInputError, match="|".join(one)):
            await store.set_budget("ann", **one)
    for nobody in (None, 1.5):
        with pytest.raises(InvalidInputError, match="user_id"):
            await store.set_budget(nobody, tokens=1)
        with pytest.raises(InvalidInputError, match="user_id"):
            await store.get_budget(nobody)


@pytest.mark.backends("memory")
async def test_wrong_usage_is_refused(store: Any) -> None:
    wrong: list[Any] = [
        {"input_tokens": -1},
        {"output_tokens": 1.5},
        {"cached_tokens": True},
        {"input_tokens": 10**10},
        {"cost": -1},
        {"cost": float("inf")},
        {"cost": "1"},
        {"model": 1},
        {"tokens": 1},
        7,
        "usage",
    ]
    for one in wrong:
        with pytest.raises(InvalidMessageError):
            assistant("x", usage=one)
    for one in (Usage(-1), {"input_tokens": 1}, Usage(cost=float("nan"))):
        with pytest.raises(InvalidMessageError):
            await store.append("c", replace(assistant("x"), usage=one))
    assert await store.usage() == NOTHING
