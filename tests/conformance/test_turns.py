"""Turns: what a conversation is owed, and what other operations make of it. The workers are in test_workers.py."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redis_history import Conversation, Turn, TurnChanged, assistant, errors, system, user
from redis_history.store.memory.backend import AsyncMemoryBackend, MemoryBackend
from redis_history.store.operations import (
    ChangeTurns,
    Claim,
    CountTurns,
    EndRun,
    LeaveRun,
    LookForTurns,
    ReadTurns,
    RunOutcome,
    TakeRun,
    TakeSeat,
    TurnEnd,
)
from redis_history.store.operations.keys import Keyspace
from redis_history.values.ids import new_token
from tests.conformance.conftest import SOON, take
from tests.conformance.test_compaction import summary
from tests.conformance.test_stream import execute
from tests.conformance.test_transfer import exported, import_into
from tests.support.faults import lose_one_reply
from tests.support.servers import until

ATTEMPTS = 2


def claim(agent: str | None = None, queue: str = "", first: int = 0) -> Claim:
    return Claim(agent, ATTEMPTS, first, 1000, queue)


async def taken(store: Any, conversation_id: str = "c", agent: str | None = None, **options: Any) -> RunOutcome:
    """Take the turn of a conversation, as a worker does."""
    op = TakeRun(conversation_id, ((new_token(), agent),), False, claim=claim(agent, **options))
    outcome: RunOutcome = await execute(store, op)
    return outcome


async def ended(store: Any, run: RunOutcome, how: str = "done", *ids: str, status: str = "completed") -> bool:
    assert run.run is not None
    assert run.fence is not None
    op = EndRun(run.run.conversation_id, run.fence, status, turn=TurnEnd(how, ids))
    return bool((await execute(store, op)).done)


async def failed(store: Any, run: RunOutcome) -> None:
    assert await ended(store, run, "ValueError", status="failed")


async def turns(store: Any, conversation_id: str = "c") -> list[Turn]:
    """The turns of a conversation; lists show the same."""
    found: tuple[Turn, ...] = await execute(store, ReadTurns(conversation_id))
    listed = [turn for turn in await store.list_turns(limit=1000) if turn.conversation_id == conversation_id]
    assert sorted(listed, key=str) == sorted(found, key=str)
    return [*found]


async def statuses(store: Any, conversation_id: str = "c") -> list[str]:
    return [turn.status for turn in await turns(store, conversation_id)]


async def due(store: Any, agent: str | None = None) -> list[str]:
    """The conversations whose turns a worker finds."""
    look = await execute(store, LookForTurns(agent))
    return [candidate.conversation_id for candidate in look.candidates]


async def asked(store: Any, status: str, agent: str | None = None) -> Any:
    """Have a turn of this status for the message "q" of the conversation "c". Returns its run, if it is running."""
    await store.append_many("c", [user("first", id="a"), assistant("second", id="b")])
    await store.ask("c", user("question", id="q"), agent_name=agent)
    if status == "running":
        return await taken(store, agent=agent)
    if status == "waiting":
        await ended(store, await taken(store, agent=agent), "wait")
    if status == "parked":
        for _ in range(ATTEMPTS):
            await failed(store, await taken(store, agent=agent))
    assert await statuses(store) == [status]
    return None


# Questions


@pytest.mark.smoke
async def test_a_question_is_owed_until_it_is_answered(stores: Any) -> None:
    store, other = stores(), stores()
    before = datetime.now(UTC) - timedelta(seconds=5)
    done = await store.ask("c", user("Where is it?", id="q"))
    assert (done.revision, done.duplicate, done.message.id) == (1, False, "q")
    [turn] = await turns(other)
    assert (turn.conversation_id, turn.status, turn.attempt, turn.agent_name) == ("c", "owed", 0, None)
    assert (turn.message_ids, turn.error, turn.failed_at, turn.run_id) == (("q",), None, None, None)
    assert before < turn.asked_at <= turn.due_at
    assert await due(other) == ["c"]
    run = await taken(other)
    assert run.turn is not None
    assert run.run is not None
    assert (run.turn.turn.attempt, run.turn.turn.message_ids) == (1, ("q",))
    [turn] = await turns(store)
    assert (turn.status, turn.attempt, turn.run_id) == ("running", 1, run.run.run_id)
    assert await due(store) == []
    assert (await taken(store)).fence is None
    assert await ended(other, run)
    assert await turns(store) == []
    assert await due(store) == []
    assert await execute(store, CountTurns()) == 0


async def test_a_message_that_is_stored_already_opens_no_turn(store: Any) -> None:
    await store.ask("c", user("x", id="q"))
    assert (await store.ask("c", user("x", id="q"))).duplicate
    assert [turn.message_ids for turn in await turns(store)] == [("q",)]
    await ended(store, await taken(store))
    assert (await store.ask("c", user("x", id="q"))).duplicate
    with pytest.raises(errors.MessageConflictError):
        await store.ask("c", user("y", id="q"))
    assert await turns(store) == []


async def test_questions_join_the_turn_until_it_begins(store: Any) -> None:
    await store.ask("c", user("1", id="1"))
    await store.append("c", user("not a question", id="x"))
    await store.ask("c", user("2", id="2"))
    run = await taken(store)
    assert run.turn is not None
    assert run.turn.turn.message_ids == ("1", "2")
    await store.ask("c", user("3", id="3"))
    await store.ask("c", user("4", id="4"))
    assert await due(store) == []
    assert await ended(store, run, "done", "3")  # the run has taken up 3
    [turn] = await turns(store)
    assert (turn.status, turn.attempt, turn.message_ids) == ("owed", 0, ("4",))
    assert await due(store) == ["c"]


async def test_each_agent_has_its_own_turn(store: Any) -> None:
    await store.ask("c", user("1", id="1"), agent_name="a")
    await store.ask("c", user("2", id="2"), agent_name="b")
    assert [turn.agent_name for turn in await store.list_turns(agent_name="b")] == ["b"]
    assert (await due(store), await due(store, "a"), await due(store, "b")) == ([], ["c"], ["c"])
    assert (await taken(store)).fence is None
    run = await taken(store, agent="a")
    assert (await taken(store, agent="b")).fence is None  # one run of a conversation at a time
    assert await due(store, "b") == []
    await ended(store, run)
    assert await due(store, "b") == ["c"]
    run = await taken(store, agent="b")
    assert run.turn is not None
    assert run.turn.turn.message_ids == ("2",)
    assert await store.drop_turn("c", agent_name="a") is False
    await ended(store, run)
    assert await turns(store) == []


async def test_at_most_64_agents_owe_an_answer(store: Any) -> None:
    for number in range(64):
        await store.ask("c", user(str(number)), agent_name=str(number))
    with pytest.raises(errors.ConflictError, match="64 agents"):
        await store.ask("c", user("one more", id="more"), agent_name="more")
    assert await store.get_message("c", "more") is None
    await store.ask("c", user("again"), agent_name="3")
    assert len(await turns(store)) == 64


async def test_a_long_queue_keeps_the_newest_ids(store: Any) -> None:
    for number in range(258):
        await store.ask("c", user("x", id=str(number)))
    [turn] = await turns(store)
    assert turn.message_ids == tuple(map(str, range(2, 258)))
    await ended(store, await taken(store))
    assert await turns(store) == []


@pytest.mark.backends("plain")
async def test_a_wakeup_from_now_is_due_by_the_servers_clock(
    store: Any, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the clock of the caller is an hour behind or ahead."""
    now = time.time

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(time.time(), tz)

    for off in (-3600, 3600):
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda off=off: now() + off)
            patched.setattr(f"redis_history.store._{face}.asking.datetime", Wrong, raising=False)
            await store.ask("c", user("x"), at=timedelta(minutes=1))
        [turn] = await turns(store)
        assert timedelta(minutes=1) <= turn.due_at - turn.asked_at < timedelta(minutes=1, seconds=1)
        await store.drop_turn("c")


