"""Starts the supervisor, and reads its reports from a pipe."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from redis_history.errors import EmbeddedServerError

if TYPE_CHECKING:
    from ._folder import DataFolder
    from ._record import Record

__all__ = ["Report"]

_LAUNCH_TIMEOUT = 20.0  # seconds until the program has detached, which takes about 0.02


class Report:
    """The lines that a supervisor reports (see `_supervisor`). Closing it does not affect the supervisor."""

    def __init__(self, reader: int) -> None:
        self._reader: int | None = reader
        self._unread = b""

    @classmethod
    def of_supervisor(cls, folder: DataFolder, argv: list[str], record: Record) -> Report:
        """Start a supervisor for the server `argv`. Raises EmbeddedServerError if it cannot be started."""
        if not sys.executable or getattr(sys, "frozen", False):
            raise EmbeddedServerError("the supervisor needs a Python interpreter, but sys.executable names none")
        spec = {
            "folder": str(folder.path),
            "unix_socket": folder.bound_socket,
            "argv": argv,
            "record": record.as_dict(),
        }
        program = Path(__file__).with_name("_supervisor.py")
        reader, writer = os.pipe()
        report = cls(reader)
        try:
            with folder.supervisor_log.open("ab") as log:
                # By path: -m would import this package and redis-py. -I -S: the user's environment has no
                # influence.
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", program, json.dumps(spec), str(writer)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    cwd="/",
                    pass_fds=(writer,),
                    start_new_session=True,
                )
            # The program forks and ends at once, so that the supervisor is not a child of this process: code
            # that waits for any child would get it, or it would remain as a zombie.
            if process.wait(_LAUNCH_TIMEOUT):
                raise EmbeddedServerError(f"the supervisor did not start: see {folder.supervisor_log}")
        except (OSError, subprocess.TimeoutExpired) as error:
            report.close()
            raise EmbeddedServerError(f"the supervisor did not start: {error}") from error
        except BaseException:
            report.close()
            raise
        finally:
            os.close(writer)
        return report

    def line(self, wait: float) -> str | None:
        """The next line; None if none arrives within `wait` seconds; "" at the end."""
        if self._reader is None:
            return ""
        if b"\n" not in self._unread:
            poll = select.poll()  # not select(), which fails for descriptors from 1024 on
            poll.register(self._reader, select.POLLIN)
            if not poll.poll(wait * 1000):
                return None
            chunk = os.read(self._reader, 4096)
            if not chunk:
                return ""
            self._unread += chunk
        line, end, self._unread = self._unread.partition(b"\n")
        if not end:
            self._unread = line
            return None
        return line.decode(errors="replace")

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            os.close(reader)
