"""Compressor processes: with appends in the meantime, killed at random, stopped past their lease."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from redis_history import HistoryStore, Message, user
from redis_history.agents.compaction.policy import Policy
from redis_history.formats import to_anthropic, to_openai_chat
from redis_history.integrations.importers import Transcript
from redis_history.store.operations.keys import Keyspace
from redis_history.values.pairs import groups
from redis_history.values.sizes import message_tokens
from tests.support.sdk import is_valid
from tests.support.servers import Start, wait_until
from tests.support.transcripts import FILES, read

#: Those of agents.
AGENTS = [path for path in FILES if path.name.startswith(("taubench", "sweagent", "miniswe", "tau2"))]
SUMMARIZERS = "tests.acceptance.compressor_worker"
KEYS = Keyspace("default")


class Worker:
    """A process of `redis-history compress`. `lines` has its output, as JSON if it is."""

    def __init__(self, url: str, summarizer: str, *options: str) -> None:
        argv = [sys.executable, "-m", "redis_history.cli", "--url", url, "--json", "compress"]
        argv += ["--summarizer", summarizer, "--look-interval", "100ms", *options]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[Any] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(json.loads(line) if line.startswith("{") else line.rstrip("\n"))

    @property
    def kinds(self) -> list[str]:
        return [one["kind"] if isinstance(one, dict) else one for one in list(self.lines)]

    def until(self, kind: str, seconds: float = 60) -> None:
        def printed() -> bool:
            assert self.process.poll() is None or kind in self.kinds
            return kind in self.kinds

        wait_until(printed, f"{kind!r} from the worker", seconds)

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self, how: signal.Signals | None = signal.SIGKILL) -> int:
        """Its exit status; None: it ends automatically."""
        if how is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(how)
        status = self.process.wait(60)
        self._thread.join()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        return status


StartWorker = Callable[..., Worker]


@pytest.fixture
def start(own_server: Start) -> Iterator[StartWorker]:
    """Starts workers, and ends those that are left."""
    workers: list[Worker] = []

    def start(*arguments: str) -> Worker:
        workers.append(Worker(*arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


def lot(count: int) -> list[Message]:
    return [
        user(f"Message {number} tells at length about suitcase {number}.", id=f"m{number}") for number in range(count)
    ]


def lease_of(client: Any) -> list[Any]:
    return msgspec.msgpack.decode(client.hget(KEYS.conversation("c").state, "W"))


@pytest.mark.proves("compressors")
@pytest.mark.full
def test_a_worker_that_stood_still_past_its_lease_cannot_commit(own_server: Start, start: StartWorker) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client:
        store.append_many("c", lot(60))
        before = store.get("c")
        worker = start(server.url, f"{SUMMARIZERS}:held", "--max-messages", "50", "--lease", "500ms")
        worker.until("held")
        # A renewal that had begun in time may still renew the lease, so the worker stops between two of them.
        wait_until(lambda: 350 < lease_of(client)[5] - 1000 * time.time() < 430, "a moment between two renewals")
        worker.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: lease_of(client)[5] <= 1000 * time.time(), "the lease to expire")
        worker.go()  # its summary is there as soon as it goes on
        worker.process.send_signal(signal.SIGCONT)
        worker.until("lease_lost")
        assert store.get("c") == before
        assert "compressed" not in worker.kinds
        worker.end()


@pytest.mark.full
def test_a_worker_ends_at_sigterm(own_server: Start, start: StartWorker) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client:
        store.append_many("c", lot(60))
        worker = start(server.url, f"{SUMMARIZERS}:held", "--max-messages", "50")
        worker.until("held")
        assert lease_of(client)[3] == "active"
        worker.process.send_signal(signal.SIGTERM)
        worker.go()  # what is under way is finished
        assert worker.end(None) == 0
        assert worker.lines[-1]["compressed"] == 1
        assert lease_of(client)[3] == "completed"

        store.restore("c", lot(60))
        worker = start(server.url, f"{SUMMARIZERS}:held", "--max-messages", "50", "--grace", "100ms")
        worker.until("held")
        assert worker.end(signal.SIGTERM) == 0  # or given back
        assert worker.lines[-1]["compressed"] == 0
        assert lease_of(client)[3] == "completed"
        assert len(store.get("c")) == 60


def torn(original: list[Message], live: list[Message]) -> int:
    """How many calls and results are on different sides."""
    there = {message.id for message in live}
    sides: dict[int, set[bool]] = {}
    for group, message in zip(groups(original), original, strict=True):
        sides.setdefault(group, set()).add(message.id in there)
    return sum(len(side) > 1 for side in sides.values())


@pytest.mark.proves("compressors")
@pytest.mark.full
def test_four_workers_killed_at_random_over_real_conversations(own_server: Start, start: StartWorker) -> None:
    transcripts = sorted(
        (transcript for path in AGENTS for transcript in read(path)),
        key=lambda transcript: zlib.crc32(transcript.conversation_id.encode()),
    )
    wanted: dict[str, Transcript] = {}
    for number, transcript in enumerate(islice(_again(transcripts), 60)):
        # The samples are short, so each is repeated.
        messages = [replace(one, id=f"{n} {one.id}", timestamp=None) for n in range(8) for one in transcript.messages]
        wanted[f"{number} {transcript.conversation_id}"] = replace(transcript, messages=tuple(messages))
    assert len({transcript.format for transcript in wanted.values()}) >= 4
    most, keep = 1_500, 4
    options = ("--max-tokens", str(most), "--keep-recent", str(keep), "--lease", "2s", "--concurrency", "2")
    policy = Policy(max_tokens=most, keep_recent=keep)
    chance = random.Random(11)
    server = own_server()
    with HistoryStore(server.url) as store:
        originals = {}
        for name, transcript in wanted.items():
            for first in range(0, len(transcript.messages), 200):
                store.append_many(name, transcript.messages[first : first + 200])
            originals[name] = store.get(name)

        def too_long() -> list[str]:
            records = store.list_conversations(limit=len(wanted))
            return [one.conversation_id for one in records if one.estimated_tokens > most]

        def unfinished() -> bool:
            return any(policy.plan(store.get(name)) is not None for name in too_long())

        begun = sum(policy.plan(store.get(name)) is not None for name in too_long())
        assert begun > len(wanted) // 4
        workers = [start(server.url, f"{SUMMARIZERS}:slow", *options) for _ in range(4)]
        kills, goals = 0, 12
        deadline = time.monotonic() + 240
        while unfinished():
            assert time.monotonic() < deadline, too_long()
            if len(too_long()) <= begun * (goals - kills) // (goals + 1):
                number = chance.randrange(4)
                workers[number].end(signal.SIGKILL)
                workers[number] = start(server.url, f"{SUMMARIZERS}:slow", *options)
                kills += 1
        assert kills >= goals // 2
        for worker in workers:
            worker.until("started")
            assert worker.end(signal.SIGTERM) == 0

        shortened = 0
        for name, original in originals.items():
            live = store.get(name)
            summaries = [message for message in live if message.is_summary]
            was_long = sum(map(message_tokens, original)) > most
            assert len(summaries) <= 1
            if not summaries:
                assert live == original
                assert not was_long or policy.plan(original) is None
                continue
            shortened += 1
            assert was_long
            record = store.get_conversation(name)
            assert record.message_count == len(live)
            assert record.estimated_tokens == sum(map(message_tokens, live))
            assert record.estimated_tokens <= most or policy.plan(live) is None
            every = store.get(name, include_archived=True)
            assert [message for message in every if not message.is_summary] == original  # live and archive are all
            assert torn(original, live) == 0
            assert is_valid("openai_chat", to_openai_chat(live, on_loss=lambda loss: None))
            assert is_valid("anthropic", to_anthropic(live, on_loss=lambda loss: None))
        assert shortened >= begun
        print(f"\n{shortened} of {len(wanted)} conversations compressed by four workers, {kills} of them killed")


def _again(transcripts: list[Transcript]) -> Iterator[Transcript]:
    while True:
        yield from transcripts
