"""`redis-history import` and `export`: files into a store, and out of it again."""

import gzip
import json
import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore, user
from redis_history.cli import _output
from tests.support.commands import Done, command, environment, run
from tests.support.servers import RealServer

LINE = '{"messages":[{"role":"user","content":"hi"}]}'


def chats(path: Path, count: int, *, broken: bool = False) -> Path:
    lines = [json.dumps({"id": n, "messages": [{"role": "user", "content": f"Question {n}"}]}) for n in range(count)]
    path.write_text("\n".join([*lines, *(["{broken"] if broken else [])]))
    return path


def ids(store: HistoryStore) -> set[str]:
    return {one.conversation_id for one in store.list_conversations()}


def test_a_repeated_import_stores_nothing_twice(store: Any, on: Any, tmp_path: Path) -> None:
    path = chats(tmp_path / "chats.jsonl", 3)
    done = on("import", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path} (openai_chat): 3 conversations, 3 messages: 3 new, 0 known\n"
    assert on("import", str(path)).stdout.endswith("3 messages: 0 new, 3 known\n")
    assert len(store.search_all("question")) == 3, "imported messages can be searched"


def test_skipped_records_are_reported_and_set_the_exit_status(store: Any, on: Any, tmp_path: Path) -> None:
    good, bad = chats(tmp_path / "good.jsonl", 2), chats(tmp_path / "bad.jsonl", 1, broken=True)
    done = on("import", str(good), str(bad))
    assert done.returncode == 1
    assert re.fullmatch(rf"{bad}:2: skipped: not JSON: .*\n", done.stderr)
    *_, last = done.stdout.splitlines()
    assert last == "Together: 3 conversations, 3 messages: 3 new, 0 known; 1 problem"
    lines = on("import", "--json", str(good), str(bad)).lines
    assert [one["kind"] for one in lines] == ["problem", "file", "file", "ended"]
    assert (lines[0]["path"], lines[0]["line"]) == (str(bad), 2)
    assert lines[-1] == {
        "kind": "ended", "dry_run": False, "conversations": 3, "messages": 3, "new": 0, "duplicates": 3, "problems": 1,
    }  # fmt: skip
    bad.write_text(bad.read_text() + "\n{\x1b[2J" * 29)
    done = on("import", str(bad))
    assert len(done.stderr.splitlines()) == 21
    assert "… and 10 more problems" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_dry_run_needs_no_server(tmp_path: Path) -> None:
    path = chats(tmp_path / "chats.jsonl", 2, broken=True)
    done = run("--url", "redis://127.0.0.1:1", "import", "--dry-run", str(path))
    assert done.returncode == 1
    assert done.stdout == f"{path} (openai_chat): 2 conversations, 2 messages; 1 problem\n"


def test_standard_input(store: Any, on: Any) -> None:
    lines = f"{LINE}\n{LINE}\n".encode()
    assert on("import", "-", stdin=lines).stdout.startswith("- (openai_chat): 2 conversations")
    assert on("import", "-", stdin=gzip.compress(lines)).returncode == 0
    assert {id_.partition("~")[0] for id_ in ids(store)} == {f"openai_chat:stdin:{number}" for number in (1, 2)}
    bad = on("import", "-", stdin=lines + b"{")
    assert bad.stderr.startswith("-:3: skipped:"), "not the name of a temporary file"
    assert on("import", "-", "-", stdin=lines).returncode == 2
    empty = on("import", "-", stdin=b"")
    assert empty.returncode == 2
    assert empty.stderr.startswith("redis-history: - holds no JSON records")


def shell(script: str) -> Done:
    """Run a script, in which `it` is the command."""
    text = f'it() {{ {sys.executable} -m redis_history.cli "$@"; }}; {script}'
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=environment(), timeout=120)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("script", "status", "error"),
    [
        ("it --help >/dev/full", 1, "redis-history: the output cannot be written: No space left on device\n"),
        ("it --help | true; exit ${PIPESTATUS[0]}", None, ""),
        ("it import --dry-run - <&-", 2, "holds no JSON records"),
        ("""echo '{"messages": [{"role": "user", "content": "x"}]}' | it import --dry-run - >&- 2>&-""", 0, ""),
    ],
)
def test_an_output_that_is_closed_or_full(script: str, status: int | None, error: str) -> None:
    done = shell(script)
    assert status is None or done.returncode == status
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_if_a_file_cannot_be_read_nothing_is_imported(store: Any, on: Any, tmp_path: Path) -> None:
    good, empty = chats(tmp_path / "good.jsonl", 1), tmp_path / "empty.jsonl"
    empty.touch()
    for arguments, why in (
        ((str(good), str(empty)), "holds no JSON records"),
        ((str(good), str(tmp_path / "missing")), "does not exist"),
        ((str(good), str(tmp_path)), "Is a directory"),
        ((str(good), "--format", "klingon"), "is not one of"),
    ):
        done = on("import", *arguments)
        assert done.returncode == 2
        assert why in done.stderr
    assert ids(store) == set()


