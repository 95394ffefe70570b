"""Thousands of changes to many subscribers, while all goes wrong that may: no silent gap, no repeat."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from redis_history import AsyncHistoryStore, Cursor, HistoryStore, user
from tests.support.servers import RealServer
from tests.support.storm import PATIENT, Ledger, Watcher, Writers

NAMESPACE = "storm"
BUSY = "busy"
#: Seconds for all to be told after the last change.
CATCH_UP = 300.0


class Storm:
    """One server, its writers, and subscribers of all kinds."""

    def __init__(self, server: RealServer, conversations: int, changes: int, full: bool) -> None:
        self.server = server
        self.names = [f"c{number}" for number in range(conversations)]
        self.changes = changes
        self.ledger = Ledger()
        self.writers = Writers(server.url, self.names, self.ledger, seed=7, namespace=NAMESPACE)
        self.watchers: list[Watcher] = []
        self.share = 3 if full else 1
        self.asleep = asyncio.Event()
        self.sleeper = self.watcher("the one who sleeps")

    def watcher(self, name: str) -> Watcher:
        self.watchers.append(Watcher(name, self.ledger))
        return self.watchers[-1]

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Subscribers of all kinds follow: 20 of them in the long run, 8 in the short one."""
        options: dict[str, Any] = {"namespace": NAMESPACE, "poll_interval": 1.0, "retry": PATIENT}
        url = self.server.url
        async with contextlib.AsyncExitStack() as stack:
            tasks = []

            def open_async(**more: Any) -> Any:
                return stack.enter_async_context(AsyncHistoryStore(url, **{**options, **more}))

            def open_sync(**more: Any) -> HistoryStore:
                store = HistoryStore(url, **{**options, **more})
                stack.push_async_callback(asyncio.to_thread, store.close)
                return store

            everything = [*self.names, BUSY]
            for number in range(2 * self.share):
                store, watcher = await open_async(), self.watcher(f"tasks, one for each conversation {number}")
                opened = [await store.subscribe(name) for name in everything]
                tasks += [asyncio.create_task(_follow(one, watcher)) for one in opened]
            for number in range(self.share + 1):
                store = await open_async(doorbell="poll" if number else "auto")
                watcher = self.watcher(f"a task for all {number}")
                tasks.append(asyncio.create_task(_follow(await store.subscribe_all(), watcher)))
            store = await open_async()
            tasks.append(asyncio.create_task(_follow(await store.subscribe_all(), self.sleeper, self.asleep)))
            for number in range(2 * self.share):
                watcher = self.watcher(f"a thread for all {number}")
                await asyncio.to_thread(open_sync().on_change_all, watcher.tell)
            for number in range(self.share):
                watched, watcher = open_sync(), self.watcher(f"a thread for each conversation {number}")
                for name in self.names[:5]:
                    await asyncio.to_thread(watched.on_change, name, watcher.tell)
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def write(self, between: Callable[[], object] | None = None) -> None:
        await asyncio.to_thread(self.writers.run, self.changes, between=between)

    async def settled(self) -> None:
        """Return when everybody has been told everything; no one may have been told anything wrong."""
        heads: dict[str, Cursor] = {}
        async with AsyncHistoryStore(self.server.url, namespace=NAMESPACE, retry=PATIENT) as store:
            for name in (*self.names, BUSY):
                heads[name] = (await store.snapshot(name, limit=1)).cursor
        deadline = time.monotonic() + CATCH_UP
        waiting = self.awake
        while waiting := [watcher for watcher in waiting if not watcher.is_at(self._seen_by(watcher, heads))]:
            self.check()
            assert time.monotonic() < deadline, [
                (watcher.name, name, str(watcher.at.get(name)), str(head))
                for watcher in waiting
                for name, head in heads.items()
                if watcher.at.get(name) != head
            ]
            await asyncio.sleep(0.02)
        self.check()

    @property
    def awake(self) -> list[Watcher]:
        return [watcher for watcher in self.watchers if watcher is not self.sleeper or self.asleep.is_set()]

    def _seen_by(self, watcher: Watcher, heads: dict[str, Cursor]) -> dict[str, Cursor]:
        if watcher.name.startswith("a thread for each"):
            return {name: heads[name] for name in self.names[:5]}
        return heads

    def check(self) -> None:
        faults = [fault for watcher in self.watchers for fault in watcher.faults]
        assert not faults, faults[:5]

    def cut(self) -> None:
        """Cut all connections that listen, and some of the others."""
        with contextlib.suppress(Exception), self.server.client() as client:
            client.client_kill_filter(_type="pubsub")
            victims = [line["id"] for line in client.client_list() if line["sub"] == "0"][::3]
            for victim in victims:
                with contextlib.suppress(Exception):
                    client.client_kill_filter(_id=victim)

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.server.kill(how)
        self.server.start()


