"""The checker sees each kind of broken promise in a history made by hand."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec import structs

from tests.faults.checking import check
from tests.faults.model import orphans
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
        """Everybody has seen everything."""
        self.recorded.final[C] = Final(tuple(self._forms), (), None, len(self._forms))
        kinds = {"append": "messages_appended", "update": "message_updated", "delete": "messages_deleted"}
        self.recorded.events["s"] = [
            Seen(C, kinds[change.kind], self._epoch, change.revision, change.token) for change in self.recorded.changes
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


def test_a_lost_append(good: Recorded) -> None:
    del good.changes[-1]
    good.final[C] = structs.replace(good.final[C], messages=good.final[C].messages[:-1], count=2)
    good.histories[0] = (C, list(good.final[C].messages))
    del good.events["s"][-1]
    assert "Append" in " ".join(check(good))


def test_an_append_that_is_lost_with_the_server_is_forgiven_unless_it_was_durable(good: Recorded) -> None:
    test_a_lost_append(good)
    good.losses.append((55.0, 80.0))
    good.found.pop()
    assert check(good) == []
    replaced(good, 5, arguments={**good.calls[5].arguments, "durable": True})
    assert len(check(good)) == 1


def test_a_write_applied_twice_and_so_a_write_undone(good: Recorded) -> None:
    """The update arrives again, after another one that was acknowledged."""
    run = Run()
    run.append(entry("a"))
    first = run.update("a", "x")
    run.update("a", "y")
    run.update("a", "x")
    run.recorded.changes[-1] = structs.replace(run.recorded.changes[-1], token=first.token)
    del run.recorded.calls[-1]
    [problem] = check(run.end())
    assert "2 times" in problem


def test_a_write_applied_late_for_the_first_time_is_allowed_only_without_an_outcome() -> None:
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


def test_changes_in_another_order_than_their_calls(good: Recorded) -> None:
    one, two = good.calls[0], good.calls[1]
    replaced(good, 0, invoked=two.invoked, responded=two.responded)
    replaced(good, 1, invoked=one.invoked, responded=one.responded)
    assert any("before" in problem for problem in check(good))


def test_a_refused_call_that_was_applied(good: Recorded) -> None:
    replaced(good, 1, status="refused", value=["MessageConflictError", None, ""])
    assert any("refused" in problem for problem in check(good))


def test_a_refusal_without_reason(good: Recorded) -> None:
    call = good.calls[6]
    refused = ["RevisionConflictError", 5, ""]
    good.calls.append(
        structs.replace(call, kind="Clear", token="t", arguments={"expected": 5}, status="refused", value=refused)
    )
    assert len(check(good)) == 1
    good.calls[-1] = structs.replace(good.calls[-1], arguments={"expected": 3})
    assert check(good) == []


def test_a_change_that_nobody_asked_for(good: Recorded) -> None:
    del good.calls[5]
    assert any("nobody" in problem for problem in check(good))


@pytest.mark.parametrize(
    ("at", "value"), [(0, [[2, False]]), (0, [[1, True]]), (2, 2), (3, 2), (4, []), (6, [("a", "x", ())])]
)
def test_an_outcome_that_is_not_what_happened(good: Recorded, at: int, value: Any) -> None:
    replaced(good, at, value=value)
    assert len(check(good)) == 1


def test_a_read_of_the_past(good: Recorded) -> None:
    replaced(good, 6, value=good.calls[4].value)
    assert len(check(good)) == 1


def test_a_call_without_effect_that_should_have_had_one(good: Recorded) -> None:
    good.calls.append(structs.replace(good.calls[3], token="t", invoked=1000.0, responded=1001.0, value=0))
    assert check(good) == []
    replaced(good, -1, arguments={"ids": ["e"]})
    assert len(check(good)) == 1


def test_a_gap_a_repeat_and_an_order_that_subscribers_must_not_see(good: Recorded) -> None:
    events = good.events["s"]
    for wrong, word in (
        (events[:2] + events[3:], "gap"),
        (events[:3] + events[2:], "repeat"),
        ([events[1], events[0], *events[2:]], "gap"),
        (events[:-1], "never sent"),
        ([], "never sent"),
    ):
        good.events["s"] = wrong
        assert any(word in problem for problem in check(good)), word


def test_a_reset_stands_for_what_is_missing_but_not_without_need(good: Recorded) -> None:
    events = good.events["s"]
    reset = structs.replace(events[3], kind="reset", reason="log_trimmed")
    good.events["s"] = [events[0], reset, events[4]]
    assert check(good, shortest_log=3) == []
    assert len(check(good, shortest_log=4)) == 1
    good.events["s"] = [events[0], structs.replace(reset, reason="server_rewound"), events[4]]
    assert len(check(good)) == 1


def test_a_subscriber_that_goes_on_over_a_rewound_server(good: Recorded) -> None:
    """It saw a third change that was lost, and then the fourth of the present, without a Reset."""
    good.losses.append((1.0, 2.0))
    events = good.events["s"]
    events[2] = structs.replace(events[2], token="lost")
    assert len(check(good)) == 1
    events.insert(3, structs.replace(events[3], kind="reset", reason="server_rewound"))
    del events[4]
    assert check(good) == []


def test_an_event_of_another_life_without_a_reset(good: Recorded) -> None:
    events = good.events["s"]
    events[2:] = [structs.replace(event, epoch="other") for event in events[2:]]
    assert len(check(good)) == 1


def test_a_history_or_an_end_that_differs(good: Recorded) -> None:
    good.histories.append((C, list(reversed(good.final[C].messages))))
    assert len(check(good)) == 1
    good.added.append((C, "nowhere"))
    assert len(check(good)) == 2
    good.final[C] = structs.replace(good.final[C], count=7)
    assert len(check(good)) == 3


@pytest.mark.parametrize("found", [[], ["a", "gone"]])
def test_a_search_that_misses_a_message_or_finds_one_that_is_gone(good: Recorded, found: list[str]) -> None:
    good.found[0] = (C, "x", found)
    assert len(check(good)) == 1


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


def test_a_result_that_comes_after_its_call_has_left_is_not_blamed_on_the_cap() -> None:
    run = Run()
    run.append(entry("call", tools=CALL), cap=1)
    run.append(entry("b"), cap=1, removed=("call",))
    run.append(entry("result", tools=RESULT), cap=1, removed=("b",))
    run.append(entry("d"), cap=2)
    assert check(run.end()) == []


def test_pairs_are_told_from_results_without_a_call() -> None:
    assert not orphans([("a", "", CALL), ("b", "", CALL), ("c", "", RESULT), ("d", "", RESULT)])
    assert orphans([("a", "", CALL), ("c", "", RESULT), ("d", "", RESULT)]) == ["d"]
    assert orphans([("c", "", RESULT), ("a", "", CALL)]) == ["c"]


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


def test_a_range_of_a_former_life_has_only_what_is_dated_before_it() -> None:
    run = Run()
    run.append(entry("a"))
    run.call("DeleteConversation", True, "end")
    run.revision = 0
    run.append({**entry("old"), "timestamp": 1}, entry("b"))
    run.call("Compact", [2, 1, True, True], "compact", entries=[entry("s")], through=[1.8e15, 1, 10.0])
    run.recorded.final[C] = Final((entry("s")["form"], entry("b")["form"]), (entry("old")["form"],), None, 2)
    assert check(run.recorded) == []


def test_a_deleted_conversation_begins_anew() -> None:
    run = Run()
    run.append(entry("a"))
    run.call("DeleteConversation", True, "end")
    run.revision, run._forms = 0, []
    run.append(entry("b"))
    recorded = run.recorded
    recorded.final[C] = Final((entry("b")["form"],), (), None, 1)
    assert check(recorded) == []
    recorded.changes[-1] = structs.replace(recorded.changes[-1], revision=3)
    assert check(recorded) != []
