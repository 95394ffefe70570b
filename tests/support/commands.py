"""The command `redis-history`: in this process, which is fast, or in a new process."""

import json
import os
import re
import subprocess
import sys
from typing import Any, NamedTuple

from click.testing import CliRunner

from redis_history.cli.commands import cli

#: Independent of the environment: times in UTC, no colors, the usual width.
SETTINGS = {"TZ": "UTC", "COLUMNS": "100", "NO_COLOR": "1"}
WITHOUT = ("REDIS_HISTORY_URL", "REDIS_HISTORY_NAMESPACE", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


#: A time as a whole value that does not end in Z.
_OTHER_TIME = re.compile(r'"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[^"Z]*"')


class Done(NamedTuple):
    """The status and the output of a command."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The output of --json, in which all times are in UTC and end in Z."""
        assert _OTHER_TIME.search(self.stdout) is None
        return [json.loads(line) for line in self.stdout.splitlines()]


def run(*arguments: str, environment: dict[str, str] | None = None, stdin: bytes | None = None) -> Done:
    """Run the command in this process. Unexpected exceptions are raised."""
    env = {**dict.fromkeys(WITHOUT), **SETTINGS, **(environment or {})}
    result = CliRunner(env=env).invoke(cli, list(arguments), input=stdin, prog_name="redis-history")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def environment(**more: str) -> dict[str, str]:
    """The environment of a new process."""
    kept = {name: value for name, value in os.environ.items() if name not in WITHOUT}
    return {**kept, **SETTINGS, "PYTHONUNBUFFERED": "1", **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "redis_history.cli", *arguments]


def run_process(*arguments: str, stdin: bytes | None = None, **more: str) -> Done:
    """Run the command as users do."""
    done = subprocess.run(
        command(*arguments), input=stdin, capture_output=True, timeout=120, env=environment(**more), check=False
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
