"""Leases: dead writers end in time for every reader, and an outage of the server ends no living writer."""

import os
import signal
import time
from contextlib import closing
from typing import Any

import pytest
from redis.crc import key_slot

from redis_history import HistoryStore, RetryPolicy, RunChanged, assistant, user
from redis_history.errors import BackendUnavailableError, RunBusyError, RunLostError
from redis_history.store.leases import RETURN
from redis_history.store.operations import TakeRun
from redis_history.store.operations.keys import Keyspace
from redis_history.values.replies import LEASE_SECONDS
from redis_history.values.runs import RUN_SECONDS
from tests.support.cluster import RealCluster
from tests.support.forks import Forked
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start, wait_until

#: Maximum seconds for a quick call on a busy machine.
SLOW = 1.5
PATIENT = RetryPolicy(deadline=60.0)


def hold(url: str, namespace: str) -> None:
    """Hold a reply, a run, and the lease of a compressor."""
    with HistoryStore(url, namespace=namespace, search="off") as store, store.stream("reply", id="r") as reply:
        reply.write("half")
        store.append("compressed", user("x"))
        with store.run("run"):
            compress = TakeRun("compressed", (("0123456789abcdef", None),), False, 7.0, "compressor")
            assert store.backend.execute(compress).done
            store.append("ready", user("x"))
            time.sleep(600)


def begin(url: str, namespace: str) -> Forked:
    holder = Forked(hold, url, namespace)
    with HistoryStore(url, namespace=namespace, search="off") as store:
        wait_until(lambda: store.get("ready"), "the holder to begin", 30)
        wait_until(lambda: store.get("reply")[0].text, "the text")
    return holder


def statuses(store: HistoryStore) -> tuple[str, str]:
    return store.get("reply")[0].status, store.get_run("run").status


DEAD = ("interrupted", "interrupted")


@pytest.mark.proves("live", "runs")
@pytest.mark.parametrize("seconds", [4.5, 1.0, 2.5, 7.0, 10.0])
@pytest.mark.full
def test_a_reader_that_was_cut_off_sees_the_dead_in_time(own_server: Start, seconds: float) -> None:
    """It cannot know whether the server was down, so it waits for a moment after the cut, but only if necessary."""
    server = own_server(tcp=True)
    with closing(LossyProxy(server.port)) as proxy:
        holder = begin(server.url, "cut")
        url = f"redis://127.0.0.1:{proxy.port}"
        with HistoryStore(url, namespace="cut", search="off", retry=PATIENT) as store:
            assert statuses(store) == ("streaming", "active")
            proxy.refuse()
            holder.kill()
            died = time.monotonic()
            time.sleep(seconds)
            proxy.forward(server.port)
            while statuses(store) != DEAD:
                assert time.monotonic() - died < max(10.0, seconds + RETURN) + SLOW
                time.sleep(0.3)
            began = time.monotonic()
            with store.run("run"):
                pass
            assert time.monotonic() - began < SLOW
            compress = TakeRun("compressed", (("fedcba9876543210", None),), False, 7.0, "compressor")
            assert store.backend.execute(compress).done


@pytest.mark.proves("live", "runs")
@pytest.mark.full
def test_a_client_that_is_new_sees_who_has_long_been_dead(own_server: Start) -> None:
    """A single read is sufficient, even if no other client has read since."""
    server = own_server()
    holder = begin(server.url, "new")
    holder.kill()
    time.sleep(max(LEASE_SECONDS + 4.0, RUN_SECONDS + 2.0) + 0.5)  # the promise of 10 seconds is over
    began = time.monotonic()
    with HistoryStore(server.url, namespace="new", search="off") as store:
        assert statuses(store) == DEAD
        assert time.monotonic() - began < RETURN + SLOW
        with store.run("run"):
            pass
    with HistoryStore(server.url, namespace="new", search="off") as another:
        began = time.monotonic()
        assert another.get("reply")[0].status == "interrupted"
        assert time.monotonic() - began < SLOW  # it is stored


