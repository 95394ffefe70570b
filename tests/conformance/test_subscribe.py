"""Subscriptions to one conversation, and to all conversations of a namespace."""

import asyncio
import json
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from redis_history import (
    AsyncHistoryStore,
    Compressor,
    ConversationDeleted,
    HistoryStore,
    MessagesAppended,
    MessagesDeleted,
    Reset,
    capture,
    user,
)
from redis_history.errors import ConfigurationError, InvalidInputError
from tests.conformance.conftest import SOON, is_gone, take
from tests.support.servers import until

ONE_AND_ALL = pytest.mark.parametrize("every", [False, True], ids=["one", "all"])


def _subscribe(store: Any, every: bool, **options: Any) -> Any:
    """To the conversation "c" or to all."""
    return store.subscribe_all(**options) if every else store.subscribe("c", **options)


def _after(cursor: Any, every: bool) -> Any:
    return {"c": cursor} if every else cursor


def _revisions(events: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for event in events:
        found[event.conversation_id].append(event.revision)
    return dict(found)


@pytest.mark.proves("every-change")
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
        assert events[0].messages == (first[0].message,)
        assert events[0].gone_ids == ("b",)
        assert events[2].message_ids == ("b",)
        assert {event.conversation_id for event in events} == {"c"}
        assert await subscription.get(timeout=0) is None


@pytest.mark.proves("all-conversations")
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


async def test_events_have_messages_as_they_are_when_they_are_read(stores: Any) -> None:
    writer, reader = stores(max_messages=4), stores()
    async with reader.subscribe("c") as subscription:
        many = await writer.append_many("c", [user(str(number), id=str(number)) for number in range(3)])
        await writer.append("c", user("old", id="edited", timestamp="2020-01-01T00:00:00Z"))
        edited = await writer.update_message("c", user("new", id="edited"))
        await writer.delete_messages("c", ["1"])
        await writer.append_many("c", [user("x", id="x"), user("y", id="y")])
        await writer.update_message("c", user("changed", id="2"))
        await writer.delete_messages("c", ["2"])
        first, second, third, deleted, capped, changed, last = await take(subscription, 7)
    assert first.messages == (many[0].message,), "the oldest of those that stay"
    assert set(first.gone_ids) == {"1", "2"}
    assert (second.messages, second.gone_ids) == ((), ("edited",)), "removed by the cap"
    assert (third.message_id, third.message) == ("edited", None), edited
    assert deleted.message_ids == ("1",)
    assert [message.id for message in capped.messages] == ["x", "y"]
    assert (capped.removed_ids, changed.message_id, changed.message) == (("edited",), "2", None)
    assert last.message_ids == ("2",)


async def test_events_before_a_clear_have_no_messages(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe("c") as subscription:
        await writer.append("c", user("a", id="a"))
        await writer.clear("c")
        await writer.append("c", user("again", id="a"))
        first, _, again = await take(subscription, 3)
    assert (first.messages, first.gone_ids) == ((), ())
    assert [message.text for message in again.messages] == ["again"]
    await writer.delete_messages("c", ["a"])
    assert [event.gone_ids for event in (await writer.log("c"))[::2]] == [(), ("a",)]


@pytest.mark.backends("memory", "redis")
async def test_changes_of_a_conversation_that_began_and_ended_after_the_cursor_arrive(stores: Any) -> None:
    store = stores()
    before = (await store.snapshot("c")).cursor
    async with store.subscribe("c"):
        await stores.until_watched("c")
        await store.append("c", user("x"))
        await store.delete_conversation("c")
        async with store.subscribe_all(after={"c": before}) as every:
            assert [type(event) for event in await take(every, 2)] == [MessagesAppended, ConversationDeleted]


async def test_events_name_messages_that_were_removed_before_the_conversation(stores: Any) -> None:
    writer, reader = stores(max_messages=3), stores()
    async with reader.subscribe("c") as subscription:
        await stores.until_watched("c")
        await writer.append_many("c", [user(one, id=one) for one in "abc"])
        await writer.delete_messages("c", ["b"])
        await writer.append_many("c", [user("d", id="d"), user("e", id="e")])
        await writer.delete_conversation("c")
        first, _, second, last = await take(subscription, 4)
    assert (first.messages, set(first.gone_ids)) == ((), {"a", "b"})
    assert (second.messages, second.gone_ids) == ((), ())
    assert isinstance(last, ConversationDeleted)


async def test_events_name_the_removed_message_and_not_the_removed_summary_in_its_place(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe("c") as subscription:
        await writer.append_many("c", [user("a", id="a"), user("b", id="b")])
        await writer.compact("c", through="b", summary=user("s", id="s", metadata={"is_summary": True}))
        await writer.delete_messages("c", ["s"])
        await writer.delete_messages("c", ["b"])
        first, *_ = await take(subscription, 4)
    assert first.gone_ids == ("b",)


@ONE_AND_ALL
async def test_a_subscription_begins_when_it_is_made(store: Any, every: bool) -> None:
    await store.append("c", user("before"))
    subscription = _subscribe(store, every)
    await store.append("c", user("after"))
    [event] = await take(subscription, 1)
    assert [message.text for message in event.messages] == ["after"]
    waiting = asyncio.create_task(subscription.get())
    await subscription.aclose()
    assert await asyncio.wait_for(waiting, SOON) is None, "closing ends a waiting reader"


@ONE_AND_ALL
async def test_concurrent_writes_wait_until_a_subscription_has_begun(
    every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncHistoryStore("memory://") as store:
        subscription = _subscribe(store, every)
        start = subscription._start

        async def start_slowly() -> None:
            await asyncio.sleep(0.05)
            await start()

        monkeypatch.setattr(subscription, "_start", start_slowly)
        await asyncio.gather(*(store.append("c", user(str(number))) for number in range(3)))
        assert [event.revision for event in await take(subscription, 3)] == [1, 2, 3]


async def test_iteration_ends_with_close(store: Any) -> None:
    subscription = store.subscribe("c")
    await store.append_many("c", [user("a")])
    seen = []
    async for event in subscription:
        seen.append(event.revision)
        await subscription.aclose()
    assert seen == [1]


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


@pytest.mark.proves("all-conversations")
async def test_resume_after_cursors_repeats_and_loses_nothing(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe_all() as subscription:
        for number in range(6):
            await writer.append(f"c{number % 2}", user(str(number)))
        first = await take(subscription, 3)
        cursors = await asyncio.to_thread(lambda: subscription.cursors)
    await writer.append("c2", user("6"))  # while nobody watches
    texts = json.loads(json.dumps({name: str(cursor) for name, cursor in cursors.items()}))
    of_events = {event.conversation_id: event.cursor for event in first}
    for after in (cursors, texts, of_events):
        async with reader.subscribe_all(after=after) as resumed:
            rest = await take(resumed, 4)
            assert await resumed.get(timeout=0) is None
        assert _revisions(first + rest) == {"c0": [1, 2, 3], "c1": [1, 2, 3], "c2": [1]}
    async with reader.subscribe_all(after={}) as from_the_beginning:
        assert _revisions(await take(from_the_beginning, 7)) == {"c0": [1, 2, 3], "c1": [1, 2, 3], "c2": [1]}


@pytest.mark.proves("snapshot")
async def test_a_snapshot_and_its_changes_meet(stores: Any) -> None:
    writer, reader = stores(), stores()
    await writer.append("c", user("0"))
    snapshot = await reader.snapshot("c")
    await writer.append("c", user("1"))
    async with reader.subscribe("c", after=snapshot.cursor) as subscription:
        [event] = await take(subscription, 1)
    assert [message.text for message in (*snapshot.messages, *event.messages)] == ["0", "1"]


async def test_many_slow_subscribers_each_get_more_changes_than_one_read_holds(stores: Any) -> None:
    writer, reader = stores(), stores()
    subscriptions = [reader.subscribe("c") for _ in range(5)]
    for subscription in subscriptions:
        assert await subscription.get(timeout=0) is None
    for number in range(450):
        await writer.append("c", user(str(number)))
    for subscription in subscriptions:
        events = await take(subscription, 450)
        assert [event.messages[0].text for event in events] == [str(number) for number in range(450)]
        await subscription.aclose()


async def test_many_conversations_and_many_changes(stores: Any) -> None:
    """More than one read of a log, of a registry and of heads holds, for a subscriber that reads late."""
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


@pytest.mark.proves("reset")
@ONE_AND_ALL
async def test_a_trimmed_log_gives_one_reset(stores: Any, every: bool) -> None:
    store = stores(log_length=10)
    await store.append("c", user("0"))
    start = (await store.snapshot("c")).cursor
    for number in range(1, 400):  # redis trims whole nodes of the stream, of about a hundred entries
        await store.append("c", user(str(number)))
    async with _subscribe(store, every, after=_after(start, every)) as subscription:
        [event] = await take(subscription, 1)
        assert isinstance(event, Reset)
        assert (event.reason, event.revision) == ("log_trimmed", 400)
        await store.append("c", user("next"))
        [event] = await take(subscription, 1)
        assert (event.revision, event.messages[0].text) == (401, "next")


@pytest.mark.proves("all-conversations", "every-change")
@ONE_AND_ALL
async def test_subscribers_receive_a_deletion_and_a_reset_for_a_new_conversation(stores: Any, every: bool) -> None:
    writer, reader = stores(), stores()
    await writer.append("c", user("0"))
    async with _subscribe(reader, every) as subscription:
        assert await subscription.get(timeout=0) is None
        await (stores.until_all_watched() if every else stores.until_watched("c"))
        await writer.append("c", user("1"))
        await writer.delete_conversation("c")
        events = await take(subscription, 2)
        assert [type(event) for event in events] == [MessagesAppended, ConversationDeleted]
        assert [event.revision for event in events] == [2, 3]
        assert await subscription.get(timeout=0.2) is None
        assert not every or dict(subscription.cursors) == {}
        await writer.append("c", user("anew"))
        [event] = await take(subscription, 1)
        assert isinstance(event, Reset)
        assert (event.reason, event.revision) == ("conversation_replaced", 1)
        await writer.append("c", user("more"))
        [event] = await take(subscription, 1)
        assert (event.revision, event.messages[0].text) == (2, "more")


@pytest.mark.proves("reset")
@ONE_AND_ALL
async def test_a_cursor_of_a_deleted_conversation_gives_a_reset(stores: Any, store: Any, every: bool) -> None:
    stores.need_notifications()
    await store.append("c", user("0"))
    cursor = (await store.snapshot("c")).cursor
    await store.delete_conversation("c")
    async with _subscribe(store, every, after=_after(cursor, every)) as subscription:
        [event] = await take(subscription, 1)
        assert (type(event), event.reason, event.revision) == (Reset, "conversation_missing", 0)
        await store.append("c", user("anew"))
        [event] = await take(subscription, 1)
        assert (type(event), event.revision) == (MessagesAppended, 1)


@pytest.mark.proves("reset")
async def test_a_cursor_from_before_a_deleted_conversation_gives_a_reset(stores: Any) -> None:
    stores.need_notifications()
    store = stores()
    subscription = store.subscribe("c")
    await subscription.open()
    before = subscription.cursor
    await stores.until_watched("c")
    await subscription.aclose()
    await stores.until_unwatched("c")  # so that no log of the deleted conversation is kept
    await store.append("c", user("0"))
    await store.delete_conversation("c")
    subscription = store.subscribe("c")
    await subscription.open()
    after = subscription.cursor
    await subscription.aclose()
    await store.append("c", user("anew"))
    async with store.subscribe("c", after=before) as changes:
        [event] = await take(changes, 1)
        assert (type(event), event.reason, event.revision) == (Reset, "conversation_replaced", 1)
    async with store.subscribe("c", after=after) as changes:
        [event] = await take(changes, 1)
        assert (type(event), event.revision) == (MessagesAppended, 1)


@ONE_AND_ALL
@pytest.mark.full
async def test_an_expired_conversation_gives_a_reset(stores: Any, every: bool) -> None:
    store, lasting = stores(ttl=1.0, poll_interval=0.2), stores()
    while True:  # on a busy machine it may expire before it is read
        await store.append("c", user("x"))
        cursor = (await store.snapshot("c")).cursor
        if cursor.revision:
            break
    async with _subscribe(store, every, after=_after(cursor, every)) as subscription:
        [event] = await take(subscription, 1)
        assert (type(event), event.reason, event.revision) == (Reset, "conversation_missing", 0)
        async with store.subscribe("c") as new_subscription:
            await lasting.append("c", user("anew"))
            for one in (subscription, new_subscription):
                [event] = await take(one, 1)
                assert (type(event), event.revision) == (MessagesAppended, 1)


@pytest.mark.proves("reset")
async def test_a_life_of_a_conversation_that_was_missed_is_a_reset(stores: Any) -> None:
    store, lasting = stores(ttl=1.0), stores()
    async with lasting.subscribe("c") as subscription:
        await store.append("c", user("expires"))
        await until(lambda: is_gone(store))
        await lasting.append("c", user("anew"))
        [event] = await take(subscription, 1)
        assert (type(event), event.reason, event.revision) == (Reset, "conversation_replaced", 1)


async def test_namespaces_are_apart(stores: Any) -> None:
    if stores.backend == "memory":
        pytest.skip("a memory backend has no namespaces")
    reader = stores()
    async with reader.subscribe_all() as subscription, stores.other() as other:
        await other.append("c", user("elsewhere"))
        await reader.append("c", user("here"))
        [event] = await take(subscription, 1)
        assert event.messages[0].text == "here"
        assert await subscription.get(timeout=0) is None


@pytest.mark.proves("get-in-time")
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

    def on_error(error: Exception, event: Any) -> None:
        errors.append((str(error), event.revision))

    unsubscribe = await reader.on_change("c", callback, on_error=on_error)
    for number in range(5):
        await writer.append("c", user(str(number)))
    await asyncio.wait_for(done.wait(), SOON)
    await unsubscribe()
    await writer.append("c", user("not received"))
    assert seen == [1, 2, 3, 4, 5]
    assert errors == [("of the callback", 2)]
    await reader.on_change("c", callback)  # closing the store ends it


def test_a_synchronous_store_rejects_coroutine_functions() -> None:
    async def callback(*_: Any) -> None: ...

    refused = partial(pytest.raises, ConfigurationError)
    with HistoryStore("memory://") as store:
        with refused(match="callback must .* coroutine function .* AsyncHistoryStore"):
            store.on_change("c", callback)
        with refused(match="on_error must .* coroutine function"):
            store.on_change("c", print, on_error=callback)
        with refused(match="callback"):
            store.on_change("c", None)
        with refused(match="on_error must .* coroutine function"):
            capture(store, "c", on_error=callback)
        for call in (partial(store.erase_user, "u"), store.reindex):
            with pytest.raises(InvalidInputError, match=r"on_progress must .* coroutine function"):
                call(on_progress=callback)
        with refused(match="on_progress must .* coroutine function"):
            Compressor(store, summarizer=callback, on_progress=callback)
    with refused(match="embedder must .* coroutine function"):
        HistoryStore("memory://", embedder=callback, vectors=2)
