"""Folders that cannot be used, data that cannot be read, servers that do not answer."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_tools import client, environment, gone, stopped, wait_until

from redis_history.embedded import EmbeddedServer, candidates, find_server, keep, let_go, status
from redis_history.embedded._locks import FileLock, is_held
from redis_history.errors import EmbeddedServerError

Make = Callable[..., EmbeddedServer]


def as_nobody(code: str, *arguments: object) -> str:
    """The output of `code`, which runs as another user if this one is root: root has every permission."""
    drop = "import os\nif os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
    prepare = "import sys; from redis_history.embedded import EmbeddedServer; from redis_history.errors import *\n"
    run = subprocess.run(
        [sys.executable, "-c", prepare + drop + code, *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return run.stdout


START = """
try: EmbeddedServer(sys.argv[1]).start()
except EmbeddedServerError as error: print("refused:", error)
"""


def test_a_file_in_the_place_of_the_folder(tmp_path: Path, server: Make) -> None:
    (tmp_path / "f").write_text("mine")
    for path in (tmp_path / "f", tmp_path / "f" / "below"):
        with pytest.raises(EmbeddedServerError):
            server(path).start()
    assert (tmp_path / "f").read_text() == "mine"


def test_a_folder_with_other_files_is_refused(tmp_path: Path, server: Make) -> None:
    (tmp_path / "d").mkdir(mode=0o755)
    (tmp_path / "d" / "thesis.txt").touch()
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d").start()
    assert [entry.name for entry in (tmp_path / "d").iterdir()] == ["thesis.txt"]
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o755


def test_a_read_only_folder(short: Path) -> None:
    short.chmod(0o755)
    (short / "d").mkdir()
    if os.geteuid() == 0:
        os.chown(short / "d", 65534, 65534)
    (short / "d").chmod(0o500)
    printed = as_nobody(START, short / "d")
    assert "[Errno 13]" in printed
    assert f"{short}/d/users.lock" in printed
    printed = as_nobody(START, short / "d" / "below")
    assert "[Errno 13]" in printed
    assert f"{short}/d/below" in printed


def test_another_users_folder(short: Path, server: Make) -> None:
    if os.geteuid() == 0:
        (short / "d").mkdir()
        os.chown(short / "d", 65534, 65534)
    path = short / "d" if os.geteuid() == 0 else Path("/usr")
    with pytest.raises(EmbeddedServerError):
        server(path).start()


def test_a_link_to_somewhere_else_as_a_lock(tmp_path: Path, server: Make) -> None:
    with server(tmp_path / "d"):
        pass
    wait_until(lambda: stopped(tmp_path / "d"), "the end")
    (tmp_path / "d" / "users.lock").unlink()
    (tmp_path / "d" / "users.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d").start()
    (tmp_path / "d" / "users.lock").unlink()
    assert not (tmp_path / "victim").exists()


def test_no_share_is_left_by_a_failed_start(tmp_path: Path, server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "/nowhere/redis-server")
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    failing = server(tmp_path / "d")
    with pytest.raises(EmbeddedServerError):
        failing.start()
    assert not failing.started
    lock = FileLock(tmp_path / "d" / "users.lock")
    assert lock.try_acquire()
    lock.release()


def test_a_stale_socket_file(tmp_path: Path, server: Make) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "users.lock").touch()
    stale = server(tmp_path / "d")
    Path(stale.unix_socket).parent.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(stale.unix_socket)
    with stale:
        assert client(stale).ping()


@pytest.mark.parametrize("part", ["base.rdb", "incr.aof", "manifest"])
def test_damaged_data_is_reported_with_a_repair_that_works(
    engine: str, part: str, tmp_path: Path, server: Make
) -> None:
    broken = server(tmp_path / "d").start()
    client(broken).set("k", "v")
    broken.close(wait=10)
    (file,) = (tmp_path / "d" / "appendonlydir").glob(f"*{part}")
    good = file.read_bytes()
    file.write_bytes(b"garbage\n" * 99)
    with pytest.raises(EmbeddedServerError) as caught:
        broken.start()
    text = str(caught.value)
    command = re.search(r"`(bash -c [^`]*-check-aof [^`]*)`", text)
    assert (command is not None) == (part == "incr.aof")
    assert re.search(r"The end of .*server\.log:\n(  .*\n)+", text)
    assert not broken.started
    wait_until(lambda: stopped(broken.path), "nothing stays")
    if command is None:
        file.write_bytes(good)
    else:  # what the error says to do works: up to the damage all is there
        file.write_bytes(good + b"garbage\n" * 99)
        subprocess.run(command[1], shell=True, input=b"y\n", check=True, stdout=subprocess.DEVNULL)
    with broken:
        assert client(broken).get("k") == "v"


def test_a_torn_end_is_cut_off(engine: str, tmp_path: Path, server: Make) -> None:
    torn = server(tmp_path / "d").start()
    connection = client(torn)
    connection.set("k", "v")
    connection.set("k", "w" * 1000)
    torn.close(wait=10)
    (file,) = (tmp_path / "d" / "appendonlydir").glob("*incr.aof")
    os.truncate(file, file.stat().st_size - 500)
    with torn:
        assert client(torn).get("k") == "v"


def test_the_data_of_another_server_is_not_touched(
    tmp_path: Path, server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [kind for kind in ("redis-stack", "valkey") if any(c.usable for c in candidates(kind))]
    if len(kinds) < 2:
        pytest.skip("needs both servers")
    for kind, other in (kinds, reversed(kinds)):
        path = tmp_path / kind
        monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", kind)
        with server(path) as first:
            client(first).set("k", kind)
        wait_until(lambda: stopped(path), "the end")  # noqa: B023
        monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", other)
        with pytest.raises(EmbeddedServerError):
            server(path).start()
        assert status(path).binary is None
        # Without a setting, the server that can read the data is chosen.
        monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND")
        with server(path) as second:
            assert second.binary.kind == kind
            assert client(second).get("k") == kind


def test_data_written_with_search_is_not_opened_without(
    tmp_path: Path, server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(tmp_path / "d") as first:
        binary = first.binary
    if not binary.search:
        pytest.skip("needs the search module")
    wait_until(lambda: stopped(tmp_path / "d"), "the end")
    monkeypatch.setenv("REDIS_HISTORY_SERVER", binary.path)
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d").start()


def slow_server(folder: Path, options: str) -> str:
    """A server like the default one, with more options."""
    script = folder / "slow-server"
    real = find_server().path
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\nexec {real} "$@" {options}\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.full
def test_loading_takes_longer_than_allowed(tmp_path: Path, server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = os.pathsep.join(find_server().modules)
    script = slow_server(tmp_path, "--key-load-delay 300")
    with server(tmp_path / "d") as full:
        pipeline = client(full).pipeline(transaction=False)
        for number in range(6000):
            pipeline.set(f"k{number}", number)
        pipeline.execute()
    wait_until(lambda: stopped(tmp_path / "d"), "the end")
    monkeypatch.setenv("REDIS_HISTORY_SERVER", script)
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    monkeypatch.setenv("REDIS_HISTORY_MODULES", modules)
    hasty = server(tmp_path / "d", start_timeout=1.2)
    with pytest.raises(EmbeddedServerError):
        hasty.start()
    wait_until(lambda: stopped(tmp_path / "d"), "nobody waits any more")
    with server(tmp_path / "d", start_timeout=30) as patient:
        assert client(patient).dbsize() == 6000


def test_a_server_that_never_answers(tmp_path: Path, server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "deaf-server"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v=7.4.1" && exit\ntrap "exit 0" TERM\n'
        "echo deaf as a post\nwhile :; do read line < /dev/null; sleep 0.05; done\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("REDIS_HISTORY_SERVER", str(script))
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d", start_timeout=0.5).start()
    wait_until(lambda: stopped(tmp_path / "d"), "the end")


def test_a_server_that_ends_at_once(tmp_path: Path, server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    script = slow_server(tmp_path, "--no-such-option 1")
    monkeypatch.setenv("REDIS_HISTORY_SERVER", script)
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d").start()


def test_killed_while_it_starts(tmp_path: Path, server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once or twice may be bad luck; a server that always is, is reported."""
    real, modules = find_server().path, os.pathsep.join(find_server().modules)
    script = tmp_path / "unlucky-server"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\necho >> {tmp_path}/starts\n'
        f'[ $(wc -l < {tmp_path}/starts) -gt $(cat {tmp_path}/allowed) ] && exec {real} "$@"\nkill -9 $$\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("REDIS_HISTORY_SERVER", str(script))
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    monkeypatch.setenv("REDIS_HISTORY_MODULES", modules)
    (tmp_path / "allowed").write_text("2")
    with server(tmp_path / "d") as third:
        assert client(third).ping()
    wait_until(lambda: stopped(tmp_path / "d"), "the end")
    (tmp_path / "allowed").write_text("99")
    with pytest.raises(EmbeddedServerError):
        server(tmp_path / "d").start()
    assert len((tmp_path / "starts").read_text().splitlines()) == 6


