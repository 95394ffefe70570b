"""Errors of a server that does not start: the end of its log, and what to do."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from redis_history.errors import EmbeddedServerError

from ._record import Record

if TYPE_CHECKING:
    from ._folder import DataFolder

__all__ = ["ended", "failed", "slow"]

_LINES, _BYTES = 12, 8192

_UNREADABLE = ("reading the append only file", "AOF loading aborted", "Invalid AOF manifest")
_DAMAGED_LOG = re.compile(r"append only file (\S+\.incr\.aof)")


def ended(folder: DataFolder, status: str) -> EmbeddedServerError:
    """The server ended before it answered."""
    tail = _tail(folder.server_log)
    text = f"the server in {folder.path} ended while it started (status {status})"
    if status == "-9":
        text += ": it was killed, perhaps because memory ran out"
    if any(sign in tail for sign in _UNREADABLE):
        text += f". It cannot read its data. Copy the folder first; then {_repair(folder, tail)}"
    return EmbeddedServerError(_with_log(text, folder.server_log, tail))


def failed(folder: DataFolder, reason: str) -> EmbeddedServerError:
    """The supervisor could not start a server."""
    text = f"no server could be started in {folder.path}: {reason}"
    return EmbeddedServerError(_with_log(text, folder.supervisor_log, _tail(folder.supervisor_log)))


def slow(folder: DataFolder, timeout: float, *, loading: bool) -> EmbeddedServerError:
    """A server runs, or ran until just now, but was not ready in time."""
    record = Record.read(folder.server_lock)
    if loading:
        text = f"the server in {folder.path} is still loading its data after {timeout:g} s: raise start_timeout"
    elif record is not None and record.pid and not folder.unix_socket.exists():
        text = (
            f"the server in {folder.path} runs as process {record.pid}, but its socket {folder.unix_socket} is gone"
            " (deleted, or made in another /tmp): end the processes that use it, or that one, and start again"
        )
    else:
        text = f"the server in {folder.path} does not answer on {folder.unix_socket} after {timeout:g} s"
    return EmbeddedServerError(_with_log(text, folder.server_log, _tail(folder.server_log)))


def _repair(folder: DataFolder, tail: str) -> str:
    record, damaged = Record.read(folder.server_lock), _DAMAGED_LOG.search(tail)
    if record is None or damaged is None:
        return f"replace {folder.path / 'appendonlydir'} with a backup: no tool repairs this part"
    # Not the manifest, which the servers suggest: Valkey's tool reports its own snapshots as damaged
    # (valkey-io/valkey#4739). The server binary acts as the tool when started under the tool's name.
    server, file = Path(record.binary.path), folder.path / "appendonlydir" / damaged[1]
    name = f"{record.binary.product.lower()}-check-aof"
    command = shlex.join(["exec", "-a", name, str(server), "--fix", str(file)])
    return f"`bash -c {shlex.quote(command)}` truncates the log before the damage; or replace the file with a backup"


def _with_log(text: str, path: Path, tail: str) -> str:
    return f"{text}. The end of {path}:\n{tail}" if tail else text


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - _BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines[-_LINES:])
