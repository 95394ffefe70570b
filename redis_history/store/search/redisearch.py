"""The commands to RediSearch and its replies: the only module that knows its language. Pure.

One index for each namespace, over hashes ("documents"), one for each message, with these fields and no other:

    t  TEXT     the words of the message (text.py)          m  NUMERIC  its time, microseconds since 1970
    c  TAG      the conversation                            w  TAG      names of tools it calls or has results of
    r  TAG      the role                                    s  TAG      the scope, if it has one
    p  TAG      the participant's id, and its name's words  z  TAG      "1" if it is archived, else no such field
    v  VECTOR   of its text, if there is an embedder: 16-bit floats, compared by their angle

`document` makes t, r, p, s, w and v, the scripts add c, m and z. The time must be that of the stored message.

A search is one query for each term, because the ranking (ranking.py) needs to know which term a message has, and how
many messages have it. The scope and the filters are not scored, and in one conversation DISMAX scores only how
often a message has a term, so that other documents in the index change nothing. `search_commands` makes commands to
send together, and `matches_of` reads their replies. No value is in the text of a query: all are parameters, and all are
encoded (`tag`) or words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from redis_history.errors import CorruptDataError, InvalidInputError
from redis_history.store.search.query import Period, Query, Term
from redis_history.store.search.ranking import DEPTH, MAX_LISTED, Matches
from redis_history.store.search.text import author_words, index_words, is_question
from redis_history.store.search.words import UNSTEMMED, forms
from redis_history.values import Message, TextPart
from redis_history.values.filters import ANYTHING, Filters, tool_names_of

TEXT: Final = b"t"
CONVERSATION: Final = b"c"
ROLE: Final = b"r"
PARTICIPANT: Final = b"p"
SCOPE: Final = b"s"
TOOLS: Final = b"w"
TIME: Final = b"m"
ARCHIVED: Final = b"z"
VECTOR: Final = b"v"

_MAX_TAG_BYTES: Final = 2048
_SEPARATOR: Final = b","
_SCORER: Final = b"DISMAX"
#: For several conversations, where more messages match than are listed: rare terms and short messages come first.
_SCORER_OF_MANY: Final = b"BM25STD"
#: A value of the field of roles, for messages that end in a question mark.
_QUESTION: Final = b"?"
#: The prefix of a word of a writer's name, which sets it apart from ids: `tag` never makes a value with this prefix.
_NAMED: Final = b"%:"
#: The end of each command. No timeout: after it the server returns a part of the results, and over RESP2 it does not
#: say so.
_WHOLE: Final = (b"TIMEOUT", b"0", b"DIALECT", b"2")


class Namespace:
    """The scope of the whole index. It has its own type, so that no empty or missing value can mean it."""


NAMESPACE: Final = Namespace()

#: Parameters of a query: values by their names.
Parameters = dict[bytes, bytes]

#: From the key of a document to its conversation (anything hashable and sortable) and sequence; None: not a document.
Place = Callable[[bytes], tuple[Any, int] | None]


def tag(value: str) -> bytes:
    """A value for a TAG field: letters, digits, "-._~", and "%XX" for anything else, so that the server finds no syntax
    in it. Different values have different tags; above 2,048 bytes the tag is a digest."""
    encoded = quote(value.encode("utf-8", "surrogatepass"), safe="").encode()
    if not encoded:
        return b"%"
    return encoded if len(encoded) <= _MAX_TAG_BYTES else b"%%%" + hashlib.sha256(encoded).hexdigest().encode()


def create_arguments(
    index: bytes,
    prefixes: Sequence[bytes],
    *,
    language: str = "english",
    vectors: int | None = None,
) -> list[bytes]:
    """FT.CREATE. `prefixes` are those of the keys of documents, and of no other hash, because each hash is indexed.
    `vectors`: their dimension."""
    stemmed = [] if language == UNSTEMMED else [b"LANGUAGE", language.encode()]
    arguments = [b"FT.CREATE", index, b"ON", b"HASH", b"PREFIX", b"%d" % len(prefixes), *prefixes, *stemmed]
    # Highlighting and the choice of text fields are not used, and cost 33 bytes a message.
    arguments += [b"NOHL", b"NOFIELDS", b"STOPWORDS", b"0", b"SCHEMA", TEXT, b"TEXT"]
    if language == UNSTEMMED:
        arguments.append(b"NOSTEM")
    for field in (CONVERSATION, ROLE, PARTICIPANT, SCOPE, TOOLS, ARCHIVED):
        arguments += [field, b"TAG", b"SEPARATOR", _SEPARATOR, b"CASESENSITIVE"]
    arguments += [TIME, b"NUMERIC"]
    if vectors is not None:
        arguments += [VECTOR, b"VECTOR", b"FLAT", b"6", b"TYPE", b"FLOAT16", b"DIM", b"%d" % vectors]
        arguments += [b"DISTANCE_METRIC", b"COSINE"]
    return arguments


def document(message: Message, vector: bytes = b"") -> list[bytes]:
    """The fields of a document that depend on its message only, and its vector if it has one: names and values,
    alternating."""
    role = message.role.encode()
    if is_question(message):
        role += _SEPARATOR + _QUESTION
    fields = [TEXT, " ".join(index_words(message)).encode(), ROLE, role]
    if message.participant is not None:
        writer = message.participant
        names = [_NAMED + tag(word) for word in sorted(author_words(writer.id, writer.display_name))]
        fields += [PARTICIPANT, _SEPARATOR.join((tag(writer.id), *names))]
    if message.scope is not None:
        fields += [SCOPE, message.scope.encode()]
    is_text = len(message.parts) == 1 and type(message.parts[0]) is TextPart  # as most messages are
    if not is_text and (tools := tool_names_of(message)):
        fields += [TOOLS, _SEPARATOR.join(sorted(map(tag, tools)))]
    return [*fields, VECTOR, vector] if vector else fields


def search_commands(
    index: bytes,
    scope: Sequence[str] | Namespace,
    query: Query,
    filters: Filters = ANYTHING,
    *,
    language: str = "english",
    depth: int = DEPTH,
    vector: bytes | None = None,
    near: int = DEPTH,
) -> list[tuple[str, list[bytes]]]:
    """FT.SEARCH commands, each with the terms it finds, or an empty list for a query without terms and vector. The
    filters must let something pass. `scope` has the ids of conversations, at least one, or is NAMESPACE. With a
    `depth` of 0 they only count the matches of the terms.

    - "term": the best `depth` messages of each term, in order;
    - "together": the best for any of the words, if there are several;
    - "nearest": the `near` nearest to the `vector` (see `text.pack`), if there is one;
    - "authors": how many messages are by somebody that the query names, and "authored": those that match a word;
    - "questions": the questions that match a word, unless the filters may keep out the messages after them;
    - "dated": the messages from the times that the query names.

    Raises InvalidInputError for an empty scope.
    """
    make = _Commands(index, scope, filters, language)
    commands = []
    words: list[bytes] = []  # and prefixes, with their parameters
    values: Parameters = {}
    for term in query.terms:
        text, named = make.term(term)
        scoring = make.exact
        if term.kind != "phrase":
            scoring = make.stemmed
            words.append(text)
            values |= named
        commands.append(("term", make.command(b"(%b)" % text, named, depth, scoring)))
    if not depth:
        return commands
    if vector is not None:
        commands.append(("nearest", make.nearest(vector, near)))
    if query.terms and query.periods:
        commands.append(("dated", make.dated(query.periods)))
    if not words:
        return commands
    any_word = b"(%b)" % b"|".join(words)
    if len(words) > 1:
        # With a scope, the score of a|b is the score of a or b (RediSearch 2.10), and of optional terms the sum.
        wanted = b"(%b=>{$weight:0}) (~%b)" % (any_word, b" ~".join(words))
        commands.append(("together", make.command(wanted, values, depth, make.stemmed)))
    if query.names:
        named = {}
        by = make.any_tag(PARTICIPANT, [_NAMED + tag(word) for word in query.names], named)
        commands.append(("authors", make.command(b"(%b)" % by, named, 0, make.stemmed)))
        wanted = b"(%b) %b" % (by, any_word)
        commands.append(("authored", make.command(wanted, named | values, MAX_LISTED, make.stemmed)))
    if not filters.selects:
        named = {}
        wanted = b"(%b) %b" % (make.any_tag(ROLE, [_QUESTION], named), any_word)
        commands.append(("questions", make.command(wanted, named | values, MAX_LISTED, make.stemmed)))
    return commands


#: The index of the tag of the first conversation in a command.
SCOPE_AT: Final = 6


def count_command(index: bytes) -> list[bytes]:
    """FT.SEARCH that only counts (`Found.total`) the documents of the conversation whose tag comes to SCOPE_AT. Its
    cost grows with their number."""
    text = b"@%b:{$p}" % CONVERSATION
    return [b"FT.SEARCH", index, text, b"PARAMS", b"2", b"p", b"", b"NOCONTENT", b"LIMIT", b"0", b"0", *_WHOLE]


def count_at(command: Sequence[bytes]) -> int:
    """The index of the count in the command "nearest": its last parameter."""
    return 4 + int(command[4])


class _Commands:
    """Makes the commands of a search. The scope and the filters, which are not scored, begin each query, and their
    parameters come first. `stemmed` and `exact`: how words are searched for and scored."""

    def __init__(self, index: bytes, scope: Sequence[str] | Namespace, filters: Filters, language: str) -> None:
        if not isinstance(scope, Namespace) and (isinstance(scope, str) or not scope):
            raise InvalidInputError("a search needs a list of at least one conversation id")
        self._index = index
        self._language = language
        scorer = _SCORER_OF_MANY if isinstance(scope, Namespace) or len(scope) > 1 else _SCORER
        self.exact: Sequence[bytes] = (b"NOCONTENT", b"WITHSCORES", b"SCORER", scorer, b"VERBATIM")
        stems = language != UNSTEMMED
        self.stemmed = (*self.exact[:4], b"LANGUAGE", language.encode()) if stems else self.exact
        self._names = map(b"p%d".__mod__, count())
        self._shared: Parameters = {}
        clauses = [] if isinstance(scope, Namespace) else [self.any_tag(CONVERSATION, map(tag, scope), self._shared)]
        if filters is not ANYTHING:
            clauses += self._filtered(filters)
        self._within = b"(%b)" % b") (".join(clauses) if clauses else b""

    def term(self, term: Term) -> tuple[bytes, Parameters]:
        """A term in the language of queries."""
        words = forms(term.words[0], self._language) if term.kind == "word" else term.words
        values = dict(zip(self._names, map(str.encode, words), strict=False))
        if term.kind == "prefix":
            return b"$%b*" % next(iter(values)), values
        if len(values) == 1:
            return b"$%b" % next(iter(values)), values
        if term.kind == "word":
            return b"($%b)" % b"|$".join(values), values
        # Each in parentheses: RediSearch 8 reorders three or more bare parameters, and then finds nothing.
        return b"((($%b))=>{$slop:0;$inorder:true})" % b") ($".join(values), values

    def any_tag(self, field: bytes, tags: Iterable[bytes], values: Parameters) -> bytes:
        """The messages with any of these tags, whose parameters are added to the `values`."""
        named = dict(zip(self._names, tags, strict=False))
        values |= named
        # A single tag is scored like a word, whatever its weight (RediSearch 2.10). A union obeys its weight.
        names = [*named] if len(named) > 1 else 2 * [*named]
        return b"(@%b:{$%b})=>{$weight:0}" % (field, b"|$".join(names))

    def dated(self, periods: Sequence[Period]) -> list[bytes]:
        values: Parameters = {}
        times = []
        for begin, end in periods:
            first, last = next(self._names), next(self._names)
            values |= {first: b"%d" % begin, last: b"%d" % end}
            times.append(b"@%b:[$%b ($%b]" % (TIME, first, last))
        return self.command(b"(%b)" % b"|".join(times), values, MAX_LISTED, (b"NOCONTENT", b"WITHSCORES"))

    def nearest(self, vector: bytes, number: int) -> list[bytes]:
        near, most = next(self._names), next(self._names)
        values = {near: vector, most: b"%d" % number}
        command = self.command(b"", values, number, (b"RETURN", b"1", b"d", b"SORTBY", b"d"))
        command[2] = b"(%b)=>[KNN $%b @%b $%b AS d]" % (self._within or b"*", most, VECTOR, near)
        return command

    def command(self, wanted: bytes, values: Parameters, depth: int, options: Sequence[bytes]) -> list[bytes]:
        values = self._shared | values
        parameters = (b"PARAMS", b"%d" % (2 * len(values)), *chain(*values.items())) if values else ()
        text = b"%b %b" % (self._within, wanted)
        return [b"FT.SEARCH", self._index, text, *parameters, *options, b"LIMIT", b"0", b"%d" % depth, *_WHOLE]

    def _filtered(self, filters: Filters) -> Iterator[bytes]:
        for field, names in (
            (ROLE, filters.roles),
            (PARTICIPANT, filters.participant_ids),
            (TOOLS, filters.tool_names),
            (SCOPE, None if filters.scope is None else (filters.scope,)),
        ):
            if names is not None:
                yield self.any_tag(field, sorted(map(tag, names)), self._shared)
        if filters.since is not None or filters.before is not None:
            # To the microsecond. `Filters.wants` compares the positions within one.
            bounds = [b"-inf", b"+inf"]
            for at, position in enumerate((filters.first, filters.before)):
                if position is not None:
                    name = next(self._names)
                    self._shared[name] = b"%d" % position.timestamp
                    bounds[at] = b"$" + name
            if filters.before is not None and filters.before.sequence <= 0:
                bounds[1] = b"(" + bounds[1]
            yield b"@%b:[%b %b]" % (TIME, *bounds)
        if filters.archived is True:
            yield self.any_tag(ARCHIVED, (b"1",), self._shared)
        elif filters.archived is False:
            yield b"-@%b:{1}" % ARCHIVED


class Found(NamedTuple):
    """A reply: the number of matching documents, and the keys and scores of the first ones."""

    total: int
    documents: list[tuple[bytes, float]]


def read_found(reply: Any) -> Found:
    """The reply to one command, in RESP2 or RESP3. The score of a vector is its negative distance. Raises
    CorruptDataError for anything else."""
    try:
        if isinstance(reply, Mapping):
            results = [(item[b"id"], item.get(b"extra_attributes") or item[b"score"]) for item in reply[b"results"]]
            return Found(int(reply[b"total_results"]), [(key, _score(score)) for key, score in results])
        rest = reply[1:]
        return Found(int(reply[0]), [(key, _score(score)) for key, score in zip(rest[::2], rest[1::2], strict=True)])
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise CorruptDataError(f"this is not a reply to FT.SEARCH: {str(reply)[:200]}") from error


def _score(value: Any) -> float:
    if isinstance(value, Mapping):
        return -float(value[b"d"])
    return -float(value[1]) if isinstance(value, list) else float(value)


def matches_of(reply: Any, place: Place) -> Matches:
    """The reply to one command, by conversation and sequence, without those that `place` does not know."""
    found = read_found(reply)
    scores: dict[Any, dict[int, float]] = {}
    for key, score in found.documents:
        where = place(key)
        if where is not None:
            scores.setdefault(where[0], {})[where[1]] = score
    return Matches(found.total, scores)
