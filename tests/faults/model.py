"""A small model of a conversation, on purpose not the package's own."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from tests.faults.recording import Call, Change, Form

#: Where a message sorts: its explicit time, or NOW for the server's clock, and its sequence.
Key = tuple[float, int]
#: Explicit times are long before or after this, in microseconds; between them the server's clock counts up.
PAST, NOW, FUTURE = 1.0e15, 1.5e15, 4.0e15


class Stored:
    """A message that is live or archived."""

    def __init__(self, entry: dict[str, Any], key: Key, revision: int) -> None:
        self.key = key
        self.put(entry, revision)

    def put(self, entry: dict[str, Any], revision: int) -> None:
        message_id, text, tools = entry["form"]
        self.form: Form = (message_id, text, tuple((kind, call) for kind, call in tools))
        self.digest = entry["digest"]
        self.stays = entry["stays"]
        self.revision = revision


class Archive:
    """The messages that one compaction replaced."""

    def __init__(self, summary: str, former: str | None, held: list[str]) -> None:
        self.summary = summary
        self.former = former
        self.held = held


class Conversation:
    """One conversation. `apply` makes a change of it, and returns its problems."""

    def __init__(self) -> None:
        self.exists = False
        self.epoch = self.token = "0" * 16
        self.revision = 0
        self._invoked = self._begun = 0.0  # no change was made before that
        self._begin()

    def _begin(self) -> None:
        self.title: str | None = None
        self._sequence = 0
        self._summaries: set[str] = set()
        self._empty()

    def _empty(self) -> None:
        self.stored: dict[str, Stored] = {}
        self.live: list[tuple[Key, str]] = []
        self.archives: list[Archive] = []
        self.summary: str | None = None
        self._alone: set[str] = set()

    @property
    def forms(self) -> list[Form]:
        return [self.stored[name].form for _, name in self.live]

    @property
    def originals(self) -> list[Form]:
        """Archived messages, without summaries."""
        held = [name for archive in self.archives for name in archive.held]
        return [self.stored[name].form for name in held if not self.was_summary(name)]

    def was_summary(self, name: str) -> bool:
        return name in self._summaries

    def is_live(self, name: str) -> bool:
        return name in self.stored and not any(name in archive.held for archive in self.archives)

    def conflicts(self, entry: dict[str, Any]) -> bool:
        """Whether a message of this id is stored with other content, or at another time than this one names."""
        stored = self.stored.get(entry["form"][0])
        other_time = entry["timestamp"] is not None and stored is not None and stored.key[0] != entry["timestamp"]
        return stored is not None and (stored.digest != entry["digest"] or other_time)

    def apply(self, change: Change, call: Call) -> list[str]:
        """Problems of the change itself; then those of the outcome that the caller was given."""
        problems = []
        self._invoked = max(self._invoked, call.invoked)
        if change.revision != self.revision + 1 and not (change.revision == 1 and not self.exists):
            problems.append(f"revision {change.revision} follows {self.revision}")
        expected = call.arguments.get("expected")
        if expected is not None and expected != (self.revision if self.exists else 0):
            problems.append(f"was made at revision {self.revision}, but expected {expected}")
        if not self.exists:
            if change.kind == "end":
                problems.append("deleted a conversation that did not exist")
            self._begin()
            self._begun = self._invoked
            self.exists, self.epoch = True, change.token
        self.revision, self.token = change.revision, change.place
        outcome = getattr(self, f"_{change.kind}")(change, call, problems)
        if call.status == "ok" and outcome is not None and call.value != outcome:
            problems.append(f"gave {call.value}, and its change is {outcome}")
        return problems

    # Each returns the outcome that the caller must be given.

    def _append(self, change: Change, call: Call, problems: list[str]) -> Any:
        outcome = []
        for entry in call.arguments["entries"]:
            stored = self.stored.get(entry["form"][0])
            if stored is None:
                self._add(entry, change.revision)
                outcome.append([change.revision, False])
            else:
                if self.conflicts(entry):
                    problems.append(f"appended {entry['form'][0]}, which was stored with other content")
                outcome.append([stored.revision, True])
        if all(duplicate for _, duplicate in outcome):
            problems.append("appended nothing")
        self._note_alone()
        self._trim(change, call, problems)
        return outcome

    def _restore(self, change: Change, call: Call, problems: list[str]) -> Any:
        self._empty()
        for entry in call.arguments["entries"]:
            self._add(entry, change.revision)
        self._note_alone()
        self._trim(change, call, problems)
        return change.revision

    def _add(self, entry: dict[str, Any], revision: int) -> None:
        self._sequence += 1
        name, time = entry["form"][0], entry["timestamp"]
        self.stored[name] = Stored(entry, (NOW if time is None else time, self._sequence), revision)
        insort(self.live, (self.stored[name].key, name))

    def _note_alone(self) -> None:
        """Remember results that come without a call: it has left before, or was deleted. No store can mend that."""
        if any(tools for _, _, tools in self.forms):
            self._alone |= set(orphans(self.forms, self._alone))

    def _check_pairs(self, problems: list[str]) -> None:
        if torn := orphans(self.forms, self._alone):
            problems.append(f"the results {torn} have lost their calls")
            self._alone |= set(torn)

    def _trim(self, change: Change, call: Call, problems: list[str]) -> None:
        cap = call.arguments.get("cap")
        excess = max(0, len(self.live) - cap) if cap else 0
        oldest = {name for _, name in self.live[:excess]}
        gone = set(change.removed)
        # An old call may stay, with its results, if others leave with theirs.
        pairs = {name for name, stored in self.stored.items() if any(kind == "r" for kind, _ in stored.form[2])}
        if len(gone) < excess or not gone <= oldest | pairs & self.stored.keys() or (gone and not excess):
            problems.append(f"removed {sorted(gone)}, but the oldest beyond the cap are {sorted(oldest)}")
        for name in gone & self.stored.keys():
            self._take(name)
        if gone:
            self._check_pairs(problems)

    def _update(self, change: Change, call: Call, problems: list[str]) -> Any:
        [entry] = call.arguments["entries"]
        name = entry["form"][0]
        if not self.is_live(name):
            problems.append(f"updated {name}, which is not there")
        else:
            self.stored[name].put(entry, change.revision)
        return change.revision

    def _delete(self, change: Change, call: Call, problems: list[str]) -> Any:
        found = [name for name in call.arguments["ids"] if name in self.stored]
        if not found:
            problems.append(f"deleted nothing of {call.arguments['ids']}")
        for name in found:
            self._take(name)
        return len(found)

    def _take(self, name: str) -> None:
        if self.is_live(name):
            self.live.remove((self.stored[name].key, name))
        for archive in self.archives:
            archive.held = [one for one in archive.held if one != name]
            archive.summary = "" if archive.summary == name else archive.summary
            archive.former = None if archive.former == name else archive.former
        self.summary = None if self.summary == name else self.summary
        del self.stored[name]

    def _clear(self, change: Change, call: Call, problems: list[str]) -> Any:
        if not self.stored:
            problems.append("cleared what was empty")
        self._empty()
        return change.revision

    def _record(self, change: Change, call: Call, problems: list[str]) -> Any:
        self.title = call.arguments["fields"].get("title", self.title)
        return change.revision

    def _end(self, change: Change, call: Call, problems: list[str]) -> Any:
        self.exists = False
        self._begin()
        return True

    def _compact(self, change: Change, call: Call, problems: list[str]) -> Any:
        time, sequence, clock = call.arguments["through"]
        if PAST < time < FUTURE:
            # It may be the place of a message of a former life: all of this one's are later, if the server dated them.
            of_this_life = clock >= self._begun and sequence <= self._sequence
            time, sequence = NOW, sequence if of_this_life else 0
        through = (time, sequence)
        [entry] = call.arguments["entries"]
        before = self.live[: bisect_right(self.live, (through, "\U0010ffff"))]
        leaving = [name for _, name in before if not self.stored[name].stays]
        if not leaving:
            problems.append("compacted nothing")
            return None
        summary, place = entry["form"][0], self.stored[leaving[-1]].key
        self.archives.append(Archive(summary, self.summary, leaving))
        self.live = [one for one in self.live if one[1] not in set(leaving)]
        self.stored[summary] = Stored(entry, place, change.revision)
        insort(self.live, (place, summary))
        self.summary = summary
        self._summaries.add(summary)
        self._check_pairs(problems)
        return [change.revision, len(leaving), True, True]

    def _expand(self, change: Change, call: Call, problems: list[str]) -> Any:
        archive = next((one for one in self.archives if one.summary == call.arguments["id"]), None)
        if archive is None or self.summary != archive.summary:
            problems.append(f"expanded {call.arguments['id']}, which is not the live summary")
            return None
        self._take(archive.summary)
        self.archives.remove(archive)
        self.live = sorted([*self.live, *((self.stored[name].key, name) for name in archive.held)])
        self.summary = archive.former
        return [change.revision, len(archive.held)]


def orphans(messages: Iterable[Form], besides: Collection[str] = ()) -> list[str]:
    """The ids of results without a call before them: in any prefix, each call id has at most as many results as
    calls. Messages of `besides` are left out."""
    calls: Counter[str] = Counter()
    found = []
    for name, _, tools in messages:
        for kind, call in tools if name not in besides else ():
            if kind == "u" or calls[call]:
                calls[call] += 1 if kind == "u" else -1
            else:
                found.append(name)
    return found
