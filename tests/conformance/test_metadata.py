"""`merge_metadata`: keys of a record's metadata are set without losing those that others set."""

import asyncio
from typing import Any

import pytest

from redis_history import Conversation, user
from redis_history.errors import ConversationNotFoundError, InvalidInputError
from redis_history.store.operations.record import MAX_RECORD_BYTES
from redis_history.values.events import ConversationUpdated
from tests.conformance.conftest import take


@pytest.mark.proves("records")
@pytest.mark.smoke
async def test_merged_keys_leave_the_others(store: Any) -> None:
    await store.create_conversation(
        Conversation("c", title="t", user_id=7, metadata={"a": 1, "b": {"x": 1}, "n": None})
    )
    async with store.subscribe("c") as changes:
        merged = await store.merge_metadata("c", {"b": {"y": 2}, "c": [], "a": None, "unknown": None})
        assert merged == await store.get_conversation("c")
        assert (merged.metadata, merged.title, merged.user_id) == ({"b": {"y": 2}, "c": [], "n": None}, "t", 7)
        assert merged.revision == 2
        [event] = await take(changes, 1)
    assert isinstance(event, ConversationUpdated)
    assert (event.revision, event.fields) == (2, {"metadata": merged.metadata})
    assert (await store.log("c"))[-1] == event


@pytest.mark.proves("records")
@pytest.mark.smoke
async def test_concurrent_merges_lose_nothing(stores: Any, full: bool) -> None:
    writers = [stores() for _ in range(4)]
    rounds = 25 if full else 6
    await writers[0].create_conversation(Conversation("c", metadata={"kept": 0, "shared": -1, "gone": 1}))
    calls = [
        writers[number % 4].merge_metadata("c", {f"own {number}": number, "shared": number, "gone": None})
        for number in range(4 * rounds)
    ]
    calls += [writers[number % 4].append("c", user("x")) for number in range(rounds)]
    calls += [writers[number % 4].update_conversation("c", title=str(number)) for number in range(rounds)]
    outcomes = (await asyncio.gather(*calls))[: 4 * rounds]
    found = await writers[0].get_conversation("c")
    shared = found.metadata.pop("shared")
    assert found.metadata == {"kept": 0} | {f"own {number}": number for number in range(4 * rounds)}
    assert found.revision == 1 + 6 * rounds, "each call made one change"
    assert found.message_count == rounds
    changes = [event for event in await writers[0].log("c", limit=1000) if isinstance(event, ConversationUpdated)]
    assert len(changes) == 1 + 5 * rounds
    assert 0 <= shared < 4 * rounds
    assert all(one.metadata[f"own {number}"] == number for number, one in enumerate(outcomes))


async def test_metadata_are_merged_into_a_conversation_without_a_record(store: Any) -> None:
    await store.append("c", user("x"))
    assert (await store.merge_metadata("c", {"a": None})).metadata == {}
    assert (await store.merge_metadata("c", {"a": 1})).metadata == {"a": 1}
    assert (await store.merge_metadata("c", {"a": None})).metadata == {}
    assert [message.text for message in await store.get("c")] == ["x"]


async def test_values_that_are_not_merged_keep_their_types(store: Any) -> None:
    """Numbers of 64 bits and empty lists would not survive in Lua."""
    given = {
        "large": 2**64 - 1, "small": -(2**63), "exact": 2**53 + 1, "float": 1.0, "integer": 1, "no list": [],
        "no map": {}, "deep": [{"a": [None, True, 0.1]}], "": "\0 你好",
    }  # fmt: skip
    await store.create_conversation(Conversation("c", metadata=given))
    await store.merge_metadata("c", {"new": given})
    found = (await store.merge_metadata("c", {"newer": 1.0})).metadata
    assert found == given | {"new": given, "newer": 1.0}
    assert type(found["float"]) is type(found["newer"]) is float
    assert type(found["integer"]) is int
    assert found["no list"] == found["new"]["no list"] == []


async def test_a_merge_needs_the_conversation(store: Any) -> None:
    with pytest.raises(ConversationNotFoundError):
        await store.merge_metadata("c", {"a": 1})
    assert await store.get_conversation("c") is None
    await store.create_conversation(Conversation("c", metadata={"old": 1}))
    await store.delete_conversation("c")
    with pytest.raises(ConversationNotFoundError):
        await store.merge_metadata("c", {"a": 1})
    await store.create_conversation(Conversation("c"))
    assert (await store.merge_metadata("c", {"a": 1})).metadata == {"a": 1}


async def test_merged_metadata_above_the_limit_are_rejected(store: Any) -> None:
    before = await store.create_conversation(Conversation("c", metadata={"a": "x" * (MAX_RECORD_BYTES // 2)}))
    with pytest.raises(InvalidInputError, match="100,000"):
        await store.merge_metadata("c", {"b": "x" * (MAX_RECORD_BYTES // 2)})
    assert await store.get_conversation("c") == before
    merged = await store.merge_metadata("c", {"b": "x" * (MAX_RECORD_BYTES // 2), "a": None})
    assert [*merged.metadata] == ["b"]


async def test_changes_of_the_given_dict_do_not_reach_the_store(store: Any) -> None:
    changes: dict[str, Any] = {"list": [1]}
    await store.create_conversation(Conversation("c"))
    merged = await store.merge_metadata("c", changes)
    changes["list"].append(2)
    merged.metadata["list"].append(3)
    assert (await store.get_conversation("c")).metadata == {"list": [1]}


async def test_merged_metadata_survive_what_removes_messages_and_are_copied(store: Any) -> None:
    await store.append_many("c", [user("x", id="a"), user("y", id="b")])
    await store.merge_metadata("c", {"a": 1})
    await store.compact("c", through="a", summary="s")
    fork = await store.fork("c", "d")
    await store.merge_metadata("d", {"b": 2})
    await store.erase("c")
    assert (await store.get_conversation("c")).metadata == fork.metadata == {"a": 1}
    assert (await store.get_conversation("d")).metadata == {"a": 1, "b": 2}
