"""The largest commands: managed servers take at most 3,999 arguments (ElastiCache Serverless), and calls stay below
3,500."""

from typing import Any

import pytest

from redis_history import Participant, assistant, tool_use, user
from redis_history.store import operations as ops
from redis_history.store.operations.base import Call
from redis_history.store.operations.documents import WriteDocuments
from redis_history.store.operations.drafts import WriteDraft
from redis_history.store.operations.fork import _WRITTEN
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.searching import _DOCUMENTS
from redis_history.store.operations.settings import SearchIndex, Searching, Settings
from redis_history.store.writes import Entry
from redis_history.values import Position

MOST = 3500
NOW = "2026-01-01"


def settings(*, indexed: bool) -> Settings:
    keyspace = Keyspace("n")
    index = SearchIndex(Searching(vectors=3), keyspace, cluster=False)
    index.works = indexed
    return Settings(keyspace, 100, ttl=60.0, index=index if indexed else None)


def largest(op: Any, *, indexed: bool) -> int:
    """The most arguments in the first calls of an operation, with eight further keys."""
    work = next(op.steps(settings(indexed=indexed)))
    calls = [one for one in (work if isinstance(work, list) else [work]) if isinstance(one, Call)]
    assert calls
    return max(len(call.words()) for call in calls) + 8


def messages(count: int) -> list[Any]:
    """Messages with every field that a search document can have."""
    ann = Participant("agent", "ann", display_name="Ann")
    parts = ("a word", tool_use("c", "tool", {}))
    return [assistant(parts, id=f"m{number}", participant=ann, scope="dm", timestamp=NOW) for number in range(count)]


@pytest.mark.parametrize("count", [1, 199, 200, 201, 1000])
def test_appends(count: int) -> None:
    for indexed in (False, True):
        op = ops.Append.batch("c", messages(count)).op
        assert largest(op, indexed=indexed) <= MOST
        vectors = tuple(b"123456" for _ in range(count))
        assert largest(ops.Append("c", op.entries, vectors), indexed=indexed) <= MOST
        assert largest(ops.Restore.of("c", messages(count)), indexed=indexed) <= MOST


def test_removals_and_documents() -> None:
    names = [f"m{number}" for number in range(1000)]
    assert largest(ops.DeleteMessages.of("c", names), indexed=True) <= MOST
    read = tuple(messages(_DOCUMENTS))
    vectors = tuple(b"123456" for _ in read)
    assert largest(WriteDocuments("c", read, "e", 1, vectors), indexed=True) <= MOST


def test_pages_of_drafts() -> None:
    entries = tuple((number, Entry.of(user("x", id=f"m{number}", timestamp=NOW))) for number in range(_WRITTEN))
    removed = tuple((number, f"m{number}", Position(1, 1)) for number in range(_WRITTEN))
    page = WriteDraft("c", token="0" * 16, page=1, revision=1, archives=_WRITTEN, entries=entries, removed=removed)
    assert largest(page, indexed=False) <= MOST
