"""The flow of a search: it asks the server if that can search, and ranks here if not. Generators that do no I/O: they
yield operations, `Work` and `Embed`, and are sent the outcomes; errors of these are raised at the `yield`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from redis_history._validation import check_function, check_integer, check_limit, check_range
from redis_history.backends.base import AsyncBackend, Backend, features
from redis_history.errors import BackendUnavailableError, CapabilityError, InvalidInputError, RedisHistoryError
from redis_history.model import Conversation, Message
from redis_history.operations import (
    Append,
    Compact,
    Entry,
    ListConversations,
    Op,
    Page,
    ReadHead,
    ReadPage,
    ReadTogether,
    Restore,
    ScanConversations,
    UpdateMessage,
)
from redis_history.paging import next_page
from redis_history.requests.filters import Filters, Within
from redis_history.requests.store_options import Options
from redis_history.search.hits import Reindexed, SearchHit, SearchHits, cut_to_tokens, highlights
from redis_history.search.query import Query, parse_query
from redis_history.search.ranking import DEPTH, MAX_SCANNED, Ranked, Scan, favour, fuse, rank
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
from redis_history.search.text import chunk_length, pack_all, searchable
from redis_history.tokens import TokenCounter, count_characters

T = TypeVar("T")
Steps = Generator[Any, Any, T]
_logger = logging.getLogger("redis_history")

#: Messages whose documents are written at once, and their text: some 10 ms of the server's time.
_DOCUMENTS: Final = 100
_DOCUMENTS_CHARACTERS: Final = 100_000
#: Messages read at once.
_PAGE: Final = 1000
#: Messages fetched at once, of those a search has found.
_FETCHED: Final = 50
#: Conversations of an owner or agent that are searched: those that changed last.
MOST_OWNED: Final = 10_000
#: Conversations that are read and ranked here, if the server cannot search.
MOST_READ: Final = 100
#: How often a reindexing looks for conversations that were created meanwhile.
_PASSES: Final = 4
#: A longer query is parsed, and more matches are ranked, in a thread: an event loop would stand still meanwhile.
_SHORT_QUERY: Final = 1_000
_FEW_MATCHES: Final = 1_000


class Work(Struct, frozen=True):
    """Call a function in a thread, so that an event loop goes on."""

    function: Callable[[], Any]


class Embed(Struct, frozen=True):
    """Get the vectors of texts from the embedder."""

    texts: list[str]


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


class Searcher(Struct, frozen=True):
    """The searches of one store."""

    backend: AsyncBackend | Backend
    options: Options

    def search(self, conversation_id: str, filters: Filters, asked: dict[str, Any]) -> Steps[SearchHits]:
        request = yield from self._request(filters, **asked)
        if not _can_match(request):
            return SearchHits()
        op = Search(conversation_id, request.query, request.filters, request.vector, _depth(request))
        found = yield from self._asked(op)
        if found is None:
            hits = yield from self._scanned(conversation_id, request)
        else:
            hits = yield from self._ranked(found, request)
        return (yield from self._finished(hits, request))

    def search_all(self, filters: Filters, within: Within, asked: dict[str, Any]) -> Steps[SearchHits]:
        request = yield from self._request(filters, **asked)
        ids = yield from _chosen(within)
        here = features(self.backend).search_mode == "memory"
        if not here:
            wait = self.options.search_wait
            op = SearchAll(request.query, request.filters, request.vector, _depth(request), wait, ids)
            found = yield from self._asked(op)
            if found is not None:
                hits = (yield from self._ranked(found, request)) if _can_match(request) else SearchHits()
                return (yield from self._finished(hits, request))
            if ids is None or len(ids) > MOST_READ:
                yield from self._refuse_search_all()
        hits = (yield from self._scanned_all(request, ids)) if _can_match(request) else SearchHits()
        return (yield from self._finished(hits, request))

    def reindex(self, on_progress: Callable[[int, int], object] | None) -> Steps[Reindexed]:
        share = yield from self._asked(MakeIndex(self.options.search_wait))
        if share is None:
            yield from self._refuse_search_all()
        seen: set[str] = set()
        documents = done = 0
        for _ in range(_PASSES):
            known = len(seen)
            cursor: ScanConversations | None = ScanConversations()
            while cursor is not None:
                conversations, cursor = yield from _scan(cursor)
                new = [one.conversation_id for one in conversations if one.conversation_id not in seen]
                seen.update(new)
                for conversation_id in new:
                    op: ReadPage | None = self._first_page(conversation_id)
                    revision = (yield ReadHead(conversation_id)).cursor.revision
                    while op is not None:
                        page, op = yield from _read_page(op)
                        documents += yield from self._document(conversation_id, page, revision)
                    done += 1
                    if on_progress is not None:
                        on_progress(done, len(seen))
            if len(seen) == known:
                break
        removed = place = 0
        while (swept := (yield from self._asked(SweepDocuments(place)))) is not None:
            place = swept[0]
            removed += swept[1]
            if place == 0:
                break
        return Reindexed(len(seen), documents, removed)

    def with_vectors(self, op: Op[T]) -> Steps[Op[T]]:
        """A write with the vectors of its messages. If the embedder fails, they are found by their words."""
        if not isinstance(op, Append | Compact | Restore | UpdateMessage):
            return op
        if isinstance(op, Compact):
            entries: tuple[Entry, ...] = (op.summary,)
        else:
            entries = (op.entry,) if isinstance(op, UpdateMessage) else op.entries
        vectors = yield from self._embedded([entry.message for entry in entries])
        return replace(op, vectors=tuple(vectors))  # type: ignore[return-value]

    def _embedded(self, messages: list[Message]) -> Steps[list[bytes]]:
        if self.options.embedder is None or not messages or not self._server_may_search:
            return []
        try:
            texts = yield Work(lambda: [searchable(message) for message in messages])
            return (yield from self._embed(texts))
        except Exception as error:  # noqa: BLE001 -- an embedder may raise anything
            _logger.error("the embedder failed; %d messages are found by words alone: %s", len(messages), error)
            return []

    def _embed(self, texts: list[str]) -> Steps[list[bytes]]:
        assert self.options.vectors is not None  # noqa: S101
        return pack_all((yield Embed(texts)), len(texts), self.options.vectors.dimension)

    @property
    def _server_may_search(self) -> bool:
        return features(self.backend).search_mode in ("server", "unknown")

    def _request(
        self,
        filters: Filters,
        query: str,
        limit: int,
        offset: int,
        token_cap: int | None,
        token_counter: TokenCounter | None,
        context: int,
        highlight: bool,
    ) -> Steps[_Request]:
        check_range(limit, offset)
        check_limit(token_cap, "token_cap")
        check_function(token_counter, "token_counter", "a function from a str to an int", error=InvalidInputError)
        check_integer(context, "context", 0, 100, error=InvalidInputError)
        parse = partial(parse_query, query, self.options.language)
        terms = (yield Work(parse)) if isinstance(query, str) and len(query) > _SHORT_QUERY else parse()
        vector = None
        if self.options.embedder is not None and self._server_may_search and query.strip() and limit:
            try:
                vector = (yield from self._embed([query]))[0]
            except Exception as error:  # noqa: BLE001 -- as above
                _logger.error("the embedder failed; searching by words alone: %s", error)
        return _Request(terms, filters, limit, offset, token_cap, token_counter, context, highlight, vector)

    def _asked(self, op: Op[T]) -> Steps[T | None]:
        return (yield op) if self._server_may_search else None

    def _refuse_search_all(self) -> Steps[None]:
        if (yield from self._asked(MakeIndex(0.0))) is not None:
            raise BackendUnavailableError("the server is still filling its search index; try again a little later")
        raise CapabilityError(
            f"searching more than {MOST_READ} conversations needs a server with search (Redis 8, Redis Stack, "
            "RediSearch; database 0); without it, pass conversation_ids, or search one with `search`"
        )

    def _ranked(self, found: SearchMatches, request: _Request) -> Steps[SearchHits]:
        ranked = yield from self._ordered(found, request.query)
        listed = (*found.matches, *([] if found.together is None else [found.together]))
        total = max(len(ranked), *(one.total for one in listed))
        return SearchHits((yield from self._fetched(ranked, request)), total)

    def _fetched(self, ranked: list[Ranked], request: _Request) -> Steps[list[SearchHit]]:
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
            for op, every in zip(fetches, (yield ReadTogether(fetches)), strict=True):
                for sequence, fetched in zip(op.sequences, every, strict=True):
                    if fetched is not None and _wanted(request.filters, fetched.message, fetched.archived):
                        found[((op.conversation_id, op.generation), sequence)] = fetched
            for one in window:
                hit = found.get((one.conversation, one.sequence))
                if hit is not None:
                    beside = tuple(hit.before), tuple(hit.after)
                    hits.append(SearchHit(hit.message, one.score, one.conversation[0], (), *beside, hit.archived))
        return hits[request.offset : wanted]

    def _scanned(self, conversation_id: str, request: _Request) -> Steps[SearchHits]:
        scan = Scan(request.query, request.filters, language=self.options.language)
        left, documented = MAX_SCANNED, True
        archived: set[int] = set()
        op: ReadPage | None = self._first_page(conversation_id)
        revision = (yield ReadHead(conversation_id)).cursor.revision if self._server_may_search else 0
        while op is not None:
            page, op = yield from _read_page(op)
            chunk = [one for one in page if request.filters.archived in (None, one.archived)][-left:] if left else []
            yield Work(partial(scan.add, [one.message for one in chunk], [one.name for one in chunk]))
            archived.update(one.name for one in chunk if one.archived)
            left -= min(left, len(page))
            if documented and self._server_may_search:
                # Messages from before there was search, or an index that was lost: the next search finds them there.
                try:
                    yield from self._document(conversation_id, page, revision)
                except RedisHistoryError as error:  # the search does not need it
                    documented = False
                    _logger.warning("search documents were not written: %s", error)
            elif not left:
                _logger.warning("only the newest %d messages of %r are searched", MAX_SCANNED, conversation_id[:80])
                break
        ranked = yield Work(scan.ranked)
        hits = SearchHits((), len(ranked))
        for one in ranked[request.offset : request.offset + request.limit]:
            message, is_archived = scan.messages[one.sequence], one.sequence in archived
            before, after = yield from self._beside(conversation_id, message, request.context, is_archived)
            hits.append(SearchHit(message, one.score, conversation_id, (), before, after, is_archived))
        return hits

    def _scanned_all(self, request: _Request, ids: Sequence[str] | None) -> Steps[SearchHits]:
        every = replace(request, limit=request.offset + request.limit, offset=0)
        best, total = SearchHits(), 0
        cursor: ScanConversations | None = ScanConversations() if ids is None else None
        while True:
            if cursor is not None:
                conversations, cursor = yield from _scan(cursor)
                ids = [one.conversation_id for one in conversations]
            for one in ids or ():
                hits = yield from self._scanned(one, every)
                best += hits
                total += hits.total
            best.sort(key=lambda hit: hit.score, reverse=True)
            del best[every.limit :]
            if cursor is None:
                break
        return SearchHits(best[request.offset : every.limit], total)

    def _beside(
        self, conversation_id: str, message: Message, count: int, archived: bool
    ) -> Steps[tuple[tuple[Message, ...], tuple[Message, ...]]]:
        if not count:
            return (), ()
        place = message.position
        op = ReadPage(conversation_id, count, newest=True, before=place, archived=archived)
        before = yield op
        after = yield replace(op, newest=False, before=None, after=place)
        if not archived:
            return tuple(before.messages), tuple(after.messages)
        earlier = [message for message, stored in zip(before.messages, before.archived, strict=True) if stored]
        later = [message for message, stored in zip(after.messages, after.archived, strict=True) if stored]
        return tuple(earlier[-count:]), tuple(later[:count])

    def _first_page(self, conversation_id: str) -> ReadPage:
        """A search reads a conversation page by page, the newest page first."""
        return ReadPage(conversation_id, _PAGE, newest=True, archived=features(self.backend).compacts)

    def _document(self, conversation_id: str, page: list[_Searched], revision: int) -> Steps[int]:
        written = 0
        for chunk in _chunks(page):
            messages = tuple(one.message for one in chunk)
            vectors = yield from self._embedded(list(messages))
            op = WriteDocuments(conversation_id, messages, revision, tuple(vectors))
            written += (yield from self._asked(op)) or 0
        return written

    def _ordered(self, found: SearchMatches, query: Query) -> Steps[list[Ranked]]:
        order = partial(_order, found, query)
        listed = sum(one.listed for one in (*found.matches, found.nearest) if one is not None)
        return order() if listed <= _FEW_MATCHES else (yield Work(order))

    def _finished(self, hits: SearchHits, request: _Request) -> Steps[SearchHits]:
        finished = partial(_finished, hits, request, self.options.language)
        shown = (yield Work(finished)) if request.highlight or len(hits) > _FETCHED else finished()
        return SearchHits(shown, hits.total)


def _chosen(within: Within) -> Steps[tuple[str, ...] | None]:
    """The conversations to search; None: all."""
    ids = within.conversation_ids
    if within.user_id is None and within.agent_name is None:
        return ids
    listed = yield ListConversations(within.user_id, within.agent_name, MOST_OWNED, 0)
    owned = [one.conversation_id for one in listed]
    if ids is None:
        return tuple(owned)
    named = set(ids)
    return tuple(one for one in owned if one in named)


def _scan(op: ScanConversations) -> Steps[tuple[list[Conversation], ScanConversations | None]]:
    """Conversations, and the operation that reads the next."""
    page = yield op
    return page.conversations, None if page.cursor is None else ScanConversations(cursor=page.cursor)


def _read_page(op: ReadPage) -> Steps[tuple[list[_Searched], ReadPage | None]]:
    """The searchable messages of a page, and the operation that reads the next page."""
    page = yield op
    return _searched(page), next_page(op, page, _PAGE)


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
    """The messages of a page without replies that are being written, and without former summaries: what these stood for
    is there itself. The live one is named by its sequence with a minus, because the last message it replaced has the
    same."""
    found: list[_Searched] = []
    for message, archived in zip(page.messages, page.archived or [False] * len(page.messages), strict=True):
        if message.status != "streaming" and (not archived or message.id not in page.former_summaries):
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
    if found.dated is not None:
        ranked = favour(ranked, found.dated, found.size or found.documents)
    if found.nearest is None:
        return ranked
    return fuse(ranked, found.nearest, found.size or found.documents)
