"""`redis-history tail`: the newest messages, and changes by other processes, also through a restart."""

import json
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from redis_history import HistoryStore, assistant, tool_use, user
from redis_history.errors import RunBusyError
from tests.support.commands import command, environment, run
from tests.support.servers import RealServer, Start, wait_until

SECONDS = 30.0


class Follower:
    """The command in another process, whose lines are read as they arrive."""

    def __init__(self, stderr: Path, *arguments: str) -> None:
        self._stderr = stderr
        with stderr.open("wb") as file:
            self.process = subprocess.Popen(
                command(*arguments), stdout=subprocess.PIPE, stderr=file, text=True, env=environment()
            )
        self.lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    @property
    def errors(self) -> str:
        return self._stderr.read_text()

    def until(self, wanted: str) -> list[str]:
        """Lines up to the first that contains `wanted`."""
        lines = [self.lines.get(timeout=SECONDS)]
        while wanted not in lines[-1]:
            lines.append(self.lines.get(timeout=SECONDS))
        return lines

    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.lines.get(timeout=SECONDS))
        return event

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self._reader.join()
        self.process.communicate()


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    """Starts followers, which end with the test."""
    followers: list[Follower] = []

    def start(*arguments: str) -> Follower:
        followers.append(Follower(tmp_path / f"stderr-{len(followers)}", *arguments))
        return followers[-1]

    yield start
    for follower in followers:
        follower.close()


@pytest.mark.proves("tail")
def test_it_shows_what_another_process_changes(store: HistoryStore, where: tuple[str, ...], follow: Any) -> None:
    store.append_many("c", [user(f"Message {number}") for number in range(5)])
    tail = follow(*where, "tail", "c", "-f", "-n", "2")
    shown = tail.until("Message 4")
    assert [line for line in shown if "Message" in line] == ["  Message 3", "  Message 4"]
    store.append("c", assistant("Hello."))
    assert "assistant" in tail.until("  Hello.")[-2]
    store.update_message("c", user("Message 4!", id=store.get("c")[4].id))
    assert "edited" in tail.until("  Message 4!")[-2]
    store.update_conversation("c", title="Greetings")
    tail.until("-- the record changed: title: Greetings")
    store.compact("c", through=store.get("c")[3], summary="Four were said.")
    assert "replaces 4 messages" in tail.until("  Four were said.")[-2]
    store.delete_messages("c", [store.get("c")[-1].id])
    tail.until("-- 1 message deleted")
    store.clear("c")
    tail.until("-- all messages removed")
    store.delete_conversation("c")
    tail.until("-- the conversation was deleted")
    assert tail.end(signal.SIGINT) == 0
    assert tail.errors == ""


@pytest.mark.proves("tail")
@pytest.mark.full
def test_it_shows_who_works_and_who_waits(store: HistoryStore, where: tuple[str, ...], follow: Any) -> None:
    store.append("c", user("Why?"))
    tail = follow(*where, "tail", "c", "-f")
    tail.until("Why?")

    def wait() -> None:
        with pytest.raises(RunBusyError), store.run("c", agent_name="Bob", wait=2):
            pass

    with store.run("c", agent_name="Ada"):
        tail.until("-- Ada is at work, since")
        waiter = threading.Thread(target=wait)
        waiter.start()
        tail.until("; Bob waits since")
        waiter.join()
        store.stop_run("c", reason="enough")
        tail.until("-- Ada was asked to stop (enough)")
    tail.until("-- Ada was stopped (enough)")
    assert tail.end() == 0


@pytest.mark.proves("tail")
def test_it_survives_a_restart_and_resumes(own_server: Start, follow: Any) -> None:
    server = own_server()
    where = ("--url", server.url, "--json", "tail", "c")
    with HistoryStore(server.url) as store:
        store.append("c", user("before"))
        tail = follow(*where, "-f")
        first = tail.event()
        assert first["event"] == "snapshot"
        assert [message["text"] for message in first["messages"]] == ["before"]
        assert (first["revision"], first["message_count"]) == (1, 1)
        server.kill()
        wait_until(lambda: "waits for the server" in tail.errors, "the follower to notice")
        server.start()
        store.append("c", user("after"))
        second = tail.event()
        assert (second["event"], second["revision"]) == ("messages_appended", 2)
        assert [message["text"] for message in second["messages"]] == ["after"]
        assert tail.end() == 0
        # Resumed, in another process.
        store.append("c", user("meanwhile"))
        (third,) = run(*where, "--after", second["cursor"]).lines
        assert third["messages"][0]["text"] == "meanwhile"
        assert run(*where, "--after", third["cursor"]).lines == []


