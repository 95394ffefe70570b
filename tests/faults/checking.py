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

import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

from msgspec import structs

from tests.faults.model import Conversation
from tests.faults.recording import Call, Final, Form, Recorded, Seen, as_form

__all__ = ["check"]

Test = Callable[[Conversation], bool]

#: The kind of change that an operation makes.
KINDS = {
    "Append": "append",
    "Restore": "restore",
    "UpdateMessage": "update",
    "DeleteMessages": "delete",
    "EraseMessages": "delete",
    "Clear": "clear",
    "Compact": "compact",
    "Expand": "expand",
    "WriteRecord": "record",
    "DeleteConversation": "end",
}
_NOTHING = "0" * 16


def check(recorded: Recorded) -> list[str]:
    """The violations, in words; empty if all promises are kept."""
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in _united(recorded.calls):
        calls[call.conversation].append(call)
    problems = [*recorded.problems, *(recorded.revived if not recorded.losses else ())]
    timelines = {}
    for name in sorted({*recorded.changes, *calls, *recorded.final} - recorded.partly):
        one = _Timeline(name, recorded.changes.get(name, []), calls[name], recorded.losses)
        timelines[name] = one
        problems += [f"{name}: {problem}" for problem in one.check(recorded.final.get(name, Final(())))]
    for watcher, events in recorded.events.items():
        seen: dict[str, list[Seen]] = defaultdict(list)
        for event in events:
            for name in [*seen] if event.kind == "resumed" else [event.conversation]:
                seen[name].append(event)
        for name in recorded.follows.get(watcher, tuple(timelines)):
            if name in timelines and recorded.changes.get(name):
                feed = _Feed(timelines[name], recorded.losses)
                problems += [f"{watcher}: {name}: {problem}" for problem in feed.check(seen[name])]
    made = {token for one in timelines.values() for token in one.made}
    return problems + _check_histories(recorded, made) + _check_search(recorded)


def _united(calls: list[Call]) -> list[Call]:
    """The attempts of one call as one: a shared history repeats a call, with its token, that was not answered, or that
    a full server refused. A refusal says nothing of later attempts."""
    found: dict[Any, Call] = {}
    for number, call in enumerate(sorted(calls, key=lambda one: one.invoked)):
        key = call.token or number
        other = found.get(key)
        if other is not None and other.status != "refused":
            call = structs.replace(other if call.status == "unknown" else call, invoked=other.invoked)
        found[key] = call
    return [*found.values()]


