"""`redis-history work`, `turns` and `say --ask`."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore, user
from tests.support.commands import command, environment
from tests.support.servers import wait_until

ANSWERS = """
async def later(run):
    async with run.stream() as reply:
        await reply.write("You said: " + run.turn.messages[-1].text)

def now(run):
    with run.stream() as reply:
        reply.write("You said: " + run.turn.messages[-1].text)

def never(run):
    raise LookupError("no answer")

nothing = 1
"""


@pytest.mark.parametrize("function", ["later", "now"])
def test_work_answers_until_it_is_ended(
    store: HistoryStore, on: Any, where: tuple[str, ...], tmp_path: Path, function: str
) -> None:
    (tmp_path / "answers.py").write_text(ANSWERS)
    (said,) = on("say", "c", "Hello", "--ask", "--message-id", "m", "--json").lines
    assert (said["id"], said["duplicate"]) == ("m", False)
    assert on("say", "c", "Hello", "--ask", "--message-id", "m").returncode == 0
    (turn,) = on("turns", "--json").lines
    assert (turn["conversation_id"], turn["status"], turn["message_ids"]) == ("c", "owed", ["m"])
    assert on("turns", "--count").stdout == "1\n"
    argv = command(*where, "work", f"answers:{function}", "--json")
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "started"
        wait_until(lambda: not store.list_turns(), "the answer")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert [message.text for message in store.get("c")] == ["Hello", "You said: Hello"]
    assert on("turns", "--count").stdout == "0\n"


def test_turns_are_listed_retried_and_dropped(
    store: HistoryStore, on: Any, where: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "answers.py").write_text(ANSWERS)
    store.ask("c", user("x"), agent_name="bot")
    argv = command(*where, "work", "answers:never", "--agent", "bot", "--attempts", "1", "--quiet")
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.DEVNULL, env=environment()) as process:
        wait_until(lambda: store.list_turns(status="parked"), "the turn to be parked")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert on("turns", "--status", "owed").stdout == ""
    line = on("turns", "--agent", "bot").stdout
    assert line.startswith("c\tparked\t")
    assert "bot has failed to answer after LookupError (1 message)" in line
    (done,) = on("turns", "--retry", "c", "--json").lines
    assert done == {"conversation_id": "c", "changed": True}
    assert "bot owes an answer after LookupError" in on("turns").stdout
    assert on("turns", "--drop", "c").stdout == "c: dropped\n"
    again = on("turns", "--drop", "c")
    assert (again.returncode, again.stdout) == (1, "c: there is no such turn, or it is running\n")


def test_wrong_functions_are_named(on: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_answers.py").write_text(ANSWERS)
    monkeypatch.chdir(tmp_path)
    for path, said in {
        "wrong_answers": "package.module:function", "missing:answer": "missing",
        "wrong_answers:missing": "missing", "wrong_answers:nothing": "must be a function",
    }.items():  # fmt: skip
        done = on("work", path)
        assert done.returncode == 2
        assert said in done.stderr
    assert on("say", "c", "x", "--agent", "bot").returncode == 2
