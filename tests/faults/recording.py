"""The record of a run: calls and their outcomes, events, and the changes that servers made.

Clients append lines to a journal of their own, before a call leaves and after it returns, so that a killed process
leaves everything but the outcome of its last calls. Calls are recorded where a store hands operations to its backend:
those of shared histories, compaction and reads pass there too. Times are of the monotonic clock, in nanoseconds, which
all processes of a machine share.

The changes come from the logs of the conversations at the end, as subscriptions give them, and from an observer without
faults where a log ended with its conversation.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from redis_history.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    CapabilityError,
    ConflictError,
    DurabilityError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StoreClosedError,
)
from redis_history.store import operations as ops
from redis_history.store.operations.documents import WriteDocuments
from redis_history.store.operations.fetch import Fetch
from redis_history.store.operations.search import Search
from redis_history.store.operations.usage import ReadOwner
from redis_history.values import Message, Position, ToolResultPart, ToolUsePart
from redis_history.values.wire import body_digest

#: A message as it is recorded: id, text, its tool calls ("u") and results ("r"), and its status. A reply that has not
#: come to its end on its own is without text: how much of it there is depends on when it was read.
Form = tuple[str, str, tuple[tuple[str, str], ...], str]
UNFINISHED = ("streaming", "interrupted")

#: The call may have been applied, or not.
UNKNOWN = (BackendUnavailableError, DurabilityError, OutcomeUnknownError, StoreClosedError)
#: The call was not applied. Any other error, such as a failed script, is a violation.
REFUSED = (BackendRefusedError, CapabilityError, ConflictError, InvalidInputError, NotFoundError)


class Call(Struct, frozen=True):
    """One operation. `status`: "ok", "refused" (an error that says that nothing was written), "unknown", or "error"
    (a store must not raise it); `value` is the outcome, or the error."""

    client: str
    conversation: str
    kind: str
    token: str
    arguments: dict[str, Any]
    invoked: float
    responded: float = float("inf")
    status: str = "unknown"
    value: Any = None


class Seen(Struct, frozen=True):
    """One event, as a subscriber got it. `kind` is its tag; `forms` are its messages, `ids` all that it names,
    `removed` those that left because of a cap. `count`: of a compaction or an expansion. `text`: what a reply has grown
    by, at `offset`."""

    conversation: str
    kind: str
    epoch: str
    revision: int
    token: str
    ids: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ()
    removed: tuple[str, ...] = ()
    reason: str = ""
    count: int = 0
    offset: int = 0
    text: str = ""

    @property
    def call(self) -> str:
        """The beginning of the token of the call that made the change."""
        return self.token[-6:]

    @property
    def change(self) -> str:
        """The kind of change; "": none."""
        return KINDS_OF_EVENTS.get(self.kind, "")


#: The kinds of changes, by those of their events.
KINDS_OF_EVENTS = {
    "messages_appended": "append",
    "history_restored": "restore",
    "message_updated": "update",
    "reply_ended": "update",
    "messages_deleted": "delete",
    "history_cleared": "clear",
    "history_compacted": "compact",
    "history_expanded": "expand",
    "conversation_updated": "record",
    "conversation_deleted": "end",
}


class Final(Struct, frozen=True):
    """A conversation at the end; `title`, `count` and `usage`: of its record."""

    messages: tuple[Form, ...]
    archived: tuple[Form, ...] = ()
    title: str | None = None
    count: int = 0
    usage: tuple[int, ...] = (0, 0, 0, 0)


class Recorded(Struct):
    """All observations of a run.

    `changes`: the changes of each conversation, in order. `partly`: the names of conversations with changes that were
    not observed. `losses`: periods, as start and end, in which a server lost writes that it had not confirmed as
    durable. `events`: the events of each subscriber. `follows`: the conversations it subscribed to (missing: all).
    `histories`: the shared histories at the end, by conversation. `added`: the messages that were added to them.
    `found`: the ids that a search for a word found at the end, by conversation. `problems`: errors that are certain
    without further checks. `revived`: errors that are certain if no server has lost writes.
    """

    calls: list[Call] = msgspec.field(default_factory=list)
    changes: dict[str, list[Seen]] = msgspec.field(default_factory=dict)
    partly: set[str] = msgspec.field(default_factory=set)
    losses: list[tuple[float, float]] = msgspec.field(default_factory=list)
    events: dict[str, list[Seen]] = msgspec.field(default_factory=dict)
    follows: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    final: dict[str, Final] = msgspec.field(default_factory=dict)
    histories: list[tuple[str, list[Form]]] = msgspec.field(default_factory=list)
    added: list[tuple[str, str]] = msgspec.field(default_factory=list)
    found: list[tuple[str, str, list[str]]] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    revived: list[str] = msgspec.field(default_factory=list)


class Journal:
    """The lines of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._lock = threading.Lock()
        self._calls = 0
        os.write(self._file, b"\n")  # behind what a killed process may have left of a line

    def write(self, *fields: Any) -> None:
        os.write(self._file, msgspec.json.encode(fields) + b"\n")

    def begin(self, op: Any, settings: dict[str, Any]) -> int:
        with self._lock:
            self._calls += 1
            number = self._calls
        kind = type(op).__name__
        arguments = {**_arguments(op), **settings}
        token = getattr(op, "token", "")
        self.write("call", number, time.monotonic_ns(), op.conversation_id, kind, token, arguments)
        return number

    def end(self, number: int, op: Any, outcome: Any, error: BaseException | None) -> None:
        status, value = "ok", None
        if error is None:
            value = _value(op, outcome)
        else:
            unknown = isinstance(error, UNKNOWN) or not isinstance(error, Exception)  # such as a cancellation
            status = "unknown" if unknown else "refused" if isinstance(error, REFUSED) else "error"
            value = [type(error).__name__, getattr(error, "current_revision", None), str(error)[:200]]
        self.write("done", number, time.monotonic_ns(), status, value)

    def event(self, event: Any) -> None:
        self.write("event", seen(event))

    def resumed(self) -> None:
        """New subscriptions give replies from their beginnings."""
        self.write("event", Seen("", "resumed", "", 0, ""))