class _Timeline:
    """One conversation: its changes in order, and everybody's calls."""

    def __init__(self, name: str, changes: list[Seen], calls: list[Call], losses: list[tuple[float, float]]) -> None:
        self._name = name
        self._changes = [*changes]
        self._calls = [_forgiven(call, losses) for call in calls]
        by_token = {(call.token[:6], KINDS.get(call.kind)): call for call in self._calls if call.token}
        never = Call("nobody", name, "", "", {}, 0.0)
        self._makers: list[Call] = []
        self.made: set[str] = set()
        for change in changes:
            maker = by_token.get((change.call, change.change), never)
            if maker is never and change.kind == "reply_ended":  # a reader did it, because the writer was dead
                entry = {"form": [change.ids[0], "", (), "interrupted"], "digest": None, "stays": False}
                maker = structs.replace(never, kind="UpdateMessage", arguments={"entries": [entry], "reply": ""})
            elif maker.token in self.made:  # reported below, and the following changes are not to blame
                maker = structs.replace(maker, responded=float("inf"), status="unknown")
            self.made.add(maker.token)
            self._makers.append(maker)
        self.made.discard("")
        # A read after the end shows no epoch any more: it is the token of the first call.
        epoch = _NOTHING
        for at, (change, maker) in enumerate(zip(changes, self._makers, strict=True)):
            epoch = (maker.token or epoch) if change.revision == 1 else epoch
            if change.epoch == _NOTHING:
                self._changes[at] = structs.replace(change, epoch=epoch)
        self._problems: list[str] = []
        self._state = Conversation(lossy=bool(losses))

    def check(self, final: Final) -> list[str]:
        self._check_tokens()
        self._check_real_time()
        self._replay(final)
        return self._problems

    def _say(self, call: Call, problem: str) -> None:
        at = f"{call.invoked / 1e9:.6f} to {call.responded / 1e9:.6f}"
        self._problems.append(f"{call.kind} {call.token} of {call.client} ({at}) {problem}")

    def _check_tokens(self) -> None:
        for change, maker in zip(self._changes, self._makers, strict=True):
            if not maker.kind:
                self._problems.append(f"nobody asked for the change {_shown(change)}")
        made = Counter(maker.token for maker in self._makers if maker.token)
        for call in self._calls:
            count = made[call.token] if call.token else 0
            if count > 1:
                pairs = zip(self._changes, self._makers, strict=True)
                places = [change.revision for change, maker in pairs if maker.token == call.token]
                self._say(call, f"was applied {count} times: as revisions {places}")
            if count and call.status == "refused":
                self._say(call, f"was refused ({call.value}), but was applied")
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
        state = self._state
        for at in range(len(self._changes) + 1):
            if at:
                change, maker = self._changes[at - 1], self._makers[at - 1]
                if maker.kind:
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

        if self._state.exists and tuple(final.usage) != state.usage:
            self._problems.append(f"in the end its usage is {final.usage}, but a recount gives {state.usage}")

    def _waiting(self) -> list[_Waiting]:
        """The tests of states, in the order of the first state that may be meant."""
        acknowledged = sorted((maker.responded, at) for at, maker in enumerate(self._makers, 1))
        times = [responded for responded, _ in acknowledged]
        known = list(accumulate((at for _, at in acknowledged), max, initial=0))
        begun = list(accumulate((maker.invoked for maker in self._makers), max))
        found = []
        for call in self._calls:
            if call.status in ("ok", "refused") and call.token not in self.made:
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
                and state.stored[name].is_like(digest)
                and [state.stored[name].revision, True] == outcome
                for name, digest, outcome in entries
            )
        ]
    if call.kind == "UpdateMessage":
        entry = arguments["entries"][0]
        name, digest = entry["form"][0], entry["digest"]
        if value is None:
            ends = arguments.get("reply") is not None
            return [lambda state: not state.is_live(name) or (ends and not state.stored[name].is_live)]
        return [
            lambda state: (
                name in state.stored and state.stored[name].is_like(digest) and state.stored[name].revision == value
            )
        ]
    if call.kind == "DeleteMessages":
        return [lambda state: value == 0 and not state.stored.keys() & set(arguments["ids"])]
    if call.kind == "EraseMessages":
        if isinstance(value, str):  # the live summary, which may quote a message
            return [lambda state: state.summary == value]
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
        forms = [as_form(one) for one in value]
        return [lambda state: _is_read(forms, state.forms)] if len(forms) < arguments["whole"] else []
    if call.kind == "ReadHead":
        epoch, revision, token, count, raw = value
        newest = [as_form(one) for one in raw]
        return [
            lambda state: (
                (not state.exists and (epoch == _NOTHING) and not count)
                or (
                    (state.epoch, state.revision, state.token, len(state.live)) == (epoch, revision, token, count)
                    and _are(newest, state.forms[len(state.live) - len(newest) :], arguments["is_partial"])
                )
            )
        ]
    if call.kind == "ReadConversation":
        if value is None:
            return [lambda state: not state.exists]
        return [lambda state: state.exists and [state.title, len(state.live)] == value]
    if call.kind == "Fork":
        return [lambda state: _is_fork(call, state)]
    if call.kind == "FindMessage":
        if value is None:
            return [lambda state: arguments["id"] not in state.stored]
        return [_has(as_form(value), arguments["is_partial"])]
    if call.kind == "Fetch":
        return [_has(as_form(one)) for one in value]
    return []


