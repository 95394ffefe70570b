"""Pinned messages: no compaction, cap, plugin or prompt leaves them out."""

import logging
from typing import Any
from uuid import uuid4

import pytest

from redis_history import (
    History,
    assistant,
    compression,
    extractive_summarizer,
    tool,
    tool_result,
    tool_result_masking,
    tool_use,
    user,
)
from redis_history.agents.compaction import Policy
from redis_history.errors import ConflictError, MessageNotFoundError
from redis_history.store.operations import FindMessage
from redis_history.values.sizes import count_characters
from tests.conformance.conftest import ids
from tests.conformance.test_compaction import summary
from tests.support.faces import act_after

PIN = {"pinned": True}


async def _check_totals(store: Any) -> None:
    record, messages = await store.get_conversation("c"), await store.get("c")
    assert (record.message_count, record.characters) == (len(messages), sum(map(count_characters, messages)))


async def _talk(store: Any) -> None:
    await store.append_many(
        "c",
        [
            user("rules", id="a", metadata=PIN),
            user("b", id="b"),
            assistant(tool_use("t1", "look"), id="call"),
            tool(tool_result("t1", "found"), id="result"),
            assistant("d", id="d"),
            user("e", id="e"),
        ],
    )


async def test_a_message_is_pinned_and_unpinned(store: Any) -> None:
    await store.append("c", user("text", id="a", metadata={"k": 1}))
    pinned = await store.pin("c", "a")
    assert (pinned.metadata, pinned.is_pinned, pinned.text) == ({"k": 1, "pinned": True}, True, "text")
    assert await store.get("c") == [pinned]
    revision = (await store.get_conversation("c")).revision
    await store.pin("c", "a")
    assert (await store.get_conversation("c")).revision == revision
    assert (await store.pin("c", "a", pinned=False)).metadata == {"k": 1}
    for conversation_id, message_id in (("c", "x"), ("x", "a")):
        with pytest.raises(MessageNotFoundError):
            await store.pin(conversation_id, message_id)


@pytest.mark.parametrize("before", [{}, PIN])
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.proves("no-lost-update")
async def test_a_pin_undoes_no_edit(store: Any, before: dict[str, Any], pinned: bool) -> None:
    await store.append("c", user("my card is 4111", id="a", metadata=before))
    edited = user("redacted", id="a", metadata={**before, "k": 1})
    act_after(store, FindMessage, lambda: store.update_message("c", edited))
    changed = await store.pin("c", "a", pinned=pinned)
    assert (changed.text, changed.metadata) == ("redacted", {"k": 1, **(PIN if pinned else {})})
    assert await store.get("c") == [changed]


async def test_a_reply_is_pinned_at_its_beginning_or_after_its_end(store: Any) -> None:
    for name, before in (("r", {}), ("pinned", PIN)):
        async with store.stream("c", id=name, interval=0, metadata=before) as reply:
            await reply.write("the answer ")
            for pinned in (True, False):
                with pytest.raises(ConflictError, match="metadata"):
                    await store.pin("c", name, pinned=pinned)
            await reply.write("is 42")
        message = await store.get_message("c", name)
        assert (message.text, message.status, message.metadata) == ("the answer is 42", "complete", before)
        assert (await store.pin("c", name)).metadata == PIN


@pytest.mark.proves("pins")
async def test_compaction_leaves_pinned_messages_and_their_pairs(store: Any) -> None:
    await _talk(store)
    await store.pin("c", "result")
    seen = await store.get("c")
    done = await store.compact("c", through="d", summary=summary(id="s"), seen=seen[:5])
    assert done.count == 2
    assert ids(await store.get("c")) == ["a", "call", "result", "s", "e"]
    await _check_totals(store)
    with pytest.raises(MessageNotFoundError):
        await store.pin("c", "b")  # archived
    await store.expand("c", "s")
    assert ids(await store.get("c")) == ["a", "b", "call", "result", "d", "e"]


async def test_a_summary_is_not_pinned(store: Any) -> None:
    await _talk(store)
    await store.compact("c", through="d", summary=summary(id="s"))
    before = await store.get_message("c", "s")
    with pytest.raises(ConflictError, match="is a summary"):
        await store.pin("c", "s")
    assert await store.get_message("c", "s") == before
    assert await store.pin("c", "s", pinned=False) == before


async def test_a_policy_never_chooses_pinned_messages(store: Any) -> None:
    await _talk(store)
    await store.pin("c", "call")
    plan = Policy(max_messages=5, keep_recent=0).plan(await store.get("c"))
    assert not {"a", "call", "result"} & set(ids(plan.seen))
    only = [user(str(number), id=str(number), metadata=PIN) for number in range(10)]
    assert Policy(max_messages=5).plan(only) is None
    mixed = Policy(max_messages=5, keep_recent=0).plan([*only, user("x"), user("y"), assistant("z")])
    assert not mixed.enough


@pytest.mark.proves("pins")
async def test_a_cap_removes_no_pinned_message(stores: Any) -> None:
    store = stores(max_messages=5)
    await _talk(store)
    assert ids(await store.get("c")) == ["a", "call", "result", "d", "e"]
    await store.pin("c", "result")
    await store.append_many("c", [user("f", id="f"), user("g", id="g")])
    assert ids(await store.get("c")) == ["a", "call", "result", "f", "g"]
    await store.pin("c", "a", pinned=False)
    await store.append("c", user("h", id="h"))
    assert ids(await store.get("c")) == ["call", "result", "f", "g", "h"]
    await _check_totals(store)


async def test_a_cap_that_meets_only_pinned_messages_says_so(stores: Any, caplog: Any) -> None:
    store = stores(max_messages=3)
    name = uuid4().hex  # because it is said once for each name
    with caplog.at_level(logging.WARNING, "redis_history"):
        for number in range(6):
            await store.append(name, user("x", id=str(number), metadata=PIN))
    assert ids(await store.get(name)) == [*"012345"]
    said = [record.getMessage() for record in caplog.records if "pinned" in record.getMessage()]
    assert len(said) == 1
    assert name in said[0]


async def test_plugins_leave_pinned_messages() -> None:
    history = History(max_length=4)
    history.add_entry(user("rules", id="a", metadata=PIN))
    for name in "bcdefgh":
        history.add_entry(user("x", id=name))
    assert ids(history) == ["a", "f", "g", "h"]
    shrinking = History(history.entries).use(compression(extractive_summarizer(), keep_recent=0))
    await shrinking.reduce(max_entries=2)
    assert "a" in ids(shrinking)
    masked = History().use(tool_result_masking(keep_recent_results=0))
    for name, metadata in (("t1", PIN), ("t2", {})):
        masked.add_entry(assistant(tool_use(name, "f")))
        masked.add_entry(tool(tool_result(name, "long text"), metadata=metadata))
    assert [one.tool_results[0].content for one in masked.get_entries() if one.tool_results] == [
        "long text",
        "[MASKED - ref: t2]",
    ]