def seen(event: Any) -> Seen:
    message = getattr(event, "message", None) or getattr(event, "summary", None)
    messages = getattr(event, "messages", None) or ([message] if message is not None else [])
    named = getattr(event, "message_id", None) or getattr(event, "summary_id", None)
    ids = [*getattr(event, "message_ids", ()), *([named] if named else ())]
    ids += [one.id for one in messages if one.id not in ids]
    ids += getattr(event, "gone_ids", ())
    return Seen(
        event.conversation_id,
        type(event).__struct_config__.tag,
        *msgspec.structs.astuple(event.cursor),
        tuple(ids),
        tuple(form(one) for one in messages),
        tuple(getattr(event, "removed_ids", ())),
        getattr(event, "reason", ""),
        getattr(event, "count", 0),
        getattr(event, "offset", 0),
        event.delta,
    )


class Fork(Struct):
    """A fork, as if it were one operation: of the messages up to `through`, None: of all. Its outcome are the revision
    that it is a copy of, its live messages, and all with archived ones."""

    conversation_id: str
    through: Position | None


#: Operations without an outcome that can be compared. Those of several conversations are not recorded either.
_UNRECORDED = (
    Search | WriteDocuments | ops.ReadChanges | ops.GrowReply
    | ReadOwner | ops.TakeRun | ops.EndRun | ops.StopRun | ops.LeaveRun | ops.ReadRun
)  # fmt: skip


def _is_recorded(op: Any) -> bool:
    return not isinstance(op, _UNRECORDED) and hasattr(op, "conversation_id")


def record(store: Any, journal: Journal, **settings: Any) -> Any:
    """Let a store write each operation and its outcome into a journal. Works for both kinds of stores."""
    execute = store.backend.execute

    def recorded(op: Any) -> Any:
        together = getattr(op, "reads", None)
        done = [one for one in together or [op] if _is_recorded(one)]
        numbers = [journal.begin(one, settings) for one in done]

        def end(outcome: Any, error: BaseException | None = None) -> Any:
            outcomes = outcome if together is not None and error is None else [outcome] * len(done)
            for number, one, its in zip(numbers, done, outcomes, strict=True):
                journal.end(number, one, its, error)
            return outcome

        try:
            outcome = execute(op)
        except BaseException as error:
            end(None, error)
            raise
        return _awaited(outcome, end) if hasattr(outcome, "__await__") else end(outcome)

    store.backend.execute = recorded
    return store


async def _awaited(outcome: Any, end: Any) -> Any:
    try:
        value = await outcome
    except BaseException as error:
        end(None, error)
        raise
    return end(value)


def form(message: Message) -> Form:
    if message.status in UNFINISHED:
        return message.id, "", (), message.status
    tools = [
        ("u", part.id) if isinstance(part, ToolUsePart) else ("r", part.tool_use_id)
        for part in message.parts
        if isinstance(part, ToolUsePart | ToolResultPart)
    ]
    return message.id, message.text, tuple(tools), message.status or ""


def as_form(raw: Any) -> Form:
    return raw[0], raw[1], tuple((kind, call) for kind, call in raw[2]), raw[3]


