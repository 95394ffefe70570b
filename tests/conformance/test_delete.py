from typing import Any

import pytest

from redis_history import user


@pytest.mark.proves("deletion")
@pytest.mark.smoke
async def test_messages_are_deleted_by_id_and_unknown_ids_ignored(store: Any) -> None:
    await store.append_many("c", [user(name, id=name) for name in "abcde"])
    assert await store.delete_messages("c", ["b", "unknown", "d", "b"]) == 2
    assert [message.id for message in await store.get("c")] == ["a", "c", "e"]
    assert await store.get_message("c", "b") is None
    assert await store.delete_messages("c", ["unknown"]) == 0
    assert (await store.snapshot("c")).message_count == 3
    assert (await store.snapshot("c")).cursor.revision == 2


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
