"""A following history ends equal to the store, in whatever order replies and events arrive."""

from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history import Event, HistoryStore, Message, Reset, user
from redis_history.agents.history._outbox import Rewrite
from redis_history.errors import (
    CompactionConflictError,
    MessageConflictError,
    MessageNotFoundError,
    RevisionConflictError,
)
from redis_history.store.memory.backend import MemoryBackend
from redis_history.store.operations import Clear, ReadChanges
from redis_history.store.operations.append import Restore
from redis_history.store.writes import Precondition
from tests.support.histories import Dropping, Synced

TIMES = st.sampled_from([None, None, None, "1999-01-01", "2200-01-01"])


class Following(stateful.RuleBasedStateMachine):
    """One history, driven as `RedisHistory` drives it, but step by step; others write to the same store."""

    max_length: int | None = None
    reduces = False

    @stateful.initialize(
        before=st.integers(0, 4),
        log_length=st.sampled_from([3, 1000]),
        cap=st.sampled_from([None, None, 3, 6]),
        company=st.booleans(),
        confirms=st.booleans(),
    )
    def begin(self, before: int, log_length: int, cap: int | None, company: bool, confirms: bool) -> None:
        self.company = company
        self.store = HistoryStore(backend=MemoryBackend(max_messages=cap, log_length=log_length))
        self.numbers = count()
        for _ in range(before):
            self.store.append("c", self._message())
        self.history = Synced(max_unsaved=1000, max_length=self.max_length, confirms=confirms)
        self.syncer = self.history.syncer
        self.syncer.load("c", self.store.snapshot("c"))
        self.syncer.following = True
        self.in_flight: Any = None
        self.outcome: Any = None
        self.alone = True  # nobody else has written, and no answer was lost
        self.snapshot: Any = None
        self.replaced = False
        self.events: Any = None
        self.reached: Any = self.syncer.cursor
        self.announced: list[str] = [entry.id for entry in self.history.entries]
        self.history.use(Dropping())
        self.history.on("change", self._no_step_back)
        self.history.on("entry", lambda message: self.announced.append(message.id))
        self.history.on("restore", lambda messages: self.announced.extend(message.id for message in messages))

    def _message(self, time: str | None = None) -> Message:
        number = next(self.numbers)
        return user(str(number), id=str(number), timestamp=time)

    def _no_step_back(self) -> None:
        before, self.reached = self.reached, self.syncer.cursor
        if before.epoch == self.reached.epoch:
            assert before.revision <= self.reached.revision

    # Here

    @stateful.rule(time=TIMES)
    def add(self, time: str | None) -> None:
        self.history.add_entry(self._message(time))

    @stateful.rule(keep=st.integers(0, 3), more=st.integers(0, 2))
    def restore(self, keep: int, more: int) -> None:
        kept = self.history.entries[len(self.history) - keep :]
        self.history.restore([*kept, *(self._message() for _ in range(more))])

    @stateful.rule()
    def clear(self) -> None:
        self.history.clear()

    @stateful.precondition(lambda self: self.reduces)
    @stateful.rule(size=st.integers(1, 4))
    def reduce(self, size: int) -> None:
        self.history.reduce(max_entries=size)

    # By others

    others = stateful.precondition(lambda self: self.company)

    @others
    @stateful.rule(time=TIMES, size=st.integers(1, 3))
    def others_append(self, time: str | None, size: int) -> None:
        self.alone = False
        self.store.append_many("c", [self._message(time) for _ in range(size)])

    @others
    @stateful.rule(index=st.integers(0, 5))
    def others_delete(self, index: int) -> None:
        self.alone = False
        stored = self.store.get("c")
        self.store.delete_messages("c", [message.id for message in stored[index : index + 1]])

    @others
    @stateful.rule(index=st.integers(0, 5))
    def others_update(self, index: int) -> None:
        self.alone = False
        for message in self.store.get("c")[index : index + 1]:
            self.store.update_message("c", replace(message, parts=user("changed").parts))

    @others
    @stateful.rule()
    def others_clear(self) -> None:
        self.alone = False
        self.store.clear("c")

    @others
    @stateful.rule()
    def others_restore(self) -> None:
        self.alone = False
        self.store.restore("c", [self._message(), *self.store.get("c")[-2:]])

    @others
    @stateful.rule(index=st.integers(1, 5))
    def others_compact(self, index: int) -> None:
        self.alone = False
        replaced = self.store.get("c")[:index]
        if len(replaced) > 1:
            with suppress(CompactionConflictError):  # messages came before the summary that stands
                self.store.compact("c", through=replaced[-1], summary="summary", seen=replaced)

    @others
    @stateful.rule()
    def others_expand(self) -> None:
        for message in self.store.get("c")[:1]:
            if message.is_summary:
                self.alone = False
                with suppress(MessageNotFoundError):  # a summary that was restored replaces nothing
                    self.store.expand("c", message.id)

    @others
    @stateful.rule(again=st.booleans())
    def others_delete_the_conversation(self, again: bool) -> None:
        self.alone = False
        self.replaced = True
        self.store.delete_conversation("c")
        if again:
            self.store.append("c", self._message())

    # Calls and replies

    @stateful.precondition(lambda self: self.in_flight is None)
    @stateful.rule()
    def send(self) -> None:
        self.in_flight = self.syncer.next()
        if self.in_flight is not None:
            self.outcome = self._do(self.in_flight)

    def _do(self, step: Any) -> Any:
        try:
            if not isinstance(step, Rewrite):
                return self.store.append_many("c", [add.message for add in step])
            op: Any = Clear("c", precondition=Precondition.of(step.seen))
            if step.target:
                op = Restore.of("c", step.target, expected_revision=step.seen)
            return self.store._write(replace(op, token=step.token))
        except (RevisionConflictError, MessageConflictError) as error:
            return error

    @stateful.precondition(lambda self: self.in_flight is not None)
    @stateful.rule()
    def acknowledge(self) -> None:
        step, outcome = self.in_flight, self.outcome
        self.in_flight = None
        if isinstance(outcome, RevisionConflictError):
            assert not self.alone, "a conflict with oneself"
            self.syncer.rejected([step])
        elif isinstance(outcome, MessageConflictError):  # stored by an attempt without an answer, and edited since
            assert not self.alone, "a conflict with oneself"
            self.syncer.rejected([add for add in step if add.message.id == outcome.message_id])
        elif not isinstance(step, Rewrite):
            self.syncer.appended(step, outcome)
        else:
            self.syncer.rewritten(step, outcome, changed=outcome != step.seen)

    @stateful.precondition(lambda self: self.company and self.in_flight is not None)
    @stateful.rule()
    def lose_the_answer(self) -> None:
        self.alone = False
        if isinstance(self.in_flight, Rewrite):
            self.in_flight.uncertain = True
        self.in_flight = None

    @stateful.rule(limit=st.integers(1, 5))
    def receive(self, limit: int) -> None:
        self._receive(self._changes(limit))

    def _receive(self, events: list[Event]) -> None:
        for event in events:
            gap = self.syncer.apply([event])
            if gap is not None:
                # A snapshot is used immediately here. `use_the_snapshot` uses an older one.
                reason = gap.reason if isinstance(gap, Reset) else None
                assert self.syncer.read_again(self.store.snapshot("c"), reason)
                break

    @stateful.rule(limit=st.integers(1, 5))
    def read_changes(self, limit: int) -> None:
        self.events = self._changes(limit)

    @stateful.precondition(lambda self: self.events is not None)
    @stateful.rule()
    def receive_late_events(self) -> None:
        """They may be outdated, or of another generation of the conversation."""
        events, self.events = self.events, None
        if not any(isinstance(event, Reset) for event in events):
            self._receive(events)

    @stateful.rule()
    def read_all(self) -> None:
        self.snapshot = self.store.snapshot("c")

    @stateful.precondition(lambda self: self.snapshot is not None)
    @stateful.rule()
    def use_the_snapshot(self) -> None:
        snapshot, self.snapshot = self.snapshot, None
        known = self.syncer.cursor
        if snapshot.cursor.epoch == known.epoch:  # a driver uses no snapshot of an earlier generation
            assert self.syncer.read_again(snapshot) == (snapshot.cursor.revision >= known.revision)

    def _changes(self, limit: int) -> list[Event]:
        cursor = self.syncer.cursor
        assert cursor is not None
        return self.store._backend.execute(ReadChanges("c", cursor, limit)).events

    # Invariants

    @stateful.invariant()
    def no_entry_is_twice(self) -> None:
        if hasattr(self, "history"):
            self.history._listeners.deliver()
            ids = [entry.id for entry in self.history.entries]
            assert len(set(ids)) == len(ids)
            waiting = [step for step in self.syncer.outbox if step.revision is None]
            assert self.syncer.outbox.count == len(waiting)
            assert self.syncer.outbox.size == sum(step.size for step in waiting)

    def teardown(self) -> None:
        if not hasattr(self, "history"):
            return
        if self.in_flight is not None:
            self.acknowledge()
        for _ in range(1000):
            self.send()
            if self.in_flight is None:
                break
            self.acknowledge()
        while self._changes(100):
            self.receive(100)
        if self.syncer.outbox.newest_revision > self.syncer.cursor.revision:
            self.syncer.read_again(self.store.snapshot("c"), "conversation_missing")
        self.history._listeners.deliver()
        stored = self.store.get("c")
        if self.reduces:
            assert all(entry in stored for entry in self.history.entries)
        elif self.max_length is None:
            assert self.history.entries == stored
        else:
            assert len(self.history) <= self.max_length
            places = [stored.index(entry) for entry in self.history.entries]
            assert places == sorted(places)
        assert list(self.syncer.outbox) == []
        assert (self.syncer.outbox.count, self.syncer.outbox.size) == (0, 0)
        if not self.replaced:
            assert {entry.id for entry in self.history.entries if not entry.is_summary} <= set(self.announced)
        self.store.close()


class Bounded(Following):
    max_length = 4


class Reduced(Following):
    reduces = True


@pytest.mark.parametrize("machine", [Following, Bounded, Reduced])
def test_a_history_that_follows_ends_as_what_is_stored(machine: type[Following]) -> None:
    stateful.run_state_machine_as_test(machine, settings=settings(stateful_step_count=40, deadline=None))


def test_others_restore_a_message_whose_answer_was_lost() -> None:
    """The repeated append says the revision of their change, which is reported nevertheless."""
    steps = Following()
    steps.begin(before=0, log_length=1000, cap=None, company=True, confirms=False)
    steps.add(time=None)
    steps.send()
    steps.lose_the_answer()
    steps.others_restore()
    steps.teardown()
