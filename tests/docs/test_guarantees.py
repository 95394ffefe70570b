"""The documentation has the figures of the code."""

import re
from typing import Any

import pytest

from redis_history import RedisHistory, RetryPolicy
from redis_history.agents import tools
from redis_history.agents.history import _outbox
from redis_history.store import server_info
from redis_history.store._sync import _connect
from redis_history.store._sync.reading import PAGE
from redis_history.store.memory.backend import MemoryBackend
from redis_history.store.operations import delete, keys, listing, poll
from redis_history.store.operations import read_changes as changes
from redis_history.store.operations.append import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES
from redis_history.store.operations.documents import PURGED_AT_ONCE
from redis_history.store.operations.options import Options
from redis_history.store.operations.record import MAX_RECORD_BYTES
from redis_history.store.search import query, ranking
from redis_history.store.search import text as search_text
from redis_history.store.search import words as _words
from redis_history.values import wire
from redis_history.values.ids import MAX_CONVERSATION_ID_BYTES
from tests.docs.pages import DOCS, prose, sections

SECURITY = DOCS / "how-to" / "security.md"
_OPTIONS = Options(1, 1.0)
_RETRY = RetryPolicy()
_MAX_UNSAVED = (RedisHistory.__init__.__kwdefaults__ or {})["max_unsaved"]
_CAPS = MemoryBackend.__init__.__kwdefaults__ or {}
_MINIMUM = [".".join(map(str, server_info._MINIMUM[kind][:2])) for kind in ("redis", "valkey")]
_BATCH = [MAX_BATCH_MESSAGES, MAX_BATCH_BYTES]
_MESSAGE = [wire.MAX_MESSAGE_BYTES, wire.MAX_DEPTH, wire.MAX_ITEMS]
_QUERY = [query.MAX_QUERY_CHARACTERS, query.MAX_CANDIDATES, query.MAX_TERMS]

#: Figures of the code that a page, or one section of it, gives.
FIGURES: dict[str, list[Any]] = {
    "how-to/conversations.md": _BATCH,
    "how-to/fleets.md": _BATCH,
    "how-to/expiry.md": [_CAPS["max_messages"], _CAPS["max_conversations"]],
    "guarantees.md": [
        *(_CAPS["max_messages"], _CAPS["max_conversations"], poll._SWEEP, PAGE, ranking.MAX_SCANNED),
        int(delete.LOG_OUTLIVES_MS) // 1000,
    ],
    "data-model.md": [keys.BUCKETS, poll._SWEEP, int(delete.LOG_OUTLIVES_MS) // 1000, wire.DIGEST_BYTES],
    "data-model.md#Search": [int(PURGED_AT_ONCE)],
    "operations.md": [
        *(listing._CHUNK, keys.BUCKETS, poll._SWEEP, *_MINIMUM, _connect.SOCKET_TIMEOUT),
        *(_OPTIONS.search_wait, _RETRY.deadline, _RETRY.first_wait, _RETRY.longest_wait),
    ],
    "how-to/search.md": [ranking.MAX_SCANNED, search_text.MAX_CHARACTERS, _words.MAX_WORD, *_QUERY],
    "how-to/security.md": [tools.MAX_LIMIT, tools.SHOWN],
    "how-to/security.md#Limits and corrupt data": [
        *(*_BATCH, *_MESSAGE, MAX_CONVERSATION_ID_BYTES, MAX_RECORD_BYTES, search_text.MAX_CHARACTERS, *_QUERY),
    ],
    "how-to/ui.md": [int(changes.CHANGES_BYTES) // 10**6],
    "how-to/histories.md": [_MAX_UNSAVED, _outbox.MAX_UNSAVED_BYTES // 10**6],
    "tutorial.md": [_RETRY.deadline, MAX_CONVERSATION_ID_BYTES],
}


@pytest.mark.parametrize("page", FIGURES)
def test_a_page_has_the_figures_of_the_code(page: str) -> None:
    """The numbers alone, so that their sentences can change."""
    path, _, section = page.partition("#")
    text = sections(DOCS / path)[section] if section else prose(DOCS / path)
    shown = set(re.findall(r"\d[\d,.]*", text))
    shown = {number.rstrip(",.") for number in shown}
    figures = {figure if isinstance(figure, str) else f"{figure:,.10g}" for figure in FIGURES[page]}
    assert figures - shown == set()
