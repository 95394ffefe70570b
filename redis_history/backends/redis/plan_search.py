"""The steps of search operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import structs
from redis.exceptions import AskError, ResponseError, TryAgainError

from redis_history.backends.redis.search_index import (
    counted_fields,
    fill_index,
    finish_work,
    is_refusal,
    mark,
    use_index,
    write_documents,
)
from redis_history.errors import BackendError, CorruptDataError
from redis_history.model.wire import decode_member
from redis_history.operations.base import (
    FETCH,
    SEARCH,
    Call,
    SearchIndex,
    Searching,
    Settings,
    Steps,
    Upkeep,
    as_is,
    plain,
    read,
)
from redis_history.operations.keys import pack_keys
from redis_history.search.ranking import DEPTH, Matches
from redis_history.search.redisearch import (
    NAMESPACE,
    Namespace,
    authored_commands,
    count_at,
    count_command,
    dated_command,
    matches_of,
    nearest_command,
    page_command,
    read_found,
    scope_at,
    search_commands,
)
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

_logger = logging.getLogger("redis_history")

#: Errors of servers without the index (the third since RediSearch 8.8), or without search.
_LOST: Final = ("no such index", "unknown index", "index not found", "unknown command", "unknown redis")
#: The error of scripts on servers that search all nodes of a cluster.
_NO_SCRIPTS: Final = "cannot block"
#: Messages of each term from each part of an index with several parts.
_PART_DEPTH: Final = 100
#: Conversations that one command searches, if the search names conversations.
_SCOPE_SIZE: Final = 500
#: Documents that a sweep checks in one step.
_SWEPT: Final = 200
#: Commands of one script: some 10 ms of the server's time.
_COMMANDS: Final = 40
#: Searches of one conversation whose documents must first be marked as archived or live.
_MARKINGS: Final = 3
#: A placeholder: the script puts in the generation of the conversation's documents.
_SCOPE: Final = ["-"]
#: Of a reply in the state's field "~" (lua/_live.lua).
_REPLY_BYTES: Final = 33


def _is_lost_index(error: Exception) -> bool:
    """Whether the server has lost the index, or has no search."""
    text = str(error.__cause__).lower()
    return any(phrase in text for phrase in _LOST)


def _is_unanswered(error: Exception) -> bool:
    """Whether the search took too long, or a slot of the cluster moves."""
    cause = error.__cause__
    return isinstance(cause, AskError | TryAgainError) or (
        isinstance(cause, ResponseError) and "timeout" in str(cause).lower()
    )


def _make(op: MakeIndex, settings: Settings) -> Steps[float | None]:
    state = yield from fill_index(settings, op.seconds, anew=True)
    return None if state is None else state.share


def _search(op: Search | SearchAll, settings: Settings) -> Steps[SearchMatches | None]:
    """The matches; None if the server has no search, no index or an incomplete one."""
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
        # The search filters by `archived`, and some documents have no mark yet.
        if not (yield Upkeep(mark(settings.keyspace.conversation(op.conversation_id)))):
            break
    return None


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


def _merged(found: list[SearchMatches]) -> SearchMatches:
    """The matches of several searches."""
    return SearchMatches(
        [_joined_known(each) for each in zip(*(one.matches for one in found), strict=True)],
        _joined([one.together for one in found]),
        None,
        _joined([one.nearest for one in found]),
        dated=_joined([one.dated for one in found]),
        authored=_joined([one.authored for one in found]),
    )


def _joined(parts: list[Matches | None]) -> Matches | None:
    known = [part for part in parts if part is not None]
    return _joined_known(known) if known else None


def _joined_known(parts: Sequence[Matches]) -> Matches:
    scores = {whose: listed for part in parts for whose, listed in part.scores.items()}
    return Matches(sum(part.total for part in parts), scores)


def _write_documents(op: WriteDocuments, settings: Settings) -> Steps[int | None]:
    index = settings.index
    if index is None or not index.works:
        return None
    written: int = yield _documents_call(op, settings, index.form)
    return written


def _sweep(op: SweepDocuments, settings: Settings) -> Steps[tuple[int, int] | None]:
    if settings.index is None or not settings.index.works:
        return None
    count = len(settings.index.parts)
    start, at = divmod(max(op.cursor - 1, 0), count)
    if count == 1:
        pattern = settings.keyspace.documents + b"*"
        next_cursor, keys = yield plain(b"SCAN", b"%d" % op.cursor, b"MATCH", pattern, b"COUNT", b"%d" % _SWEPT)
    else:  # SCAN reads one node only
        listed = yield plain(*page_command(settings.index.parts[at].name, start, _SWEPT))
        keys = [key for key, _ in read_found(listed).documents]
    generations: dict[tuple[str, bytes], list[tuple[int, bytes]]] = {}
    gone = []
    for key in keys:
        found = settings.keyspace.document_of(key)
        if found is None:
            gone.append(key)
        else:
            generations.setdefault((found.conversation_id, found.generation), []).append((found.sequence, key))
    for (conversation_id, generation), documents in generations.items():
        sequences = tuple(sequence for sequence, _ in documents)
        messages = yield from fetch(Fetch(conversation_id, generation, sequences), settings)
        gone += [key for (_, key), message in zip(documents, messages, strict=True) if message is None]
    for key in gone:
        yield plain(b"UNLINK", key)
    if count == 1:
        return int(next_cursor), len(gone)
    if len(keys) == _SWEPT:
        return (start + _SWEPT - len(gone)) * count + at + 1, len(gone)
    return (at + 2) % (count + 1), len(gone)


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
            args += (b"%d" % len(command), b"%d" % (scope_at(command) + 1), adapted, *command)
        calls.append(Call(SEARCH, keys, args, as_is))
    return calls, [name for name, _ in commands]


def _one_reply(replies: list[list[Any]]) -> list[Any] | None:
    """The replies to calls of one search as the reply to one call; None if the conversation was replaced meanwhile."""
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
    """What commands have found, by the names of `_commands`."""
    of: dict[str, Matches] = {name: each for name, each in zip(names, found, strict=True) if name != "term"}
    terms = [each for name, each in zip(names, found, strict=True) if name == "term"]
    authored = of.get("authored")
    if authored is not None:
        authored = authored._replace(total=of["authors"].total)
    return SearchMatches(terms, of.get("together"), size, of.get("nearest"), dated=of.get("dated"), authored=authored)


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
        if isinstance(reply, AskError | TryAgainError):
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
        # The score of a near vector is its distance with a minus; the script returns the distance.
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
        commands += zip(("authored", "authors"), authored, strict=False)
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


def fetch(op: Fetch, settings: Settings) -> Steps[list[Fetched | None]]:
    return read(fetch_call(op, settings), settings)


def fetch_call(op: Fetch, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    prefix = settings.keyspace.documents_of(op.conversation_id, op.generation)
    packed = pack_keys(keys.state, keys.messages, *(b"%b%d" % (prefix, sequence) for sequence in op.sequences))
    args = [op.generation, b"%d" % op.around, *(b"%d" % sequence for sequence in op.sequences)]
    return Call(FETCH, packed, args, partial(_fetched, op.conversation_id))


def _fetched(conversation_id: str, reply: list[Any]) -> list[Fetched | None]:
    found: list[Fetched | None] = []
    for item in reply:
        try:
            if not item:
                found.append(None)
                continue
            messages = [decode_member(member) for member in item[0]]
            at = item[1]
            found.append(Fetched(messages[at], messages[:at], messages[at + 1 :], bool(item[2])))
        except CorruptDataError as error:
            _logger.error("skipped an unreadable message of conversation %r: %s", conversation_id[:80], error)
            found.append(None)
    return found


def _documents_call(op: WriteDocuments, settings: Settings, searching: Searching) -> Call:
    vectors = op.vectors or [b""] * len(op.messages)
    documents = [counted_fields(searching.document, *pair) for pair in zip(op.messages, vectors, strict=True)]
    ids = [message.id for message in op.messages]
    return write_documents(op.token, settings, op.conversation_id, op.epoch, op.revision, ids, documents)


PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {
    MakeIndex: _make,
    Search: _search,
    SearchAll: _search,
    SweepDocuments: _sweep,
    WriteDocuments: _write_documents,
}
