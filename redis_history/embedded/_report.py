"""Launching the supervisor, and hearing from it through a pipe."""

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

_LAUNCH_TIMEOUT = 20.0  # seconds until the program has detached; it takes 0.02


class Report:
    """The lines that a supervisor reports (see `_supervisor`). Close it; the supervisor does not mind."""

    def __init__(self, reader: int) -> None:
        self._reader: int | None = reader
        self._unread = b""

    @classmethod
    def of_supervisor(cls, folder: DataFolder, argv: list[str], record: Record) -> Report:
        """Start a supervisor for the server `argv`. Raises EmbeddedServerError if it cannot be run."""
        if not sys.executable or getattr(sys, "frozen", False):
            raise EmbeddedServerError("the private server needs a Python interpreter to supervise it: sys.executable")
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
                # By path, not with -m: that would import this package, and redis-py with it. -I -S: nothing
                # of the user's environment either.
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", program, json.dumps(spec), str(writer)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    cwd="/",
                    pass_fds=(writer,),
                    start_new_session=True,
                )
            # It forks and ends at once, so that the supervisor is not a child of this process: hosts that
            # wait for any child would find it, and it would stay as a zombie here.
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
        """The next line; None if there is none within `wait` seconds; "" when there will be no more."""
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