@pytest.mark.proves("live", "runs")
@pytest.mark.parametrize("seconds", [13.0, 25.0])
@pytest.mark.full
def test_a_client_that_is_new_ends_nobody_after_the_server_was_suspended(own_server: Start, seconds: float) -> None:
    server = own_server(tcp=True)
    with (
        HistoryStore(server.url, search="off", retry=PATIENT) as store,
        HistoryStore(server.url, search="off", retry=PATIENT) as fresh,
        store.stream("reply", id="r") as reply,
        store.run("run") as run,
    ):
        reply.write("before")
        wait_until(lambda: store.get("reply")[0].text == "before", "the text")
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(server.pid, signal.SIGCONT)
        assert statuses(fresh) == ("streaming", "active")
        with pytest.raises(RunBusyError), fresh.run("run"):
            pass
        run.append(assistant("after"))
        reply.write(" and after")
    assert (reply.message.text, reply.message.status) == ("before and after", "complete")
    assert _status(server.url) == "completed"


def _status(url: str) -> str:
    with HistoryStore(url, search="off") as store:
        return store.get_run("run").status


def write_after(url: str) -> bool:
    """Return whether a run is lost after this process was suspended."""
    with HistoryStore(url, search="off") as store, store.run("run") as run:
        run.append(user("before", id="before"))
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            run.append(user("late"))
        except RunLostError:
            return True
    return False


@pytest.mark.proves("runs")
@pytest.mark.full
def test_a_holder_that_was_suspended_writes_nothing_although_nobody_has_looked(own_server: Start) -> None:
    server = own_server()
    holder = Forked(write_after, server.url)
    with HistoryStore(server.url, search="off") as store:
        wait_until(lambda: store.get("run"), "it to write")
        time.sleep(RUN_SECONDS + 1.0)
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.result(30)
        assert [message.text for message in store.get("run")] == ["before"]


@pytest.mark.proves("runs")
@pytest.mark.full
def test_a_run_that_others_have_seen_end_does_not_come_back(own_server: Start) -> None:
    """Its holder is alive, and returns after its network was cut."""
    server = own_server(tcp=True)
    with (
        closing(LossyProxy(server.port)) as proxy,
        HistoryStore(f"redis://127.0.0.1:{proxy.port}", search="off", retry=PATIENT) as cut,
        HistoryStore(server.url, search="off") as other,
        cut.run("run") as run,
    ):
        run.append(user("before"))
        with other.subscribe("run") as changes:
            proxy.refuse()

            def ended() -> bool:
                event = changes.get(timeout=1)
                return isinstance(event, RunChanged) and event.run.status == "interrupted"

            wait_until(ended, "the end of the run", 12)
            proxy.forward(server.port)
            with pytest.raises(RunLostError):
                run.append(user("late"))
            assert other.get_run("run").status == "interrupted"
            assert changes.get(timeout=2.0) is None
    assert [message.text for message in _messages(server)] == ["before"]


def _messages(server: RealServer) -> Any:
    with HistoryStore(server.url, search="off") as store:
        return store.get("run")


@pytest.mark.proves("live", "runs")
@pytest.mark.full
def test_a_node_that_hangs_keeps_nobody_alive_on_another_node() -> None:
    cluster = RealCluster(kind="plain", options=("--cluster-require-full-coverage", "no"))
    try:
        cluster.start()
        url = f"{cluster.url}?socket_timeout=1"
        with HistoryStore(url, search="off", retry=RetryPolicy(deadline=1.0)) as store:
            port = {name: cluster.owner(slot_of(store, name)).port for name in map(str, range(60))}
            hanging = next(node for node in cluster.nodes if node.port in port.values())
            names = {where: name for name, where in port.items()}
            sick = names[hanging.port]
            healthy = next(name for name, where in port.items() if where != hanging.port)
            store.append(sick, user("x"))
            holder = Forked(write_one, url, healthy)
            wait_until(lambda: store.get(healthy) and store.get(healthy)[-1].text, "the text")
            os.kill(hanging.pid, signal.SIGSTOP)
            holder.kill()
            died = time.monotonic()
            while store.get(healthy)[-1].status == "streaming":
                assert time.monotonic() - died < 10 + SLOW
                with pytest.raises(BackendUnavailableError):
                    store.get(sick)
    finally:
        for node in cluster.nodes:
            os.kill(node.pid, signal.SIGCONT)
        cluster.close()


def slot_of(store: HistoryStore, name: str) -> int:
    return int(key_slot(Keyspace(store.namespace).conversation(name).state))


def write_one(url: str, name: str) -> None:
    with HistoryStore(url, search="off") as store, store.stream(name, id="r") as reply:
        reply.write("half")
        time.sleep(600)
