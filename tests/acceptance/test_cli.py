"""The command `redis-history`: its frame, and `compress`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore, user
from tests.support.commands import environment, run, run_process
from tests.support.servers import RealServer, Start


def fill(store: HistoryStore, name: str, count: int) -> None:
    store.append_many(name, [user(f"Message {number} about the suitcase number {number}.") for number in range(count)])


@pytest.fixture
def store(server: RealServer, namespace: str) -> Any:
    with HistoryStore(server.url, namespace=namespace) as store:
        fill(store, "long", 50)
        fill(store, "short", 5)
        yield store


def test_a_dry_run_shows_the_plan_and_changes_nothing(store: Any, where: tuple[str, ...]) -> None:
    done = run(*where, "compress", "--max-messages", "20", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1 conversation would be compressed" in done.stdout
    assert "long" in done.stdout
    done = run(*where, "--json", "compress", "--max-messages", "20", "--dry-run")
    (planned,) = map(json.loads, done.stdout.splitlines())
    assert (planned["kind"], planned["conversation_id"]) == ("planned", "long")
    assert planned["messages"] > 10
    assert len(store.get("long")) == 50


def test_once_compresses_long_conversations_and_ends(store: Any, where: tuple[str, ...]) -> None:
    done = run(*where, "compress", "--max-messages", "20", "--once")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("long: ")
    assert "1 conversation compressed" in done.stdout
    assert len(store.get("long")) <= 20
    assert store.get("long")[0].is_summary
    assert len(store.get("short")) == 5
    done = run(*where, "--json", "compress", "--max-messages", "20", "--once")
    (ended,) = map(json.loads, done.stdout.splitlines())
    assert (ended["kind"], ended["compressed"], ended["sweeps"]) == ("ended", 0, 1)


def test_url_and_namespace_of_the_environment(store: Any, server: RealServer, namespace: str) -> None:
    settings = {"REDIS_HISTORY_URL": server.url, "REDIS_HISTORY_NAMESPACE": namespace}
    done = run_process("compress", "--max-messages", "20", "--once", "--quiet", **settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(store.get("long")) <= 20


def test_a_failure_is_reported_and_sets_the_exit_status(store: Any, where: tuple[str, ...]) -> None:
    done = run(*where, "compress", "--max-messages", "20", "--once", "--summarizer", "operator:add")
    assert done.returncode == 1
    assert "long: failed: SummaryError" in done.stderr
    assert "1 failed" in done.stdout
    assert len(store.get("long")) == 50


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "--max-tokens"),
        (("--max-tokens", "0"), "--max-tokens"),
        (("--older-than", "soon"), "--older-than"),
        (("--max-tokens", "5", "--summarizer", "gpt"), "--summarizer"),
        (("--max-tokens", "5", "--summarizer", "openai"), "--model"),
        (("--max-tokens", "5", "--summarizer", "no.such.module:f"), "no.such.module:f"),
        (("--max-tokens", "5", "--summarizer", "operator:nothing"), "operator:nothing"),
        (("--max-tokens", "5", "--language", "klingon"), "klingon"),
        (("--max-tokens", "5", "--lease", "1ms"), "lease"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], why: str) -> None:
    done = run("compress", *arguments, environment={"OPENAI_API_KEY": "k"})
    assert done.returncode == 2
    assert why in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "http://localhost", "ls"),
        ("--url", "redis://localhost:99999", "compress", "--max-tokens", "5", "--once"),
        ("--url", "", "ls"),
        ("ls", "--url", ""),
        ("ls", "--url", "localhost:6379"),
        ("--namespace", "", "ls"),
        ("ls", "--namespace", ""),
    ],
)
def test_a_wrong_url_or_namespace(server: RealServer, arguments: tuple[str, ...]) -> None:
    where = () if "--url" in arguments else ("--url", server.url)
    done = run(*where, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("redis-history: ")
    assert "Traceback" not in done.stderr


def test_a_summariser_whose_module_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_such_python.py").write_text("def f(:")
    monkeypatch.syspath_prepend(tmp_path)
    done = run("compress", "--max-messages", "20", "--once", "--summarizer", "no_such_python:f")
    assert done.returncode == 2
    assert "SyntaxError" in done.stderr


@pytest.mark.parametrize(("package", "arguments"), [("click", ()), ("rich", ("ls",))])
def test_without_the_extra(package: str, arguments: tuple[str, ...]) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from redis_history.cli import main; main()"
    argv = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment(), check=False)
    assert done.returncode == 2
    assert done.stderr == "redis-history needs two more packages: pip install 'redis_history[cli]'\n"


def test_older_than_compresses_old_messages(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url) as store:
        store.append_many("c", [user(f"old message number {n}", timestamp=f"2020-01-{n + 1:02}") for n in range(20)])
        fill(store, "c", 5)
        done = run("--url", server.url, "compress", "--older-than", "7d", "--keep-recent", "2", "--once")
        assert done.returncode == 0, done.stderr
        assert len(store.get("c")) == 6


def test_reindex_indexes_messages_stored_without_search(
    server: RealServer, namespace: str, where: tuple[str, ...]
) -> None:
    with HistoryStore(server.url, namespace=namespace, search="off") as silent:
        fill(silent, "c", 30)
    with HistoryStore(server.url, namespace=namespace) as store:
        assert store.search_all("suitcase") == []
        done = run(*where, "reindex")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "1 conversation, 30 documents written, 0 removed\n"
        assert len(store.search_all("suitcase", limit=50, token_cap=None)) == 30
    done = run(*where, "--json", "reindex")
    assert json.loads(done.stdout) == {"conversations": 1, "documents": 30, "removed": 0}
    assert run("--url", f"{server.url}?db=1", "reindex").returncode == 2, "no search there"
