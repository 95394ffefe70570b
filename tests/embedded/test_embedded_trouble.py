"""Folders that cannot be used, data that cannot be read, servers that do not answer."""

import gc
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from embedded_tools import client, gone, stopped
from redis.exceptions import ResponseError

from redis_history.embedded import EmbeddedServer, find_server, keep, let_go
from redis_history.embedded._locks import FileLock, is_held
from redis_history.errors import EmbeddedServerError
from tests.support.commands import environment
from tests.support.servers import wait_until

Make = Callable[..., EmbeddedServer]
Own = Callable[..., None]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    """Makes a script the only server. In the script, $REAL is a real server."""

    def own(script: str) -> None:
        real = find_server()
        path = tmp_path / "own-server"
        path.write_text(f'#!/bin/sh\nREAL={real.path}\n[ "$1" = --version ] && exec $REAL --version\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("REDIS_HISTORY_MODULES", os.pathsep.join(real.modules))
        monkeypatch.setenv("REDIS_HISTORY_SERVER", str(path))
        monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)

    return own


# Folders


def test_a_folder_with_other_files_is_refused(tmp_path: Path, server: Make) -> None:
    (tmp_path / "d").mkdir(mode=0o755)
    (tmp_path / "d" / "thesis.txt").write_text("mine")
    for path in (tmp_path / "d", tmp_path / "d" / "thesis.txt", tmp_path / "d" / "thesis.txt" / "below"):
        with pytest.raises(EmbeddedServerError):
            server(path).start()
    assert [entry.name for entry in (tmp_path / "d").iterdir()] == ["thesis.txt"]
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o755


def test_a_read_only_folder_is_refused(short: Path) -> None:
    # As another user, if this one is root with every permission.
    code = """
import os, sys
from redis_history.embedded import EmbeddedServer
from redis_history.errors import EmbeddedServerError
if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try: EmbeddedServer(path).start()
    except EmbeddedServerError as error: print("refused:", error)
"""
    short.chmod(0o755)
    (short / "d").mkdir()
    if os.geteuid() == 0:
        os.chown(short / "d", 65534, 65534)
    (short / "d").chmod(0o500)
    command = [sys.executable, "-c", code, short / "d", short / "d" / "below"]
    run = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout.count("[Errno 13]") == 2
    assert f"{short}/d/users.lock" in run.stdout
    assert f"{short}/d/below" in run.stdout


def test_a_folder_of_another_user_is_refused(short: Path, server: Make) -> None:
    if os.geteuid() == 0:
        (short / "d").mkdir()
        os.chown(short / "d", 65534, 65534)
    with pytest.raises(EmbeddedServerError):
        server(short / "d" if os.geteuid() == 0 else Path("/usr")).start()


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path: Path, server: Make) -> None:
    server(tmp_path / "d").start().close(wait=10)
    lock = tmp_path / "d" / "users.lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "victim")
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d").start()
    lock.unlink()
    assert not (tmp_path / "victim").exists()


def test_a_stale_socket_is_replaced_and_a_deleted_one_reported(tmp_path: Path, server: Make) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "users.lock").touch()
    one = server(tmp_path / "d", start_timeout=2)
    Path(one.unix_socket).parent.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(one.unix_socket)
    assert client(one.start()).ping()
    Path(one.unix_socket).unlink()
    impatient = server(tmp_path / "d", start_timeout=0.4)
    with pytest.raises(EmbeddedServerError, match=str(one.pid)):
        impatient.start()
    assert is_held(tmp_path / "d" / "supervisor.lock")


# Data


@pytest.mark.parametrize("part", ["base.rdb", "incr.aof", "manifest"])
def test_damaged_data_is_reported(engine: str, part: str, tmp_path: Path, server: Make) -> None:
    broken = server(tmp_path / "d").start()
    client(broken).set("k", "v")
    broken.close(wait=10)
    (file,) = (tmp_path / "d" / "appendonlydir").glob(f"*{part}")
    good = file.read_bytes()
    file.write_bytes(b"garbage\n" * 99)
    with pytest.raises(EmbeddedServerError) as caught:
        broken.start()
    assert re.search(r"The end of .*server\.log:\n(  .*\n)+", str(caught.value))
    assert not broken.started
    wait_until(lambda: stopped(broken.path), "nothing stays")
    file.write_bytes(good)
    with broken:
        assert client(broken).get("k") == "v"


