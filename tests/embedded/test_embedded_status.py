"""status()."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_tools import stopped, wait_until

from redis_history.embedded import EmbeddedServer, find_server, status
from redis_history.errors import ConfigurationError

Make = Callable[..., EmbeddedServer]


def test_before_during_after(engine: str, tmp_path: Path, server: Make) -> None:
    path = tmp_path / "d"
    before = status(path)
    assert not path.exists()
    assert (before.running, before.supervised, before.answer) == (False, False, "absent")
    assert (before.pid, before.users, before.data_writer, before.running_binary) == (None, None, None, None)
    assert before.binary == find_server()
    with server(path) as running, server(path):
        during = status(path)
        assert (during.running, during.supervised, during.answer) == (True, True, "alive")
        assert (during.pid, during.running_binary, during.durability) == (running.pid, running.binary, "everysec")
        assert (during.unix_socket, during.url, during.path) == (running.unix_socket, running.url, running.path)
        assert during.users == (2 if sys.platform == "linux" else None)
        assert during.data_writer == f"{running.binary.product} {running.binary.version}"
    wait_until(lambda: stopped(path), "the end")
    after = status(path)
    assert (after.running, after.supervised, after.pid, after.users) == (False, False, None, None)
    assert after.data_writer == during.data_writer
    assert (after.problem, [c.kind for c in after.candidates if c.usable][:1]) == (None, [engine])


def test_it_stops_nothing_and_starts_nothing(tmp_path: Path, server: Make) -> None:
    with server(tmp_path / "d") as running:
        pid = running.pid
        for _ in range(50):
            assert status(tmp_path / "d").pid == pid
    for _ in range(50):
        status(tmp_path / "d")
    wait_until(lambda: stopped(tmp_path / "d"), "the end")


def test_no_server_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "/nowhere/redis-server")
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    found = status(tmp_path / "d")
    assert "/nowhere/redis-server" in str(found.problem)
    assert "- environment: /nowhere/redis-server: there is no file" in str(found)


def test_no_path() -> None:
    with pytest.raises(ConfigurationError):
        status("")


def test_its_text(tmp_path: Path, server: Make) -> None:
    with server(tmp_path / "d") as running:
        text = str(status(tmp_path / "d"))
        assert f"folder   {running.path}\n" in text
        assert f"server   alive, process {running.pid}" in text
        assert f"  + {running.binary}\n" in text
    wait_until(lambda: stopped(tmp_path / "d"), "the end")
    assert "server   not running\n" in str(status(tmp_path / "d"))
