"""Turns that wait for the approval of a call: the decision owes them again."""

from datetime import timedelta
from typing import Any

import pytest

from redis_history import Conversation, Usage, assistant, errors, tool, tool_result, user
from tests.conformance.test_approvals import asking, open_calls
from tests.conformance.test_turns import ended, statuses, taken, turns
from tests.conformance.test_workers import until_answered, worker_of, working
from tests.support.servers import until


async def _waiting(store: Any, *calls: str) -> Any:
    """Have a turn whose answer has asked for the approval of calls. Returns its run."""
    await store.ask("c", user("pay", id="q"))
    run = await taken(store)
    await store.append_many("c", [asking(call, id=f"m-{call}") for call in calls])
    assert await ended(store, run)
    assert await statuses(store) == ["waiting"]
    return run


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.proves("approvals")
async def test_a_decision_owes_the_turn_again(store: Any, approved: bool) -> None:
    await store.create_conversation(Conversation("c", user_id="ann"))
    await _waiting(store, "c1", "c2")
    await store.decide("c", "c1", approved)
    assert await statuses(store) == ["waiting"], "another call waits"
    await store.decide("c", "c2", True)
    [turn] = await turns(store)
    assert (turn.status, turn.message_ids, turn.attempt) == ("owed", ("q",), 1)
    run = await taken(store)
    assert run.turn.turn.attempt == 2
    await store.append("c", assistant("done"))
    assert await ended(store, run)
    assert await statuses(store) == []


@pytest.mark.parametrize("act", ["result", "deletion", "edit", "clear", "restore", "compaction"])
async def test_without_open_calls_a_turn_is_owed_again(store: Any, act: str) -> None:
    await _waiting(store, "c1")
    match act:
        case "result":
            await store.append("c", tool(tool_result("c1", "done")))
        case "deletion":
            await store.delete_messages("c", ["m-c1"])
        case "edit":
            await store.update_message("c", assistant("no", id="m-c1"))
        case "clear":
            await store.clear("c")
        case "restore":
            await store.restore("c", [user("pay", id="q"), asking("c1")])
        case "compaction":
            await store.append("c", user("more", id="z"))
    expected = {"clear": [], "compaction": ["waiting"], "restore": ["waiting"]}
    assert await statuses(store) == expected.get(act, ["owed"])


@pytest.mark.parametrize("agent", [None, "b"])
async def test_a_question_that_answers_the_last_open_call(store: Any, agent: str | None) -> None:
    """One call changes the approvals, the turns and the usage."""
    await store.create_conversation(Conversation("c", user_id="ann"))
    await _waiting(store, "c1")
    await store.ask("c", tool(tool_result("c1", "done"), id="r", usage=Usage(3, 1)), agent_name=agent)
    found = {turn.agent_name: (turn.status, turn.message_ids) for turn in await turns(store)}
    assert found == ({None: ("owed", ("q", "r"))} if agent is None else {None: ("owed", ("q",)), "b": ("owed", ("r",))})
    assert await store.list_approvals() == []
    assert (await store.usage(user_id="ann")).total_tokens == 4


@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_before_the_attempt_ends_owes_the_turn_again(store: Any, approved: bool) -> None:
    """The attempt does not know the decision."""
    await store.ask("c", user("pay", id="q"))
    run = await taken(store)
    await store.append("c", asking("c1"))
    await store.decide("c", "c1", approved)
    assert await statuses(store) == ["running"]
    await store.append("c", assistant("I have asked for approval."))
    assert await ended(store, run)
    [turn] = await turns(store)
    assert (turn.status, turn.message_ids) == ("owed", ("q",))
    assert await ended(store, await taken(store))
    assert await statuses(store) == []