def test_a_busy_server_is_not_started_again(tmp_path: Path, server: Make) -> None:
    """PING gets an error while a script runs; what answers is alive."""
    one = server(tmp_path / "d").start()
    client(one).config_set("lua-time-limit", 1)
    with client(one) as blocker:
        connection = blocker.connection_pool.get_connection()
        connection.send_command("EVAL", "while true do end", 0)
        wait_until(lambda: _refused(one), "the script blocks the others")
        pid = one.pid
        assert server(tmp_path / "d").start().pid == pid
        client(one).script_kill()
        connection.disconnect()
        blocker.connection_pool.release(connection)


def _refused(one: EmbeddedServer) -> bool:
    from redis.exceptions import ResponseError

    try:
        client(one).ping()
    except ResponseError as error:
        return "busy" in str(error).lower()
    return False


def test_a_socket_that_was_deleted(tmp_path: Path, server: Make) -> None:
    lost = server(tmp_path / "d", start_timeout=0.4).start()
    Path(lost.unix_socket).unlink()
    with pytest.raises(EmbeddedServerError, match=str(lost.pid)):
        lost.ensure()
    assert is_held(tmp_path / "d" / "supervisor.lock")


# `lost`: how many of the last commands of the change are lost, besides half of the one before.
@pytest.mark.parametrize(("lost", "kept"), [(1, False), (2, True), (3, False)])
def test_half_a_change_never_comes_back(engine: str, lost: int, kept: bool, tmp_path: Path, server: Make) -> None:
    """A power loss within MULTI ... EXEC. Redis 7.4.1 keeps the half, and adds the next change to it."""
    torn = server(tmp_path / "d", durability="always").start()
    client(torn).set("before", "v")
    pipeline = client(torn).pipeline(transaction=True)
    for name in ("a", "b", "c"):
        pipeline.rpush("half", name)
    pipeline.execute()
    torn.close(wait=10)
    (file,) = (tmp_path / "d" / "appendonlydir").glob("*incr.aof")
    data = file.read_bytes()
    ends = [match.start() for match in re.finditer(rb"\*3\r\n\$5\r\nRPUSH|\*1\r\n\$4\r\nEXEC", data)]
    os.truncate(file, ends[-lost] + 9)
    if kept:
        assert keep(torn.path, durability="always")
    with torn:
        assert client(torn).keys() == ["before"]
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
