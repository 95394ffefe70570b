"""A small model of a conversation, on purpose not the package's own."""

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from tests.faults.recording import Call, Form, Seen, as_form

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
        self.form: Form = as_form(entry["form"])
        self.digest = entry["digest"]  # None: a reader has ended a reply, with what there was of it
        self.stays = entry["stays"]
        self.revision = revision

    def is_like(self, digest: str) -> bool:
        return self.digest in (digest, None)

    @property
    def is_live(self) -> bool:
        return self.form[3] == "streaming"


class Archive:
    """The messages that one compaction replaced."""

    def __init__(self, summary: str, former: str | None, held: list[str]) -> None:
        self.summary = summary
        self.former = former
        self.held = held


class Conversation:
    """One conversation. `apply` makes a change of it, and returns its problems. `lossy`: servers have lost writes, so
    that a caller may know positions that others have now."""

    def __init__(self, *, lossy: bool = False) -> None:
        self._lossy = lossy
        self.exists = False
        self.epoch = self.token = "0" * 16
        self.revision = 0
        self._fences: dict[str, tuple[int, str]] = {}
        #: By epoch and id: the forms of each message, and when it was removed, by revision.
        self.versions: dict[tuple[str, str], list[tuple[int, Form]]] = defaultdict(list)
        self.removals: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.added: set[tuple[str, int, str]] = set()
        self.stored: dict[str, Stored] = {}
        self._begin()

    def _begin(self) -> None:
        self.title: str | None = None
        #: The newest usage of each id, also of those that were removed.
        self.used: dict[str, tuple[int, ...]] = {}
        self._sequence = 0
        self._summaries: set[str] = set()
        self._empty()

    def _empty(self) -> None:
        for name in self.stored:
            self.removals[self.epoch, name].append(self.revision)
        self.stored = {}
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

    @property
    def usage(self) -> tuple[int, ...]:
        return tuple(map(sum, zip((0, 0, 0, 0), *self.used.values(), strict=True)))

    def fork(self, through: list[int] | None) -> list[Form]:
        """The messages of a fork, live and archived, without summaries."""
        found = [
            (one.key, one.form) for name, one in self.stored.items() if not (self.was_summary(name) or one.is_live)
        ]
        return sorted(form for key, form in found if through is None or key <= key_of(through))

    def was_summary(self, name: str) -> bool:
        return name in self._summaries

    def is_live(self, name: str) -> bool:
        return name in self.stored and not any(name in archive.held for archive in self.archives)

    def conflicts(self, entry: dict[str, Any]) -> bool:
        """Whether a message of this id is stored with other content, or at another time than this one names."""
        stored = self.stored.get(entry["form"][0])
        other_time = entry["timestamp"] is not None and stored is not None and stored.key[0] != entry["timestamp"]
        return stored is not None and (not stored.is_like(entry["digest"]) or other_time)

    def _put(self, name: str, entry: dict[str, Any], revision: int) -> None:
        self.stored[name].put(entry, revision)
        self._note(name)
        self._use(entry)

    def _use(self, entry: dict[str, Any]) -> None:
        if entry.get("usage") is not None:
            self.used[entry["form"][0]] = tuple(entry["usage"])

    def _note(self, name: str) -> None:
        stored = self.stored[name]
        self.versions[self.epoch, name].append((stored.revision, stored.form))

    def apply(self, change: Seen, call: Call) -> list[str]:
        """Problems of the change itself; then those of the outcome that the caller was given."""
        problems = []
        if change.change == "end":
            self._fences.clear()
        if change.revision != self.revision + 1 and not (change.revision == 1 and not self.exists):
            problems.append(f"revision {change.revision} follows {self.revision}")
        fence, run, kind = call.arguments.get("fence") or (0, "", "")
        latest, holder = self._fences.get(kind, (fence, run))
        if fence < latest or (fence == latest and run != holder):
            problems.append(f"has the fence {fence} of the {kind} {run}, but one with {latest} of {holder} has written")
        self._fences[kind] = fence, run
        expected = call.arguments.get("expected")
        if expected is not None and expected != (self.revision if self.exists else 0):
            problems.append(f"was made at revision {self.revision}, but expected {expected}")
        if not self.exists:
            if change.change == "end":
                problems.append("deleted a conversation that did not exist")
            self._begin()
            self.exists, self.epoch = True, change.epoch
        self.revision, self.token = change.revision, change.token
        outcome = getattr(self, f"_{change.change}")(change, call, problems)
        if call.status == "ok" and outcome is not None and call.value != outcome:
            problems.append(f"gave {call.value}, and its change is {outcome}")
        return problems

    # Each returns the outcome that the caller must be given.

    def _append(self, change: Seen, call: Call, problems: list[str]) -> Any:
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

    def _restore(self, change: Seen, call: Call, problems: list[str]) -> Any:
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
        self._note(name)
        self._use(entry)
        self.added.add((self.epoch, revision, name))
        insort(self.live, (self.stored[name].key, name))

    def _note_alone(self) -> None:
        """Remember results that come without a call: it has left before, or was deleted. No store can mend that."""
        if any(form[2] for form in self.forms):
            self._alone |= set(orphans(self.forms, self._alone))

    def _check_pairs(self, problems: list[str]) -> None:
        if torn := orphans(self.forms, self._alone):
            problems.append(f"the results {torn} have lost their calls")
            self._alone |= set(torn)

    def _trim(self, change: Seen, call: Call, problems: list[str]) -> None:
        cap = call.arguments.get("cap")
        excess = max(0, len(self.live) - cap) if cap else 0
        unpinned = [name for _, name in self.live if self.stored[name].stays != "pinned"]
        oldest = set(unpinned[:excess])
        gone = set(change.removed)
        # An old call may stay, with its results, if others leave with theirs.
        pairs = {name for name, stored in self.stored.items() if any(kind == "r" for kind, _ in stored.form[2])}
        if len(gone) < len(oldest) or not gone <= oldest | pairs & self.stored.keys() or (gone and not excess):
            problems.append(f"removed {sorted(gone)}, but the oldest beyond the cap are {sorted(oldest)}")
        for name in gone & self.stored.keys():
            self._take(name)
        if gone:
            self._check_pairs(problems)

    def _update(self, change: Seen, call: Call, problems: list[str]) -> Any:
        [entry] = call.arguments["entries"]
        name, ends = entry["form"][0], call.arguments.get("reply")
        if not self.is_live(name):
            problems.append(f"updated {name}, which is not there")
            return change.revision
        stored = self.stored[name]
        if ends is not None and not stored.is_live and (ends == "" or stored.digest is not None):
            problems.append(f"ended the reply {name}, but overwrote {stored.form}")
        if (change.kind == "reply_ended") != stored.is_live:
            problems.append(f"gave a {change.kind}, but the message was {stored.form}")
        self._put(name, entry, change.revision)
        return change.revision

    def _delete(self, change: Seen, call: Call, problems: list[str]) -> Any:
        asked = [name for name in call.arguments["ids"] if name in self.stored]
        found = asked
        if call.kind == "EraseMessages":  # with the summaries that may quote them
            found = [name for name in change.ids if name in self.stored]
            if more := [name for name in found if name not in asked and not self.was_summary(name)]:
                problems.append(f"erased {more}, which nobody asked for")
        if set(change.ids) != set(found) or not set(asked) <= set(found):
            problems.append(f"gave an event with {change.ids}, but removed {found} of {asked}")
        if not found:
            problems.append(f"deleted nothing of {call.arguments['ids']}")
        for name in found:
            self._take(name)
        return len(asked)

    def _take(self, name: str) -> None:
        if self.is_live(name):
            self.live.remove((self.stored[name].key, name))
        for archive in self.archives:
            archive.held = [one for one in archive.held if one != name]
            archive.summary = "" if archive.summary == name else archive.summary
            archive.former = None if archive.former == name else archive.former
        self.summary = None if self.summary == name else self.summary
        self.removals[self.epoch, name].append(self.revision)
        del self.stored[name]

    def _clear(self, change: Seen, call: Call, problems: list[str]) -> Any:
        if not self.stored:
            problems.append("cleared what was empty")
        self._empty()
        return change.revision

    def _record(self, change: Seen, call: Call, problems: list[str]) -> Any:
        self.title = call.arguments["fields"].get("title", self.title)
        return change.revision

    def _end(self, change: Seen, call: Call, problems: list[str]) -> Any:
        self.exists = False
        self._begin()
        return True

    def _compact(self, change: Seen, call: Call, problems: list[str]) -> Any:
        through = key_of(call.arguments["through"])
        [entry] = call.arguments["entries"]
        before = self.live[: bisect_right(self.live, (through, "\U0010ffff"))]
        leaving = [name for _, name in before if not (self.stored[name].stays or self.stored[name].is_live)]
        if self._lossy:
            leaving = leaving[: change.count]
        if not leaving:
            problems.append("compacted nothing")
            return None
        summary, place = entry["form"][0], self.stored[leaving[-1]].key
        self.archives.append(Archive(summary, self.summary, leaving))
        self.live = [one for one in self.live if one[1] not in set(leaving)]
        self.stored[summary] = Stored(entry, place, change.revision)
        self._note(summary)
        insort(self.live, (place, summary))
        self.summary = summary
        self._summaries.add(summary)
        self._check_pairs(problems)
        if (change.ids, change.count) != ((summary,), len(leaving)):
            problems.append(f"gave an event of {change.count} messages and {change.ids}, but it is {len(leaving)}")
        return [change.revision, len(leaving), True, True]

    def _expand(self, change: Seen, call: Call, problems: list[str]) -> Any:
        archive = next((one for one in self.archives if one.summary == call.arguments["id"]), None)
        if archive is None or self.summary != archive.summary:
            problems.append(f"expanded {call.arguments['id']}, which is not the live summary")
            return None
        self._take(archive.summary)
        self.archives.remove(archive)
        self.live = sorted([*self.live, *((self.stored[name].key, name) for name in archive.held)])
        self.summary = archive.former
        return [change.revision, len(archive.held)]


def key_of(position: Iterable[int]) -> Key:
    time, sequence = position
    return NOW if PAST < time < FUTURE else time, sequence


def orphans(messages: Iterable[Form], besides: Collection[str] = ()) -> list[str]:
    """The ids of results without a call before them: in any prefix, each call id has at most as many results as
    calls. Messages of `besides` are left out."""
    calls: Counter[str] = Counter()
    found = []
    for name, _, tools, *_ in messages:
        for kind, call in tools if name not in besides else ():
            if kind == "u" or calls[call]:
                calls[call] += 1 if kind == "u" else -1
            else:
                found.append(name)
    return found
