import asyncio
from typing import Any

import pytest

from redis_history import (
    HistoryCleared,
    HistoryRestored,
    MessagesAppended,
    MessageUpdated,
    assistant,
    text,
    tool_use,
    user,
)
from redis_history.errors import BatchTooLargeError, InvalidMessageError, MessageNotFoundError, RevisionConflictError
from redis_history.types import Appended


def _texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.proves("no-lost-update")
@pytest.mark.smoke
async def test_an_update_keeps_the_position(store: Any) -> None:
    appended = await store.append_many("c", [user(name, id=name) for name in "abc"])
    updated = await store.update_message(
        "c", assistant("B", tool_use("1", "f", {"x": 1}), id="b", timestamp="2001-01-01")
    )
    assert updated.revision == 2
    assert updated.message.position == appended[1].message.position
    assert await store.get("c") == [appended[0].message, updated.message, appended[2].message]
    assert await store.get_message("c", "b") == updated.message


async def test_an_update_or_a_deletion_at_a_shared_time_finds_its_message(store: Any) -> None:
    names = [str(number) for number in range(300)]
    await store.append_many("c", [user(name, id=name, timestamp="2024-05-01") for name in names])
    assert await store.delete_messages("c", ["2", "137", "298"]) == 3
    for name in ("0", "1", "150", "299"):
        await store.update_message("c", user(f"new {name}", id=name))
    left = [name for name in names if name not in ("2", "137", "298")]
    wanted = [f"new {name}" if name in ("0", "1", "150", "299") else name for name in left]
    assert _texts(await store.get("c")) == wanted
    assert (await store.get_message("c", "138")).id == "138"


@pytest.mark.proves("no-lost-update")
async def test_the_same_content_again_changes_nothing(store: Any) -> None:
    await store.append("c", user("a", id="a"))
    first = await store.update_message("c", user("b", id="a"), expected_revision=1)
    again = await store.update_message("c", user("b", id="a"), expected_revision=1)
    assert (first.revision, again.revision) == (2, 2)
    assert (await store.snapshot("c")).cursor.revision == 2


async def test_an_update_that_fails_leaves_the_message_as_it_was(store: Any) -> None:
    with pytest.raises(MessageNotFoundError, match="nobody"):
        await store.update_message("nobody", user("x", id="m"))
    await store.append("c", user("a", id="a"))
    with pytest.raises(MessageNotFoundError):
        await store.update_message("c", user("x", id="m"))
    with pytest.raises(InvalidMessageError):
        await store.update_message("c", user("\ud800", id="a"))
    assert _texts(await store.get("c")) == ["a"]
    assert (await store.snapshot("c")).cursor.revision == 1


@pytest.mark.smoke
async def test_clear_keeps_the_conversation(store: Any) -> None:
    await store.append_many("c", [user(name, id=name) for name in "abc"])
    assert await store.clear("nobody") == 0
    assert await store.get_conversation("nobody") is None
    assert await store.clear("c") == 2
    assert await store.get("c") == []
    assert await store.get_message("c", "a") is None
    assert await store.clear("c") == 2
    again = await store.append("c", user("other", id="a"), must_exist=True)
    assert (again.revision, again.message.sequence, again.duplicate) == (3, 4, False)
    conversation = await store.get_conversation("c")
    assert (conversation.message_count, conversation.characters, conversation.estimated_tokens) == (1, 5, 2)


@pytest.mark.smoke
async def test_restore_replaces_all_messages(store: Any) -> None:
    old = await store.append_many("c", [user(name, id=name) for name in "abc"])
    assert await store.restore("c", [old[2].message, user("new", id="n"), user("A", id="a")]) == 2
    messages = await store.get("c")
    assert [message.id for message in messages] == ["c", "n", "a"]
    assert messages[0].timestamp == old[2].message.timestamp
    assert [message.sequence for message in messages] == [4, 5, 6]
    assert await store.get_message("c", "b") is None
    assert (await store.append("c", user("A", id="a"))).duplicate


@pytest.mark.proves("no-lost-update")
async def test_restore_on_condition_loses_no_append(stores: Any) -> None:
    """Either the restore comes first and the append stays, or the restore is rejected."""
    writer, restorer = stores(), stores()
    for round_ in range(20):
        name = f"c{round_}"
        await writer.append(name, user("old"))
        revision = (await restorer.snapshot(name)).cursor.revision
        _, restored = await asyncio.gather(
            writer.append(name, user("meanwhile", id="m")),
            restorer.restore(name, [user("new")], expected_revision=revision),
            return_exceptions=True,
        )
        texts = _texts(await writer.get(name))
        assert "meanwhile" in texts
        assert ("old" in texts) == isinstance(restored, RevisionConflictError)


async def test_rewrites_check_their_condition(store: Any) -> None:
    await store.append("c", user("a", id="a"))
    for call in (
        store.update_message("c", user("b", id="a"), expected_revision=7),
        store.clear("c", expected_revision=7),
        store.delete_messages("c", ["a"], expected_revision=7),
        store.restore("c", [user("b")], expected_revision=7),
    ):
        with pytest.raises(RevisionConflictError) as caught:
            await call
        assert caught.value.current_revision == 1
    assert _texts(await store.get("c")) == ["a"]
    with pytest.raises(BatchTooLargeError):
        await store.restore("c", [user("x") for _ in range(1001)])


@pytest.mark.proves("one-change")
async def test_a_long_conversation_is_cleared_at_once(store: Any) -> None:
    for _ in range(5):
        await store.append_many("c", [user("x") for _ in range(1000)])
    assert await store.clear("c", expected_revision=5) == 6
    assert await store.get("c") == []
    assert (await store.append("c", user("y"))).message.sequence == 5001


@pytest.mark.proves("every-change")
async def test_subscribers_receive_rewrites(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe("c") as subscription:
        events = []
        for write in (
            writer.append("c", user("a", id="a")),
            writer.update_message("c", user("b", text("more"), id="a")),
            writer.restore("c", [user("x", id="x"), user("y", id="y")]),
            writer.clear("c"),
        ):
            here = await writer.get("c")
            outcome = await write
            events.append(await subscription.get(timeout=10))
            if isinstance(outcome, Appended):
                updated = outcome
        restored = here
    assert [type(event) for event in events] == [MessagesAppended, MessageUpdated, HistoryRestored, HistoryCleared]
    assert [event.revision for event in events] == [1, 2, 3, 4]
    assert events[1].message == updated.message
    assert list(events[2].messages) == restored
