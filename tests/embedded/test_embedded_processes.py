"""Several processes, and the deaths of each kind of them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_tools import Worker, client, gone, stopped, supervisor_of

from redis_history.embedded import EmbeddedServer
from redis_history.embedded._locks import is_held
from redis_history.errors import EmbeddedServerError
from tests.support.servers import wait_until

Make = Callable[..., EmbeddedServer]
MakeWorker = Callable[..., Worker]


def ask_together(workers: list[Worker], *words: str) -> list[int]:
    for worker in workers:
        worker.send(*words)
    return [worker.answer() for worker in workers]


def starts(path: Path) -> int:
    return (path / "supervisor.log").read_text().count(" starting ")


@pytest.mark.proves("embedded")
def test_racing_processes_share_one_server_until_the_last_is_killed(
    engine: str, tmp_path: Path, workers: MakeWorker
) -> None:
    path = tmp_path / "d"
    six = [workers(path) for _ in range(6)]
    (pid,) = set(ask_together(six, "start"))
    assert starts(path) == 1
    for number, worker in enumerate(six, 1):
        assert worker.ask("redis", "INCR", "k") == f":{number}"
    for worker in six[:4]:
        worker.kill()
    assert [worker.ask("redis", "INCR", "k") for worker in six[4:]] == [":7", ":8"]
    six[4].kill()
    assert six[5].ask("ensure") == pid
    six[5].kill()
    wait_until(lambda: gone(pid) and stopped(path), "the server ended with its last user", 5)
    assert starts(path) == 1


def test_a_killed_server_is_restarted_once_with_its_data(engine: str, tmp_path: Path, workers: MakeWorker) -> None:
    path = tmp_path / "d"
    five = [workers(path) for _ in range(5)]
    (pid,) = set(ask_together(five, "start"))
    for number in range(1, 4):
        # Not "everysec", which may hold a write back while an earlier fsync runs: a SIGKILL then loses it.
        assert five[0].ask("redis", "CONFIG", "SET", "appendfsync", "always") == "+OK"
        assert five[0].ask("redis", "INCR", "k") == f":{number}"
        os.kill(pid, signal.SIGKILL)
        (successor,) = set(ask_together(five, "ensure"))
        assert successor != pid
        assert starts(path) == number + 1
        pid = successor


@pytest.mark.parametrize("server_hangs", [False, True])
def test_a_killed_supervisor_is_replaced_and_its_server_ends(tmp_path: Path, server: Make, server_hangs: bool) -> None:
    ours = server(tmp_path / "d").start()
    client(ours).set("k", "v")
    first, supervisor = ours.pid, supervisor_of(ours.path)
    if server_hangs:  # so that it cannot end automatically, whatever the platform does
        os.kill(first, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not is_held(Path(ours.path, "supervisor.lock")), "the supervisor is dead")
    if server_hangs:
        assert not gone(first)
        os.kill(first, signal.SIGCONT)
    ours.ensure()
    assert client(ours).get("k") == "v"
    assert gone(first), "two servers on one folder"
    assert supervisor_of(ours.path) != supervisor
    ours.close(wait=10)
    assert stopped(ours.path)


def test_a_supervisor_ends_its_server_at_sigterm(tmp_path: Path, server: Make) -> None:
    """As at a shutdown of the system."""
    ours = server(tmp_path / "d").start()
    client(ours).set("k", "v")
    os.kill(supervisor_of(ours.path), signal.SIGTERM)
    wait_until(lambda: stopped(ours.path), "an orderly end")
    assert "ended with status 0" in (tmp_path / "d/supervisor.log").read_text()
    ours.ensure()
    assert client(ours).get("k") == "v"


def test_signals_that_a_user_blocks_or_ignores_reach_the_server(tmp_path: Path, server: Make) -> None:
    """Many programs block signals in all threads, and wait for them in one. A supervisor must not inherit that."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ignored = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ours, log = server(tmp_path / "d"), tmp_path / "d/supervisor.log"
    try:
        ours.start()
        os.kill(ours.pid, signal.SIGKILL)
        wait_until(lambda: stopped(ours.path), "the end of the supervisor")
        assert "ended with status -9" in log.read_text()
        ours.ensure()
    finally:
        signal.signal(signal.SIGCHLD, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    ours.close(wait=10)
    assert stopped(ours.path)
    assert "ended with status 0" in log.read_text()


@pytest.mark.full
def test_no_process_joins_a_server_that_is_being_stopped(tmp_path: Path, workers: MakeWorker) -> None:
    path, times = tmp_path / "d", 15
    four = [workers(path) for _ in range(4)]
    assert ask_together(four, "churn", str(times)) == [times] * 4
    assert four[0].ask("start")
    assert four[0].ask("redis", "INCRBY", "churned", "0") == f":{4 * times}"


def test_a_user_may_be_killed_while_it_starts(tmp_path: Path, workers: MakeWorker) -> None:
    path = tmp_path / "d"
    for _ in range(5):
        victim = workers(path)
        victim.send("start")
        wait_until(lambda: (path / "users.lock").exists(), "it has begun")
        victim.kill()
    survivor = workers(path)
    assert survivor.ask("start")
    assert survivor.ask("redis", "PING") == "+PONG"


def test_a_forked_child_has_no_share(tmp_path: Path, workers: MakeWorker) -> None:
    path = tmp_path / "d"
    parent = workers(path)
    parent.ask("start")
    child = parent.ask("fork", "started")
    assert child["result"] is False
    assert "no share" in parent.ask("fork", "ensure")["error"]
    parent.ask("fork", "close")  # does not give up the parent's share
    assert parent.ask("started") is True
    assert parent.ask("redis", "PING") == "+PONG"
    parent.ask("close")
    wait_until(lambda: stopped(path), "an end, though the children live")
    assert not gone(child["pid"])


def test_a_forked_child_outlives_its_parent_with_a_share_of_its_own(tmp_path: Path, workers: MakeWorker) -> None:
    path = tmp_path / "d"
    parent = workers(path)
    pid = parent.ask("start")
    with_share = parent.ask("fork", "start")
    without = parent.ask("fork", "started")
    program = parent.ask("spawn")["pid"]
    assert with_share["result"] == pid
    parent.process.kill()  # not waited for: the program has the pipe
    with EmbeddedServer(path) as other:  # joins the server that the child keeps
        assert other.pid == pid
    assert not gone(with_share["pid"])
    for child in (with_share, without):  # the second one keeps the share of its killed parent
        os.kill(child["pid"], signal.SIGKILL)
    wait_until(lambda: stopped(path), "an end with the last share")
    assert not gone(program), "a program inherits no share"


def test_a_moved_folder_gets_a_new_server(short: Path, server: Make) -> None:
    ours, other = server(short / "d").start(), server(short / "d").start()
    first = ours.pid
    (short / "d").rename(short / "moved")
    with pytest.raises(EmbeddedServerError):
        _ = ours.pid
    ours.ensure()
    assert ours.pid != first
    assert client(ours).dbsize() == 0
    other.close()
    wait_until(lambda: gone(first), "the old one ended with its last share")
    assert client(ours).ping()  # on a new connection: the old one's end did not remove the new socket
