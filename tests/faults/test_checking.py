"""The checker sees each kind of broken promise in a history made by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from tests.faults.checking import check
from tests.faults.recording import Call, Change, Final, Form, Recorded, Seen

C = "c"


def entry(name: str, text: str = "", tools: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    form = (name, text or name, tools)
    return {"form": form, "digest": repr(form), "timestamp": None, "stays": False}


class Run:
    """Records calls one after the other, each with its change, as a server that keeps all promises would."""

    def __init__(self) -> None:
        self.recorded = Recorded()
        self.revision = 0
        self._times = count(10, 10)
        self._forms: list[Form] = []
        self._epoch = ""

    def call(self, kind: str, value: Any, change: str = "", *, removed: tuple[str, ...] = (), **arguments: Any) -> Call:
        begin = next(self._times)
        token = f"{begin:016x}"
        call = Call("w", C, kind, token, arguments, begin, begin + 5, "ok", value)
        self.recorded.calls.append(call)
        if change:
            self.revision += 1
            self._epoch = self._epoch or token
            self.recorded.changes.append(Change(C, self.revision, token, change, removed))
        return call

    def append(self, *entries: dict[str, Any], removed: tuple[str, ...] = (), **more: Any) -> Call:
        outcome = [[self.revision + 1, False] for _ in entries]
        self._forms = [one for one in [*self._forms, *(one["form"] for one in entries)] if one[0] not in removed]
        return self.call("Append", outcome, "append", entries=entries, removed=removed, **more)

    def update(self, name: str, text: str) -> Call:
        self._forms = [(one[0], text, one[2]) if one[0] == name else one for one in self._forms]
        return self.call("UpdateMessage", self.revision + 1, "update", entries=[entry(name, text)])

    def delete(self, *names: str) -> Call:
        self._forms = [one for one in self._forms if one[0] not in names]
        return self.call("DeleteMessages", len(names), "delete", ids=names)

    def read(self) -> Call:
        return self.call("ReadPage", list(self._forms), whole=100)

    def end(self) -> Recorded:
        """Everything was received by the subscriber, the history and the search."""
        self.recorded.final[C] = Final(tuple(self._forms), (), None, len(self._forms))
        kinds = {"append": "messages_appended", "update": "message_updated", "delete": "messages_deleted"}
        self.recorded.events["s"] = [
            Seen(C, kinds[change.kind], self._epoch, change.revision, change.token, removed=change.removed)
            for change in self.recorded.changes
        ]
        self.recorded.histories.append((C, list(self._forms)))
        self.recorded.found = [(C, text, [name]) for name, text, _ in self._forms]
        return self.recorded


@pytest.fixture
def good() -> Recorded:
    run = Run()
    run.append(entry("a"))
    run.append(entry("b"), entry("d"))
    run.update("a", "x")
    run.delete("b")
    run.read()
    run.append(entry("e"))
    run.read()
    return run.end()


def replaced(recorded: Recorded, at: int, **fields: Any) -> None:
    recorded.calls[at] = structs.replace(recorded.calls[at], **fields)


def test_a_run_without_fault_has_no_violation(good: Recorded) -> None:
    assert check(good) == []


def lose_an_append(good: Recorded) -> None:
    del good.changes[-1]
    good.final[C] = structs.replace(good.final[C], messages=good.final[C].messages[:-1], count=2)
    good.histories[0] = (C, list(good.final[C].messages))
    del good.events["s"][-1]


def swap_two_calls(good: Recorded) -> None:
    one, two = good.calls[0], good.calls[1]
    replaced(good, 0, invoked=two.invoked, responded=two.responded)
    replaced(good, 1, invoked=one.invoked, responded=one.responded)


def see(*order: int) -> Callable[[Recorded], None]:
    """The subscriber received these events."""

    def change(good: Recorded) -> None:
        good.events["s"] = [good.events["s"][index] for index in order]

    return change


def outcome(at: int, value: Any) -> Callable[[Recorded], None]:
    return lambda good: replaced(good, at, value=value)


def end_differently(good: Recorded) -> None:
    good.histories.append((C, list(reversed(good.final[C].messages))))
    good.added.append((C, "nowhere"))
    good.final[C] = structs.replace(good.final[C], count=7)


def begin_a_new_epoch(good: Recorded) -> None:
    events = good.events["s"]
    events[2:] = [structs.replace(event, epoch="other") for event in events[2:]]


#: How to break a promise; a word of a violation; and how many violations there are, or 0 for some.
BROKEN: dict[str, tuple[Callable[[Recorded], None], str, int]] = {
    "a lost append": (lose_an_append, "Append", 0),
    "changes in another order than their calls": (swap_two_calls, "before", 0),
    "a refused call that was applied": (
        lambda good: replaced(good, 1, status="refused", value=["MessageConflictError", None, ""]),
        "refused",
        0,
    ),
    "a change without a call": (lambda good: good.calls.__delitem__(5), "nobody", 0),
    "another revision": (outcome(0, [[2, False]]), "", 1),
    "a duplicate that was stored": (outcome(0, [[1, True]]), "", 1),
    "an update of another revision": (outcome(2, 2), "", 1),
    "too many deleted messages": (outcome(3, 2), "", 1),
    "a read of nothing": (outcome(4, []), "", 1),
    "a read of one message": (outcome(6, [("a", "x", ())]), "", 1),
    "a read of the past": (lambda good: replaced(good, 6, value=good.calls[4].value), "", 1),
    "a gap": (see(0, 1, 3, 4), "gap", 0),
    "a repeat": (see(0, 1, 2, 2, 3, 4), "repeat", 0),
    "events in another order": (see(1, 0, 2, 3, 4), "gap", 0),
    "a missing last event": (see(0, 1, 2, 3), "never sent", 0),
    "no events": (see(), "never sent", 0),
    "an event of another epoch without a Reset": (begin_a_new_epoch, "", 1),
    "another end": (end_differently, "", 3),
    "a search that misses a message": (lambda good: good.found.__setitem__(0, (C, "x", [])), "", 1),
    "a search that finds a deleted message": (lambda good: good.found.__setitem__(0, (C, "x", ["a", "gone"])), "", 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_promise_is_found(good: Recorded, name: str) -> None:
    break_it, word, count = BROKEN[name]
    break_it(good)
    problems = check(good)
    assert any(word in problem for problem in problems)
    assert count in (0, len(problems))


def test_a_lost_append_is_allowed_after_a_server_loss_unless_durable(good: Recorded) -> None:
    lose_an_append(good)
    good.losses.append((55.0, 80.0))
    good.found.pop()
    assert check(good) == []
    replaced(good, 5, arguments={**good.calls[5].arguments, "durable": True})
    assert len(check(good)) == 1


def test_a_write_applied_twice_that_undoes_a_write() -> None:
    """The update arrives again, after a later acknowledged one."""
    run = Run()
    run.append(entry("a"))
    first = run.update("a", "x")
    run.update("a", "y")
    run.update("a", "x")
    run.recorded.changes[-1] = structs.replace(run.recorded.changes[-1], token=first.token)
    del run.recorded.calls[-1]
    [problem] = check(run.end())
    assert "2 times" in problem


def test_a_write_applied_late_is_allowed_only_without_an_outcome() -> None:
    run = Run()
    run.append(entry("a"))
    run.append(entry("b"))
    run.delete("a")
    recorded = run.end()
    late = structs.replace(recorded.calls[2], invoked=1.0, responded=2.0)
    recorded.calls[2] = structs.replace(late, status="unknown", responded=float("inf"), value=None)
    assert check(recorded) == []
    recorded.calls[2] = late
    assert check(recorded) != []


def test_refusals_and_calls_without_effect_must_fit_the_state(good: Recorded) -> None:
    refused = {"status": "refused", "value": ["RevisionConflictError", 5, ""]}
    good.calls.append(structs.replace(good.calls[6], kind="Clear", token="t", arguments={"expected": 5}, **refused))
    assert len(check(good)) == 1
    replaced(good, -1, arguments={"expected": 3})
    assert check(good) == []
    good.calls.append(structs.replace(good.calls[3], token="u", invoked=1000.0, responded=1001.0, value=0))
    assert check(good) == []
    replaced(good, -1, arguments={"ids": ["e"]})
    assert len(check(good)) == 1


def test_a_reset_may_replace_missing_events_only_if_necessary(good: Recorded) -> None:
    events = good.events["s"]
    reset = structs.replace(events[3], kind="reset", reason="log_trimmed")
    good.events["s"] = [events[0], reset, events[4]]
    assert check(good, shortest_log=3) == []
    assert len(check(good, shortest_log=4)) == 1
    good.events["s"] = [events[0], structs.replace(reset, reason="server_rewound"), events[4]]
    assert len(check(good)) == 1


def test_a_subscriber_must_get_a_reset_after_a_rewind(good: Recorded) -> None:
    """It received a third change that was lost, and then the fourth of the present, without a Reset."""
    good.losses.append((1.0, 2.0))
    events = good.events["s"]
    events[2] = structs.replace(events[2], token="lost")
    assert len(check(good)) == 1
    events.insert(3, structs.replace(events[3], kind="reset", reason="server_rewound"))
    del events[4]
    assert check(good) == []


CALL, RESULT = (("u", "1"),), (("r", "1"),)


def test_a_cap_that_tears_a_pair() -> None:
    run = Run()
    for number, tools in enumerate((CALL, CALL, RESULT)):
        run.append(entry(f"{number}", tools=tools), cap=3)
    run.append(entry("3", tools=RESULT), cap=3, removed=("0", "2"))
    assert check(run.end()) == []
    run.recorded.changes[-1] = structs.replace(run.recorded.changes[-1], removed=("0",))
    run.append(entry("4"), cap=3, removed=("1",))
    assert any("lost their calls" in problem for problem in check(run.end()))


def test_a_cap_that_removes_too_little_or_too_much() -> None:
    for removed in ((), ("b",), ("a", "b")):
        run = Run()
        run.append(entry("a"), cap=2)
        run.append(entry("b"), cap=2)
        run.append(entry("d"), cap=2, removed=removed)
        assert check(run.end()) != []


def test_compaction_and_expansion_are_replayed() -> None:
    run = Run()
    run.append(entry("a"), entry("b"), entry("d"))
    run.call("Compact", [2, 2, True, True], "compact", entries=[entry("s")], through=[1.8e15, 2, 10.0])
    run._forms = [entry("s")["form"], entry("d")["form"]]
    run.read()
    expand = run.call("Expand", [3, 2], "expand", id="s")
    run._forms = [entry(name)["form"] for name in ("a", "b", "d")]
    run.read()
    recorded = run.recorded
    recorded.final[C] = Final(tuple(run._forms), (), None, 3)
    assert check(recorded) == []
    recorded.calls[-2] = structs.replace(expand, value=[3, 1])  # a part of it did not come back
    recorded.final[C] = Final(tuple(run._forms[1:]), (), None, 2)
    assert len(check(recorded)) == 3


def test_an_event_without_the_ids_that_a_cap_removed_is_reported() -> None:
    run = Run()
    run.append(entry("a"), cap=1)
    run.append(entry("b"), removed=("a",), cap=1)
    recorded = run.end()
    assert check(recorded) == []
    recorded.events["s"][1] = structs.replace(recorded.events["s"][1], removed=())
    [problem] = check(recorded)
    assert "removed ids ()" in problem
