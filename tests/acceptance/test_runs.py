"""Runs while the server, the network or a holder fails."""

import threading
import time
from contextlib import closing, suppress
from typing import Any

import pytest

from redis_history import HistoryStore, RetryPolicy, RunChanged, assistant, tool_use, user
from redis_history.errors import BackendRefusedError, RunBusyError, RunLostError, RunStopped
from redis_history.store.operations import TakeRun
from redis_history.store.operations.keys import Keyspace
from tests.faults.deployments import Clock, compiler
from tests.support.forks import Forked
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start, wait_until


@pytest.mark.proves("runs")
@pytest.mark.parametrize("seconds", [10.0, 20.0])
@pytest.mark.full
def test_an_outage_ends_no_living_run(own_server: Start, seconds: float) -> None:
    """A run cannot be renewed while the server does not answer, so waiting agents do not consider its holder dead."""
    server = own_server()
    retry = RetryPolicy(deadline=2 * seconds + 30)
    with (
        HistoryStore(server.url, search="off", retry=retry) as store,
        HistoryStore(server.url, search="off", retry=retry) as other,
    ):
        busy: list[RunBusyError] = []

        def wait() -> None:
            with pytest.raises(RunBusyError) as error, other.run("c", wait=seconds + 8):
                pass
            busy.append(error.value)

        with store.run("c") as run:
            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(lambda: len(getattr(store.get_run("c"), "waiting", ())) == 1, "it to wait")
            with run.stream(id="r") as reply:
                reply.write("before ")
                wait_until(lambda: [one.text for one in store.get("c")] == ["before "], "the text")
                with server.client() as client:
                    client.client_pause(round(1000 * seconds), all=True)
                reply.write("and after")
                run.append(assistant("The first call after the outage.", id="a"))
                now = store.get_run("c")
                assert (now.status, now.run_id) == ("active", run.run_id)
            waiter.join(60)
            assert len(busy) == 1
            assert busy[0].holder.run_id == run.run_id
        assert [message.text for message in store.get("c")] == ["before and after", "The first call after the outage."]


@pytest.mark.proves("full-server", "runs")
def test_a_run_is_stopped_and_ends_on_a_full_server(own_server: Start) -> None:
    """It has its place already. A new one needs memory."""
    server = own_server()
    with HistoryStore(server.url, search="off") as store, server.client() as client:

        def work() -> None:
            with store.run("c") as run:
                client.config_set("maxmemory", "1mb")
                assert store.stop_run("c")
                run.wait_stop(10)
                run.check()

        with pytest.raises(RunStopped):
            work()
        now = store.get_run("c")
        assert now.status == "stopped"
        with pytest.raises(BackendRefusedError), store.run("c"):
            pass
        client.config_set("maxmemory", "0")
        with store.run("c") as run:
            run.append(user("works again"))


