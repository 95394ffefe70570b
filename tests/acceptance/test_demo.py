"""The demo as users run it, against a real server."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from redis_history import HistoryStore, Participant, user
from redis_history.agents.compaction.policy import Policy
from redis_history.cli import demo, replay
from redis_history.cli.replay import MAX_MESSAGES, SAMPLE, SHARED, Replay, load
from redis_history.errors import RedisHistoryError
from redis_history.formats import to_openai_chat
from tests.support.commands import command, environment, run
from tests.support.servers import RealServer, free_port


@pytest.fixture
def url(server: RealServer) -> Iterator[str]:
    """The server, from which the demo's keys are removed afterwards."""
    yield server.url
    with server.client() as client:
        for key in client.scan_iter(match="rh2:{demo-*", count=1000):
            client.unlink(key)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pauses that give people time to watch."""
    monkeypatch.setattr(replay, "_SHOWN_SECONDS", 0.5)
    monkeypatch.setattr(sys, "argv", ["/bin/redis-history"])


@pytest.mark.full
def test_the_page_has_the_port_that_was_asked_for(server: RealServer, url: str) -> None:
    port = free_port()
    argv = command("demo", "--url", url, "--conversations", "1", "--agents", "1", "--serve", "--port", str(port))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    with process:
        try:
            address = next(line for line in process.stdout if line.startswith("http://"))
            assert address.startswith(f"http://127.0.0.1:{port}/?token=")
            assert httpx.get(address.strip(), follow_redirects=True).status_code == 200
            taken = run("demo", "--url", url, "--serve", "--port", str(port))
            assert (taken.returncode, taken.stdout) == (2, ""), "before the replay"
            assert f"cannot listen on port {port}" in taken.stderr
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert run("demo", "--url", url, "--port", "8000").returncode == 2, "without --serve"


@pytest.mark.usefixtures("fast")
@pytest.mark.full
def test_the_conversations_are_there_afterwards(server: RealServer, url: str) -> None:
    done = run("demo", "--url", url)
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("  redis-history ")]
    assert len(commands) == 3
    listed, shown = (run(*words[1:]) for words in commands[:2])
    assert listed.stdout.count("\n") == 7
    transcripts = load(SAMPLE, None, pytest.fail)
    assert all(message.text[:20] in shown.stdout for message in transcripts[0].messages)

    policy = Policy(max_messages=MAX_MESSAGES, keep_recent=3)
    namespace = commands[0][commands[0].index("--namespace") + 1]
    with HistoryStore(server.url, namespace=namespace, search="off") as store, server.client() as client:
        lines = SAMPLE.read_text().splitlines()
        for line, transcript in zip(lines, transcripts, strict=True):
            live = store.get(transcript.conversation_id)
            every = store.get(transcript.conversation_id, include_archived=True)
            sent = [message for message in every if not message.is_summary]
            assert to_openai_chat(sent, shape="original") == json.loads(line)["messages"]
            assert len(live) <= MAX_MESSAGES or policy.plan(live) is None
            assert sum(message.is_summary for message in live) == 1
        reports = store.get(SHARED, include_archived=True)
        assert sum(not message.is_summary for message in reports) == sum(len(one.messages) for one in transcripts)
        own = [key for key in client.scan_iter(count=1000) if namespace.encode() in key]
        assert own
        assert all(0 < client.ttl(key) <= 1.5 * 24 * 3600 for key in own)


@pytest.mark.usefixtures("fast")
def test_the_counts_for_data_of_your_own(url: str, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": f"Where is suitcase {number}?\x1b[2J"} for number in range(10)]}
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(chat)}\n[\n{json.dumps(chat)}\n")
    done = run("demo", "--url", url, "--data", str(tmp_path / "chats.jsonl"), "--agents", "5", "--json")
    assert (done.returncode, "chats.jsonl:2" in done.stderr) == (0, True), done.stderr
    (counts,) = done.lines
    assert counts["total"] == counts["stored"] == counts["delivered"] == 2 * 20, "each message has a report"
    assert (counts["ok"], len(counts["conversations"]), counts["faults"], counts["repeats"]) == (True, 3, 0, 2)
    assert counts["summaries"] > 0


@pytest.mark.parametrize(
    "arguments",
    ["--data missing.jsonl", f"--data {__file__}", "--agents 0", "--conversations 0", "--url memory://", "--url x"],
    ids=lambda arguments: arguments[-16:],
)
def test_wrong_arguments(arguments: str) -> None:
    assert run("demo", *arguments.split()).returncode == 2


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)]
)
def test_an_interrupted_demo_removes_its_conversations(
    server: RealServer, url: str, number: signal.Signals, status: int
) -> None:
    with server.client() as client:
        before = set(client.scan_iter(b"rh2:*:c", count=1000))
        with subprocess.Popen(
            command("demo", "--url", url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env=environment(),
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert any(re.search(r"[1-9]\d* of \d+ messages stored", line) for line in process.stdout)
            assert set(client.scan_iter(b"rh2:*:c", count=1000)) - before
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
            _, err = process.communicate(timeout=120)  # ends with the agents, which have the same stderr
        assert process.returncode == status
        assert "Traceback" not in err
        assert not set(client.scan_iter(b"rh2:*:c", count=1000)) - before


async def test_an_agent_that_fails_ends_the_demo(
    server: RealServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_AGENT", "raise SystemExit(7)")
    with pytest.raises(RedisHistoryError, match=r"agent [12].* 7"):
        await Replay(server.url, namespace, load(SAMPLE, 2, pytest.fail), agents=2).run()


def test_hostile_text_is_shown_as_text() -> None:
    hostile = "[bold]a\x1b[2Jb\r\nc\u202ed[/bold] " + "x" * 200
    line = demo._line("c", user(hostile, participant=Participant(kind="user", id="\x1b[2J")))
    assert line.plain.startswith("c  ␛[2J  [bold]a␛[2Jb c\\u202ed[/bold]")
    assert len(line.plain) < 100
