"""The command `redis-history`, also as `python -m redis_history.cli`. Needs the extra `cli`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments of the process name, and exit with its status.

    0: done. 1: done, but something failed that others may mend. 2: wrong arguments or settings. 3: the server cannot be
    reached, or refuses. 130: interrupted.
    """
    try:
        from redis_history.cli.commands import cli
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write("redis-history needs two more packages: pip install 'redis_history[cli]'\n")
        sys.exit(2)
    cli()
