"""Checks whether a record keeps the promises. Pure: from the record to the list of violations.

The changes of a conversation, in the order in which the servers made them, must be a linearization of the calls:

- each change belongs to one call, and each call makes at most one change;
- a call that was refused made none; a call that was acknowledged made one, unless the state asked for none;
- changes keep the order of their calls: a call that began after another was acknowledged comes later;
- replayed on a model, each change gives the outcome that its caller was given;
- each read, each refusal and each call without effect fits a state between its invocation and its response.

A call without a known outcome may have made a change, at any later time, once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

from msgspec import structs

from tests.faults.model import Conversation
from tests.faults.recording import Call, Change, Final, Recorded, Seen

__all__ = ["check"]

Test = Callable[[Conversation], bool]

#: The kind of change that an operation makes.
KINDS = {
    "Append": "append",
    "Restore": "restore",
    "UpdateMessage": "update",
    "DeleteMessages": "delete",
    "Clear": "clear",
    "Compact": "compact",
    "Expand": "expand",
    "WriteRecord": "record",
    "DeleteConversation": "end",
}
_NOTHING = "0" * 16


def check(recorded: Recorded, *, shortest_log: int = 1) -> list[str]:
    """The violations, in words; empty if all promises are kept. `shortest_log`: the least number of changes that a
    subscriber may be behind and be sent a Reset because the log was trimmed."""
    changes: dict[str, list[Change]] = defaultdict(list)
    calls: dict[str, list[Call]] = defaultdict(list)
    tokens = {}
    for call in _united(recorded.calls):
        calls[call.conversation].append(call)
        tokens[call.conversation, call.token[:6], KINDS.get(call.kind)] = call.token
    for change in recorded.changes:
        whole = tokens.get((change.conversation, change.token, change.kind), change.token)
        changes[change.conversation].append(structs.replace(change, token=whole))
    problems = []
    for name in sorted({*changes, *calls, *recorded.final}):
        one = _Timeline(name, changes[name], calls[name], recorded.losses)
        problems += [f"{name}: {problem}" for problem in one.check(recorded.final.get(name, Final(())))]
    follows = _successors([recorded.changes, *recorded.branches])
    for watcher, events in recorded.events.items():
        for name in recorded.follows.get(watcher, tuple(changes)):
            if changes.get(name):
                feed = _Feed(name, changes[name], follows, shortest_log, lossy=bool(recorded.losses))
                seen = [event for event in events if event.conversation == name]
                problems += [f"{watcher}: {name}: {problem}" for problem in feed.check(seen)]
    made = {change.token for its in changes.values() for change in its}
    return problems + _check_histories(recorded, made) + _check_search(recorded)


def _united(calls: list[Call]) -> list[Call]:
    """The attempts of one call as one: a shared history repeats a call, with its token, that was not answered."""
    found: dict[Any, Call] = {}
    for number, call in enumerate(calls):
        key = call.token or number
        other = found.get(key)
        if other is not None:
            known = max(call, other, key=lambda one: (one.status != "unknown", one.invoked))
            call = structs.replace(known, invoked=min(call.invoked, other.invoked))
        found[key] = call
    return [*found.values()]


class _Timeline:
    """One conversation: its changes in order, and everybody's calls."""

    def __init__(self, name: str, changes: list[Change], calls: list[Call], losses: list[tuple[float, float]]) -> None:
        self._name = name
        self._changes = changes
        self._calls = [_forgiven(call, losses) for call in calls]
        self._by_token = {call.token: call for call in self._calls if call.token}
        never = Call("nobody", name, "", "", {}, 0.0)
        self._makers: list[Call] = []
        seen: set[str] = set()
        for change in changes:
            maker = self._by_token.get(change.token, never)
            if change.token in seen:  # reported below; the following changes are not to blame
                maker = structs.replace(maker, responded=float("inf"), status="unknown")
            seen.add(change.token)
            self._makers.append(maker)
        self._problems: list[str] = []

    def check(self, final: Final) -> list[str]:
        self._check_tokens()
        self._check_real_time()
        self._replay(final)
        return self._problems

    def _say(self, call: Call, problem: str) -> None:
        at = f"{call.invoked / 1e9:.6f} to {call.responded / 1e9:.6f}"
        self._problems.append(f"{call.kind} {call.token} of {call.client} ({at}) {problem}")

    def _check_tokens(self) -> None:
        made = Counter(change.token for change in self._changes)
        for token, count in made.items():
            call = self._by_token.get(token)
            if call is None:
                self._problems.append(f"nobody asked for the change {token}")
                continue
            if count > 1:
                places = [change.revision for change in self._changes if change.token == token]
                self._say(call, f"was applied {count} times: as revisions {places}")
            if call.status == "refused":
                self._say(call, f"was refused ({call.value}), but was applied")
            kinds = {change.kind for change in self._changes if change.token == token}
            if kinds != {KINDS[call.kind]}:
                self._say(call, f"made changes of the kinds {kinds}")
        for call in self._calls:
            if call.status == "error":
                self._say(call, f"raised {call.value}")

    def _check_real_time(self) -> None:
        """No change may stand behind one whose call began after this one's was acknowledged."""
        latest: Call | None = None
        for change, maker in zip(self._changes, self._makers, strict=True):
            if latest is not None and maker.responded < latest.invoked:
                self._say(
                    maker,
                    f"was acknowledged before {latest.kind} {latest.token} began, but is the later change, "
                    f"revision {change.revision}",
                )
            if latest is None or maker.invoked > latest.invoked:
                latest = maker

    def _replay(self, final: Final) -> None:
        waiting, at_work = deque(self._waiting()), []
        state = Conversation()
        for at in range(len(self._changes) + 1):
            if at:
                change, maker = self._changes[at - 1], self._makers[at - 1]
                if maker.kind and KINDS[maker.kind] == change.kind:
                    for problem in state.apply(change, maker):
                        self._say(maker, f"(revision {change.revision}) {problem}")
            while waiting and waiting[0].first <= at:
                at_work.append(waiting.popleft())
            at_work = [one for one in at_work if not one.holds(state)]
            for one in at_work:
                if one.last <= at:
                    value = str(one.call.value)[:300]
                    self._say(one.call, f"gave {value}, which fits no state from {one.first} to {one.last}")
            at_work = [one for one in at_work if one.last > at]
        found = list(final.messages)
        if found != state.forms:
            self._problems.append(f"in the end there is {_difference(state.forms, found)}")
        originals = sorted(state.originals)
        if sorted(one for one in final.archived if not state.was_summary(one[0])) != originals:
            self._problems.append(f"in the end the archive has {_difference(originals, list(final.archived))}")
        if (final.title, final.count) != (state.title, len(state.live)):
            self._problems.append(
                f"in the end the record says {final.title!r} and {final.count}, "
                f"but it is {state.title!r} and {len(state.live)}"
            )

    def _waiting(self) -> list[_Waiting]:
        """The tests of states, in the order of the first state that may be meant."""
        made = {change.token for change in self._changes}
        acknowledged = sorted((maker.responded, at) for at, maker in enumerate(self._makers, 1))
        times = [responded for responded, _ in acknowledged]
        known = list(accumulate((at for _, at in acknowledged), max, initial=0))
        begun = list(accumulate((maker.invoked for maker in self._makers), max))
        found = []
        for call in self._calls:
            if call.status in ("ok", "refused") and call.token not in made:
                first = known[bisect_right(times, call.invoked)]
                last = max(first, bisect_right(begun, call.responded))
                found += [_Waiting(first, last, call, test) for test in _tests(call)]
        return sorted(found, key=lambda one: one.first)


