"""A real service behind a Sentinel for tests: a primary, a replica and the Sentinel, ended by process id."""

from __future__ import annotations

import subprocess
from typing import Any

import redis

from tests.support.servers import AT_ONCE, DEADLINE, RealServer, free_port, replication, wait_until

SERVICE = "history"
_CONFIGURATION = """\
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {service} 127.0.0.1 {primary} 1
sentinel down-after-milliseconds {service} {down_after}
sentinel failover-timeout {service} 10000
"""


class RealService:
    """`servers[0]` is the primary at first. `down_after`: milliseconds without an answer after which the replica takes
    over."""

    def __init__(self, kind: str = "plain", down_after: int = 1000) -> None:
        self._kind = kind
        self._down_after = down_after
        self.servers: list[RealServer] = []
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The first Sentinel named does not exist: one is enough."""
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.port}/{SERVICE}"

    def start(self) -> RealService:
        options = ("--repl-diskless-sync-delay", "0", "--appendfsync", "always")
        primary = self._server(*options)
        replica = self._server(*options, "--replicaof", "127.0.0.1", str(primary.port))
        wait_until(lambda: replication(replica)["master_link_status"] == "up", "the replica to follow")
        folder = primary.folder
        configuration = folder / "sentinel.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                port=self.port, folder=folder, service=SERVICE, primary=primary.port, down_after=self._down_after
            )
        )
        with (folder / "sentinel.log").open("ab") as log:
            self._process = subprocess.Popen(
                [primary.binary.path, str(configuration), "--sentinel"], stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._knows_both, f"the Sentinel to know both servers; its log: {folder / 'sentinel.log'}")
        return self

    def _server(self, *options: str) -> RealServer:
        self.servers.append(RealServer(self._kind, tcp=True, options=options))
        return self.servers[-1].start()

    def _knows_both(self) -> bool:
        try:
            with self._sentinel(retry=AT_ONCE) as sentinel:
                replicas = sentinel.sentinel_slaves(SERVICE)
                return len(replicas) == 1 and not replicas[0]["is_disconnected"] and not replicas[0]["is_sdown"]
        except (redis.RedisError, OSError):
            return False

    def _sentinel(self, **options: Any) -> Any:
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=5, **options)

    def fail_over(self) -> None:
        """Make the replica take over, and the other one follow it, which the Sentinel would do after ten seconds."""
        old, new = self.roles()
        with self._sentinel() as sentinel:
            sentinel.sentinel_failover(SERVICE)
        self.wait_for_primary(new)
        with old.client() as client:
            client.replicaof("127.0.0.1", new.port)
        wait_until(lambda: replication(old).get("master_link_status") == "up", "the old primary to follow", 60)

    def wait_for_primary(self, server: RealServer) -> None:
        def leads() -> bool:
            with self._sentinel() as sentinel:
                state = sentinel.sentinel_masters()[SERVICE]
            return bool(state["port"] == server.port and replication(server)["role"] == "master")

        wait_until(leads, "the replica to become the primary", 60)

    def roles(self) -> tuple[RealServer, RealServer]:
        """The primary and the replica."""
        first, second = self.servers
        return (first, second) if replication(first)["role"] == "master" else (second, first)

    def cut_replication(self) -> None:
        """Later writes never reach the replica."""
        primary, replica = self.roles()
        with replica.client() as client:
            client.config_set("masterauth", "wrong")
            client.config_set("masteruser", "nobody")
        with primary.client() as client:
            client.client_kill_filter(_type="replica")
        wait_until(lambda: replication(replica)["master_link_status"] == "down", "the replica to lose its primary")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE)
        for server in self.servers:
            server.close()
