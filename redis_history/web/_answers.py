"""The answer of a run as it is written, for protocols that stream it to a browser.

Answers are not stored separately. An answer consists of messages of the conversation, including the live reply, and the
run states when it is complete. So any number of readers in any process can follow it from its start at any time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

from msgspec import Struct, msgpack

from redis_history.errors import BackendUnavailableError
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.values import Message, Position, events
from redis_history.values.folding import Fold, fold_of
from redis_history.values.runs import RunInfo, RunStatus
from redis_history.values.times import to_microseconds

#: A timeout for events that were read already; with 0 a subscription reads again.
_NO_TIME: Final = 1e-6
#: Seconds in which a run becomes known that was just asked for; it may also be refused.
_SOON: Final = 2.0
#: Messages of one answer.
_MOST: Final = 1000
#: Bytes of the messages that a client gets, by default.
SIZE: Final = 16_000_000
#: Messages of one read, each of which may be as large as a message can be.
_PAGE: Final = 20
_ROLES: Final = ("assistant", "tool")
#: The text for a user whose answer is not complete, by the status of the run.
ERRORS: Final = {
    "failed": "The agent failed before its answer was complete.",
    "interrupted": "The answer was interrupted. Ask again to get a new one.",
}


async def newest_messages(
    store: AsyncHistoryStore,
    conversation_id: str,
    is_enough: Callable[[list[Message]], bool] | None = None,
    *,
    most: int = _MOST,
    size: int = SIZE,
) -> tuple[list[Message], bool]:
    """The newest messages of a conversation, ascending, and whether there may be more: at most `most`, and at most
    `size` bytes together, but at least one message. Reads backwards until `is_enough(messages)`."""
    found: list[Message] = []
    while len(found) < most:
        count = min(_PAGE, most - len(found))
        page = await store.get(conversation_id, limit=count, before=found[0].position if found else None)
        for at, message in enumerate(reversed(page)):
            size -= len(msgpack.encode(message))
            if size < 0 and (at or found):
                return page[len(page) - at :] + found, True
        found = page + found
        if len(page) < count:
            return found, False
        if is_enough is not None and is_enough(found):
            break
    return found, True


class Answer(Struct):
    """An answer as it is now: the messages of role assistant and tool since its start, ascending. `run` is None before
    it begins. `done`: nothing follows. `precedes(message)`: whether another message of the conversation belongs to it
    without being part of the answer, or of a former answer, which this one replaces. `ended`: how it ended, if its run
    does not say so."""

    messages: list[Message]
    run: RunInfo | None
    done: bool
    precedes: Callable[[Message], bool]
    ended: RunStatus | None = None

    @property
    def end(self) -> RunStatus:
        """How an answer that is done has ended."""
        if self.ended is not None:
            return self.ended
        return "interrupted" if self.run is None or self.run.is_active else self.run.status


async def follow_answer(
    store: AsyncHistoryStore,
    conversation_id: str,
    *,
    run_id: str | None = None,
    after: Position | None = None,
    whole: bool = False,
    replaces: bool = False,
    since: RunInfo | None = None,
    heartbeat: float = 10.0,
) -> AsyncIterator[Answer]:
    """The states of an answer from its start: at each change, and every `heartbeat` seconds.

    `run_id`: of this run, which may still wait for its turn; None: of the active run, without one nothing. `after`: the
    position of the message that it answers; None: the answer began with its run. `whole`: with what former runs have
    written after that; `replaces`: it replaces that. `since`: the run of its first attempt, with which it begins. A
    run that disappears, because the conversation expires or is deleted, and a run that never begins end the answer,
    too.
    """
    async with store.subscribe(conversation_id) as changes:
        # The first read tells the subscription which run there is; later ones are events.
        event = await changes.get(0)
        run = await store.get_run(conversation_id)
        if run_id is None:
            if run is None or not run.is_active:
                return
            run_id = run.run_id
        follower = _Follower(store, conversation_id, run_id, after, whole=whole, replaces=replaces, since=since)
        if run is not None:
            await follower.see(run)
        while True:
            while event is not None and not follower.done:
                await follower.apply(event)
                # The subscription reports which run wrote the last events only after all of them.
                event = await changes.get(heartbeat if changes.is_behind else _NO_TIME)
            yield follower.answer
            if follower.done:
                return
            event = await changes.get(heartbeat if follower.is_known else min(heartbeat, _SOON))
            if event is None:
                with suppress(BackendUnavailableError):  # it looks again
                    await follower.look()


class _Follower:
    def __init__(
        self, store: AsyncHistoryStore, conversation_id: str, run_id: str, after: Position | None, *, whole: bool,
        replaces: bool, since: RunInfo | None,
    ) -> None:  # fmt: skip
        self._store = store
        self._conversation_id = conversation_id
        self._run_id = run_id
        self._after = after
        self._whole, self._replaces, self._first = whole, replaces, since
        self._known: dict[str, Message] = {}
        self._run: RunInfo | None = None
        self._next: RunInfo | None = None  # the run that began after it
        self._waited = False
        self.done = False

    @property
    def is_known(self) -> bool:
        """Whether the run has begun, or waits."""
        return self._run is not None or self._waited

    @property
    def answer(self) -> Answer:
        known = self._known.values() if self._run is not None else ()
        messages = sorted(known, key=lambda one: one.position or Position(0, 0))
        return Answer(messages, self._run, self.done, self._precedes)

    def _precedes(self, message: Message) -> bool:
        return self._is_apart(message) or (self._is_older(message) and not self._replaces)

    def _is_apart(self, message: Message) -> bool:
        if message.role not in _ROLES or message.position is None or message.is_summary:
            return True
        return self._after is not None and message.position <= self._after

    def _is_older(self, message: Message) -> bool:
        run = self._first or self._run
        if run is None or message.timestamp is None:
            return False
        return message.timestamp < run.started_at or _is_before(message, run)  # a restore stores old messages anew

    def _belongs(self, message: Message) -> bool:
        if self._is_apart(message) or (self._next is not None and not _is_before(message, self._next)):
            return False
        return self._whole or not self._is_older(message)

    async def apply(self, event: events.Event) -> None:
        match event:
            case events.RunChanged(run=run):
                await self.see(run)
            case events.Reset():
                self._known.clear()
                if self.is_known:
                    await self.look(again=True)
            case events.ReplyGrew():
                before = self._known.get(event.message_id)
                if before is not None and before.status == "streaming":  # else it was read when it had ended
                    self._known[event.message_id] = event.applied_to(before)
            case events.HistoryCleared():
                self._known.clear()
            case events.ConversationDeleted():
                self.done = True
            case _:
                self._fold(fold_of(event))

    def _fold(self, fold: Fold | None) -> None:
        if fold is None:  # a compaction or an expansion, which change no message of the answer
            return
        # The known messages may be newer than the event. So a restore, too, only adds messages.
        self._known = {one.id: one for one in fold.added if self._belongs(one)} | self._known
        self._known |= {one.id: one for one in (*fold.ended, *fold.changed) if one.id in self._known}
        for message_id in fold.removed:
            self._known.pop(message_id, None)

    async def look(self, *, again: bool = False) -> None:
        """Read the newest run, and `again` the messages. A run that is gone, or that never began, causes no event."""
        run = await self._store.get_run(self._conversation_id)
        if run is not None:
            ended = not (run.is_active and run.run_id == self._run_id)  # events of its last messages may be missing
            await self.see(run, again=again or ended)
        if run is None or not (run.run_id == self._run_id or self._waits(run)):
            self.done = True

    async def see(self, run: RunInfo, *, again: bool = False) -> None:
        """The newest run of the conversation. `again`: read the messages that are known, too."""
        own = next((one for one in (run, *run.former) if one.run_id == self._run_id), None)
        if own is not None and (again or self._run is None):
            since = self._after
            if since is None and not self._whole:
                since = Position(to_microseconds((self._first or own).started_at), 0)
            messages = await self._store.get(self._conversation_id, limit=_MOST, since=since)
            # A run that has begun in the meantime may have written some of the messages.
            run = await self._store.get_run(self._conversation_id) or run
            stored = {one.id: one for one in messages}
            # Further events go on from what the last ones said, which may be less than what is stored.
            self._known = stored | self._known if own.is_active else stored
        if own is not None:
            self._run, self.done = own, not own.is_active
        elif self._waits(run):
            self._waited = True
        elif self.is_known:  # it has left the queue, or too many runs have followed it
            self.done = True
        self._next = self._following(run) if self._run is not None else None
        self._known = {one.id: one for one in self._known.values() if self._belongs(one)}

    def _following(self, newest: RunInfo) -> RunInfo | None:
        """The first known run after this one."""
        found = None
        for run in (newest, *newest.former):
            if run.run_id == self._run_id:
                break
            found = run
        return found

    def _waits(self, run: RunInfo) -> bool:
        return any(place.run_id == self._run_id for place in run.waiting)


def _is_before(message: Message, run: RunInfo) -> bool:
    """Whether a message was stored before a run began."""
    return message.sequence is not None and message.sequence < run.first_sequence
