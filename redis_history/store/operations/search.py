"""Search on the server. Without search on the server the outcome is None, and the store reads and ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Self

from msgspec import Struct, structs

from redis_history.errors import BackendError
from redis_history.store.operations.base import ByNode, Call, OnConversation, Op, Steps, Upkeep, as_is, plain
from redis_history.store.operations.documents import finish_work, mark
from redis_history.store.operations.index import fill_index, has_moved, is_moving, is_refusal, use_index
from redis_history.store.operations.scripts import load_script
from redis_history.store.operations.settings import SearchIndex, Settings
from redis_history.store.search import redisearch
from redis_history.store.search.query import Query
from redis_history.store.search.ranking import DEPTH, Matches
from redis_history.values.filters import ANYTHING, Filters

SEARCH: Final = load_script("search", args="by_archived *commands", keys="state")
_logger = logging.getLogger("redis_history")

#: Errors of servers without the index (the third since RediSearch 8.8), or without search.
_LOST: Final = ("no such index", "unknown index", "index not found", "unknown command", "unknown redis")
#: Conversations that one command searches, if the search names conversations.
_SCOPE_SIZE: Final = 500
#: Commands of one script: some 10 ms of the server's time.
_COMMANDS: Final = 40
#: Searches of one conversation whose documents must first be marked as archived or live.
_MARKINGS: Final = 3
#: How often a search of all nodes begins anew because a slot has moved.
_MOVES: Final = 5
#: A placeholder: the script puts in the generation of the conversation's documents.
_SCOPE: Final = ["-"]
#: A reply in the state's field "~" (lua/_live.lua).
_REPLY_BYTES: Final = 33

#: Commands, and what each of them finds: see `search_commands`.
Commands = list[tuple[str, list[bytes]]]


class SearchMatches(Struct, frozen=True):
    """The matches of each term of a query, by conversation id and generation, and of any of them (`together`). `size`:
    the number of searched messages (None: unknown); `nearest`: the similarity of the nearest vectors; `documents`: the
    number in the index of a namespace; `dated`: the messages from the times that the query names; `authored`: the
    matches of all messages by writers that the query names; `questions`: the matches that are questions."""

    matches: list[Matches]
    together: Matches | None = None
    size: int | None = None
    nearest: Matches | None = None
    documents: int = 0
    dated: Matches | None = None
    authored: Matches | None = None
    questions: Matches | None = None

    @classmethod
    def of(cls, commands: Commands, found: Sequence[Matches], size: int | None = None, documents: int = 0) -> Self:
        """The matches of commands."""
        terms: list[Matches] = []
        of: dict[str, Any] = {"size": size, "documents": documents}
        for (name, _), matches in zip(commands, found, strict=True):
            if name == "term":
                terms.append(matches)
            else:
                of[name] = matches
        if authors := of.pop("authors", None):
            of["authored"] = of["authored"]._replace(total=authors.total)
        return cls(terms, **of)


def _search(op: Search | SearchAll, settings: Settings) -> Steps[SearchMatches | None]:
    """The matches, or None for a server without search or without a complete index."""
    index = settings.index
    made_anew = False
    while index is not None and index.works:
        try:
            return (yield from op.ask(settings, index))
        except BackendError as error:
            lost = _is_lost_index(error)
            if not lost and not _is_unanswered(error):
                if op.vector is None or not is_refusal(error):
                    raise
                # A store without this embedder has replaced the index. The next search makes the right one again.
                _logger.warning("the search index lacks these vectors, so only words are searched: %s", error)
                index.settled = False
                op = structs.replace(op, vector=None)
                continue
            if not lost or made_anew:
                _logger.warning("the server did not answer a search: %s", error)
                return None
            _logger.warning("the search index is lost; it is created again")
        made_anew = True
        yield from use_index(settings, lost=True)
    return None


class Search(OnConversation, Op[SearchMatches | None], frozen=True):
    """Search one conversation: the best `depth` matches of each term (0: only how many there are). The outcome is also
    None while some messages still lack a document."""

    query: Query
    filters: Filters = ANYTHING
    vector: bytes | None = None
    depth: int = DEPTH

    steps = _search

    def ask(self, settings: Settings, index: SearchIndex) -> Steps[SearchMatches | None]:
        if not index.settled:
            yield from fill_index(settings, 0.0)
        alias = index.alias(self.conversation_id)
        commands = _commands(self, index, alias, _SCOPE, DEPTH)
        count = redisearch.count_command(alias)
        for _ in range(_MARKINGS):
            if index.scripts:
                calls = self._calls(settings, count, commands)
                reply = (yield calls[0]) if len(calls) == 1 else _one_reply((yield calls))
            else:
                reply = yield from self._unscripted(settings, count, commands)
            if reply is not None and reply[2] == -2:
                index.nodes = None  # a slot has moved
            if reply is None or reply[2] == -2:
                return None
            if reply[2] != -1:
                return self._found(commands, reply)
            # The search filters by `archived`, and some documents lack a mark so far.
            if not (yield Upkeep(mark(settings.keyspace.conversation(self.conversation_id)))):
                break
        return None

    def _calls(self, settings: Settings, count: list[bytes], commands: Commands) -> list[Call]:
        keys = (settings.keyspace.conversation(self.conversation_id).state,)
        flag = b"0" if self.filters.archived is None else b"1"
        calls = []
        for start in range(0, max(len(commands), 1), _COMMANDS):
            asked = [b"%d" % len(count), b"0", *count]
            for name, command in commands[start : start + _COMMANDS]:
                adapted = b"0"
                if name == "nearest":
                    adapted = b"%d" % (redisearch.count_at(command) + 1)
                elif name == "together" and len(commands) <= _COMMANDS:
                    adapted = b"rest"
                elif name == "authored":
                    adapted = b"some"
                asked += (b"%d" % len(command), adapted, *command)
            calls.append(Call(SEARCH, keys, SEARCH.args(by_archived=flag, commands=asked), as_is))
        return calls

    def _unscripted(self, settings: Settings, count: list[bytes], commands: Commands) -> Steps[list[Any]]:
        """Does the work of search.lua with commands, and returns the same."""
        state = settings.keyspace.conversation(self.conversation_id).state
        counters = plain(b"HMGET", state, b"i", b"n", b"m", b"~", b"j")
        generation, size, moves = _counted((yield counters))
        if not generation or (self.filters.archived is not None and moves):
            return [generation, size, -1 if generation else 0]
        asked = [count, *(command for _, command in commands)]
        for command in asked:
            command[redisearch.SCOPE_AT] = generation
        replies = yield [plain(*command, errors=True) for command in asked]
        _raise_errors(replies)
        documents, *found = [redisearch.read_found(reply) for reply in replies]
        # The conversation may have changed since its counters were read.
        later = _counted((yield counters))
        if documents.total == later.size and generation == later.generation:
            size = later.size
        # After a slot move, RediSearch 8.0 to 8.2 asks a node once for each of its ranges, and counts them as often.
        times = documents.total // size if size and documents.total % size == 0 else 1
        answer: list[Any] = [generation, size, documents.total // times]
        prefix = settings.keyspace.documents_of(self.conversation_id, generation)
        for total, listed in found:
            # The score of a near vector is its negative distance. The script returns the distance.
            own = [(key[len(prefix) :], abs(score)) for key, score in listed if key.startswith(prefix)]
            answer += (total // times, b" ".join(b"%b %a" % one for one in own))
        return answer

    def _found(self, commands: Commands, reply: list[Any]) -> SearchMatches | None:
        """The matches; None if not all messages have documents."""
        generation, count, documents, *replies = reply
        if count != documents:
            return None
        if not replies:  # a conversation without messages
            return SearchMatches([Matches(0, {})] * len(self.query.terms), size=0)
        whose = (self.conversation_id, generation)
        found: list[Matches] = []
        for (name, _), total, listed in zip(commands, replies[::2], replies[1::2], strict=True):
            numbers = listed.split()
            scores = dict(zip(map(int, numbers[::2]), map(float, numbers[1::2]), strict=True))
            if name == "nearest":
                total, scores = len(scores), {sequence: -distance for sequence, distance in scores.items()}
            found.append(Matches(total, {whose: scores}))
        return SearchMatches.of(commands, found, size=count)


class SearchAll(Struct, Op[SearchMatches | None], frozen=True):
    """Search the namespace, or these conversations. Waits up to `seconds` for an index that is being filled."""

    query: Query
    filters: Filters = ANYTHING
    vector: bytes | None = None
    depth: int = DEPTH
    seconds: float = 10.0
    conversation_ids: tuple[str, ...] | None = None

    steps = _search

    def ask(self, settings: Settings, index: SearchIndex) -> Steps[SearchMatches | None]:
        if self.filters.archived is not None:
            yield Upkeep(finish_work(settings))
        for _ in range(_MOVES):
            state = yield from fill_index(settings, self.seconds)
            if state is None or not state.complete:
                return None
            commands = [
                _commands(self, index, alias, scope, self.depth)
                for alias, scope in (yield from self._scopes(settings, index))
            ]
            calls = [plain(*command, errors=True) for one in commands for _, command in one]
            # In a cluster, whether the nodes that were asked still have all slots. Keys with such a name never exist.
            several = index.names if len(index.names) > 1 else ()
            replies = yield [*calls, *(plain(b"EXISTS", name, errors=True) for name in several)]
            if any(map(has_moved, replies)):
                continue
            # redis-py follows a slot to its new node, and knows only then that the nodes are not those of `index`.
            if index.nodes is not None and (yield ByNode(index.names)) != index.nodes:
                continue
            _raise_errors(replies)
            found = [redisearch.matches_of(reply, settings.keyspace.document_of) for reply in replies[: len(calls)]]
            if not found:
                return SearchMatches([Matches(0, {})] * len(self.query.terms))
            joined = [_joined(found[at :: len(commands[0])]) for at in range(len(commands[0]))]
            return SearchMatches.of(commands[0], joined, documents=state.documents)
        return None

    def _scopes(
        self, settings: Settings, index: SearchIndex
    ) -> Steps[list[tuple[bytes, Sequence[str] | redisearch.Namespace]]]:
        """The scopes to search in each index: the namespace, or chunks of generations of documents."""
        if self.conversation_ids is None:
            return [(alias, redisearch.NAMESPACE) for alias in dict.fromkeys(index.aliases.values())]
        states = [settings.keyspace.conversation(one).state for one in self.conversation_ids]
        generations = (yield [plain(b"HGET", state, b"i") for state in states]) if states else []
        by_alias: dict[bytes, list[str]] = {}
        for one, generation in zip(self.conversation_ids, generations, strict=True):
            if generation is not None:
                by_alias.setdefault(index.alias(one), []).append(generation.decode())
        return [
            (alias, listed[start : start + _SCOPE_SIZE])
            for alias, listed in by_alias.items()
            for start in range(0, len(listed), _SCOPE_SIZE)
        ]


def _commands(
    op: Search | SearchAll, index: SearchIndex, alias: bytes, scope: Sequence[str] | redisearch.Namespace, near: int
) -> Commands:
    return redisearch.search_commands(
        alias,
        scope,
        op.query,
        op.filters,
        language=index.form.language,
        depth=op.depth,
        # Until the index with vectors is filled, another one answers.
        vector=op.vector if index.settled else None,
        near=near,
    )


def _is_lost_index(error: Exception) -> bool:
    """Whether the server has lost the index or lacks search."""
    text = str(error.__cause__).lower()
    return any(phrase in text for phrase in _LOST)


def _is_unanswered(error: Exception) -> bool:
    """Whether the search took too long, or a slot of the cluster moves."""
    from redis.exceptions import ResponseError  # here, so that redis-py is imported by the first call

    cause = error.__cause__
    return is_moving(cause) or (isinstance(cause, ResponseError) and "timeout" in str(cause).lower())


def _raise_errors(replies: Iterable[Any]) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise BackendError(str(reply)) from reply


def _one_reply(replies: list[list[Any]]) -> list[Any] | None:
    """The replies to calls of one search as the reply to one call; None if the conversation was replaced in the
    meantime."""
    first = replies[0]
    for reply in replies:
        if reply[0] != first[0]:
            return None
        if reply[1] != reply[2]:  # some messages lack a document or a mark, or the slot moves
            return reply
    return [*first[:3], *(item for reply in replies for item in reply[3:])]


class _Counted(NamedTuple):
    """Counters of a conversation: the generation of its documents, its finished messages, and its unmarked moves."""

    generation: bytes
    size: int
    moves: bytes | None


def _counted(values: list[Any]) -> _Counted:
    generation, live, archived, streaming, moves = values
    size = int(live or 0) + int(archived or 0) - len(streaming or b"") // _REPLY_BYTES
    return _Counted(generation or b"", size, moves)


def _joined(parts: Sequence[Matches]) -> Matches:
    scores = {whose: listed for part in parts for whose, listed in part.scores.items()}
    return Matches(sum(part.total for part in parts), scores)
