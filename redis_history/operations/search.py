"""Search on the server. Without search on the server the outcome is None, and the store reads and ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from redis_history.errors import BackendError
from redis_history.model.filters import ANYTHING, Filters
from redis_history.operations.base import Call, Op, Steps, Upkeep, as_is, load_script, plain
from redis_history.operations.documents import finish_work, mark
from redis_history.operations.index import fill_index, is_moving, is_refusal, use_index
from redis_history.operations.keys import pack_keys
from redis_history.operations.settings import SearchIndex, Searching, Settings
from redis_history.search.query import Query
from redis_history.search.ranking import DEPTH, Matches
from redis_history.search.redisearch import (
    NAMESPACE,
    Namespace,
    asking_commands,
    authored_commands,
    count_at,
    count_command,
    dated_command,
    matches_of,
    nearest_command,
    read_found,
    scope_at,
    search_commands,
)

SEARCH: Final = load_script("search")
_logger = logging.getLogger("redis_history")

#: Errors of servers without the index (the third since RediSearch 8.8), or without search.
_LOST: Final = ("no such index", "unknown index", "index not found", "unknown command", "unknown redis")
#: The error of scripts on servers that search all nodes of a cluster.
_NO_SCRIPTS: Final = "cannot block"
#: Messages of each term from each part of an index with several parts.
_PART_DEPTH: Final = 100
#: Conversations that one command searches, if the search names conversations.
_SCOPE_SIZE: Final = 500
#: Commands of one script: some 10 ms of the server's time.
_COMMANDS: Final = 40
#: Searches of one conversation whose documents must first be marked as archived or live.
_MARKINGS: Final = 3
#: A placeholder: the script puts in the generation of the conversation's documents.
_SCOPE: Final = ["-"]
#: A reply in the state's field "~" (lua/_live.lua).
_REPLY_BYTES: Final = 33


class SearchMatches(Struct, frozen=True):
    """The matches of each term of a query, by conversation id and generation, and of any of them (`together`). `size`:
    the number of searched messages (None: unknown); `nearest`: the similarity of the nearest vectors; `documents`: the
    number in the index of a namespace; `dated`: the messages from the times that the query names; `authored`: the
    matches of all messages by writers that the query names; `questions`: the matches that are questions."""

    matches: list[Matches]
    together: Matches | None
    size: int | None
    nearest: Matches | None = None
    documents: int = 0
    dated: Matches | None = None
    authored: Matches | None = None
    questions: Matches | None = None


class Search(Struct, Op[SearchMatches | None], frozen=True):
    """Search one conversation: the best `depth` matches of each term (0: only how many there are). The outcome is also
    None if some messages have no document yet."""

    conversation_id: str
    query: Query
    filters: Filters = ANYTHING
    vector: bytes | None = None
    depth: int = DEPTH

    def steps(self, settings: Settings) -> Steps[SearchMatches | None]:
        return _search(self, settings)


class SearchAll(Struct, Op[SearchMatches | None], frozen=True):
    """Search the namespace, or these conversations. Waits up to `seconds` for an index that is being filled."""

    query: Query
    filters: Filters = ANYTHING
    vector: bytes | None = None
    depth: int = DEPTH
    seconds: float = 10.0
    conversation_ids: tuple[str, ...] | None = None

    def steps(self, settings: Settings) -> Steps[SearchMatches | None]:
        return _search(self, settings)


def _search(op: Search | SearchAll, settings: Settings) -> Steps[SearchMatches | None]:
    """The matches. None if the server has no search, no index or an incomplete one."""
    index = settings.index
    if op.vector is not None:
        try:
            return (yield from _search_with_index(op, settings, index))
        except BackendError as error:
            if index is None or not is_refusal(error):
                raise
            # A store without this embedder has replaced the index. The next search makes the right one again.
            _logger.warning("the search index lacks these vectors, so only words are searched: %s", error)
            index.settled = False
            op = structs.replace(op, vector=None)
    return (yield from _search_with_index(op, settings, index))


def _search_with_index(
    op: Search | SearchAll, settings: Settings, index: SearchIndex | None
) -> Steps[SearchMatches | None]:
    for first in (True, False):
        if index is None or not index.works:
            return None
        try:
            if isinstance(op, Search):
                return (yield from _search_one(op, settings, index))
            return (yield from _search_all(op, settings, index))
        except BackendError as error:
            if index.scripts and _NO_SCRIPTS in str(error.__cause__).lower():
                index.scripts = False
                continue
            lost = _is_lost_index(error)
            if not lost and not _is_unanswered(error):
                raise
            if not lost or not first:
                _logger.warning("the server did not answer a search: %s", error)
                return None
            _logger.warning("the search index is lost; it is created again")
        yield from use_index(settings, lost=True)
    return None


def _is_lost_index(error: Exception) -> bool:
    """Whether the server has lost the index, or has no search."""
    text = str(error.__cause__).lower()
    return any(phrase in text for phrase in _LOST)


def _is_unanswered(error: Exception) -> bool:
    """Whether the search took too long, or a slot of the cluster moves."""
    from redis.exceptions import ResponseError  # here, so that redis-py is imported by the first call

    cause = error.__cause__
    return is_moving(cause) or (isinstance(cause, ResponseError) and "timeout" in str(cause).lower())


def _search_one(op: Search, settings: Settings, index: SearchIndex) -> Steps[SearchMatches | None]:
    if not index.settled:
        yield from fill_index(settings, 0.0)
    if not index.settled:  # until the index with vectors is filled, another one answers
        op = structs.replace(op, vector=None)
    calls, names = _search_calls(op, settings, index)
    for _ in range(_MARKINGS):
        if index.scripts:
            replies = yield calls
        else:
            replies = []
            for call in calls:
                replies.append((yield from _unscripted(op, call.args, settings)))
        reply = _one_reply(replies)
        if reply is None or reply[2] == -2:
            return None  # the conversation was replaced, or the slot moves
        if reply[2] != -1:
            return _found(op, names, reply)
        # The search filters by `archived`, and some documents lack a mark so far.
        if not (yield Upkeep(mark(settings.keyspace.conversation(op.conversation_id)))):
            break
    return None


def _search_calls(op: Search, settings: Settings, index: SearchIndex) -> tuple[list[Call], list[str]]:
    """A search of one conversation, and what its commands find; `_found` reads the replies."""
    name = index.part(op.conversation_id).name
    commands = _commands(op, name, _SCOPE, index.form, op.depth, DEPTH)
    keys = pack_keys(settings.keyspace.conversation(op.conversation_id).state)
    calls = []
    for start in range(0, max(len(commands), 1), _COMMANDS):
        args = [b"0" if op.filters.archived is None else b"1"]
        for what, command in (("", count_command(name, _SCOPE)), *commands[start : start + _COMMANDS]):
            adapted = b"0"
            if what == "nearest":
                adapted = b"%d" % (count_at(command) + 1)
            elif what == "together" and len(commands) <= _COMMANDS:
                adapted = b"rest"
            elif what == "authored":
                adapted = b"some"
            args += (b"%d" % len(command), b"%d" % (scope_at(command) + 1), adapted, *command)
        calls.append(Call(SEARCH, keys, args, as_is))
    return calls, [name for name, _ in commands]


def _one_reply(replies: list[list[Any]]) -> list[Any] | None:
    """The replies to calls of one search as the reply to one call; None if the conversation was replaced in the
    meantime."""
    first = replies[0]
    for reply in replies:
        if reply[0] != first[0]:
            return None
        if reply[1] != reply[2]:  # some messages have no document or no mark, or the slot moves
            return reply
    return [*first[:3], *(item for reply in replies for item in reply[3:])]


def _found(op: Search, names: list[str], reply: list[Any]) -> SearchMatches | None:
    """The matches; None if not all messages have documents."""
    generation, count, documents, *replies = reply
    if count != documents:
        return None
    if not replies:  # a conversation without messages
        return SearchMatches([Matches(0, {})] * len(op.query.terms), None, 0)
    whose = (op.conversation_id, generation)
    found = [
        Matches(total, {whose: dict(zip(map(int, listed[::2]), map(float, listed[1::2]), strict=True))})
        for total, listed in zip(replies[::2], map(bytes.split, replies[1::2]), strict=True)
    ]
    if "nearest" in names:
        at = names.index("nearest")
        distances = found[at].scores[whose]
        found[at] = Matches(len(distances), {whose: {sequence: -one for sequence, one in distances.items()}})
    return _search_matches(names, found, count)


def _search_matches(names: list[str], found: list[Matches], size: int | None) -> SearchMatches:
    """The matches of commands, by the names of `_commands`."""
    of: dict[str, Matches] = {name: each for name, each in zip(names, found, strict=True) if name != "term"}
    terms = [each for name, each in zip(names, found, strict=True) if name == "term"]
    authored = of.get("authored")
    if authored is not None:
        authored = authored._replace(total=of["authors"].total)
    return SearchMatches(
        terms,
        of.get("together"),
        size,
        of.get("nearest"),
        dated=of.get("dated"),
        authored=authored,
        questions=of.get("questions"),
    )


def _unscripted(op: Search, args: list[bytes], settings: Settings) -> Steps[list[Any]]:
    """Does the work of search.lua with commands, and returns the same."""
    state = settings.keyspace.conversation(op.conversation_id).state
    counters = plain(b"HMGET", state, b"i", b"n", b"m", b"~", b"j")
    generation, size, moves = _counted((yield counters))
    answer = [generation, size, 0]
    if not generation or (args[0] == b"1" and moves):
        return answer if not generation else [generation, size, -1]
    commands, at = [], 1
    while at < len(args):
        length, scope = int(args[at]), int(args[at + 1])
        command = args[at + 3 : at + 3 + length]
        command[scope - 1] = generation
        commands.append(plain(*command, errors=True))
        at += 3 + length
    replies = yield commands
    for reply in replies:
        if is_moving(reply):
            return [generation, size, -2]
        if isinstance(reply, Exception):
            raise BackendError(str(reply)) from reply
    count, *found = [read_found(reply) for reply in replies]
    # The conversation may have changed since its counters were read.
    later = _counted((yield counters))
    if count.total == later.size and generation == later.generation:
        answer[1] = size = later.size
    # After a slot move, RediSearch 8.0 to 8.2 asks a node once for each of its ranges, and counts them as often.
    times = count.total // size if size and count.total % size == 0 else 1
    answer[2] = count.total // times
    prefix = settings.keyspace.documents_of(op.conversation_id, generation)
    for total, documents in found:
        # The score of a near vector is its negative distance. The script returns the distance.
        listed = [(key[len(prefix) :], abs(score)) for key, score in documents if key.startswith(prefix)]
        answer += (total // times, b" ".join(b"%b %a" % one for one in listed))
    return answer


class _Counted(NamedTuple):
    """Counters of a conversation: the generation of its documents, its finished messages, and its unmarked moves."""

    generation: bytes
    size: int
    moves: bytes | None


def _counted(values: list[Any]) -> _Counted:
    generation, live, archived, streaming, moves = values
    size = int(live or 0) + int(archived or 0) - len(streaming or b"") // _REPLY_BYTES
    return _Counted(generation or b"", size, moves)


def _search_all(op: SearchAll, settings: Settings, index: SearchIndex) -> Steps[SearchMatches | None]:
    state = yield from fill_index(settings, op.seconds)
    if state is None or not state.complete:
        return None
    if not index.settled:
        op = structs.replace(op, vector=None)
    if op.filters.archived is not None:
        yield Upkeep(finish_work(settings.keyspace))
    several = len(index.parts) > 1
    depth = max(_PART_DEPTH, op.depth - DEPTH) if several else op.depth
    asked: list[tuple[int, Sequence[str] | Namespace]] = [(at, NAMESPACE) for at in range(len(index.parts))]
    if op.conversation_ids is not None:
        asked = yield from _scopes(op.conversation_ids, settings, index)
    each = [_commands(op, index.parts[at].name, scope, index.form, depth, depth) for at, scope in asked]
    names = [name for name, _ in each[0]] if each else []
    calls = [plain(*command, errors=True) for commands in each for _, command in commands]
    replies = (yield calls) if calls else []
    for reply in replies:
        if isinstance(reply, Exception):
            raise BackendError(str(reply)) from reply
    size = len(names)
    found = [_read_all(op, settings, names, replies[at * size : (at + 1) * size]) for at in range(len(each))]
    if not found:
        return _read_all(op, settings, [], [])
    return structs.replace(_merged(found) if len(found) > 1 else found[0], documents=state.documents)


def _scopes(
    conversation_ids: tuple[str, ...], settings: Settings, index: SearchIndex
) -> Steps[list[tuple[int, Sequence[str] | Namespace]]]:
    """The generations of these conversations' documents, by part of the index, in chunks."""
    keys = [settings.keyspace.conversation(one) for one in conversation_ids]
    generations = (yield [plain(b"HGET", one.state, b"i") for one in keys]) if keys else []
    by_part: dict[int, list[str]] = {}
    for one, generation in zip(conversation_ids, generations, strict=True):
        if generation is not None:
            by_part.setdefault(index.part_number(one), []).append(generation.decode())
    return [
        (at, listed[start : start + _SCOPE_SIZE])
        for at, listed in by_part.items()
        for start in range(0, len(listed), _SCOPE_SIZE)
    ]


