"""What files are like: broken lines, other encodings, cut archives, formats nobody knows."""

import gzip
import json
import logging

import pytest

from redis_history.errors import InvalidInputError
from redis_history.importers import FORMATS, read_transcripts

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def record(n, **more):
    return json.dumps({"id": f"c{n}", "messages": CHAT, **more})


def read(path, **options):
    problems = []
    return list(read_transcripts(path, on_error=problems.append, **options)), problems


def test_bad_lines_are_reported_and_the_rest_is_imported(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        "{broken",
        record(1),
        "",
        '"just text"',
        '{"messages": [{"content": "no role"}]}',
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"messages": [{"role": "user", "content": "x", "n": 123456789012345678901234567890}]}',
        '{"messages": ' + "[" * 5000 + "]" * 5000 + "}",
        record(2),
    ]
    path.write_text("\n".join(lines))
    transcripts, problems = read(path)
    assert [transcript.conversation_id for transcript in transcripts] == ["openai_chat:a:c1", "openai_chat:a:c2"]
    assert [problem.line for problem in problems] == [1, 4, 5, 6, 7, 8]
    assert all(problem.path == str(path) and problem.reason for problem in problems)
    assert "role" in problems[2].reason


def test_a_bad_message_among_lines_costs_its_line_only(tmp_path):
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
def test_the_content_tells_not_the_ending(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    transcripts, problems = read(path)
    assert [transcript.conversation_id for transcript in transcripts] == ["openai_chat:a:c1", "openai_chat:a:c2"]
    assert problems == []


def test_an_archive_that_breaks_off(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress("".join(f"{record(n, salt=str(hash(n * 7919)) * 9)}\n" for n in range(2000)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    transcripts, problems = read(path)
    assert transcripts
    assert "breaks off" in problems[-1].reason


def test_bytes_that_are_not_utf8_cost_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(record(1).encode() + b'\n{"messages": [{"role": "user", "content": "\xff"}]}\n')
    transcripts, problems = read(path)
    assert len(transcripts) == 1
    assert problems[0].line == 2


@pytest.mark.parametrize("text", ["", "\n\n", "plain text\nof two lines\n", '{"what": 1}\n', "[]", "5"])
def test_an_unknown_format_names_the_known_ones(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=r"taubench.*openai_chat"):
        read_transcripts(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidInputError, match="no file"):
        read_transcripts(tmp_path / "missing.jsonl")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_transcripts(tmp_path)


def test_the_format_can_be_said(tmp_path):
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
def test_no_importer_falls_over_foreign_records(tmp_path, format_, value):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{value}\n{value}\n")
    transcripts, problems = read(path, format=format_)
    assert not any(transcript.messages for transcript in transcripts)
    assert problems or not transcripts or format_ == "claude_code"


def test_it_streams(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{record(n)}\n" for n in range(100)) + "{broken\n")
    problems = []
    transcripts = read_transcripts(path, on_error=problems.append)
    next(transcripts)
    assert problems == [], "the end was not read yet"
