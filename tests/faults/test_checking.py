"""The checker sees each kind of broken promise in a history made by hand."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from tests.faults.checking import check
from tests.faults.recording import KINDS_OF_EVENTS, Call, Final, Form, Recorded, Seen

C = "c"
EVENTS = {change: event for event, change in KINDS_OF_EVENTS.items() if event != "reply_ended"}


def entry(name: str, text: str = "", tools: tuple[tuple[str, str], ...] = (), status: str = "") -> dict[str, Any]:
    form = (name, text or name, tools, status)
    return {"form": form, "digest": repr(form), "timestamp": None, "stays": False}


class Run:
    """Records calls one after the other, each with its change, as a server that keeps all promises would."""

    def __init__(self) -> None:
        self.recorded = Recorded(changes={C: []})
        self.revision = 0
        self._times = count(10, 10)
        self._forms: list[Form] = []

    def call(
        self, kind: str, value: Any, change: str = "", event: dict[str, Any] | None = None, **arguments: Any
    ) -> Call:
        begin = next(self._times)
        token = f"{begin:06x}{begin:010x}"
        call = Call("w", C, kind, token, arguments, begin, begin + 5, "ok", value)
        self.recorded.calls.append(call)
        if change:
            self.revision += 1
            kind = EVENTS.get(change, change)
            self.recorded.changes[C].append(
                Seen(C, kind, "e", self.revision, token[6:] + "0000" + token[:6], **event or {})
            )
        return call

    def append(self, *entries: dict[str, Any], removed: tuple[str, ...] = (), **more: Any) -> Call:
        outcome = [[self.revision + 1, False] for _ in entries]
        forms = tuple(one["form"] for one in entries)
        self._forms = [one for one in [*self._forms, *forms] if one[0] not in removed]
        event = {"ids": tuple(one[0] for one in forms), "forms": forms, "removed": removed}
        return self.call("Append", outcome, "append", event, entries=entries, **more)

    def update(self, name: str, text: str, change: str = "update", more: dict[str, Any] | None = None) -> Call:
        new = entry(name, text)
        self._forms = [new["form"] if one[0] == name else one for one in self._forms]
        event = {"ids": (name,), "forms": (new["form"],), **(more or {})}
        return self.call("UpdateMessage", self.revision + 1, change, event, entries=[new])

    def delete(self, *names: str) -> Call:
        self._forms = [one for one in self._forms if one[0] not in names]
        return self.call("DeleteMessages", len(names), "delete", {"ids": names}, ids=names)

    def read(self) -> Call:
        return self.call("ReadPage", list(self._forms), whole=100)

    def end(self) -> Recorded:
        """Everything was received by the subscriber, the history and the search."""
        self.recorded.final[C] = Final(tuple(self._forms), (), None, len(self._forms))
        self.recorded.events["s"] = list(self.recorded.changes[C])
        self.recorded.histories.append((C, list(self._forms)))
        self.recorded.found = [(C, text, [name]) for name, text, *_ in self._forms]
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
    del good.changes[C][-1]
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


def show(at: int, **fields: Any) -> Callable[[Recorded], None]:
    """One event of the subscriber was another one."""

    def change(good: Recorded) -> None:
        good.events["s"][at] = structs.replace(good.events["s"][at], **fields)

    return change


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
    "a read of one message": (outcome(6, [("a", "x", (), "")]), "", 1),
    "a read of the past": (lambda good: replaced(good, 6, value=good.calls[4].value), "", 1),
    "a gap": (see(0, 1, 3, 4), "gap", 0),
    "a repeat": (see(0, 1, 2, 2, 3, 4), "repeat", 0),
    "events in another order": (see(1, 0, 2, 3, 4), "gap", 0),
    "a missing last event": (see(0, 1, 2, 3), "never sent", 0),
    "no events": (see(), "never sent", 0),
    "an event of another epoch without a Reset": (begin_a_new_epoch, "", 0),
    "another end": (end_differently, "", 3),
    "an event without its message": (show(1, forms=()), "no message d", 1),
    "an event with a message as it never was": (show(0, forms=(("a", "y", (), ""),)), "never was so", 1),
    "an edit without its message": (show(2, forms=()), "no message a", 1),
    "an event of another kind": (show(3, kind="history_cleared"), "another event", 1),
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


def test_a_removal_that_a_server_lost_may_have_been_seen(good: Recorded) -> None:
    """The subscriber read the messages of an event after the removal, and was stopped before it got that one."""
    show(1, forms=good.events["s"][1].forms[:1])(good)
    good.losses.append((55.0, 80.0))
    assert len(check(good)) == 1
    lost = Call("w", C, "DeleteMessages", "lost", {"ids": ["d"]}, 56.0)
    good.calls.append(lost)
    assert check(good) == []
    good.calls[-1] = structs.replace(lost, arguments={"ids": ["e"]})
    assert len(check(good)) == 1
    good.calls[-1] = structs.replace(lost, invoked=90.0)
    assert len(check(good)) == 1


def test_an_edit_that_a_server_lost_may_have_been_seen(good: Recorded) -> None:
    edited = ("a", "lost", (), "")
    show(0, forms=(edited,))(good)
    good.losses.append((55.0, 80.0))
    assert len(check(good)) == 1
    lost = Call("w", C, "UpdateMessage", "lost", {"entries": [{"form": edited}]}, 56.0)
    good.calls.append(lost)
    assert check(good) == []
    good.calls[-1] = structs.replace(lost, invoked=90.0)
    assert len(check(good)) == 1


def test_a_write_applied_twice_that_undoes_a_write() -> None:
    """The update arrives again, after a later acknowledged one."""
    run = Run()
    run.append(entry("a"))
    first = run.update("a", "x")
    run.update("a", "y")
    run.update("a", "x")
    run.recorded.changes[C][-1] = structs.replace(
        run.recorded.changes[C][-1], token=first.token[6:] + "0001" + first.token[:6]
    )
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


def test_a_refusal_says_nothing_of_later_attempts(good: Recorded) -> None:
    """A shared history repeats a call that a full server refused. The process may be killed before it gets a reply."""
    made = good.calls[1]
    refused = {"status": "refused", "value": ["BackendRefusedError", None, ""]}
    good.calls.append(structs.replace(made, invoked=made.invoked - 2, responded=made.invoked - 1, **refused))
    replaced(good, 1, status="unknown", responded=float("inf"), value=None)
    assert check(good) == []
    replaced(good, -1, invoked=made.invoked + 1, responded=made.invoked + 2)
    assert len(check(good)) > 0


def test_a_reset_may_replace_missing_events_only_if_necessary(good: Recorded) -> None:
    events = good.events["s"]
    good.events["s"] = [events[0], structs.replace(events[3], kind="reset", reason="server_rewound"), events[4]]
    assert len(check(good)) == 1
    good.losses.append((1000.0, 1001.0))
    assert check(good) == []


def test_a_subscriber_must_get_a_reset_after_a_rewind(good: Recorded) -> None:
    """It received a third change that was lost, and then the fourth of the present, without a Reset."""
    good.losses.append((1.0, 2.0))
    events = good.events["s"]
    events[2] = structs.replace(events[2], token="lost lost")
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
    run.recorded.changes[C][-1] = structs.replace(run.recorded.changes[C][-1], removed=("0",))
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
    event = {"ids": ("s",), "forms": (entry("s")["form"],), "count": 2}
    run.call("Compact", [2, 2, True, True], "compact", event, entries=[entry("s")], through=[1.8e15, 2])
    run._forms = [entry("s")["form"], entry("d")["form"]]
    run.read()
    expand = run.call("Expand", [3, 2], "expand", {"ids": ("s",), "count": 2}, id="s")
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
    assert "another event" in problem


def test_a_reply_whose_end_overwrites_an_edit() -> None:
    run = Run()
    run.append({"form": ("r", "", (), "streaming"), "digest": "begun", "timestamp": None, "stays": False})
    token = run.recorded.calls[0].token
    run.update("r", "redacted", "reply_ended", {"text": "redacted"})
    assert check(run.end()) == []
    late = run.update("r", "0 1 ")
    run.recorded.calls[-1] = structs.replace(late, arguments={**late.arguments, "reply": token})
    assert any("overwrote" in problem for problem in check(run.end()))


def test_text_of_a_reply_is_joined() -> None:
    run = Run()
    run.append({"form": ("r", "", (), "streaming"), "digest": "begun", "timestamp": None, "stays": False})
    run.update("r", "0 1 2 ", "reply_ended", {"offset": 4, "text": "2 "})
    recorded = run.end()
    recorded.found.clear()
    begun, ended = recorded.events["s"]
    grew = [structs.replace(begun, kind="reply_grew", offset=at, text=text) for at, text in ((0, "0 "), (2, "1 "))]
    recorded.events["s"] = [begun, *grew, ended]
    assert check(recorded) == []
    for wrong in ([grew[1]], [grew[0]], [grew[0], grew[0]], [structs.replace(grew[0], ids=())]):
        recorded.events["s"] = [begun, *wrong, ended]
        assert check(recorded) != []


def test_a_run_that_was_taken_over_writes_nothing() -> None:
    for fence, run_id in ((1, "a"), (2, "c")):  # the latter: a failover has lost the run with this fence
        run = Run()
        for one in ((1, "a"), (2, "b"), (2, "b")):
            run.append(entry(f"m{run.revision}"), fence=[*one, "run"])
        assert check(run.end()) == []
        run.append(entry("late"), fence=[fence, run_id, "run"])
        assert any("fence" in problem for problem in check(run.end()))


def test_an_erasure_takes_messages_and_summaries_alone() -> None:
    run = Run()
    run.append(entry("a"), entry("b"))
    run.call("EraseMessages", 1, "delete", {"ids": ("a", "b")}, ids=["a"])
    run._forms = []
    assert any("nobody asked for" in problem for problem in check(run.end()))


def test_a_pinned_message_that_leaves_is_reported() -> None:
    def through_a_cap(removed: str) -> Run:
        run = Run()
        run.append({**entry("a"), "stays": "pinned"}, entry("b"), cap=2)
        run.append(entry("d"), cap=2, removed=(removed,))
        return run

    assert check(through_a_cap("b").end()) == []
    assert any("the oldest beyond the cap" in problem for problem in check(through_a_cap("a").end()))
    run = Run()
    run.append({**entry("a"), "stays": "pinned"}, entry("b"), entry("d"))
    event = {"ids": ("s",), "forms": (entry("s")["form"],), "count": 2}
    run.call("Compact", [2, 2, True, True], "compact", event, entries=[entry("s")], through=[1.8e15, 2])
    assert any("of 2 messages" in problem for problem in check(run.end()))


def test_a_fork_is_a_copy_of_one_revision() -> None:
    run = Run()
    run.append(entry("a"), entry("b"), entry("d"))
    event = {"ids": ("s",), "forms": (entry("s")["form"],), "count": 2}
    run.call("Compact", [2, 2, True, True], "compact", event, entries=[entry("s")], through=[1.8e15, 2])
    a, b, d, s, e = (entry(name)["form"] for name in "abdse")
    run._forms = [s, d]
    whole = run.call("Fork", [2, [s, d], [a, b, s, d]], through=None)
    run.call("Fork", [2, [a], [a]], through=[1.8e15, 1])
    recorded = run.end()
    recorded.final[C] = structs.replace(recorded.final[C], archived=(a, b))
    assert check(recorded) == []
    for at, value in (
        (2, [1, [s, d], [a, b, s, d]]),
        (2, [2, [s, d], [a, s, d]]),  # not all of the archive
        (2, [2, [s, d, e], [a, b, s, d, e]]),
        (2, [2, [a, b, d], [a, b, d]]),
        (3, [2, [a, b], [a, b]]),  # a message behind the end
        (3, [2, [], []]),
    ):
        outcome(at, value)(recorded)
        [problem] = check(recorded)
        assert "Fork" in problem
        replaced(recorded, at, value=whole.value if at == 2 else [2, [a], [a]])


def test_wrong_totals_of_usage_are_found() -> None:
    run = Run()
    run.append({**entry("a"), "usage": [10, 1, 0, 5]}, {**entry("b"), "usage": [2, 0, 0, 0]})
    run.delete("a")
    recorded = run.recorded
    for usage, wrong in (((12, 1, 0, 5), False), ((2, 0, 0, 0), True), ((24, 2, 0, 10), True)):
        recorded.final[C] = Final(tuple(run._forms), (), None, 1, usage)
        assert any("usage" in problem for problem in check(recorded)) is wrong
