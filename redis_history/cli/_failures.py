"""Errors for people at a terminal: a message, a hint, and an exit status."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from redis_history.cli._text import visible
from redis_history.cli.commands import FAILED, NO_SERVER, WRONG
from redis_history.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    CapabilityError,
    InvalidInputError,
    MissingExtraError,
    RedisHistoryError,
    StoreClosedError,
)

__all__ = ["complain", "hint", "tell", "warnings_to_stderr"]

_REPEATED = 60.0  # seconds after which the same warning is shown again

_NO_ANSWER = """\
Does the server run, and is this its address? Start a server with `docker compose up -d` or `redis-server`, name another
with --url or REDIS_HISTORY_URL, or use your private server: --url embedded://"""
_NO_ENTRY = "Put the user name and password into the URL: redis://user:password@host:6379/0"
_NO_RIGHT = "`redis-history doctor` says which rights are missing, and how to grant them"


def complain(text: str, hint: str | None = None) -> None:
    """Print an error and a hint to standard error."""
    click.echo(f"redis-history: {visible(text)}", err=True)
    for line in (hint or "").splitlines():
        click.echo(f"  {visible(line)}", err=True)


def tell(error: RedisHistoryError) -> int:
    """Print an error that ended a command, and return the exit status."""
    complain(str(error), hint(error))
    if isinstance(error, InvalidInputError | CapabilityError | MissingExtraError):
        return WRONG
    return NO_SERVER if isinstance(error, BackendError) and not isinstance(error, StoreClosedError) else FAILED


def hint(error: RedisHistoryError) -> str | None:
    """How to fix an error; None if unknown."""
    if isinstance(error, BackendUnavailableError):
        return _NO_ANSWER
    if isinstance(error, BackendRefusedError):
        return {"credentials": _NO_ENTRY, "permission": _NO_RIGHT}.get(error.reason or "")
    return None


class _ToStderr(logging.Handler):
    """Prints warnings of the library, each at most once a minute."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text, now = record.getMessage(), time.monotonic()
        if now - self._told.get(record.msg, -_REPEATED) >= _REPEATED:
            self._told[record.msg] = now
            complain(text)


@contextmanager
def warnings_to_stderr() -> Iterator[None]:
    logger, handler = logging.getLogger("redis_history"), _ToStderr()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
