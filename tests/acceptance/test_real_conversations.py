"""Real conversations of every kind, many of them: imported, listed, read back equal, deleted, and nothing is left.

`--full` takes 2,000 conversations, each transcript many times under other ids; otherwise there are 40.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path

import msgspec
import pytest

from redis_history import AsyncHistoryStore, Compressor, Conversation, HistoryStore, Message, extractive_summarizer
from redis_history.importers import Transcript, export_messages, import_messages
from redis_history.search.hits import SearchHits
from redis_history.tokens import count_characters
from tests.support.research import read
from tests.support.servers import Start, lasting
from tests.support.transcripts import FILES

MANY = 2_000
PAGE = 200
WRITERS = 8
#: Messages of one change: far from its limits, as docs/guarantees.md advises.
BATCH = 200


def _take(transcripts: list[Transcript], count: int) -> Iterator[tuple[str, Transcript]]:
    """`count` conversations under unique ids, the kinds mixed."""
    for number, transcript in enumerate(islice(cycle(transcripts), count)):
        yield f"{number // len(transcripts)} {transcript.conversation_id}", transcript


def _same(stored: list[Message], original: tuple[Message, ...]) -> bool:
    """All that was imported is there. Where it had no time, the server gave one, in the order of the source."""
    if [message.sequence for message in stored] != list(range(1, len(original) + 1)):
        return False
    if not all(earlier.position < later.position for earlier, later in pairwise(stored)):
        return False
    return [
        msgspec.structs.replace(one, sequence=None, timestamp=None if was.timestamp is None else one.timestamp)
        for one, was in zip(stored, original, strict=True)
    ] == list(original)


@pytest.mark.proves("lists")
def test_real_conversations(own_server: Start, full: bool) -> None:
    transcripts = sorted(
        (transcript for path in FILES for transcript in read(path)),
        key=lambda transcript: zlib.crc32(transcript.conversation_id.encode()),
    )
    wanted = dict(_take(transcripts, MANY if full else 40))
    assert len({transcript.format for transcript in wanted.values()}) >= 5
    assert len(wanted) == (MANY if full else 40)
    server = own_server()

    async def write() -> None:
        waiting = iter(wanted.items())

        async def writer(store: AsyncHistoryStore) -> None:
            for conversation_id, transcript in waiting:
                await store.create_conversation(
                    Conversation(conversation_id, title=transcript.title, agent_name=transcript.format)
                )
                for first in range(0, len(transcript.messages), BATCH):
                    await store.append_many(conversation_id, transcript.messages[first : first + BATCH])

        async with AsyncHistoryStore(server.url) as store:
            await asyncio.gather(*(writer(store) for _ in range(WRITERS)))

    asyncio.run(write())

    with HistoryStore(server.url) as store:
        listed: list[Conversation] = []
        while page := store.list_conversations(limit=PAGE, offset=len(listed)):
            listed += page
        assert Counter(one.conversation_id for one in listed) == Counter(wanted.keys())
        updated = [one.updated_at for one in listed]
        assert updated == sorted(updated, reverse=True)
        for one in listed:
            transcript = wanted[one.conversation_id]
            assert (one.title, one.agent_name) == (transcript.title, transcript.format)
            assert one.message_count == len(transcript.messages)
            assert one.characters == sum(map(count_characters, transcript.messages))
        for kind, count in Counter(transcript.format for transcript in wanted.values()).items():
            assert len(store.list_conversations(agent_name=kind, limit=len(wanted))) == count

        for conversation_id, transcript in wanted.items():
            assert _same(store.get(conversation_id), transcript.messages), conversation_id

        with server.client() as client:
            assert client.dbsize() > 3 * len(wanted)
            for conversation_id in wanted:
                assert store.delete_conversation(conversation_id)
            assert lasting(client) == set()
        assert store.list_conversations() == []


def _found(hits: SearchHits) -> list[tuple[str, str, float, bool]]:
    return [(hit.conversation_id, hit.message.id, round(hit.score, 6), hit.archived) for hit in hits]


@pytest.mark.proves("backup")
def test_a_backup_restores_real_conversations(own_server: Start, tmp_path: Path) -> None:
    """Records, messages, archives, forks, lists and searches are equal, field by field."""
    url, path = own_server().url, tmp_path / "backup.jsonl.gz"
    with HistoryStore(url, namespace="first") as first, HistoryStore(url, namespace="second") as second:
        for number, transcript in enumerate(transcript for file in FILES for transcript in read(file)):
            name = transcript.conversation_id
            first.create_conversation(
                Conversation(name, user_id=number % 7, title=transcript.title, metadata={"format": transcript.format})
            )
            for at in range(0, len(transcript.messages), BATCH):
                first.append_many(name, transcript.messages[at : at + BATCH])
            if number % 10 == 0:
                first.fork(name, f"{name}/fork")
        assert Compressor(first, extractive_summarizer(), max_messages=10, keep_recent=4).run_once().compressed
        exported = export_messages(first, path)
        imported = import_messages(path, second)
        assert (imported.new, imported.problems) == (exported.messages, 0)
        query = "order flight error file question"
        for one in first.iter_conversations():
            name = one.conversation_id
            assert second.get_conversation(name) == one
            assert second.get(name) == first.get(name)
            assert second.get(name, include_archived=True) == first.get(name, include_archived=True)
            assert _found(second.search(name, query, token_cap=None)) == _found(
                first.search(name, query, token_cap=None)
            )
        assert second.list_conversations(limit=10_000, preview=True) == first.list_conversations(
            limit=10_000, preview=True
        )
        assert second.list_conversations(user_id=3, limit=999) == first.list_conversations(user_id=3, limit=999)
        everywhere = [_found(store.search_all(query, limit=20, token_cap=None)) for store in (first, second)]
        assert everywhere[0]
        assert [score for _, _, score, _ in everywhere[0]] == [score for _, _, score, _ in everywhere[1]]
