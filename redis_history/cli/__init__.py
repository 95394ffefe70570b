"""The command `redis-history`, also as `python -m redis_history.cli`. Needs the extra `cli`."""

from __future__ import annotations

import io
import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments of the process name, and exit with its status.

    0: done, also what runs until SIGINT or SIGTERM. 1: done, but something failed, was left out or is not there.
    2: wrong arguments or settings, or the server cannot do that. 3: the server cannot be reached, or refuses.
    130: interrupted. 141: who reads the output has gone away. 143: ended by SIGTERM.
    """
    _fill_standard_streams()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is begun is cleaned up
    try:
        from redis_history.cli.commands import cli

        cli(prog_name="redis-history")
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write("redis-history needs two more packages: pip install 'redis_history[cli]'\n")
        sys.exit(2)
    except KeyboardInterrupt:  # while it was being imported
        sys.exit(130)


def _fill_standard_streams() -> None:
    """Where a standard stream is closed, as after 2>&-, the next file or connection would take its place, and get what
    is meant for it. What is said on a standard error that is closed goes nowhere."""
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    # As after PYTHONUNBUFFERED=1: then a write that a signal interrupts is not taken up again, and a line is cut.
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        coded, errors = sys.stdout.encoding, sys.stdout.errors
        sys.stdout = os.fdopen(sys.stdout.fileno(), "w", 1, encoding=coded, errors=errors, closefd=False)