async def test_an_attempt_that_answers_its_own_request_is_not_repeated(stores: Any) -> None:
    store, attempts = stores(), []

    async def answer(run: Any) -> None:
        attempts.append(run.turn.attempt)
        await run.append(asking("c1"))
        await run.append(tool(tool_result("c1", "not needed")))

    async with working(worker_of(store, answer)):
        await stores().ask("c", user("pay", id="q"))
        await until_answered(store)
    assert attempts == [1]


async def test_a_decision_during_the_answer_of_another_agent_repeats_nothing(store: Any) -> None:
    await _waiting(store, "c1")
    await store.ask("c", user("and you?", id="q2"), agent_name="b")
    run = await taken(store, agent="b")
    await store.decide("c", "c1", True)
    assert await ended(store, run)
    assert [(turn.agent_name, turn.status) for turn in await turns(store)] == [(None, "owed")]


async def test_a_decision_does_not_wait_for_a_wakeup(store: Any) -> None:
    await _waiting(store, "c1")
    await store.ask("c", user("wake up", id="w"), at=timedelta(hours=1))
    assert (await taken(store)).turn is None
    await store.decide("c", "c1", True)
    run = await taken(store)
    assert run.turn.turn.message_ids == ("q",)
    assert await ended(store, run)
    [turn] = await turns(store)
    assert (turn.status, turn.message_ids) == ("owed", ("w",))


async def test_a_request_is_not_given_up_by_a_later_answer(store: Any) -> None:
    """So it is in no archive, where nobody could decide it."""
    await _waiting(store, "c1")
    await store.ask("c", user("any news?", id="q2"))
    run = await taken(store)
    await store.append("c", assistant("Not yet.", id="a2"))
    assert await ended(store, run)
    with pytest.raises(errors.TornPairError):
        await store.compact("c", through="a2", summary="They talked.")
    assert await open_calls(store) == [("c", "c1")]
    assert (await store.decide("c", "c1", True)).approved
    await store.compact("c", through="a2", summary="They talked.")


async def test_requests_of_other_answers_keep_no_turn(store: Any) -> None:
    await store.append("c", asking("before"))
    await store.ask("c", user("hello", id="q"))
    run = await taken(store)
    await store.append("c", assistant("hello"))
    assert await ended(store, run)
    assert await statuses(store) == []
    assert await open_calls(store) == [("c", "before")]


async def test_a_further_question_owes_a_waiting_turn(store: Any) -> None:
    await _waiting(store, "c1")
    await store.ask("c", user("never mind", id="q2"))
    [turn] = await turns(store)
    assert (turn.status, turn.message_ids) == ("owed", ("q", "q2"))
    await store.decide("c", "c1", False)
    assert await statuses(store) == ["owed"]


@pytest.mark.smoke
async def test_a_worker_goes_on_after_the_decision(stores: Any) -> None:
    store = stores()

    async def answer(run: Any) -> None:
        [message] = [one for one in await store.get("c") if one.tool_uses] or [None]
        if message is None:
            await run.append(asking("c1"))
        elif message.parts[0].provider_meta["approval"]["approved"]:
            await run.append(tool(tool_result("c1", "paid")))
            await run.append(assistant("It is paid."))

    if getattr(store, "_target", None) is not None:
        source = store._target

        async def answer(run: Any) -> None:  # type: ignore[no-redef]
            found = [one for one in source.get("c") if one.tool_uses]
            if not found:
                await run.append(asking("c1"))
            elif found[0].parts[0].provider_meta["approval"]["approved"]:
                await run.append(tool(tool_result("c1", "paid")))
                await run.append(assistant("It is paid."))

    async with working(worker_of(store, answer)):
        await stores().ask("c", user("pay", id="q"))

        async def waits() -> bool:
            return [one.status for one in await store.list_turns()] == ["waiting"]

        await until(waits, "the turn to wait")
        await stores().decide("c", "c1", True, by="boss")

        async def is_done() -> bool:
            return not await store.list_turns()

        await until(is_done, "the answer")
    assert [one.text for one in await store.get("c")][-1] == "It is paid."