def test_progress_in_plain_lines_without_a_terminal(on: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_output, "LINE_SECONDS", 0.0)
    path = chats(tmp_path / "chats.jsonl", 2)
    assert "importing: 2, 2 conversations\n" in on("import", str(path)).stderr
    assert "exporting: 2, 2 conversations\n" in on("export", "-o", str(tmp_path / "e.jsonl")).stderr
    assert "importing: 4, 4 conversations\n" in on("import", str(path), str(path)).stderr, "of all files together"
    assert on("import", "--quiet", str(path)).stderr == ""
    assert on("import", "--json", str(path)).stderr == ""


def test_an_export_into_a_file_and_to_standard_output(store: Any, on: Any, tmp_path: Path) -> None:
    messages = [user("x"), user("y")]
    store.append_many("c", messages)
    store.append("d", user("你好"))
    for name in ("all.jsonl", "all.jsonl.gz"):
        done = on("export", "--output", str(tmp_path / name))
        assert (done.stdout, done.stderr) == (f"{tmp_path / name}: 2 conversations, 3 messages\n", "")
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, "a new file is private"
    plain = (tmp_path / "all.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "all.jsonl.gz").read_bytes()) == plain
    done = on("export", "d", "c")
    assert (done.returncode, done.stderr) == (0, "2 conversations, 3 messages\n")
    assert sorted(done.stdout.encode().splitlines()) == sorted(plain.splitlines())
    (result,) = on("export", "d", "-o", str(tmp_path / "d.jsonl"), "--json").lines
    assert result == {"path": str(tmp_path / "d.jsonl"), "conversations": 1, "messages": 1}
    store.compact("c", through=messages[1].id, summary="Two.")
    assert (len(on("export", "c").lines), len(on("export", "c", "--no-archived").lines)) == (4, 2)
    assert on("export", "--resume").returncode == 2, "standard output cannot be continued"
    assert on("export", "--resume", "-o", str(tmp_path / "e.jsonl")).returncode == 0


def test_an_export_that_cannot_be_written(store: Any, on: Any, tmp_path: Path) -> None:
    store.append("c", user("x"))
    done = on("export", "-o", str(tmp_path / "no" / "such" / "folder.jsonl"))
    assert done.returncode == 2
    assert "cannot be written: No such file or directory" in done.stderr
    assert on("export", "-o", "").stderr == "redis-history: '' cannot be written: Is a directory\n"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("export"), stdout=theirs, stderr=subprocess.PIPE, env=environment(), text=True
    ) as process:
        os.close(theirs)
        assert "name a file with --output, or use a pipe" in process.communicate(timeout=60)[1], "not to a terminal"
    os.close(ours)
    assert process.returncode == 2


def test_an_export_keeps_links_modes_and_other_files(store: Any, on: Any, tmp_path: Path) -> None:
    store.append("c", user("x"))
    path, link, mine = tmp_path / "e.jsonl", tmp_path / "link.jsonl", tmp_path / "e.jsonl.part"
    path.write_text("before")
    path.chmod(0o600)
    link.symlink_to(path.name)
    mine.write_text("precious")
    assert on("export", "-o", str(link)).returncode == 0
    assert len(path.read_text().splitlines()) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert link.is_symlink()
    assert mine.read_text() == "precious"
    dangling = tmp_path / "dangling.jsonl"
    dangling.symlink_to("new.jsonl")
    assert on("export", "-o", str(dangling)).returncode == 0
    names = {"e.jsonl", "link.jsonl", "e.jsonl.part", "dangling.jsonl", "new.jsonl"}
    assert {entry.name for entry in tmp_path.iterdir()} == names


def test_an_export_into_a_pipe_or_a_device(store: Any, on: Any, server: RealServer, tmp_path: Path) -> None:
    store.append("c", user("x"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert on("export", "-q", "-o", str(pipe)).returncode == 0
        assert len(os.read(reader, 65_536).splitlines()) == 2
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    device = tmp_path / "null"
    device.symlink_to(os.devnull)
    assert on("export", "-q", "-o", str(device)).returncode == 0
    assert (device.is_symlink(), Path(os.devnull).is_char_device()) == (True, True)
    both = tmp_path / "both"
    with both.open("wb") as output:
        output.write(b"before\n")
        output.flush()
        argv = command("--url", server.url, "--namespace", store.namespace, "export", "-q", "-o", "/dev/stdout")
        subprocess.run(argv, stdout=output, env=environment(), timeout=60, check=True)
    assert both.read_bytes().startswith(b"before\n{")
