"""Runs: one agent at a time works on a conversation, anyone can stop it, and everyone sees who works."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from redis_history import Conversation, RunChanged, assistant, errors, text, tool_use, user
from redis_history.integrations.importers import async_export_messages, async_import_messages
from redis_history.store.operations import Append, EndRun, LeaveRun, ReadHead, StopRun, TakeRun
from tests.conformance.conftest import SOON, is_gone
from tests.conformance.test_stream import execute
from tests.support.faces import act_after, open_store
from tests.support.servers import until


async def until_waiting(store: Any, count: int) -> None:
    async def enough() -> bool:
        info = await store.get_run("c")
        return info is not None and len(info.waiting) == count

    await until(enough, f"{count} waiting")


async def lose(store: Any, run: Any) -> None:
    """Take the run away from its holder, as if it had expired."""
    fence = run._target._fence if hasattr(run, "_target") else run._fence
    await execute(store, EndRun("c", fence, "interrupted"))


@pytest.mark.smoke
async def test_one_run_at_a_time(stores: Any) -> None:
    one, other = stores(), stores()
    async with one.run("c", agent_name="support") as run:
        with pytest.raises(errors.RunBusyError, match="of agent 'support' since") as busy:
            async with other.run("c"):
                pass
        assert busy.value.holder.run_id == run.run_id
        info = await other.get_run("c")
        assert (info.agent_name, info.status, info.run_id, info.waiting) == ("support", "active", run.run_id, ())
        async with other.run("d"):
            pass
    info = await other.get_run("c")
    assert (info.status, info.run_id) == ("completed", run.run_id)
    assert info.ended_at >= info.started_at
    assert await other.get_run("nobody ever ran") is None


async def test_the_last_runs_are_known_when_the_next_one_has_begun(stores: Any) -> None:
    store = stores()
    runs = [store.run("c", agent_name=f"agent {number}") for number in range(18)]
    for run in runs:
        async with run:
            await run.append(assistant(f"by {run.agent_name}"))
    async with store.run("c"):
        info = await store.get_run("c")
        assert info.first_sequence == 19
        assert [(one.run_id, one.first_sequence) for one in info.former] == [
            (run.run_id, number) for number, run in reversed([*enumerate(runs, 1)][2:])
        ]
        first = info.former[0]
        assert (first.agent_name, first.status, first.former) == ("agent 17", "completed", ())
        assert first.started_at <= first.ended_at <= info.started_at


@pytest.mark.smoke
async def test_waiters_take_over_in_the_order_of_arrival(stores: Any) -> None:
    first, others = stores(), [stores() for _ in range(2)]
    order: list[int] = []

    async def work(number: int) -> None:
        async with others[number % 2].run("c", agent_name=str(number), wait=SOON) as run:
            order.append(number)
            await run.append(user(str(number)))

    async with first.run("c"):
        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(work(number)))
            await until_waiting(first, number + 1)
        waiting = (await first.get_run("c")).waiting
        assert [place.agent_name for place in waiting] == [str(number) for number in range(4)]
        ended = time.monotonic()
    await asyncio.gather(*tasks)
    assert order == list(range(4))
    assert time.monotonic() - ended < SOON
    assert [message.text for message in await first.get("c")] == [str(number) for number in range(4)]


async def test_waiting_ends_after_its_time_and_leaves_the_queue(stores: Any) -> None:
    one, other = stores(), stores()
    async with one.run("c"):
        with pytest.raises(errors.RunBusyError):
            async with other.run("c", wait=0.2):
                pass
        assert (await one.get_run("c")).waiting == ()


async def test_a_cancelled_waiter_leaves_the_queue(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("threads are not cancelled")
    one, other = stores(), stores()

    async def wait() -> None:
        async with other.run("c", wait=60):
            pass

    async with one.run("c"):
        task = asyncio.create_task(wait())
        await until_waiting(one, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_waiting(one, 0)
    async with one.run("c"):
        pass


@pytest.mark.smoke
async def test_writes_after_the_loss_of_a_run_write_nothing(stores: Any) -> None:
    holder, other = stores(), stores()
    await holder.append("c", user("Hello", id="m"))
    async with holder.run("c") as run:
        await run.append(assistant("one", id="one"))
        await lose(other, run)
        async with other.run("c") as next_run:
            for write in (
                run.append(assistant("late")),
                run.append_many([assistant("late"), assistant("late")]),
                run.update_message(user("late", id="m")),
            ):
                with pytest.raises(errors.RunLostError):
                    await write
            with pytest.raises(errors.RunLostError):
                async with run.stream(id="late") as reply:
                    await reply.write("late")
            await next_run.append(assistant("two", id="two"))
    assert [message.text for message in await other.get("c")] == ["Hello", "one", "two"]


async def test_a_reply_of_a_lost_run_does_not_grow(stores: Any) -> None:
    holder, other = stores(), stores()
    async with holder.run("c") as run:
        with contextlib.suppress(errors.RunLostError):
            async with run.stream(id="r", interval=0.0) as reply:
                await reply.write("mine")
                await until(lambda: has_text(other, "mine"), "the text")
                await lose(other, run)
                async with other.run("c"):
                    while True:  # until the background has noticed it
                        await reply.write("late")
                        await asyncio.sleep(0)
    message = await other.get_message("c", "r")
    assert message.text == "mine"


async def has_text(store: Any, wanted: str, message_id: str = "r") -> bool:
    message = await store.get_message("c", message_id)
    return message is not None and message.text == wanted


@pytest.mark.smoke
async def test_a_stop_ends_the_reply_and_settles_its_calls(stores: Any) -> None:
    holder, other = stores(), stores()
    await holder.append("c", user("Look it up."))

    async def work() -> None:
        async with holder.run("c", agent_name="a") as run, run.stream(id="r") as reply:
            await reply.write("I look. ")
            await reply.add(tool_use("call", "find", {}))
            assert not run.stop_requested
            assert await other.stop_run("c", reason="enough")
            assert await run.wait_stop(SOON)
            assert (await other.get_run("c")).status == "stopping"
            await reply.write("never")

    with pytest.raises(errors.RunStopped, match="enough") as stopped:
        await work()
    assert stopped.value.reason == "enough"
    info = await other.get_run("c")
    assert (info.status, info.stop_reason) == ("stopped", "enough")
    _, reply_message, result = await other.get("c")
    assert (reply_message.text, reply_message.status) == ("I look. ", "stopped")
    assert (result.role, result.tool_results[0].tool_use_id, result.tool_results[0].is_error) == ("tool", "call", True)
    assert "stopped" in result.text


async def test_a_stop_names_a_run(stores: Any) -> None:
    store = stores()
    assert not await store.stop_run("c")
    async with store.run("c") as run:
        assert not await store.stop_run("c", run_id="another")
        assert await store.stop_run("c", run_id=run.run_id)
        assert await run.wait_stop(SOON)
        with pytest.raises(errors.RunStopped):
            await run.check() if hasattr(run, "_target") else run.check()
    assert (await store.get_run("c")).status == "stopped"
    assert not await store.stop_run("c", run_id=run.run_id)


async def test_a_stop_that_the_holder_has_not_seen_ends_the_run_as_stopped(stores: Any) -> None:
    """A stop that was accepted before the end counts, also if the block ends before the holder hears of it."""
    store, other = stores(), stores()
    async with store.run("c") as run:
        await run.append(assistant(text("calling"), tool_use("call", "find", {})))
        await execute(other, StopRun("c", run.run_id, "too late"))  # and the block ends immediately
    info = await other.get_run("c")
    assert (info.status, info.stop_reason, run.stop_requested) == ("stopped", "too late", True)
    assert (await other.get("c"))[-1].tool_results[0].tool_use_id == "call"


async def test_a_completed_run_leaves_its_open_calls(stores: Any) -> None:
    """They may wait for an approval."""
    store = stores()
    async with store.run("c") as run:
        await run.append(assistant(tool_use("call", "pay", {}), id="a"))
    assert [message.id for message in await store.get("c")] == ["a"]


@pytest.mark.smoke
async def test_messages_of_others_during_a_run(stores: Any) -> None:
    holder, other = stores(), stores()
    await other.append("c", user("before"))
    async with holder.run("c") as run:
        assert await run.messages() == []
        await run.append(assistant("mine"))
        await other.append("c", user("one"))
        await other.append_many("c", [user("two"), user("three")])
        assert [message.text for message in await run.messages()] == ["one", "two", "three"]
        async with run.stream() as reply:
            await reply.write("mine, too")
        await other.append("c", user("four"))
        assert [message.text for message in await run.messages()] == ["four"]
        assert await run.messages() == []


@pytest.mark.smoke
async def test_messages_that_others_restore_are_returned_once(stores: Any) -> None:
    holder, other = stores(), stores()
    await other.append("c", user("old", id="old"))
    await other.append("c", user("before", id="before"))
    async with holder.run("c") as run:
        await run.append(assistant("mine"))
        await other.append("c", user("one", id="one"))
        assert [message.text for message in await run.messages()] == ["one"]
        await other.append("c", user("two", id="two"))
        await other.restore("c", [*await other.get("c"), user("three", id="three")])
        assert [message.text for message in await run.messages()] == ["two", "three"]
        await other.restore("c", await other.get("c"))
        assert await run.messages() == []
        await other.delete_messages("c", ["three"])
        await other.append("c", user("again", id="three"))
        assert [message.text for message in await run.messages()] == ["again"]


async def test_messages_after_a_reset_are_returned_once(stores: Any) -> None:
    holder, other = stores(log_length=10), stores(log_length=10)
    await other.append("c", user("before", id="before"))
    async with holder.run("c") as run:
        await other.append("c", user("one", id="one"))
        assert [message.text for message in await run.messages()] == ["one"]
        await other.restore("c", await other.get("c"))
        await other.append("c", user("two", id="two"))
        for number in range(100):
            await other.update_conversation("c", title=str(number))
        assert [message.text for message in await run.messages()] == ["two"]


async def test_a_reply_of_others_that_ended_before_a_reset_is_returned(stores: Any) -> None:
    holder, other = stores(log_length=10), stores(log_length=10)
    async with holder.run("c") as run:
        async with other.stream("c") as reply:
            await other.append("c", user("one"))
            assert [message.text for message in await run.messages()] == ["one"]
            await reply.write("two")
        for number in range(100):
            await other.update_conversation("c", title=str(number))
        assert [message.text for message in await run.messages()] == ["two"]
        assert await run.messages() == []


async def test_a_cancelled_read_of_messages_loses_none(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("threads are not cancelled")
    holder, other = stores(), stores()
    async with holder.run("c") as run:
        for turn in range(4):
            texts = [f"{turn} {number}" for number in range(120)]  # more than one read returns
            for text_of_one in texts:
                await other.append("c", user(text_of_one))
            for moment in range(10_000):
                task = asyncio.create_task(run.messages())
                for _ in range(moment):
                    await asyncio.sleep(0)
                if not task.cancel():
                    break
                await asyncio.wait([task])
            assert [message.text for message in task.result()] == texts


@pytest.mark.smoke
async def test_subscribers_see_who_works(stores: Any) -> None:
    store, viewer = stores(), stores(poll_interval=0.5)
    await store.append("c", user("Hello"))

    async def run_of(subscription: Any) -> Any:
        while True:
            event = await subscription.get(timeout=SOON)
            if isinstance(event, RunChanged):
                return event.run

    async with viewer.subscribe("c") as subscription, viewer.subscribe_all() as everything:
        await stores.until_all_watched()
        async with store.run("c", agent_name="a") as run:
            for one in (subscription, everything):
                seen = await run_of(one)
                assert (seen.run_id, seen.status, seen.agent_name) == (run.run_id, "active", "a")
            async with viewer.subscribe("c") as late:
                assert (await run_of(late)).run_id == run.run_id
            await store.stop_run("c")
            assert (await run_of(subscription)).status == "stopping"
            assert await run.wait_stop(SOON)
        while (seen := await run_of(subscription)).status != "stopped":
            pass
        assert seen.run_id == run.run_id


async def test_a_run_changes_nothing_of_the_history(stores: Any) -> None:
    store = stores()
    await store.append("c", user("Hello"))
    before = await store.get_conversation("c")
    await store.append("newer", user("Hello"))
    newer = await store.get_conversation("newer")
    async with store.run("c"), store.run("unknown"):
        assert await store.list_conversations() == [newer, before]
    assert await store.get_conversation("c") == before
    assert await store.get_conversation("unknown") is None
    assert await store.list_conversations() == [newer, before]


async def test_a_run_goes_on_when_its_conversation_begins_as_a_fork(stores: Any) -> None:
    store = stores()
    await store.append("other", user("one", id="u"))
    async with store.run("c") as run:
        await store.fork("other", "c")
        await run.append(user("two", id="v"))
        assert (await store.get_run("c")).run_id == run.run_id
    assert [message.id for message in await store.get("c")] == ["u", "v"]


async def test_a_run_ends_when_its_conversation_expires(stores: Any) -> None:
    store = stores(ttl=0.5)
    async with store.run("c") as run:
        await run.append(user("one"))
        await until(lambda: is_gone(store), "it to expire")
        with pytest.raises(errors.RunLostError):
            await run.append(user("late"))
    assert await store.get("c") == []
    async with store.run("c") as run:
        await run.append(user("two"))


async def test_a_cap_holds_during_a_run(stores: Any) -> None:
    store = stores(max_messages=2)
    async with store.run("c") as run:
        for number in range(4):
            await run.append(user(str(number)))
        assert (await store.get_run("c")).run_id == run.run_id
    assert [message.text for message in await store.get("c")] == ["2", "3"]


@pytest.mark.parametrize("deleted", ["", "afterwards", "and made again"])
async def test_a_late_copy_of_a_request_begins_no_run(stores: Any, deleted: str) -> None:
    store = stores()
    async with store.run("c") as run:
        run_id = run.run_id
        await run.append(user("x"))
    if deleted:
        await store.delete_conversation("c")
        assert await store.get_run("c") is None
    if deleted == "and made again":
        await store.append("c", user("y"))
    outcome = await execute(store, TakeRun("c", ((run_id, None),), True))
    assert (outcome.done, outcome.lost) == (False, run_id)
    present = await store.get_run("c")
    assert (present and present.waiting) == (None if deleted else ())
    async with store.run("c", wait=0) as run:
        await run.append(user("z"))


@pytest.mark.smoke
@pytest.mark.full
async def test_a_caller_that_leaves_without_the_answer_gives_up_its_run(stores: Any) -> None:
    store = stores()
    take = TakeRun("c", (("0123456789abcdef", None),), True)
    assert (await execute(store, take)).done
    waiting = asyncio.create_task(enter(stores()))
    await until_waiting(store, 1)
    outcome = await execute(store, LeaveRun("c", ("0123456789abcdef",)))
    assert (outcome.run.run_id, outcome.run.status) == ("0123456789abcdef", "interrupted")
    await waiting
    async with store.run("c") as run:
        assert not (await execute(store, take)).done
        info = await store.get_run("c")
        assert (info.run_id, info.waiting) == (run.run_id, ())


async def enter(store: Any) -> None:
    async with store.run("c", wait=60):
        pass


async def test_a_request_that_arrives_after_its_caller_has_left_begins_no_run(stores: Any) -> None:
    store = stores()
    async with store.run("c"):
        pass
    await execute(store, LeaveRun("c", ("0123456789abcdef",)))
    outcome = await execute(store, TakeRun("c", (("0123456789abcdef", None),), True))
    assert (outcome.done, outcome.lost) == (False, "0123456789abcdef")
    info = await store.get_run("c")
    assert (info.status, info.waiting) == ("completed", ())


async def test_calls_of_an_interrupted_run_are_settled_whatever_their_time(stores: Any) -> None:
    store = stores()
    await store.append("c", assistant(tool_use("approval", "find", {}), timestamp="2100-01-01T00:00:00Z"))
    async with store.run("c") as run:
        await run.append(assistant(tool_use("call", "find", {}), timestamp="2020-01-01T00:00:00Z"))
        await lose(store, run)
    async with store.run("c"):
        results = [result.tool_use_id for message in await store.get("c") for result in message.tool_results]
    assert results == ["call"]


async def test_calls_of_an_interrupted_run_are_settled_although_the_next_one_did_not_begin(stores: Any) -> None:
    store = stores()
    async with store.run("c") as run:
        await run.append(assistant(tool_use("call", "find", {})))
        await lose(store, run)
    await execute(store, TakeRun("c", (("0123456789abcdef", None),), False))
    await execute(store, LeaveRun("c", ("0123456789abcdef",)))
    async with store.run("c"):
        assert (await store.get("c"))[-1].tool_results[0].tool_use_id == "call"


async def test_an_entry_cancelled_at_any_moment_leaves_no_run(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("threads are not cancelled")
    store = stores()

    async def work() -> None:
        async with store.run("c"):
            await asyncio.sleep(60)

    await enter(store)
    for moment in range(0, 400, 9):
        task = asyncio.create_task(work())
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        info = await store.get_run("c")
        assert not info.is_active
        assert info.waiting == ()


async def test_a_cancelled_scope_of_anyio_ends_reply_run_and_store(stores: Any, face: str) -> None:
    """It also cancels each `await` at the ends of their blocks."""
    if face == "sync":
        pytest.skip("threads are not cancelled")
    other = stores()
    with anyio.CancelScope() as scope:
        async with stores() as store, store.stream("c") as apart, store.run("c") as run, run.stream() as reply:
            await apart.write("half")
            await reply.write("half")
            scope.cancel()
            await asyncio.sleep(60)
    async with other.run("c", wait=2):
        assert [(message.text, message.status) for message in await other.get("c")] == 2 * [("half", "interrupted")]


async def test_a_reply_whose_end_is_cancelled_at_any_moment_has_ended(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("threads are not cancelled")
    store = stores()

    async def work(written: asyncio.Event) -> None:
        async with store.run("c") as run, run.stream(interval=0.0) as reply:
            await reply.write("All of it.")
            written.set()

    for moment in range(0, 120, 3):
        written = asyncio.Event()
        task = asyncio.create_task(work(written))
        await written.wait()
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        [reply] = await store.get("c", limit=1)
        assert reply.text == "All of it."
        assert reply.status in ("complete", "interrupted")


async def test_a_run_is_entered_once(stores: Any) -> None:
    store = stores()
    run = store.run("c")
    with pytest.raises(errors.RunLostError, match="has not begun"):
        await run.append(user("early"))
    async with run:
        pass
    with pytest.raises(errors.RunLostError, match="entered before"):
        async with run:
            pass


async def test_cancel_ends_the_block(stores: Any, face: str) -> None:
    store = stores()
    if face == "sync":
        with pytest.raises(errors.ConfigurationError, match="asyncio"):
            async with store.run("c", cancel=True):
                pass
        assert await store.get_run("c") is None
        return

    async def work() -> None:
        async with store.run("c", cancel=True):
            await store.stop_run("c", reason="now")
            await asyncio.sleep(60)

    with pytest.raises(errors.RunStopped, match="now"):
        await work()
    assert (await store.get_run("c")).status == "stopped"
    task = asyncio.current_task()
    assert task.cancelling() == 0


async def test_a_stop_during_the_entry_is_no_cancellation_of_the_task(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("threads are not cancelled")
    store, other = stores(), stores()

    async def stop() -> None:
        await other.stop_run("c", reason="now")
        await asyncio.sleep(SOON)

    act_after(store, ReadHead, stop)
    with pytest.raises(errors.RunStopped, match="now"):
        async with store.run("c", cancel=True):
            pass
    assert (await store.get_run("c")).status == "stopped"


async def test_a_block_may_handle_the_cancellation_of_a_stop(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("threads are not cancelled")
    store, task = stores(), asyncio.current_task()

    async def fail() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError

    async with store.run("c", cancel=True):
        with contextlib.suppress(asyncio.CancelledError):
            await store.stop_run("c")
            await asyncio.sleep(60)
    assert task.cancelling() == 0

    async def work() -> None:
        async with store.run("c", cancel=True), asyncio.TaskGroup() as group:
            group.create_task(fail())  # with Python 3.13, its error cancels the cancelled parent once more
            stops.add(asyncio.create_task(store.stop_run("c")))

    stops: set[asyncio.Task[bool]] = set()
    with pytest.raises(ExceptionGroup):
        await work()
    assert await stops.pop()
    assert task.cancelling() == 0


async def test_a_stop_while_a_reply_begins_ends_it_as_stopped(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("threads are not cancelled")
    store = stores()

    async def stop() -> None:
        await store.stop_run("c")
        await asyncio.sleep(60)

    act_after(store, Append, stop)
    with pytest.raises(errors.RunStopped):
        async with store.run("c", cancel=True) as run, run.stream():
            pass
    assert [one.status for one in await store.get("c")] == ["stopped"]


@pytest.mark.parametrize(
    "options", [{"wait": -1}, {"wait": "long"}, {"agent_name": ""}, {"agent_name": "\ud800"}, {"agent_name": 1}]
)
async def test_wrong_options(stores: Any, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInputError):
        stores().run("c", **options)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_backend_has_all_methods(face: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="backend must be an object with the methods of"):
        open_store(face, backend=object())


def write_exclusively(store: Any) -> None:
    exclusive = store.exclusive()
    with store.run("c"):
        exclusive.append("c", assistant("one"))
        with pytest.raises(errors.RunLostError):
            exclusive.fork("c")
        with exclusive.stream("c") as reply:
            reply.write("two")
    with pytest.raises(errors.RunLostError, match="only in the block of a run"):
        exclusive.append("c", assistant("after the run"))
    assert [message.text for message in exclusive.get("c")] == ["one", "two"]


@pytest.mark.smoke
async def test_an_exclusive_store_writes_for_the_run_around_it(stores: Any, face: str, tmp_path: Path) -> None:
    store, other, path = stores(), stores(), tmp_path / "another.jsonl"
    if face == "sync":
        await asyncio.to_thread(write_exclusively, store._target)
        return
    await store.append("another", user("x"))
    await async_export_messages(store, path)
    await store.delete_conversation("another")
    exclusive = store.exclusive()
    with pytest.raises(errors.RunLostError, match="only in the block of a run"):
        await exclusive.append("c", assistant("without a run"))
    async with store.run("c") as run:
        await exclusive.append("c", assistant("one", id="one"))
        await exclusive.update_message("c", assistant("two", id="one"))
        async with exclusive.stream("c", id="r") as reply:
            await reply.write("three")
        await exclusive.restore("c", [user("four")])
        await exclusive.append("c", assistant("five"))
        assert (await exclusive.merge_metadata("c", {"a": 1})).metadata == {"a": 1}
        assert await run.messages() == []
        with pytest.raises(errors.RunLostError):
            await exclusive.append("another", assistant("outside"))
        with pytest.raises(errors.RunLostError):
            await exclusive.fork("c", "another")
        with pytest.raises(errors.RunLostError):
            await async_import_messages(path, exclusive)
        assert await exclusive.get_conversation("another") is None
        await lose(other, run)
        with pytest.raises(errors.RunLostError):
            await exclusive.clear("c")
        with pytest.raises(errors.RunLostError):
            await exclusive.merge_metadata("c", {"a": 2})
        with pytest.raises(errors.RunLostError):
            await exclusive.append("c", assistant("late"))
    with pytest.raises(errors.RunLostError):
        await exclusive.append("c", assistant("after the run"))
    assert [message.text for message in await exclusive.get("c")] == ["four", "five"]
    assert (await exclusive.get_conversation("c")).metadata == {"a": 1}


async def test_a_task_that_outlives_a_run_writes_for_the_run_of_its_own(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("a thread does not inherit the runs of its parent")
    store = stores()

    async def work() -> None:
        async with store.run("c", wait=SOON):
            await store.exclusive().append("c", assistant("written"))

    async with store.run("c"):
        task = asyncio.create_task(work())
        await until_waiting(store, 1)
    await task
    assert [message.text for message in await store.get("c")] == ["written"]


async def test_a_message_of_others_whose_id_the_run_was_refused_is_returned(stores: Any) -> None:
    holder, other = stores(), stores()
    await other.append("c", user("q"))
    async with holder.run("c") as run:
        await other.append("c", user("steer", id="one"))
        with pytest.raises(errors.MessageConflictError):
            await run.append(assistant("mine", id="one"))
        assert [message.text for message in await run.messages()] == ["steer"]
        await other.append_many("c", [user("second", id="two"), user("third", id="three")])
        with pytest.raises(errors.MessageConflictError):
            await run.append_many([assistant("mine", id="own"), assistant("mine", id="three")])
        with pytest.raises(errors.MessageConflictError):
            async with run.stream(id="two"):
                pass
        assert (await run.append(user("second", id="two"))).duplicate
        assert [message.text for message in await run.messages()] == ["second", "third"]
        await run.append(assistant("mine", id="own"))
        with pytest.raises(errors.MessageConflictError):
            await run.append(assistant("other", id="own"))
        assert await run.messages() == []


async def test_an_own_message_that_others_edit_is_not_returned(stores: Any) -> None:
    holder, other = stores(), stores()
    async with holder.run("c") as run:
        await run.append(assistant("mine", id="own"))
        await other.update_message("c", assistant("edited", id="own"))
        assert await run.messages() == []


@pytest.mark.smoke
@pytest.mark.full
async def test_all_messages_of_others_are_returned_although_the_log_has_lost_them(stores: Any) -> None:
    holder, other = stores(log_length=10, max_messages=None), stores(log_length=10, max_messages=None)
    await other.append("c", user("q"))
    async with holder.run("c") as run:
        texts = [str(number) for number in range(2600)]  # more than a page
        for start in range(0, 2600, 100):
            await other.append_many("c", [user(one) for one in texts[start : start + 100]])
        await other.append("c", user("old", timestamp="2020-01-01T00:00:00Z"))
        await run.append(assistant("mine"))
        for number in range(300):
            await other.update_conversation("c", title=str(number))
        assert [message.text for message in await run.messages()] == [*texts, "old"]
        assert await run.messages() == []
        await other.append("c", user("last"))
        assert [message.text for message in await run.messages()] == ["last"]


@pytest.mark.parametrize("stopped", [True, False])
async def test_each_open_call_is_settled_whatever_followed_it(stores: Any, stopped: bool) -> None:
    holder, other = stores(max_messages=None), stores(max_messages=None)

    async def work() -> None:
        async with holder.run("c") as run:
            for number in range(3):
                call = tool_use(f"call {number}", "find", {})
                await run.append(assistant(call, timestamp=f"202{number}-01-01T00:00:00Z"))
                for _ in range(9):
                    await other.append_many("c", [user("x") for _ in range(100)])
            if stopped:
                await other.stop_run("c")
                assert await run.wait_stop(SOON)
            else:
                await lose(other, run)

    await work()
    async with holder.run("c"):
        results = [result for message in await other.get("c", limit=3000) for result in message.tool_results]
    assert [result.tool_use_id for result in results] == [f"call {number}" for number in range(3)]


@pytest.mark.full
async def test_a_dead_waiter_delays_the_next_run_for_less_than_two_seconds(stores: Any) -> None:
    store, other = stores(), stores()
    async with store.run("c"):
        for number in range(3):
            dead = TakeRun("c", ((f"dead waiter {number}", None),), True)
            assert not (await execute(store, dead)).done
        waiting = asyncio.create_task(enter(other))
        await until_waiting(store, 4)
        for number in range(3):  # as if they had just given a sign of life
            await execute(store, TakeRun("c", ((f"dead waiter {number}", None),), True))
    ended = time.monotonic()
    await waiting
    assert time.monotonic() - ended < 2


@pytest.mark.full
async def test_a_waiter_that_was_passed_over_keeps_its_place(stores: Any) -> None:
    store = stores()
    late = TakeRun("c", (("late waiter", None),), True)
    async with store.run("c"):
        assert not (await execute(store, late)).done
    async with store.run("c", wait=SOON) as run:
        assert not (await execute(store, late)).done
        info = await store.get_run("c")
        assert (info.run_id, [place.run_id for place in info.waiting]) == (run.run_id, ["late waiter"])
    assert (await execute(store, late)).done
    await execute(store, LeaveRun("c", ("late waiter",)))


@pytest.mark.smoke
@pytest.mark.parametrize("how", ["completed", "failed", "stopped"])
async def test_the_end_of_a_run_ends_the_replies_that_its_block_left(stores: Any, how: str) -> None:
    """A task or thread may outlive the block, for example. Readers do not wait for the end of its writer's lease."""
    store, other = stores(), stores()
    with contextlib.suppress(ZeroDivisionError, errors.RunStopped):
        async with store.run("c") as run:
            replies = [run.stream(id=name, interval=0.0) for name in "ab"]
            for reply in replies:
                await reply.write("half")
            await replies[0].finish()
            if how == "failed":
                raise ZeroDivisionError
            if how == "stopped":
                await other.stop_run("c")
                assert await run.wait_stop(SOON)
    assert (await other.get_run("c")).status == how
    left = {"completed": "interrupted", "failed": "interrupted", "stopped": "stopped"}[how]
    assert [(one.text, one.status) for one in await other.get("c")] == [("half", "complete"), ("half", left)]
    with pytest.raises(errors.RedisHistoryError):
        await replies[1].write("late")


