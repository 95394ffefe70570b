"""Keep a history the same as a stored conversation. No I/O: a driver sends, reads, and passes on what it gets.

The entries of the history are what the store has (the replica) with the changes made here since (the outbox). A change
leaves the outbox when its event has been seen. So entries never jump back, in whatever order replies and events arrive.
If the store confirms its writes (`durability`), the change must be acknowledged, too: an event says only that the
server has it.

Methods only post events; the driver delivers them, with no lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec.structs import replace

from redis_history import requests
from redis_history.changelog import is_of_call
from redis_history.errors import InvalidInputError
from redis_history.events import (
    ConversationDeleted,
    Cursor,
    Event,
    HistoryCleared,
    HistoryCompacted,
    HistoryRestored,
    MessagesAppended,
    Reset,
)
from redis_history.history._outbox import Add, Compaction, Outbox, PendingChange, Rewrite, stamped, summary_and_replaced
from redis_history.history._replica import Replica, read_whole
from redis_history.history.history import History
from redis_history.model import Message
from redis_history.model.ranges import stays
from redis_history.model.wire import encode_body
from redis_history.operations import Appended, ReadChanges, Snapshot
from redis_history.paging import Reads

#: Reasons of a Reset that say that the conversation, as it was known, has ended.
_ENDED = ("conversation_missing", "conversation_replaced")


class Syncer:
    """The state of one history and its conversation. `wake` is called when something is to be sent. `confirms`: the
    store confirms its writes.

    `following`: the history saves and follows by itself. `stale`: others have made a change that is not here.
    """

    def __init__(
        self,
        history: History,
        max_unsaved: int,
        wake: Callable[[], None] = lambda: None,
        *,
        confirms: bool = False,
    ) -> None:
        self.conversation_id: str | None = None
        self.following = False
        self._history = history
        self._wake = wake
        self._confirms = confirms
        self.replica = Replica()
        self.outbox = Outbox(max_unsaved)
        self._begin_anew()
        history._recorder = self

    def _begin_anew(self) -> None:
        self.outbox.clear()
        self._hidden: set[str] = set()  # removed by the limits of the history, and not stored yet
        self._left_out: set[str] = set()  # left out by a reduction; the store keeps them
        self._seen = 0  # up to this revision the entries are what the store has, own changes included
        self._own: set[int] = set()  # revisions of own changes beyond that
        self.stale = False

    @property
    def unsaved(self) -> list[Message]:
        with self._history._lock:
            return self.outbox.unsaved() if self.conversation_id is not None else list(self._history._entries)

    @property
    def cursor(self) -> Cursor | None:
        """The last known change of the conversation; None before it was read."""
        with self._history._lock:
            return self.replica.cursor

    @property
    def bound_id(self) -> str:
        assert self.conversation_id is not None  # noqa: S101
        return self.conversation_id

    # Called by the history, with its lock held

    def adding(self, message: Message, size: int) -> None:
        if self.conversation_id is not None:
            self._put(Add(message, size))
            self._left_out.discard(message.id)

    def rewriting(self, how: Literal["replace", "reduce"], entries: list[Message]) -> None:
        if self.conversation_id is not None:
            change = self._replacement(entries) if how == "replace" else self._reduction(entries)
            if change is not None:
                self._put(change)
            names = {entry.id for entry in entries}
            self._hidden -= names
            self._left_out -= names

    def trimmed(self, gone: list[Message]) -> None:
        self.replica.forget([entry.id for entry in gone])
        waiting = {change.message.id for change in self.outbox if isinstance(change, Add)}
        self._hidden.update(entry.id for entry in gone if entry.id in waiting)

    def _put(self, change: PendingChange) -> None:
        if self.following:
            self.outbox.check_room(change.size)
        self.outbox.put(change)
        self._wake()

    def _replacement(self, entries: list[Message]) -> Rewrite:
        target = stamped(entries)
        op = requests.restore(self.bound_id, target)  # raises if it would not fit
        return Rewrite(self._seen, target, sum(len(entry.body) for entry in op.entries))

    def _reduction(self, entries: list[Message]) -> Compaction | None:
        """The store keeps everything: a summary moves entries to the archive, and entries that a plugin only left out
        stay stored and are not shown here."""
        before = self._history._entries
        summary, replaced = summary_and_replaced(before, entries)
        gone = {entry.id for entry in before} - {entry.id for entry in entries}
        if summary is None:
            self._left_out |= gone
            return None
        if not self.replica.whole:
            raise InvalidInputError(
                "this history holds only the newest part of its conversation, so a plugin cannot rewrite it: "
                "load it without max_length and max_tokens"
            )
        if not summary.is_summary:
            summary = replace(summary, metadata={**summary.metadata, "is_summary": True})
        self._left_out |= gone.difference(entry.id for entry in replaced)
        stored = self.outbox.over(self.replica.messages, self.replica)  # with entries that are not shown
        last = next(index for index, entry in enumerate(stored) if entry.id == replaced[-1].id)
        seen = [entry for entry in stored[: last + 1] if not stays(entry)]
        return Compaction(self._seen, summary, seen, len(encode_body(summary)))

    def _compose(self) -> None:
        """Show what is stored, with the pending changes, without what is not shown."""
        entries = self.outbox.over(self.replica.messages, self.replica)
        if self._hidden or self._left_out:
            self._left_out.intersection_update([entry.id for entry in entries])
            entries = [one for one in entries if one.id not in self._hidden and one.id not in self._left_out]
        self._history._show(entries)

    def _arrived(self, change: PendingChange) -> None:
        """The store has the change."""
        if self._confirms and change.revision is None:
            change.arrived = True
        else:
            self._remove(change)

    def _remove(self, change: PendingChange) -> None:
        self.outbox.remove(change)
        if isinstance(change, Add):
            self._hidden.discard(change.message.id)

    # Loading

    def load(self, conversation_id: str, snapshot: Snapshot) -> None:
        """Show the conversation, and behind it what was added here and is not there.

        A system message that is there already, word for word, is not added again.
        """
        with self._history._lock:
            unsaved, sent = self.unsaved, self.conversation_id is not None
            self._begin_anew()
            self.conversation_id = conversation_id
            self._read(snapshot)
            prompts = {message.text for message in snapshot.messages if message.role == "system"}
            for message in unsaved:
                change = Add(message, len(encode_body(message)))
                if message.id in self.replica:
                    if not sent or not self._confirms:
                        continue
                    change.arrived = True
                elif message.role == "system" and message.text in prompts:
                    continue
                self.outbox.put(change)
            self._history._void_reductions()
            self._compose()

    def bind(self, conversation_id: str) -> None:
        """Save to a conversation that was not read: all entries are new to it."""
        with self._history._lock:
            self._begin_anew()
            self.conversation_id = conversation_id
            self.replica = Replica()
            for message in self._history._entries:
                self.outbox.put(Add(message, len(encode_body(message))))

    def _read(self, snapshot: Snapshot) -> None:
        self.replica.begin(snapshot.messages, snapshot.cursor, whole=len(snapshot.messages) == snapshot.message_count)
        self._seen = snapshot.cursor.revision
        self._own.clear()
        self.stale = False

    # Following

    def changes_by_others(self) -> Reads[None]:
        """Read what others have changed: the changes after the last known one, or everything if that is not enough."""
        conversation_id = self.bound_id
        while (cursor := self.cursor) is not None:
            with self._history._lock:
                acknowledged = self.outbox.newest_revision  # before the read: its reply may lack later ones
            changes = yield ReadChanges(conversation_id, cursor)
            event = self.apply(changes.events)
            if event is not None:
                reason = event.reason if isinstance(event, Reset) else None
                if (yield from self._read_whole(reason)):
                    break
            elif not changes.more:
                known = self.cursor
                if known is not None and acknowledged > known.revision:  # the conversation was deleted since
                    yield from self._read_whole("conversation_missing")
                break
        else:
            yield from self._read_whole()
        with self._history._lock:
            self.stale = False

    def _read_whole(self, reason: str | None = None) -> Reads[bool]:
        with self._history._lock:
            acknowledged = [change for change in self.outbox if change.revision is not None]
        snapshot = yield from read_whole(self.bound_id)
        return self.read_again(snapshot, reason, acknowledged)

    def read_again(
        self, snapshot: Snapshot, reason: str | None = None, acknowledged: Sequence[PendingChange] | None = None
    ) -> bool:
        """Use a snapshot in place of what is known of the store; unsaved changes stay. `reason` is that of a Reset.

        `acknowledged`: the changes that the store had acknowledged before the snapshot was read; None: all of them.
        False, and nothing has changed, if newer changes are applied already, unless a Reset says the server lost them.
        """
        history, revision = self._history, snapshot.cursor.revision
        with history._lock:
            known = self.replica.cursor
            goes_on = (
                known is not None
                and known.epoch == snapshot.cursor.epoch
                and reason != "server_rewound"
                and reason not in _ENDED
            )
            if goes_on and known is not None and revision < known.revision:
                return False
            shown = history._ids | self._left_out
            seen, own = self._seen, set(self._own)
            self._read(snapshot)
            if goes_on and seen > revision:  # own changes since; their events are still to come
                self._seen = seen
                self._own |= {one for one in own if one > seen}
            for change in self.outbox:
                if self._shows(snapshot.cursor, change):
                    self._arrived(change)
                elif reason == "server_rewound":  # the server may have lost it: it is sent again
                    self.outbox.acknowledge(change, None)
                elif change.arrived and reason in _ENDED:
                    self._remove(change)
                elif change.revision is None:
                    continue
                elif change.revision <= revision or (
                    reason in _ENDED and (acknowledged is None or change in acknowledged)
                ):
                    self._remove(change)  # unless it was made in a new conversation after the snapshot
            history._void_reductions()
            for message in snapshot.messages:
                if message.id not in shown:
                    history._listeners.post("entry", message)
            self._compose()
            self._wake()
        return True

    def _shows(self, head: Cursor, change: PendingChange) -> bool:
        """Whether the state of the store that was read has a change."""
        if isinstance(change, Add):
            return change.message.id in self.replica
        return isinstance(change, Rewrite) and is_of_call(head, change.token)

    def apply(self, events: Iterable[Event]) -> Event | None:
        """Apply events; return the one after which the conversation must be read again, if there is one."""
        with self._history._lock:
            for event in events:
                if not self._apply(event):
                    return event
            self._compose()
        return None

    def _apply(self, event: Event) -> bool:
        before = self.replica.cursor
        if not self.replica.apply(event):
            return False
        if self.replica.cursor is before:  # applied already
            return True
        own = False
        arrived = {message.id for message in event.messages} if isinstance(event, MessagesAppended) else set()
        by_others = set(arrived)
        for change in self.outbox:
            if change.arrived:
                continue
            if isinstance(change, Add) and change.message.id in arrived:
                by_others.discard(change.message.id)
                own = not by_others or change.revision == event.revision
            elif isinstance(change, Compaction) and isinstance(event, HistoryCompacted):
                if event.summary_id != change.summary.id:
                    continue
                own = True
            elif isinstance(change, Rewrite) and is_of_call(event.cursor, change.token):
                own = True
            elif change.revision is not None and change.revision <= event.revision:
                own = own or change.revision == event.revision
            else:
                continue
            self._arrived(change)
        if own:
            self._acknowledged(event.revision)
        known = event.revision <= self._seen
        self._own.discard(event.revision)
        self._seen = max(self._seen, event.revision)
        while self._seen + 1 in self._own:
            self._own.remove(self._seen + 1)
            self._seen += 1
        if not known and not own:
            self._post(event)
        return True

    def _post(self, event: Event) -> None:
        """Post what others did."""
        post = self._history._listeners.post
        if isinstance(event, MessagesAppended):
            for message in event.messages:
                if message.id not in self._history._ids and message.id in self.replica:
                    post("entry", message)
        elif isinstance(event, HistoryCleared | ConversationDeleted | HistoryCompacted | HistoryRestored):
            self._history._void_reductions()
            if isinstance(event, HistoryRestored):
                post("restore", list(self.replica.messages))
            elif not isinstance(event, HistoryCompacted):
                post("clear")

    # Saving

    def next(self) -> list[Add] | Rewrite | None:
        with self._history._lock:
            return self.outbox.next()

    def still_there(self, adds: Iterable[Add]) -> list[Add]:
        """Those to send in a new call: a message that the store had, and that others have removed since, is not."""
        with self._history._lock:
            gone = [add for add in adds if add.arrived and add.message.id not in self.replica and self.replica.whole]
            for add in gone:
                self._remove(add)
            return [add for add in adds if add not in gone]

    def appended(self, adds: Sequence[Add], outcomes: Sequence[Appended]) -> int:
        """The store has acknowledged messages; how many of them were new to it."""
        with self._history._lock:
            fresh = {outcome.revision for outcome in outcomes if not outcome.duplicate}
            for revision in fresh:
                self._acknowledged(revision)
            cursor = self.replica.cursor
            applied = 0 if cursor is None else cursor.revision
            if (not fresh and cursor is None) or max(one.revision for one in outcomes) > self._seen:
                self.stale = True
            if not self.following and fresh and max(fresh) <= applied:
                self.stale = True  # revisions count anew: the conversation began anew, or the server was rewound
            for add, outcome in zip(adds, outcomes, strict=True):
                if add not in self.outbox:  # its event was faster
                    continue
                self.outbox.acknowledge(add, outcome.revision)
                add.message = outcome.message
                if outcome.revision <= applied:
                    self._remove(add)  # the replica is newer: if the message is not there, it was removed again
                elif not (self.following or self.stale):
                    self._remove(add)
                    self.replica.place(outcome.message)
            if not self.following and not self.stale and self.replica.cursor is None:
                self.replica.whole = True  # the first change of the conversation was this one
            self._compose()
        return sum(not outcome.duplicate for outcome in outcomes)

    def rewritten(self, change: Rewrite, revision: int, *, changed: bool) -> None:
        """The store has made a rewrite, and is at this revision."""
        with self._history._lock:
            self.outbox.acknowledge(change, revision)
            if changed:
                self._acknowledged(revision)
            cursor = self.replica.cursor
            if change not in self.outbox:
                pass
            elif not changed or (cursor is not None and revision <= cursor.revision):
                self._remove(change)
            elif not self.following:
                if isinstance(change, Compaction):
                    self._remove(change)
                    self.replica.remove(change.removed)
                    if change.stored is not None:
                        self.replica.place(change.stored)
                elif change.target:
                    self.stale = True  # only the store knows the positions of these messages
                else:
                    self._remove(change)
                    self.replica.remove([one.id for one in self.replica.messages])
            self._compose()

    def _acknowledged(self, revision: int) -> None:
        for change in self.outbox:
            if not isinstance(change, Rewrite) or change.revision is not None or change.arrived:
                continue
            if change.seen == revision - 1:
                change.seen = revision
        if revision == self._seen + 1:
            self._seen = revision
        elif revision > self._seen:
            self._own.add(revision)
            self.stale = True

    def refused(self, changes: Iterable[PendingChange]) -> None:
        """Give up changes that can never be made."""
        with self._history._lock:
            for change in changes:
                self._remove(change)
            self._compose()
