from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest

from redis_history import ConversationDeleted, MessagesAppended, Reset, user
from redis_history.errors import InvalidConversationIdError, InvalidCursorError
from tests.conformance.conftest import SOON, take


def _revisions(events: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for event in events:
        found[event.conversation_id].append(event.revision)
    return dict(found)


@pytest.mark.smoke
async def test_changes_of_all_conversations_arrive_in_order_each_once(stores: Any) -> None:
    writer, reader = stores(), stores()
    await writer.append("a", user("before"))
    async with reader.subscribe_all() as subscription:
        for number in range(5):
            for name in ("a", "b", "odd : {name}*\n"):
                await writer.append(name, user(str(number)))
        await writer.clear("b")
        events = await take(subscription, 16)
        later = list(range(1, 6))
        assert _revisions(events) == {"a": [2, 3, 4, 5, 6], "b": [*later, 6], "odd : {name}*\n": later}
        assert await subscription.get(timeout=0) is None


async def test_it_begins_when_it_is_made(store: Any) -> None:
    await store.append("c", user("before"))
    subscription = store.subscribe_all()
    await store.append("c", user("after"))
    await store.append("new", user("first"))
    events = await take(subscription, 2)
    assert {event.conversation_id: event.messages[0].text for event in events} == {"c": "after", "new": "first"}
    await subscription.aclose()


async def test_without_waiting_it_tells_what_there_is(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe_all() as subscription:
        await writer.append("c", user("x"))
        event = await subscription.get(timeout=0)
        assert isinstance(event, MessagesAppended)
        assert await subscription.get(timeout=0) is None


async def test_resume_after_cursors_repeats_and_loses_nothing(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe_all() as subscription:
        for number in range(6):
            await writer.append(f"c{number % 2}", user(str(number)))
        first = await take(subscription, 3)
        cursors = await asyncio.to_thread(lambda: subscription.cursors)
    await writer.append("c2", user("6"))  # while nobody watches
    texts = json.loads(json.dumps({name: str(cursor) for name, cursor in cursors.items()}))
    for after in (cursors, texts):
        async with reader.subscribe_all(after=after) as resumed:
            rest = await take(resumed, 4)
            assert await resumed.get(timeout=0) is None
        assert _revisions(first + rest) == {"c0": [1, 2, 3], "c1": [1, 2, 3], "c2": [1]}


async def test_cursors_of_events_do_too(stores: Any) -> None:
    writer, reader = stores(), stores()
    after: dict[str, Any] = {}
    for round_ in range(3):
        for name in ("a", "b"):
            await writer.append_many(name, [user(f"{round_}")])
            await writer.append_many(name, [user(f"{round_}")])
        async with reader.subscribe_all(after=after) as subscription:
            events = await take(subscription, 4)
            assert _revisions(events) == {name: [2 * round_ + 1, 2 * round_ + 2] for name in ("a", "b")}
        after |= {event.conversation_id: event.cursor for event in events}


async def test_no_cursors_mean_from_the_beginning(store: Any) -> None:
    for number in range(3):
        await store.append("a", user(str(number)))
    await store.append("b", user("x"))
    async with store.subscribe_all(after={}) as subscription:
        assert _revisions(await take(subscription, 4)) == {"a": [1, 2, 3], "b": [1]}


async def test_many_conversations_and_many_changes(stores: Any) -> None:
    """More than one read of a log, of a registry and of heads holds."""
    writer, reader = stores(), stores()
    for number in range(300):
        await writer.append(f"old {number}", user("x"))
    async with reader.subscribe_all() as subscription:
        for number in range(250):
            await writer.append("long", user(str(number)))
            await writer.append(f"new {number}", user("x"))
        await writer.append("old 7", user("y"))
        found = _revisions(await take(subscription, 501))
    assert found.pop("long") == list(range(1, 251))
    assert found.pop("old 7") == [2]
    assert found == {f"new {number}": [1] for number in range(250)}


async def test_a_conversation_is_deleted_and_created_again(stores: Any) -> None:
    writer, reader = stores(), stores()
    await writer.append("c", user("0"))
    async with reader.subscribe_all() as subscription:
        assert await subscription.get(timeout=0) is None
        await stores.until_all_watched()
        await writer.append("c", user("1"))
        await writer.delete_conversation("c")
        events = await take(subscription, 2)
        assert [type(event) for event in events] == [MessagesAppended, ConversationDeleted]
        assert [event.revision for event in events] == [2, 3]
        assert await subscription.get(timeout=0.2) is None
        assert dict(subscription.cursors) == {}
        await writer.append("c", user("anew"))
        [event] = await take(subscription, 1)
        assert isinstance(event, Reset)
        assert (event.reason, event.revision) == ("conversation_replaced", 1)
        await writer.append("c", user("more"))
        [event] = await take(subscription, 1)
        assert (event.revision, event.messages[0].text) == (2, "more")


async def test_what_was_deleted_meanwhile_gives_a_reset(stores: Any) -> None:
    writer, reader = stores(), stores()
    for name in ("gone", "replaced", "kept"):
        await writer.append(name, user("x"))
    async with reader.subscribe_all(after={}) as subscription:
        await take(subscription, 3)
        cursors = subscription.cursors
    await stores.until_none_watches_all()
    await writer.delete_conversation("gone")
    await writer.delete_conversation("replaced")
    await writer.append("replaced", user("y"))
    async with reader.subscribe_all(after=cursors) as subscription:
        events = await take(subscription, 2)
        assert {event.conversation_id: getattr(event, "reason", "") for event in events} == {
            "gone": "conversation_missing",
            "replaced": "conversation_replaced",
        }
        assert await subscription.get(timeout=0) is None
        await writer.append("gone", user("anew"))
        [event] = await take(subscription, 1)
        assert (event.conversation_id, event.revision) == ("gone", 1)


async def test_a_trimmed_log_gives_one_reset_for_its_conversation(stores: Any) -> None:
    store = stores(log_length=10)
    await store.append("long", user("0"))
    await store.append("short", user("0"))
    cursors = {name: (await store.snapshot(name)).cursor for name in ("long", "short")}
    for number in range(1, 400):  # redis trims whole nodes of the stream, of about a hundred entries
        await store.append("long", user(str(number)))
    await store.append("short", user("1"))
    async with store.subscribe_all(after=cursors) as subscription:
        events = await take(subscription, 2)
        told = {event.conversation_id: (getattr(event, "reason", ""), event.revision) for event in events}
        assert told == {"long": ("log_trimmed", 400), "short": ("", 2)}


async def test_an_expired_conversation_gives_a_reset(stores: Any) -> None:
    store = stores(ttl=1.5, poll_interval=0.2)
    await store.append("c", user("x"))
    async with store.subscribe_all() as subscription:
        [event] = await take(subscription, 1)
        assert (type(event), event.reason, event.revision) == (Reset, "conversation_missing", 0)
        await store.append("c", user("anew"))
        [event] = await take(subscription, 1)
        assert (type(event), event.revision) == (MessagesAppended, 1)


async def test_a_slow_consumer_misses_nothing(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe_all() as subscription:
        await writer.append("a", user("0"))
        [first] = await take(subscription, 1)
        for number in range(1, 200):
            await writer.append("a", user(str(number)))
            await writer.append(f"b{number % 7}", user(str(number)))
        found = _revisions([first, *await take(subscription, 398)])
    assert found.pop("a") == list(range(1, 201))
    assert sum(len(revisions) for revisions in found.values()) == 199
    assert all(revisions == list(range(1, len(revisions) + 1)) for revisions in found.values())


async def test_close_ends_a_waiting_reader(store: Any) -> None:
    subscription = store.subscribe_all()
    waiting = asyncio.create_task(subscription.get())
    await subscription.aclose()
    assert await asyncio.wait_for(waiting, SOON) is None


async def test_namespaces_are_apart(stores: Any) -> None:
    if stores.backend == "memory":
        return  # a backend of one's own has no namespaces
    reader = stores()
    async with reader.subscribe_all() as subscription, stores.other() as other:
        await other.append("c", user("elsewhere"))
        await reader.append("c", user("here"))
        [event] = await take(subscription, 1)
        assert event.messages[0].text == "here"
        assert await subscription.get(timeout=0) is None


async def test_callbacks_are_called_for_all(stores: Any) -> None:
    writer, reader = stores(), stores()
    seen: list[tuple[str, int]] = []
    errors: list[str] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def callback(event: Any) -> None:
        seen.append((event.conversation_id, event.revision))
        if len(seen) == 2:
            raise ValueError("of the callback")
        if len(seen) == 4:
            loop.call_soon_threadsafe(done.set)

    unsubscribe = await reader.on_change_all(callback, on_error=lambda error, event: errors.append(str(error)))
    for number in range(4):
        await writer.append(f"c{number % 2}", user(str(number)))
    await asyncio.wait_for(done.wait(), SOON)
    await unsubscribe()
    await writer.append("c0", user("unheard"))
    assert sorted(seen) == [("c0", 1), ("c0", 2), ("c1", 1), ("c1", 2)]
    assert errors == ["of the callback"]


@pytest.mark.backends("memory")
@pytest.mark.parametrize(
    ("after", "error"),
    [
        ("0:0:0", InvalidCursorError),
        ([], InvalidCursorError),
        ({"c": "0:0:0"}, InvalidCursorError),
        ({"c": 5}, InvalidCursorError),
        ({"": f"{'0' * 16}:0:{'0' * 16}"}, InvalidConversationIdError),
    ],
)
async def test_bad_cursors(store: Any, after: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        store.subscribe_all(after=after)
