"""Which server can read which data, told from the first bytes of the AOF."""

from __future__ import annotations

from pathlib import Path

import pytest

from redis_history.embedded import ServerBinary
from redis_history.embedded._snapshot import Snapshot

REDIS_6, REDIS_7, REDIS_72 = b"REDIS0009\xfa\tredis-ver\x056.2.7", b"REDIS0010", b"REDIS0011"
REDIS_74 = b"REDIS0012\xfa\tredis-ver\x057.4.1\xfa\nredis-bits\xc0@"
REDIS_9 = b"REDIS0014\xfa\tredis-ver\x059.0.0"
VALKEY_9 = b"VALKEY080\xfa\nvalkey-ver\x059.1.2\xfa\nredis-bits\xc0@"
SEARCH = bytes.fromhex("f781 b1c76dca97b4d001 0201f7")

WRONG_FORMAT, NO_SEARCH, IGNORES = "cannot read the format", "without the search module", "would start empty"


def snapshot(folder: Path, head: bytes, *, parts: bool = True) -> Snapshot | None:
    if not parts:
        (folder / "appendonly.aof").write_bytes(head)
        return Snapshot.of(folder)
    (folder / "appendonlydir").mkdir()
    (folder / "appendonlydir/appendonly.aof.7.base.rdb").write_bytes(head)
    (folder / "appendonlydir/appendonly.aof.manifest").write_text(
        "file appendonly.aof.7.base.rdb seq 7 type b\nfile appendonly.aof.9.incr.aof seq 9 type i\n"
    )
    return Snapshot.of(folder)


def binary(text: str) -> ServerBinary:
    product, version, *search = text.split()
    return ServerBinary("/s", (), "system", "Redis" if product == "Redis" else "Valkey", version, search=bool(search))


@pytest.mark.parametrize(
    ("head", "server", "complaint"),
    [
        (REDIS_74, "Redis 7.4.1", ""),
        (REDIS_74, "Redis 7.4.0", ""),
        (REDIS_74, "Redis 8.2.0", ""),
        (REDIS_74, "Redis 7.2.5", WRONG_FORMAT),
        (REDIS_74, "Valkey 9.1.2", WRONG_FORMAT),
        (REDIS_9, "Redis 8.0.0", ""),  # newer than what is known here: let it try
        (REDIS_9, "Redis 7.4.1", WRONG_FORMAT),
        (REDIS_72, "Redis 7.2.0", ""),
        (REDIS_72, "Valkey 7.2.5", ""),
        (REDIS_72, "Valkey 9.1.2", ""),
        (REDIS_7, "Redis 7.0.15", ""),
        (REDIS_7, "Redis 6.2.7", IGNORES),
        (VALKEY_9, "Valkey 9.1.2", ""),
        (VALKEY_9, "Valkey 10.0.0", ""),
        (VALKEY_9, "Valkey 8.1.0", WRONG_FORMAT),
        (VALKEY_9, "Redis 8.2.0", WRONG_FORMAT),
        (REDIS_74 + SEARCH, "Redis 7.4.1", NO_SEARCH),
        (REDIS_74 + SEARCH, "Redis 7.4.1 search", ""),
        (VALKEY_9 + SEARCH, "Valkey 9.1.2", NO_SEARCH),
        (VALKEY_9 + SEARCH, "Valkey 9.1.2 search", ""),
    ],
)
def test_who_reads_what(head: bytes, server: str, complaint: str, tmp_path: Path) -> None:
    found = snapshot(tmp_path, head)
    assert found is not None
    said = found.unreadable_by(binary(server))
    assert (complaint in said) if complaint else (said == "")


def test_one_file_of_an_old_server(tmp_path: Path) -> None:
    found = snapshot(tmp_path, REDIS_6, parts=False)
    assert found is not None
    assert found.writer == "Redis 6.2.7"
    assert [found.unreadable_by(binary(b)) for b in ("Redis 6.2.7", "Redis 7.4.1", "Valkey 9.1.2")] == ["", "", ""]


@pytest.mark.parametrize(
    ("head", "writer"), [(REDIS_74, "Redis 7.4.1"), (VALKEY_9, "Valkey 9.1.2"), (REDIS_7, "a Redis")]
)
def test_the_writer(head: bytes, writer: str, tmp_path: Path) -> None:
    found = snapshot(tmp_path, head)
    assert found is not None
    assert found.writer == writer


@pytest.mark.parametrize("head", [b"", b"*2\r\n$6\r\nSELECT\r\n", b"garbage", b"REDIS"])
def test_nothing_is_known(head: bytes, tmp_path: Path) -> None:
    assert snapshot(tmp_path, head) is None


def test_no_data(tmp_path: Path) -> None:
    assert Snapshot.of(tmp_path) is None
    assert Snapshot.of(tmp_path / "missing") is None
    (tmp_path / "appendonlydir").mkdir()
    assert Snapshot.of(tmp_path) is None
    (tmp_path / "appendonlydir/appendonly.aof.manifest").write_bytes(b"\xff\n")
    assert Snapshot.of(tmp_path) is None
