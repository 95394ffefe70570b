"""Two frameworks run agents with a tool, in processes of their own, on one conversation."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from redis_history import HistoryStore
from tests.support.servers import RealServer

WORKER = Path(__file__).with_name("agent_worker.py")
FRAMEWORKS = ["pydantic_ai", "openai_agents"]


def turn(framework: str, server: RealServer, namespace: str, text: str) -> str:
    command = [sys.executable, str(WORKER), framework, server.url, namespace, "shared", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=WORKER.parents[2], check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_one_process_goes_on_where_another_stopped(server: RealServer, namespace: str, long: bool) -> None:
    # Each process takes seconds to import its framework; the order of the two makes no other difference.
    for first, second in product(FRAMEWORKS, FRAMEWORKS) if long else [("pydantic_ai", "openai_agents")]:
        _goes_on(server, f"{namespace}-{first}-{second}", first, second)
        with HistoryStore(server.url, namespace=f"{namespace}-{first}-{second}") as store:
            store.delete_conversation("shared")


def _goes_on(server: RealServer, namespace: str, first: str, second: str) -> None:
    assert turn(first, server, namespace, "Add 2 and 3") == "5; 1 questions"
    assert turn(second, server, namespace, "Add 20 and 30") == "50; 2 questions"
    assert turn(first, server, namespace, "And now?") == "hello; 3 questions"
    with HistoryStore(server.url, namespace=namespace) as store:
        messages = store.get("shared")
    assert [message.role for message in messages] == [
        *["user", "assistant", "tool", "assistant"] * 2,
        "user",
        "assistant",
    ]
    calls = [use for message in messages for use in message.tool_uses]
    results = [result for message in messages for result in message.tool_results]
    assert [call.input for call in calls] == [{"a": 2, "b": 3}, {"a": 20, "b": 30}]
    assert [result.tool_use_id for result in results] == [call.id for call in calls]


def test_both_at_once_lose_nothing(server: RealServer, namespace: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda name: turn(name, server, namespace, "Add 1 and 1"), FRAMEWORKS))
    assert [answer.split(";")[0] for answer in answers] == ["2", "2"]
    with HistoryStore(server.url, namespace=namespace) as store:
        messages = store.get("shared")
    assert len(messages) == 8
    assert sum(len(message.tool_results) for message in messages) == 2
