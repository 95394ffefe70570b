"""The state of a data folder, read-only: for `redis-history embedded status` and the doctor."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis_history.errors import EmbeddedServerError

from ._binaries import candidates
from ._data import Snapshot, server_for
from ._folder import DataFolder
from ._keeper import keeper_of
from ._locks import is_held
from ._probe import Answer, ping
from ._record import Record

if TYPE_CHECKING:
    from ._binary import Candidate, Durability, ServerBinary

__all__ = ["EmbeddedStatus", "status"]

_PING_TIMEOUT = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """The state of one data folder, and the servers that could serve it.

    `answer`: alive, loading, silent (the socket accepts connections but the server does not reply) or absent.
    `supervised`: a supervisor runs; `running`: a supervisor runs, and the server answers. `pid`,
    `running_binary` and `durability`: of the running server, otherwise None. `users`: the number of shares;
    None if unknown (only Linux reports it). `binary`: the server to start here; if None, `problem` says why.
    `data_writer`: the server that wrote the data, such as "Redis 7.4.1"; None without data. `keeper`: the id of
    the process that keeps the server up without other users, if any: see `redis-history embedded start`.
    """

    path: str
    unix_socket: str
    url: str
    answer: Answer
    supervised: bool
    pid: int | None
    running_binary: ServerBinary | None
    durability: Durability | None
    users: int | None
    data_writer: str | None
    binary: ServerBinary | None
    candidates: tuple[Candidate, ...]
    problem: str | None
    keeper: int | None = None

    @property
    def running(self) -> bool:
        return self.supervised and self.answer in ("alive", "loading")

    def __str__(self) -> str:
        """Several lines of text for people."""
        if self.running:
            users = "" if self.users is None else f", shares {self.users}"
            state = f"{self.answer}, process {self.pid}{users}: {self.running_binary}"
        else:
            state = "not running" if not self.supervised else f"supervised, but {self.answer}"
        lines = [
            f"folder   {self.path}",
            f"socket   {self.unix_socket}",
            f"server   {state}",
            *([f"kept up  by process {self.keeper}"] if self.keeper else []),
            f"data     {'none yet' if self.data_writer is None else f'written by {self.data_writer}'}",
            f"choice   {self.binary or self.problem}",
            "looked at",
            *(f"  {'+' if candidate.usable else '-'} {candidate}" for candidate in self.candidates),
        ]
        return "\n".join(lines)


def status(path: str | os.PathLike[str] | None = None) -> EmbeddedStatus:
    """The state of the folder `path` (None: the default folder). Creates and changes nothing.

    Raises ConfigurationError if `path` is not a path, EmbeddedServerError if the folder is not readable.
    """
    folder = DataFolder.at(path)
    problem, binary, record, users = None, None, None, None
    try:
        supervised = is_held(folder.supervisor_lock)
        if supervised:
            record, users = Record.read(folder.server_lock), _count_shares(folder.users_lock)
    except OSError as error:
        raise EmbeddedServerError(f"cannot read {folder.path}: {error}") from error
    try:
        binary = server_for(folder.path)
    except EmbeddedServerError as error:
        problem = str(error)
    snapshot = Snapshot.of(folder.path)
    return EmbeddedStatus(
        path=str(folder.path),
        unix_socket=str(folder.unix_socket),
        url=folder.url,
        answer=ping(folder.unix_socket, _PING_TIMEOUT),
        supervised=supervised,
        pid=record.pid or None if record else None,
        running_binary=record.binary if record else None,
        durability=record.durability if record else None,
        users=users,
        data_writer=snapshot.writer if snapshot else None,
        binary=binary,
        candidates=tuple(candidates()),
        problem=problem,
        keeper=keeper_of(folder.path),
    )


def _count_shares(path: Path) -> int | None:
    """The number of shared locks on `path`, from /proc/locks; None if unknown."""
    if sys.platform != "linux":
        return None
    try:
        info = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    # "1: FLOCK ADVISORY READ 4711 fe:01:131 0 EOF"; a waiting lock has "->" after its number.
    fields = (line.split() for line in lines)
    count = sum(1 for f in fields if len(f) > 5 and f[1] == "FLOCK" and f[3] == "READ" and f[5] == wanted)
    return count or None
