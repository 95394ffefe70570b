"""Streaming replies: what subscribers read, what replies cost, and what remains after each kind of failure."""

import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from redis.connection import AbstractConnection

from redis_history import HistoryStore, ReplyEnded, ReplyGrew, Reset, RetryPolicy, assistant, user
from redis_history.store.operations import GrowReply, TakeRun
from redis_history.store.operations.append import Append
from redis_history.values import TextPart
from redis_history.values.replies import record_of
from tests.faults.deployments import Clock, compiler
from tests.support.forks import Forked, write_replies
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start, lasting, wait_until, wait_until_replicated

WORDS = [f"word{number} " for number in range(1000)]


class Reader:
    """A thread that subscribes and joins the pieces of one reply."""

    def __init__(self, url: str, name: str = "c") -> None:
        self.text, self.events, self.ended = "", 0, False
        self._store = HistoryStore(url, search="off")
        self._changes = self._store.subscribe(name)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for event in self._changes:
            if isinstance(event, ReplyGrew | ReplyEnded):
                assert event.offset == len(self.text)
                self.text += event.delta
                self.events += 1
            if isinstance(event, ReplyEnded):
                self.ended = True
                return

    def wait(self) -> None:
        self._thread.join(60)
        self._changes.close()
        self._store.close()


def used(server: RealServer) -> tuple[int, int]:
    """Bytes of the append-only file, and how many times a reply grew."""
    found = server.watcher.info("all")
    return found["aof_current_size"], found.get("cmdstat_append", {"calls": 0})["calls"]


def bytes_of(server: RealServer, name: str) -> int:
    """The memory of a conversation, its journals left out."""
    pattern = f"rh2:{{*}}:{name}:*"
    return sum(server.watcher.memory_usage(key, samples=0) for key in lasting(server.watcher, pattern))