def test_a_run_whose_beginning_is_refused_has_no_end(own_server: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client:
        store.append("c", user("x"))
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(BackendRefusedError, match="NOREPLICAS"), store.run("c"):
            pass
    assert caplog.messages == []


def test_subscribers_to_all_conversations_find_a_run_that_they_were_not_notified_of(own_server: Start) -> None:
    server = own_server(tcp=True)
    with (
        closing(LossyProxy(server.port)) as proxy,
        HistoryStore(server.url, search="off") as store,
        HistoryStore(f"redis://127.0.0.1:{proxy.port}", search="off", poll_interval=0.5) as viewer,
    ):
        store.append("c", user("Hello"))
        with viewer.subscribe_all() as changes:
            changes.get(timeout=0)
            proxy.refuse()
            with store.run("c") as run:
                proxy.forward(server.port)
                found = changes.get(timeout=30)
                assert isinstance(found, RunChanged)
                assert (found.run.run_id, found.run.status) == (run.run_id, "active")
                proxy.refuse()
            proxy.forward(server.port)
            found = changes.get(timeout=30)
            assert isinstance(found, RunChanged)
            assert (found.run.run_id, found.run.status) == (run.run_id, "completed")


@pytest.mark.full
def test_a_restart_ends_no_living_run(own_server: Start) -> None:
    server = own_server(options=("--appendonly", "yes", "--appendfsync", "always"))
    with HistoryStore(server.url, search="off") as store, store.run("c") as run:
        run.append(assistant("before"))
        server.kill()
        time.sleep(8.5)  # longer than the lease
        server.start()
        # Another store, which has not seen the outage.
        with HistoryStore(server.url, search="off") as fresh, pytest.raises(RunBusyError), fresh.run("c"):
            pass
        run.append(assistant("after"))
        status = store.get_run("c")
    assert status.status == "active"


def hold(url: str) -> None:
    with HistoryStore(url, search="off") as store, store.run("c") as run:
        run.append(assistant(tool_use("call", "find")))
        time.sleep(600)


@pytest.mark.proves("runs")
@pytest.mark.full
@pytest.mark.parametrize("restart", [False, True], ids=["pause", "restart"])
def test_who_waits_begins_within_10_seconds_after_an_outage_in_which_the_holder_died(
    own_server: Start, restart: bool
) -> None:
    """And the tool call that it left open has got a result."""
    server = own_server(options=("--appendonly", "yes", "--appendfsync", "always"))
    holder = Forked(hold, server.url)
    began: list[float] = []
    results: list[Any] = []

    def wait() -> None:
        with waiting.run("c", wait=60):
            began.append(time.monotonic())
            results.extend(waiting.get("c")[-1].tool_results)

    with HistoryStore(server.url, search="off", retry=RetryPolicy(deadline=60)) as waiting:
        wait_until(lambda: waiting.get("c"), "the holder to call a tool")
        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: len(getattr(waiting.get_run("c"), "waiting", ())) == 1, "it to wait")
        if restart:
            server.kill()
            holder.kill()
            server.start()
            returned = time.monotonic()
        else:
            with server.client() as client:
                client.client_pause(7000, all=True)
            holder.kill()
            returned = time.monotonic() + 7
        waiter.join(60)
    assert began[0] - returned < 10
    assert [(result.tool_use_id, result.is_error) for result in results] == [("call", True)]


@pytest.mark.proves("runs")
@pytest.mark.full
def test_a_flaky_network_does_not_keep_who_waits_from_the_run_of_a_dead_holder(own_server: Start) -> None:
    server = own_server(tcp=True)
    holder = Forked(hold, server.url)
    began = threading.Event()
    with (
        closing(LossyProxy(server.port)) as proxy,
        HistoryStore(server.url, search="off") as store,
        HistoryStore(f"redis://127.0.0.1:{proxy.port}", search="off", retry=RetryPolicy(deadline=60)) as flaky,
    ):

        def wait() -> None:
            with flaky.run("c", wait=60):
                began.set()

        wait_until(lambda: store.get("c"), "the holder to call a tool")
        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: len(getattr(store.get_run("c"), "waiting", ())) == 1, "it to wait")
        holder.kill()
        for _ in range(10):
            proxy.refuse()
            if began.wait(0.3):
                break
            proxy.forward(server.port)
            if began.wait(3):
                break
        assert began.is_set()
        proxy.forward(server.port)
        waiter.join(60)


@pytest.mark.proves("runs")
@pytest.mark.skipif(not compiler(), reason="there is no C compiler, which makes the clock")
@pytest.mark.parametrize("before", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_run_begins_on_a_server_whose_clock_was_set_back_since_it_started(before: bool) -> None:
    server, clock = RealServer("plain"), Clock()
    server.environment = clock.environment
    clock.set(600.0)
    with closing(server.start()), HistoryStore(server.url) as store:
        if not before:
            clock.set(0.0)
        store.backend.execute(TakeRun("c", (("0123456789abcdef", None),), False, seconds=8.0 if before else 0.1))
        clock.set(0.0)  # the holder has died before or after this
        with store.run("c", wait=12):
            pass


@pytest.mark.proves("runs")
def test_a_run_that_a_failover_lost_does_not_write_during_the_next_one(server: RealServer, namespace: str) -> None:
    """The promoted server knows nothing of the first run, and gives the second one the same fence."""
    with (
        HistoryStore(server.url, namespace=namespace) as store,
        HistoryStore(server.url, namespace=namespace) as other,
        server.client() as client,
    ):
        store.append("c", user("0"))
        state = Keyspace(namespace).conversation("c").state
        before = client.dump(state)
        with suppress(RunLostError), store.run("c", agent_name="a") as run:
            client.restore(state, 0, before, replace=True)
            with other.run("c", agent_name="b") as following:
                with pytest.raises(RunLostError):
                    run.append(user("late"))
                following.append(user("1"))
        assert [message.text for message in store.get("c")] == ["0", "1"]
