"""`redis-history embedded`; and what the command as a whole imports."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from redis_history import HistoryStore, embedded, user
from redis_history.cli import commands
from tests.support.commands import environment, run
from tests.support.servers import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    embedded.let_go(folder)
    wait_until(lambda: not embedded.status(folder).supervised, "the private server to end")


def test_it_stays_up_between_users_until_it_is_stopped(folder: Path) -> None:
    done = run("embedded", "start", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"The server is up: embedded://{folder}"
    with HistoryStore(f"embedded://{folder}") as store:
        store.append("c", user("x"))
    (found,) = run("embedded", "status", "--json", str(folder)).lines
    now = embedded.status(folder)
    assert (found["running"], found["pid"], found["kept"]) == (True, now.pid, True)
    assert "kept     until" in run("embedded", "status", str(folder)).stdout
    assert "was up already" in run("embedded", "start", str(folder)).stdout
    assert run("--url", f"embedded://{folder}", "ls").stdout.startswith("c\t")
    with embedded.EmbeddedServer(folder):
        assert "still used by others," in run("embedded", "stop", str(folder)).stdout
        assert embedded.status(folder).running
    wait_until(lambda: not embedded.status(folder).supervised, "it to end with its last user")
    run("embedded", "start", str(folder))
    (found,) = run("embedded", "stop", str(folder), "--json").lines
    assert found == {"path": str(folder), "kept": True, "running": False}
    assert run("embedded", "stop", str(folder)).stdout == "The server does not run.\n"


def test_a_server_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").touch()
    done = run("embedded", "start", str(tmp_path))
    assert done.returncode == 3
    assert "contains other files" in done.stderr
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "/no/such/server")
    done = run("embedded", "status", str(tmp_path / "new"))
    assert done.returncode == 1
    assert "there is no file /no/such/server" in done.stdout
    assert not (tmp_path / "new").exists()


def test_install_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def install(*, progress: Callable[[str], None] | None) -> Path:
        if progress:
            progress("fetching \x1b[2J")
        return tmp_path

    monkeypatch.setattr(embedded, "install", install)
    done = run("embedded", "install")
    assert (done.stdout, done.stderr) == (f"{tmp_path}\n", "fetching ␛[2J\n")
    assert run("embedded", "install", "-q", "--json").lines == [{"path": str(tmp_path)}]


def test_help_imports_little() -> None:
    code = (
        "import sys\n"
        "from redis_history.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('redis', 'rich', 'msgspec', 'asyncio', 'tenacity') if name in sys.modules])"
    )
    argv = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment(), check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Commands:" in done.stdout


def test_the_list_of_commands_is_that_of_the_commands() -> None:
    context = click.Context(commands.cli)
    for name, (_, text) in commands._COMMANDS.items():
        found = commands.cli.get_command(context, name)
        assert found.name == name
        assert found.get_short_help_str(200) == text


def test_an_unknown_command_suggests_another() -> None:
    done = run("serach", "x")
    assert done.returncode == 2
    assert "Did you mean 'search'?" in done.stderr
