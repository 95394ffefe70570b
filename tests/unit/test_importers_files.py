"""Broken lines, other encodings, damaged archives, unknown formats."""

import gzip
import json
import logging
import zipfile

import pytest

from redis_history.errors import InvalidInputError
from redis_history.importers import FORMATS, read_transcripts

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def record(n, **more):
    return json.dumps({"id": f"c{n}", "messages": CHAT, **more})


def read(path, **options):
    problems = []
    return list(read_transcripts(path, on_error=problems.append, **options)), problems


@pytest.mark.proves("imports")
def test_bad_lines_are_reported_and_the_rest_is_imported(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        "{broken",
        record(1),
        "",
        '"just text"',
        '{"messages": [{"content": "no role"}]}',
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"messages": ' + "[" * 5000 + "]" * 5000 + "}",
        record(2),
    ]
    path.write_text("\n".join(lines))
    transcripts, problems = read(path)
    assert [transcript.conversation_id for transcript in transcripts] == ["openai_chat:a:c1", "openai_chat:a:c2"]
    assert [problem.line for problem in problems] == [1, 4, 5, 6, 7]
    assert all(problem.path == str(path) and problem.reason for problem in problems)
    assert "role" in problems[2].reason


def test_a_bad_message_among_lines_is_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"role": "user", "content": "a"}\n{"role": "user", "content": 5}\n{"role": "user", "content": "b"}\n'
    )
    (transcript,), (problem,) = read(path)
    assert [message.text for message in transcript.messages] == ["a", "b"]
    assert problem.line == 2


def test_without_a_callback_problems_are_logged(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{record(1)}\n{{broken\n")
    with caplog.at_level(logging.WARNING, logger="redis_history.importers"):
        assert len(list(read_transcripts(path))) == 1
    assert f"{path}:2" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + record(1).encode() + b"\r\n" + record(2).encode(),
        gzip.compress(f"{record(1)}\n{record(2)}\n".encode()),
        f"[{record(1)},\n{record(2)}]".encode(),
        f"[{record(1)}, {record(2)}]".encode(),
    ],
    ids=["byte order mark", "gzip", "list", "list on one line"],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.json.gz", "a"])
def test_the_format_is_detected_from_the_content(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    transcripts, problems = read(path)
    assert [transcript.conversation_id for transcript in transcripts] == ["openai_chat:a:c1", "openai_chat:a:c2"]
    assert problems == []


def test_a_truncated_gzip_file_is_read_up_to_its_end(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress("".join(f"{record(n, salt=str(hash(n * 7919)) * 9)}\n" for n in range(2000)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    transcripts, problems = read(path)
    assert transcripts
    assert "breaks off" in problems[-1].reason


def damaged(path, name, places):
    """The archive with bits of a member changed, or of what is said of it twice, before it and at the end."""
    data = bytearray(path.read_bytes())
    for header, at, bits in places:
        start = data.index(name.encode(), data.index(header)) - (30 if header == b"PK\3\4" else 46)
        data[start + at + (len(name) if at >= 30 else 0)] ^= bits
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("packed", "places", "said"),
    [
        (zipfile.ZIP_STORED, [(b"PK\3\4", 50, 0xFF)], "Bad CRC-32"),
        (zipfile.ZIP_STORED, [(b"PK\3\4", 6, 1), (b"PK\1\2", 8, 1)], "encrypted"),
        (zipfile.ZIP_STORED, [(b"PK\3\4", 8, 9), (b"PK\1\2", 10, 9)], "deflate"),
    ],
    ids=["damaged", "encrypted", "packed unusually"],
)
@pytest.mark.parametrize("kind", ["records", "slack"])
def test_an_unreadable_archive_member_is_skipped(tmp_path, packed, places, said, kind):
    path = tmp_path / "e.zip"
    folder = "general/" if kind == "slack" else ""
    names = [f"{folder}2024-01-0{day}.json" for day in (1, 2, 3)]
    with zipfile.ZipFile(path, "w", packed) as archive:
        for number, name in enumerate(names, 1):
            day = [{"ts": f"17040672{number}0.0", "text": f"Day {number}. {'x' * 9000}", "user": "U1"}]
            archive.writestr(name, json.dumps(day) if kind == "slack" else record(number))
        if kind == "slack":
            archive.writestr("users.json", "[]")
    damaged(path, names[0], places)
    transcripts, problems = read(path)
    if kind == "slack":
        assert [message.text[:5] for message in transcripts[0].messages] == ["Day 2", "Day 3"]
    else:
        assert len(transcripts) == 2
    assert {problem.path for problem in problems} == {str(path / names[0])}
    assert said in problems[0].reason


def test_a_line_that_is_not_utf8_is_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(record(1).encode() + b'\n{"messages": [{"role": "user", "content": "\xff"}]}\n')
    transcripts, problems = read(path)
    assert len(transcripts) == 1
    assert problems[0].line == 2


@pytest.mark.parametrize("text", ["", "\n\n", "plain text\nof two lines\n", '{"what": 1}\n', "[]", "5"])
def test_an_unknown_format_names_the_known_ones(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=r"claude_code.*openai_chat"):
        read_transcripts(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidInputError):
        read_transcripts(tmp_path / "missing.jsonl")
    with pytest.raises(InvalidInputError):
        read_transcripts(tmp_path)


def test_a_given_format_overrides_detection(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(record(1))
    (transcript,), _ = read(path, format="anthropic")
    assert transcript.form == "anthropic"
    with pytest.raises(InvalidInputError, match="openai_chat"):
        read_transcripts(path, format="word")


@pytest.mark.parametrize("format_", [name for name in FORMATS if name != "slack"])
@pytest.mark.parametrize(
    "value", ["{}", "5", "null", '"x"', "[5]", '{"messages": 5}', '{"messages": [5]}', '{"traj": {"messages": [{}]}}']
)
def test_importers_report_records_of_other_formats(tmp_path, format_, value):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{value}\n{value}\n")
    transcripts, problems = read(path, format=format_)
    assert not any(transcript.messages for transcript in transcripts)
    assert problems or not transcripts or format_ == "claude_code"


def test_records_are_read_lazily(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{record(n)}\n" for n in range(100)) + "{broken\n")
    problems = []
    transcripts = read_transcripts(path, on_error=problems.append)
    next(transcripts)
    assert problems == [], "the end was not read yet"
