"""The command `redis-history`, or `python -m redis_history.cli`. Needs the extra `cli`."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command named by the arguments of the process, and exit with its status.

    0: done; also the status of commands, other than `mcp`, that run until SIGINT or SIGTERM. 1: something failed, was
    skipped or was not found. 2: wrong arguments or settings, or the server lacks a capability. 3: the server cannot be
    reached, or refuses. 130: interrupted. 141: the reader of the output closed it. 143: ended by SIGTERM.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as after >&-: no connection may get its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 -- open until the process ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that cleanup code runs
    try:
        from redis_history.cli.commands import cli

        cli(prog_name="redis-history")
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write("redis-history needs two more packages: pip install 'redis_history[cli]'\n")
        sys.exit(2)
    except KeyboardInterrupt:  # during the import
        sys.exit(130)
