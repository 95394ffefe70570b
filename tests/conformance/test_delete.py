from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_history import user
from redis_history.errors import RevisionConflictError


@pytest.mark.proves("deletion")
@pytest.mark.smoke
async def test_messages_are_deleted_by_id_and_unknown_ids_ignored(store: Any) -> None:
    await store.append_many("c", [user(name, id=name) for name in "abcde"])
    assert await store.delete_messages("c", ["b", "unknown", "d", "b"]) == 2
    assert [message.id for message in await store.get("c")] == ["a", "c", "e"]
    assert await store.get_message("c", "b") is None
    assert (await store.snapshot("c")).message_count == 3
    assert (await store.snapshot("c")).cursor.revision == 2


async def test_deleting_nothing_changes_nothing(store: Any) -> None:
    assert await store.delete_messages("nobody", ["a"]) == 0
    await store.append("c", user("a"))
    assert await store.delete_messages("c", []) == 0
    assert await store.delete_messages("c", ["unknown"]) == 0
    assert (await store.snapshot("c")).cursor.revision == 1


async def test_a_deleted_id_may_be_appended_again(store: Any) -> None:
    await store.append_many("c", [user("a", id="a"), user("b", id="b")])
    await store.delete_messages("c", ["a"])
    again = await store.append("c", user("other", id="a"))
    assert not again.duplicate
    assert again.message.sequence == 3
    assert [message.text for message in await store.get("c")] == ["b", "other"]


async def test_the_same_delete_from_many_callers_counts_once(stores: Any) -> None:
    deleters = [stores() for _ in range(4)]
    await deleters[0].append_many("c", [user("x", id=str(number)) for number in range(10)])
    counts = await asyncio.gather(*(store.delete_messages("c", [str(n) for n in range(10)]) for store in deleters * 3))
    assert sorted(counts) == [0] * 11 + [10]


async def test_delete_on_condition(store: Any) -> None:
    await store.append("c", user("a", id="a"))
    with pytest.raises(RevisionConflictError) as caught:
        await store.delete_messages("c", ["a"], expected_revision=7)
    assert (caught.value.current_revision, caught.value.expected_revision) == (1, 7)
    assert await store.delete_messages("c", ["a"], expected_revision=1) == 1
    assert await store.get("c") == []
    assert (await store.append("c", user("b"), must_exist=True)).revision == 3, "empty, it still exists"


@pytest.mark.smoke
async def test_a_deleted_conversation_can_be_created_again(store: Any) -> None:
    await store.append_many("c", [user("a", id="a"), user("b")])
    await store.append("other", user("stays"))
    before = (await store.snapshot("c")).cursor
    assert await store.delete_conversation("c") is True
    assert await store.delete_conversation("c") is False
    assert await store.get("c") == []
    assert await store.get_message("c", "a") is None
    assert len(await store.get("other")) == 1
    again = await store.append("c", user("a", id="a"))
    assert (again.revision, again.message.sequence, again.duplicate) == (1, 1, False)
    assert (await store.snapshot("c")).cursor.epoch != before.epoch
