"""Search on one server: its index, and the operations that need it."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, TypeVar, cast

from redis.exceptions import ResponseError

from redis_history._async._index import AsyncSearchIndex
from redis_history.backends.redis.calls import Call, Settings, as_is
from redis_history.backends.redis.documents import reap
from redis_history.backends.redis.searching import (
    Searching,
    is_lost_index,
    is_unanswered,
    plan_documents,
    plan_fetch,
    plan_search,
    plan_search_all,
    read_all,
    scan_documents,
)
from redis_history.errors import BackendError, CapabilityError
from redis_history.operations import Fetch, MakeIndex, Op, Search, SearchAll, SweepDocuments, WriteDocuments

__all__ = ["AsyncSearcher"]

T = TypeVar("T")
_logger = logging.getLogger("redis_history")


class AsyncSearcher:
    """`carrier` is the backend: it sends calls. `settings` are the backend's; with an index, documents are written."""

    def __init__(self, carrier: Any, searching: Searching, settings: Settings) -> None:
        self._carrier = carrier
        self._searching = searching
        self._index = AsyncSearchIndex(carrier.send, settings.keyspace, searching)
        self.settings = settings
        #: Whether the server searches; None before the first call.
        self.works: bool | None = None

    async def start(self) -> None:
        """Make sure of the index. Raises CapabilityError if it is required and cannot be had."""
        works = await self._index.ensure() is not None
        if not works and self._searching.required:
            raise CapabilityError(
                f"search='require', but this server has no search ({self._index.refusal}): use Redis 8, Redis Stack or "
                "RediSearch, and database 0; or search='auto', which ranks one conversation at a time without it"
            )
        if not works and self.works is not False:
            _logger.info("no search on this server (%s); conversations are ranked here", self._index.refusal)
        self.settings = dataclasses.replace(self.settings, document=self._searching.document if works else None)
        self.works = works

    async def execute(self, op: Op[T]) -> T | None:
        """The outcome; None if the server cannot tell (now): no search, no index, or not all of it."""
        outcome: Any = None
        if isinstance(op, MakeIndex):
            state = await self._carrier.persist(self._index.filled, op.seconds)
            outcome = None if state is None else state.share
        elif not self.works:
            outcome = None
        elif isinstance(op, Fetch):
            outcome = await self._call(plan_fetch(op, self.settings))
        elif isinstance(op, WriteDocuments):
            outcome = await self._call(plan_documents(op, self.settings, self._searching))
        elif isinstance(op, SweepDocuments):
            outcome = await self._sweep_documents(op.cursor)
        else:
            outcome = await self._searched(cast("Search | SearchAll", op))
        return cast("T | None", outcome)

    async def _call(self, call: Call) -> Any:
        return call.decode(await self._carrier.carry_out(call))

    async def _searched(self, op: Search | SearchAll) -> Any:
        for attempt in (1, 2):
            try:
                if isinstance(op, Search):
                    if not self._index.settled:
                        await self._carrier.persist(self._index.filled, 0.0)
                    call = plan_search(op, self.settings, self._searching)
                    return call.decode(await self._carrier.carry_out(call, passing=_is_expected))
                state = await self._carrier.persist(self._index.filled, op.seconds)
                if state is None or not state.complete:
                    return None
                calls = plan_search_all(op, self.settings, self._searching)
                replies = await self._carrier.carry_out(calls, passing=_is_expected) if calls else []
                return read_all(op, self.settings, replies)
            except (ResponseError, BackendError) as error:
                if not is_lost_index(error) or attempt == 2:
                    if _is_expected(error):
                        _logger.warning("the server did not answer a search: %s", error)
                        return None
                    raise
                _logger.warning("the search index is gone; it is made anew")
                await self._carrier.persist(self._carrier.use_search)
                if not self.works:
                    return None
        return None

    async def _sweep_documents(self, cursor: int) -> tuple[int, int]:
        next_cursor, keys = await self._call(scan_documents(cursor, self.settings))
        lives: dict[tuple[str, bytes], list[tuple[int, bytes]]] = {}
        gone = []
        for key in keys:
            place = self.settings.keyspace.document_of(key)
            if place is None:
                gone.append(key)
            else:
                lives.setdefault((place.conversation_id, place.life), []).append((place.sequence, key))
        for (conversation_id, life), documents in lives.items():
            fetch = Fetch(conversation_id, life, tuple(sequence for sequence, _ in documents))
            found = await self._call(plan_fetch(fetch, self.settings))
            gone += [key for (_, key), message in zip(documents, found, strict=True) if message is None]
        if gone:
            await self._call(Call(None, b"", [b"UNLINK", *gone], as_is))
        return int(next_cursor), len(gone)

    async def sweep(self) -> None:
        """Remove what a process that was ended in the middle had left to remove."""
        graves = self.settings.keyspace.graves()
        left = await self._carrier.carry_out([Call(None, b"", [b"HKEYS", key], as_is) for key in graves])
        for key, lives in zip(graves, left, strict=True):
            for life in lives:
                await self._carrier.finish(reap(key, life))


def _is_expected(error: Exception) -> bool:
    return is_lost_index(error) or is_unanswered(error)
