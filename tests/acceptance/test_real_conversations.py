"""Real conversations of every kind are read back equal, and restored from a backup."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from redis_history import Compressor, Conversation, HistoryStore, Message, extractive_summarizer
from redis_history.integrations.importers import export_messages, import_messages
from redis_history.store.search.hits import SearchHits
from tests.support.servers import Start
from tests.support.transcripts import FILES, read

#: Messages of one change: far from its limits, as docs/guarantees.md advises.
BATCH = 200


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
            assert _same(first.get(name), transcript.messages), name
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