class _Waiting(NamedTuple):
    """A test that some state from `first` to `last` must pass."""

    first: int
    last: int
    call: Call
    holds: Test


def _forgiven(call: Call, losses: list[tuple[float, float]]) -> Call:
    """The call without its outcome, if a server lost what it was about. Durable writes are not forgiven."""
    if call.status == "ok" and call.arguments.get("durable") and call.kind in KINDS:
        return call
    for begin, end in losses:
        if call.invoked < end and call.responded > begin:
            return Call(call.client, call.conversation, call.kind, call.token, call.arguments, call.invoked)
    return call


def _tests(call: Call) -> list[Test]:
    """Tests of the state, for the outcome of a call that changed nothing."""
    value, arguments = call.value, call.arguments
    if call.status == "refused":
        return _refusals(call)
    if call.kind == "Append":
        entries = [
            (entry["form"][0], entry["digest"], one) for entry, one in zip(arguments["entries"], value, strict=True)
        ]
        return [
            lambda state: all(
                name in state.stored
                and state.stored[name].digest == digest
                and [state.stored[name].revision, True] == outcome
                for name, digest, outcome in entries
            )
        ]
    if call.kind == "UpdateMessage":
        entry = arguments["entries"][0]
        name, digest = entry["form"][0], entry["digest"]
        if value is None:
            return [lambda state: not state.is_live(name)]
        return [
            lambda state: (
                name in state.stored and state.stored[name].digest == digest and state.stored[name].revision == value
            )
        ]
    if call.kind == "DeleteMessages":
        return [lambda state: value == 0 and not state.stored.keys() & set(arguments["ids"])]
    if call.kind == "Clear":
        return [lambda state: not state.stored and value == (state.revision if state.exists else 0)]
    if call.kind == "DeleteConversation":
        return [lambda state: value is False and not state.exists]
    if call.kind == "Compact":
        return [] if not value[2] else [lambda state: False]
    if call.kind == "Expand":
        return [lambda state: value is None]
    if call.kind in KINDS:
        return [lambda state: False]  # a restore or a record always is a change
    if call.kind == "ReadPage":
        forms = [_tuples(one) for one in value]
        return [lambda state: state.forms == forms] if len(forms) < arguments["whole"] else []
    if call.kind == "ReadHead":
        epoch, revision, token, count, raw = value
        newest = [_tuples(one) for one in raw]
        return [
            lambda state: (
                (not state.exists and (epoch == _NOTHING) and not count)
                or (
                    (state.epoch, state.revision, state.token, len(state.live)) == (epoch, revision, token, count)
                    and state.forms[len(state.live) - len(newest) :] == newest
                )
            )
        ]
    if call.kind == "ReadConversation":
        if value is None:
            return [lambda state: not state.exists]
        return [lambda state: state.exists and [state.title, len(state.live)] == value]
    if call.kind == "FindMessage":
        if value is None:
            return [lambda state: arguments["id"] not in state.stored]
        value = [value]
    if call.kind in ("FindMessage", "Fetch"):
        return [_has(_tuples(one)) for one in value]
    return []


