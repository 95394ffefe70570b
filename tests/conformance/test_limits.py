"""Caps and time to live."""

import asyncio
import time
from itertools import islice
from typing import Any

import pytest

from redis_history import (
    AsyncHistoryStore,
    Conversation,
    Message,
    Participant,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError, MessageConflictError, RevisionConflictError
from redis_history.store.operations.keys import Keyspace
from redis_history.values.pairs import marks, oldest_with_results
from tests.conformance.conftest import is_gone
from tests.conftest import Servers
from tests.support.pairs import conversations
from tests.support.servers import lasting, until


@pytest.mark.proves("max-messages")
@pytest.mark.smoke
async def test_the_oldest_messages_are_removed_in_the_same_change(stores: Any) -> None:
    store = stores(max_messages=5)
    async with store.subscribe("c") as subscription:
        for number in range(8):
            await store.append("c", user(str(number), id=str(number)))
        events = [await subscription.get(timeout=10) for _ in range(8)]
    assert [message.text for message in await store.get("c")] == ["3", "4", "5", "6", "7"]
    assert [event.removed_ids for event in events] == [()] * 5 + [("0",), ("1",), ("2",)]
    assert [event.revision for event in events] == list(range(1, 9))
    conversation = await store.get_conversation("c")
    assert (conversation.message_count, conversation.characters, conversation.estimated_tokens) == (5, 5, 5)
    assert await store.get_message("c", "0") is None
    assert not (await store.append("c", user("0", id="0"))).duplicate


async def test_a_cap_applies_to_batches_restores_and_old_messages(stores: Any) -> None:
    store = stores(max_messages=3)
    await store.append_many("c", [user(str(number)) for number in range(20)])
    assert [message.text for message in await store.get("c")] == ["17", "18", "19"]
    await store.restore("c", [user(str(number)) for number in range(5)])
    assert [message.text for message in await store.get("c")] == ["2", "3", "4"]
    assert (await store.append("c", user("ancient", timestamp="1999-01-01"))).revision == 3
    assert [message.text for message in await store.get("c")] == ["2", "3", "4"]


@pytest.mark.proves("pairs")
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
async def test_no_cap_tears_a_pair(stores: Any, most: int) -> None:
    """Agents that number their calls alike, in any order, after every append. tests/unit/test_pairs.py shows for all
    orders that the specification tears nothing; this shows that the backends follow it."""
    store = stores(max_messages=most)
    step = 17 if stores.backend in ("memory", "redis") else 71
    chosen = [one for named in (True, False) for one in islice(conversations(named=named), most, None, step)]

    def left_of(messages: list[Message]) -> list[Message]:
        gone = oldest_with_results(map(marks, messages), len(messages) - most)
        return [one for index, one in enumerate(messages) if index not in gone]

    async def check(name: str, messages: list[Message]) -> None:
        here: list[Message] = []
        for message in messages:
            here = left_of([*here, message])
            await store.append(name, message)
            assert [one.id for one in await store.get(name)] == [one.id for one in here]
        await store.restore(name, messages)
        assert [one.id for one in await store.get(name)] == [one.id for one in left_of(messages)]
        assert (await store.get_conversation(name)).message_count == len(left_of(messages))

    for at in range(0, len(chosen), 20):
        await asyncio.gather(*(check(f"c{at + i}", one) for i, one in enumerate(chosen[at : at + 20])))


async def test_a_cap_removes_whole_groups_far_apart(stores: Any) -> None:
    """Results hundreds of messages after their calls, and calls that leave because their result leaves with others."""
    agents = [Participant("agent", name) for name in "abc"]
    calls = [assistant(tool_use("1", "f"), id=f"call {who.id}", participant=who) for who in agents]
    between = [user("x", id=f"{number:04}") for number in range(1500)]
    two = [assistant(tool_use("2", "f"), id="call 2"), assistant(tool_use("3", "f"), id="call 3")]
    both = tool(tool_result("2", "x"), tool_result("3", "x"), id="both")
    results = [tool(tool_result("1", "x"), id=f"result {who.id}", participant=who) for who in agents]
    messages = [calls[0], two[0], calls[1], two[1], *between[:700], calls[2], results[2], results[0], both, results[1]]
    store = stores(max_messages=len(messages))
    await store.append_many("c", messages)
    ids = [message.id for message in messages]
    for number, gone in enumerate(
        (["call a", "result a"], [], ["call 2", "call 3", "both"], [], [], ["call b", "result b"], [], ["0000"])
    ):
        last = between[1000 + number]
        await store.append("c", last)
        ids = [one for one in ids if one not in gone] + [last.id]
        assert [message.id for message in await store.get("c")] == ids
    await store.restore("c", [*messages, user("y", id="y"), user("z", id="z"), user("end", id="end")])
    ids = [one.id for one in messages if one.id not in ("call a", "result a", "call 2", "call 3", "both")]
    assert [message.id for message in await store.get("c")] == [*ids, "y", "z", "end"]


@pytest.mark.proves("max-messages", "every-change")
async def test_a_backlog_far_above_a_cap_leaves_in_several_changes(stores: Any) -> None:
    """The cap is that of another store, so the conversation has many more messages when it first applies. Calls whose
    results come late, or never, do not stop it."""
    if stores.backend == "memory":
        pytest.skip("a cap belongs to the backend here, so there is no backlog")
    store = stores()
    opened = assistant(tool_use("open", "f"), id="open")
    far, result = assistant(tool_use("far", "f"), id="far"), tool(tool_result("far", "x"), id="result")
    messages = [opened, far, *(user("x", id=f"{number:04}") for number in range(2000)), result, user("y", id="y")]
    for start in range(0, len(messages), 500):
        await store.append_many("c", messages[start : start + 500])
    cursor = (await store.snapshot("c")).cursor
    capped = stores(max_messages=3)
    with pytest.raises(RevisionConflictError):
        await capped.append("c", user("z", id="z"), expected_revision=cursor.revision - 1)
    with pytest.raises(MessageConflictError):
        await capped.append("c", user("other", id="y"))
    assert (await store.get_conversation("c")).message_count == len(messages)
    appended = await capped.append("c", user("z", id="z"), expected_revision=cursor.revision)
    assert [message.id for message in await store.get("c")] == ["1999", "y", "z"]
    assert (await store.get_conversation("c")).message_count == 3
    assert (await capped.append("c", user("z", id="z"))).duplicate
    async with store.subscribe("c", after=cursor) as subscription:
        events = [await subscription.get(timeout=10) for _ in range(appended.revision - cursor.revision)]
    assert [event.revision for event in events] == [*range(cursor.revision + 1, appended.revision + 1)]
    gone = [message_id for event in events[:-1] for message_id in event.message_ids] + [*events[-1].removed_ids]
    assert sorted(gone) == sorted(message.id for message in messages if message.id not in ("1999", "y"))
    assert max(len(event.message_ids) for event in events[:-1]) <= 250


@pytest.mark.proves("max-messages")
async def test_memory_has_caps_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """It warns once when the first message, and when the first conversation, is removed."""
    async with AsyncHistoryStore("memory://") as store:
        await store.append_many("c", [user(str(number)) for number in range(600)])
        assert len(await store.get("c")) == 500
        for number in range(520):
            await store.append(f"c{number}", user("x"))
        listed = await store.list_conversations(limit=1000)
        assert len(listed) == 500
        assert await store.get("c") == []
        await store.append_many("more", [user(str(number)) for number in range(600)])
    what = [record.getMessage().partition(":// keeps only the last 500 ")[2][:8] for record in caplog.records]
    assert what == ["messages", "conversa"]
    with pytest.raises(ConfigurationError):
        AsyncHistoryStore("redis://localhost", max_conversations=5)


@pytest.mark.proves("ttl")
@pytest.mark.full
async def test_a_conversation_ends_with_all_that_belongs_to_it(stores: Any, server_of: Servers, namespace: str) -> None:
    store = stores(ttl=1.0)
    start = time.monotonic()
    await store.create_conversation(Conversation("c", title="x"))
    await store.append_many("c", [user(str(number)) for number in range(10)])

    await until(lambda: is_gone(store))
    assert time.monotonic() - start >= 1.0
    assert await store.get("c") == []
    assert await store.list_conversations() == []
    assert (await store.snapshot("c")).cursor.revision == 0
    if stores.backend != "memory":
        client = server_of(stores.backend).client()
        await until(lambda: not any(lasting(client, pattern) for pattern in Keyspace(namespace).patterns))
        client.close()
    again = await store.append("c", user("anew"))
    assert (again.revision, again.message.sequence) == (1, 1)
