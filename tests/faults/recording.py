"""The record of a run: calls and their outcomes, events, and the changes that servers made.

Clients append lines to a journal of their own, before a call leaves and after it returns, so that a killed process
leaves everything but the outcome of its last calls. Calls are recorded where a store hands operations to its backend:
those of shared histories, compaction and reads pass there too. Times are of the monotonic clock, in nanoseconds, which
all processes of a machine share.

The changes come from the servers' append-only files: they show every change ever made, in order, those of deleted
conversations and of trimmed logs included.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from redis_history import operations as ops
from redis_history.backends.redis.keys import Keyspace
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
from redis_history.model import Message, ToolResultPart, ToolUsePart
from redis_history.model.wire import body_digest
from redis_history.search import server_search

#: A message as it is recorded: id, text, and its tool calls ("u") and results ("r").
Form = tuple[str, str, tuple[tuple[str, str], ...]]

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


class Change(Struct, frozen=True):
    """One entry of a change log. `token`: of its call; as an append-only file has it, only the beginning. `head`: its
    token in the cursors of events. `removed`: the ids that left because of a cap."""

    conversation: str
    revision: int
    token: str
    kind: str
    removed: tuple[str, ...] = ()
    head: str = ""

    @property
    def place(self) -> str:
        return self.head or self.token


class Seen(Struct, frozen=True):
    """One event, as a subscriber got it. `kind` is the tag of the event; `ids` those of its messages;
    `removed` those that left because of a cap."""

    conversation: str
    kind: str
    epoch: str
    revision: int
    token: str
    ids: tuple[str, ...] = ()
    reason: str = ""
    removed: tuple[str, ...] = ()


class Final(Struct, frozen=True):
    """A conversation at the end; `title` and `count`: of its record."""

    messages: tuple[Form, ...]
    archived: tuple[Form, ...] = ()
    title: str | None = None
    count: int = 0


class Recorded(Struct):
    """All that is known of a run.

    `changes` are in the order in which they were made; `branches` are what servers that were replaced had made, with
    what was lost with them. Each of `losses` is a time from which on a server lost what it
    had not confirmed as durable, and the time when that was over. `events` are of each subscriber; `histories` are the
    shared histories at the end, by conversation; `added` what was given to them. `found`: the ids that a search for a
    word gave in the end. A subscriber that is not in `follows` follows all conversations.
    """

    calls: list[Call] = msgspec.field(default_factory=list)
    changes: list[Change] = msgspec.field(default_factory=list)
    branches: list[list[Change]] = msgspec.field(default_factory=list)
    losses: list[tuple[float, float]] = msgspec.field(default_factory=list)
    events: dict[str, list[Seen]] = msgspec.field(default_factory=dict)
    follows: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    final: dict[str, Final] = msgspec.field(default_factory=dict)
    histories: list[tuple[str, list[Form]]] = msgspec.field(default_factory=list)
    added: list[tuple[str, str]] = msgspec.field(default_factory=list)
    found: list[tuple[str, str, list[str]]] = msgspec.field(default_factory=list)


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
            status = "unknown" if isinstance(error, UNKNOWN) else "refused" if isinstance(error, REFUSED) else "error"
            value = [type(error).__name__, getattr(error, "current_revision", None), str(error)[:200]]
        self.write("done", number, time.monotonic_ns(), status, value)

    def event(self, event: Any) -> None:
        messages = getattr(event, "messages", None) or [
            getattr(event, "message", None) or getattr(event, "summary", None)
        ]
        ids = getattr(event, "message_ids", None) or [message.id for message in messages if message is not None]
        kind = type(event).__struct_config__.tag
        cursor = event.cursor
        reason = getattr(event, "reason", "")
        removed = getattr(event, "removed_ids", ())
        where = (event.conversation_id, kind, cursor.epoch, cursor.revision, cursor.token)
        self.write("event", *where, ids, reason, removed)


#: Operations without an outcome that can be compared. Those of several conversations are not recorded either.
_UNRECORDED = server_search.Search | ops.TakeRun | ops.ReadChanges | server_search.WriteDocuments


def _is_recorded(op: Any) -> bool:
    return not isinstance(op, _UNRECORDED) and hasattr(op, "conversation_id") and not hasattr(op, "lease")


def record(store: Any, journal: Journal, **settings: Any) -> Any:
    """Let a store write each operation and its outcome into a journal. Works for both kinds of stores."""
    execute = store._backend.execute

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

    store._backend.execute = recorded
    return store


async def _awaited(outcome: Any, end: Any) -> Any:
    try:
        value = await outcome
    except BaseException as error:
        end(None, error)
        raise
    return end(value)


def form(message: Message) -> Form:
    tools = [
        ("u", part.id) if isinstance(part, ToolUsePart) else ("r", part.tool_use_id)
        for part in message.parts
        if isinstance(part, ToolUsePart | ToolResultPart)
    ]
    return message.id, message.text, tuple(tools)


def _entry(entry: ops.Entry) -> dict[str, Any]:
    message = entry.message
    return {
        "form": form(message),
        "digest": body_digest(entry.body).hex(),
        "timestamp": entry.timestamp,
        "stays": message.role == "system" and not message.is_summary,
    }


def _compact_arguments(op: ops.Compact) -> dict[str, Any]:
    clocks = time.time_ns() - time.monotonic_ns()
    return {"entries": [_entry(op.summary)], "through": [*op.through, op.through.timestamp * 1000 - clocks]}


def _is_whole(op: ops.ReadPage) -> bool:
    return op.newest and op.after is op.before is None and not op.archived


_ARGUMENTS: dict[type, Callable[[Any], dict[str, Any]]] = {
    ops.Append: lambda op: {"entries": [_entry(entry) for entry in op.entries]},
    ops.Restore: lambda op: {"entries": [_entry(entry) for entry in op.entries]},
    ops.UpdateMessage: lambda op: {"entries": [_entry(op.entry)]},
    ops.DeleteMessages: lambda op: {"ids": op.message_ids},
    ops.Compact: _compact_arguments,
    ops.Expand: lambda op: {"id": op.summary_id},
    ops.WriteRecord: lambda op: {"fields": op.fields},
    ops.FindMessage: lambda op: {"id": op.message_id},
    ops.ReadPage: lambda op: {"whole": op.limit if _is_whole(op) else 0},
    ops.ReadHead: lambda op: {"messages": op.messages},
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
    ops.ReadConversation: lambda outcome: outcome and [outcome.title, outcome.message_count],
    ops.FindMessage: lambda outcome: outcome and form(outcome),
    server_search.Fetch: lambda outcome: [form(one.message) for one in outcome if one is not None],
}


def _arguments(op: Any) -> dict[str, Any]:
    found = _ARGUMENTS.get(type(op), lambda op: {})(op)
    precondition = getattr(op, "precondition", None)
    if precondition is not None and precondition != ops.ANY:
        found["expected"] = precondition.expected_revision
    return found


def _value(op: Any, outcome: Any) -> Any:
    return _VALUES.get(type(op), lambda outcome: outcome)(outcome)


# Reading


def lines(path: Path) -> Iterator[list[Any]]:
    """The whole lines of a journal; a killed process may have left a part of one."""
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
            recorded.calls.append(msgspec.structs.replace(call, responded=responded, status=status, value=value))
        elif what == "event":
            conversation, kind, epoch, revision, token, ids, reason, removed = fields
            seen = Seen(conversation, kind, epoch, revision, token, tuple(ids), reason, tuple(removed))
            recorded.events.setdefault(name, []).append(seen)
        elif what == "added":
            recorded.added.append((fields[0], fields[1]))
        elif what == "history":
            recorded.histories.append((fields[0], [_as_form(one) for one in fields[1]]))
    recorded.calls += open_calls.values()


def _as_form(raw: Any) -> Form:
    return raw[0], raw[1], tuple((kind, call) for kind, call in raw[2])


#: The kinds of entries, by their numbers.
_KINDS = ("", "append", "append", "restore", "update", "clear", "record", "delete", "compact", "expand", "end")


def read_changes(folder: Path, conversations: list[str], namespace: str) -> list[Change | int]:
    """All changes in the append-only files of a server, and the marks (numbers) that `SET mark` left among them."""
    keys = {name: Keyspace(namespace).conversation(name) for name in conversations}
    logs = {one.log: name for name, one in keys.items()}
    found: list[Change | int] = []
    for path in sorted(folder.glob("appendonlydir/*.incr.aof"), key=lambda path: int(path.name.split(".")[-3])):
        for together in _transactions(path.read_bytes()):
            for command in together:
                if command[0].upper() == b"SET" and command[1] == b"mark":
                    found.append(int(command[2]))
                elif command[0].upper() == b"RPUSH" and command[1] in logs:
                    name = logs[command[1]]
                    found.append(_change(name, command[2], _revision(together, keys[name].state)))
    return found


def _revision(together: list[list[bytes]], state: bytes) -> int:
    """The revision that a transaction writes to a state; 0: none."""
    written = [command[2:] for command in together if command[0].upper() == b"HSET" and command[1] == state]
    found = [dict(zip(fields[::2], fields[1::2], strict=True)).get(b"r") for fields in written]
    return max((int(revision) for revision in found if revision is not None), default=0)


def _change(conversation: str, entry: bytes, revision: int) -> Change:
    kind, head, rest = _KINDS[entry[0] >> 4], entry[:10].hex(), entry[10:]
    removed = tuple(msgspec.msgpack.decode(rest)[2]) if entry[0] >> 4 in (2, 3) else ()
    revision = msgspec.msgpack.decode(rest)[0] if kind == "end" else revision
    return Change(conversation, revision, head[-6:], kind, removed, head)


def _transactions(data: bytes) -> Iterator[list[list[bytes]]]:
    """The commands of an append-only file that were made together. A transaction without its end, which a killed server
    left, is skipped, as the server does when it starts."""
    at, held = 0, None
    while at < len(data):
        if data[at : at + 1] == b"#":  # an annotation
            at = data.index(b"\n", at) + 1
            continue
        command = []
        try:
            end = data.index(b"\r\n", at)
            count = int(data[at + 1 : end])
            at = end + 2
            for _ in range(count):
                end = data.index(b"\r\n", at)
                size = int(data[at + 1 : end])
                command.append(data[end + 2 : end + 2 + size])
                at = end + 4 + size
        except ValueError:
            return
        if at > len(data):
            return
        if command[0].upper() == b"MULTI":
            held = []
        elif command[0].upper() == b"EXEC":
            yield held or []
            held = None
        elif held is None:
            yield [command]
        else:
            held.append(command)


def merge(eras: list[list[Change | int]]) -> tuple[list[Change], list[list[Change]]]:
    """The changes that count, of servers that replaced each other: of each those up to the mark that was set when its
    successor followed it, and of the last one all after its mark. And what each lost, with all that was before it."""
    found: list[Change] = []
    branches: list[list[Change]] = []
    for number, era in enumerate(eras):
        begin = era.index(number) + 1 if number else 0
        end = era.index(number + 1) if number + 1 < len(eras) else len(era)
        branches.append([*found, *(one for one in era[begin:] if isinstance(one, Change))])
        found += [one for one in era[begin:end] if isinstance(one, Change)]
    return found, branches[:-1]
