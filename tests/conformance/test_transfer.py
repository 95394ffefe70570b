"""Importing into any store, and out of it again."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import Conversation, HistoryStore, assistant, tool, tool_result, tool_use, user
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


async def _import(store: Any, path: Any, **options: Any) -> Any:
    """By the function that fits the store."""
    target = getattr(store, "_target", None)
    if target is None:
        return await async_import_messages(path, store, **options)
    return import_messages(path, target, **options)


async def exported(store: Any, path: Any, **options: Any) -> Any:
    target = getattr(store, "_target", None)
    if target is None:
        return await async_export_messages(store, path, **options)
    return export_messages(target, path, **options)


def bare(messages: Any) -> Any:
    return [msgspec.structs.replace(message, sequence=None) for message in messages]


@pytest.mark.proves("imports")
async def test_importing_twice_stores_once(store: Any, tmp_path: Any) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": f"c{n}", "messages": CHAT * 3, "title": f"T{n}"}) for n in (1, 2)]
    path.write_text("\n".join([lines[0], "{broken", lines[1]]))
    problems: list[Any] = []
    seen: list[Any] = []
    done = await _import(store, path, batch=4, on_error=problems.append, on_progress=seen.append)
    assert (done.conversations, done.messages, done.new, done.duplicates, done.problems) == (2, 12, 12, 0, 1)
    assert [(problem.path, problem.line) for problem in problems] == [(str(path), 2)]
    assert [one.messages for one in seen] == [4, 6, 6, 10, 12, 12]
    again = await _import(store, path, on_error=problems.append)
    assert (again.new, again.duplicates) == (0, 12)
    stored = await store.get("openai_chat:a:c1")
    assert [message.text for message in stored] == ["2+2?", "4"] * 3
    record = await store.get_conversation("openai_chat:a:c2")
    assert (record.title, record.message_count) == ("T2", 6)


async def test_a_conversation_that_grew_gets_what_is_new(store: Any, tmp_path: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": CHAT}))
    await _import(store, path)
    path.write_text(json.dumps({"id": "c", "messages": [*CHAT, {"role": "user", "content": "Thanks"}]}))
    done = await _import(store, path)
    assert (done.new, done.duplicates) == (1, 2)


async def test_a_message_that_is_there_with_other_content_is_told_and_the_rest_imported(
    store: Any, tmp_path: Any
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": CHAT * 2}))
    (transcript,) = read_transcripts(path)
    await store.append(transcript.conversation_id, user("mine", id=transcript.messages[1].id))
    problems: list[Any] = []
    done = await _import(store, path, on_error=problems.append)
    assert (done.messages, done.new, done.problems) == (4, 3, 1)
    assert transcript.messages[1].id in problems[0].reason


@pytest.mark.proves("imports")
@pytest.mark.smoke
async def test_out_and_in_again_is_the_same(stores: Any, tmp_path: Any) -> None:
    store = stores()
    await store.create_conversation(Conversation("c1", user_id="ann", title="T", metadata={"k": [1, None]}))
    said = [
        user("hi", timestamp=datetime(2024, 1, 2, 3, 4, 5, 678901, UTC), metadata={"raw": b"\x00\xff", "&": {"&x": 1}}),
        assistant(tool_use("t", "f", {"at": "x"}), timestamp=datetime(2024, 1, 2, tzinfo=UTC)),
        tool(tool_result("t", [{"type": "text", "text": "✓"}]), timestamp=datetime(2024, 1, 3, tzinfo=UTC)),
    ]
    await store.append_many("c1", said)
    await store.append("c2", user("alone"))
    path = tmp_path / "out.jsonl"
    done = await exported(store, path)
    assert (done.conversations, done.messages) == (2, 4)
    before = {name: await store.get(name) for name in ("c1", "c2")}
    assert [t.conversation_id for t in read_transcripts(path)] == ["c2", "c1"]
    for name in before:
        await store.delete_conversation(name)
    await _import(store, path)
    for name, expected in before.items():
        assert bare(await store.get(name)) == bare(expected)
    record = await store.get_conversation("c1")
    assert (record.user_id, record.title, record.metadata) == ("ann", "T", {"k": [1, None]})


async def test_owners_go_out_and_in_with_their_types(store: Any, tmp_path: Any) -> None:
    owners: dict[str, tuple[Any, Any]] = {"a": (1, "1"), "b": ("1", 1), "c": (0, -(2**63)), "d": (2**63 - 1, "")}
    for name, (owner, auditing) in owners.items():
        await store.create_conversation(Conversation(name, user_id=owner, auditing_id=auditing))
        await store.append(name, user("x"))
    path = tmp_path / "out.jsonl"
    await exported(store, path)
    for name in owners:
        await store.delete_conversation(name)
    await _import(store, path)
    for name, expected in owners.items():
        record = await store.get_conversation(name)
        found = (record.user_id, record.auditing_id)
        assert (found, [type(one) for one in found]) == (expected, [type(one) for one in expected])


async def test_some_conversations_into_a_stream(store: Any) -> None:
    await store.append("c1", user("a"))
    await store.append("c2", user("b"))
    stream = io.BytesIO()
    done = await exported(store, stream, conversation_ids=["c2"])
    assert (done.conversations, done.messages) == (1, 1)
    assert stream.getvalue().count(b"\n") == 2
    with pytest.raises(InvalidInputError, match="nobody"):
        await exported(store, stream, conversation_ids=["nobody"])


async def test_a_failed_export_leaves_the_file_that_was_there(store: Any, tmp_path: Any) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    with pytest.raises(InvalidInputError):
        await exported(store, path, conversation_ids=["nobody"])
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("out")] == ["out.jsonl"]


@given(conversation=st.lists(any_messages(), min_size=1, max_size=3, unique_by=lambda message: message.id))
def test_any_message_comes_back_from_a_file(conversation: list[Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("out") / "out.jsonl"
    with HistoryStore("memory://") as store, HistoryStore("memory://") as other:
        store.append_many("c", conversation)
        export_messages(store, path)
        import_messages(path, other)
        assert bare(other.get("c")) == bare(store.get("c"))


@pytest.mark.parametrize("batch", [0, 1001, True, "5"])
def test_bad_batches(batch: Any, tmp_path: Any) -> None:
    with HistoryStore("memory://") as store, pytest.raises(InvalidInputError, match="batch"):
        import_messages(tmp_path, store, batch=batch)