@pytest.mark.full
def test_all_present_and_future_conversations(store: HistoryStore, where: tuple[str, ...], follow: Any) -> None:
    store.append("old", user("not shown"))
    shown, tail = follow(*where, "tail", "--all", "-f"), follow(*where, "--json", "tail", "--all", "-f")

    def listening() -> bool:
        store.append("warm", user("up"))
        return tail.lines.qsize() > 0 and shown.lines.qsize() > 0

    wait_until(listening, "the followers to listen", SECONDS)
    store.append("old", user("one"))
    store.append("new", user("two"))
    assert shown.until("  two").count("==> new <==") == 1
    events: list[dict[str, Any]] = []
    while not {event["conversation_id"] for event in events} >= {"old", "new"}:  # in any order
        events.append(tail.event())
    assert tail.end() == 0


def test_replies_grow(store: HistoryStore, where: tuple[str, ...], follow: Any) -> None:
    tail = follow(*where, "tail", "-f", "c")
    wait_until(lambda: "waiting for it" in tail.errors, "the follower to wait for the conversation")
    store.append("c", user("Why?"))
    tail.until("Why?")
    with store.stream("c") as reply:
        reply.write("One\nline ")
        assert "writing" in tail.until("  One")[-2]
        store.append("c", user("Hurry"))
        assert tail.until("Hurry")[0] == "  line "
        reply.write("more")
        reply.add(tool_use("1", "find", {"q": 1}))
        reply.write("Done.")
    lines = tail.until("Done.")
    assert "continued" in lines[1]
    assert lines[2:] == ["  more", "  → find(q=1)", "  Done."]
    reply = store.stream("c")
    reply.write("half\nof it")
    tail.until("  half")
    reply.close()
    tail.until("-- interrupted")
    assert tail.end() == 0


def test_a_reply_that_has_ended_is_shown_once(store: HistoryStore, where: tuple[str, ...]) -> None:
    store.append("c", user("Why?"))
    begin = str(store.snapshot("c").cursor)
    with store.stream("c") as reply:
        reply.write("Because.")
    reply = store.stream("c")
    reply.write("half")
    reply.close()
    shown = run(*where, "tail", "c", "--after", begin).stdout
    assert [shown.count(words) for words in ("Because.", "half", "interrupted")] == [1, 1, 1]
    with store.subscribe("c", after=begin) as events:
        within = str(events.get(timeout=SECONDS).cursor)
    assert run(*where, "tail", "c", "--after", within).stdout.count("Because.") == 1


def test_missing_changes_are_reported(server: RealServer, namespace: str, where: tuple[str, ...]) -> None:
    with HistoryStore(server.url, namespace=namespace, log_length=2) as store:
        store.append("c", user("x"))
        after = ("tail", "c", "--after", str(store.snapshot("c").cursor))
        assert run(*where, *after).returncode == 0
        for number in range(250):  # the server trims whole blocks
            store.append("c", user(str(number)))
        assert "there were more changes than the change log keeps" in run(*where, *after).stdout
        (reset,) = run(*where, "--json", *after).lines
        assert (reset["event"], reset["reason"], reset["revision"]) == ("reset", "log_trimmed", 251)
        store.delete_conversation("c")
        done = run(*where, *after)
        assert (done.returncode, "there is no conversation 'c'" in done.stderr) == (1, True)
        assert "the conversation does not exist any more" in done.stdout


def test_it_ends_with_its_reader(store: HistoryStore, where: tuple[str, ...]) -> None:
    store.append("c", user("x"))
    argv = command(*where, "tail", "c", "-f")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        while b"  x" not in process.stdout.readline():
            pass
        process.stdout.close()  # nothing more is written, and yet it notices
        assert process.wait(SECONDS) == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("", "--all"),
        ("c --all", "--all"),
        ("--all", "--follow"),
        ("--all --follow --after x", "--after"),
        ("c --after x", "cursor"),
        ("c -n -1", "-1"),
    ],
)
def test_wrong_arguments(on: Any, arguments: str, why: str) -> None:
    done = on("tail", *arguments.split())
    assert (done.returncode, why in done.stderr) == (2, True)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.full
def test_a_signal_does_not_cut_a_line(store: HistoryStore, where: tuple[str, ...], reads: bool) -> None:
    """The line is longer than a pipe holds. If nobody reads it, a second signal ends the command."""
    store.append("c", user("x" * 900_000))
    argv = command(*where, "--json", "tail", "c", "--follow")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment(PYTHONUNBUFFERED="")) as process:
        assert select.select([process.stdout], [], [], SECONDS)[0], "no output"
        process.terminate()
        if reads:
            (line,) = process.stdout.read().splitlines()
            assert len(json.loads(line)["messages"][0]["text"]) == 900_000
            assert process.wait(SECONDS) == 0
        else:

            def ended() -> bool:
                process.terminate()
                return process.poll() is not None

            wait_until(ended, "it to end")
