"""Compacted conversations are exported and imported unchanged: live messages, summaries, and originals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redis_history import assistant, system, tool, tool_result, tool_use, user
from redis_history.importers import read_transcripts
from tests.conformance.test_transfer import _import, bare, exported

START = datetime(2026, 1, 2, tzinfo=UTC)


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


async def _compacted(store: Any) -> None:
    """Two summaries, the second with the first in it; system messages, a call with its result, and a late message
    with an earlier time."""
    said = [system("Be kind.", timestamp=at(0)), *(user(f"{n}", timestamp=at(n)) for n in range(1, 7))]
    said += [
        assistant(tool_use("t", "f", {}), timestamp=at(7)),
        tool(tool_result("t", "ok"), timestamp=at(8)),
        system("Be brief.", timestamp=at(9)),
        *(user(f"{n}", timestamp=at(n)) for n in range(10, 20)),
    ]
    await store.append_many("c", said)
    every = await store.get("c")
    first = await store.compact("c", through=every[4], summary="of the first four", seen=every[1:5])
    second = [first.summary, *(message for message in every[5:13] if message.role != "system")]
    await store.compact("c", through=every[12], summary="of the first twelve", seen=second)
    await store.append("c", user("remembered late", timestamp=at(3)))
    await store.append("c", user("goes on", timestamp=at(30)))


async def _state(store: Any) -> tuple[Any, Any]:
    return bare(await store.get("c")), bare(await store.get("c", include_archived=True))


async def _expanded(store: Any) -> list[Any]:
    """All the states on the way back."""
    states = []
    while summary := next((message for message in await store.get("c") if message.is_summary), None):
        await store.expand("c", summary.id)
        states.append(await _state(store))
    return states


@pytest.mark.proves("imports")
@pytest.mark.parametrize("batch", [1, 3, 200])
async def test_an_archive_comes_back_as_an_archive(stores: Any, tmp_path: Any, batch: int) -> None:
    store = stores()
    await _compacted(store)
    path = tmp_path / "c.jsonl"
    done = await exported(store, path, include_archived=True)
    expected = await _state(store)
    assert done.messages == len(expected[1])
    ways_back = await _expanded(store)
    assert len(ways_back) == 2
    await store.delete_conversation("c")
    counts = await _import(store, path, batch=batch)
    assert (counts.messages, counts.new, counts.duplicates, counts.problems) == (done.messages, done.messages, 0, 0)
    assert await _state(store) == expected
    assert await _expanded(store) == ways_back


async def test_again_nothing_is_stored_twice(stores: Any, tmp_path: Any) -> None:
    store = stores()
    await _compacted(store)
    path = tmp_path / "c.jsonl"
    await exported(store, path, include_archived=True)
    expected, record = await _state(store), await store.get_conversation("c")
    counts = await _import(store, path)
    assert (counts.new, counts.duplicates, counts.problems) == (0, counts.messages, 0)
    assert await _state(store) == expected
    assert (await store.get_conversation("c")).revision == record.revision, "nothing was changed"


async def test_a_store_that_went_on_keeps_what_it_has(stores: Any, tmp_path: Any) -> None:
    """Its own compaction stays. The summaries of the file become messages, and are reported."""
    store = stores()
    await _compacted(store)
    path = tmp_path / "c.jsonl"
    await exported(store, path, include_archived=True)
    originals = [message for message in await store.get("c", include_archived=True) if not message.is_summary]
    await store.delete_conversation("c")
    await store.append_many("c", bare(originals))
    mine = await store.compact("c", through=(await store.get("c"))[6], summary="mine")
    problems: list[Any] = []
    counts = await _import(store, path, on_error=problems.append)
    assert (counts.new, counts.problems) == (2, 2)
    assert all("summary" in problem.reason for problem in problems)
    live, every = await _state(store)
    assert mine.summary.text in [message.text for message in live]
    assert {message.text for message in originals} <= {message.text for message in every}
    assert {"of the first four", "of the first twelve"} <= {message.text for message in live}


async def test_what_lost_its_summary_is_live_again(stores: Any, tmp_path: Any) -> None:
    store = stores()
    await store.append_many("c", [user(f"{number}", timestamp=at(number)) for number in range(6)])
    done = await store.compact("c", through=(await store.get("c"))[3], summary="short")
    await store.delete_messages("c", [done.summary.id])
    path = tmp_path / "c.jsonl"
    await exported(store, path, include_archived=True)
    (transcript,) = read_transcripts(path)
    assert len(transcript.archived) == 4
    await store.delete_conversation("c")
    await _import(store, path)
    assert [message.text for message in await store.get("c")] == [f"{number}" for number in range(6)]


async def test_without_the_archive_a_summary_is_a_message(stores: Any, tmp_path: Any) -> None:
    store = stores()
    await _compacted(store)
    path = tmp_path / "c.jsonl"
    await exported(store, path)
    (transcript,) = read_transcripts(path)
    assert not transcript.archived
    live, _ = await _state(store)
    await store.delete_conversation("c")
    await _import(store, path)
    assert await _state(store) == (live, live)
