"""Local changes of a history that are not saved yet, or whose events have not arrived. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from msgspec.structs import replace

from redis_history.errors import InvalidInputError, UnsavedLimitError
from redis_history.store.operations.append import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES
from redis_history.values import Message
from redis_history.values._validation import check_integer
from redis_history.values.ids import new_token
from redis_history.values.ranges import leaving

#: Limit of the messages that wait for the server, as stored, while a history saves automatically.
MAX_UNSAVED_BYTES = 64_000_000


class PendingChange:
    """A local change. `revision` is its revision in the store; None: not acknowledged. `arrived`: its event was read,
    so the replica contains it. `size` is in bytes."""

    revision: int | None = None
    arrived = False
    size = 0


class Add(PendingChange):
    """An added message."""

    def __init__(self, message: Message, size: int) -> None:
        self.message = message
        self.size = size


class Rewrite(PendingChange):
    """Replaces all entries, if the store is still at revision `seen`.

    `token` identifies the change in the change log, even if it is sent again. `uncertain`: an attempt got no reply.
    `hidden_reply`: at `seen` a reply was being written, which the history did not show.
    """

    uncertain = False
    hidden_reply = False

    def __init__(self, seen: int, target: Sequence[Message], size: int = 0) -> None:
        self.seen = seen
        self.target = target
        self.size = size
        self.token = new_token()

    def apply(self, entries: list[Message]) -> list[Message]:
        """The entries after this change."""
        return list(self.target)


class Compaction(Rewrite):
    """Replaces the oldest entries by a summary, if the store still has exactly these. Later entries do not matter."""

    def __init__(self, seen: int, summary: Message, replaced: Sequence[Message], size: int) -> None:
        super().__init__(seen, (), size)
        self.summary = summary
        self.replaced = tuple(replaced)

    def apply(self, entries: list[Message]) -> list[Message]:
        ids = {message.id for message in self.replaced}
        last = max((index for index, entry in enumerate(entries) if entry.id in ids), default=None)
        if last is None:
            return entries
        return [*(entry for entry in entries[:last] if entry.id not in ids), self.summary, *entries[last + 1 :]]


class Outbox:
    """The pending changes in order. `count` and `size` are those of the changes that the store has not acknowledged."""

    def __init__(self, max_unsaved: int) -> None:
        check_integer(max_unsaved, "max_unsaved", 1)
        self._max_unsaved = max_unsaved
        self.clear()

    def clear(self) -> None:
        self._changes: list[PendingChange] = []
        self.count = self.size = 0

    def __iter__(self) -> Iterator[PendingChange]:
        return iter(list(self._changes))

    def __contains__(self, change: object) -> bool:
        return change in self._changes

    def unsaved(self) -> list[Message]:
        return [change.message for change in self._changes if isinstance(change, Add) and change.revision is None]

    @property
    def newest_revision(self) -> int:
        """The newest acknowledged revision whose event has not arrived; 0 without one."""
        return max((change.revision or 0 for change in self._changes), default=0)

    def check_room(self, size: int) -> None:
        """Raises UnsavedLimitError if another change of `size` bytes exceeds a limit."""
        if self.count >= self._max_unsaved or self.size + size > MAX_UNSAVED_BYTES:
            raise UnsavedLimitError(
                f"{self.count:,} messages and rewrites of {self.size:,} bytes already wait for the server; this one "
                "was not added"
            )

    def put(self, change: PendingChange) -> None:
        self._changes.append(change)
        self._count(change, 1)

    def remove(self, change: PendingChange) -> None:
        if change in self._changes:
            self._changes.remove(change)
            if change.revision is None:
                self._count(change, -1)

    def acknowledge(self, change: PendingChange, revision: int | None) -> None:
        """The store has made the change at this revision; None: it has lost it."""
        if change in self._changes:
            self._count(change, (revision is None) - (change.revision is None))
        change.revision, change.arrived = revision, False

    def _count(self, change: PendingChange, more: int) -> None:
        self.count += more
        self.size += more * change.size

    def next(self) -> list[Add] | Rewrite | None:
        """The next change to send: as many messages as one batch may hold, or a rewrite."""
        batch: list[Add] = []
        size = 0
        for change in self._changes:
            if change.revision is not None:
                continue
            if isinstance(change, Rewrite):
                return batch or change
            assert isinstance(change, Add)  # noqa: S101
            size += change.size
            if batch and (size > MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_MESSAGES):
                break
            batch.append(change)
        return batch or None

    def apply(self, stored: Sequence[Message], ids: Container[str]) -> list[Message]:
        """The stored messages, which have these ids, after the pending changes."""
        entries = list(stored)
        added: set[str] = set()
        for change in self._changes:
            if change.arrived:
                continue
            if isinstance(change, Rewrite):
                entries = change.apply(entries)
                ids, added = {entry.id for entry in entries}, set()
            elif isinstance(change, Add) and change.message.id not in ids and change.message.id not in added:
                entries.append(change.message)
                added.add(change.message.id)
        return entries


def summary_and_replaced(before: Sequence[Message], after: Sequence[Message]) -> tuple[Message | None, list[Message]]:
    """The one new entry of a reduction from `before` to `after`, and the entries it replaces; None and [] without one.

    All other missing entries were left out. Raises InvalidInputError for any other change.
    """
    known = {entry.id for entry in before}
    left = {entry.id for entry in after}
    new = [entry for entry in after if entry.id not in known]
    same = [entry for entry in after if entry.id in known] == [entry for entry in before if entry.id in left]
    if same and not new:
        return None, []
    if same and len(new) == 1 and new[0].role != "system" and not (new[0].tool_uses or new[0].tool_results):
        index = after.index(new[0])
        end = before.index(after[index + 1]) if index + 1 < len(after) else len(before)
        replaced = [entry for entry in leaving(before[:end]) if entry.id not in left]
        if replaced and not leaving(after[:index]):
            return new[0], replaced
    raise InvalidInputError(
        "reduce: a plugin of a stored history may only leave entries out and replace the oldest ones by one new entry "
        "that is not a system message. To change what readers see, use `transform`; to rewrite the conversation, "
        "`restore`"
    )


def stamped(messages: Sequence[Message]) -> list[Message]:
    """The messages; each message without a time gets the time of the next message with a time, so that the store keeps
    this order. Messages without a time at the end get the server's time."""
    found: list[Message] = []
    following = None
    for message in reversed(messages):
        if message.timestamp is None and following is not None:
            message = replace(message, timestamp=following)
        following = message.timestamp
        found.append(message)
    return found[::-1]
