"""Search operations. A backend that cannot search now returns None, and then the store reads and ranks."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from redis_history.model import Message
from redis_history.model.ids import new_token
from redis_history.operations import Op
from redis_history.requests import ANYTHING, Filters
from redis_history.search.query import Query
from redis_history.search.ranking import DEPTH, Matches


class MessagePlace(NamedTuple):
    """Where a search found a message; `generation` is that of its document. The sequence of a summary has a minus,
    because a message that it replaced has the same."""

    conversation_id: str
    generation: bytes
    sequence: int


class SearchMatches(Struct, frozen=True):
    """The matches of each term of a query, by conversation id and generation, and of any of them (`together`). `size`:
    the number of searched messages (None: unknown); `nearest`: the similarity of the nearest vectors; `documents`: the
    number in the index of a namespace; `dated`: the messages from the times that the query names; `authored`: the
    matches by writers whom the query names, of all messages by these."""

    matches: list[Matches]
    together: Matches | None
    size: int | None
    nearest: Matches | None = None
    documents: int = 0
    dated: Matches | None = None
    authored: Matches | None = None


class Search(Struct, Op[SearchMatches | None], frozen=True):
    """Search one conversation: the best `depth` matches of each term (0: only how many there are). The outcome is also
    None if some messages have no document yet."""

    conversation_id: str
    query: Query
    filters: Filters = ANYTHING
    vector: bytes | None = None
    depth: int = DEPTH


class SearchAll(Struct, Op[SearchMatches | None], frozen=True):
    """Search the namespace, or these conversations; wait so many `seconds` for an index that is being filled."""

    query: Query
    filters: Filters = ANYTHING
    vector: bytes | None = None
    depth: int = DEPTH
    seconds: float = 10.0
    conversation_ids: tuple[str, ...] | None = None


class Fetched(Struct, frozen=True):
    """A found message and its neighbors, ascending; an archived message has archived neighbors."""

    message: Message
    before: list[Message]
    after: list[Message]
    archived: bool = False


class Fetch(Struct, Op[list[Fetched | None]], frozen=True):
    """Read found messages of one conversation, each with `around` neighbors before and after; None: it is gone."""

    conversation_id: str
    generation: bytes
    sequences: tuple[int, ...]
    around: int = 0


class WriteDocuments(Struct, Op[int], frozen=True):
    """Write the search documents of messages that were read in `epoch` at `revision` or later. The outcome is the
    number of those that had not changed since."""

    conversation_id: str
    messages: tuple[Message, ...]
    epoch: str
    revision: int
    vectors: tuple[bytes, ...] = ()
    token: str = field(default_factory=new_token)


class SweepDocuments(Struct, Op[tuple[int, int] | None], frozen=True):
    """Remove the documents without a message among some, from `cursor` (0: the first) on. The outcome is the next
    cursor (0: that was all) and the number of removed ones."""

    cursor: int = 0


class MakeIndex(Struct, Op[float | None], frozen=True):
    """Make the search index if there is none, and wait up to `seconds` for it. The outcome is the share that is
    filled."""

    seconds: float = 0.0
