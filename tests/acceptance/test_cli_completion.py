"""`redis-history completion`: what shells are told, and what they make of it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_history import HistoryStore, embedded, user
from redis_history.cli import commands
from tests.support.commands import environment, run
from tests.support.servers import RealServer, wait_until

#: Completes as the command says, and then, instead of the command, shows the words that it would get.
READY = """eval "$(redis-history completion bash)"; redis-history() { printf '<%s>' "$@"; echo; }\n"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert f"_REDIS_HISTORY_COMPLETE={shell}_complete" in done.stdout


def completed(words: str, **settings: str) -> list[str]:
    """What the shell is told, in bash's form."""
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


class Bash:
    """A real one, on a terminal of its own."""

    def __init__(self, **settings: str) -> None:
        self._ours, theirs = pty.openpty()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=environment(PATH=path, TERM="dumb", PS1="$ ", INPUTRC=os.devnull, LC_ALL="C.UTF-8", **settings),
        )  # fmt: skip
        os.close(theirs)
        self.read("\\$ ")
        self.type(READY, "\n.*\\$ ")

    def type(self, text: str, until: str) -> str:
        os.write(self._ours, text.encode())
        return self.read(until)

    def read(self, until: str) -> str:
        """What it shows up to something that matches."""
        shown = ""
        while not re.search(until, shown, re.DOTALL):
            ready, _, _ = select.select([self._ours], [], [], 60)
            assert ready, f"{shown!r} and no more"
            shown += os.read(self._ours, 65_536).decode().replace("\r", "")
        return shown

    def words(self, typed: str) -> list[str]:
        """The words of a line that is completed where it ends."""
        shown = self.type(f"{typed}\t\n", "\n<[^\n]*>\n")
        return re.findall("<(.*?)>", shown.rpartition("\n<")[2].join("<\n"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@pytest.fixture
def bash(server: RealServer, namespace: str) -> Iterator[Bash]:
    with HistoryStore(server.url, namespace=namespace) as store:
        for name in ("taubench:airline:7", "ann@example.org", "a=b", "two words", 'it\'s "$x"', "旅行"):
            store.append(name, user("x"))
    made = Bash(REDIS_HISTORY_URL=server.url, REDIS_HISTORY_NAMESPACE=namespace)
    try:
        yield made
    finally:
        made.close()


def test_bash_completes_words_that_it_takes_apart(bash: Bash, server: RealServer, namespace: str) -> None:
    for typed in ("taub", "taubench:", "taubench:air", "taubench:airline:", "'taubench:air"):
        assert bash.words(f"redis-history show {typed}") == ["show", "taubench:airline:7"]
    for typed in ("an", "ann@", "ann@ex"):
        assert bash.words(f"redis-history show {typed}") == ["show", "ann@example.org"]
    assert bash.words("redis-history show a=") == ["show", "a=b"]
    assert bash.words("redis-history show two") == ["show", "two words"]
    assert bash.words("redis-history show two\\ w") == ["show", "two words"]
    assert bash.words("redis-history show it") == ["show", 'it\'s "$x"']
    assert bash.words("redis-history show 旅") == ["show", "旅行"]
    given = f"redis-history --url {server.url} --namespace={namespace} show"
    assert bash.words(f"{given} taub")[-1] == "taubench:airline:7", "behind a URL"
    assert bash.words("REDIS_HISTORY_TIMEOUT=1  redis-history   sho") == ["show"]
    assert bash.words("redis-history import --format=redis_h") == ["import", "--format=redis_history"]
