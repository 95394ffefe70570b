"""Hostile files: an import keeps its limits, and raises only errors of the package."""

import bz2
import contextlib
import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import HistoryStore
from redis_history.errors import InvalidInputError, RedisHistoryError
from redis_history.integrations.importers import (
    FORMATS,
    ImportLimits,
    ImportProblem,
    Transcript,
    import_messages,
    read_transcripts,
)
from tests.support.commands import environment

MEGABYTE = 1 << 20


def chat(name: str, text: str = "hello") -> str:
    return json.dumps({"id": name, "messages": [{"role": "user", "content": text}]})


def read(path: Path, format: str = "auto", **limits: int) -> tuple[list[Transcript], list[ImportProblem]]:
    problems: list[ImportProblem] = []
    found = read_transcripts(path, format=format, on_error=problems.append, limits=ImportLimits(**limits))
    return list(found), problems


def test_a_limit_must_be_an_integer_of_at_least_one() -> None:
    for name in ImportLimits.__struct_fields__:
        for value in (0, -1, 1.5, "7", True, None):
            with pytest.raises(InvalidInputError, match=name):
                ImportLimits(**{name: value})
    with pytest.raises(InvalidInputError, match="max_depth"):
        ImportLimits(max_depth=251)


# For each limit: its value, and a record that exceeds it.
BEYOND: dict[str, tuple[dict[str, int], bytes]] = {
    "max_record_bytes": ({"max_record_bytes": 1000}, chat("long", "x" * 1000).encode()),
    "max_values": ({"max_values": 50}, json.dumps({"messages": [], "n": [[]] * 50}).encode()),
    "max_depth": ({"max_depth": 20}, b'{"messages": ' + b"[" * 20 + b"]" * 20 + b"}"),
}


@pytest.mark.proves("import-limits")
@pytest.mark.parametrize("limit", BEYOND)
def test_a_record_beyond_a_limit_is_skipped(tmp_path: Path, limit: str) -> None:
    limits, record = BEYOND[limit]
    records = [chat("c1").encode(), record, chat("c2").encode()]
    path = tmp_path / "a.json"
    path.write_bytes(b"\n".join(records))
    transcripts, (problem,) = read(path, **limits)
    assert [one.conversation_id.rpartition(":")[2] for one in transcripts] == ["c1", "c2"]
    assert (problem.path, problem.line) == (str(path), 2)
    assert f"{limit}={limits[limit]}" in problem.reason
    assert len(read(path)[0]) + len(read(path)[1]) == 3, "it is within the limits there are without saying"


