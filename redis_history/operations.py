"""Operations as values: what a store asks a backend to do, already validated.

A backend executes an `Op[T]` and gives back a `T`, or raises an error of `redis_history.errors`. Each write is one
atomic change: all of it, or nothing. `token` names the change: an operation repeated with the same token (a retry after
a lost reply) has its first outcome and changes nothing.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from redis_history._ids import new_token
from redis_history.events import Cursor, Event
from redis_history.model import Conversation, Message, Position

__all__ = [
    "Append",
    "Appended",
    "Changes",
    "Clear",
    "Compact",
    "Compacted",
    "DeleteConversation",
    "DeleteMessages",
    "Entry",
    "Expand",
    "Expanded",
    "FindMessage",
    "Head",
    "KeepLease",
    "Lease",
    "ListConversations",
    "Op",
    "Page",
    "Precondition",
    "ReadChanges",
    "ReadConversation",
    "ReadHead",
    "ReadPage",
    "ReadTogether",
    "Restore",
    "ScanConversations",
    "Scanned",
    "Snapshot",
    "TakeLease",
    "UpdateMessage",
    "Write",
    "WriteRecord",
]

T_co = TypeVar("T_co", covariant=True)


class Op(Generic[T_co]):
    """Marks an operation whose outcome is a `T_co`."""

    __slots__ = ()


class Entry(Struct, frozen=True):
    """A message on its way in. `body`, `digest`, `timestamp` (µs, None: the server's clock) are what is stored;
    `characters` and `tokens` go into the conversation's totals. `tools` are the marks of the tool calls and results
    in it: see `model.pairs.marks`."""

    message: Message
    body: bytes
    digest: bytes
    timestamp: int | None
    characters: int
    tokens: int
    tools: bytes = b""


class Lease(Struct, frozen=True):
    """The right of one worker to work on a conversation, until it ends or is given back.

    `fence` counts the leases of the conversation, so that a later one has a greater number; `claim` is random. A change
    that is made with a lease is refused by the backend when that is not the present one.
    """

    conversation_id: str
    fence: int
    claim: str

    @property
    def value(self) -> str:
        """What is stored while it holds."""
        return f"{self.fence}:{self.claim}"


class Precondition(Struct, frozen=True):
    """What must hold for a write; otherwise RevisionConflictError, ConversationNotFoundError or
    ConversationExistsError, and nothing is written. `lease` must be the present one, else LeaseLostError."""

    expected_revision: int | None = None
    must_exist: bool = False
    must_not_exist: bool = False
    lease: Lease | None = None


ANY = Precondition()


class Appended(Struct, frozen=True):
    """The outcome of one appended message: as it stands in the store, with its timestamp and sequence.

    `revision` is the change that stored it. `duplicate` says that an earlier call had stored it already.
    """

    revision: int
    message: Message
    duplicate: bool


class Append(Struct, Op[list[Appended]], frozen=True):
    """Add messages, in order, as one change. Ids already stored with the same content are left as they are (all of
    them: no change at all); with other content: MessageConflictError, nothing written. `vectors`: of each message, or
    none."""

    conversation_id: str
    entries: tuple[Entry, ...]
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)
    vectors: tuple[bytes, ...] = ()


class UpdateMessage(Struct, Op[Appended | None], frozen=True):
    """Give the message of this id other content, at its place; None: there is no such message. The same content again
    changes nothing."""

    conversation_id: str
    entry: Entry
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)
    vectors: tuple[bytes, ...] = ()


class Restore(Struct, Op[int], frozen=True):
    """Put messages in place of all there are, as one change. The outcome is the revision."""

    conversation_id: str
    entries: tuple[Entry, ...]
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)
    vectors: tuple[bytes, ...] = ()


class Clear(Struct, Op[int], frozen=True):
    """Remove all messages as one change, and keep the conversation. The outcome is the revision."""

    conversation_id: str
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)


class Compacted(Struct, frozen=True):
    """The outcome of a compaction: the change that made it, its summary as it stands in the store, and how many
    messages that replaced, a former summary among them.

    `changed` says whether this call did it. If not, an earlier call with the same summary had (`count` is then how many
    of the messages are still in the archive); or, without a `summary`,
    there was nothing to compact, and `revision` is the present one.
    """

    revision: int
    summary: Message | None
    count: int
    changed: bool


class Compact(Struct, Op[Compacted], frozen=True):
    """Put a summary in place of all messages up to `through` (inclusive), as one change, but for system messages;
    what it replaces moves to the archive. It gets the position of the last one of them. A former summary is replaced
    like any message.

    `seen`: ids and digests of the messages that were summarised; CompactionConflictError unless it is exactly these
    that would be replaced. Raises as well if a tool call would be torn from its result. Nothing but at most one
    summary to replace: no change. A summary that an earlier call has put in its place already, with the same
    content: no change.
    """

    conversation_id: str
    through: Position
    summary: Entry
    seen: tuple[tuple[str, bytes], ...] | None = None
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)
    vectors: tuple[bytes, ...] = ()


class Expanded(Struct, frozen=True):
    """The outcome of an expansion: the change, and how many messages came back."""

    revision: int
    count: int


class Expand(Struct, Op[Expanded | None], frozen=True):
    """Put what the live summary of this id replaced back in its place, as one change; None: this is no live summary."""

    conversation_id: str
    summary_id: str
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)


class WriteRecord(Struct, Op[int], frozen=True):
    """Set fields of a conversation's record (of RECORD_FIELDS), and create the conversation if the precondition lets.
    The outcome is the revision."""

    conversation_id: str
    fields: dict[str, Any]
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)


class ReadConversation(Struct, Op[Conversation | None], frozen=True):
    """The record and the totals of a conversation, or None."""

    conversation_id: str


class Scanned(Struct, frozen=True):
    """A page of a scan, and where to continue; None: that was all."""

    conversations: list[Conversation]
    cursor: Any = None


class ScanConversations(Struct, Op[Scanned], frozen=True):
    """A page of all conversations, in no order, from `cursor` (None: the first) on; about `limit` of them, maybe none.

    Finds each conversation that exists during the whole scan. One that changes meanwhile may come twice.
    """

    limit: int = 500
    cursor: Any = None


class ListConversations(Struct, Op[list[Conversation]], frozen=True):
    """Conversations by time of their last change, newest first; those of one owner or agent, if given."""

    user_id: int | str | None
    agent_name: str | None
    limit: int
    offset: int


class Page(Struct, frozen=True):
    """Consecutive messages, ascending. `unreadable` counts stored members that were skipped as corrupt.

    If archived messages were asked for, `archived` says of each message whether it is one, and `former_summaries`
    has the ids of those among them that were the live summary once (ids of others do no harm).
    """

    messages: list[Message]
    unreadable: int = 0
    archived: tuple[bool, ...] = ()
    former_summaries: frozenset[str] = frozenset()


class ReadPage(Struct, Op[Page], frozen=True):
    """Messages of a window, ascending; an unknown conversation is empty.

    The window: `after` < position < `before`. Of the window the first `limit` messages, or the last if `newest`;
    a page of `limit` stored messages, readable or not, may have more beyond it.

    With `archived`, archived messages too. A summary stands behind what it replaced, at the same position; a page
    has all or none of the messages of one position, and so may have more than `limit`.
    """

    conversation_id: str
    limit: int
    newest: bool
    after: Position | None = None
    before: Position | None = None
    archived: bool = False


class FindMessage(Struct, Op[Message | None], frozen=True):
    """The message of this id, archived or not, or None."""

    conversation_id: str
    message_id: str


class ReadTogether(Struct, Op[list[Any]], frozen=True):
    """The outcomes of several reads (`FindMessage`, `ReadConversation`, `ReadPage`, `Fetch`), in their order, in one
    round trip. They need not be of one moment."""

    reads: tuple[Op[Any], ...]


class DeleteMessages(Struct, Op[int], frozen=True):
    """Remove messages by id, archived or not, as one change; unknown ids are ignored. The outcome is how many there
    were."""

    conversation_id: str
    message_ids: tuple[str, ...]
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)


class DeleteConversation(Struct, Op[bool], frozen=True):
    """Remove everything of a conversation. The outcome is whether it existed."""

    conversation_id: str
    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)


#: The operations that change a conversation.
Write = Append | Clear | Compact | DeleteConversation | DeleteMessages | Expand | Restore | UpdateMessage | WriteRecord


class Head(Struct, frozen=True):
    """The present of a conversation: its newest change, its totals, and its newest messages if asked for.

    Of an unknown conversation the totals are zero and the cursor is where its first change will follow.
    """

    cursor: Cursor
    message_count: int = 0
    characters: int = 0
    tokens: int = 0
    newest: Page = field(default_factory=lambda: Page([]))


class ReadHead(Struct, Op[Head], frozen=True):
    """The head and the `messages` newest messages, ascending, as of one moment."""

    conversation_id: str
    messages: int = 0


class Changes(Struct, frozen=True):
    """Changes after a cursor, in order; `more` says that there are further ones to read at once."""

    events: list[Event]
    more: bool


class ReadChanges(Struct, Op[Changes], frozen=True):
    """At most `limit` changes after `after`; or one Reset, alone, if not all of them can be told."""

    conversation_id: str
    after: Cursor
    limit: int = 100


class TakeLease(Struct, Op[Lease | None], frozen=True):
    """A lease for so many seconds; None: somebody has one, or there is no such conversation. It changes nothing that a
    reader sees."""

    conversation_id: str
    seconds: float
    claim: str = field(default_factory=new_token)


class KeepLease(Struct, Op[bool], frozen=True):
    """Let a lease end so many seconds from now; 0: at once. Whether it was still the present one."""

    lease: Lease
    seconds: float

    @property
    def conversation_id(self) -> str:
        return self.lease.conversation_id


class Snapshot(Struct, frozen=True):
    """The newest messages of a conversation and the cursor of exactly that state: `subscribe(after=cursor)`
    continues from it without gap or overlap."""

    messages: list[Message]
    cursor: Cursor
    message_count: int
