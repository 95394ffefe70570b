"""Histories of several processes: nothing is lost, nothing is twice, all agree; also when killed or cut off."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_history import HistoryStore
from tests.support.servers import Start

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


class Worker:
    """A process of history_worker.py."""

    def __init__(self, mode: str, url: str, name: str, count: int = 0) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.history_worker", mode, url, name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, *command: object) -> None:
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended with {self.process.wait(20)}"
        return json.loads(line)

    def ask(self, *command: object) -> Any:
        self.send(*command)
        return self.receive()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


Workers = Callable[..., Worker]


@pytest.fixture
def workers() -> Iterator[Workers]:
    made: list[Worker] = []

    def start(*arguments: Any) -> Worker:
        made.append(Worker(*arguments))
        return made[-1]

    yield start
    for worker in made:
        worker.close()


@pytest.mark.proves("histories")
@pytest.mark.parametrize("processes", [2, pytest.param(8, marks=pytest.mark.full)])
def test_processes_that_load_add_and_save_keep_everything(
    own_server: Start, workers: Workers, processes: int, full: bool
) -> None:
    rounds = 80 if full else 40 // processes
    url = own_server("plain").url
    running = [workers("rounds", url, str(index), rounds) for index in range(processes)]
    for step in ("ready", "done"):
        for worker in running:
            assert worker.receive() == step
        for worker in running:
            worker.send("go")
    read = [worker.receive() for worker in running]  # the texts that each process reads in the end
    assert sorted(read[0]) == sorted(f"{name}-{number}" for name in range(processes) for number in range(rounds))
    assert all(other == read[0] for other in read)
    for name in range(processes):
        mine = [text for text in read[0] if text.startswith(f"{name}-")]
        assert mine == [f"{name}-{number}" for number in range(rounds)]
    with HistoryStore(url) as store:
        assert [message.text for message in store.get("c")] == read[0]


@pytest.mark.proves("histories")
@pytest.mark.full
def test_killed_while_saving(own_server: Start, workers: Workers) -> None:
    url = own_server("plain").url
    kills, count = 20, 600
    chance = random.Random(5)
    acknowledged = {"a": 0, "b": 0}
    running = {name: workers("killed", url, name, count) for name in acknowledged}
    for kill in range(kills):
        name = chance.choice("ab")
        worker = running[name]
        goal = acknowledged[name] + chance.randrange(3, 2 * count // kills)
        while acknowledged[name] < min(goal, count):
            line = worker.process.stdout.readline()  # type: ignore[union-attr]
            if not line:
                break
            acknowledged[name] = json.loads(line)
        worker.process.kill()
        rest = worker.process.communicate()[0].splitlines()
        if rest and rest[-1].isdigit():
            acknowledged[name] = int(rest[-1])
        with HistoryStore(url) as store:
            stored = {message.text for message in store.get("c")}
        assert {f"{name}-{number}" for number in range(acknowledged[name])} <= stored, f"lost at kill {kill}"
        running[name] = workers("killed", url, name, count)
    for worker in running.values():
        worker.process.communicate()
        assert worker.process.returncode == 0
    with HistoryStore(url) as store:
        texts = [message.text for message in store.get("c")]
    assert sorted(texts) == sorted(f"{name}-{number}" for name in "ab" for number in range(count))
    for name in "ab":
        assert [text for text in texts if text.startswith(name)] == [f"{name}-{number}" for number in range(count)]


@pytest.mark.parametrize("mode", ["exits", "exits_async"])
@pytest.mark.full
def test_the_end_of_the_interpreter_saves_the_rest(own_server: Start, workers: Workers, mode: str) -> None:
    url = own_server("plain", tcp=True).url
    worker = workers(mode, url, "m", 300)
    assert worker.process.wait(60) == 0
    with HistoryStore(url) as store:
        assert [message.text for message in store.get("c")] == [f"m-{number}" for number in range(300)]
