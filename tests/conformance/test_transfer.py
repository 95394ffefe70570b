"""Imports into any store, and exports. Compacted conversations keep their summaries and originals."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import Conversation, HistoryStore, assistant, system, tool, tool_result, tool_use, user
from redis_history.errors import InvalidInputError
from redis_history.importers import (
    async_export_messages,
    async_import_messages,
    export_messages,
    import_messages,
    read_transcripts,
)
from tests.property.strategies import messages as any_messages

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


async def import_into(store: Any, path: Path, **options: Any) -> Any:
    target = getattr(store, "_target", None)  # the synchronous store
    return import_messages(path, target, **options) if target else await async_import_messages(path, store, **options)


async def exported(store: Any, path: Any, **options: Any) -> Any:
    target = getattr(store, "_target", None)
    return export_messages(target, path, **options) if target else await async_export_messages(store, path, **options)


def bare(messages: Any) -> Any:
    return [msgspec.structs.replace(message, sequence=None) for message in messages]


@pytest.mark.proves("imports")
async def test_importing_twice_stores_once(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": f"c{n}", "messages": CHAT * 3, "title": f"T{n}"}) for n in (1, 2)]
    path.write_text("\n".join([lines[0], "{broken", lines[1]]))
    problems: list[Any] = []
    progress: list[Any] = []
    done = await import_into(store, path, batch=4, on_error=problems.append, on_progress=progress.append)
    assert (done.conversations, done.messages, done.new, done.duplicates, done.problems) == (2, 12, 12, 0, 1)
    assert [(problem.path, problem.line) for problem in problems] == [(str(path), 2)]
    assert [one.messages for one in progress] == [4, 6, 6, 10, 12, 12]
    path.write_text(json.dumps({"id": "c1", "messages": [*CHAT * 3, {"role": "user", "content": "Thanks"}]}))
    done = await import_into(store, path)
    assert (done.new, done.duplicates) == (1, 6)
    texts = [message.text for message in await store.get("openai_chat:a:c1")]
    assert texts == [*["2+2?", "4"] * 3, "Thanks"]
    record = await store.get_conversation("openai_chat:a:c2")
    assert (record.title, record.message_count) == ("T2", 6)


async def test_a_message_with_other_content_in_the_store_is_reported(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": CHAT * 2}))
    (transcript,) = read_transcripts(path)
    await store.append(transcript.conversation_id, user("mine", id=transcript.messages[1].id))
    problems: list[Any] = []
    done = await import_into(store, path, on_error=problems.append)
    assert (done.messages, done.new, done.problems) == (4, 3, 1)
    assert transcript.messages[1].id in problems[0].reason


@pytest.mark.proves("imports")
@pytest.mark.smoke
async def test_an_export_comes_back_equal(stores: Any, tmp_path: Path) -> None:
    store = stores()
    await store.create_conversation(Conversation("c1", user_id="ann", title="T", metadata={"k": [1, None]}))
    messages = [
        user("hi", timestamp=datetime(2024, 1, 2, 3, 4, 5, 678901, UTC), metadata={"raw": b"\x00\xff", "&": {"&x": 1}}),
        assistant(tool_use("t", "f", {"at": "x"}), timestamp=datetime(2024, 1, 2, tzinfo=UTC)),
        tool(tool_result("t", [{"type": "text", "text": "✓"}]), timestamp=datetime(2024, 1, 3, tzinfo=UTC)),
    ]
    await store.append_many("c1", messages)
    await store.append("c2", user("alone"))
    path = tmp_path / "out.jsonl"
    done = await exported(store, path)
    assert (done.conversations, done.messages) == (2, 4)
    before = {name: await store.get(name) for name in ("c1", "c2")}
    for name in before:
        await store.delete_conversation(name)
    await import_into(store, path)
    for name, expected in before.items():
        assert bare(await store.get(name)) == bare(expected)
    record = await store.get_conversation("c1")
    assert (record.user_id, record.title, record.metadata) == ("ann", "T", {"k": [1, None]})


@given(conversation=st.lists(any_messages(), min_size=1, max_size=3, unique_by=lambda message: message.id))
def test_any_message_comes_back_from_a_file(conversation: list[Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("out") / "out.jsonl"
    with HistoryStore("memory://") as store, HistoryStore("memory://") as other:
        store.append_many("c", conversation)
        export_messages(store, path)
        import_messages(path, other)
        assert bare(other.get("c")) == bare(store.get("c"))


def test_owners_come_back_with_their_types(tmp_path: Path) -> None:
    owners: dict[str, tuple[Any, Any]] = {"a": (1, "1"), "b": ("1", 1), "c": (0, -(2**63)), "d": (2**63 - 1, "")}
    path = tmp_path / "out.jsonl"
    with HistoryStore("memory://") as store, HistoryStore("memory://") as other:
        for name, (owner, auditor) in owners.items():
            store.create_conversation(Conversation(name, user_id=owner, auditing_id=auditor))
            store.append(name, user("x"))
        export_messages(store, path)
        import_messages(path, other)
        for name, expected in owners.items():
            record = other.get_conversation(name)
            assert record is not None
            found = (record.user_id, record.auditing_id)
            assert (found, [type(one) for one in found]) == (expected, [type(one) for one in expected])


async def test_some_conversations_are_exported(store: Any, tmp_path: Path) -> None:
    await store.append("c1", user("a"))
    await store.append("c2", user("b"))
    stream = io.BytesIO()
    done = await exported(store, stream, conversation_ids=["c2"])
    assert (done.conversations, done.messages) == (1, 1)
    assert stream.getvalue().count(b"\n") == 2
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    with pytest.raises(InvalidInputError, match="nobody"):
        await exported(store, path, conversation_ids=["c1", "nobody"])
    assert path.read_text() == "before", "a failed export leaves the file"
    assert [name for name in os.listdir(tmp_path) if "out" in name] == ["out.jsonl"]  # noqa: PTH208


@pytest.mark.parametrize("batch", [0, 1001, True, "5"])
def test_an_invalid_batch_is_rejected(batch: Any, tmp_path: Path) -> None:
    with HistoryStore("memory://") as store, pytest.raises(InvalidInputError, match="batch"):
        import_messages(tmp_path, store, batch=batch)


# Compacted conversations


def at(second: int) -> datetime:
    return datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=second)


@pytest.fixture
def compacted(stores: Any) -> Callable[[], Awaitable[Any]]:
    """Makes a store with a conversation of two summaries, the second with the first in it; system messages, a call with
    its result, and a late message with an earlier time."""

    async def compacted() -> Any:
        store = stores()
        messages = [system("Be kind.", timestamp=at(0)), *(user(f"{n}", timestamp=at(n)) for n in range(1, 7))]
        messages += [
            assistant(tool_use("t", "f", {}), timestamp=at(7)),
            tool(tool_result("t", "ok"), timestamp=at(8)),
            system("Be brief.", timestamp=at(9)),
            *(user(f"{n}", timestamp=at(n)) for n in range(10, 20)),
        ]
        await store.append_many("c", messages)
        every = await store.get("c")
        first = await store.compact("c", through=every[4], summary="of the first four", seen=every[1:5])
        second = [first.summary, *(message for message in every[5:13] if message.role != "system")]
        await store.compact("c", through=every[12], summary="of the first twelve", seen=second)
        await store.append("c", user("remembered late", timestamp=at(3)))
        await store.append("c", user("goes on", timestamp=at(30)))
        return store

    return compacted


async def state_of(store: Any) -> tuple[Any, Any]:
    return bare(await store.get("c")), bare(await store.get("c", include_archived=True))


async def expand_all(store: Any) -> list[Any]:
    """The states of the conversation while every summary is expanded."""
    states = []
    while summary := next((message for message in await store.get("c") if message.is_summary), None):
        await store.expand("c", summary.id)
        states.append(await state_of(store))
    return states


@pytest.mark.compaction
@pytest.mark.proves("imports")
@pytest.mark.parametrize("batch", [3, 200])
async def test_an_archive_comes_back_as_an_archive(compacted: Any, tmp_path: Path, batch: int) -> None:
    store = await compacted()
    path = tmp_path / "c.jsonl"
    done = await exported(store, path, include_archived=True)
    expected, record = await state_of(store), await store.get_conversation("c")
    assert done.messages == len(expected[1])
    again = await import_into(store, path)
    assert (again.new, again.duplicates, again.problems) == (0, again.messages, 0)
    assert (await store.get_conversation("c")).revision == record.revision, "nothing was changed"
    expansions = await expand_all(store)
    assert len(expansions) == 2
    await store.delete_conversation("c")
    counts = await import_into(store, path, batch=batch)
    assert (counts.messages, counts.new, counts.duplicates, counts.problems) == (done.messages, done.messages, 0, 0)
    assert await state_of(store) == expected
    assert await expand_all(store) == expansions


@pytest.mark.compaction
async def test_a_store_keeps_its_own_compaction(compacted: Any, tmp_path: Path) -> None:
    """The summaries of the file become messages, and are reported."""
    store = await compacted()
    path = tmp_path / "c.jsonl"
    await exported(store, path, include_archived=True)
    originals = [message for message in await store.get("c", include_archived=True) if not message.is_summary]
    await store.delete_conversation("c")
    await store.append_many("c", bare(originals))
    mine = await store.compact("c", through=(await store.get("c"))[6], summary="mine")
    problems: list[Any] = []
    counts = await import_into(store, path, on_error=problems.append)
    assert (counts.new, counts.problems) == (2, 2)
    assert all("summary" in problem.reason for problem in problems)
    live, every = await state_of(store)
    assert {mine.summary.text, "of the first four", "of the first twelve"} <= {message.text for message in live}
    assert {message.text for message in originals} <= {message.text for message in every}


@pytest.mark.compaction
async def test_archived_messages_without_a_summary_are_live_again(stores: Any, tmp_path: Path) -> None:
    store = stores()
    await store.append_many("c", [user(f"{number}", timestamp=at(number)) for number in range(6)])
    done = await store.compact("c", through=(await store.get("c"))[3], summary="short")
    await store.delete_messages("c", [done.summary.id])
    path = tmp_path / "c.jsonl"
    await exported(store, path, include_archived=True)
    await store.delete_conversation("c")
    await import_into(store, path)
    assert [message.text for message in await store.get("c")] == [f"{number}" for number in range(6)]


@pytest.mark.compaction
async def test_without_the_archive_a_summary_is_a_message(compacted: Any, tmp_path: Path) -> None:
    store = await compacted()
    path = tmp_path / "c.jsonl"
    await exported(store, path)
    live, _ = await state_of(store)
    await store.delete_conversation("c")
    await import_into(store, path)
    assert await state_of(store) == (live, live)
