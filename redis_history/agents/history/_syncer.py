"""Keep a history the same as a stored conversation. No I/O: a driver sends and reads, and passes the replies on.

The entries of the history are the stored messages (the replica) with the local changes applied (the outbox). A change
leaves the outbox when its event arrives, so entries never jump back, in whatever order replies and events arrive. If
the store confirms its writes (`durability`), the change must also be acknowledged, because an event only shows that the
server has it.

Methods only post events. The driver delivers them, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from redis_history.agents.history._outbox import (
    Add,
    Compaction,
    Outbox,
    PendingChange,
    Rewrite,
    stamped,
    summary_and_replaced,
)
from redis_history.agents.history._replica import Replica, read_whole
from redis_history.agents.history.history import History
from redis_history.errors import InvalidInputError
from redis_history.store.changelog import is_of_call
from redis_history.store.operations import Appended, ReadChanges, Restore, Snapshot
from redis_history.store.operations.base import Steps
from redis_history.values import Message, events
from redis_history.values.events import Cursor, Event, Reset
from redis_history.values.ranges import leaving
from redis_history.values.wire import encode_body

#: Reasons of a Reset after which the conversation as it was known no longer exists.
_ENDED = ("conversation_missing", "conversation_replaced")


class Syncer:
    """The state of one history and its conversation. `wake` is called when there is something to send. `confirms`: the
    store confirms its writes. `following`: the history saves and follows in the background.
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
        self.outbox = Outbox(max_unsaved)
        self._begin(None)
        history._recorder = self

    def _begin(self, conversation_id: str | None) -> None:
        self.conversation_id = conversation_id
        self.replica = Replica()
        self.outbox.clear()
        # Without a conversation: all messages, also those that the limits of the history have removed.
        self._early: list[Message] = []
        self._hidden: set[str] = set()  # removed by the limits of the history, and not stored yet
        self._left_out: set[str] = set()  # left out by a reduction, although the store keeps them
        self._seen = 0  # up to this revision, own changes included, the entries are those of the store
        self._own: set[int] = set()  # revisions of own changes after `_seen`

    @property
    def unsaved(self) -> list[Message]:
        with self._history._lock:
            return self.outbox.unsaved() if self.conversation_id is not None else list(self._early)

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
        if self.conversation_id is None:
            self._early.append(message)
        else:
            self._put(Add(message, size))
            self._left_out.discard(message.id)

    def replacing(self, entries: list[Message]) -> None:
        if self.conversation_id is None:
            self._early = list(entries)
        else:
            target = stamped(entries)
            op = Restore.of(self.bound_id, target)  # raises if it would not fit
            change = Rewrite(self._seen, target, sum(len(entry.body) for entry in op.entries))
            change.hidden_reply = bool(self.replica.streaming)
            self._put(change)
            self._hidden.difference_update(entry.id for entry in entries)
            self._left_out.difference_update(entry.id for entry in entries)

    def reducing(self, entries: list[Message]) -> None:
        """A summary moves entries to the archive of the store. Entries that a plugin only left out stay stored, and are
        not shown here."""
        before = self._history._entries
        if self.conversation_id is None:
            self._early = [*(one for one in self._early if one.id not in self._history._ids), *entries]
            return
        summary, replaced = summary_and_replaced(before, entries)
        left_out = {entry.id for entry in before}.difference(entry.id for entry in (*entries, *replaced))
        if summary is not None:
            if not self.replica.whole:
                raise InvalidInputError(
                    "this history holds only the newest part of its conversation, so a plugin cannot rewrite it: "
                    "load it without max_length and max_tokens"
                )
            if not summary.is_summary:
                summary = replace(summary, metadata={**summary.metadata, "is_summary": True})
            stored = self.outbox.apply(self.replica.messages, self.replica)  # with entries that are not shown
            last = next(index for index, entry in enumerate(stored) if entry.id == replaced[-1].id)
            seen = leaving(stored[: last + 1])
            self._put(Compaction(self._seen, summary, seen, len(encode_body(summary))))
        self._left_out |= left_out

    def limited(self, removed: list[Message]) -> None:
        """The limits of the history have removed its oldest entries."""
        self.replica.forget([entry.id for entry in removed])
        waiting = {change.message.id for change in self.outbox if isinstance(change, Add)}
        self._hidden.update(entry.id for entry in removed if entry.id in waiting)

    def _put(self, change: PendingChange) -> None:
        if self.following:
            self.outbox.check_room(change.size)
        self.outbox.put(change)
        self._wake()

    def _compose(self) -> None:
        """Show the stored messages after the pending changes, without those that are not shown."""
        entries = self.outbox.apply(self.replica.messages, self.replica)
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
        """Show the conversation, followed by local additions that it does not contain.

        A system message is not added again if the conversation has one with the same text.
        """
        with self._history._lock:
            unsaved, sent = self.unsaved, self.conversation_id is not None
            self._begin(conversation_id)
            self._use(snapshot)
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
        """Save to a conversation that was not read: all entries are new to it, and those that are not stored yet."""
        with self._history._lock:
            entries = self._history._entries if self.conversation_id is not None else self._early
            if self._hidden:
                stored = self.outbox.apply(self.replica.messages, self.replica)
                entries = [one for one in stored if one.id not in self._left_out]
            self._begin(conversation_id)
            for message in stamped(entries):  # a summary is newer than what follows it
                self.outbox.put(Add(message, len(encode_body(message))))
                if message.id not in self._history._ids:
                    self._hidden.add(message.id)

    def _use(self, snapshot: Snapshot) -> None:
        self.replica.begin(snapshot.messages, snapshot.cursor, whole=len(snapshot.messages) == snapshot.message_count)
        self._seen = snapshot.cursor.revision
        self._own.clear()

    # Following

    def changes_by_others(self) -> Steps[None]:
        """Read the changes after the last known one, or the whole conversation if they are not enough."""
        conversation_id = self.bound_id
        while (cursor := self.cursor) is not None:
            with self._history._lock:
                acknowledged = self.outbox.newest_revision  # before the read: its reply may lack later ones
            changes = yield ReadChanges(conversation_id, cursor)
            event = self.apply(changes.events)
            if event is not None:
                reason = event.reason if isinstance(event, Reset) else None
                if (yield from self._read_whole(reason)):
                    return
            elif not changes.more:
                known = self.cursor
                if known is not None and acknowledged > known.revision:  # the conversation was deleted since
                    yield from self._read_whole("conversation_missing")
                return
        yield from self._read_whole()

    def _read_whole(self, reason: str | None = None) -> Steps[bool]:
        with self._history._lock:
            acknowledged = [change for change in self.outbox if change.revision is not None]
        snapshot = yield from read_whole(self.bound_id)
        return self.read_again(snapshot, reason, acknowledged)

    def read_again(
        self, snapshot: Snapshot, reason: str | None = None, acknowledged: Sequence[PendingChange] | None = None
    ) -> bool:
        """Replace the replica by a snapshot; unsaved changes stay. `reason` is that of a Reset.

        `acknowledged`: the changes that the store had acknowledged before the snapshot was read; None: all of them.
        False, and no change, if newer changes are applied already, unless a Reset says that the server lost them.
        """
        history, revision = self._history, snapshot.cursor.revision
        with history._lock:
            known = self.replica.cursor
            ended = reason in _ENDED
            continues = (
                known is not None and known.epoch == snapshot.cursor.epoch and reason != "server_rewound" and not ended
            )
            if continues and known is not None and revision < known.revision:
                return False
            shown = history._ids | self._left_out
            seen, own = self._seen, set(self._own)
            self._use(snapshot)
            if continues and seen > revision:  # own changes whose events have not arrived
                self._seen = seen
                self._own |= {one for one in own if one > seen}
            for change in self.outbox:
                if self._contains(snapshot.cursor, change):
                    self._arrived(change)
                elif reason == "server_rewound":  # the server may have lost it: it is sent again
                    self.outbox.acknowledge(change, None)
                elif change.arrived and ended:
                    self._remove(change)
                elif change.revision is None:
                    continue
                elif change.revision <= revision or (ended and (acknowledged is None or change in acknowledged)):
                    self._remove(change)  # unless it was made in a new conversation after the snapshot
            history._void_reductions()
            for message in self.replica.messages:
                if message.id not in shown:
                    history._listeners.post("entry", message)
            self._compose()
            self._wake()
        return True

    def _contains(self, head: Cursor, change: PendingChange) -> bool:
        """Whether the state of the store that was read contains a change."""
        if isinstance(change, Add):
            return change.message.id in self.replica
        return isinstance(change, Rewrite) and is_of_call(head, change.token)

    def apply(self, found: Iterable[Event]) -> Event | None:
        """Apply events. Returns the one after which the conversation must be read again, if there is one."""
        with self._history._lock:
            for event in found:
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
        is_own = self._remove_arrived(event)
        if is_own:
            self._acknowledged(event.revision)
        known = event.revision <= self._seen
        self._own.discard(event.revision)
        self._seen = max(self._seen, event.revision)
        while self._seen + 1 in self._own:
            self._own.remove(self._seen + 1)
            self._seen += 1
        if not known and not is_own:
            self._post(event)
        return True

    def _remove_arrived(self, event: Event) -> bool:
        """Take the changes that arrive with an event out of the outbox. Whether the event is that of an own change."""
        is_own = False
        arrived = {message.id for message in event.messages} if isinstance(event, events.MessagesAppended) else set()
        by_others = set(arrived)
        for change in self.outbox:
            if change.arrived:
                continue
            if isinstance(change, Add) and change.message.id in arrived:
                by_others.discard(change.message.id)
                is_own = not by_others or change.revision == event.revision
            elif isinstance(change, Compaction) and isinstance(event, events.HistoryCompacted):
                if event.summary_id != change.summary.id:
                    continue
                is_own = True
            elif isinstance(change, Rewrite) and is_of_call(event.cursor, change.token):
                is_own = True
            elif change.revision is not None and change.revision <= event.revision:
                # A message that was stored before may have the revision of a change by others that stored it anew.
                made = not isinstance(change, Add) or isinstance(event, events.MessagesAppended)
                is_own = is_own or (made and change.revision == event.revision)
            else:
                continue
            self._arrived(change)
        return is_own

    def _post(self, event: Event) -> None:
        """Post a change by others."""
        post = self._history._listeners.post
        if isinstance(event, events.MessagesAppended | events.ReplyEnded):
            for message in event.messages if isinstance(event, events.MessagesAppended) else [event.message]:
                if message is not None and message.id not in self._history._ids and message.id in self.replica:
                    post("entry", message)
        elif isinstance(event, events.MessagesDeleted | events.MessageUpdated):
            if self._history._reducing:
                names = [event.message_id] if isinstance(event, events.MessageUpdated) else event.message_ids
                self._history._withdrawn.update(names)
        elif isinstance(
            event, events.HistoryCleared | events.ConversationDeleted | events.HistoryCompacted | events.HistoryRestored
        ):
            self._history._void_reductions()
            if isinstance(event, events.HistoryRestored):
                post("restore", list(self.replica.messages))
            elif not isinstance(event, events.HistoryCompacted):
                post("clear")

    # Saving

    def next(self) -> list[Add] | Rewrite | None:
        with self._history._lock:
            return self.outbox.next()

    def without_deleted(self, adds: Iterable[Add]) -> list[Add]:
        """The messages to send in a new call: not those that the store had, and that others have removed since."""
        with self._history._lock:
            deleted = [add for add in adds if add.arrived and add.message.id not in self.replica and self.replica.whole]
            for add in deleted:
                self._remove(add)
            return [add for add in adds if add not in deleted]

    def appended(self, adds: Sequence[Add], outcomes: Sequence[Appended]) -> int:
        """The store has acknowledged messages. Returns how many of them were new to it."""
        with self._history._lock:
            for revision in {outcome.revision for outcome in outcomes if not outcome.duplicate}:
                self._acknowledged(revision)
            applied = 0 if self.replica.cursor is None else self.replica.cursor.revision
            for add, outcome in zip(adds, outcomes, strict=True):
                if add in self.outbox:  # otherwise its event was faster
                    self.outbox.acknowledge(add, outcome.revision)
                    add.message = outcome.message
                    if outcome.revision <= applied:
                        self._remove(add)  # the replica is newer: if it lacks the message, others have removed it
            self._compose()
        return sum(not outcome.duplicate for outcome in outcomes)

    def rewritten(self, change: Rewrite, revision: int, *, changed: bool) -> None:
        """The store has made a rewrite, and is at this revision."""
        with self._history._lock:
            self.outbox.acknowledge(change, revision)
            if changed:
                self._acknowledged(revision)
            cursor = self.replica.cursor
            if not changed or (cursor is not None and revision <= cursor.revision):
                self._remove(change)
            self._compose()

    def _acknowledged(self, revision: int) -> None:
        for change in self.outbox:
            waits = change.revision is None and not change.arrived
            if isinstance(change, Rewrite) and waits and change.seen == revision - 1:
                change.seen = revision
        if revision == self._seen + 1:
            self._seen = revision
        elif revision > self._seen:
            self._own.add(revision)

    def rejected(self, changes: Iterable[PendingChange]) -> None:
        """Give up changes that can never be made."""
        with self._history._lock:
            for change in changes:
                self._remove(change)
            self._compose()
