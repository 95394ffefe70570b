"""docs/examples/fleet: a web process and two workers, started by one command, or by docker-compose.yml."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from redis_history import HistoryStore
from tests.docs.pages import DOCS, ROOT
from tests.support.servers import DEADLINE, RealServer, free_port, until
from tests.web.chatting import asked, chunks_of, text_in

FOLDER = DOCS / "examples" / "fleet"
WORDS = [f"word{number}" for number in range(30)]
ANSWER = "".join(f"{word} " for word in WORDS)


class Fleet:
    """The fleet of the example."""

    def __init__(self, url: str, log: Path, folder: Path = FOLDER, namespace: str = "fleet") -> None:
        self.port, self._log = free_port(), log
        environment = {**os.environ, "REDIS_HISTORY_URL": url, "REDIS_HISTORY_NAMESPACE": namespace}
        argv = [sys.executable, folder / "fleet.py", str(self.port)]
        with log.open("w") as written:
            self._process = subprocess.Popen(argv, env=environment, stdout=written, stderr=subprocess.STDOUT)

    def ids(self, name: str) -> list[int]:
        """The processes of this name that it has started."""
        return [int(found) for found in re.findall(rf"^{name}: process (\d+)", self._log.read_text(), re.MULTILINE)]

    async def answers(self, client: httpx.AsyncClient) -> None:
        async def answers() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            with contextlib.suppress(httpx.TransportError):
                return (await client.get("/api/chat/c/messages")).status_code == 200
            return False

        await until(answers, "the fleet", 60)

    def kill(self, *names: str) -> None:
        """End the present processes of these names. The fleet starts others."""
        for name in names:
            os.kill(self.ids(name)[-1], signal.SIGKILL)

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(DEADLINE)
        for name in ("web", "worker 1", "worker 2"):
            for number in self.ids(name):
                with pytest.raises(ProcessLookupError):
                    os.kill(number, 0)

    @property
    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def fleet(own_server: Callable[..., RealServer], tmp_path: Path) -> Iterator[tuple[Fleet, HistoryStore]]:
    url = own_server("plain").url
    started = Fleet(url, tmp_path / "log")
    try:
        with HistoryStore(url, namespace="fleet") as store:
            yield started, store
    finally:
        started.end()


async def read(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> list[dict[str, Any]]:
    """The chunks of a stream, as far as they come."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(httpx.TransportError):
        async with client.stream(method, path, json=body) as response:
            async for chunk in chunks_of(response):
                found += [chunk]
    return found


async def test_the_fleet_of_the_example_answers(fleet: tuple[Fleet, HistoryStore]) -> None:
    started, store = fleet
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{started.port}", timeout=60) as client:
        await started.answers(client)
        chunks = await read(client, "POST", "/api/chat", asked("How are you?", id="c"))
        assert (text_in(chunks), chunks[-1]["type"]) == ("How are you? ", "finish")
        assert (await client.get("/", follow_redirects=True)).status_code == 200
        assert (await client.get("/history/v1/conversations")).json()["conversations"][0]["id"] == "c"
    assert [one.text for one in store.get("c")] == ["How are you?", "How are you? "]
    assert store.list_turns() == []
    assert not re.search("ERROR|WARNING|Traceback", started.log), started.log


@pytest.mark.full
@pytest.mark.proves("turns")
@pytest.mark.parametrize("killed", ["workers", "web"])
async def test_a_fleet_survives_kills(fleet: tuple[Fleet, HistoryStore], killed: str) -> None:
    """In mid-answer. The text is exact, and there is one answer."""
    started, store = fleet
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{started.port}", timeout=60) as client:
        await started.answers(client)
        asking = asyncio.create_task(read(client, "POST", "/api/chat", asked(" ".join(WORDS), id="c")))

        async def is_in_the_middle() -> bool:
            return any(WORDS[5] in one.text and one.role == "assistant" for one in store.get("c"))

        await until(is_in_the_middle, "the middle of the answer", 60)
        started.kill(*(("web",) if killed == "web" else ("worker 1", "worker 2")))
        await asking
        await started.answers(client)

        async def has_ended() -> bool:
            await read(client, "GET", "/api/chat/c/stream")
            return not store.list_turns()

        await until(has_ended, "the end of the answer", 60)
    assert [(one.role, one.text, one.status) for one in store.get("c")] == [
        ("user", " ".join(WORDS), "complete"), ("assistant", ANSWER, "complete"),
    ]  # fmt: skip


def test_docker_compose_starts_the_fleet() -> None:
    """As far as it can be checked without Docker: services, their commands, files and conditions."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert services.keys() == {"redis", "web", "worker"}
    assert "profiles" not in services["redis"], "the server starts alone, too"
    for name in ("web", "worker"):
        service = services[name]
        assert service["profiles"] == ["fleet"]
        assert service["depends_on"] == {"redis": {"condition": "service_healthy"}}
        assert service["environment"] == {
            "REDIS_HISTORY_URL": "redis://redis:6379/0", "REDIS_HISTORY_NAMESPACE": "fleet",
        }  # fmt: skip
        dockerfile = (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).read_text(encoding="utf-8")
        [folder] = re.findall(r"^WORKDIR /source/(.*)$", dockerfile, re.MULTILINE)
        assert ROOT / folder == FOLDER
        module = next(word.partition(":")[0] for word in service["command"] if re.fullmatch(r"\w+:\w+", word))
        assert (FOLDER / f"{module}.py").is_file()
    assert services["worker"]["deploy"] == {"replicas": 2}
    assert services["worker"]["command"][:2] == ["redis-history", "work"]
    assert services["web"]["ports"] == ["127.0.0.1:8000:8000"]
    assert int(services["worker"]["stop_grace_period"].removesuffix("s")) > 20
    assert services["redis"]["volumes"][0].partition(":")[0] in compose["volumes"]
