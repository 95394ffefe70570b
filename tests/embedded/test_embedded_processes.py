"""Several processes, and the deaths of each kind of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_tools import Worker, client, gone, stopped, supervisor_of, wait_until

from redis_history.embedded import EmbeddedServer
from redis_history.embedded._locks import is_held
from redis_history.errors import EmbeddedServerError

Make = Callable[..., EmbeddedServer]
MakeWorker = Callable[..., Worker]


def start_together(workers: list[Worker]) -> list[int]:
    for worker in workers:
        worker.send("start")
    return [worker.answer() for worker in workers]


def starts(path: Path) -> int:
    return (path / "supervisor.log").read_text().count(" starting ")


@pytest.mark.proves("embedded")
def test_racing_processes_share_one_server_until_the_last_is_killed(
    engine: str, tmp_path: Path, workers: MakeWorker
) -> None:
    path = tmp_path / "d"
    six = [workers(path) for _ in range(6)]
    pids = start_together(six)
    assert len(set(pids)) == 1
    assert starts(path) == 1
    for number, worker in enumerate(six, 1):
        assert worker.ask("redis", "INCR", "k") == f":{number}"
    for worker in six[:4]:
        worker.kill()
    assert [worker.ask("redis", "INCR", "k") for worker in six[4:]] == [":7", ":8"]
    assert six[5].ask("ensure") == pids[0]
    six[4].kill()
    assert six[5].ask("redis", "INCR", "k") == ":9"
    six[5].kill()
    wait_until(lambda: gone(pids[0]) and stopped(path), "the server ended with its last user", 5)
    assert starts(path) == 1


def test_a_killed_server_comes_back_with_its_data(
    engine: str, tmp_path: Path, server: Make, workers: MakeWorker
) -> None:
    # Not "everysec", which may hold a write back while an earlier fsync runs: a SIGKILL then loses it.
    ours, other = server(tmp_path / "d", durability="always").start(), workers(tmp_path / "d")
    other.ask("start")
    connection = client(ours)
    connection.set("k", "v")
    first = ours.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: gone(first), "the server is dead")
    ours.ensure()
    assert connection.get("k") == "v"
    second = ours.pid
    assert second != first
    assert other.ask("ensure") == second  # not a third one
    os.kill(second, signal.SIGKILL)
    with server(tmp_path / "d") as newcomer:
        assert client(newcomer).get("k") == "v"
        assert newcomer.pid != second


def test_all_ensure_at_once_after_a_crash(tmp_path: Path, workers: MakeWorker) -> None:
    path = tmp_path / "d"
    five = [workers(path) for _ in range(5)]
    (pid,) = set(start_together(five))
    for round_ in range(2, 5):
        os.kill(pid, signal.SIGKILL)
        for worker in five:
            worker.send("ensure")
        (successor,) = {worker.answer() for worker in five}
        assert successor != pid
        assert starts(path) == round_
        pid = successor


def test_a_killed_supervisor(tmp_path: Path, server: Make) -> None:
    ours = server(tmp_path / "d").start()
    connection = client(ours)
    connection.set("k", "v")
    first, supervisor = ours.pid, supervisor_of(ours.path)
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not is_held(Path(ours.path, "supervisor.lock")), "the supervisor is dead")
    ours.ensure()
    assert connection.get("k") == "v"
    assert gone(first), "two servers on one folder"
    assert supervisor_of(ours.path) != supervisor
    ours.close(wait=10)
    assert stopped(ours.path)


def test_a_server_without_its_supervisor_does_not_stay(tmp_path: Path, server: Make) -> None:
    ours = server(tmp_path / "d").start()
    first, supervisor = ours.pid, supervisor_of(ours.path)
    os.kill(first, signal.SIGSTOP)  # so that it cannot end by itself, whatever the platform does
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not is_held(Path(ours.path, "supervisor.lock")), "the supervisor is dead")
    ours.close()
    assert not gone(first)
    os.kill(first, signal.SIGCONT)
    with server(tmp_path / "d") as second:
        assert second.pid != first
        assert gone(first)


def test_supervisor_told_to_end(tmp_path: Path, server: Make) -> None:
    """As at a shutdown of the system."""
    ours = server(tmp_path / "d").start()
    client(ours).set("k", "v")
    os.kill(supervisor_of(ours.path), signal.SIGTERM)
    wait_until(lambda: stopped(ours.path), "an orderly end")
    assert "ended with status 0" in (tmp_path / "d/supervisor.log").read_text()
    ours.ensure()
    assert client(ours).get("k") == "v"


def test_nobody_joins_a_server_that_is_being_stopped(tmp_path: Path, workers: MakeWorker) -> None:
    path, each = tmp_path / "d", 15
    four = [workers(path) for _ in range(4)]
    for worker in four:
        worker.send("churn", str(each))
    assert [worker.answer() for worker in four] == [each] * 4
    assert four[0].ask("start")
    assert four[0].ask("redis", "INCRBY", "churned", "0") == f":{4 * each}"


def test_killed_while_starting(tmp_path: Path, workers: MakeWorker) -> None:
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
    with pytest.raises(RuntimeError):
        raise RuntimeError(parent.ask("fork", "ensure")["error"])
    parent.ask("fork", "close")  # the parent's share is not the child's to give up
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
    assert with_share["result"] == pid
    parent.kill()
    assert not gone(with_share["pid"])
    with EmbeddedServer(path) as other:  # joins the server that the child keeps
        assert other.pid == pid
    os.kill(with_share["pid"], signal.SIGKILL)
    wait_until(lambda: stopped(path), "an end with the last share")
    assert not gone(without["pid"])


def test_a_program_inherits_no_share(tmp_path: Path, workers: MakeWorker) -> None:
    path = tmp_path / "d"
    parent = workers(path)
    parent.ask("start")
    child = parent.ask("spawn")["pid"]
    parent.process.kill()  # not waited for: the child has the pipe
    wait_until(lambda: stopped(path), "an end, though the program runs")
    assert not gone(child)


def test_the_folder_is_moved_under_it(short: Path, server: Make) -> None:
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
    assert client(ours).ping()  # on a new connection: the old one's end did not take the socket away