async def test_a_wakeup_is_due_in_the_future(store: Any) -> None:
    await store.ask("c", system("Look again.", id="w"), at=timedelta(hours=1))
    await store.ask("d", system("Now.", id="w"), at="2020-01-01")
    assert await due(store) == ["d"]
    assert (await taken(store)).fence is None
    [turn] = await turns(store)
    assert timedelta(minutes=59) < turn.due_at - datetime.now(UTC) < timedelta(minutes=61)
    await store.ask("c", user("Now!", id="q"))
    run = await taken(store)
    assert run.turn is not None
    assert run.turn.turn.message_ids == ("q",)
    await ended(store, run, "done", "w")  # seen, but asked for later
    [turn] = await turns(store)
    assert (turn.status, turn.message_ids) == ("owed", ("w",))
    assert turn.due_at > datetime.now(UTC) + timedelta(minutes=59)
    look = await execute(store, LookForTurns(None))
    assert [one.conversation_id for one in look.candidates] == ["d"]
    assert any(3000 < seconds < 3700 for seconds in look.next_in.values())
    assert await store.retry_turn("c")
    assert sorted(await due(store)) == ["c", "d"]


@pytest.mark.backends("memory")
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"agent_name": ""}, "agent_name"), ({"agent_name": 1}, "agent_name"), ({"at": "soon"}, "soon"),
        ({"at": object()}, "object"), ({"agent_name": "\ud800"}, "agent_name"),
    ],
)  # fmt: skip
async def test_wrong_arguments_of_ask(store: Any, arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(errors.InvalidInputError, match=name):
        await store.ask("c", user("x"), **arguments)
    assert await store.get_conversation("c") is None


@pytest.mark.backends("memory")
async def test_wrong_arguments_of_lists(store: Any) -> None:
    for arguments in ({"status": "done"}, {"limit": 0}, {"user_id": 1.5}, {"agent_name": ""}):
        with pytest.raises(errors.InvalidInputError, match=next(iter(arguments))):
            await store.list_turns(**arguments)
    with pytest.raises(errors.InvalidConversationIdError):
        await store.retry_turn("")
    with pytest.raises(errors.InvalidConversationIdError):
        await store.drop_turn("")


# Attempts


async def test_a_failed_attempt_is_repeated_after_a_pause_and_then_parked(store: Any) -> None:
    await store.ask("c", user("x", id="q"))
    run = await taken(store, first=200)
    await failed(store, run)
    [turn] = await turns(store)
    assert (turn.status, turn.attempt, turn.error) == ("owed", 1, "ValueError")
    assert turn.failed_at is not None
    assert timedelta(seconds=0.15) < turn.due_at - turn.failed_at < timedelta(seconds=0.25)
    assert (await taken(store)).fence is None

    async def again() -> RunOutcome | None:
        run = await taken(store)
        return run if run.fence is not None else None

    second = await until(again, "the second attempt")
    assert second.turn.turn.attempt == 2
    await failed(store, second)
    [turn] = await turns(store)
    assert (turn.status, turn.attempt, turn.error) == ("parked", 2, "ValueError")
    assert await due(store) == []
    assert await execute(store, CountTurns(open=False)) == 1
    assert await store.list_turns(status="parked") == [turn]
    assert await store.list_turns(status="owed") == []
    assert await store.retry_turn("c")
    third = await taken(store)
    assert third.turn is not None
    assert third.turn.turn.attempt == 3
    await failed(store, third)
    assert await statuses(store) == ["owed"]  # it may fail as often as a new one


async def test_a_worker_that_stops_gives_its_turn_back(store: Any) -> None:
    await store.ask("c", user("x"))
    for attempt in range(1, 2 * ATTEMPTS):
        run = await taken(store)
        assert run.turn is not None
        assert run.turn.turn.attempt == attempt
        await ended(store, run, "back", status="interrupted")
    [turn] = await turns(store)
    assert (turn.status, turn.error) == ("owed", None)
    assert await due(store) == ["c"]


async def test_an_attempt_that_waits_for_reservations_does_not_count(store: Any) -> None:
    """Workers leave the owner's other turns alone, too."""
    first, second = [name for name in map(str, range(2000)) if Keyspace.bucket_of(name) == 3][:2]
    for name, owner in ((first, "u"), (second, "u"), ("of another", "v")):
        await store.create_conversation(Conversation(name, user_id=owner))
        await store.ask(name, user("x"))
    for attempt, error in ((0, None), (0, None), (1, "ValueError"), (1, "ValueError")):
        run = await taken(store, first)
        assert run.turn is not None
        if run.turn.turn.error is None and attempt:
            await failed(store, run)
            run = await taken(store, first)
        assert await ended(store, run, "later", status="failed")
        [turn] = await turns(store, first)
        assert (turn.status, turn.attempt, turn.error) == ("owed", attempt, error)
        assert (await taken(store, first)).turn is None
        assert await due(store) == ["of another"]
        assert await store.retry_turn(first)


async def test_a_worker_that_left_before_it_knew_its_turn_gives_it_back(store: Any) -> None:
    await store.ask("c", user("x"))
    op = TakeRun("c", ((new_token(), None),), False, claim=claim())
    await execute(store, op)
    await execute(store, LeaveRun("c", (op.callers[0][0],)))
    assert await statuses(store) == ["owed"]
    assert (await execute(store, op)).fence is None  # a late copy
    assert await statuses(store) == ["owed"]


async def test_a_run_of_others_delays_the_turn(store: Any) -> None:
    async with store.run("c") as run:
        await store.ask("c", user("x"))
        assert (await taken(store)).fence is None
        assert await due(store) == []
        assert run.turn is None
    assert await due(store) == ["c"]
    assert (await taken(store)).fence is not None


async def test_a_stopped_answer_closes_the_turn(store: Any) -> None:
    await store.ask("c", user("x"))
    run = await taken(store)
    assert await store.stop_run("c")
    assert not await ended(store, run)
    assert await ended(store, run, status="stopped")
    assert await turns(store) == []


async def test_a_repeated_claim_gets_the_same_turn(store: Any) -> None:
    await store.ask("c", user("x", id="q"))
    op = TakeRun("c", ((new_token(), None),), False, claim=claim())
    first, second = await execute(store, op), await execute(store, op)
    assert (first.fence, first.turn) == (second.fence, second.turn)
    assert first.turn.turn.message_ids == ("q",)
    await ended(store, first)
    assert (await execute(store, op)).fence is None


# Owners


async def test_turns_of_an_owner(store: Any) -> None:
    for name, owner in (("c", "u1"), ("d", "u1"), ("e", 1), ("f", None)):
        await store.create_conversation(Conversation(name, user_id=owner))
        await store.ask(name, user("x"))
    assert [turn.conversation_id for turn in await store.list_turns(user_id="u1")] == ["c", "d"]
    assert [turn.conversation_id for turn in await store.list_turns(user_id=1)] == ["e"]
    assert len(await store.list_turns(limit=3)) == 3
    left = {"c", "d", "e", "f"}
    while left:
        look = await execute(store, LookForTurns(None))
        for candidate in look.candidates:
            run = await taken(store, candidate.conversation_id, queue=candidate.queue)
            assert run.fence is not None
            await ended(store, run)
            left.remove(candidate.conversation_id)
    assert await store.list_turns() == []


async def test_lists_have_the_oldest_questions_first(store: Any) -> None:
    names = [name for name in map(str, range(2000)) if Keyspace.bucket_of(name) in (3, 4)][:12]
    for name in names:
        await store.create_conversation(Conversation(name, user_id=names.index(name) % 3))
        await store.ask(name, user("x", id="q"))
        await until_later(store)
    for limit in (1, 3, 5, 12, 20):
        assert [turn.conversation_id for turn in await store.list_turns(limit=limit)] == names[:limit]
        found = await store.list_turns(limit=limit, user_id=2)
        assert [turn.conversation_id for turn in found] == names[2::3][:limit]
    for name in names[:7]:
        await store.delete_messages(name, ["q"])
    for _ in range(2):  # the first one removes what is out of date
        assert [turn.conversation_id for turn in await store.list_turns(limit=2)] == names[7:9]


async def until_later(store: Any) -> None:
    """Return in another millisecond."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= now:
        await asyncio.sleep(0)


async def test_owners_of_a_bucket_take_turns(store: Any) -> None:
    names = [name for name in map(str, range(2000)) if Keyspace.bucket_of(name) == 7][:8]
    for name in names:
        await store.create_conversation(Conversation(name, user_id="many" if name != names[-1] else "one"))
    for name in names:
        await store.ask(name, user("x"))
    order = []
    for _ in range(3):
        look = await execute(store, LookForTurns(None))
        # The memory backend leaves it to workers to choose among all turns.
        first = min(look.candidates, key=lambda one: (one.due, names.index(one.conversation_id)))
        run = await taken(store, first.conversation_id, queue=first.queue)
        assert run.fence is not None
        order.append(first.conversation_id)
    assert names[-1] in order  # the owner of many has three turns that are due before, or at the same millisecond


async def test_seats_are_limited_and_expire(store: Any) -> None:
    async def seat(run_id: str, most: int = 2, seconds: float = 60.0) -> Any:
        return await execute(store, TakeSeat("a", "u1", run_id, most, seconds))

    assert [await seat("1"), await seat("2"), await seat("3"), await seat("1")] == [True, True, False, True]
    assert await seat("1", 0) is False
    assert await seat("3", seconds=0.05) is True

    async def expired() -> Any:
        return await seat("4")

    await until(expired, "the seat to expire")
    assert await execute(store, TakeSeat("b", "u1", "5", 1, 60.0))
    assert await execute(store, TakeSeat("a", "u2", "6", 1, 60.0))


# The effects of other operations on a turn

#: A call of others on the conversation "c" with the messages "a", "b" and the question "q", and the status of the turn
#: afterwards, by its status before: None for none.
SAME = {status: status for status in ("owed", "running", "waiting", "parked")}
NONE = dict.fromkeys(SAME)
OPERATIONS: dict[str, tuple[Callable[[Any], Any], dict[str, str | None]]] = {
    "append": (lambda store: store.append("c", user("new")), SAME),
    "append_many": (lambda store: store.append_many("c", [user("new"), user("new")]), SAME),
    "ask": (lambda store: store.ask("c", user("new", id="n")), {**SAME, "waiting": "owed", "parked": "owed"}),
    "ask for later": (
        lambda store: store.ask("c", user("new", id="n"), at=timedelta(hours=1)),
        {**SAME, "waiting": "owed", "parked": "owed"},
    ),
    "stream": (lambda store: reply(store), SAME),
    "update_message": (lambda store: store.update_message("c", user("edited", id="q")), SAME),
    "pin": (lambda store: store.pin("c", "q"), SAME),
    "delete_messages": (lambda store: store.delete_messages("c", ["a", "b"]), SAME),
    "delete_messages of the question": (lambda store: store.delete_messages("c", ["q"]), NONE),
    "erase of the question": (lambda store: store.erase("c", ["q"]), NONE),
    "erase": (lambda store: store.erase("c"), NONE),
    "clear": (lambda store: store.clear("c"), NONE),
    "restore": (lambda store: store.restore("c", [user("new")]), NONE),
    "delete_messages, then the question again": (lambda store: and_again(store, store.delete_messages, ["q"]), NONE),
    "erase, then the question again": (lambda store: and_again(store, store.erase), NONE),
    "clear, then the question again": (lambda store: and_again(store, store.clear), NONE),
    "restore, then the question again": (lambda store: and_again(store, store.restore, []), NONE),
    "restore with the question": (lambda store: store.restore("c", [user("question", id="q")]), SAME),
    "compact": (lambda store: store.compact("c", through="q", summary=summary(id="s")), SAME),
    "expand": (lambda store: compact_and_expand(store), SAME),
    "fork": (lambda store: store.fork("c", "d"), SAME),
    "update_conversation": (lambda store: store.update_conversation("c", user_id="u9", agent_name="z"), SAME),
    "retry_turn": (lambda store: store.retry_turn("c"), {**dict.fromkeys(SAME, "owed"), "running": "running"}),
    "retry_turn of another agent": (lambda store: store.retry_turn("c", agent_name="z"), SAME),
    "drop_turn": (lambda store: store.drop_turn("c"), {**NONE, "running": "running"}),
    "drop_turn of another agent": (lambda store: store.drop_turn("c", agent_name="z"), SAME),
    "wait": (
        lambda store: execute(store, ChangeTurns("c", "wait")),
        {**dict.fromkeys(SAME, "waiting"), "running": "running"},
    ),
    "stop_run": (lambda store: store.stop_run("c"), SAME),
    "erase_user": (lambda store: own_and_erase(store), NONE),
    "delete_conversation": (lambda store: store.delete_conversation("c"), NONE),
    "delete and begin again": (lambda store: delete_and_append(store), NONE),
}


async def reply(store: Any) -> None:
    async with store.stream("c") as one:
        await one.write("x")


async def and_again(store: Any, remove: Callable[..., Any], *arguments: Any) -> None:
    """Remove the question, and store it again as a message that asks nothing."""
    await remove("c", *arguments)
    await store.append("c", user("question", id="q"))


async def compact_and_expand(store: Any) -> None:
    await store.compact("c", through="q", summary=summary(id="s"))
    await store.expand("c", "s")


async def own_and_erase(store: Any) -> None:
    await store.update_conversation("c", user_id="u1")
    await store.erase_user("u1")


async def delete_and_append(store: Any) -> None:
    await store.delete_conversation("c")
    await store.append("c", user("x", id="q"))


@pytest.mark.parametrize("status", SAME)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_operations_of_others(stores: Any, name: str, status: str) -> None:
    store, other = stores(), stores()
    run = await asked(store, status)
    call, after = OPERATIONS[name]
    await call(other)
    wanted = after[status]
    if name == "retry_turn of another agent":  # the newest question of a user, for that agent
        assert await statuses(store) == [status, "owed"]
        assert await store.drop_turn("c", agent_name="z")
    assert await statuses(store) == ([] if wanted is None else [wanted])
    later = name == "ask for later" and status != "owed"
    assert await due(store) == (["c"] if wanted == "owed" and not later else [])
    if name == "fork":
        assert await turns(store, "d") == []
    if run is not None:
        done = await ended(store, run, status="stopped")
        assert done is not (name in ("erase_user", "delete_conversation", "delete and begin again"))
        assert await statuses(store) == (["owed"] if name in ("ask", "ask for later") else [])
    await _nothing_is_left(stores, store)


async def _nothing_is_left(stores: Any, store: Any) -> None:
    """When all turns are answered or dropped, and a worker and a list have looked, no key of turns exists."""
    for turn in await store.list_turns():
        await store.drop_turn(turn.conversation_id)
    for name in await due(store):
        assert (await taken(store, name)).fence is None
    assert await store.list_turns() == []
    assert await due(store) == []
    if stores.backend not in ("memory", "cluster"):
        kinds = Keyspace(store.namespace).patterns[0]
        found = await execute_keys(store, kinds)
        assert [key for key in found if key.split(b"}:")[1].split(b":")[0] in (b"q", b"h", b"k")] == []


async def execute_keys(store: Any, pattern: bytes) -> list[bytes]:
    backend = store._target.backend if hasattr(store, "_target") else store.backend
    if hasattr(store, "_target"):
        replies = backend.ask([[b"KEYS", pattern]])
    else:
        replies = await backend.ask([[b"KEYS", pattern]])
    return [key for [keys] in replies for key in keys]


async def test_an_expired_conversation_is_owed_nothing(stores: Any) -> None:
    short, store = stores(ttl=0.05), stores()
    await short.ask("c", user("x"))

    async def gone() -> bool:
        return await store.get_conversation("c") is None

    await until(gone, "the conversation to expire")
    assert await turns(store) == []
    for name in await due(store):
        assert (await taken(store, name)).fence is None
    await _nothing_is_left(stores, store)


async def test_a_cap_that_removes_the_question_ends_the_turn(stores: Any) -> None:
    store = stores(max_messages=2)
    await store.ask("c", user("x"))
    await store.append_many("c", [user("1"), user("2")])
    assert await turns(store) == []
    assert (await taken(store)).fence is None
    await _nothing_is_left(stores, store)


async def test_a_wakeup_waits_for_its_time_when_the_question_is_gone(store: Any) -> None:
    await store.ask("c", user("now", id="q"))
    await store.ask("c", user("wake up", id="w"), at=timedelta(hours=1))
    assert await due(store) == ["c"]
    await store.delete_messages("c", ["q"])
    [turn] = await turns(store)
    assert turn.due_at > datetime.now(UTC) + timedelta(minutes=50)
    assert (await taken(store)).turn is None
    assert await due(store) == []


async def test_a_question_after_a_removal_begins_anew(store: Any) -> None:
    await store.ask("c", user("x", id="q"))
    await failed(store, await taken(store, first=60_000))
    await store.clear("c")
    await store.ask("c", user("y", id="r"))
    [turn] = await turns(store)
    assert (turn.status, turn.message_ids, turn.attempt, turn.error) == ("owed", ("r",), 0, None)
    assert (await taken(store)).turn is not None


async def test_an_import_owes_nothing(store: Any, tmp_path: Path) -> None:
    await asked(store, "owed")
    path = tmp_path / "export.jsonl"
    await exported(store, path)
    await store.delete_conversation("c")
    await import_into(store, path)
    assert len(await store.get("c")) == 3
    assert await turns(store) == []


async def test_without_a_turn_a_retry_asks_the_newest_message_of_a_user_again(store: Any) -> None:
    assert not await store.retry_turn("c")
    await store.append("c", assistant("x"))
    assert not await store.retry_turn("c")
    await store.append_many("c", [user("1", id="1"), user("2", id="2"), assistant("3", id="3")])
    assert await store.retry_turn("c", agent_name="a")
    [turn] = await turns(store)
    assert (turn.status, turn.message_ids, turn.agent_name) == ("owed", ("2",), "a")
    with pytest.raises(errors.MessageNotFoundError):
        await execute(store, ChangeTurns("c", "open", None, False, 0, ("unknown",)))


async def test_a_drop_takes_what_came_during_the_answer(store: Any) -> None:
    """It would be the next turn, which a stop of the run does not end."""
    await store.ask("c", user("1", id="1"))
    run = await taken(store)
    assert not await store.drop_turn("c")
    await store.ask("c", user("2", id="2"))
    assert not await store.drop_turn("c", agent_name="a")
    assert [turn.message_ids for turn in await turns(store)] == [("1", "2")]
    assert await store.drop_turn("c")
    assert [(turn.status, turn.message_ids) for turn in await turns(store)] == [("running", ("1",))]
    assert await ended(store, run)
    assert await turns(store) == []


async def test_calls_for_unknown_conversations(store: Any) -> None:
    assert not await store.retry_turn("c")
    assert not await store.drop_turn("c")
    assert await turns(store) == []
    assert await store.get_conversation("c") is None


@pytest.mark.backends("redis", "cluster")
async def test_a_lost_reply_changes_nothing_twice(stores: Any, face: str) -> None:
    if face == "sync" or stores.backend == "cluster":
        return
    store = stores()
    await store.append("c", user("0"))
    lose_one_reply(store)
    await store.ask("c", user("x", id="q"))
    assert [turn.message_ids for turn in await turns(store)] == [("q",)]
    lose_one_reply(store)
    assert await store.drop_turn("c")
    lose_one_reply(store)
    assert await store.retry_turn("c")
    assert [turn.message_ids for turn in await turns(store)] == [("q",)]
    lose_one_reply(store)
    run = await taken(store)
    assert run.turn is not None
    assert run.turn.turn.attempt == 1
    lose_one_reply(store)
    await ended(store, run)
    assert await turns(store) == []


# Events


@pytest.mark.smoke
@pytest.mark.full
async def test_subscribers_see_turns(store: Any) -> None:
    await store.append("c", user("0", id="0"))
    subscription = store.subscribe("c")
    await subscription.open()
    await store.ask("c", user("x", id="q"))
    [appended, owed] = await take(subscription, 2)
    assert isinstance(owed, TurnChanged)
    assert ([turn.status for turn in owed.turns], owed.revision) == (["owed"], appended.revision)
    run = await taken(store)

    async def seen(status: list[str]) -> None:
        async def next_of() -> bool:
            event = await subscription.get(timeout=SOON)
            return isinstance(event, TurnChanged) and [turn.status for turn in event.turns] == status

        await until(next_of, status)

    await seen(["running"])
    await ended(store, run, "wait")
    await seen(["waiting"])
    late = store.subscribe("c")
    await late.open()
    first = await late.get(timeout=SOON)
    assert isinstance(first, TurnChanged)
    assert [turn.status for turn in first.turns] == ["waiting"]
    await store.retry_turn("c")
    await seen(["owed"])
    await store.delete_messages("c", ["q"])
    await seen([])
    await store.ask("c", user("x"))
    await seen(["owed"])
    await store.drop_turn("c")
    await seen([])
    await subscription.aclose()
    await late.aclose()


async def test_subscribers_to_all_conversations_see_turns(store: Any) -> None:
    subscription = store.subscribe_all()
    await subscription.open()
    await store.ask("c", user("x"))

    async def seen(status: list[str]) -> None:
        async def next_of() -> bool:
            event = await subscription.get(timeout=SOON)
            return isinstance(event, TurnChanged) and [turn.status for turn in event.turns] == status

        await until(next_of, status)

    await seen(["owed"])
    run = await taken(store)
    await seen(["running"])
    await ended(store, run)
    await seen([])
    await subscription.aclose()


@pytest.mark.backends("memory")
async def test_the_memory_backend_notices_a_dead_worker(store: Any) -> None:
    """A run that expires fails the attempt, whichever call notices it."""
    await store.ask("c", user("x"))
    run = await taken(store)
    assert run.fence is not None
    backend: Any = store._target.backend if hasattr(store, "_target") else store.backend
    memory: MemoryBackend = backend._memory if isinstance(backend, AsyncMemoryBackend) else backend
    memory._space.runs["c", "run"].run.expires = 0.0  # type: ignore[union-attr]
    await store.get_run("c")
    [turn] = await turns(store)
    assert (turn.status, turn.error, turn.attempt) == ("owed", "WorkerDied", 1)
    with contextlib.suppress(errors.RunLostError):
        await ended(store, run)
    assert await statuses(store) == ["owed"]