async def _follow(subscription: Any, watcher: Watcher, gate: asyncio.Event | None = None) -> None:
    async with subscription:
        while True:
            if gate is not None:
                await gate.wait()
            event = await subscription.get()
            if event is None:
                return
            watcher.tell(event)


async def test_every_subscriber_has_every_change_or_a_reset(own_server: Callable[..., RealServer], full: bool) -> None:
    server = own_server(options=("--appendfsync", "always"))
    storm = Storm(server, conversations=20 if full else 10, changes=2_000 if full else 200, full=full)
    async with storm.watched():
        await _without_loss(storm)
        assert storm.sleeper.events == 0
        for watcher in storm.watchers:
            assert {name for name, _ in watcher.resets} <= {BUSY}, f"a Reset without need: {watcher.resets}"
            assert not watcher.missing()
        storm.asleep.set()
        await storm.settled()
        assert storm.sleeper.resets[BUSY, "log_trimmed"] == 1
        assert not storm.sleeper.missing()
        await _with_loss(storm, own_server)
    told = sum(watcher.events for watcher in storm.watchers)
    print(
        f"\n{storm.writers.changes} changes, {len(storm.watchers)} subscribers, {told} events told; no gap, no repeat"
    )


async def _without_loss(storm: Storm) -> None:
    """Connections and servers fail, and no change is lost. One subscriber sleeps, and a log is trimmed past it."""
    server, cuts = storm.server, 0

    def now_and_then() -> None:
        nonlocal cuts
        cuts += 1
        if cuts % 8 == 1:
            storm.cut()

    await storm.write(now_and_then)
    await storm.settled()

    with server.client() as client:
        client.config_set("client-output-buffer-limit", "pubsub 2048 1024 1")
    await storm.write()
    await storm.settled()

    restarts = threading.Timer(0.1, storm.restart, [signal.SIGKILL])
    restarts.start()
    await storm.write()
    await asyncio.to_thread(restarts.join)
    await storm.settled()

    async with AsyncHistoryStore(server.url, namespace=NAMESPACE, retry=PATIENT, log_length=50) as store:
        for number in range(250):
            await store.append(BUSY, user(str(number)))
    await storm.settled()


async def _with_loss(storm: Storm, own_server: Callable[..., RealServer]) -> None:
    """Conversations are deleted and created again, all is flushed, and the server is rewound to an older file."""
    server = storm.server
    async with AsyncHistoryStore(server.url, namespace=NAMESPACE, retry=PATIENT) as store:
        for name in storm.names[::2]:
            await store.delete_conversation(name)
        for name in storm.names[::4]:
            await store.append(name, user("anew"))
        await storm.settled()
        await storm.write()
        await storm.settled()

        before = [watcher.resets.total() for watcher in storm.watchers]
        with server.client() as client:
            client.flushall()
        await storm.settled()
        assert all(now.resets.total() > then for now, then in zip(storm.watchers, before, strict=True))
        await storm.write()
        await storm.settled()

        rewound = own_server(options=server.options)
        rewound.kill()
        server.kill(signal.SIGTERM)
        _copy(server, rewound)
        await asyncio.to_thread(server.start)
        await storm.write()
        await storm.settled()
        # What is lost is replaced by another history before anybody can look: only the tokens tell.
        await asyncio.to_thread(rewound.start)
        await asyncio.to_thread(storm.writers.run, 2 * storm.changes, url=rewound.url)
        rewound.kill(signal.SIGTERM)
        before = [watcher.resets.total() for watcher in storm.watchers]
        server.kill(signal.SIGTERM)
        _copy(rewound, server)
        await asyncio.to_thread(server.start)
        await storm.settled()
        for watcher, then in zip(storm.watchers, before, strict=True):
            assert watcher.resets.total() > then, f"{watcher.name} was not told that the server was rewound"
        await storm.write()
        await storm.settled()


def _copy(source: RealServer, target: RealServer) -> None:
    """The data of a server that has ended, in place of another's."""
    shutil.rmtree(target.folder)
    shutil.copytree(source.folder, target.folder, ignore=shutil.ignore_patterns("s"))
