# Generated from ../_async by scripts/unasync: do not edit.
"""The messages of a conversation as a run sees them: its own, and those that others append during the run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from redis_history.store import operations as ops
from redis_history.store.operations.page import PAGE, next_page
from redis_history.values import Message
from redis_history.values.events import Cursor, Event, Reset
from redis_history.values.folding import fold_of
from redis_history.values.pairs import open_calls
from redis_history.values.parts import ToolUsePart

#: Messages in which open calls are searched first.
_FIRST_LOOK: Final = 500
#: Messages that may come between the beginning of a run and the first read.
_NEWEST: Final = 20
#: Messages that the end of a run names as answered, too.
_MOST_TAKEN: Final = 1000


@dataclass(eq=False, slots=True)
class _Attempt:
    """A message that the run tries to add, or whose outcome it does not know. `met`: the stored message of this id and
    content, which was met in the meantime."""

    body: bytes
    met: Message | None = None


class RunMessages:
    """The messages that a run has written, the messages it has read, and the calls that are still open."""

    def __init__(self, backend: Any, conversation_id: str) -> None:
        self._backend = backend
        self._conversation_id = conversation_id
        self._own: set[str] = set()
        self._attempts: dict[str, _Attempt] = {}
        #: Ids of own messages with tool calls.
        self.calling: set[str] = set()
        self._cursor: Cursor | None = None  # up to which `of_others` has read
        self._newest = 0  # the newest sequence that it has seen
        self._newest_at: datetime | None = None  # the time of the newest message when the run began
        self._returned: dict[str, None] = {}  # in order
        self._growing: set[str] = set()  # ids of the replies that it has seen before their end
        self._late: list[Message] = []  # to return: taken for own ones until an attempt was refused, or early

    def begin(self, first: int = 0) -> None:
        """`first`: the first sequence that came after the run was taken with a turn."""
        op = ops.ReadHead(self._conversation_id, _NEWEST) if first else ops.ReadHead(self._conversation_id, 1, "none")
        head = self._backend.execute(op)
        self._cursor = head.cursor
        for message in head.newest.messages:
            self._newest, self._newest_at = message.sequence or 0, message.timestamp
            if first and self._newest >= first:
                if message.status == "streaming":
                    self._growing.add(message.id)
                else:
                    self._late.append(message)

    # Own messages

    def trying(self, entries: Collection[ops.Entry]) -> None:
        """Note that the run begins to write these messages. Others may have stored a message with the same id
        before."""
        for entry in entries:
            self._attempts.setdefault(entry.message.id, _Attempt(entry.body))
            self.note_calls(entry.message)

    def stored(self, outcomes: Collection[ops.Appended | ops.Entry]) -> None:
        """They are stored; a duplicate was stored before, by others unless the run knows it already."""
        for outcome in outcomes:
            own = isinstance(outcome, ops.Entry) or not outcome.duplicate
            self._settle_attempt(outcome.message.id, own=own)

    def refused(self, entries: Collection[ops.Entry]) -> None:
        """Note that none of these messages was written."""
        for entry in entries:
            self._settle_attempt(entry.message.id, own=False)

    def _settle_attempt(self, message_id: str, *, own: bool) -> None:
        attempt = self._attempts.pop(message_id, None)
        if own:
            self._own.add(message_id)
        elif attempt is not None and attempt.met is not None and message_id not in self._own:
            self._late.append(attempt.met)

    def note_calls(self, message: Message) -> None:
        if any(type(part) is ToolUsePart for part in message.parts):
            self.calling.add(message.id)

    def _is_own(self, message: Message) -> bool:
        if message.id in self._own:
            return True
        attempt = self._attempts.get(message.id)
        if attempt is None or attempt.body != ops.Entry.of(replace(message, timestamp=None)).body:
            return False
        attempt.met = message
        return True

    # Messages of others

    @property
    def taken_up(self) -> tuple[str, ...]:
        """The ids of the messages of others that `of_others` has returned, at most the last 1,000."""
        return tuple(self._returned)[-_MOST_TAKEN:]

    def interrupted_since(self, start: int, end: int) -> Message | None:
        """The newest message of an assistant that was interrupted, with start <= sequence < end."""
        op: ops.ReadPage | None = ops.ReadPage(self._conversation_id, _FIRST_LOOK, newest=True, contents="none")
        while op is not None:
            page = self._backend.execute(op)
            own = [one for one in page.messages if start <= (one.sequence or 0) < end]
            for message in sorted(own, key=lambda one: one.sequence or 0, reverse=True):
                if message.role == "assistant" and message.status == "interrupted":
                    [found] = self._backend.execute(ops.ReadContents(self._conversation_id, (message,)))
                    return found  # type: ignore[no-any-return]
            if own and len(own) < len(page.messages):
                return None
            op = next_page(op, page, PAGE)
        return None

    def of_others(self) -> list[Message]:
        """See `Run.messages`."""
        assert self._cursor is not None  # noqa: S101
        found: dict[str, Message] = {}
        cursor, newest = self._cursor, self._newest
        while True:
            changes = self._backend.execute(ops.ReadChanges(self._conversation_id, cursor))
            for event in changes.events:
                if isinstance(event, Reset):
                    messages = self._after_reset(newest)
                else:
                    messages = [one for one in self._brought_by(event) if not self._was_seen(one, newest, found)]
                for message in messages:
                    newest = max(newest, message.sequence or 0)
                    if message.status == "streaming":
                        self._growing.add(message.id)
                    elif not self._is_own(message):
                        found[message.id] = message
                cursor = event.cursor
            if not changes.more:  # and no read has failed
                break
        self._cursor, self._newest = cursor, newest
        late, self._late = self._late, []
        found = {one.id: one for one in late} | found
        self._returned.update(dict.fromkeys(found))
        self._growing.difference_update(found)
        return list(found.values())

    def _brought_by(self, event: Event) -> Iterator[Message]:
        fold = fold_of(event)
        if fold is not None:
            yield from filter(self._is_new, fold.added) if fold.clears else fold.added
            yield from fold.ended

    def _was_seen(self, message: Message, newest: int, found: Collection[str]) -> bool:
        """Whether an earlier call, or a read after a Reset, has returned this message already."""
        return (message.sequence or 0) <= newest and (message.id in self._returned or message.id in found)

    def _after_reset(self, newest: int) -> list[Message]:
        """The messages after this sequence, by their sequences, including archived messages. In a history that was
        restored in the meantime, all messages came after it, so their times decide."""
        came: list[Message] = []
        restored = True
        op: ops.ReadPage | None = ops.ReadPage(self._conversation_id, PAGE, newest=False, archived=True)
        while op is not None:
            page = self._backend.execute(op)
            for message in page.messages:
                if message.id in self._growing or (message.sequence or 0) > newest:
                    came.append(message)
                else:
                    restored = False
            op = next_page(op, page, PAGE)
        return sorted(
            (
                one
                for one in came
                if not one.is_summary and (one.id in self._growing or not restored or self._is_new(one))
            ),
            key=lambda one: one.sequence or 0,
        )

    def _is_new(self, message: Message) -> bool:
        """Whether a message that got a new sequence, in a restore, was added by it or during the run."""
        if message.id in self._returned:
            return False
        return self._newest_at is None or message.timestamp is None or message.timestamp > self._newest_at

    # Open calls

    def own_open_calls(self) -> list[tuple[Message, list[ToolUsePart]]]:
        """The messages of this run with tool calls that still lack a result, and these calls."""
        wanted = self.calling & (self._own | self._attempts.keys())
        return self._open_calls(lambda message: message.id in wanted, len(wanted))

    def open_calls_between(self, start: int, end: int) -> list[tuple[Message, list[ToolUsePart]]]:
        """The same of the messages with start <= sequence < end."""
        return self._open_calls(lambda message: start <= (message.sequence or 0) < end, end - start)

    def _open_calls(self, is_wanted: Any, count: int) -> list[tuple[Message, list[ToolUsePart]]]:
        """`count`: how many messages may be wanted. Pages are read from the newest one back to the last of them,
        because others may have appended any number of messages, and a message may have any time."""
        pages: list[list[Message]] = []
        op: ops.ReadPage | None = ops.ReadPage(self._conversation_id, _FIRST_LOOK, newest=True, contents="none")
        while op is not None and count > 0:
            page = self._backend.execute(op)
            count -= sum(map(is_wanted, page.messages))
            pages.append([message for message in page.messages if message.tool_uses or message.tool_results])
            op = next_page(op, page, PAGE)
        found = open_calls([message for page in reversed(pages) for message in page])
        return [(message, calls) for message, calls in found if is_wanted(message) and message.status != "streaming"]
