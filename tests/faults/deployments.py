"""The deployments under attack: one server, a service behind a Sentinel, or a cluster, each behind proxies that do harm
where
clients can be sent through them; and the faults that only it has."""

import contextlib
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from tests.support.cluster import RealCluster
from tests.support.proxy import LossyProxy
from tests.support.sentinel import RealService
from tests.support.servers import RealServer, replication, wait_until, wait_until_replicated

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
_OPTIONS = ("--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0",
            "--client-output-buffer-limit", "pubsub", "2048", "1024", "1")  # fmt: skip
#: Without CONFIG: such a user cannot see whether the server sends notifications.
_USER = ("--user", "worker", "on", ">secret", "~*", "&*", "+@all", "-config")


class Deployment:
    """`losses`: times in which acknowledged writes may have been lost."""

    def __init__(self, *, latest: float, seed: int, limited: bool = False, clock: bool = False) -> None:
        self._latest = latest
        self._random = random.Random(seed)
        self._limited = limited
        self._clock = Clock() if clock else None
        self._proxies: list[LossyProxy] = []
        self._stack = contextlib.ExitStack()
        self.losses: list[tuple[float, float]] = []
        self.url = self.direct = ""

    @property
    def keeps_time(self) -> bool:
        return self._clock is None

    @property
    def nodes(self) -> list[RealServer]:
        """The servers that take writes now."""
        raise NotImplementedError

    def faults(self) -> dict[Callable[[], None], float]:
        """The faults besides those of the proxies, with their weights."""
        found: dict[Callable[[], None], float] = {self.cut: 3, self.flush_scripts: 1, self.fill: 1}
        if self._clock is not None:
            found[self.set_clock] = 2
        return found

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._stack.close()

    def settle(self) -> Counter[str]:
        """End all faults, and return how many of each there were when everything late has arrived."""
        for proxy in self._proxies:
            proxy.settle()
        return sum((proxy.counts for proxy in self._proxies), Counter())

    def lose_every(self, seconds: float) -> None:
        """Let each proxy lose one reply every `seconds` from now on, without other faults."""
        for proxy in self._proxies:
            proxy.lose_every = seconds

    def _proxy(self, port: int) -> LossyProxy:
        proxy = LossyProxy(port, faults=HARM, latest=self._latest, seed=len(self._proxies))
        self._proxies.append(proxy)
        self._stack.callback(proxy.close)
        return proxy

    def _server(self, kind: str, *options: str) -> RealServer:
        server = RealServer(kind, tcp=True, options=(*self._options, *options))
        if self._clock is not None:
            server.environment = self._clock.environment
        self._stack.callback(server.close)
        return server.start()

    @property
    def _login(self) -> str:
        return "worker:secret@" if self._limited else ""

    @property
    def _options(self) -> tuple[str, ...]:
        return _OPTIONS + _USER if self._limited else _OPTIONS

    # Faults

    def _clients(self) -> Iterator[Any]:
        for node in self.nodes:
            with node.client() as client:
                yield client

    def cut(self) -> None:
        """Cut every connection that listens, and some others."""
        for client in self._clients():
            for number, one in enumerate(client.client_list()):
                listens = one["sub"] != "0" or one["psub"] != "0"
                other = number % 3 == 0 and one["cmd"] != "client|list" and not {"S", "M"} & {*one["flags"]}
                if listens or other:
                    client.client_kill_filter(_id=one["id"])

    def flush_scripts(self) -> None:
        for client in self._clients():
            client.script_flush()

    def fill(self) -> None:
        """The servers are full for a while: they allow only what removes something. Meanwhile no network repeats what
        was refused, which is not even known to the server."""
        for proxy in self._proxies:
            proxy.faults = {**HARM, "request_repeated": 0.0}
        time.sleep(0.2)  # what is on its way arrives before
        for client in self._clients():
            client.config_set("maxmemory", 1)
        time.sleep(self._random.uniform(0.05, 0.4))
        for client in self._clients():
            client.config_set("maxmemory", 0)
        for proxy in self._proxies:
            proxy.faults = HARM

    def set_clock(self) -> None:
        """The clock of the servers is wrong for a while."""
        self._clock.set(self._random.choice([-90.0, -5.0, 5.0, 90.0]))
        time.sleep(self._random.uniform(0.1, 2.0))
        self._clock.set(0.0)


