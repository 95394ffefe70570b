"""Checks whether a server can read the data in a folder.

The AOF begins with a snapshot in the format of the server that wrote it. The formats are incompatible:
Redis 7.4 writes version 12, Valkey 9 writes version 80, and each rejects the other. A server without
RediSearch rejects a snapshot that was written with it. So the first bytes of the snapshot decide which
server can be chosen for a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ._binaries import Product, ServerBinary, choose, find_server, numbers

_HEADER = re.compile(rb"^(REDIS|VALKEY)(\d{3,4})")
_WRITER = re.compile(rb"(redis|valkey)-ver[\x01-\x3f](\d+(?:\.\d+)+)")
_BASE = re.compile(r'^file "?(.+?)"? seq \d+ type b', re.MULTILINE)
_HEAD = 4096  # bytes; the header, the writer's name and the modules' first data are in the first hundred

# The beginning of RediSearch's data: the opcode of module data, "64 bits follow", and the first six bytes of
# the module id, which packs "scdtype00" into 64 bits, six bits a letter.
_SEARCH_DATA = b"\xf7\x81\xb1\xc7\x6d\xca\x97\xb4"

# The newest snapshot version that each Redis version reads. Valkey reads up to 11.
_READS = (((7, 4), 12), ((7, 2), 11), ((7, 0), 10), ((6, 2), 9))
_NEWEST_KNOWN = (7, 4)
_VALKEY_READS = 11
_VALKEY_OWN = (9, 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The data in a folder: the server that wrote it, its format, and whether RediSearch was loaded."""

    product: Product
    format: int
    writer: str
    search: bool
    multi_part: bool

    @classmethod
    def of(cls, folder: Path) -> Snapshot | None:
        """The snapshot at the start of the AOF in `folder`; None if it is missing or has an unknown format."""
        parts = folder / "appendonlydir"
        file = folder / "appendonly.aof"
        try:
            if parts.is_dir():
                base = _BASE.search((parts / "appendonly.aof.manifest").read_text(errors="replace"))
                if base is None:
                    return None
                file = parts / base[1]
            with file.open("rb") as stream:
                head = stream.read(_HEAD)
        except OSError:
            return None
        header, writer = _HEADER.match(head), _WRITER.search(head)
        if header is None:
            return None
        product: Product = "Redis" if header[1] == b"REDIS" else "Valkey"
        name = f"{writer[1].decode().title()} {writer[2].decode()}" if writer else f"a {product}"
        return cls(product, int(header[2]), name, search=_SEARCH_DATA in head, multi_part=parts.is_dir())

    def unreadable_by(self, binary: ServerBinary) -> str:
        """Why `binary` cannot read this snapshot; "" if no reason is known."""
        version = numbers(binary.version)
        if self.multi_part and version < (7, 0):
            return "it ignores an AOF in several parts, so it would start empty"
        if self.product == "Valkey":
            readable = binary.product == "Valkey" and version >= _VALKEY_OWN
        elif binary.product == "Valkey":
            readable = self.format <= _VALKEY_READS
        else:
            newest = next((format_ for since, format_ in _READS if version >= since), 0)
            readable = self.format <= newest or version[:2] > _NEWEST_KNOWN
        if not readable:
            return f"it cannot read the format of {self.writer}"
        if self.search and not binary.search:
            return "it would be without the search module that the data was written with"
        return ""


def server_for(folder: Path) -> ServerBinary:
    """The first server, in order of preference, that can read the data in `folder`.

    Raises EmbeddedServerError if no server is found (see `find_server`), or if no server can read the data.
    """
    snapshot = Snapshot.of(folder)
    if snapshot is None:
        return find_server()
    return choose(
        snapshot.unreadable_by,
        f"the data in {folder} was written by {snapshot.writer}{' with search' if snapshot.search else ''}, and no "
        "server here can read it",
        ". Make that server available again, or use another folder. To move between servers, export with the old one "
        "and import with the new one",
    )