def _is_read(found: list[Form], there: list[Form]) -> bool:
    """Replies that are being written are read a moment after the rest: they may have ended, or be gone."""
    names = {one[0] for one in found}
    wanted = [one for one in there if one[0] in names or one[3] != "streaming"]
    return len(found) == len(wanted) and all(
        one == other or (one[0] == other[0] and other[3] == "streaming")
        for one, other in zip(found, wanted, strict=True)
    )


def _is_fork(call: Call, state: Conversation) -> bool:
    """Archived messages may be live in a fork that ends before the newest message."""
    through, (revision, live, every) = call.arguments["through"], call.value
    wanted = [one for one in state.forms if one[3] != "streaming"]
    return (
        state.revision == revision
        and sorted(as_form(one) for one in every if not state.was_summary(one[0])) == state.fork(through)
        and (through is not None or [*map(as_form, live)] == wanted)
    )


def _has(found: Form, is_partial: bool = False) -> Test:
    return lambda state: found[0] in state.stored and _are([found], [state.stored[found[0]].form], is_partial)


def _are(found: list[Form], there: list[Form], is_partial: bool) -> bool:
    """`is_partial`: they were read without their large contents, so texts may end earlier."""
    if is_partial and len(found) == len(there):
        found = [
            (one[0], other[1] if other[1].startswith(one[1]) else one[1], *one[2:])
            for one, other in zip(found, there, strict=True)
        ]
    return found == there


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


