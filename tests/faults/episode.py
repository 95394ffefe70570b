"""One run: a server behind a proxy that does harm, writers and subscribers, and faults until enough is done."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from redis_history import HistoryStore
from tests.faults import recording
from tests.faults.clients import NAMES, NAMESPACE, PATIENT, Settings
from tests.faults.recording import Final, Recorded, form
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, replication, wait_until, wait_until_replicated

ROOT = Path(__file__).parent.parent.parent
#: The probability of each fault, for each piece of bytes that passes.
HARM = {
    "request_lost": 0.002,
    "request_halved": 0.002,
    "request_delayed": 0.005,
    "request_late": 0.008,
    "request_repeated": 0.02,
    "reply_lost": 0.008,
    "reply_halved": 0.002,
    "reply_delayed": 0.005,
}
#: Some writers keep so short a log; servers leave more in it.
SHORT_LOG = 40
#: On a busy machine a run lasts longer, until so many calls are acknowledged.
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


class Episode:
    """It ends after so many acknowledged `operations`, or after so many `seconds`. `package` is the folder that has
    `redis_history` for the writers and watchers. With `replicas` the server has one, which takes over now and then;
    writers wait for it."""

    def __init__(
        self,
        folder: Path,
        *,
        kind: str,
        operations: int,
        seconds: float = 600.0,
        fsync: str = "always",
        replicas: bool = False,
        latest: float = 3.0,
        pause: float = 0.5,
        writers: int = 4,
        seed: int = 1,
        package: Path = ROOT,
    ) -> None:
        self._folder = folder
        self._kind = kind
        self._operations = operations
        self._seconds = seconds
        self._search = "require" if kind == "redis" else "off"
        self._fsync = fsync
        self._replicas = replicas
        self._latest = latest
        self._pause = pause
        self._writers = writers
        self._random = random.Random(seed)
        self._seed = seed
        self._package = package
        self._servers: list[RealServer] = []
        self._clients: list[Client] = []
        self._stack = contextlib.ExitStack()
        self._listener: Any = None
        self._marks = 0
        self._read: dict[Path, int] = {}
        self.counts: Counter[str] = Counter()
        self.recorded = Recorded()

    def _start(self) -> None:
        self._start_server()
        self._listen()
        if self._replicas:
            self._add_replica()
        self._proxy = LossyProxy(self._primary.port, faults=HARM, latest=self._latest, seed=self._seed)
        self._stack.callback(self._proxy.close)
        for number in range(self._writers):
            self._start_client(
                "writer",
                f"w{number}",
                durability="replicas" if self._replicas else "server",
                log_length=SHORT_LOG if number == 1 else 1000,
                asynchronous=number % 3 == 1,
            )
        self._start_client("watcher", "s0")
        self._start_client("watcher", "s1", asynchronous=True)
        self.recorded.follows["s1"] = NAMES

    def _start_client(self, role: str, name: str, **options: Any) -> None:
        url = f"redis://127.0.0.1:{self._proxy.port}/0?socket_timeout=0.5"
        settings = Settings(folder=str(self._folder), url=url, name=name, search=self._search, **options)
        client = Client(role, settings, self._package)
        self._clients.append(client)
        self._stack.callback(client.kill)

    # Servers

    @property
    def _primary(self) -> RealServer:
        """The last but the replica, which comes behind it."""
        return self._servers[-2:][0]

    def _start_server(self, *options: str) -> RealServer:
        options += ("--appendfsync", self._fsync, "--auto-aof-rewrite-percentage", "0")
        options += ("--repl-diskless-sync-delay", "0", "--client-output-buffer-limit", *["pubsub", "2048", "1024", "1"])
        server = RealServer(self._kind, tcp=True, options=options)
        self._servers.append(server)
        self._stack.callback(server.close)
        return server.start()

    def _listen(self) -> None:
        """Listen directly: for nobody a deleted conversation leaves an entry in its log."""
        self._listener = self._primary.client(client_name="listener").pubsub()
        self._stack.callback(self._listener.close)
        self._listener.psubscribe("nothing")
        wait_until(lambda: self._listener.get_message(timeout=1.0), "the listener to be heard")

    def _add_replica(self) -> None:
        primary = self._servers[-1]
        replica = self._start_server("--replicaof", "127.0.0.1", str(primary.port))
        wait_until(lambda: replication(replica)["master_link_status"] == "up", "the replica to follow")
        self._marks += 1
        with primary.client() as client:
            client.set("mark", self._marks)
        wait_until_replicated(primary, replica)

    def _restart_server(self) -> None:
        how = self._random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        self._proxy.refuse()
        begin = time.monotonic_ns() - 3e9
        self._primary.kill(how)
        self._primary.start()
        if self._fsync != "always":  # the last seconds may be lost
            self.recorded.losses.append((begin, time.monotonic_ns()))
        self._listen()
        self._proxy.forward(self._primary.port)

    def _fail_over(self) -> None:
        """The replica takes over; one time in two without what it was sent last."""
        primary, replica = self._servers[-2:]
        if self._random.random() < 0.5:
            begin = time.monotonic_ns()
            with replica.client() as client:
                client.config_set("masterauth", "wrong")
                client.config_set("masteruser", "nobody")
            with primary.client() as client:
                client.client_kill_filter(_type="replica")
            time.sleep(self._random.uniform(0.05, 0.6))  # what is written now is lost
            self._proxy.refuse()
            primary.kill()
            self.recorded.losses.append((begin, time.monotonic_ns()))
        else:
            self._proxy.refuse()
            wait_until_replicated(primary, replica)
            primary.kill()
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        self._add_replica()
        self._listen()
        self._proxy.forward(replica.port)

    # Other faults

    def _kill_client(self) -> None:
        self._random.choice(self._clients).restart()

    def _stop_client(self) -> None:
        client = self._random.choice(self._clients)
        client.process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.05, 1.5))
        client.process.send_signal(signal.SIGCONT)

    def _cut(self) -> None:
        """Cut every connection that listens, and some others."""
        with self._primary.client() as client:
            for number, one in enumerate(client.client_list()):
                listens = one["sub"] != "0" or one["psub"] != "0"
                other = number % 3 == 0 and one["cmd"] != "client|list" and "S" not in one["flags"]
                if one["name"] != "listener" and (listens or other):
                    client.client_kill_filter(_id=one["id"])

    def _do_harm(self) -> None:
        kinds: dict[Callable[[], None], float] = {self._kill_client: 2, self._stop_client: 2, self._cut: 3}
        kinds[self._fail_over if self._replicas else self._restart_server] = 2
        [harm] = self._random.choices([*kinds], [*kinds.values()])
        harm()
        self.counts[harm.__name__.strip("_")] += 1

    # The run

    def run(self) -> Recorded:
        with self._stack:
            self._start()
            wait_until(lambda: self._acknowledged() > 20, "the writers to begin", 60)
            end = time.monotonic() + self._seconds
            while self._acknowledged() < self._operations:
                late = time.monotonic() - end
                if (late > 0 and self.counts["acknowledged"] > ENOUGH) or late > 120:
                    break
                time.sleep(self._random.uniform(0.0, 2 * self._pause))
                self._check_running()
                self._do_harm()
            self._settle()
            self._collect()
        return self.recorded

    def _check_running(self) -> None:
        for client in self._clients:
            assert client.process.poll() is None, client.log.read_text()[-3000:]

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
        writers = [client for client in self._clients if client.role == "writer"]
        for client in writers:
            idle = self._folder / f"idle {client.settings.name}"
            wait_until(lambda idle=idle, client=client: idle.exists() or client.process.poll(), "a writer to end", 90)
        self._check_running()
        self._proxy.settle()
        self.counts.update(self._proxy.counts)
        (self._folder / "finish").touch()
        for client in self._clients:
            assert client.process.wait(90) == 0, client.log.read_text()[-3000:]
        self._acknowledged()

    def _collect(self) -> None:
        recorded = self.recorded
        for path in sorted(self._folder.glob("*.calls")) + sorted(self._folder.glob("*.events")):
            recording.read_journal(path, recorded)
        names = sorted({call.conversation for call in recorded.calls})
        eras = [recording.read_changes(server.folder, names, NAMESPACE) for server in self._servers]
        recorded.changes, recorded.branches = recording.merge(eras[: self._marks] if self._replicas else eras)
        url, search = self._primary.url, self._search
        with HistoryStore(url, namespace=NAMESPACE, retry=PATIENT, search=search) as store:  # type: ignore[arg-type]
            for name in names:
                messages = tuple(form(one) for one in store.get(name))
                record = store.get_conversation(name)
                everything = store.get(name, include_archived=True)
                archived = tuple(one for one in map(form, everything) if one not in messages)
                title, count = (record.title, record.message_count) if record is not None else (None, 0)
                recorded.final[name] = Final(messages, archived, title, count)
            for name, word in self._words():
                hits = store.search(name, word, limit=20)
                recorded.found.append((name, word, sorted({hit.message.id for hit in hits})))

    def _words(self) -> list[tuple[str, str]]:
        """Words that are there, and words that are gone."""
        final = self.recorded.final.items()
        there = {(name, one[1]) for name, its in final for one in (*its.messages, *its.archived) if one[1]}
        used = {
            (call.conversation, entry["form"][1])
            for call in self.recorded.calls
            for entry in call.arguments.get("entries", ())
            if entry["form"][1]
        }
        gone = sorted(used - there)
        return self._random.sample(sorted(there), min(200, len(there))) + self._random.sample(gone, min(100, len(gone)))