class OneServer(Deployment):
    """With `replica`, that takes over now and then; otherwise the server is killed and started again."""

    def __init__(self, kind: str, *, replica: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._kind = kind
        self._replica = replica
        self._servers: list[RealServer] = []

    @property
    def nodes(self) -> list[RealServer]:
        return [self._servers[-2:][0]] if self._replica else self._servers[-1:]

    def start(self) -> None:
        self._servers.append(self._server(self._kind))
        if self._replica:
            self._add_replica()
        self._proxies = []
        port = self._proxy(self.nodes[0].port).port
        self.url = f"redis://{self._login}127.0.0.1:{port}/0?socket_timeout=0.5"
        self.direct = f"redis://127.0.0.1:{port}/0"

    def faults(self) -> dict[Callable[[], None], float]:
        return {**super().faults(), self.fail_over if self._replica else self.restart: 2}

    def restart(self) -> None:
        [server], [proxy] = self.nodes, self._proxies
        proxy.refuse()
        server.kill(self._random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        log = server.folder / "log"
        known = log.stat().st_size
        server.start()
        is_cut = b"Truncating the AOF" in log.read_bytes()[known:]
        with server.client() as client:
            # If the end of a transaction was cut, Redis brings its beginning back at the next start: see "After a power
            # loss" in docs/operations.md. A long file is rewritten so that the server starts as fast after a long time.
            if is_cut or client.info("persistence")["aof_current_size"] > 32 << 20:
                client.bgrewriteaof()
            if is_cut:
                wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the rewritten file", 60)
        proxy.forward(server.port)

    def _add_replica(self) -> None:
        primary = self._servers[-1]
        replica = self._server(self._kind, "--replicaof", "127.0.0.1", str(primary.port))
        self._servers.append(replica)
        wait_until(lambda: replication(replica)["master_link_status"] == "up", "the replica to follow")
        wait_until_replicated(primary, replica)

    def fail_over(self) -> None:
        """The replica takes over; one time in two without what it was sent last."""
        primary, replica = self._servers[-2:]
        [proxy] = self._proxies
        if self._random.random() < 0.5:
            # A new replica is sent nothing for up to a second, so what is written before the cut may be lost, too.
            begin = time.monotonic_ns()
            wait_until_replicated(primary, replica)
            with replica.client() as client:
                client.config_set("masterauth", "wrong")
                client.config_set("masteruser", "nobody")
            with primary.client() as client:
                client.client_kill_filter(_type="slave")  # redis-py 8.0 does not know "replica"
            time.sleep(self._random.uniform(0.05, 0.6))  # what is written now is lost
            proxy.refuse()
            primary.kill()
            self.losses.append((begin, time.monotonic_ns()))
        else:
            proxy.refuse()
            wait_until_replicated(primary, replica)
            primary.kill()
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        self._add_replica()
        proxy.forward(replica.port)


class BehindSentinel(Deployment):
    """Clients ask the Sentinel, and so are behind no proxy."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self._service = RealService(kind, down_after=60_000)  # so that only `fail_over` does it, on a busy machine too

    @property
    def nodes(self) -> list[RealServer]:
        return [self._service.roles()[0]]

    def start(self) -> None:
        self._stack.callback(self._service.close)
        self._service.start()
        self.direct = self._service.url
        self.url = f"{self._service.url}/0?socket_timeout=0.5"

    def faults(self) -> dict[Callable[[], None], float]:
        return {**super().faults(), self.fail_over: 2}

    def fail_over(self) -> None:
        primary, replica = self._service.roles()
        with primary.client() as client:
            client.client_pause(20_000, all=False)  # writes: nothing is acknowledged that the replica does not get
        wait_until_replicated(primary, replica)
        self._service.fail_over()
        with primary.client() as client:
            client.client_unpause()


class Cluster(Deployment):
    """Primaries, with a replica for each if they are to fail over. Slots with conversations move."""

    def __init__(self, kind: str, *, replicas: bool, **options: Any) -> None:
        super().__init__(**options)
        self._replicas = replicas
        self._cluster = RealCluster(3, kind, self._announced, self._options)

    def _announced(self, port: int) -> int:
        return self._proxy(port).port

    @property
    def nodes(self) -> list[RealServer]:
        return [node for node in self._cluster.nodes if replication(node)["role"] == "master"]

    def start(self) -> None:
        self._stack.callback(self._cluster.close)
        self._cluster.start()
        if self._replicas:
            for primary in tuple(self._cluster.nodes):
                self._cluster.add_replica(primary)
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self._proxies)
        self.url = f"redis+cluster://{self._login}{hosts}?socket_timeout=0.5"
        self.direct = f"redis+cluster://{hosts}"

    def faults(self) -> dict[Callable[[], None], float]:
        found = {**super().faults(), self.move_slot: 20}
        return {**found, self.fail_over: 3} if self._replicas else found

    def move_slot(self) -> None:
        """Move a slot with conversations, its keys some at a time."""
        owners = [node for node in self.nodes if node.watcher.dbsize()]
        source = self._random.choice(owners or self.nodes)
        key = source.watcher.randomkey()
        if key is None:
            return
        slot = int(key_slot(key))
        target = self._random.choice([node for node in self.nodes if node is not source])
        self._cluster.begin_migration(slot, target)
        time.sleep(self._random.uniform(0, 0.5))  # scripts that make keys which they do not declare already fail
        # Half of the keys must be on each node for a while, or nobody sees a key that is not declared.
        # Each large content is a key, and there may be thousands.
        least = source.watcher.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) // 20
        count = max(self._random.choice([1, 3, 3, 10]), least)
        self._cluster.move_keys(slot, source, target, count, pause=self._random.uniform(0, 0.1))
        time.sleep(self._random.uniform(0, 0.05))
        self._cluster.end_migration(slot, target)

    def fail_over(self) -> None:
        """A replica takes over when it has all writes; one time in two because its primary was killed."""
        primary = self._random.choice(self.nodes)
        others = [node for node in self._cluster.nodes if replication(node)["role"] == "slave"]
        replica = next(node for node in others if replication(node)["master_port"] in self._ports(primary))
        killed = self._random.random() < 0.5
        self._cluster.wait_until_joined()
        with primary.client() as client:
            client.client_pause(20_000, all=False)  # writes
            wait_until_replicated(primary, replica)
            if killed:
                primary.kill()
            self._cluster.run(replica, "FAILOVER", "TAKEOVER")
            if not killed:
                wait_until(lambda: replication(primary)["role"] == "slave", "the primary to give up", 60)
                client.client_unpause()
        if killed:
            primary.start()
        wait_until(lambda: replication(replica)["role"] == "master", "the replica to take over", 60)
        wait_until(lambda: replication(primary).get("master_link_status") == "up", "the primary to follow", 60)
        self._cluster.wait_until_joined()

    def _ports(self, node: RealServer) -> tuple[int, int]:
        index = self._cluster.nodes.index(node)
        return node.port, self._proxies[index].port


class Clock:
    """A clock for servers that can be set, by a library that is loaded before theirs."""

    _SOURCE = Path(__file__).with_name("clock.c")

    def __init__(self) -> None:
        from tests.support.servers import FOLDERS  # in memory, if possible

        folder = Path(FOLDERS or "/tmp")
        library = folder / f"rh-clock-{os.getpid()}.so"
        subprocess.run([compiler(), "-shared", "-fPIC", "-O1", "-o", library, self._SOURCE, "-ldl"], check=True)
        offset = folder / f"rh-clock-{os.getpid()}.offset"
        offset.write_bytes(bytes(8))
        self.environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(offset)}
        with offset.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def set(self, seconds: float) -> None:
        self._map[:8] = struct.pack("q", round(seconds * 1e6))


def compiler() -> str:
    """A C compiler; "": there is none."""
    return shutil.which("cc") or shutil.which("gcc") or ""
