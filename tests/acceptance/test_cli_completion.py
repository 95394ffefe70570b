"""`redis-history completion`."""

from __future__ import annotations

from pathlib import Path

import pytest

from redis_history import HistoryStore, embedded, user
from redis_history.cli import commands
from tests.support.commands import run
from tests.support.servers import RealServer, wait_until


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert f"_REDIS_HISTORY_COMPLETE={shell}_complete" in done.stdout


def completed(words: str, **settings: str) -> list[str]:
    """The completions of the last word, in bash's form."""
    count = str(len(words.split(" ")) - 1)
    shell = {"_REDIS_HISTORY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
    from click.shell_completion import BashComplete

    made = BashComplete(commands.cli, {}, "redis-history", "_REDIS_HISTORY_COMPLETE")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**shell, **settings}.items():
            patch.setenv(name, value)
        return made.complete().splitlines()


def test_commands_options_and_ids_are_completed(server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store:
        for name in ("trip", "trip\x1b[2J", "other"):
            store.append(name, user("x"))
    assert completed("redis-history e") == ["plain,export", "plain,embedded"]
    assert completed("redis-history embedded st") == ["plain,start", "plain,status", "plain,stop"]
    assert "plain,--archived" in completed("redis-history show --a")
    settings = {"REDIS_HISTORY_URL": server.url, "REDIS_HISTORY_NAMESPACE": namespace}
    assert completed("redis-history show t", **settings) == ["plain,trip"]
    given = f"redis-history --url {server.url} --namespace {namespace} tail "
    assert completed(given) == ["plain,other", "plain,trip"]
    behind = f"redis-history show --namespace {namespace} --url={server.url} "
    assert completed(behind, REDIS_HISTORY_URL="redis://127.0.0.1:1") == ["plain,other", "plain,trip"]
    assert completed("redis-history show t", REDIS_HISTORY_URL="redis://127.0.0.1:1") == []
    assert completed("redis-history show t", REDIS_HISTORY_URL="nonsense") == []


def test_completion_starts_no_server(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    typed = f"redis-history show --url embedded://{folder} "
    assert completed(typed) == []
    assert not folder.exists()
    with HistoryStore(f"embedded://{folder}") as store:
        store.append("trip", user("x"))
        assert completed(typed) == ["plain,trip"]
    wait_until(lambda: not embedded.status(folder).supervised, "the private server to end")
    assert completed(typed) == []
    assert not embedded.status(folder).supervised