def _stays(message: Message) -> str:
    """Why no summary takes its place."""
    if message.is_summary:
        return ""
    return "pinned" if message.metadata.get("pinned") is True else "system" if message.role == "system" else ""


def _entry(entry: ops.Entry) -> dict[str, Any]:
    message = entry.message
    return {
        "form": form(message),
        "digest": body_digest(entry.body).hex(),
        "timestamp": entry.timestamp,
        "stays": _stays(message),
        "usage": message.usage and message.usage.numbers,
    }


def _is_whole(op: ops.ReadPage) -> bool:
    everything = op.contents == "all" and op.after is op.before is op.archive is None
    return everything and op.newest and not op.archived


_ARGUMENTS: dict[type, Callable[[Any], dict[str, Any]]] = {
    ops.Append: lambda op: {"entries": [_entry(entry) for entry in op.entries]},
    ops.Restore: lambda op: {"entries": [_entry(entry) for entry in op.entries]},
    ops.UpdateMessage: lambda op: {"entries": [_entry(op.entry)], "reply": op.reply and op.reply.token},
    ops.DeleteMessages: lambda op: {"ids": op.message_ids},
    ops.EraseMessages: lambda op: {"ids": op.message_ids},
    ops.Compact: lambda op: {"entries": [_entry(op.summary)], "through": op.through},
    ops.Expand: lambda op: {"id": op.summary_id},
    Fork: lambda op: {"through": op.through},
    ops.WriteRecord: lambda op: {"fields": op.fields},
    ops.FindMessage: lambda op: {"id": op.message_id, "is_partial": op.contents != "all"},
    ops.ReadPage: lambda op: {"whole": op.limit if _is_whole(op) else 0},
    ops.ReadHead: lambda op: {"messages": op.messages, "is_partial": op.contents != "all"},
}
_VALUES: dict[type, Callable[[Any], Any]] = {
    ops.Append: lambda outcome: [[one.revision, one.duplicate] for one in outcome],
    ops.UpdateMessage: lambda outcome: outcome and outcome.revision,
    ops.Compact: lambda outcome: [outcome.revision, outcome.count, outcome.changed, outcome.summary is not None],
    ops.Expand: lambda outcome: outcome and [outcome.revision, outcome.count],
    ops.ReadPage: lambda outcome: [form(message) for message in outcome.messages],
    ops.ReadHead: lambda outcome: [
        *msgspec.structs.astuple(outcome.cursor),
        outcome.message_count,
        [*map(form, outcome.newest.messages)],
    ],
    ops.ReadContents: lambda outcome: len(outcome),
    ops.ReadConversation: lambda outcome: outcome and [outcome.title, outcome.message_count],
    ops.FindMessage: lambda outcome: outcome and form(outcome),
    Fetch: lambda outcome: [form(one.message) for one in outcome if one is not None],
}


def _arguments(op: Any) -> dict[str, Any]:
    found = _ARGUMENTS.get(type(op), lambda op: {})(op)
    precondition = getattr(op, "precondition", None)
    if precondition is not None and precondition != ops.ANY:
        found["expected"] = precondition.expected_revision
        found["fence"] = precondition.run and msgspec.structs.astuple(precondition.run)
    return found


def _value(op: Any, outcome: Any) -> Any:
    return _VALUES.get(type(op), lambda outcome: outcome)(outcome)


# Reading


def lines(path: Path) -> Iterator[list[Any]]:
    """The whole lines of a journal. A killed process may have left a part of a line."""
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line)


def read_journal(path: Path, recorded: Recorded) -> None:
    """Add what a journal has. A client that was started again writes on in the same journal of events, but has a new
    one for its calls."""
    open_calls: dict[int, Call] = {}
    name = path.stem
    for what, *fields in lines(path):
        if what == "call":
            number, invoked, conversation, kind, token, arguments = fields
            open_calls[number] = Call(name, conversation, kind, token, arguments, invoked)
        elif what == "done":
            number, responded, status, value = fields
            call = open_calls.pop(number)
            if status == "unknown":  # a copy may still be on its way
                responded = float("inf")
            recorded.calls.append(msgspec.structs.replace(call, responded=responded, status=status, value=value))
        elif what == "event":
            recorded.events.setdefault(name, []).append(msgspec.convert(fields[0], Seen))
        elif what == "added":
            recorded.added.append((fields[0], fields[1]))
        elif what == "history":
            recorded.histories.append((fields[0], [as_form(one) for one in fields[1]]))
        elif what == "problem":
            recorded.problems.append(f"{name}: {fields[0]}")
        elif what == "revived":
            recorded.revived.append(f"{name}: {fields[0]}")
    recorded.calls += open_calls.values()
