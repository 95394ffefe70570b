from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_history import ConversationDeleted, MessagesAppended, MessagesDeleted, Reset, user
from redis_history.errors import InvalidCursorError
from tests.conformance.conftest import SOON, take


@pytest.mark.smoke
async def test_changes_arrive_in_order_each_once(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe("c") as subscription:
        first = await writer.append_many("c", [user("a", id="a"), user("b", id="b")])
        await writer.append("c", user("c", id="c"))
        await writer.append("c", user("c", id="c"))
        await writer.delete_messages("c", ["b", "unknown"])
        events = await take(subscription, 3)
        assert [type(event) for event in events] == [MessagesAppended, MessagesAppended, MessagesDeleted]
        assert [event.revision for event in events] == [1, 2, 3]
        assert events[0].messages == tuple(item.message for item in first)
        assert events[2].message_ids == ("b",)
        assert {event.conversation_id for event in events} == {"c"}
        assert await subscription.get(timeout=0) is None


async def test_a_subscription_begins_when_it_is_made(store: Any) -> None:
    await store.append("c", user("before"))
    subscription = store.subscribe("c")
    await store.append("c", user("after"))
    [event] = await take(subscription, 1)
    assert [message.text for message in event.messages] == ["after"]
    await subscription.aclose()


async def test_iteration_ends_with_close(store: Any) -> None:
    subscription = store.subscribe("c")
    await store.append_many("c", [user("a")])
    seen = []
    async for event in subscription:
        seen.append(event.revision)
        await subscription.aclose()
    assert seen == [1]


async def test_close_ends_a_waiting_reader(store: Any) -> None:
    subscription = store.subscribe("c")
    waiting = asyncio.create_task(subscription.get())
    await store.append("other", user("x"))
    await subscription.aclose()
    assert await asyncio.wait_for(waiting, SOON) is None


async def test_resume_after_a_cursor_repeats_and_loses_nothing(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe("c") as subscription:
        for number in range(5):
            await writer.append("c", user(str(number)))
        events = await take(subscription, 3)
        assert subscription.cursor == events[2].cursor
    for cursor in (events[2].cursor, str(events[2].cursor)):
        async with reader.subscribe("c", after=cursor) as resumed:
            rest = await take(resumed, 2)
            assert [event.messages[0].text for event in rest] == ["3", "4"]


async def test_a_snapshot_and_its_changes_meet(stores: Any) -> None:
    writer, reader = stores(), stores()
    await writer.append("c", user("0"))
    snapshot = await reader.snapshot("c")
    await writer.append("c", user("1"))
    async with reader.subscribe("c", after=snapshot.cursor) as subscription:
        [event] = await take(subscription, 1)
    assert [message.text for message in (*snapshot.messages, *event.messages)] == ["0", "1"]


async def test_many_subscribers_each_get_everything(stores: Any) -> None:
    writer, reader = stores(), stores()
    subscriptions = [reader.subscribe("c") for _ in range(5)]
    for subscription in subscriptions:
        assert await subscription.get(timeout=0) is None
    for number in range(20):
        await writer.append("c", user(str(number)))
    for subscription in subscriptions:
        events = await take(subscription, 20)
        assert [event.revision for event in events] == list(range(1, 21))
        await subscription.aclose()


async def test_more_changes_than_one_read_holds(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe("c") as subscription:
        for number in range(450):
            await writer.append("c", user(str(number)))
        events = await take(subscription, 450)
        assert [event.messages[0].text for event in events] == [str(number) for number in range(450)]


async def test_a_trimmed_log_gives_one_reset(stores: Any) -> None:
    store = stores(log_length=10)
    await store.append("c", user("0"))
    start = (await store.snapshot("c")).cursor
    for number in range(1, 400):  # redis trims whole nodes of the stream, of about a hundred entries
        await store.append("c", user(str(number)))
    async with store.subscribe("c", after=start) as subscription:
        [event] = await take(subscription, 1)
        assert isinstance(event, Reset)
        assert (event.reason, event.revision) == ("log_trimmed", 400)
        await store.append("c", user("next"))
        [event] = await take(subscription, 1)
        assert (event.revision, event.messages[0].text) == (401, "next")


async def test_deletion_is_told_to_those_who_watch(stores: Any) -> None:
    writer, reader = stores(), stores()
    await writer.append("c", user("0"))
    async with reader.subscribe("c") as subscription:
        await stores.until_watched("c")
        await writer.append("c", user("1"))
        await writer.delete_conversation("c")
        events = await take(subscription, 2)
        assert [type(event) for event in events] == [MessagesAppended, ConversationDeleted]
        assert [event.revision for event in events] == [2, 3]
        assert await subscription.get(timeout=0.2) is None
        await writer.append("c", user("anew"))
        [event] = await take(subscription, 1)
        assert isinstance(event, Reset)
        assert (event.reason, event.revision) == ("conversation_replaced", 1)
        await writer.append("c", user("more"))
        [event] = await take(subscription, 1)
        assert (event.revision, event.messages[0].text) == (2, "more")


async def test_a_cursor_of_a_deleted_conversation_gives_a_reset(store: Any) -> None:
    await store.append("c", user("0"))
    cursor = (await store.snapshot("c")).cursor
    await store.delete_conversation("c")
    async with store.subscribe("c", after=cursor) as subscription:
        [event] = await take(subscription, 1)
        assert (type(event), event.reason, event.revision) == (Reset, "conversation_missing", 0)
        await store.append("c", user("anew"))
        [event] = await take(subscription, 1)
        assert (type(event), event.revision) == (MessagesAppended, 1)


async def test_a_cursor_of_a_former_life_gives_a_reset(store: Any) -> None:
    await store.append("c", user("0"))
    cursor = (await store.snapshot("c")).cursor
    await store.delete_conversation("c")
    await store.append_many("c", [user("x"), user("y")])
    async with store.subscribe("c", after=cursor) as subscription:
        [event] = await take(subscription, 1)
        assert (type(event), event.reason, event.revision) == (Reset, "conversation_replaced", 1)


@pytest.mark.backends("memory")
@pytest.mark.parametrize("cursor", ["", "0", "a:b:c", "0:0:0", 5, f"{'0' * 16}:-1:{'0' * 16}"])
async def test_bad_cursors(store: Any, cursor: Any) -> None:
    with pytest.raises(InvalidCursorError):
        store.subscribe("c", after=cursor)


@pytest.mark.smoke
async def test_callbacks_are_called_in_order_and_may_fail(stores: Any) -> None:
    writer, reader = stores(), stores()
    seen: list[int] = []
    errors: list[tuple[str, int]] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def callback(event: Any) -> None:
        seen.append(event.revision)
        if event.revision == 2:
            raise ValueError("of the callback")
        if event.revision == 5:
            loop.call_soon_threadsafe(done.set)

    unsubscribe = await reader.on_change(
        "c", callback, on_error=lambda error, event: errors.append((str(error), event.revision))
    )
    for number in range(5):
        await writer.append("c", user(str(number)))
    await asyncio.wait_for(done.wait(), SOON)
    await unsubscribe()
    await writer.append("c", user("unheard"))
    assert seen == [1, 2, 3, 4, 5]
    assert errors == [("of the callback", 2)]


async def test_close_ends_callbacks(stores: Any) -> None:
    reader = stores()
    await reader.on_change("c", lambda event: None)
    await reader.aclose()