def _has(wanted: Any) -> Test:
    return lambda state: wanted[0] in state.stored and state.stored[wanted[0]].form == wanted


def _tuples(raw: Any) -> Any:
    return raw[0], raw[1], tuple((kind, call) for kind, call in raw[2])


def _refusals(call: Call) -> list[Test]:
    name, current, _ = call.value
    if name == "RevisionConflictError":
        return [lambda state: current == (state.revision if state.exists else 0) != call.arguments["expected"]]
    if name == "ConversationNotFoundError":
        return [lambda state: not state.exists]
    if name == "ConversationExistsError":
        return [lambda state: state.exists]
    if name == "MessageConflictError" and call.kind == "Append":
        entries = call.arguments["entries"]
        return [lambda state: any(state.conflicts(entry) for entry in entries)]
    return []


def _difference(wanted: list[Any], found: list[Any]) -> str:
    lost = [one for one in wanted if one not in found]
    extra = [one for one in found if one not in wanted]
    return f"not what was acknowledged: missing {lost[:5]}, too much {extra[:5]}, or in another order"


# Subscribers


def _successors(branches: list[list[Change]]) -> dict[str, set[str]]:
    """The tokens that came before each token. A change that was made again after a loss has several."""
    found: dict[str, set[str]] = defaultdict(set)
    for branch in branches:
        before: dict[str, str] = {}
        for change in branch:
            found[change.place].add(before.get(change.conversation, _NOTHING))
            before[change.conversation] = change.place
    return found