@pytest.mark.proves("live")
def test_each_subscriber_reads_each_word_once(own_server: Start, full: bool) -> None:
    server = own_server()
    readers = [Reader(server.url) for _ in range(50 if full else 5)]
    with HistoryStore(server.url, search="off") as store, store.stream("c", interval=0.01) as reply:
        for word in WORDS:
            reply.write(word)
            if word == WORDS[len(WORDS) // 2]:
                wait_until(lambda: all(reader.events for reader in readers), "the first words to arrive")
    for reader in readers:
        reader.wait()
    assert {reader.text for reader in readers} == {"".join(WORDS)}
    assert all(reader.ended and reader.events >= 2 for reader in readers)


def test_a_streamed_reply_costs_bytes_in_proportion_and_leaves_none(own_server: Start) -> None:
    server = own_server()
    text = "".join(WORDS)
    with HistoryStore(server.url, search="off") as store:
        for name in ("whole", "grown"):
            store.append(name, user("Hi", id="question"))
        before, flushed = used(server)
        with store.stream("grown", id="answer", interval=0.001) as reply:
            for number, word in enumerate(WORDS):
                reply.write(word)
                wait_until(lambda n=number: used(server)[1] > flushed + n // 10, "a part to be sent")
        written, flushes = used(server)
        assert flushes - flushed >= 100
        assert written - before <= 3 * len(text) + 80 * (flushes - flushed)
        store.append("whole", assistant(text, id="answer"))
        # The allocator rounds each key up, by up to 128 bytes here. The text has 7,890 bytes.
        assert bytes_of(server, "grown") <= bytes_of(server, "whole") + 300


@pytest.mark.proves("live")
@pytest.mark.full
def test_killed_writers_leave_what_they_wrote(own_server: Start) -> None:
    Forked(time.sleep, 0).result()  # so that the writers start together
    # The server tells its uptime in whole seconds. A reply that began within the first second was not from before a
    # restart.
    wait_until(lambda: time.time() % 1 < 0.1, "a new second")
    server = own_server()
    with HistoryStore(server.url, search="off") as store:

        def dies(name: str) -> None:
            writer = Forked(write_replies, server.url, name)
            reader = Reader(server.url, name)
            wait_until(lambda: reader.events > random.Random(name).randrange(1, 5), "it to write", 60)
            writer.kill()
            died = time.monotonic()
            reader.wait()
            assert time.monotonic() - died < 10
            [message] = store.get(name)
            assert (message.status, message.text) == ("interrupted", reader.text)
            words = message.text.split()
            assert words == [str(number) for number in range(len(words))]

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(dies, map(str, range(100))))
        assert len(store.list_conversations(limit=200)) == 100


@pytest.mark.proves("live")
@pytest.mark.full
def test_growth_that_a_failover_lost_gives_a_reset(own_server: Start) -> None:
    """The writer is dead, too, so nobody sends it again."""
    primary = own_server(tcp=True)
    replica = own_server(tcp=True, options=("--replicaof", "127.0.0.1", str(primary.port)))
    with closing(LossyProxy(primary.port)) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        with HistoryStore(primary.url, search="off") as store, HistoryStore(url, search="off") as reading:
            changes = reading.subscribe("c")
            changes.get(timeout=0)
            begin = Append.of_reply("c", "assistant", {"id": "r"})
            store.backend.execute(begin)
            both, lost = record_of(TextPart("on both ")), record_of(TextPart("and lost"))
            store.backend.execute(GrowReply("c", begin.token, 0, both, False))
            wait_until_replicated(primary, replica)
            replica.watcher.replicaof("NO", "ONE")
            store.backend.execute(GrowReply("c", begin.token, len(both), lost, False))
            text = ""
            while text != "on both and lost":
                text += getattr(changes.get(timeout=10), "delta", "")
            proxy.refuse()
            proxy.forward(replica.port)
            event = changes.get(timeout=20)
            assert isinstance(event, Reset)
            assert event.reason == "server_rewound"
            text = ""
            while not isinstance(event, ReplyEnded):
                event = changes.get(timeout=30)
                if isinstance(event, ReplyGrew | ReplyEnded):
                    assert event.offset == len(text)
                    text += event.delta
            changes.close()
            assert text == event.message.text == "on both "


@pytest.mark.proves("live")
@pytest.mark.parametrize("seconds", [8.0, 2.0, 6.0, 20.0, 60.0])
@pytest.mark.full
def test_an_outage_ends_no_living_reply(own_server: Start, seconds: float) -> None:
    """The lease of 6 seconds cannot be renewed while the server does not answer. Afterwards, neither the first reader
    to return, which may have waited only for a moment, nor a later subscriber considers the writer dead."""
    server = own_server()
    retry = RetryPolicy(deadline=2 * seconds + 30)
    with (
        HistoryStore(server.url, search="off") as other,
        ThreadPoolExecutor(8) as pool,
        HistoryStore(server.url, search="off", retry=retry) as store,
        store.stream("c", id="r") as reply,
    ):
        reader = Reader(server.url)
        reply.write("before ")
        wait_until(lambda: reader.text == "before ", "the text")
        assert other.get("c")
        with server.client() as client:
            client.client_pause(round(1000 * seconds), all=True)
        reply.write("meanwhile ")
        time.sleep(seconds - 0.3)
        seen = pool.map(lambda _: other.get("c")[0].status, range(8))  # most are faster than the writer
        assert set(seen) == {"streaming"}
        wait_until(lambda: reader.text == "before meanwhile ", "the end of the outage", seconds + 30)
        assert store.get_message("c", "r").status == "streaming"
        reply.write("after")
    reader.wait()
    assert reader.text == reply.message.text == "before meanwhile after"
    assert reply.message.status == "complete"


@pytest.mark.full
def test_a_restart_ends_no_living_reply(own_server: Start) -> None:
    server = own_server(options=("--appendonly", "yes", "--appendfsync", "always"))
    with HistoryStore(server.url, search="off") as store, store.stream("c", id="r") as reply:
        reply.write("before ")
        wait_until(lambda: store.get("c")[0].text == "before ", "the text")
        server.kill()
        time.sleep(6.5)  # longer than the lease
        server.start()
        with HistoryStore(server.url, search="off") as fresh:  # has not seen the outage
            assert fresh.get("c")[0].status == fresh.snapshot("c").messages[0].status == "streaming"
        reply.write("after")
    assert (reply.message.text, reply.message.status) == ("before after", "complete")


@pytest.mark.full
def test_a_writer_that_was_suspended(own_server: Start) -> None:
    """It completes its reply."""
    server = own_server()
    script = (
        "import sys; from redis_history import HistoryStore; s = HistoryStore(sys.argv[1], search='off');"
        "r = s.stream('c', id='r'); r.open(); r.write('a secret'); sys.stdin.readline(); r.write(' and more');"
        "r.finish()"
    )
    with (
        HistoryStore(server.url, search="off") as store,
        subprocess.Popen(
            [sys.executable, "-c", script, server.url], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as p,
    ):
        wait_until(lambda: [one.text for one in store.get("c")] == ["a secret"], "the text")
        p.send_signal(signal.SIGSTOP)
        wait_until(lambda: store.get("c")[0].status == "interrupted", "the mark of death", 12)
        p.send_signal(signal.SIGCONT)
        p.communicate(b"\n", timeout=30)
        [message] = store.get("c")
    assert (message.text, message.status, p.returncode) == ("a secret and more", "complete", 0)


@pytest.mark.proves("ttl")
@pytest.mark.full
def test_a_stream_longer_than_its_ttl(own_server: Start) -> None:
    """Archives and what was written live as long as the conversation, and nothing outlives it."""
    server = own_server()
    with HistoryStore(server.url, search="off", ttl=1.0) as store:
        store.append_many("c", [user(str(number), id=f"m{number}") for number in range(4)])
        store.compact("c", through="m2", summary="Three.")
        with store.stream("c", id="r") as reply:
            ends = time.monotonic() + 3.5
            while time.monotonic() < ends:
                reply.write("word ")
                time.sleep(0.3)
        every = {message.id for message in store.get("c", include_archived=True)}
        assert {"m0", "m1", "m2", "m3", "r"} <= every
        op = Append.of_reply("c", "assistant", {"id": "dead"})
        store.backend.execute(op)
        store.backend.execute(GrowReply("c", op.token, 0, record_of(TextPart(text="secret")), False))
        for _ in range(3):  # by another writer, with another time to live
            with HistoryStore(server.url, search="off", ttl=2.0) as other:
                other.append("c", user("x"))
            time.sleep(0.5)
        assert store.get_message("c", "dead").text == "secret"
    with server.client() as client:
        wait_until(lambda: not [key for key in client.keys("*") if b":t:" in key or b":a:" in key], "the end", 15)


@pytest.mark.proves("live")
def test_a_summary_is_not_taken_for_the_reply_that_it_replaced(
    server: RealServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader reads replies a moment after the other messages, and a summary has the position of the last message that
    it replaced."""
    with (
        HistoryStore(server.url, namespace=namespace) as writer,
        HistoryStore(server.url, namespace=namespace) as reader,
    ):
        writer.append_many("c", [user("1", id="1"), user("2", id="2")])
        with writer.stream("c", id="r") as reply:
            reply.write("text")
            assert len(reader.get("c")) == 3  # loads the scripts
            send, commands = AbstractConnection.send_packed_command, list[Any]()

            def before(connection: Any, command: Any, *args: Any, **options: Any) -> Any:
                if threading.current_thread() is threading.main_thread():
                    commands.append(command)
                if len(commands) == 2:
                    monkeypatch.undo()
                    reply.finish()
                    writer.compact("c", through="r", summary="so far")
                return send(connection, command, *args, **options)

            monkeypatch.setattr(AbstractConnection, "send_packed_command", before)
            found = reader.get("c")
        assert [one.id for one in found] in (["1", "2"], ["1", "2", "r"])
        assert [one.is_summary for one in reader.get("c")] == [True]


@pytest.mark.proves("live")
@pytest.mark.full
@pytest.mark.skipif(not compiler(), reason="there is no C compiler, which makes the clock")
@pytest.mark.parametrize("subscribed", [False, True])
def test_a_reply_of_a_dead_writer_ends_although_the_clock_was_set_back(subscribed: bool) -> None:
    server, clock = RealServer("plain"), Clock()
    server.environment = clock.environment
    clock.set(600.0)
    with closing(server.start()), HistoryStore(server.url) as store, store.subscribe("c") as subscription:
        store.backend.execute(Append.of_reply("c", "assistant", {"id": "r"}))
        clock.set(0.0)
        if subscribed:
            wait_until(lambda: isinstance(subscription.get(timeout=10), ReplyEnded), "its end")
        else:
            assert store.get_message("c", "r").status == "streaming", "its writer may live"
            wait_until(lambda: store.get_message("c", "r").status == "interrupted", "its end")


@pytest.mark.proves("live", "runs")
@pytest.mark.full
def test_who_asks_now_and_then_does_not_wait_for_the_dead(server: RealServer, namespace: str) -> None:
    """After an outage between two calls, a living writer may come back. A writer that was dead before the first call
    cannot."""
    with HistoryStore(server.url, namespace=namespace) as dead, HistoryStore(server.url, namespace=namespace) as store:
        dead.backend.execute(Append.of_reply("c", "assistant", {"id": "r"}))
        dead.backend.execute(TakeRun("c", (("0123456789abcdef", None),), False))
        for _ in range(3):
            store.get_run("c")
            time.sleep(4.5)  # the pause itself is what this tests: an outage is possible after 3.5 seconds
        assert store.get_message("c", "r").status == "interrupted"
        assert store.get_run("c").status == "interrupted"
        with store.run("c"):
            pass


@pytest.mark.full
@pytest.mark.proves("ttl", "live")
def test_a_reader_with_a_ttl_that_ends_a_dead_reply_lets_nothing_expire(server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store:
        store.append("c", user("lasting"))
        store.backend.execute(Append.of_reply("c", "assistant", {"id": "r"}))  # its writer never shows that it lives
    with HistoryStore(server.url, namespace=namespace, ttl=60) as reader, server.client() as client:
        wait_until(lambda: reader.get("c")[-1].status == "interrupted", "the end of the reply", 20)
        lives = [client.ttl(key) for key in client.scan_iter(match=f"rh2:{{{namespace}*:c:m", count=1000)]
        assert lives == [-1]
