# Generated from ../_async by scripts/unasync: do not edit.
"""The searching half of a store: it asks the server if that can search, and ranks by itself if not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from redis_history import requests
from redis_history._ids import check_conversation_id
from redis_history._sync._listing import scan_conversations
from redis_history._sync._runtime import finish, in_thread
from redis_history._validation import check_function, check_integer, check_limit, check_range
from redis_history.backends.base import Backend, features
from redis_history.errors import BackendUnavailableError, CapabilityError, InvalidInputError, RedisHistoryError
from redis_history.model import Message, Role, Scope
from redis_history.operations import Append, Compact, Entry, Op, Page, ReadPage, ReadTogether, Restore, UpdateMessage
from redis_history.paging import next_page
from redis_history.requests import Bound
from redis_history.requests.filters import Filters
from redis_history.requests.store_options import Options
from redis_history.search.highlight import highlights
from redis_history.search.hits import Reindexed, SearchHit, cut_to_tokens
from redis_history.search.query import Query, parse_query
from redis_history.search.ranking import DEPTH, Ranked, fuse, rank
from redis_history.search.scan import MAX_SCANNED, Scan
from redis_history.search.server_search import (
    Fetch,
    Fetched,
    MakeIndex,
    Search,
    SearchAll,
    SearchMatches,
    SweepDocuments,
    WriteDocuments,
)
from redis_history.search.text import chunk_length
from redis_history.search.vectors import embedding_text, pack_all
from redis_history.tokens import TokenCounter, count_characters

__all__ = ["Searching"]

T = TypeVar("T")
_logger = logging.getLogger("redis_history")

#: Messages whose documents are written at once, and their text: some 10 ms of the server's time.
_DOCUMENTS: Final = 100
_DOCUMENTS_CHARACTERS: Final = 100_000
#: Messages read at once.
_PAGE: Final = 1000
#: Messages fetched at once, of those a search has found.
_FETCHED: Final = 50
#: How often a reindexing looks for conversations that were created meanwhile.
_PASSES: Final = 4
#: A longer query is parsed, and more matches are ranked, in a thread: an event loop would stand still meanwhile.
_SHORT_QUERY: Final = 1_000
_FEW_MATCHES: Final = 1_000


class _Request(Struct, frozen=True):
    query: Query
    filters: Filters
    limit: int
    offset: int
    token_cap: int | None
    token_counter: TokenCounter | None
    context: int
    highlight: bool
    vector: bytes | None


class _Searched(NamedTuple):
    """A message that is searched, and by what number it is known among those of its conversation."""

    message: Message
    archived: bool
    name: int


class Searching:
    """`search`, `search_all` and `reindex` of a store."""

    _backend: Backend
    _options: Options

    def search(
        self,
        conversation_id: str,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        token_cap: int | None = 2000,
        token_counter: TokenCounter | None = None,
        roles: Iterable[Role] | None = None,
        participant_ids: Iterable[str] | None = None,
        scope: Scope | None = None,
        since: Bound | None = None,
        before: Bound | None = None,
        tool_names: Iterable[str] | None = None,
        archived: bool | None = None,
        context: int = 0,
        highlight: bool = False,
    ) -> list[SearchHit]:
        """Messages of one conversation that match any term of `query`, best first.

        A term is a word, a "phrase in quotes" or the beginning of words*; see docs/how-to/search.md. No text makes it
        fail. `limit` hits after the first `offset`, in at most `token_cap` tokens (None: no cap), by `token_counter` or
        estimated: a message that is too long comes with the `excerpt` that matches, cut to what fits.
        The filters must all hold; `tool_names` are of tools called or answered. Messages that were compacted are found
        too (`archived`: True for these alone, False for none of them), former summaries are not. With `context`,
        each hit has as many messages before and after it; with `highlight`, where the terms are.

        Without search on the server the newest 20,000 messages are read and ranked here.
        """
        check_conversation_id(conversation_id)
        filters = requests.search_filters(roles, participant_ids, scope, since, before, tool_names, archived)
        request = self._request(query, filters, limit, offset, token_cap, token_counter, context, highlight)
        if not _can_match(request):
            return []
        op = Search(conversation_id, request.query, request.filters, request.vector, _depth(request))
        found = self._asked(op)
        if found is None:
            hits = self._scanned(conversation_id, request)
        else:
            hits = self._fetched(self._ordered(found, request.query), request)
        return self._finished(hits, request)

    def search_all(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        token_cap: int | None = 2000,
        token_counter: TokenCounter | None = None,
        roles: Iterable[Role] | None = None,
        participant_ids: Iterable[str] | None = None,
        scope: Scope | None = None,
        since: Bound | None = None,
        before: Bound | None = None,
        tool_names: Iterable[str] | None = None,
        archived: bool | None = None,
        context: int = 0,
        highlight: bool = False,
    ) -> list[SearchHit]:
        """The same over all conversations of the namespace.

        Raises CapabilityError without search on the server (`memory://` has it), and BackendUnavailableError while the
        server is still filling its index.
        """
        filters = requests.search_filters(roles, participant_ids, scope, since, before, tool_names, archived)
        request = self._request(query, filters, limit, offset, token_cap, token_counter, context, highlight)
        if features(self._backend).search_mode == "memory":
            hits = self._scanned_all(request) if _can_match(request) else []
            return self._finished(hits, request)
        seconds = self._options.search_wait
        op = SearchAll(request.query, request.filters, request.vector, _depth(request), seconds)
        found = self._asked(op)
        if found is None:
            self._refuse_search_all()
        if found is None or not _can_match(request):
            return []
        hits = self._fetched(self._ordered(found, request.query), request)
        return self._finished(hits, request)

    def reindex(self, *, on_progress: Callable[[int, int], object] | None = None) -> Reindexed:
        """Write the search documents of all conversations of the namespace anew, and remove those of no message.

        Needed for what was stored before there was search, or by processes with `search="off"`; a search within such a
        conversation writes its documents by itself. May run while others read and write. `on_progress` gets how many
        conversations are done, and of how many that are known. Raises CapabilityError without search on the server.
        """
        share = self._asked(MakeIndex(self._options.search_wait))
        if share is None:
            self._refuse_search_all()
        seen: set[str] = set()
        documents = done = 0
        for _ in range(_PASSES):
            known = len(seen)
            for found in scan_conversations(self._backend):
                new = [one.conversation_id for one in found if one.conversation_id not in seen]
                seen.update(new)
                for conversation_id in new:
                    for page in self._pages(conversation_id):
                        documents += self._document(conversation_id, page)
                    done += 1
                    if on_progress is not None:
                        on_progress(done, len(seen))
            if len(seen) == known:
                break
        removed = cursor = 0
        while (swept := self._asked(SweepDocuments(cursor))) is not None:
            cursor = swept[0]
            removed += swept[1]
            if cursor == 0:
                break
        return Reindexed(len(seen), documents, removed)

    def _with_vectors(self, op: Op[T]) -> Op[T]:
        """A write with the vectors of its messages, if there is an embedder. History does not wait for a better day of
        an embedder that fails: then the message is found by its words."""
        if self._options.embedder is None or not isinstance(op, Append | Compact | Restore | UpdateMessage):
            return op
        if isinstance(op, Compact):
            entries: tuple[Entry, ...] = (op.summary,)
        else:
            entries = (op.entry,) if isinstance(op, UpdateMessage) else op.entries
        vectors = self._embedded([entry.message for entry in entries])
        return replace(op, vectors=tuple(vectors))  # type: ignore[return-value]

    def _embedded(self, messages: list[Message]) -> list[bytes]:
        if not messages or not self._server_may_search:
            return []
        try:
            return self._embed(in_thread(lambda: [embedding_text(message) for message in messages]))
        except Exception as error:  # noqa: BLE001 -- whatever an embedder raises is its own
            _logger.error("the embedder failed; %d messages are found by words alone: %s", len(messages), error)
            return []

    def _embed(self, texts: list[str]) -> list[bytes]:
        assert self._options.embedder is not None  # noqa: S101
        assert self._options.vectors is not None  # noqa: S101
        vectors = finish(self._options.embedder(texts))
        return pack_all(vectors, len(texts), self._options.vectors.dimension)

    @property
    def _server_may_search(self) -> bool:
        return features(self._backend).search_mode in ("server", "unknown")

    def _request(
        self,
        query: str,
        filters: Filters,
        limit: int,
        offset: int,
        token_cap: int | None,
        token_counter: TokenCounter | None,
        context: int,
        highlight: bool,
    ) -> _Request:
        check_range(limit, offset)
        check_limit(token_cap, "token_cap")
        check_function(token_counter, "token_counter", "a function from a str to an int", error=InvalidInputError)
        check_integer(context, "context", 0, 100, error=InvalidInputError)
        parse = partial(parse_query, query, self._options.language)
        terms = in_thread(parse) if isinstance(query, str) and len(query) > _SHORT_QUERY else parse()
        vector = None
        if self._options.embedder is not None and self._server_may_search and query.strip() and limit:
            try:
                vector = (self._embed([query]))[0]
            except Exception as error:  # noqa: BLE001 -- as above
                _logger.error("the embedder failed; searching by words alone: %s", error)
        return _Request(terms, filters, limit, offset, token_cap, token_counter, context, highlight, vector)

    def _asked(self, op: Op[T]) -> T | None:
        return self._backend.execute(op) if self._server_may_search else None

    def _refuse_search_all(self) -> None:
        if self._asked(MakeIndex(0.0)) is not None:
            raise BackendUnavailableError("the server is still filling its search index; try again a little later")
        raise CapabilityError(
            "searching all conversations needs a server with search (Redis 8, Redis Stack, RediSearch; database 0); "
            "without it, search one conversation with `search`"
        )

    def _fetched(self, ranked: list[Ranked], request: _Request) -> list[SearchHit]:
        """The hits of a page, read: what left meanwhile, or lies beyond a bound, makes room for the next."""
        hits: list[SearchHit] = []
        wanted, start = request.offset + request.limit, 0
        while start < len(ranked) and len(hits) < wanted:
            # A second look is only needed if hits are gone: then enough is read that there are few of them.
            window = ranked[start : start + (_FETCHED if start else min(_FETCHED, wanted))]
            start += len(window)
            found: dict[tuple[Any, int], Fetched] = {}
            fetches = tuple(
                Fetch(whose[0], whose[1], tuple(place.sequence for place in places), request.context)
                for whose, places in groupby(sorted(window, key=_whose), key=_whose)
            )
            for op, every in zip(fetches, self._backend.execute(ReadTogether(fetches)), strict=True):
                for sequence, fetched in zip(op.sequences, every, strict=True):
                    if fetched is not None and _wanted(request.filters, fetched.message, fetched.archived):
                        found[((op.conversation_id, op.generation), sequence)] = fetched
            for one in window:
                hit = found.get((one.conversation, one.sequence))
                if hit is not None:
                    beside = tuple(hit.before), tuple(hit.after)
                    hits.append(SearchHit(hit.message, one.score, one.conversation[0], (), *beside, hit.archived))
        return hits[request.offset : wanted]

    def _scanned(self, conversation_id: str, request: _Request) -> list[SearchHit]:
        scan = Scan(request.query, request.filters, language=self._options.language)
        left, documented = MAX_SCANNED, True
        archived: set[int] = set()
        for page in self._pages(conversation_id):
            chunk = [one for one in page if request.filters.archived in (None, one.archived)][-left:] if left else []
            in_thread(partial(scan.add, [one.message for one in chunk], [one.name for one in chunk]))
            archived.update(one.name for one in chunk if one.archived)
            left -= min(left, len(page))
            if documented and self._server_may_search:
                # Messages from before there was search, or an index that was lost: the next search finds them there.
                try:
                    self._document(conversation_id, page)
                except RedisHistoryError as error:  # the search does not need it
                    documented = False
                    _logger.warning("search documents were not written: %s", error)
            elif not left:
                _logger.warning("only the newest %d messages of %r are searched", MAX_SCANNED, conversation_id[:80])
                break
        ranked = (in_thread(scan.ranked))[request.offset : request.offset + request.limit]
        hits = []
        for one in ranked:
            message, is_archived = scan.messages[one.sequence], one.sequence in archived
            before, after = self._beside(conversation_id, message, request.context, is_archived)
            hits.append(SearchHit(message, one.score, conversation_id, (), before, after, is_archived))
        return hits

    def _scanned_all(self, request: _Request) -> list[SearchHit]:
        every = replace(request, limit=request.offset + request.limit, offset=0)
        hits: list[SearchHit] = []
        for conversations in scan_conversations(self._backend):
            for conversation in conversations:
                hits += self._scanned(conversation.conversation_id, every)
            hits.sort(key=lambda hit: hit.score, reverse=True)
            del hits[every.limit :]
        return hits[request.offset : every.limit]

    def _beside(
        self, conversation_id: str, message: Message, count: int, archived: bool
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        if not count:
            return (), ()
        place = message.position
        op = ReadPage(conversation_id, count, newest=True, before=place, archived=archived)
        before = self._backend.execute(op)
        after = self._backend.execute(replace(op, newest=False, before=None, after=place))
        if not archived:
            return tuple(before.messages), tuple(after.messages)
        earlier = [message for message, stored in zip(before.messages, before.archived, strict=True) if stored]
        later = [message for message, stored in zip(after.messages, after.archived, strict=True) if stored]
        return tuple(earlier[-count:]), tuple(later[:count])

    def _pages(self, conversation_id: str) -> Any:
        """What is searched of a conversation, page by page, the newest page first."""
        archived = features(self._backend).compacts
        op: ReadPage | None = ReadPage(conversation_id, _PAGE, newest=True, archived=archived)
        while op is not None:
            page = self._backend.execute(op)
            if page.messages:
                yield _searched(page)
            op = next_page(op, page, _PAGE)

    def _document(self, conversation_id: str, page: list[_Searched]) -> int:
        written = 0
        for chunk in _chunks(page):
            messages = tuple(one.message for one in chunk)
            vectors = self._embedded(list(messages)) if self._options.embedder is not None else []
            op = WriteDocuments(conversation_id, messages, tuple(vectors))
            written += self._asked(op) or 0
        return written

    def _ordered(self, found: SearchMatches, query: Query) -> list[Ranked]:
        order = partial(_order, found, query)
        listed = sum(one.listed for one in (*found.matches, found.nearest) if one is not None)
        return order() if listed <= _FEW_MATCHES else in_thread(order)

    def _finished(self, hits: list[SearchHit], request: _Request) -> list[SearchHit]:
        finished = partial(_finished, hits, request, self._options.language)
        return in_thread(finished) if request.highlight or len(hits) > _FETCHED else finished()


def _finished(hits: list[SearchHit], request: _Request, language: str) -> list[SearchHit]:
    query = request.query
    hits = cut_to_tokens(hits, request.token_cap, query, language=language, counter=request.token_counter)
    if not request.highlight:
        return hits
    shown = (hit.message if hit.excerpt is None else hit.excerpt for hit in hits)
    return [
        replace(hit, highlights=highlights(text, query, language=language))
        for hit, text in zip(hits, shown, strict=True)
    ]


def _searched(page: Page) -> list[_Searched]:
    """The messages of a page without former summaries: what these stood for is there itself. The live one is named
    by its sequence with a minus, because the last message it replaced has the same."""
    found: list[_Searched] = []
    for message, archived in zip(page.messages, page.archived or [False] * len(page.messages), strict=True):
        if not archived or message.id not in page.former_summaries:
            sequence = message.sequence or 0
            taken = found and found[-1].name == sequence
            found.append(_Searched(message, archived, -sequence if taken else sequence))
    return found


def _wanted(filters: Filters, message: Message, archived: bool) -> bool:
    return filters.archived in (None, archived) and filters.wants(message)


def _chunks(page: list[_Searched]) -> Iterator[list[_Searched]]:
    start = 0
    while start < len(page):
        sizes = (count_characters(one.message) for one in islice(page, start, None))
        end = start + chunk_length(sizes, _DOCUMENTS, _DOCUMENTS_CHARACTERS)
        yield page[start:end]
        start = end


def _can_match(request: _Request) -> bool:
    return bool(request.limit and (request.query or request.vector) and not request.filters.impossible)


def _depth(request: _Request) -> int:
    return max(DEPTH, request.offset + request.limit)


def _whose(ranked: Ranked) -> Any:
    return ranked.conversation


def _order(found: SearchMatches, query: Query) -> list[Ranked]:
    ranked = rank(query, found.matches, size=found.size, together=found.together)
    if found.nearest is None:
        return ranked
    return fuse(ranked, found.nearest, found.size or found.documents)
