"""Operations for a backend that searches, and their outcomes. A backend that cannot search now returns None, and then
the store ranks by itself."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from redis_history._ids import new_token
from redis_history.model import Message
from redis_history.operations import Op
from redis_history.requests import ANYTHING, Filters
from redis_history.search.query import Query
from redis_history.search.ranking import DEPTH, Matches


class MessagePlace(NamedTuple):
    """Where a search found a message: `generation` names the documents it was found by. The sequence of a summary has a
    minus, because a message that it replaced has the same."""

    conversation_id: str
    generation: bytes
    sequence: int


class SearchMatches(Struct, frozen=True):
    """The matches of each term of a query, for `search.ranking.rank`, by conversation id and generation. `size`: how
    many messages were searched, None if that is not known; `nearest`: the similarity of the nearest vectors;
    `documents`: how many are in the index of a namespace; `dated`: the messages from the times that the query names."""

    matches: list[Matches]
    together: Matches | None
    size: int | None
    nearest: Matches | None = None
    documents: int = 0
    dated: Matches | None = None


class Search(Struct, Op[SearchMatches | None], frozen=True):
    """Matches of a query within one conversation: of each term the best `depth`. None as well if some messages have no
    document yet."""

    conversation_id: str
    query: Query
    filters: Filters = ANYTHING
    vector: bytes | None = None
    depth: int = DEPTH


class SearchAll(Struct, Op[SearchMatches | None], frozen=True):
    """Matches of a query within the namespace, or within these conversations; waits so many `seconds` for an index
    that is being filled."""

    query: Query
    filters: Filters = ANYTHING
    vector: bytes | None = None
    depth: int = DEPTH
    seconds: float = 10.0
    conversation_ids: tuple[str, ...] | None = None


class Fetched(Struct, frozen=True):
    """A message that was found, and its neighbours, ascending; an archived message has archived neighbours."""

    message: Message
    before: list[Message]
    after: list[Message]
    archived: bool = False


class Fetch(Struct, Op[list[Fetched | None]], frozen=True):
    """The messages at places of one conversation and generation, with `around` before and after; None: it is gone."""

    conversation_id: str
    generation: bytes
    sequences: tuple[int, ...]
    around: int = 0


class WriteDocuments(Struct, Op[int], frozen=True):
    """Write the search documents of messages, archived or not, that were read when the conversation was at `revision`
    or later; how many had not changed since."""

    conversation_id: str
    messages: tuple[Message, ...]
    revision: int
    vectors: tuple[bytes, ...] = ()
    token: str = field(default_factory=new_token)


class SweepDocuments(Struct, Op[tuple[int, int] | None], frozen=True):
    """Look at some search documents from `cursor` (0: the first) on, and remove those of no message. The outcome is the
    next cursor (0: that was all) and how many were removed."""

    cursor: int = 0


class MakeIndex(Struct, Op[float | None], frozen=True):
    """Make the search index if there is none, and wait for it for so many `seconds`; the share that is filled."""

    seconds: float = 0.0
