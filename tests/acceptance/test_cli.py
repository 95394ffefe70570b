"""The command `redis-history`: its frame, `compress` and `reindex`."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore, user
from tests.support.commands import environment, run
from tests.support.servers import RealServer


def fill(store: HistoryStore, name: str, count: int) -> None:
    store.append_many(name, [user(f"Message {number} about the suitcase number {number}.") for number in range(count)])


def test_compress(store: HistoryStore, on: Any) -> None:
    fill(store, "long", 50)
    fill(store, "short", 5)
    limit = ("compress", "--max-messages", "20")
    assert "1 conversation would be compressed" in on(*limit, "--dry-run").stdout
    (planned,) = on("--json", *limit, "--dry-run").lines
    assert (planned["kind"], planned["conversation_id"], planned["messages"] > 10) == ("planned", "long", True)
    done = on(*limit, "--once")
    assert (done.returncode, done.stdout.startswith("long: ")) == (0, True), done.stderr
    assert "1 conversation compressed" in done.stdout
    assert len(store.get("long")) <= 20
    assert store.get("long")[0].is_summary
    assert len(store.get("short")) == 5
    done = on("compress", "--max-messages", "3", "--keep-recent", "1", "--once", "--summarizer", "operator:add")
    assert (done.returncode, "short: failed: SummaryError" in done.stderr, "failed" in done.stdout) == (1, True, True)
    assert len(store.get("short")) == 5
    done = on("compress", "--max-messages", "3", "--keep-recent", "1", "--once", "--quiet")
    assert (done.returncode, "0 failed, 2 skipped" in done.stdout) == (1, True)  # they rest after the failure
    (ended,) = on("--json", *limit, "--once").lines
    assert (ended["kind"], ended["compressed"], ended["sweeps"]) == ("ended", 0, 1)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("compress", "--max-tokens"),
        ("compress --older-than soon", "--older-than"),
        ("compress --older-than 7", "write 30s, 5m, 12h or 7d"),
        ("compress --max-tokens 5 --summarizer gpt", "--summarizer"),
        ("compress --max-tokens 5 --summarizer openai", "--model"),
        ("compress --max-tokens 5 --summarizer no.such.module:f", "no.such.module:f"),
        ("compress --max-tokens 5 --summarizer operator:nothing", "operator:nothing"),
        ("compress --max-tokens 5 --summarizer broken_python:f", "SyntaxError"),
        ("compress --max-tokens 5 --language klingon", "klingon"),
        ("compress --max-tokens 5 --lease 1ms", "lease"),
        ("compress --max-tokens 5 --once --url redis://localhost:99999", "port"),
        ("ls -n many", "'many' is not a valid whole number"),
        ("export --resume", "--output"),
        ("ls --url http://localhost", "http"),
        ("ls --url localhost:6379", "does not begin with"),
        ("ls --url=", "URL"),
        ("--url= ls", "URL"),
        ("ls --url redis:// --namespace=", "namespace"),
        ("ls --url memory://", "memory://"),
        ("compress --url memory:// --once --max-tokens 5", "memory://"),
    ],
)
def test_wrong_arguments(arguments: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_python.py").write_text("def f(:")
    monkeypatch.syspath_prepend(tmp_path)
    done = run(*arguments.split(), environment={"OPENAI_API_KEY": "k"})
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


@pytest.mark.parametrize(("package", "arguments"), [("click", ()), ("rich", ("ls",))])
def test_without_the_extra(package: str, arguments: tuple[str, ...]) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from redis_history.cli import main; main()"
    argv = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment(), check=False)
    assert done.returncode == 2
    assert done.stderr == "redis-history needs two more packages: pip install 'redis_history[cli]'\n"


def test_reindex_indexes_messages_stored_without_search(server: RealServer, namespace: str, on: Any) -> None:
    with HistoryStore(server.url, namespace=namespace, search="off") as silent:
        fill(silent, "c", 30)
    with HistoryStore(server.url, namespace=namespace) as store:
        assert store.search_all("suitcase") == []
        assert on("reindex").stdout == "1 conversation, 30 documents written, 0 removed\n"
        assert len(store.search_all("suitcase", limit=50, token_cap=None)) == 30
    assert on("--json", "reindex").lines == [{"conversations": 1, "documents": 30, "removed": 0}]
    other = ("--url", f"{server.url}?db=1", "--namespace", namespace)
    assert run(*other, "reindex").returncode == 2, "no search there, although database 0 has the index"