def test_commas_in_strings_are_not_values(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{chat('c', '[1, 2],' * 100 + chr(92) + chr(34) + ',,,')}\n" * 2)
    transcripts, problems = read(path, max_values=20)
    assert (len(transcripts), problems) == (2, [])


CONVERSATIONS: dict[str, Callable[[int], Any]] = {
    "openai_chat": lambda n: {"role": "user", "content": f"{n}"},
    "langchain": lambda n: {"type": "human", "data": {"content": f"{n}"}},
    "redis_history": lambda n: {"type": "message", "conversation_id": "c", "message": {"id": f"{n}", "role": "user"}},
}


@pytest.mark.parametrize("format", CONVERSATIONS)
def test_max_conversation_bytes_limits_the_messages_of_a_conversation(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a.json"
    messages = [CONVERSATIONS[format](n) for n in range(100)]
    path.write_text("\n".join(map(json.dumps, messages)))
    (whole,), problems = read(path, format)
    assert problems == []
    transcripts, (problem,) = read(path, format, max_conversation_bytes=1000)
    assert sum(len(one.messages) for one in transcripts) < len(whole.messages) == 100
    assert 1 < problem.line < 100
    assert "max_conversation_bytes=1000" in problem.reason


def test_max_bytes_limits_the_unpacked_file(tmp_path: Path) -> None:
    text = "".join(f"{chat(f'c{n}', random.Random(n).randbytes(500).hex())}\n" for n in range(1500)).encode()
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(text, 1))
    whole, problems = read(path)
    assert problems == []
    transcripts, (problem,) = read(path, max_bytes=MEGABYTE)
    assert 0 < len(transcripts) < len(whole)
    assert "max_bytes=1048576" in problem.reason


@pytest.mark.proves("import-limits")
def test_a_decompression_bomb_is_stopped_early(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress((chat("c") + "\n").encode() + b" " * (40 * MEGABYTE)))
    taken = memory_of(f"list(read_transcripts({str(path)!r}, on_error=print))")
    assert "max_ratio=200" in taken.output
    assert taken.grown < 60 * MEGABYTE, taken


@pytest.mark.proves("import-limits")
def test_blank_lines_take_no_time(tmp_path: Path) -> None:
    """100 MB of them in 100 kB: 5 seconds in version 0.2."""
    path = tmp_path / "blank.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(f"{chat('c')}\n".encode())
        for _ in range(100):
            file.write(b"\n" * 1_000_000)
    started = time.process_time()
    transcripts, problems = read(path)
    assert len(transcripts) == 1
    assert time.process_time() - started < 2
    assert "max_ratio" in problems[-1].reason


def test_a_named_file_may_be_a_link_but_not_a_device(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(chat("c"))
    (tmp_path / "link.json").symlink_to("a.json")
    os.mkfifo(tmp_path / "pipe.json")
    assert len(read(tmp_path / "link.json")[0]) == 1
    for path in (tmp_path / "pipe.json", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(InvalidInputError):
            read(path)


def one_line(name: str) -> bytes:
    return chat(name, "text").encode() + b"\n"


DEEP = b"[" * 3_000 + b"]" * 3_000
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "zeros": b"\0" * 100_000,
    "deep lists": DEEP,
    "deep objects": b'{"messages":' * 900 + b"1" + b"}" * 900,
    "deep after good": one_line("a") + DEEP,
    "deep arguments": json.dumps({"messages": [{"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 900 + "]" * 900}}]}]}).encode(),
    "tagged": b'{"type":"message","conversation_id":"c","message":' + b'{"&map":[[' * 90 + b"1" + b",1]]}" * 90 + b"}",
    "a list as a key": b'{"type":"message","conversation_id":"c","message":{"&map":[[[1],2]]}}',
    "never ends": b"[" + b'{"role":"user","content":"x"},' * 1000,
    "only a quote": b'["' + b"x" * 100_000,
    "escapes": b'["' + b"\\" * 100_001,
    "one of each bracket": b"[{]}" * 1_000,
    "utf-16": chat("c").encode("utf-16"),
    "utf-32": chat("c").encode("utf-32"),
    "latin-1": chat("c").encode().replace(b"hello", b"\xe9\xff"),
    "surrogates": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    "overlong": b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}',
    "carriage returns": chat("c").encode() + b"\r" * 1000,
    "huge number": b'{"messages":[{"role":"user","content":"x","n":' + b"9" * 10_000 + b"}]}",
    "huge exponent": b'{"messages":[{"role":"user","content":"x","created_at":1e999}]}',
    "not a number": b'{"messages":[{"role":"user","content":"x","created_at":NaN}]}',
    "a time far away": b'{"messages":[{"role":"user","content":"x","created_at":-1e300}]}',
    "repeated keys": b'{"messages":[],"messages":[{"role":"user","content":"x"}]}',
    "magic of gzip": b"\x1f\x8b" + b"\xff" * 1000,
    "cut gzip": gzip.compress(one_line("a") * 1000)[:50],
    "cut gzip of a list": gzip.compress(b"[" + one_line("a") + b"]")[:-12],
    "a list as a type": b'{"messages":[{"role":"user","content":[{"type":[]}]}]}',
    "gzip with a tail": gzip.compress(one_line("a")) + b"tail",
    "empty members of gzip": gzip.compress(b"") * 300,
    "magic of zip": b"PK\x05\x06" + b"\xff" * 18,
    "bzip2": bz2.compress(one_line("a")),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_raises_an_error_of_the_package_or_is_reported(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(HOSTILE[name])
    with HistoryStore("memory://") as store:
        for format in ("auto", *FORMATS):
            check_errors(path, format)
            with contextlib.suppress(RedisHistoryError):
                import_messages(path, store, format=format, on_error=lambda problem: None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


KEYS = [
    "role", "content", "messages", "mapping", "type", "data", "kwargs", "id", "lc", "entries", "message",
    "uuid", "conversation", "conversation_id", "version", "parts", "author", "current_node", "parent",
    "tool_calls", "ts", "function", "name", "arguments", "&bytes", "&time", "&map", "&ext", "timestamp",
    "created_at", "input",
]  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=30,
)


@given(records=st.lists(values, min_size=1, max_size=4), form=st.sampled_from(["lines", "list", "cut", "gzip"]))
@pytest.mark.parametrize("format", ["auto", *FORMATS])
def test_any_records_are_read_or_reported(tmp_path: Path, format: str, records: list[Any], form: str) -> None:
    lines = "\n".join(map(json.dumps, records)).encode("utf-8", "replace")
    data = json.dumps(records).encode() if form == "list" else lines
    data = data[: len(data) // 2] if form == "cut" else gzip.compress(data) if form == "gzip" else data
    path = tmp_path / "a.json"
    path.write_bytes(data)
    check_errors(path, format)


def check_errors(path: Path, format: str) -> None:
    problems: list[ImportProblem] = []
    try:
        for transcript in read_transcripts(path, format=format, on_error=problems.append):
            assert isinstance(transcript, Transcript)
    except RedisHistoryError:
        pass
    assert all(problem.reason and problem.line > 0 for problem in problems)


class Taken(NamedTuple):
    """The output of a process, and its memory in bytes before and at most."""

    output: str
    before: int
    most: int

    @property
    def grown(self) -> int:
        return self.most - self.before


def memory_of(work: str) -> Taken:
    """Runs `work` in a new process."""
    code = (
        "import pathlib, re\nfrom redis_history.integrations.importers import *\n"
        # Not ru_maxrss, which an exec does not reset: it would be that of this process.
        "status = pathlib.Path('/proc/self/status').read_text\n"
        "peak = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', status())[1])\n"
        f"before = peak()\n{work}\nprint(before, peak())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *lines, numbers = run.stdout.strip().splitlines()
    return Taken("\n".join(lines), *map(int, numbers.split()))


TEXT = 'A sentence with "quotes", [brackets], and a comma. ' * 10
#: A conversation of 30 messages, half a kilobyte each.
LARGE = json.dumps({"messages": [{"role": "user", "content": TEXT}] * 30}) + "\n"


@pytest.mark.full
@pytest.mark.parametrize("packed", [False, True])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "export.jsonl"
    count = 10_000  # 160 MB
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as stream:
        for _ in range(count):
            stream.write(LARGE.encode())
    taken = memory_of(f"print(sum(len(one.messages) for one in read_transcripts({str(path)!r}, on_error=bool)))")
    path.unlink()
    assert int(taken.output) == 30 * count
    assert taken.most < 100 * MEGABYTE, taken


@pytest.mark.proves("import-limits")
@pytest.mark.full
@pytest.mark.parametrize(
    "data",
    [
        b"x" * MEGABYTE,
        b'{"messages": [' + b'{"a":1},' * 131_072,
        b'["' + b"x" * MEGABYTE,
        b"[" * (MEGABYTE // 4),
        b'{"role":"user","content":"x"}\n' * 35_000,
    ],
    ids=["a line", "an object", "a text", "brackets", "messages of one conversation"],
)
def test_memory_is_bounded_for_gigantic_records(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.json"
    with path.open("wb") as stream:
        for _ in range(64):
            stream.write(data)
    limits = "ImportLimits(max_record_bytes=8 << 20, max_conversation_bytes=4 << 20)"
    work = f"try: list(read_transcripts({str(path)!r}, on_error=lambda problem: None, limits={limits}))\n"
    work += "except Exception as error: print(type(error).__name__)"
    taken = memory_of(work)
    assert taken.output in ("", "InvalidInputError")
    assert taken.grown < 150 * MEGABYTE, taken


@pytest.mark.full
def test_a_large_table_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    with path.open("w") as file:
        for n in range(80_000):
            row = {"conversation_id": f"c{n % 2000}", "role": "user", "content": "word " * 200}
            file.write(json.dumps(row) + "\n")
    assert path.stat().st_size > 80 * MEGABYTE
    taken = memory_of(f"print(sum(len(one.messages) for one in read_transcripts({str(path)!r})))")
    assert taken.output.strip() == "80000"
    assert taken.grown < 50 * MEGABYTE, taken