class _Feed:
    """Checks the events that one subscriber has received of one conversation."""

    def __init__(self, timeline: _Timeline, losses: list[tuple[float, float]]) -> None:
        self._name = timeline._name
        self._state = timeline._state
        changes = timeline._changes
        self._changes = {change.token: change for change in changes}
        self._before = dict(zip(self._changes, [_NOTHING, *self._changes], strict=False))
        self._makers = dict(zip(self._changes, timeline._makers, strict=False))
        self._last = changes[-1]
        self._lossy = bool(losses)
        self._lost = [call for call in timeline._calls if call.token not in timeline.made and _is_lost(call, losses)]
        # An edit or an end that was lost may have been seen before, just as a removal.
        self._lost_forms = {as_form(one["form"]) for call in self._lost for one in call.arguments.get("entries", ())}
        self._texts: dict[str, str] = {}

    def check(self, seen: list[Seen]) -> list[str]:
        problems = []
        before = Seen(self._name, "", _NOTHING, 0, _NOTHING)
        for event in seen:
            if event.kind == "resumed":
                self._texts.clear()
                continue
            if event.kind == "reply_grew":
                problem = self._growth(before, event)
            else:
                problem = self._reset(before, event) if event.kind == "reset" else self._change(before, event)
            if problem:
                problems.append(f"{problem}: {_shown(event)} after {_shown(before)}")
            if event.kind != "reply_grew":
                before = event
        ended = before.kind == "conversation_deleted" or before.epoch == _NOTHING
        last = self._last
        if (last.change == "end" and not ended) or (last.change != "end" and before.token != last.token):
            problems.append(f"was never sent the last change, {_shown(last)}: it is at {_shown(before)}")
        return problems

    def _reset(self, before: Seen, event: Seen) -> str:
        self._texts.clear()
        ended = any(change.change == "end" for change in self._changes.values())
        if self._lossy:
            return ""
        if event.token not in self._changes and event.epoch != _NOTHING:
            return "a Reset to a state that never was"
        needed = {"conversation_missing": ended, "conversation_replaced": ended}
        return "" if needed.get(event.reason) else "a Reset without need"

    def _growth(self, before: Seen, event: Seen) -> str:
        if not event.ids:
            return "text of no message"
        known = self._texts.get(event.ids[0], "")
        if event.token != before.token:
            return "text of another state"
        if event.offset != len(known):
            return f"text at {event.offset}, but {len(known)} characters are known"
        self._texts[event.ids[0]] = known + event.text
        return "" if is_of_reply(known + event.text) else f"another text than was written, {known + event.text!r}"

    def _end(self, event: Seen) -> str:
        known = self._texts.pop(event.ids[0], "")
        if not event.forms:
            return ""
        if event.offset not in (0, len(known)):
            return f"an end at {event.offset}, but {len(known)} characters are known"
        [(_, text, _, status)] = event.forms
        joined = known[: event.offset] + event.text
        if joined != text if status not in ("streaming", "interrupted") else not is_of_reply(joined):
            return f"the joined text {joined!r}, but it is {text!r}"
        return ""

    def _change(self, before: Seen, event: Seen) -> str:
        ended = before.kind == "conversation_deleted" or before.epoch == _NOTHING
        begins = event.revision == 1 and ended
        if not begins and (event.epoch, event.revision) != (before.epoch, before.revision + 1):
            return "a repeat" if (event.epoch == before.epoch and event.revision <= before.revision) else "a gap"
        change = self._changes.get(event.token)
        if change is None:
            return "" if self._lossy else "an event without a change"
        if not begins and self._before[event.token] != before.token:
            return "no Reset, but the change before is another one"
        if (event.kind, event.removed, event.count) != (change.kind, change.removed, change.count):
            return f"another event than in the log, {change}"
        if problem := self._content(event):
            return problem
        return self._end(event) if event.kind == "reply_ended" else ""

    def _content(self, event: Seen) -> str:
        """Each message must be there as it was at this change or later, unless it was removed since."""
        # A read after the end of a conversation shows no epoch any more.
        maker, key = self._makers[event.token], self._changes[event.token].epoch
        wanted = [entry["form"][0] for entry in maker.arguments.get("entries", ())]
        if event.change == "append":  # without duplicates
            wanted = [name for name in wanted if (key, event.revision, name) in self._state.added]
        forms = {one[0]: one for one in event.forms}
        for name in wanted:
            versions = self._state.versions[key, name]
            fitting = {one for at, one in versions if at >= event.revision}
            if name in forms and forms[name] not in fitting | self._lost_forms:
                return f"the message {forms[name]}, which never was so"
            gone = [at for at in self._state.removals[key, name] if at > event.revision]
            # A cap removes a message together with its call.
            lost = any(_may_remove(call, name) for call in self._lost)
            if name not in forms and not gone and name not in event.removed and not lost:
                return f"no message {name}, which was not removed"
        if more := forms.keys() - set(wanted):
            return f"messages {more}, which are of other changes"
        return ""


def _is_lost(call: Call, losses: list[tuple[float, float]]) -> bool:
    """Whether a call may have made a change that a server lost."""
    return call.status == "unknown" and any(call.invoked < end and call.responded > begin for begin, end in losses)


def _may_remove(call: Call, name: str) -> bool:
    """Whether a change by this call may remove a message."""
    if call.kind in ("DeleteMessages", "EraseMessages"):  # an erasure takes summaries with it
        return name in call.arguments["ids"] or call.kind == "EraseMessages"
    return call.kind in ("Clear", "Restore", "Compact", "DeleteConversation") or bool(call.arguments.get("cap"))


def is_of_reply(text: str) -> bool:
    """Whether a text is the beginning of what each reply says: 0 1 2 3 …"""
    words = text.split(" ")
    return words[-1] == "" and words[:-1] == [str(number) for number in range(len(words) - 1)]


def _shown(event: Seen) -> str:
    return f"{event.kind} {event.reason} {event.epoch}:{event.revision}:{event.token}"


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
        live = {one[0] for one in final.messages if word in re.findall(r"\w+", one[1])}
        archived = {one[0] for one in final.archived if word in re.findall(r"\w+", one[1])}
        if not live <= set(found) <= live | archived:
            wanted = sorted(live)
            problems.append(f"{name}: a search for {word!r} finds {found}, but {wanted} has it")
    return problems
