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
    with caplog.at_level(logging.WARNING, logger="redis_history.importers"):
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


def test_a_list_is_split_into_items_at_any_place_of_a_chunk(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    texts = ['a, [b] {c} "d" \\ é', "\\" * 5, "]", ""]
    path.write_text(json.dumps([{"id": n, "messages": [{"role": "user", "content": t}]} for n, t in enumerate(texts)]))
    for size in range(1, 30):
        monkeypatch.setattr("redis_history.importers.source._CHUNK", size)
        transcripts, problems = read(path)
        assert ([one.messages[0].text for one in transcripts], problems) == (texts, [])


def damage(path, name, places):
    """Flip bits of the headers of an archive's member, or of its data: (header, offset, bits)."""
    data = bytearray(path.read_bytes())
    for header, at, bits in places:
        start = data.index(name.encode(), data.index(header)) - (30 if header == b"PK\3\4" else 46)
        data[start + at + (len(name) if at >= 30 else 0)] ^= bits
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ([(b"PK\3\4", 50, 0xFF)], "Bad CRC-32"),
        ([(b"PK\3\4", 6, 1), (b"PK\1\2", 8, 1)], "encrypted"),
        ([(b"PK\3\4", 8, 12), (b"PK\1\2", 10, 12)], "deflate"),
    ],
    ids=["damaged", "encrypted", "bzip2, which needs unbounded memory"],
)
@pytest.mark.parametrize("kind", ["records", "slack"])
def test_an_unreadable_archive_member_is_skipped(tmp_path, places, reason, kind):
    path = tmp_path / "e.zip"
    names = [f"{'general/' if kind == 'slack' else ''}2024-01-0{day}.json" for day in (1, 2, 3)]
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names, 1):
            day = [{"ts": f"17040672{number}0.0", "text": f"Day {number}. {'x' * 9000}", "user": "U1"}]
            archive.writestr(name, json.dumps(day) if kind == "slack" else record(number))
        if kind == "slack":
            archive.writestr("users.json", "[]")
    damage(path, names[0], places)
    transcripts, problems = read(path)
    if kind == "slack":
        assert [message.text[:5] for message in transcripts[0].messages] == ["Day 2", "Day 3"]
    else:
        assert len(transcripts) == 2
    assert {problem.path for problem in problems} == {str(path / names[0])}
    assert reason in problems[0].reason


def test_a_folder_is_read_file_by_file(tmp_path):
    for name in ("one.jsonl", "sub/one.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{record(1)}\n{record(1)}\n")
    (tmp_path / "odd.json").write_text('{"what": 1}')
    (tmp_path / "read.me").write_text("not for us")
    found, problems = read(tmp_path)
    ids = [one.conversation_id for one in found]
    assert len(set(ids)) == 4
    assert ids[0] == "openai_chat:one:c1"
    assert [problem.path for problem in problems] == [str(tmp_path / "odd.json")]
    assert read(tmp_path)[0] == found


def test_what_cannot_be_read_is_an_error(tmp_path):
    path = tmp_path / "a.jsonl"
    for text in ("", "\n\n", "plain text\nof two lines\n", '{"what": 1}\n', "[]", "5"):
        path.write_text(text)
        with pytest.raises(InvalidInputError, match=r"claude_code.*openai_chat"):
            read_transcripts(path)
    (tmp_path / "empty").mkdir()
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    for name in ("empty", "empty.zip", "missing"):
        with pytest.raises(InvalidInputError, match=name):
            read_transcripts(tmp_path / name)


def test_a_given_format_overrides_detection(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(record(1))
    (transcript,), _ = read(path, format="anthropic")
    assert transcript.form == "anthropic"
    with pytest.raises(InvalidInputError, match="openai_chat"):
        read_transcripts(path, format="word")


@pytest.mark.parametrize("format_", [name for name in FORMATS if name != "slack"])
def test_importers_report_records_of_other_formats(tmp_path, format_):
    path = tmp_path / "a.jsonl"
    for value in ("{}", "5", '"x"', "[5]", '{"messages": 5}', '{"messages": [5]}', '{"traj": {"messages": [{}]}}'):
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
