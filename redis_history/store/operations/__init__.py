"""Operations as values: validated requests of a store to a backend. Each has a module, with its scripts.

A backend executes an `Op[T]` and returns a `T`, or raises an error of `redis_history.errors`. Each `Write` is one
atomic change, all or nothing. `token` names the change: an operation repeated with the same token (a retry after
a lost reply) has its first outcome and changes nothing. The operations of searches are in the modules `search`,
`fetch`, `index` and `documents`.
"""

from redis_history.store.changelog import Changes
from redis_history.store.claims import Action, Asking, Candidate, Claim, Look, Taken, TurnEnd
from redis_history.store.operations.append import Append, Restore, append_messages
from redis_history.store.operations.approvals import Decision, ListApprovals, ReadOpen, find_request
from redis_history.store.operations.archives import Archive, Layout, ReadLayout, StoredArchive
from redis_history.store.operations.audit import AuditEntry, ReadTrail
from redis_history.store.operations.base import Op, ReadTogether, Steps, Write
from redis_history.store.operations.clear import Clear
from redis_history.store.operations.compact import Compact, Compacted, compact_messages
from redis_history.store.operations.contents import ReadContents
from redis_history.store.operations.delete import DeleteConversation, DeleteMessages, EraseMessages
from redis_history.store.operations.drafts import DropDraft, Held, NoteFork, Publish, WriteDraft
from redis_history.store.operations.expand import Expand, Expanded, expand_summary
from redis_history.store.operations.listing import (
    CountConversations,
    ListConversations,
    ListPreviews,
    Marks,
    Preview,
    ReadMarks,
    ScanConversations,
    Scanned,
    Selection,
)
from redis_history.store.operations.metadata import MergeMetadata
from redis_history.store.operations.page import FindMessage, Page, ReadPage, read_messages
from redis_history.store.operations.read_changes import Head, ReadChanges, ReadHead, ReadLog, Snapshot, take_snapshot
from redis_history.store.operations.record import ReadConversation, ReadLife, WriteRecord, change_record, create_record
from redis_history.store.operations.run import EndRun, KeepRuns, LeaveRun, ReadRun, RunOutcome, StopRun, TakeRun
from redis_history.store.operations.stream import GrowReply
from redis_history.store.operations.turn import (
    ChangeTurns,
    CountTurns,
    ListTurns,
    LookForTurns,
    Postpone,
    ReadTurns,
    RingWorker,
    TakeSeat,
)
from redis_history.store.operations.update import ReplyEnd, UpdateMessage, change_message
from redis_history.store.writes import ANY, Appended, Entry, LeaseKind, Precondition, RunFence

__all__ = [
    "ANY",
    "Action",
    "Append",
    "Appended",
    "Archive",
    "Asking",
    "AuditEntry",
    "Candidate",
    "ChangeTurns",
    "Changes",
    "Claim",
    "Clear",
    "Compact",
    "Compacted",
    "CountConversations",
    "CountTurns",
    "Decision",
    "DeleteConversation",
    "DeleteMessages",
    "DropDraft",
    "EndRun",
    "Entry",
    "EraseMessages",
    "Expand",
    "Expanded",
    "FindMessage",
    "GrowReply",
    "Head",
    "Held",
    "KeepRuns",
    "Layout",
    "LeaseKind",
    "LeaveRun",
    "ListApprovals",
    "ListConversations",
    "ListPreviews",
    "ListTurns",
    "Look",
    "LookForTurns",
    "Marks",
    "MergeMetadata",
    "NoteFork",
    "Op",
    "Page",
    "Postpone",
    "Precondition",
    "Preview",
    "Publish",
    "ReadChanges",
    "ReadContents",
    "ReadConversation",
    "ReadHead",
    "ReadLayout",
    "ReadLife",
    "ReadLog",
    "ReadMarks",
    "ReadOpen",
    "ReadPage",
    "ReadRun",
    "ReadTogether",
    "ReadTrail",
    "ReadTurns",
    "ReplyEnd",
    "Restore",
    "RingWorker",
    "RunFence",
    "RunOutcome",
    "ScanConversations",
    "Scanned",
    "Selection",
    "Snapshot",
    "Steps",
    "StopRun",
    "StoredArchive",
    "TakeRun",
    "TakeSeat",
    "Taken",
    "TurnEnd",
    "UpdateMessage",
    "Write",
    "WriteDraft",
    "WriteRecord",
    "append_messages",
    "change_message",
    "change_record",
    "compact_messages",
    "create_record",
    "expand_summary",
    "find_request",
    "read_messages",
    "take_snapshot",
]  # fmt: skip