# `lost`: how many of the last commands of the change are lost, besides half of the one before.
@pytest.mark.parametrize(("lost", "kept"), [(1, False), (2, True), (3, False)])
def test_half_a_change_never_comes_back(engine: str, lost: int, kept: bool, tmp_path: Path, server: Make) -> None:
    """A power loss within MULTI ... EXEC. Redis 7.4.1 keeps the half, and adds the next change to it."""
    torn = server(tmp_path / "d").start()
    client(torn).config_set("appendfsync", "always")
    client(torn).set("before", "v")
    pipeline = client(torn).pipeline(transaction=True)
    for name in ("a", "b", "c"):
        pipeline.rpush("half", name)
    pipeline.execute()
    os.kill(torn.pid, signal.SIGKILL)
    torn.close(wait=10)
    (file,) = (tmp_path / "d" / "appendonlydir").glob("*incr.aof")
    data = file.read_bytes()
    ends = [match.start() for match in re.finditer(rb"\*3\r\n\$5\r\nRPUSH|\*1\r\n\$4\r\nEXEC", data)]
    os.truncate(file, ends[-lost] + 9)
    if kept:
        assert keep(torn.path)
    with torn:
        assert client(torn).keys() == ["before"]
        client(torn).config_set("appendfsync", "always")
        assert client(torn).incr("after") == 1
        pid = torn.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), "the end of the server")
        torn.ensure()
        assert sorted(client(torn).keys()) == ["after", "before"]
        pipeline.rpush("half", "a").execute()
        assert client(torn).lrange("half", 0, -1) == ["a"]
    if kept:
        assert let_go(torn.path)


def test_data_written_with_search_is_not_opened_without(tmp_path: Path, server: Make, own: Own) -> None:
    first = server(tmp_path / "d").start()
    if not first.binary.search:
        pytest.skip("needs the search module")
    first.close(wait=10)
    own("exec $REAL")
    os.environ["REDIS_HISTORY_MODULES"] = ""
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d").start()


# Servers


@pytest.mark.parametrize(
    "script",
    ['trap "exit 0" TERM; while :; do read line < /dev/null; sleep 0.05; done', 'exec $REAL "$@" --no-such-option 1'],
    ids=["never answers", "ends at once"],
)
def test_a_failed_start_leaves_nothing(script: str, tmp_path: Path, server: Make, own: Own) -> None:
    own(script)
    failing = server(tmp_path / "d", start_timeout=0.5)
    with pytest.raises(EmbeddedServerError):
        failing.start()
    assert not failing.started
    wait_until(lambda: stopped(tmp_path / "d"), "the end")
    lock = FileLock(tmp_path / "d" / "users.lock")
    wait_until(lock.try_acquire, "no share is left")
    lock.release()


def test_a_server_that_vanishes_before_it_starts(tmp_path: Path, server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the reason, and nothing stays open."""
    binary = replace(find_server(), path=str(tmp_path / "gone"))
    monkeypatch.setattr("redis_history.embedded._launch.server_for", lambda folder: binary)
    with pytest.raises(EmbeddedServerError, match="No such file or directory"):
        server(tmp_path / "d").start()
    gc.collect()  # an open pipe would be a ResourceWarning


def test_a_server_that_is_killed_while_it_starts_is_started_again(tmp_path: Path, server: Make, own: Own) -> None:
    """Once or twice. A server that is killed every time is reported."""
    own(
        f"echo >> {tmp_path}/starts\n"
        f'[ $(wc -l < {tmp_path}/starts) -gt $(cat {tmp_path}/deaths) ] && exec $REAL "$@"\nkill -9 $$'
    )
    (tmp_path / "deaths").write_text("2")
    third = server(tmp_path / "d").start()
    assert client(third).ping()
    third.close(wait=10)
    (tmp_path / "deaths").write_text("99")
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d").start()
    assert len((tmp_path / "starts").read_text().splitlines()) == 6


def test_a_busy_server_is_not_started_again(tmp_path: Path, server: Make) -> None:
    """PING gets an error while a script runs. A server that answers is alive."""
    one = server(tmp_path / "d").start()
    client(one).config_set("lua-time-limit", 1)
    with client(one) as blocker:
        connection = blocker.connection_pool.get_connection()
        connection.send_command("EVAL", "while true do end", 0)
        wait_until(lambda: is_busy(one), "the script blocks the others")
        pid = one.pid
        assert server(tmp_path / "d").start().pid == pid
        client(one).script_kill()
        connection.disconnect()
        blocker.connection_pool.release(connection)


def is_busy(one: EmbeddedServer) -> bool:
    try:
        client(one).ping()
    except ResponseError as error:
        return "busy" in str(error).lower()
    return False
