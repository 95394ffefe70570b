"""One process: start, use, end, start again; and the state of a folder."""

import gc
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_tools import client, gone, stopped, supervisor_of
from redis.exceptions import ConnectionError as RedisConnectionError

from redis_history.embedded import EmbeddedServer, find_server, status
from redis_history.errors import ConfigurationError, EmbeddedServerError
from tests.support.servers import wait_until

Make = Callable[..., EmbeddedServer]


@pytest.mark.proves("embedded")
def test_data_survives_and_the_server_does_not(engine: str, tmp_path: Path, server: Make) -> None:
    with server(tmp_path / "d") as first:
        client(first).set("k", "v")
        pid, supervisor = first.pid, supervisor_of(first.path)
        assert first.binary.kind == engine
        modules = {module["name"] for module in client(first).module_list()}
        assert "search" in modules
        assert first.binary.search
    wait_until(lambda: gone(pid) and gone(supervisor), "both processes ended")
    assert not Path(first.unix_socket).exists()
    with pytest.raises(RedisConnectionError):
        client(first).ping()
    with server(tmp_path / "d") as second:
        assert client(second).get("k") == "v"
        assert second.pid != pid


def test_the_settings_of_the_server(tmp_path: Path, server: Make) -> None:
    with server(tmp_path / "d") as running:
        wanted = {
            "port": "0",
            "unixsocketperm": "700",
            "dir": running.path,
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-use-rdb-preamble": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
            "databases": "16",
            "hash-max-ziplist-value": "512",
            "notify-keyspace-events": "",
        }
        assert {name: client(running).config_get(name)[name] for name in wanted} == wanted
        assert client(running).info("server")["process_id"] == running.pid


@pytest.mark.proves("embedded")
def test_everything_is_private(tmp_path: Path, server: Make) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o755)
    with server(folder) as running:
        client(running).set("k", "v")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(Path(running.unix_socket).stat().st_mode) == 0o700
        parts = list((folder / "appendonlydir").iterdir())
        assert parts
        assert [part.name for part in parts if part.stat().st_mode & 0o077] == []
        assert os.getsid(running.pid) not in (os.getsid(0), -1)


def test_the_server_runs_until_its_last_share_is_closed(short: Path, server: Make) -> None:
    (short / "link").symlink_to(short / "d")
    one, two = server(short / "d").start(), server(short / "link").start()
    assert one.start() is one
    assert one.pid == two.pid
    client(one).set("k", "v")
    one.close()
    one.close()
    assert client(two).ping()
    assert (one.started, two.started) == (False, True)
    two.close(wait=10)
    assert stopped(two.path)
    lost = EmbeddedServer(two.path).start()
    assert client(lost).get("k") == "v"
    del lost
    gc.collect()
    wait_until(lambda: stopped(two.path), "a share ends with its object, too")


def test_without_a_share(tmp_path: Path, server: Make) -> None:
    idle = server(tmp_path / "d")
    with pytest.raises(EmbeddedServerError):
        idle.ensure()
    with pytest.raises(EmbeddedServerError):
        _ = idle.pid
    assert idle.binary.version
    idle.close()
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    "options",
    [{"start_timeout": 0}, {"start_timeout": float("nan")}, {"path": ""}, {"path": "a\0b"}],
)
def test_wrong_arguments_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        EmbeddedServer(**options)  # type: ignore[arg-type]


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "x"))
    assert EmbeddedServer().path == str(tmp_path / "x/redis_history/default")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert EmbeddedServer().path == str(tmp_path / ".local/share/redis_history/default")
    assert EmbeddedServer("~/n").path == str(tmp_path / "n")


@pytest.mark.parametrize("name", ["a?b#c%20d [x]*{y}", "q\"uo'te\\", "日本", "x" * 120, "\udcff"])
def test_any_folder_name(name: str, short: Path, server: Make) -> None:
    if name == "\udcff" and sys.platform == "darwin":
        pytest.skip("no such names there")
    with server(short / name) as running:
        assert client(running.url).set("k", "v")
        folder = Path(running.unix_socket).parent
        assert (folder == short / name) == (name not in ("x" * 120, "\udcff"))
        assert len(os.fsencode(running.unix_socket)) <= 100
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (short / name / "appendonlydir").is_dir()


def test_status_before_during_and_after(engine: str, tmp_path: Path, server: Make) -> None:
    path = tmp_path / "d"
    before = status(path)
    assert not path.exists()
    assert (before.running, before.supervised, before.answer) == (False, False, "absent")
    assert (before.pid, before.data_writer, before.running_binary) == (None, None, None)
    assert before.binary == find_server()
    running, other = server(path).start(), server(path).start()
    for _ in range(30):  # asking stops nothing
        during = status(path)
        assert (during.running, during.supervised, during.answer) == (True, True, "alive")
        assert (during.pid, during.running_binary) == (running.pid, running.binary)
    assert (during.unix_socket, during.url, during.path) == (running.unix_socket, running.url, running.path)
    assert f"  + {running.binary}" in str(during)
    assert during.data_writer == f"{running.binary.product} {running.binary.version}"
    other.close()
    running.close(wait=10)
    after = status(path)
    assert (after.running, after.supervised, after.pid) == (False, False, None)
    assert after.data_writer == during.data_writer
    assert (after.problem, [c.kind for c in after.candidates if c.usable][:1]) == (None, [engine])
