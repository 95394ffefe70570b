"""Search: by the server if it can, else by reading and ranking here. Generators without I/O: they yield operations,
`Work` and `Ask`, and receive the outcomes; errors of these are raised at the `yield`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from functools import partial
from itertools import compress, islice, pairwise
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from redis_history.errors import CapabilityError, InvalidInputError, RedisHistoryError
from redis_history.store import operations as ops
from redis_history.store.operations.backend import AsyncBackend, Backend
from redis_history.store.operations.base import Steps, T
from redis_history.store.operations.documents import SweepDocuments, WriteDocuments
from redis_history.store.operations.fetch import Fetch, Fetched
from redis_history.store.operations.index import MakeIndex
from redis_history.store.operations.listing import all_ids
from redis_history.store.operations.options import Options
from redis_history.store.operations.page import next_page
from redis_history.store.operations.search import Search, SearchAll, SearchMatches
from redis_history.store.operations.tasks import Ask, Searching, Work
from redis_history.store.search import ranking
from redis_history.store.search.hits import Reindexed, SearchHit, SearchHits, cut_to_tokens, highlights, searched_for
from redis_history.store.search.query import MAX_TERMS, Query, Term, parse_query
from redis_history.store.search.text import (
    MAX_CHARACTERS,
    MAX_IN_ORDER,
    chunk_length,
    index_lines,
    pack_all,
    searchable,
)
from redis_history.values import Message
from redis_history.values._validation import check_function, check_integer, check_range, check_time_zone
from redis_history.values.beside import PartialMessage
from redis_history.values.events import Cursor
from redis_history.values.filters import ANYTHING, Filters, Within
from redis_history.values.sizes import TokenCounter, count_characters

_SearchOp = Search | SearchAll
_logger = logging.getLogger("redis_history")

#: Messages whose documents are written together, and their text: some 10 ms of the server's time.
_DOCUMENTS: Final = 100
_DOCUMENTS_CHARACTERS: Final = 100_000
#: Messages read together.
_PAGE: Final = 1000
#: Found messages that are fetched together.
_FETCHED: Final = 50
#: Conversations of an owner or agent that are searched: those that changed last.
MOST_OWNED: Final = 10_000
#: Characters that are read and ranked here, if the server cannot search, and the number of extra messages that a
#: conversation counts as, because it takes a round trip.
MAX_SCANNED_CHARACTERS: Final = 20_000_000
_EACH: Final = 10
#: How often a reindexing looks for conversations that were created in the meantime.
_PASSES: Final = 4
#: RediSearch's MAXSEARCHRESULTS.
_DEEPEST: Final = 1_000_000
#: A longer query is parsed, and more matches are ranked, in a thread, because it would block the event loop.
_SHORT_QUERY: Final = 1_000
_FEW_MATCHES: Final = 1_000


class Asked(Struct, frozen=True):
    """The arguments of a search, checked. Raises InvalidInputError."""

    query: str
    filters: Filters
    limit: int
    offset: int
    token_cap: int | None
    token_counter: TokenCounter | None
    context: int
    highlight: bool
    time_zone: tzinfo = UTC

    def __post_init__(self) -> None:
        check_range(self.limit, self.offset)
        check_integer(self.limit + self.offset, "limit + offset", 0, _DEEPEST, error=InvalidInputError)
        check_integer(self.token_cap, "token_cap", optional=True, error=InvalidInputError)
        check_function(self.token_counter, "token_counter", "a function from a str to an int", error=InvalidInputError)
        check_integer(self.context, "context", 0, 100, error=InvalidInputError)
        check_time_zone(self.time_zone)


class _Searched(Struct):
    """`number` identifies the message in its conversation."""

    message: Message
    archived: bool
    number: int


class _Room(Struct):
    """How much more is read and ranked here."""

    messages: int
    characters: int

    @property
    def is_full(self) -> bool:
        return self.messages <= 0 or self.characters <= 0

    def take(self, messages: Sequence[Message]) -> int:
        """How many of these messages, ascending, still fit: the newest."""
        fitting = 0
        for message in reversed(messages):
            if self.is_full:
                break
            self.messages -= 1
            self.characters -= min(count_characters(message), MAX_CHARACTERS)
            fitting += 1
        return fitting


class Searcher(Struct, frozen=True):
    """The searches of one store."""

    backend: AsyncBackend | Backend
    options: Options

    def search(self, where: str | Within, asked: Asked) -> Steps[SearchHits]:
        """Search the conversation of this id, or many."""
        parse = partial(parse_query, asked.query, self.options.language, asked.time_zone)
        slow = isinstance(asked.query, str) and len(asked.query) > _SHORT_QUERY
        query = (yield Work(parse)) if slow else parse()
        vector = yield from self._vector(asked)
        if not asked.limit or not (query.terms or vector) or asked.filters.impossible:
            return SearchHits()
        depth = max(ranking.DEPTH, asked.offset + asked.limit)  # matches of each term that are ranked
        ids: Sequence[str] | None
        if isinstance(where, str):
            ids = (where,)
            op: _SearchOp = Search(where, query, asked.filters, vector, depth)
        else:
            ids = yield from _conversations_within(where)
            op = SearchAll(query, asked.filters, vector, depth, self.options.search_wait, ids)
        found = yield from self._matches(op)
        if found is None:
            return (yield from self._scanned(ids, asked, query, one=isinstance(where, str)))
        return (yield from self._ranked(*found, asked))

    def reindex(self, on_progress: Callable[[int, int], object] | None) -> Steps[Reindexed]:
        share = yield from self._ask_server(MakeIndex(self.options.search_wait))
        if share is None:
            raise CapabilityError(
                "reindex needs a server with search (Redis 8, Redis Stack, RediSearch; database 0), and a user with "
                "the rights of an operator; without an index, searches read the conversations"
            )
        seen: set[str] = set()
        documents = done = 0
        for _ in range(_PASSES):
            new = [one for one in (yield from all_ids()) if one not in seen]
            if not new:
                break
            seen.update(new)
            for conversation_id in new:
                documents += yield from self.document_all(conversation_id)
                done += 1
                if on_progress is not None:
                    on_progress(done, len(seen))
        removed = yield from self._ask_server(SweepDocuments())
        return Reindexed(len(seen), documents, removed or 0)

    def document_all(self, conversation_id: str) -> Steps[int]:
        """Write the search documents of all messages of a conversation. Returns their number."""
        if not self._server_may_search:
            return 0
        documents = 0
        op: ops.ReadPage | None = self._newest_page(conversation_id)
        cursor = (yield ops.ReadHead(conversation_id)).cursor
        while op is not None:
            page = yield op
            documents += yield from self._document(conversation_id, _searched(page), cursor)
            op = next_page(op, page, _PAGE)
        return documents

    def with_vectors(self, op: ops.Op[T]) -> Steps[ops.Op[T]]:
        """A write with the vectors of its messages. If the embedder fails, they are found by their words."""
        if isinstance(op, ops.Append | ops.Restore):
            entries = op.entries
        elif isinstance(op, ops.UpdateMessage):
            entries = (op.entry,)
        elif isinstance(op, ops.Compact):
            entries = (op.summary,)
        else:
            return op
        vectors = yield from self._embedded([entry.message for entry in entries])
        return replace(op, vectors=tuple(vectors))  # type: ignore[return-value]

    def _embedded(self, messages: list[Message]) -> Steps[list[bytes]]:
        if self.options.embedder is None or not messages or not self._server_may_search:
            return []
        try:
            texts = yield Work(lambda: [searchable(message)[:MAX_IN_ORDER] for message in messages])
            return (yield from self._embed(texts))
        except Exception as error:  # noqa: BLE001 -- an embedder may raise anything
            _logger.error("the embedder failed; %d messages are found by words alone: %s", len(messages), error)
            return []

    def _embed(self, texts: list[str]) -> Steps[list[bytes]]:
        """The vectors of texts; b"" for one of zeros, which says nothing."""
        assert self.options.embedder is not None  # noqa: S101
        assert self.options.vectors is not None  # noqa: S101
        packed = pack_all((yield Ask(self.options.embedder, (texts,))), len(texts), self.options.vectors)
        return [vector if any(vector) else b"" for vector in packed]

    @property
    def _server_may_search(self) -> bool:
        return self.backend.search_mode in ("server", "unknown")

    def _ask_server(self, op: ops.Op[T]) -> Steps[T | None]:
        return (yield op) if self._server_may_search else None

    def _vector(self, asked: Asked) -> Steps[bytes | None]:
        """The vector of the query, if there is an embedder, and the server can search by it."""
        if self.options.embedder is None or not self._server_may_search or not asked.query.strip() or not asked.limit:
            return None
        try:
            [vector] = yield from self._embed([asked.query])
            return vector or None
        except Exception as error:  # noqa: BLE001 -- an embedder may raise anything
            _logger.error("the embedder failed; searching by words alone: %s", error)
            return None

    def _matches(self, op: _SearchOp) -> Steps[tuple[Query, SearchMatches] | None]:
        """The matches of the server, and the last query: phrases without a match are replaced by
        their words, and of many terms the rarest are searched for. None: the server cannot search now."""
        if not self._server_may_search:
            return None
        while True:
            many = len(op.query.terms) > MAX_TERMS
            found = yield replace(op, depth=0, vector=None) if many else op
            if found is None:
                return None
            found = yield from self._with_repeated_words(op.query, found)
            totals = [one.total for one in found.matches]
            wider = op.query.widened(totals)
            if not {*wider.terms} <= {*op.query.terms}:
                op = replace(op, query=wider)
            elif many:
                op = replace(op, query=op.query.rarest(totals))
            else:
                return op.query, found

    def _with_repeated_words(self, query: Query, found: SearchMatches) -> Steps[SearchMatches]:
        """The matches without those of a phrase such as "no no" or "1.0.0" that have the repeated word once:
        RediSearch finds these, too."""
        matches = list(found.matches)
        for at, term in enumerate(query.terms):
            if term.kind == "phrase" and matches[at].listed and any(one == two for one, two in pairwise(term.words)):
                matches[at] = yield from self._with_phrase(term, matches[at])
        return replace(found, matches=matches)

    def _with_phrase(self, term: Term, found: ranking.Matches) -> Steps[ranking.Matches]:
        """The matches that have this phrase."""
        phrase = f" {' '.join(term.words)} "
        scores: dict[Any, dict[int, float]] = {}
        for where, listed in found.scores.items():
            numbers = list(listed)
            for start in range(0, len(numbers), _FETCHED):
                sequences = tuple(numbers[start : start + _FETCHED])
                outcome = yield Fetch(where[0], where[1], sequences)
                texts = yield Work(partial(index_lines, [one.message for one in outcome if one is not None]))
                lines = iter(texts)
                for sequence, one in zip(sequences, outcome, strict=True):
                    if one is not None and phrase in f" {' '.join(next(lines).split())} ":
                        scores.setdefault(where, {})[sequence] = listed[sequence]
        kept = ranking.Matches(0, scores)
        return kept._replace(total=found.total - found.listed + kept.listed)

    def _ranked(self, query: Query, found: SearchMatches, asked: Asked) -> Steps[SearchHits]:
        totals = [one.total for one in (*found.matches, found.together) if one is not None]
        ranked = (yield Work(partial(_rank, found, query))) if sum(totals) > _FEW_MATCHES else _rank(found, query)
        hits, gone = yield from self._fetched(ranked, asked)
        return (yield from self._finished(hits, max(len(ranked), *totals) - gone, asked, query))

    def _fetched(self, ranked: list[ranking.Ranked], asked: Asked) -> Steps[tuple[list[SearchHit], int]]:
        """The hits of a page, and how many messages were skipped. A message that was removed in the meantime, is beyond
        a bound, or would follow the last question makes room for the next."""
        hits: list[SearchHit] = []
        start = gone = 0
        end, filtered = asked.offset + asked.limit, asked.filters is not ANYTHING
        while start < len(ranked) and len(hits) < end:
            # A second read is needed only if hits are gone; it reads more, so that a third is rarely needed.
            window = ranked[start : start + (_FETCHED if start else min(_FETCHED, end))]
            start += len(window)
            sequences: dict[Any, list[int]] = {}
            for one in window:
                sequences.setdefault(one.conversation, []).append(one.sequence)
            fetches = [Fetch(where[0], where[1], tuple(those), asked.context) for where, those in sequences.items()]
            outcomes = [(yield fetches[0])] if len(fetches) == 1 else (yield ops.ReadTogether(tuple(fetches)))
            found = dict(zip(sequences, map(iter, outcomes), strict=True))
            for one in window:
                hit: Fetched | None = next(found[one.conversation])
                if (
                    hit is None
                    or asked.filters.archived not in (None, hit.archived)
                    or (filtered and not asked.filters.wants(hit.message))
                ):
                    gone += 1
                else:
                    context = tuple(hit.before), tuple(hit.after)
                    hits.append(SearchHit(hit.message, one.score, one.conversation[0], (), *context, hit.archived))
        return hits[asked.offset : end], gone

    def _scanned(self, ids: Sequence[str] | None, asked: Asked, query: Query, *, one: bool) -> Steps[SearchHits]:
        """The hits without an index: reads conversations (None: all, those that changed last first; `one`: a search of
        one conversation), the newest messages of each first, and ranks their messages."""
        if ids is None:
            listed = yield ops.ListConversations(limit=MOST_OWNED + 1)
            ids = [each.conversation_id for each in listed]
        scan = ranking.Scan(query, asked.filters, language=self.options.language)
        room = _Room(ranking.MAX_SCANNED, MAX_SCANNED_CHARACTERS)
        archived: set[tuple[str, int]] = set()
        cut = read = 0
        for conversation_id in ids[:MOST_OWNED]:
            if room.is_full:
                break
            read += 1
            cut += yield from self._scan(conversation_id, asked, scan, room, archived, document=one)
        ranked = yield Work(partial(scan.ranked, one=one))
        hits: list[SearchHit] = []
        for found in ranked[asked.offset : asked.offset + asked.limit]:
            conversation_id, number = found.conversation, found.sequence
            message, is_archived = scan.messages[conversation_id][number], (conversation_id, number) in archived
            if type(message) is PartialMessage:
                [whole] = yield ops.ReadContents(conversation_id, (message,))
                if whole is None:
                    continue
                message = whole
            context = yield from self._neighbors(conversation_id, message, asked.context, is_archived)
            hits.append(SearchHit(message, found.score, conversation_id, (), *context, is_archived))
        incomplete = _left_out(cut, len(ids) - read, scan.size)
        return (yield from self._finished(hits, len(ranked), asked, scan.query, incomplete))

    def _scan(
        self,
        conversation_id: str,
        asked: Asked,
        scan: ranking.Scan,
        room: _Room,
        archived: set[tuple[str, int]],
        *,
        document: bool,
    ) -> Steps[bool]:
        """Add the messages of a conversation to the scan. Returns whether older ones were left out."""
        documented = document and self._server_may_search
        op: ops.ReadPage | None = self._newest_page(conversation_id)
        cursor = (yield ops.ReadHead(conversation_id)).cursor if documented else None
        room.messages -= _EACH
        cut = False
        while op is not None:
            page = yield op
            op = next_page(op, page, _PAGE)
            searched = _searched(page)
            fitting = room.take([one.message for one in searched])
            cut = cut or fitting < len(searched)
            newest = searched[len(searched) - fitting :]
            chunk = [one for one in newest if asked.filters.archived in (None, one.archived)]
            scan.size += len(newest) - len(chunk)
            messages, numbers = [one.message for one in chunk], [one.number for one in chunk]
            yield Work(partial(scan.add, messages, numbers, conversation_id))
            archived.update((conversation_id, one.number) for one in chunk if one.archived)
            if documented and cursor is not None:
                # Messages from before there was search, or an index that was lost: the next search finds them there.
                try:
                    yield from self._document(conversation_id, searched, cursor)
                except RedisHistoryError as error:  # this search does not need the documents
                    documented = False
                    _logger.warning("search documents were not written: %s", error)
            elif room.is_full:
                return cut or op is not None
        return cut

    def _neighbors(
        self, conversation_id: str, message: Message, count: int, archived: bool
    ) -> Steps[tuple[tuple[Message, ...], tuple[Message, ...]]]:
        """`count` messages before and after a message. Neighbors of an archived message are archived, too."""
        if not count:
            return (), ()
        op = ops.ReadPage(conversation_id, count, newest=True, before=message.position, archived=archived)
        before = yield from self._next_to(op)
        after = yield from self._next_to(replace(op, newest=False, before=None, after=message.position))
        return tuple(before[-count:]), tuple(after[:count])

    def _next_to(self, op: ops.ReadPage) -> Steps[list[Message]]:
        """The messages of the page. For archived ones, `op.limit` of them, although live messages may be among them."""
        page: ops.Page = yield op
        if not op.archived:
            return page.messages
        found = list(compress(page.messages, page.archived))
        if len(found) < min(op.limit, len(page.messages)):
            page = yield replace(op, limit=_PAGE)
            found = list(compress(page.messages, page.archived))
        return found

    def _newest_page(self, conversation_id: str) -> ops.ReadPage:
        return ops.ReadPage(conversation_id, _PAGE, newest=True, archived=True, contents="texts")

    def _document(self, conversation_id: str, searched: list[_Searched], cursor: Cursor) -> Steps[int]:
        """Write the documents of these messages, as many per call as the server takes in some 10 ms."""
        written = start = 0
        messages = tuple(one.message for one in searched)
        while start < len(messages):
            sizes = map(count_characters, islice(messages, start, None))
            chunk = messages[start : start + chunk_length(sizes, _DOCUMENTS, _DOCUMENTS_CHARACTERS)]
            vectors = yield from self._embedded(list(chunk))
            position = cursor.epoch, cursor.revision
            op = WriteDocuments(conversation_id, chunk, *position, tuple(vectors))
            written += (yield from self._ask_server(op)) or 0
            start += len(chunk)
        return written

    def _finished(
        self, hits: list[SearchHit], total: int, asked: Asked, query: Query, incomplete: str | None = None
    ) -> Steps[SearchHits]:
        finish = partial(_cut_and_highlighted, hits, asked, query, self.options.language)
        shown = (yield Work(finish)) if asked.highlight or len(hits) > _FETCHED else finish()
        return searched_for(SearchHits(shown, total, incomplete), query)


def search(where: str | Within, asked: Asked) -> Steps[SearchHits]:
    """Search the conversation of this id, or many, as the store does: see `HistoryStore.search`."""
    return (yield Searching(lambda searcher: searcher.search(where, asked)))  # type: ignore[no-any-return]


def document_all(conversation_id: str) -> Steps[None]:
    """Write the search documents of all messages of a conversation."""
    yield Searching(lambda searcher: searcher.document_all(conversation_id))


def _conversations_within(within: Within) -> Steps[tuple[str, ...] | None]:
    """The ids of the conversations to search; None: all."""
    ids = within.conversation_ids
    if within.user_id is None and within.agent_name is None:
        return ids
    listed = yield ops.ListConversations(within.user_id, within.agent_name, limit=MOST_OWNED)
    named = None if ids is None else set(ids)
    return tuple(one.conversation_id for one in listed if named is None or one.conversation_id in named)


def _searched(page: ops.Page) -> list[_Searched]:
    """The messages of a page, except replies that are being written and former summaries, whose messages are there
    themselves. The number of the live summary is its sequence with a minus: the last message that it replaced has the
    same sequence."""
    found: list[_Searched] = []
    for message, archived in zip(page.messages, page.archived or [False] * len(page.messages), strict=True):
        if message.status != "streaming" and (not archived or message.id not in page.former_summaries):
            sequence = message.sequence or 0
            taken = found and found[-1].number == sequence
            found.append(_Searched(message, archived, -sequence if taken else sequence))
    return found


def _rank(found: SearchMatches, query: Query) -> list[ranking.Ranked]:
    size = ranking.estimated_size(found.matches) if found.size is None else found.size
    ranked = ranking.rank(query, found.matches, size=size, together=found.together, questions=found.questions)
    if found.dated is not None and found.dated.total <= ranking.MAX_LISTED:  # else it says little
        ranked = ranking.favor(ranked, found.dated, size)
    if found.authored is not None:
        ranked = ranking.favor(ranked, found.authored, size, ranking.AUTHORSHIP)
    return ranked if found.nearest is None else ranking.fuse(ranked, found.nearest, found.size or found.documents)


def _left_out(cut: int, unread: int, size: int) -> str | None:
    if not cut and not unread:
        return None
    left = [f"{unread:,} conversations" if unread else "", f"older messages of {cut:,} conversations" if cut else ""]
    return f"without an index only {size:,} messages were searched, not {' and '.join(filter(None, left))}"


def _cut_and_highlighted(hits: list[SearchHit], asked: Asked, query: Query, language: str) -> list[SearchHit]:
    hits = cut_to_tokens(hits, asked.token_cap, query, language=language, counter=asked.token_counter)
    if not asked.highlight:
        return hits
    shown = [hit.message if hit.excerpt is None else hit.excerpt for hit in hits]
    marks = [highlights(text, query, language=language) for text in shown]
    return [replace(hit, highlights=mark) for hit, mark in zip(hits, marks, strict=True)]
