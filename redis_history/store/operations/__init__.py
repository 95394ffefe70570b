"""Operations as values: validated requests of a store to a backend. Each has a module, with its scripts.

A backend executes an `Op[T]` and returns a `T`, or raises an error of `redis_history.errors`. Each `Write` is one
atomic change, all or nothing. `token` names the change: an operation repeated with the same token (a retry after
a lost reply) has its first outcome and changes nothing. The operations of searches are in the modules `search`,
`fetch`, `index` and `documents`.
"""

from redis_history.store.changelog import Changes
from redis_history.store.claims import Action, Asking, Candidate, Claim, Look, Taken, TurnEnd
from redis_history.store.operations.append import Append, Restore
from redis_history.store.operations.archives import Archive, Layout, ReadLayout, StoredArchive
from redis_history.store.operations.base import Op, ReadTogether, Write
from redis_history.store.operations.clear import Clear
from redis_history.store.operations.compact import Compact, Compacted
from redis_history.store.operations.delete import DeleteConversation, DeleteMessages, EraseMessages
from redis_history.store.operations.drafts import DropDraft, Held, NoteFork, Publish, WriteDraft
from redis_history.store.operations.expand import Expand, Expanded
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
from redis_history.store.operations.page import FindMessage, Page, ReadPage
from redis_history.store.operations.read_changes import Head, ReadChanges, ReadHead, ReadLog, Snapshot
from redis_history.store.operations.record import ReadConversation, ReadLife, WriteRecord
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
from redis_history.store.operations.update import ReplyEnd, UpdateMessage
from redis_history.store.writes import ANY, Appended, Entry, LeaseKind, Precondition, RunFence

__all__ = [
    "ANY",
    "Action",
    "Append",
    "Appended",
    "Archive",
    "Asking",
    "Candidate",
    "ChangeTurns",
    "Changes",
    "Claim",
    "Clear",
    "Compact",
    "Compacted",
    "CountConversations",
    "CountTurns",
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
    "ReadConversation",
    "ReadHead",
    "ReadLayout",
    "ReadLife",
    "ReadLog",
    "ReadMarks",
    "ReadPage",
    "ReadRun",
    "ReadTogether",
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
]  # fmt: skip
