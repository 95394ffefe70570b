"""The commands to RediSearch and its replies: the only module that knows its language. Pure.

One index for each namespace, over hashes ("documents"), one for each message, with these fields and no other:

    t  TEXT     the words of the message (text.py)          m  NUMERIC  its time, microseconds since 1970
    c  TAG      the conversation                            w  TAG      names of tools it calls or has results of
    r  TAG      the role                                    s  TAG      the scope, if it has one
    p  TAG      the participant's id, and its name's words  z  TAG      "1" if it is archived, else no such field
    v  VECTOR   of its text, if there is an embedder: 16-bit floats, compared by their angle

`document` makes t, r, p, s and w. Its callers add c (`tag`), m, z and v. The time must be that of the stored message.

A search is one query for each term, because the ranking (ranking.py) needs to know which term a message has, and how
many messages have it. The scope and the filters are not scored, and in one conversation DISMAX scores only how
often a message has a term, so that other documents in the index change nothing. `search_commands` makes commands to
send together, and `matches_of` reads their replies. No value is in the text of a query: all are parameters, and all are
encoded (`tag`) or words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from redis_history.errors import CorruptDataError, InvalidInputError
from redis_history.model import Message
from redis_history.model.filters import ANYTHING, Filters, tool_names_of
from redis_history.search.dates import Period
from redis_history.search.query import Query, Term
from redis_history.search.ranking import DEPTH, MAX_LISTED, Matches
from redis_history.search.text import author_words, index_words, is_question
from redis_history.search.words import UNSTEMMED, forms

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
_DEEPEST: Final = 1_000_000  # RediSearch's MAXSEARCHRESULTS
_SEPARATOR: Final = b","
_SCORER: Final = b"DISMAX"
#: For several conversations, where more messages match than are listed: rare terms and short messages come first.
_SCORER_OF_MANY: Final = b"BM25STD"
#: A value of the field of roles, for messages that end in a question mark.
_QUESTION: Final = b"?"
#: Before a word of a writer's name, so that it is no participant's id: `tag` makes no value that begins like this.
_NAMED: Final = b"%:"


class Namespace:
    """The scope of the whole index. It has its own type, so that no empty or missing value can mean it."""

    def __repr__(self) -> str:
        return "NAMESPACE"


NAMESPACE: Final = Namespace()

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
    if not prefixes or not all(prefixes):
        raise InvalidInputError("an index needs the prefixes of its keys, or it takes every hash of the server")
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


def document(message: Message) -> list[bytes]:
    """The fields of a document that depend on its message only: names and values, alternating."""
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
    if len(message.parts) != 1 or type(message.parts[0]).__name__ != "TextPart":
        tools = tool_names_of(message)
        if tools:
            fields += [TOOLS, _SEPARATOR.join(sorted(map(tag, tools)))]
    return fields


class _Expression:
    """The text of a query and its parameters, put together."""

    def __init__(self, scope: Sequence[str] | Namespace, filters: Filters) -> None:
        if filters.impossible:
            raise InvalidInputError("no message can pass these filters: do not search")
        self.parameters: list[bytes] = []
        self._scorer = _SCORER_OF_MANY if isinstance(scope, Namespace) or len(scope) > 1 else _SCORER
        self._clauses: list[bytes] = []
        if not isinstance(scope, Namespace):
            if isinstance(scope, str) or not scope:
                raise InvalidInputError("a search needs a list of at least one conversation id")
            self._tags(CONVERSATION, map(tag, scope))
        for field, names in (
            (ROLE, filters.roles),
            (PARTICIPANT, filters.participant_ids),
            (TOOLS, filters.tool_names),
            (SCOPE, None if filters.scope is None else (filters.scope,)),
        ):
            if names is not None:
                self._tags(field, sorted(map(tag, names)))
        if filters.since is not None or filters.before is not None:
            # To the microsecond. `Filters.wants` compares the positions within one.
            first = filters.first
            since = b"-inf" if first is None else self.parameter(b"%d" % first.timestamp)
            before = b"+inf" if filters.before is None else self.parameter(b"%d" % filters.before.timestamp)
            if filters.before is not None and filters.before.sequence <= 0:
                before = b"(" + before
            self._clauses.append(b"@%b:[%b %b]" % (TIME, since, before))
        if filters.archived is True:
            self._tags(ARCHIVED, (b"1",))
        elif filters.archived is False:
            self._clauses.append(b"-@%b:{1}" % ARCHIVED)

    @property
    def within(self) -> bytes:
        """The scope and the filters; nothing for everything."""
        return b" ".join(b"(%b)" % clause for clause in self._clauses)

    def parameter(self, value: bytes) -> bytes:
        name = b"p%d" % (len(self.parameters) // 2)
        self.parameters += [name, value]
        return b"$" + name

    def term(self, term: Term, language: str) -> bytes:
        words = forms(term.word, language) if term.kind == "word" else term.words
        names = [self.parameter(word.encode()) for word in words]
        if term.kind == "prefix":
            return names[0] + b"*"
        if term.kind == "word" and len(names) > 1:
            return b"(%b)" % b"|".join(names)
        if len(names) == 1:
            return names[0]
        # Each in parentheses: RediSearch 8 reorders three or more bare parameters, and then finds nothing.
        return b"((%b)=>{$slop:0;$inorder:true})" % b" ".join(b"(%b)" % name for name in names)

    def search(self, index: bytes, terms: Sequence[Term], language: str, depth: int) -> list[bytes]:
        each = [self.term(term, language) for term in terms]
        wanted = b"(%b)" % b"|".join(each)
        if len(each) > 1:
            # With a scope, the score of a|b is the score of a or b (RediSearch 2.10), and of optional terms the sum.
            wanted = b"(%b=>{$weight:0}) (%b)" % (wanted, b" ".join(b"~" + one for one in each))
        return self.ranked(index, wanted, "none" if terms[0].kind == "phrase" else language, depth)

    def tagged(self, index: bytes, field: bytes, values: Iterable[bytes], query: Query, language: str) -> list[bytes]:
        """The messages with any of these tags that match a word of the query."""
        terms = b"|".join(self.term(term, language) for term in query.terms if term.kind != "phrase")
        return self.ranked(index, b"(%b) (%b)" % (self.any_of(field, values), terms), language, MAX_LISTED)

    def ranked(self, index: bytes, wanted: bytes, language: str, depth: int) -> list[bytes]:
        text = b" ".join(filter(None, (self.within, wanted)))
        forms = [b"VERBATIM"] if language == UNSTEMMED else [b"LANGUAGE", language.encode()]
        end = self._end(depth)
        return [b"FT.SEARCH", index, text, b"NOCONTENT", b"WITHSCORES", *forms, b"SCORER", self._scorer, *end]

    def _tags(self, field: bytes, values: Iterable[bytes]) -> None:
        self._clauses.append(self.any_of(field, values))

    def any_of(self, field: bytes, values: Iterable[bytes]) -> bytes:
        names = list(map(self.parameter, values))
        # A single tag is scored like a word, whatever its weight (RediSearch 2.10). A union obeys its weight.
        return b"(@%b:{%b})=>{$weight:0}" % (field, b"|".join(names * 2 if len(names) == 1 else names))

    def _end(self, depth: int) -> list[bytes]:
        # No timeout: after it the server returns a part of the results, and over RESP2 it does not say so.
        end = [b"LIMIT", b"0", b"%d" % depth, b"TIMEOUT", b"0"]
        if self.parameters:
            end += [b"PARAMS", b"%d" % len(self.parameters), *self.parameters]
        return [*end, b"DIALECT", b"2"]


def search_commands(
    index: bytes,
    scope: Sequence[str] | Namespace,
    query: Query,
    filters: Filters = ANYTHING,
    *,
    language: str = "english",
    depth: int = DEPTH,
) -> list[list[bytes]]:
    """FT.SEARCH for each term, then, if there are several words, one for any of them. No command: nothing can match.

    `scope` has the ids of conversations, at least one, or is NAMESPACE. Raises InvalidInputError for an empty scope,
    and for a depth that no server supports."""
    if depth > _DEEPEST:
        raise InvalidInputError(
            f"a search gives at most {_DEEPEST:,} messages: limit and offset together are {depth:,}"
        )
    if filters.impossible:
        return []
    one_by_one = [_Expression(scope, filters).search(index, (term,), language, depth) for term in query.terms]
    together = [term for term in query.terms if term.kind != "phrase"]
    if len(one_by_one) > 1 and len(together) > 1:
        one_by_one.append(_Expression(scope, filters).search(index, together, language, depth))
    return one_by_one


def authored_commands(
    index: bytes,
    scope: Sequence[str] | Namespace,
    query: Query,
    filters: Filters = ANYTHING,
    *,
    language: str = "english",
) -> list[list[bytes]]:
    """FT.SEARCH that counts the messages by somebody that the query names, and one for those of them that match a word.
    No command: the query has no word that can be a name."""
    names = [_NAMED + tag(word) for word in query.names]
    if not names:
        return []
    every = _Expression(scope, filters)
    return [
        every.ranked(index, b"(%b)" % every.any_of(PARTICIPANT, names), language, 0),
        _Expression(scope, filters).tagged(index, PARTICIPANT, names, query, language),
    ]


def asking_commands(
    index: bytes,
    scope: Sequence[str] | Namespace,
    query: Query,
    filters: Filters = ANYTHING,
    *,
    language: str = "english",
) -> list[list[bytes]]:
    """FT.SEARCH for the questions that match a word. No command: the query has only phrases, or the messages after
    the questions may not pass the filters."""
    if filters.selects or all(term.kind == "phrase" for term in query.terms):
        return []
    return [_Expression(scope, filters).tagged(index, ROLE, [_QUESTION], query, language)]


def scope_at(command: Sequence[bytes]) -> int:
    """The index of the first conversation's tag in a command: the parameters of the scope come first."""
    return command.index(b"PARAMS") + 3  # how many parameters, the name of the first, its value


