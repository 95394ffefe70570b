"""Broken lines, other encodings, damaged files, unknown formats."""

import gzip
import json
import logging

import pytest

from redis_history.errors import InvalidInputError
from redis_history.integrations.importers import FORMATS, read_transcripts

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def record(n, **more):
    return json.dumps({"id": f"c{n}", "messages": CHAT, **more})


def read(path, **options):
    problems = []
    return list(read_transcripts(path, on_error=problems.append, **options)), problems


@pytest.mark.proves("imports")
def test_bad_lines_are_reported_and_the_rest_is_imported(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    lines = [
        b"{broken",
        record(1).encode(),
        b"",
        b'"just text"',
        b'{"messages": [{"content": "no role"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        record(2).encode(),
    ]
    path.write_bytes(b"\n".join(lines))
    transcripts, problems = read(path)
    assert [transcript.conversation_id for transcript in transcripts] == ["openai_chat:a:c1", "openai_chat:a:c2"]
    assert [problem.line for problem in problems] == [1, 4, 5, 6, 7, 8]
    assert all(problem.path == str(path) and problem.reason for problem in problems)
    with caplog.at_level(logging.WARNING, logger="redis_history.integrations.importers"):
        assert list(read_transcripts(path)) == transcripts
    assert f"{path}:7" in caplog.text


def test_a_bad_message_among_lines_is_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(f'{{"role": "user", "content": {content}}}' for content in ('"a"', "5", '"b"')))
    (transcript,), (problem,) = read(path)
    assert [message.text for message in transcript.messages] == ["a", "b"]
    assert problem.line == 2


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
@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz", "a"])
def test_the_format_is_detected_from_the_content(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    transcripts, problems = read(path)
    assert [transcript.conversation_id for transcript in transcripts] == ["openai_chat:a:c1", "openai_chat:a:c2"]
    assert problems == []


def test_a_document_whose_checksum_is_missing_is_read(tmp_path):
    path = tmp_path / "one.json.gz"
    document = json.dumps({"id": "c1", "messages": [{"role": "user", "content": "hello"}]}, indent=1)
    path.write_bytes(gzip.compress(document.encode())[:-8])
    transcripts, problems = read(path)
    assert [message.text for one in transcripts for message in one.messages] == ["hello"]
    assert [problem.reason.split(":")[0] for problem in problems] == ["the file breaks off here"]


def test_a_truncated_gzip_file_is_read_up_to_its_end(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress("".join(f"{record(n, salt=str(hash(n * 7919)) * 9)}\n" for n in range(2000)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    transcripts, problems = read(path)
    assert transcripts
    assert "breaks off" in problems[-1].reason


def test_what_cannot_be_read_is_an_error(tmp_path):
    path = tmp_path / "a.jsonl"
    for text in ("", "\n\n", "plain text\nof two lines\n", '{"what": 1}\n', "[]", "5"):
        path.write_text(text)
        with pytest.raises(InvalidInputError, match=r"langchain.*openai_chat"):
            read_transcripts(path)
    (tmp_path / "folder").mkdir()
    for name in ("folder", "missing"):
        with pytest.raises(InvalidInputError, match=name):
            read_transcripts(tmp_path / name)


def test_a_given_format_overrides_detection(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(record(1))
    (transcript,), _ = read(path, format="anthropic")
    assert transcript.format == "anthropic"
    with pytest.raises(InvalidInputError, match="openai_chat"):
        read_transcripts(path, format="word")


@pytest.mark.parametrize("format_", FORMATS)
def test_importers_report_records_of_other_formats(tmp_path, format_):
    path = tmp_path / "a.jsonl"
    for value in ("{}", "5", '"x"', "[5]", '{"messages": 5}', '{"messages": [5]}', '{"traj": {"messages": [{}]}}'):
        path.write_text(f"{value}\n{value}\n")
        transcripts, problems = read(path, format=format_)
        assert not any(transcript.messages for transcript in transcripts)
        assert problems or not transcripts


def test_records_are_read_lazily(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{record(n)}\n" for n in range(100)) + "{broken\n")
    problems = []
    transcripts = read_transcripts(path, on_error=problems.append)
    next(transcripts)
    assert problems == [], "the end was not read yet"