class _Feed:
    """Checks the events that one subscriber has received of one conversation."""

    def __init__(
        self, name: str, changes: list[Change], follows: dict[str, set[str]], shortest_log: int, *, lossy: bool
    ) -> None:
        self._name = name
        self._changes = changes
        self._kinds = {change.place: change.kind for change in changes}
        self._removed = {change.place: set(change.removed) for change in changes}
        self._follows = follows
        self._shortest_log = shortest_log
        self._lossy = lossy

    def check(self, seen: list[Seen]) -> list[str]:
        problems = []
        before = Seen(self._name, "", _NOTHING, 0, _NOTHING)
        for event in seen:
            problem = self._reset(before, event) if event.kind == "reset" else self._change(before, event)
            if problem:
                problems.append(f"{problem}: {_shown(event)} after {_shown(before)}")
            before = event
        last = self._changes[-1]
        ended = before.kind == "conversation_deleted" or before.epoch == _NOTHING
        if (last.kind == "end" and not ended) or (last.kind != "end" and before.token != last.place):
            problems.append(f"was never sent the last change, {last.revision}:{last.place}: it is at {_shown(before)}")
        return problems

    def _reset(self, before: Seen, event: Seen) -> str:
        known = event.token in self._follows or event.epoch == _NOTHING
        if not known and not self._lossy:
            return "a Reset to a state that never was"
        ended = any(change.kind == "end" for change in self._changes)
        behind = event.revision - before.revision if event.epoch == before.epoch else 0
        needed = {
            "log_trimmed": behind >= self._shortest_log or before.epoch != event.epoch,
            "conversation_missing": ended,
            "conversation_replaced": ended,
            "server_rewound": self._lossy,
        }
        return "" if needed.get(event.reason) or self._lossy else "a Reset without need"

    def _change(self, before: Seen, event: Seen) -> str:
        ended = before.kind == "conversation_deleted" or before.epoch == _NOTHING
        begins = event.revision == 1 and ended
        if not begins and (event.epoch, event.revision) != (before.epoch, before.revision + 1):
            return "a repeat" if (event.epoch == before.epoch and event.revision <= before.revision) else "a gap"
        if event.token not in self._follows:
            return "" if self._lossy else "an event without a change"
        if not begins and before.token not in self._follows[event.token]:
            return "no Reset, but the change before is another one"
        if set(event.removed) != self._removed.get(event.token, set(event.removed)):
            return f"an event with removed ids {event.removed}, but the change removed {self._removed[event.token]}"
        kind = self._kinds.get(event.token, _KINDS_OF_EVENTS[event.kind])
        return "" if kind == _KINDS_OF_EVENTS[event.kind] else f"an event of another kind than the change, {kind}"


def _shown(event: Seen) -> str:
    return f"{event.kind} {event.reason} {event.epoch}:{event.revision}:{event.token}"


_KINDS_OF_EVENTS = {
    "messages_appended": "append",
    "history_restored": "restore",
    "message_updated": "update",
    "messages_deleted": "delete",
    "history_cleared": "clear",
    "history_compacted": "compact",
    "history_expanded": "expand",
    "conversation_updated": "record",
    "conversation_deleted": "end",
}

# The end


def _check_histories(recorded: Recorded, made: set[str]) -> list[str]:
    problems = []
    for name, entries in recorded.histories:
        wanted = list(recorded.final[name].messages)
        if entries != wanted:
            problems.append(f"a shared history of {name} has {_difference(wanted, entries)}")
    stored: dict[str, set[str]] = defaultdict(set)
    for call in recorded.calls:
        if call.token in made or call.status == "ok":
            stored[call.conversation] |= {entry["form"][0] for entry in call.arguments.get("entries", ())}
    for name, message_id in recorded.added:
        if message_id not in stored[name]:
            problems.append(f"{name}: {message_id} was added to a shared history and flushed, but is stored nowhere")
    return problems


def _check_search(recorded: Recorded) -> list[str]:
    problems = []
    for name, word, found in recorded.found:
        final = recorded.final[name]
        live = {one[0] for one in final.messages if word in one[1].split()}
        archived = {one[0] for one in final.archived if word in one[1].split()}
        if not live <= set(found) <= live | archived:
            wanted = sorted(live)
            problems.append(f"{name}: a search for {word!r} finds {found}, but {wanted} has it")
    return problems