async def test_a_message_that_is_read_while_the_run_writes_one_of_its_id(stores: Any) -> None:
    """Only the outcome of the write shows whether the message belongs to the run."""
    holder, other = stores(), stores()
    seen: list[list[str]] = []
    async with holder.run("c") as run:

        async def read() -> None:
            seen.append([message.id for message in await run.messages()])

        act_after(holder, Append, read)
        call = tool_use("call", "find", {"text": "x", "numbers": [1, 2.5]})
        await run.append(assistant(text("mine"), call, id="own", metadata={"b": 1, "a": None}))
        await other.append("c", user("steer", id="steer"))
        act_after(holder, Append, read)
        assert (await run.append(user("steer", id="steer"))).duplicate
        await read()
    assert seen == [[], [], ["steer"]]


async def test_a_run_does_not_replace_the_precondition_of_a_write(stores: Any, face: str) -> None:
    if face == "sync":
        return  # it uses the same scripts, and its runs belong to threads
    store = stores()
    mine = store.exclusive()
    await store.append("c", user("q"))
    async with store.run("c"):
        with pytest.raises(errors.ConversationExistsError):
            await mine.create_conversation(Conversation("c", title="another"))
        with pytest.raises(errors.ConversationExistsError):
            await mine.append("c", user("again"), must_not_exist=True)
        await mine.append("c", user("more"), must_exist=True)
    record = await store.get_conversation("c")
    assert (record.title, record.message_count) == (None, 2)
    async with store.run("new"):
        with pytest.raises(errors.ConversationNotFoundError):
            await mine.update_conversation("new", title="t")
        with pytest.raises(errors.ConversationNotFoundError):
            await mine.append("new", user("q"), must_exist=True)
        assert (await mine.create_conversation(Conversation("new", title="t"))).title == "t"
        await store.delete_conversation("new")
        with pytest.raises(errors.RunLostError):
            await mine.append("new", user("q"), must_exist=True)
