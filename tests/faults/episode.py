"""One run: servers that are attacked, processes that write and subscribe, and faults until enough is done."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from redis_history import HistoryStore, Usage
from redis_history.errors import RedisHistoryError
from redis_history.store.operations.base import CONTENT_LASTS_MS
from redis_history.values.sizes import count_characters, message_tokens
from tests.faults import recording
from tests.faults.checking import check, is_of_reply
from tests.faults.clients import LOG, MAYFLY, NAMES, NAMESPACE, OWNERS, PATIENT, RUNS, Settings
from tests.faults.deaths import LOSE_EVERY
from tests.faults.deployments import Deployment
from tests.faults.recording import Call, Final, Recorded, Seen, form
from tests.support.servers import wait_until

ROOT = Path(__file__).parent.parent.parent
#: The minimum number of acknowledged calls; on a busy machine, a run takes longer to reach it.
ENOUGH = 300


class Client:
    """A process that writes or subscribes, and that can be killed, stopped, and started again."""

    def __init__(self, role: str, settings: Settings, package: Path) -> None:
        self.role = role
        self.settings = settings
        self._path = os.pathsep.join([str(package), str(ROOT)])
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "tests.faults.clients", self.role]
        command.append(msgspec.json.encode(self.settings).decode())
        environment = {**os.environ, "PYTHONPATH": self._path}
        self.log = Path(self.settings.folder) / f"{self.settings.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.settings = msgspec.structs.replace(self.settings, life=self.settings.life + 1)
        self.start()


class Observer:
    """Sees all changes, also of conversations that end."""

    def __init__(self, url: str) -> None:
        self.events: list[Seen] = []
        self._stopping = threading.Event()
        self._store = HistoryStore(
            url, namespace=NAMESPACE, retry=PATIENT, search="off", poll_interval=0.2, log_length=LOG
        )
        self._subscription = self._store.subscribe_all(after={})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        idle = 0
        while idle < 3 or not self._stopping.is_set():
            with contextlib.suppress(RedisHistoryError):
                event = self._subscription.get(timeout=0.3)
                idle = idle + 1 if event is None else 0
                if event is not None:
                    self.events.append(recording.seen(event))

    def settle(self) -> None:
        """Return when it has seen everything."""
        self._stopping.set()
        self._thread.join(120)

    def close(self) -> None:
        self._stopping.set()
        self._subscription.close()
        self._store.close()
        self._thread.join(10)


class Episode:
    """It ends after `operations` acknowledged calls and the `least` number of each fault, or after `seconds`.
    `package` is the folder that has `redis_history` for the writers and watchers. `streamers` write ten replies each.
    `kills`: also those of processes with live replies, which are over only when their leases are."""

    def __init__(
        self,
        folder: Path,
        deployment: Deployment,
        *,
        operations: int,
        seconds: float = 600.0,
        search: str = "off",
        durability: str = "server",
        pause: float = 0.5,
        writers: int = 4,
        streamers: int = 2,
        kills: bool = True,
        seed: int = 1,
        package: Path = ROOT,
        least: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._folder = folder
        self._deployment = deployment
        self._operations = operations
        self._seconds = seconds
        self._search = search
        self._durability = durability
        self._pause = pause
        self._writers = writers
        self._streamers = streamers
        self._kills = kills
        self._seed = seed
        self._random = random.Random(seed)
        self._package = package
        self._least = least
        self._clients: list[Client] = []
        self._stack = contextlib.ExitStack()
        self._read: dict[Path, int] = {}
        self.counts: Counter[str] = Counter()
        self.recorded = Recorded(losses=deployment.losses)

    def _start(self) -> None:
        self._stack.callback(self._deployment.close)
        self._deployment.start()
        self._observer = Observer(self._deployment.direct)
        self._stack.callback(self._observer.close)
        # The losses of conversations that ended before a failover are unknown.
        common: dict[str, Any] = {"durability": self._durability, "deletes": self._durability == "server"}
        common["keeps_time"] = self._deployment.keeps_time
        for number in range(self._writers):
            self._start_client("writer", f"w{number}", asynchronous=number % 3 == 1, **common)
        for number in range(self._streamers):
            self._start_client("streamer", f"w{self._writers + number}", **common)
        self._start_client("watcher", "s0")
        self._start_client("watcher", "s1", asynchronous=True)
        self.recorded.follows["s1"] = NAMES

    def _start_client(self, role: str, name: str, **options: Any) -> None:
        settings = Settings(str(self._folder), self._deployment.url, name, self._seed, search=self._search, **options)
        client = Client(role, settings, self._package)
        self._clients.append(client)
        self._stack.callback(client.kill)

    # Faults

    def _kill_client(self) -> None:
        clients = [one for one in self._clients if self._kills or one.role != "streamer"]
        self._random.choice(clients).restart()

    def _stop_client(self) -> None:
        client = self._random.choice(self._clients)
        client.process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.05, 1.5))
        client.process.send_signal(signal.SIGCONT)

    def _do_harm(self) -> None:
        kinds = {self._kill_client: 2, self._stop_client: 2, **self._deployment.faults()}
        [harm] = self._random.choices([*kinds], [*kinds.values()])
        harm()
        self.counts[harm.__name__.strip("_")] += 1

    # The run

    def run(self) -> list[str]:
        """The violations."""
        with self._stack:
            self._start()
            wait_until(lambda: self._acknowledged() > 20, "the writers to begin", 60)
            end = time.monotonic() + self._seconds
            while self._acknowledged() < self._operations or not Counter(self._least) <= self.counts:
                late = time.monotonic() - end
                if (late > 0 and self.counts["acknowledged"] > ENOUGH) or late > 120:
                    break
                time.sleep(self._random.uniform(0.0, 2 * self._pause))
                self._check_running()
                try:
                    self._do_harm()
                except ResponseError as error:
                    if "BUSYKEY" not in str(error):
                        raise
                    return [f"a slot cannot move, because both nodes have the same key: {error}"]
            self._settle()
            self._collect()
        return check(self.recorded)

    def _check_running(self) -> None:
        for client in self._clients:
            assert not client.process.poll(), client.log.read_text()[-3000:]

    def _acknowledged(self) -> int:
        """How many calls have been acknowledged so far."""
        for path in self._folder.glob("*.calls"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
                self.counts["acknowledged"] += data.count(b',"ok",')
                self._read[path] = file.tell()
        return self.counts["acknowledged"]

    def _settle(self) -> None:
        (self._folder / "stop").touch()
        for client in self._clients:
            if client.role != "watcher":
                idle = self._folder / f"idle {client.settings.name}"
                wait_until(lambda i=idle, c=client: i.exists() or c.process.poll(), "a writer to end", 90)
        self._check_running()
        self.counts.update(self._deployment.settle())
        self._wait_for_replies()
        (self._folder / "finish").touch()
        for client in self._clients:
            assert client.process.wait(150) == 0, client.log.read_text()[-3000:]
        self._acknowledged()
        self._observer.settle()
        self._check_deaths()

    def _check_deaths(self) -> None:
        """Check that leases of a killed process end in time, also for readers that lose replies."""
        folder, url = str(self._folder), self._deployment.direct
        doomed, mourner = (
            Client(role, Settings(folder, url, name, self._seed), self._package)
            for role, name in (("doomed", "d0"), ("mourner", "m0"))
        )
        self._stack.callback(doomed.kill)
        self._stack.callback(mourner.kill)
        for client, file in ((doomed, "doomed"), (mourner, "mourning")):
            wait_until((self._folder / file).exists, f"the {client.role} to begin", 60)
        self._deployment.lose_every(LOSE_EVERY)
        time.sleep(LOSE_EVERY)  # the reader has lost a reply
        doomed.kill()
        (self._folder / "dead").touch()
        try:
            assert mourner.process.wait(60) == 0, mourner.log.read_text()[-3000:]
        finally:
            self._deployment.lose_every(0.0)

    def _open(self, **options: Any) -> Any:
        return HistoryStore(self._deployment.direct, namespace=NAMESPACE, retry=PATIENT, log_length=LOG, **options)

    def _wait_for_replies(self) -> None:
        """Replies of killed writers come to their end."""
        with self._open(search="off") as store:
            names = [one.conversation_id for one in store.list_conversations(limit=1000)]
            for name in names:
                wait_until(
                    lambda name=name: all(one.status != "streaming" for one in store.get(name)),
                    f"the replies of {name} to end",
                    30,
                )

    def _collect(self) -> None:
        recorded = self.recorded
        for path in sorted(self._folder.glob("*.calls")) + sorted(self._folder.glob("*.events")):
            recording.read_journal(path, recorded)
        recorded.calls = [call for call in recorded.calls if call.conversation.split()[0] != MAYFLY]
        names = sorted({call.conversation for call in recorded.calls})
        with self._open(search=self._search) as store:
            for name in names:
                self._read_changes(store, name)
                messages = store.get(name)
                self._check_replies(name, messages)
                record = store.get_conversation(name)
                live = tuple(map(form, messages))
                everything = store.get(name, include_archived=True)
                archived = tuple(one for one in map(form, everything) if one not in live)
                title, count = (record.title, record.message_count) if record is not None else (None, 0)
                usage = (record is not None and record.usage) or Usage()
                recorded.final[name] = Final(live, archived, title, count, usage.numbers)
            for name, word in self._words():
                hits = store.search(name, word, limit=20)
                recorded.found.append((name, word, sorted({hit.message.id for hit in hits})))
            self._check_lists(store)
            self._check_erased()
            self._check_what_is_left(store)

    def _read_changes(self, store: Any, name: str) -> None:
        """From the log, and if the conversation has ended before, from the observer."""
        log = [one for one in map(recording.seen, store.log(name, limit=100_000)) if one.change]
        if self.recorded.losses or name in NAMES:
            self.recorded.changes[name] = log
            return
        events = [event for event in self._observer.events if event.conversation == name]
        changes = [event for event in events if event.change]
        lives = [before for before, event in pairwise([None, *changes]) if event and event.revision == 1]
        dense = all(
            after.revision in (1, before.revision + 1) and (after.revision == 1) == (before.change == "end")
            for before, after in pairwise(changes)
        )
        seen = {event.call for event in changes}
        unseen = [
            call for call in self.recorded.calls if call.conversation == name and _bounds(call) - seen
        ]  # calls of lives that were over before the observer looked
        if (
            not lives
            or not dense
            or unseen
            or any(event.kind == "reset" for event in events)
            or (log and changes[-1].token != log[-1].token)
        ):
            self.recorded.partly.add(name)
            self.counts["partly"] += 1
        self.recorded.changes[name] = changes

    def _say(self, problem: str) -> None:
        self.recorded.problems.append(problem)

    def _check_replies(self, name: str, messages: list[Any]) -> None:
        for message in messages:
            if message.status == "interrupted" and not is_of_reply(message.text):
                self._say(f"{name}: the reply {message.id} says {message.text!r}")

    def _check_lists(self, store: Any) -> None:
        everything = store.list_conversations(limit=100_000)
        listed = [one for one in everything if one.conversation_id.split()[0] != MAYFLY]
        names = [one.conversation_id for one in listed]
        there = sorted(name for name in self.recorded.final if store.get_conversation(name) is not None)
        if sorted(names) != there:
            self._say(f"the list has {sorted(names)}, but there are {there}")
        times = [one.updated_at for one in listed if one.conversation_id != RUNS]  # which runs without changes move
        if self._deployment.keeps_time and times != sorted(times, reverse=True):
            self._say(
                f"the list is in another order than of changes: {[(n.conversation_id, n.updated_at) for n in listed]}"
            )
        for one in listed:
            messages = store.get(one.conversation_id)
            sizes = sum(map(count_characters, messages)), sum(map(message_tokens, messages)), len(messages)
            if (one.characters, one.estimated_tokens, one.message_count) != sizes:
                found = (one.characters, one.estimated_tokens, one.message_count)
                self._say(f"{one.conversation_id}: its totals are {found}, but it has {sizes}")
        for owner in OWNERS if not self.recorded.losses else ():  # None: all
            own = [one.usage for one in listed if one.usage and (owner is None or self._owns(one, owner))]
            if (found := store.usage(user_id=owner)) != (wanted := sum(own, Usage())):
                self._say(f"the usage of {owner!r} is {found}, but its conversations have {wanted}")
        for owner in OWNERS[1:]:
            wanted = [one.conversation_id for one in everything if self._owns(one, owner)]
            found = [one.conversation_id for one in store.list_conversations(user_id=owner, limit=100_000)]
            if found != wanted or store.count_conversations(user_id=owner) != len(wanted):
                self._say(f"the list of {owner!r} has {found}, but these are {wanted}")

    @staticmethod
    def _owns(one: Any, owner: object) -> bool:
        return (one.user_id, type(one.user_id)) == (owner, type(owner))

    def _check_erased(self) -> None:
        """No key of any server has a text that was erased, and that nobody has written again, but large contents that
        no script has linked, which expire within a minute."""
        written: dict[str, float] = {}
        for call in self.recorded.calls:
            if call.kind in ("Append", "Restore", "UpdateMessage"):
                for entry in call.arguments["entries"]:
                    written[entry["form"][1]] = max(call.responded, written.get(entry["form"][1], 0.0))
        erased = [fields for path in self._folder.glob("*.calls") for what, *fields in recording.lines(path)
                  if what == "erased"]  # fmt: skip
        words = {word for word, begun in erased if written[word] < begun}
        self.counts["erased"] = len(words)

        def found() -> set[str]:
            contents = [its for node in self._deployment.nodes for its in _contents(node).items()]
            data = b"\n".join(content for key, content in contents if MAYFLY.encode() not in key)  # with copies
            return words & {match.decode() for match in re.findall(rb"tw\w+x\d+x\d+", data)}

        left: set[str] = set()
        with contextlib.suppress(AssertionError):  # what removes documents may still be at it
            wait_until(lambda: not left.clear() and not left.update(found()) and not left, "the texts to be gone", 5)
        for word in left:
            keys = [
                key for node in self._deployment.nodes for key, data in _contents(node).items() if word.encode() in data
            ]
            self._say(f"{word} was erased, but is in {keys}")

    def _check_what_is_left(self, store: Any) -> None:
        """When all conversations are deleted or over, nothing stays that does not expire soon."""
        for name in self.recorded.final:
            store.delete_conversation(name)
        soon = 150_000 if self._deployment.keeps_time else 300_000

        def lasting() -> list[tuple[bytes, int]]:
            """Keys, and the milliseconds that they have to live."""
            left = [(key, node.watcher.pttl(key)) for node in self._deployment.nodes for key in node.watcher.keys("*")]
            # Drafts of writers that were killed last longer, with their archives.
            # Totals of usage outlive their conversations.
            drafts = re.compile(rb":d:|:%b[^:]*:[ab]:|}:p(:|$)" % MAYFLY.encode())
            theirs = {
                key.partition(b":d:")[0] + b":b:" + name
                for node in self._deployment.nodes
                for key in node.watcher.keys("*:d:*:b")
                for name in node.watcher.zrange(key, 0, -1)
            }
            return [
                (key, its)
                for key, its in left
                if its != -2 and not 0 <= its <= soon and not drafts.search(key) and key not in theirs
            ]

        # A registry with other entries keeps the name of an expired conversation until a listing reads it.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not store.list_conversations(limit=1000) and not lasting(), "everything to be gone", 15)
        if left := lasting():
            self._say(f"keys are left without conversations: {left[:10]}")

    def _words(self) -> list[tuple[str, str]]:
        """Words that are there, and words that are gone."""
        final = self.recorded.final.items()
        there = {(name, one[1]) for name, its in final for one in (*its.messages, *its.archived)}
        used = {
            (call.conversation, entry["form"][1])
            for call in self.recorded.calls
            for entry in call.arguments.get("entries", ())
        }
        found = []
        for words, most in ((there & used, 200), (used - there, 100)):
            some = sorted(one for one in words if one[1][:1] == "t" and " " not in one[1])
            found += self._random.sample(some, min(most, len(some)))
        return found


def _bounds(call: Call) -> set[str]:
    """The mark of a call with which a conversation began or ended."""
    if call.status != "ok":
        return set()
    if call.kind == "Append":
        bounds = [1, False] in call.value
    elif call.kind == "DeleteConversation":
        bounds = call.value
    else:
        bounds = call.kind in ("Restore", "WriteRecord") and call.value == 1
    return {call.token[:6]} if bounds else set()


def _contents(node: Any) -> dict[bytes, bytes]:
    """The content of each key of a server."""
    client = node.watcher
    reads = {
        b"string": lambda key: [client.get(key) or b""],
        b"hash": lambda key: [part for pair in client.hgetall(key).items() for part in pair],
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"set": client.smembers,
    }
    kinds = [(key, client.type(key)) for key in client.keys("*")]
    # "none": it has expired since.
    return {
        key: b"\n".join(reads[kind](key)) for key, kind in kinds if kind != b"none" and not _is_unlinked(client, key)
    }


def _is_unlinked(client: Any, key: bytes) -> bool:
    return b":b:" in key and 0 < client.pttl(key) <= int(CONTENT_LASTS_MS)
