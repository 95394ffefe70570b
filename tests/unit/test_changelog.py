"""Recovery of a subscriber: all of the gap, or one Reset with its reason. Never a silent gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.store.changelog import Kind, LogEntry, recover
from redis_history.store.operations import Changes
from redis_history.values import user
from redis_history.values.events import ANEW, BEGINNING, Cursor, Reset

LIMIT = 100


def token(revision: int, life: int = 1) -> str:
    return f"{life:08x}{revision:012x}"


def cursor(revision: int, life: int = 1, *, rewound: bool = False) -> Cursor:
    """The cursor after a change; `rewound`: after a change that the server lost."""
    return Cursor(f"{life:016x}", revision, "f" * 20 if rewound else token(revision, life))


def entry(revision: int, life: int = 1) -> LogEntry:
    return LogEntry(revision, token(revision, life), Kind.APPENDED_ONE, (user("x", id=f"m{revision}"),))


def end(revision: int, life: int = 1) -> LogEntry:
    return LogEntry(revision, token(revision, life), Kind.ENDED)


def tombstone(revision: int, life: int = 1) -> Cursor:
    """The head of a conversation that was deleted while its log is still there."""
    return Cursor(BEGINNING.epoch, revision, token(revision, life))


def entries(first: int, last: int, life: int = 1) -> list[LogEntry]:
    return [entry(revision, life) for revision in range(first, last + 1)]


def revisions(changes: Changes) -> list[int]:
    return [event.revision for event in changes.events]


# (cursor of the subscriber, newest change, log from its own revision on, revisions of the events).
EVENTS: dict[str, tuple[Cursor, Cursor, list[LogEntry], list[int]]] = {
    "nothing new": (cursor(5), cursor(5), [entry(5)], []),
    "one": (cursor(5), cursor(6), entries(5, 6), [6]),
    "several": (cursor(1), cursor(5), entries(1, 5), [2, 3, 4, 5]),
    "from the beginning": (BEGINNING, cursor(3), entries(1, 3), [1, 2, 3]),
    "nothing was ever there": (BEGINNING, BEGINNING, [], []),
    "its end": (cursor(2), tombstone(3), [entry(2), end(3)], [3]),
    "all of a life that ended": (BEGINNING, tombstone(2), [entry(1), end(2)], [1, 2]),
    "after its end": (cursor(3), tombstone(3), [end(3)], []),
    "began at a tombstone": (tombstone(3), tombstone(3), [end(3)], []),
}


@pytest.mark.parametrize("case", EVENTS)
def test_changes_after_a_cursor(case: str) -> None:
    after, head, log, found = EVENTS[case]
    changes = recover("c", after, head, log, LIMIT)
    assert revisions(changes) == found
    assert not changes.more
    assert not any(isinstance(event, Reset) for event in changes.events)


RESET: dict[str, tuple[Cursor, Cursor, list[LogEntry], str]] = {
    "its own change is trimmed": (cursor(5), cursor(20), entries(10, 20), "log_trimmed"),
    "only its own change is trimmed": (cursor(5), cursor(6), [entry(6)], "log_trimmed"),
    "all of the log is trimmed": (cursor(5), cursor(20), [], "log_trimmed"),
    "a change inside is missing": (cursor(5), cursor(8), [entry(5), entry(6), entry(8)], "log_trimmed"),
    "the next change is missing": (cursor(5), cursor(7), [entry(5), entry(7)], "log_trimmed"),
    "the first change is trimmed": (BEGINNING, cursor(9), entries(2, 9), "log_trimmed"),
    "nothing is left for a newcomer": (BEGINNING, cursor(9), [], "log_trimmed"),
    "gone": (cursor(5), BEGINNING, [], "conversation_missing"),
    "gone, its end trimmed": (cursor(5), tombstone(9), [end(9)], "conversation_missing"),
    "a tombstone is gone": (tombstone(3), BEGINNING, [], "conversation_missing"),
    "another life, longer": (cursor(2), cursor(9, 2), entries(2, 9, 2), "conversation_replaced"),
    "another life, as long": (cursor(2), cursor(2, 2), [entry(2, 2)], "conversation_replaced"),
    "another life, shorter": (cursor(5), cursor(1, 2), [], "conversation_replaced"),
    "another life, trimmed": (cursor(2), cursor(9, 2), entries(5, 9, 2), "conversation_replaced"),
    "another life after a tombstone": (tombstone(3), cursor(1, 2), [], "conversation_replaced"),
    "rewound": (cursor(5, rewound=True), cursor(3), [], "server_rewound"),
    "rewound by one": (cursor(5, rewound=True), cursor(4), [], "server_rewound"),
    "rewound and counted up again": (cursor(5, rewound=True), cursor(5), [entry(5)], "server_rewound"),
    "rewound and counted further": (cursor(5, rewound=True), cursor(9), entries(5, 9), "server_rewound"),
}


@pytest.mark.parametrize("case", RESET)
def test_a_reset_replaces_missing_changes(case: str) -> None:
    after, head, log, reason = RESET[case]
    changes = recover("c", after, head, log, LIMIT)
    reset = Reset(conversation_id="c", revision=head.revision, cursor=head, reason=reason)  # type: ignore[arg-type]
    assert changes == Changes([reset], more=False)


def test_a_new_subscriber_gets_a_reset_if_a_deleted_log_still_exists() -> None:
    changes = recover("c", BEGINNING, cursor(1, 2), [entry(1, 2)], LIMIT, former="log")
    (reset,) = changes.events
    assert isinstance(reset, Reset)
    assert reset.reason == "conversation_replaced"
    assert revisions(recover("c", cursor(1, 2), cursor(2, 2), entries(1, 2, 2), LIMIT, former="log")) == [2]


@pytest.mark.parametrize(("after", "seen"), [(BEGINNING, []), (Cursor(BEGINNING.epoch, 0, token(1)), [1]), (ANEW, [1])])
def test_a_cursor_from_before_a_conversation_that_has_ended_since_gives_a_reset(after: Cursor, seen: list[int]) -> None:
    changes = recover("c", after, cursor(1, 2), [entry(1, 2)], LIMIT, former=token(1))
    assert [type(event) is Reset for event in changes.events] == [not seen]
    assert not seen or revisions(changes) == seen


def test_reading_continues_after_a_reset() -> None:
    for after, head, log, _ in RESET.values():
        (reset,) = recover("c", after, head, log, LIMIT).events
        again = recover("c", reset.cursor, head, [] if head.revision == 0 else [last(head)], LIMIT)
        assert again == Changes([], more=False)


def last(head: Cursor) -> LogEntry:
    return LogEntry(head.revision, head.token, Kind.ENDED)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 10))
def test_reading_in_steps_returns_each_change_once(start: int, newest: int, limit: int) -> None:
    start = min(start, newest)
    after = cursor(start) if start else BEGINNING
    head = cursor(newest) if newest else BEGINNING
    found: list[int] = []
    for _ in range(newest + 2):
        log = entries(max(1, after.revision), newest)[: limit + 1]
        changes = recover("c", after, head, log, limit)
        assert len(changes.events) <= limit
        found += revisions(changes)
        if not changes.more:
            break
        after = changes.events[-1].cursor
    assert found == list(range(start + 1, newest + 1))


@given(st.data())
def test_never_a_silent_gap(data: st.DataObject) -> None:
    """Even if the log lacks entries, the events follow without a gap, or there is one Reset."""
    newest = data.draw(st.integers(1, 12), "newest")
    start = data.draw(st.integers(0, newest), "start")
    log = [each for each in entries(max(1, start), newest) if data.draw(st.booleans(), f"keep {each.revision}")]
    changes = recover("c", cursor(start) if start else BEGINNING, cursor(newest), log, LIMIT)
    if any(isinstance(event, Reset) for event in changes.events):
        assert len(changes.events) == 1
        assert changes.events[0].revision == newest
    else:
        assert revisions(changes) == list(range(start + 1, start + 1 + len(changes.events)))
        assert changes.more or start + len(changes.events) == newest


def test_an_unreadable_entry_is_a_reset_after_the_entries_before_it() -> None:
    log = [entry(1), entry(2), LogEntry(3, token(3), 0), entry(4)]
    before = recover("c", cursor(1), cursor(4), log, LIMIT)
    assert revisions(before) == [2]
    assert before.more
    reset = Reset(conversation_id="c", revision=4, cursor=cursor(4), reason="log_unreadable")
    assert recover("c", cursor(2), cursor(4), log[1:], LIMIT) == Changes([reset], more=False)
