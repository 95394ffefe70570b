"""Subscriptions to the conversations of one owner, and events with their owner."""

from typing import Any

import pytest

from redis_history import Conversation, ConversationDeleted, MessagesAppended, errors, user
from tests.conformance.conftest import take


async def _create(store: Any, conversation_id: str, owner: int | str | None) -> None:
    await store.create_conversation(Conversation(conversation_id, user_id=owner))


async def test_events_have_the_owner(store: Any) -> None:
    await _create(store, "c", 7)
    async with store.subscribe("c") as one, store.subscribe_all() as every:
        await store.append("c", user("x"))
        await store.update_conversation("c", user_id="ann")
        for subscription in (one, every):
            events = await take(subscription, 2)
            assert events[-1].user_id == "ann"
            assert {event.user_id for event in events} <= {7, "ann"}
    assert {event.user_id for event in await store.log("c")} == {"ann"}
    async with store.subscribe("d") as nobody:
        await store.append("d", user("x"))
        [event] = await take(nobody, 1)
        assert event.user_id is None


async def test_a_subscription_to_one_owner(stores: Any) -> None:
    store, other = stores(poll_interval=0.2), stores()
    for name, owner in (("a1", "ann"), ("b1", "bob"), ("n1", None), ("one", 1), ("text", "1")):
        await _create(store, name, owner)
    async with store.subscribe_all(user_id="ann") as subscription:
        for name in ("a1", "b1", "n1"):
            await other.append(name, user(name))
        await _create(other, "b2", "bob")
        await _create(other, "a2", "ann")
        await other.append("b2", user("b2"))
        await other.append("a2", user("a2"))
        events = await take(subscription, 3)
        assert {event.conversation_id for event in events} == {"a1", "a2"}
        assert {event.user_id for event in events} == {"ann"}
        await other.update_conversation("n1", user_id="ann")  # with its whole log
        joined = await take(subscription, 3)
        assert [event.conversation_id for event in joined] == 3 * ["n1"]
        await other.delete_conversation("a2")
        await other.delete_conversation("b2")
        [gone] = await take(subscription, 1)
        assert (type(gone), gone.conversation_id, gone.user_id) == (ConversationDeleted, "a2", "ann")
        await other.update_conversation("a1", user_id="bob")
        await other.append("a1", user("secret"))
        await other.append("n1", user("last"))
        [last] = await take(subscription, 1)
        assert (type(last), last.conversation_id) == (MessagesAppended, "n1")
        cursors = subscription.cursors
        assert "b1" not in cursors
    async with store.subscribe_all(user_id="ann", after=cursors) as resumed:
        await other.append("b1", user("x"))
        await other.append("n1", user("more"))
        [event] = await take(resumed, 1)
        assert (event.conversation_id, event.messages[0].text) == ("n1", "more")
    async with store.subscribe_all(user_id=1) as number:
        await other.append("text", user("x"))
        await other.append("one", user("x"))
        [event] = await take(number, 1)
        assert (event.conversation_id, event.user_id) == ("one", 1)


@pytest.mark.backends("memory")
async def test_owners_that_no_conversation_has_are_rejected(store: Any) -> None:
    for wrong in (1.5, ["ann"], "\ud800"):
        with pytest.raises(errors.InvalidInputError):
            store.subscribe_all(user_id=wrong)
