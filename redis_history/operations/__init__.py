"""Operations as values: what a store asks a backend to do, already validated.

A backend executes an `Op[T]` and returns a `T`, or raises an error of `redis_history.errors`. Each `Write` is one
atomic change: all of it, or nothing. `token` names the change: an operation repeated with the same token (a retry after
a lost reply) has its first outcome and changes nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType, field

from redis_history.events import Cursor, Event
from redis_history.model import Conversation, Message, Position
from redis_history.model.ids import new_token
from redis_history.model.replies import Progress
from redis_history.model.runs import RUN_SECONDS, RunInfo

__all__ = [
    "ANY", "Append", "Appended", "Archive", "Changes", "Clear", "Compact", "Compacted", "CountConversations",
    "DeleteConversation", "DeleteMessages", "DropDraft", "EndRun", "Entry", "EraseMessages", "Expand", "Expanded",
    "FindMessage", "GrowReply", "Head", "Held", "KeepRuns", "Layout", "LeaseKind", "LeaveRun", "ListConversations",
    "ListPreviews", "Op", "Page", "Precondition", "Preview", "Publish", "ReadChanges", "ReadConversation", "ReadHead",
    "ReadLayout", "ReadLog", "ReadPage", "ReadRun", "ReadTogether", "ReplyEnd", "Restore", "RunFence", "RunOutcome",
    "ScanConversations", "Scanned", "Selection", "Snapshot", "StopRun", "TakeRun", "UpdateMessage", "Write",
    "WriteDraft", "WriteRecord",
]  # fmt: skip

T_co = TypeVar("T_co", covariant=True)


class Op(Generic[T_co]):
    """An operation whose outcome is a `T_co`."""

    __slots__ = ()


#: "run": one agent works on the conversation. "compressor": one compressor does. They do not exclude each other.
LeaseKind = Literal["run", "compressor"]


class RunFence(Struct, frozen=True):
    """The right of the holder of a lease to write: the number of the lease within the conversation, and its id."""

    fence: int
    run_id: str
    kind: LeaseKind = "run"


class Precondition(Struct, frozen=True):
    """The conditions of a write. If one does not hold, the write raises RevisionConflictError,
    ConversationNotFoundError, ConversationExistsError, or RunLostError if `run` is not the present one."""

    expected_revision: int | None = None
    must_exist: bool = False
    must_not_exist: bool = False
    run: RunFence | None = None


ANY = Precondition()


class _OnConversation(Struct, frozen=True):
    conversation_id: str


class Write(_OnConversation, Op[T_co], frozen=True, kw_only=True):
    """An operation that changes a conversation. `token` is that of the change."""

    precondition: Precondition = ANY
    token: str = field(default_factory=new_token)


class Entry(Struct, frozen=True):
    """A message to store: its `body` and `flags` (see `model.wire`), `timestamp` (µs; None: the server's clock),
    `characters` and `tokens` for the totals, and `tools`, the marks of its tool calls and results
    (`model.pairs.marks`)."""

    message: Message
    body: bytes
    flags: int
    timestamp: int | None
    characters: int
    tokens: int
    tools: bytes = b""


class Appended(Struct, frozen=True):
    """The outcome of one appended message: `message` has its timestamp and sequence, `revision` is the change that
    stored it. `duplicate`: an earlier call had already stored it."""

    revision: int
    message: Message
    duplicate: bool


class Append(Write[list[Appended]], frozen=True):
    """Add messages, in order. Messages that are stored already are left as they are; without new ones nothing changes.
    The same id with other content: MessageConflictError. `vectors`: one for each message, or none."""

    entries: tuple[Entry, ...]
    vectors: tuple[bytes, ...] = ()


class ReplyEnd(Struct, frozen=True):
    """Marks an update as the end of a reply. `token` is that of the append that began it; "": a reader ends the reply,
    because its writer has died and left `size` bytes of content."""

    token: str = ""
    size: int = 0


class UpdateMessage(Write[Appended | None], frozen=True):
    """Replace the content of a message, which keeps its position; None: no message has this id. The same content again
    changes nothing. With `reply`, the outcome is also None if the message is another one, or its writer lives."""

    entry: Entry
    vectors: tuple[bytes, ...] = ()
    reply: ReplyEnd | None = None


class GrowReply(Struct, Op[int], frozen=True):
    """Append `records` (see model.replies) to the reply `message_id` that the append of `token` began, if its content
    has `offset` bytes. `tools`: the marks of the tool calls and results in them (`model.pairs.marks`). `lives` renews
    the lease of its writer. The outcome is the size of the content; -1: the reply has ended. With a `run` that is not
    the present one, RunLostError.
    """

    conversation_id: str
    token: str
    offset: int
    records: bytes
    lives: bool
    run: RunFence | None = None
    message_id: str = ""
    tools: bytes = b""


class Restore(Write[int], frozen=True):
    """Replace all messages. The outcome is the revision."""

    entries: tuple[Entry, ...]
    vectors: tuple[bytes, ...] = ()


class Clear(Write[int], frozen=True):
    """Remove all messages and keep the conversation. The outcome is the revision."""


class Compacted(Struct, frozen=True):
    """The outcome of a compaction: its `revision`, the stored `summary`, and the `count` of messages it replaced,
    including a former summary.

    `changed` is false if an earlier call stored this summary (`count` is then how many of its messages are still
    archived), or if there was nothing to compact (`summary` is then None, `revision` the present one).
    """

    revision: int
    summary: Message | None
    count: int
    changed: bool


class Compact(Write[Compacted], frozen=True):
    """Replace all messages up to `through` (inclusive), except system messages, by a summary at the position of the
    last of them. The replaced messages move to the archive. A former summary is replaced like any message.

    `seen`: ids and digests of the summarized messages. If other messages would be replaced, CompactionConflictError; if
    the range separates a tool call from its result, TornPairError. Nothing changes if an earlier call has stored this
    summary, or if there is nothing to replace except a summary.
    """

    through: Position
    summary: Entry
    seen: tuple[tuple[str, bytes], ...] | None = None
    vectors: tuple[bytes, ...] = ()


class Expanded(Struct, frozen=True):
    """The outcome of an expansion: its `revision`, and the `count` of restored messages."""

    revision: int
    count: int


class Expand(Write[Expanded | None], frozen=True):
    """Restore the messages that the live summary replaced; None: its id is another one."""

    summary_id: str


class Archive(Struct, frozen=True):
    """The messages that the summary `summary_id` replaced, of which `former` is the summary before it (None: there was
    none, or it was removed). Archives are numbered in the order of their compactions."""

    number: int
    summary_id: str | None = None
    former: str | None = None


class Layout(Struct, frozen=True):
    """The archives of a conversation, oldest first, and its own time to live in seconds."""

    archives: tuple[Archive, ...] = ()
    ttl: float | None = None


class ReadLayout(_OnConversation, Op[Layout | None], frozen=True):
    """The archives of a conversation; None: there is no conversation."""


class WriteDraft(_OnConversation, Op[bool], frozen=True, kw_only=True):
    """Add messages to a draft of a conversation, which nobody sees before it is published. `token` is that of the
    `Publish` to come, `revision` its revision. `archive`: the number of the archive; 0: live messages. The messages of
    `entries` have their positions. Before, the messages `removed` are removed, each an id and a position.

    `page` counts 1, 2, 3 …; a repeated page has the same effect. False: earlier pages are lost, because the draft was
    not continued for minutes or the server lost it. Nothing was done then.
    """

    token: str
    page: int
    revision: int
    archive: int = 0
    entries: tuple[Entry, ...] = ()
    removed: tuple[tuple[str, Position], ...] = ()


class DropDraft(_OnConversation, Op[None], frozen=True):
    """Remove a draft with these archives, if it exists."""

    token: str
    archives: tuple[int, ...]


class Held(Struct, frozen=True):
    """The number of some messages, their totals, and their earliest and latest timestamp."""

    messages: int = 0
    characters: int = 0
    tokens: int = 0
    times: tuple[int, int] | None = None


class Publish(Write[bool], frozen=True, kw_only=True):
    """Make a draft the conversation, which must not exist. `page`: its last page. `record` has the record, the origin
    of a fork and the revision, and optionally `created_at` and `updated_at`. `live` and `archives`: what the draft has.
    `sequence`: the highest one. `ttl`: the time to live in seconds, if the store has none. False: the draft is lost."""

    page: int
    record: Conversation
    live: Held
    archives: tuple[tuple[Archive, Held], ...] = ()
    sequence: int = 0
    ttl: float | None = None


class WriteRecord(Write[int], frozen=True):
    """Set fields of a conversation's record (see RECORD_FIELDS); creates the conversation if necessary. The outcome is
    the revision."""

    fields: dict[str, Any]


class DeleteMessages(Write[int], frozen=True):
    """Remove messages by id, archived or not; unknown ids are ignored. The outcome is the number of removed ones."""

    message_ids: tuple[str, ...]


class EraseMessages(Write[int | str], frozen=True):
    """Remove messages by id, and all summaries that may quote them, in one change.

    The outcome is the number of removed messages. If the live summary may quote one of them, nothing changes unless
    `forced`, and the outcome is the id of that summary: expanding it first returns its other messages to the
    conversation.
    """

    message_ids: tuple[str, ...]
    forced: bool = False


class DeleteConversation(Write[bool], frozen=True):
    """Remove everything of a conversation. The outcome is whether it existed."""


class ReadConversation(Struct, Op[Conversation | None], frozen=True):
    """The record and the totals of a conversation, or None."""

    conversation_id: str


class Selection(Struct, frozen=True):
    """The conversations of one owner, of one agent, or that are forks of one conversation; of all that are given."""

    user_id: int | str | None = None
    agent_name: str | None = None
    forked_from: str | None = None

    def has(self, conversation: Conversation) -> bool:
        """Whether it is one of them."""
        origin = conversation.forked_from and conversation.forked_from.conversation_id
        return (
            self.user_id in (None, conversation.user_id)
            and self.agent_name in (None, conversation.agent_name)
            and self.forked_from in (None, origin)
        )


class Scanned(Struct, frozen=True):
    """A page of a scan, and the `cursor` of the next page (None: the scan has ended)."""

    conversations: list[Conversation]
    cursor: Any = None


class ScanConversations(Selection, Op[Scanned], frozen=True, kw_only=True):
    """A page of about `limit` conversations, maybe none, unordered, from `cursor` on (None: the first page).

    A scan finds each conversation that exists all the time. Conversations that change in the meantime may come twice.
    """

    limit: int = 500
    cursor: Any = None


class ListConversations(Selection, Op[list[Conversation]], frozen=True, kw_only=True):
    """Conversations by time of their last change, newest first."""

    limit: int
    offset: int = 0


class Preview(Struct, frozen=True):
    """How a list shows a `conversation`: its `title` (by default the first 80 characters of the first message of a
    user; "" without one), and its newest message, `last_message`."""

    conversation: Conversation
    title: str
    last_message: Message | None


class ListPreviews(Selection, Op[list[Preview]], frozen=True, kw_only=True):
    """Like ListConversations, with previews. For backends with `reads_together`."""

    limit: int
    offset: int = 0


class CountConversations(Selection, Op[int], frozen=True):
    """The number of conversations. At most one selection is given. Expired ones count until a list finds them gone. For
    backends with `reads_together`."""


class Page(Struct, frozen=True):
    """Consecutive messages, ascending. `unreadable` counts the corrupt ones, which were skipped. `live`: the page has a
    reply that is being written.

    If archived messages were requested, `archived` says for each message whether it is archived, and `former_summaries`
    has the ids of the archived summaries (and may have others).
    """

    messages: list[Message]
    unreadable: int = 0
    archived: tuple[bool, ...] = ()
    former_summaries: frozenset[str] = frozenset()
    live: bool = False


class ReadPage(Struct, Op[Page], frozen=True):
    """The messages with `after` < position < `before`, ascending: the first `limit`, or the last if `newest`. If the
    page has `limit` messages, readable or not, there may be more. An unknown conversation is empty.

    With `archived`, archived messages are included. A summary follows the messages that it replaced, at the position of
    the last of them; a page has both or neither, and so may have more than `limit` messages. With `archive`, only the
    messages of that archive.
    """

    conversation_id: str
    limit: int
    newest: bool
    after: Position | None = None
    before: Position | None = None
    archived: bool = False
    archive: int | None = None


class FindMessage(Struct, Op[Message | None], frozen=True):
    """The message of this id, archived or not, or None."""

    conversation_id: str
    message_id: str


class ReadTogether(Struct, Op[list[Any]], frozen=True):
    """The outcomes of several reads (`FindMessage`, `ReadConversation`, `ReadPage`, `Fetch`), in order, in one round
    trip, but not of one moment."""

    reads: tuple[Op[Any], ...]


class Head(Struct, frozen=True):
    """The present state of a conversation: its newest change, its totals, and its newest messages if requested.

    The totals of an unknown conversation are zero, and its cursor precedes its first change.
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
    """Changes after a cursor, in order; `more`: there are further ones.

    `replies`: how much the reader has now of each reply that is being written, by sequence. `check_in`: seconds after
    which one of their writers, or the holder of the run, may have died. `dead`: the positions of replies whose writers
    have died. `run`: the newest run, if all changes were read.
    """

    events: list[Event]
    more: bool
    replies: dict[int, Progress] = {}
    check_in: float | None = None
    dead: tuple[Position, ...] = ()
    run: RunInfo | None = None


class ReadChanges(Struct, Op[Changes], frozen=True):
    """At most `limit` changes after `after`; or a single Reset if the log no longer has all of them. Then the growth of
    replies that are being written; `replies` is how much of each the reader has, by sequence. Last the newest run, if
    it differs from `run`, the one that the reader knows; UNSET: it has not read before."""

    conversation_id: str
    after: Cursor
    limit: int = 100
    replies: dict[int, Progress] = {}
    run: RunInfo | UnsetType | None = UNSET


class RunOutcome(Struct, frozen=True):
    """The outcome of an operation on the run of a conversation: whether it was `done`, and the newest run.

    `fence`: for TakeRun, the right to write of the caller that has the run now; `lost`: the run id of a caller that had
    it before, and whose run has ended. `interrupted_since`: when the run before it began, if its holder died.
    `expires`: seconds until the present run expires; None without one.
    """

    done: bool
    run: RunInfo | None = None
    fence: RunFence | None = None
    lost: str | None = None
    interrupted_since: datetime | None = None
    expires: float | None = None


class TakeRun(_OnConversation, Op[RunOutcome], frozen=True):
    """Take the run for the first caller in the queue, if it is among `callers` and no run is active. `callers` are the
    run id and agent name of each, oldest first. With `wait`, the others get a place in the queue, or keep theirs;
    without it they leave the queue. It expires after `seconds`, unless it is renewed. Done: `fence` says who has it.
    A compressor takes its lease only if the conversation exists."""

    callers: tuple[tuple[str, str | None], ...]
    wait: bool
    seconds: float = RUN_SECONDS
    kind: LeaseKind = "run"


class KeepRuns(Struct, Op[list[RunOutcome]], frozen=True):
    """Renew leases, by conversation: they expire in `seconds`. Done for each that its holder still has."""

    runs: tuple[tuple[str, RunFence], ...]
    seconds: float = RUN_SECONDS


class EndRun(_OnConversation, Op[RunOutcome], frozen=True):
    """End a run with one of `END_STATUSES`; done unless its holder had lost it. A run that was asked to stop does not
    end as "completed": it is not done, and its status is "stopping". Compressors can take their lease after `rest`
    seconds."""

    fence: RunFence
    status: str
    rest: float = 0.0


class StopRun(_OnConversation, Op[RunOutcome], frozen=True):
    """Ask the holder of this run to end it; done if the run is active."""

    run_id: str
    reason: str | None


class LeaveRun(_OnConversation, Op[RunOutcome], frozen=True):
    """Give up places in the queue."""

    run_ids: tuple[str, ...]


class ReadRun(_OnConversation, Op[RunOutcome], frozen=True):
    """The newest run of a conversation; `run` is None if there never was one, or the conversation was deleted."""


class ReadLog(_OnConversation, Op[list[Event]], frozen=True):
    """At most `limit` changes behind the revision `after`, the oldest that the log still has first. Maybe fewer; none
    only if there are none."""

    after: int
    limit: int


class Snapshot(Struct, frozen=True):
    """The newest `messages` of a conversation, ascending, and the `cursor` of exactly that state:
    `subscribe(after=cursor)` continues from it without gap or overlap. `message_count` counts all messages."""

    messages: list[Message]
    cursor: Cursor
    message_count: int