def _commands(
    op: Search | SearchAll,
    name: bytes,
    scope: Sequence[str] | Namespace,
    searching: Searching,
    depth: int,
    near: int,
) -> list[tuple[str, list[bytes]]]:
    """The commands, and what each of them finds."""
    terms = search_commands(name, scope, op.query, op.filters, language=searching.language, depth=depth)
    commands = list(zip(["term"] * len(op.query.terms) + ["together"], terms, strict=False))
    if not op.depth:  # only the numbers of matches are wanted
        return commands[: len(op.query.terms)]
    if op.vector is not None and not op.filters.impossible:
        commands.append(("nearest", nearest_command(name, scope, op.vector, op.filters, count=near)))
    if terms:
        authored = authored_commands(name, scope, op.query, op.filters, language=searching.language)
        commands += zip(("authors", "authored"), authored, strict=False)
        asking = asking_commands(name, scope, op.query, op.filters, language=searching.language)
        commands += zip(("questions",), asking, strict=False)
        if op.query.periods:
            commands.append(("dated", dated_command(name, scope, op.query.periods, op.filters)))
    return commands


def _read_all(op: SearchAll, settings: Settings, names: list[str], replies: list[Any]) -> SearchMatches:
    keyspace = settings.keyspace

    def message_of(key: bytes) -> tuple[tuple[str, bytes], int] | None:
        where = keyspace.document_of(key)
        return None if where is None else ((where.conversation_id, where.generation), where.sequence)

    found = _search_matches(names, [matches_of(reply, message_of) for reply in replies], None)
    return found if found.matches else structs.replace(found, matches=[Matches(0, {})] * len(op.query.terms))


def _merged(found: list[SearchMatches]) -> SearchMatches:
    """The matches of several searches."""
    return SearchMatches(
        [_joined_known(each) for each in zip(*(one.matches for one in found), strict=True)],
        _joined([one.together for one in found]),
        None,
        _joined([one.nearest for one in found]),
        dated=_joined([one.dated for one in found]),
        authored=_joined([one.authored for one in found]),
        questions=_joined([one.questions for one in found]),
    )


def _joined(parts: list[Matches | None]) -> Matches | None:
    known = [part for part in parts if part is not None]
    return _joined_known(known) if known else None


def _joined_known(parts: Sequence[Matches]) -> Matches:
    scores = {whose: listed for part in parts for whose, listed in part.scores.items()}
    return Matches(sum(part.total for part in parts), scores)