def count_at(command: Sequence[bytes]) -> int:
    """The index of the count in a command by `nearest_command`: its last parameter."""
    return len(command) - 3  # before DIALECT and its number


def count_command(index: bytes, scope: Sequence[str] | Namespace, filters: Filters = ANYTHING) -> list[bytes]:
    """FT.SEARCH that only counts (`Found.total`) the documents of a scope. Its cost grows with their number. Raises
    InvalidInputError for an empty scope, and for filters that nothing can pass."""
    expression = _Expression(scope, filters)
    return [b"FT.SEARCH", index, expression.within or b"*", b"NOCONTENT", *expression._end(0)]


def page_command(index: bytes, offset: int, count: int) -> list[bytes]:
    """FT.SEARCH that lists documents, in the order in which they came into the index."""
    page = [b"%d" % offset, b"%d" % count]
    return [b"FT.SEARCH", index, b"*", b"NOCONTENT", b"WITHSCORES", b"LIMIT", *page, b"TIMEOUT", b"0", b"DIALECT", b"2"]


def nearest_command(
    index: bytes,
    scope: Sequence[str] | Namespace,
    vector: bytes,
    filters: Filters = ANYTHING,
    *,
    count: int = DEPTH,
) -> list[bytes]:
    """FT.SEARCH for the documents of a scope with the nearest vectors, nearest first, and their distances; `vector` as
    from `text.pack`.

    Raises InvalidInputError for an empty scope, and for filters that nothing can pass.
    """
    expression = _Expression(scope, filters)
    within = expression.within
    near = expression.parameter(vector)
    # The last parameter: see `count_at`.
    text = b"(%b)=>[KNN %b @%b %b AS d]" % (within or b"*", expression.parameter(b"%d" % count), VECTOR, near)
    return [b"FT.SEARCH", index, text, b"RETURN", b"1", b"d", b"SORTBY", b"d", *expression._end(count)]


def dated_command(
    index: bytes, scope: Sequence[str] | Namespace, periods: Sequence[Period], filters: Filters = ANYTHING
) -> list[bytes]:
    """FT.SEARCH for the documents of a scope from these times.

    Raises InvalidInputError for an empty scope, and for filters that nothing can pass.
    """
    expression = _Expression(scope, filters)
    spans = [[expression.parameter(b"%d" % time) for time in period] for period in periods]
    times = b"|".join(b"@%b:[%b (%b]" % (TIME, *span) for span in spans)
    text = b" ".join(filter(None, (expression.within, b"(%b)" % times)))
    return [b"FT.SEARCH", index, text, b"NOCONTENT", b"WITHSCORES", *expression._end(MAX_LISTED)]


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
