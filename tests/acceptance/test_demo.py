"""The demo as users run it: a process of its own against a real server; and that its checks would notice."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from redis_history import HistoryStore, Message, Position, tool_result, tool_use
from redis_history.demo.checks import Findings, check
from redis_history.demo.compaction_checks import check_compactions
from redis_history.demo.plan import SAMPLE, Bounds, load, make_plan
from redis_history.demo.screen import printable
from redis_history.demo.watcher import Compaction, Heard
from redis_history.embedded import EmbeddedServer
from redis_history.model import TextPart, user

FOLDER = Path(os.environ.get("REDIS_HISTORY_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
FILES = sorted(path for path in FOLDER.glob("*.json*") if path.is_file())
SECONDS = 120


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    with EmbeddedServer(tmp_path_factory.mktemp("embedded")) as server:
        yield server
        server.close(wait=10)


@pytest.fixture
def url(embedded):
    yield f"embedded://{embedded.path}"
    with Redis.from_url(embedded.url) as client:
        assert client.dbsize() == 0, "keys were left behind"
        assert client.execute_command("FT._LIST") == []


@contextmanager
def running(*arguments, start=("redis_history.demo",)):
    """The demo in a group of its own, killed if it takes too long."""
    command = [sys.executable, "-m", *start, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
    )
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def demo(*arguments, **options):
    with running(*arguments, **options) as process:
        out, err = process.communicate()
    return process.returncode, out, err


def row(out, name):
    """The first number of a row of the table."""
    return int(re.search(rf"^\s+{name}\s+([\d,]+)", out, re.MULTILINE)[1].replace(",", ""))


def test_the_sample_is_replayed_and_right(url):
    status, out, err = demo("--url", url)
    assert status == 0, out + err
    assert "All is as it must be" in out
    messages = sum(len(transcript.messages) for transcript in load(SAMPLE, None, pytest.fail))
    for name in ("messages sent", "messages stored", "read back equal"):
        assert row(out, name) == messages
    for name in ("duplicates", "gaps", "order violations"):
        assert row(out, name) == 0
    for name in ("retries ignored", "agents killed and restarted", "subscriber connections cut"):
        assert row(out, name) > 0
    assert row(out, "conversations compacted") > 3
    assert row(out, "messages archived") > messages // 3
    assert row(out, "results torn from calls") == 0
    assert row(out, "compressors killed and replaced") == 1


@pytest.mark.parametrize("agents", [1, 5])
def test_any_number_of_agents(url, agents):
    start = ("redis_history.cli", "demo") if agents == 5 else ("redis_history.demo",)  # it is the same
    status, out, err = demo("--url", url, "--agents", agents, "--conversations", 2, "--seed", agents, start=start)
    assert status == 0, out + err
    assert row(out, "conversations") == 2


def pytest_generate_tests(metafunc):
    if "path" in metafunc.fixturenames:  # each takes some seconds: one stands for all, unless there is time
        every = metafunc.config.getoption("--long") or len(FILES) < 3
        chosen = FILES if every else [path for path in FILES if "taubench" in path.name]
        metafunc.parametrize("path", chosen or FILES[:1], ids=lambda path: path.name)


if FILES:

    def test_real_transcripts(url, path, long):
        some = () if long else ("--conversations", 15)
        status, out, err = demo("--url", url, "--data", path, *some)
        assert status == 0, out + err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--data", "missing.jsonl"], "no file missing.jsonl"),
        (["--data", __file__], "openai_chat"),
        (["--agents", "0"], "1 to 64"),
        (["--agents", "many"], "1 to 64"),
        (["--conversations", "0"], "not a number from 1"),
        (["--url", "memory://"], "embedded://"),
        (["--url", "somewhere"], "redis://"),
    ],
    ids=lambda value: " ".join(value[:2])[-24:] if isinstance(value, list) else "",
)
def test_wrong_input_is_told_in_one_message(arguments, told):
    status, out, err = demo(*arguments)
    assert status == 2
    assert told in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("start", [("redis_history.demo",), ("redis_history.cli", "demo")])
def test_a_server_that_is_not_there_or_refuses(url, embedded, start):
    status, out, err = demo("--url", "redis://localhost:1", start=start)
    assert (status, out) == (3, "")
    assert "redis://localhost:1" in err
    refusing = f"unix://nobody:wrong@{embedded.unix_socket}"
    refused, _, told = demo("--url", refusing, start=start)
    assert refused == 3
    if "redis_history.cli" in start:
        assert "--url embedded://" in err, "the hint that other commands give"
        assert "User name and password belong into the URL" in told
    assert demo("--url", "memory://", start=start)[0] == 2


def wait_until_under_way(process):
    assert any(re.search(r"[1-9][\d,]* of [\d,]+ stored", line) for line in process.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("start", [("redis_history.demo",), ("redis_history.cli", "demo")])
def test_an_interrupted_run_leaves_nothing(url, number, start):
    with running("--url", url, start=start) as process:
        wait_until_under_way(process)
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        _, err = process.communicate()  # returns when no process of the run holds the pipes any more
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert "Traceback" not in err


def test_its_processes_end_with_it_even_if_it_is_killed(embedded):
    with running("--url", f"embedded://{embedded.path}") as process:
        wait_until_under_way(process)
        process.kill()
        process.communicate()
    with Redis.from_url(embedded.url) as client:
        assert client.dbsize()
        client.flushall()  # the index, too


# That the checks would notice


@pytest.fixture
def played():
    """A small run without processes: its plan, and what one could have read back and been told."""
    plan = make_plan(load(SAMPLE, 1, pytest.fail), 3, seed=2)
    (transcript,) = plan.transcripts
    name = transcript.conversation_id
    heard = []
    with HistoryStore("memory://") as store:
        for step in sorted((step for share in plan.shares for step in share if not step.again), key=_first(transcript)):
            done = store.append_many(name, step.messages)
            heard.append(Heard(done[0].revision, tuple((one.message.id, one.message.sequence) for one in done)))
        return plan, store.get(name), heard


def _first(transcript):
    places = {message.id: place for place, message in enumerate(transcript.messages)}
    return lambda step: places[step.messages[0].id]


def found(plan, stored, heard, revision):
    findings = Findings()
    check(findings, plan, plan.transcripts[0], stored, heard, revision)
    return findings


def test_a_right_run_has_no_findings(played):
    plan, stored, heard = played
    findings = found(plan, stored, heard, len(heard))
    assert findings.problems == []
    assert findings.stored == findings.equal == findings.equal_form == findings.delivered == plan.messages


def edited(message):
    return msgspec.structs.replace(message, parts=(TextPart(text="changed"),))


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda stored: stored[:-1], None),
        (lambda stored: stored[1:], "gaps"),
        (lambda stored: [*stored, stored[-1]], "duplicates"),
        (lambda stored: [*stored, msgspec.structs.replace(user("more"), sequence=99)], "gaps"),
        (lambda stored: [edited(stored[0]), *stored[1:]], None),
        (lambda stored: [stored[1], stored[0], *stored[2:]], "order_violations"),
        (lambda stored: [_at(stored[0], 2), _at(stored[1], 1), *stored[2:]], "order_violations"),
    ],
)
def test_what_is_stored_wrongly_is_found(played, change, counted):
    plan, stored, heard = played
    findings = found(plan, change(stored), heard, len(heard))
    assert findings.problems
    assert counted is None or getattr(findings, counted) > 0


def _at(message, sequence):
    return msgspec.structs.replace(message, sequence=sequence)


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda heard: heard[:-1], "gaps"),
        (lambda heard: [*heard[:2], *heard[3:]], "gaps"),
        (lambda heard: [*heard, heard[-1]], "order_violations"),
        (lambda heard: [heard[1], heard[0], *heard[2:]], "order_violations"),
        (lambda heard: [Heard(heard[0].revision, (), "log_trimmed"), *heard[1:]], "gaps"),
        (lambda heard: [Heard(heard[0].revision, ()), *heard[1:]], None),
        (lambda heard: [], "gaps"),
    ],
)
def test_what_is_told_wrongly_is_found(played, change, counted):
    plan, stored, heard = played
    findings = found(plan, stored, change(heard), len(heard))
    assert findings.problems
    assert counted is None or getattr(findings, counted) > 0


def _names(names):
    """Messages of these ids, worth a summary, a second after the other; "a" calls a tool, "t" has its result, "s" is
    the system's."""
    parts = {"a": tool_use("1", "f"), "t": tool_result("1", "r")}
    roles = {"s": "system", "a": "assistant", "t": "tool"}
    return [
        Message(
            id=name, role=roles.get(name, "user"), parts=parts.get(name, name * 99), timestamp=place, sequence=place
        )
        for place, name in enumerate(names, 1)
    ]


@pytest.fixture
def compacted():
    """A compaction of six messages, while the seventh came: what is live, what is stored, and what was told."""
    sent = _names("sbatcde")
    summary = Message(id="S", role="user", parts="x", metadata={"is_summary": True}, timestamp=4, sequence=4)
    live = [sent[0], summary, *sent[4:]]
    heard = [
        Heard(1, tuple((one.id, one.sequence) for one in sent[:6])),
        Heard(2, (("e", 7),)),
        Heard(3, (), compaction=Compaction("S", Position(4_000_000, 4), 3)),
    ]
    return live, [*sent[:4], summary, *sent[4:]], heard


def compaction_findings(live, everything, heard, most=5):
    findings = Findings()
    check_compactions(findings, "c", Bounds(most, 1), live, everything, heard)
    return findings


def test_a_right_compaction_has_no_findings(compacted):
    assert compaction_findings(*compacted) == Findings(compacted=1, summaries=1, archived=3)


def _through(heard, place, count=3):
    return [*heard[:2], Heard(3, (), compaction=Compaction("S", Position(1_000_000 * place, place), count))]


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda live, every, heard: (live[1:], every, heard), "compacted_wrongly"),
        (lambda live, every, heard: ([*live, every[1]], every, heard), "compacted_wrongly"),
        (lambda live, every, heard: ([*live, user("other", id="x")], every, heard), "compacted_wrongly"),
        (lambda live, every, heard: (live, [one for one in every if one.id != "S"], heard), "compacted_wrongly"),
        (lambda live, every, heard: (live, every, heard[:2]), "compacted_wrongly"),
        (lambda live, every, heard: (live, every, _through(heard, 4, count=4)), "compacted_wrongly"),
        (lambda live, every, heard: (live, every, _through(heard, 3)), "torn"),
        (lambda live, every, heard: (every, every, heard[:2]), "too_long"),
    ],
)
def test_a_wrong_compaction_is_found(compacted, change, counted):
    findings = compaction_findings(*change(*compacted))
    assert getattr(findings, counted) > 0
    assert findings.problems


def test_what_came_too_late_for_its_call_is_no_fault(compacted):
    """The call is archived, and the result comes after the compaction."""
    summary = compacted[0][1]
    sent = _names("sbacdte")
    heard = [
        Heard(1, tuple((one.id, one.sequence) for one in sent[:5])),
        Heard(2, (), compaction=Compaction("S", Position(4_000_000, 4), 3)),
        Heard(3, (("t", 6), ("e", 7))),
    ]
    findings = compaction_findings([sent[0], summary, *sent[4:]], [*sent[:4], summary, *sent[4:]], heard)
    assert findings == Findings(compacted=1, summaries=1, archived=3, late_results=1)


def test_what_cannot_be_made_shorter_is_no_fault():
    sent = _names("abcdet")
    heard = [Heard(1, tuple((one.id, one.sequence) for one in sent))]
    assert compaction_findings(sent, sent, heard, most=3) == Findings(held=1)


@pytest.mark.parametrize("agents", [1, 4, 30])
def test_a_plan_deals_every_message_once_and_in_order(agents):
    transcripts = load(SAMPLE, None, pytest.fail)
    plan = make_plan(transcripts, agents, seed=5)
    assert plan == make_plan(transcripts, agents, seed=5)
    dealt = Counter(m.id for share in plan.shares for step in share if not step.again for m in step.messages)
    assert dealt == Counter(m.id for transcript in transcripts for m in transcript.messages)
    for share in plan.shares:
        known = set()
        for step in share:
            ids = [message.id for message in step.messages]
            assert not step.again or known.issuperset(ids), "only what was sent can be sent again"
            known.update(ids)
        for transcript in transcripts:
            mine = [
                m.id
                for s in share
                if s.conversation_id == transcript.conversation_id and not s.again
                for m in s.messages
            ]
            assert mine == [message.id for message in transcript.messages if message.id in set(mine)]


def test_texts_cannot_steer_the_terminal():
    assert printable("a\x1b[2Jb\r\nc\u202ed") == "a [2Jb c d"


def test_the_live_view(capsys):
    pytest.importorskip("rich")
    from redis_history.demo.rich_screen import RichScreen

    with RichScreen(2) as screen:
        screen.stored(1, 0)
        screen.delivered(1, [("c", user("[bold]not markup[/bold]"))])
        screen.note("one [note]")
        screen.refresh()
        screen.table("Title", [("right", "1", True), ("wrong", "2", False), ("plain", "3", None)])
    out = capsys.readouterr().out
    assert "[bold]not markup[/bold]" in out
    assert "one [note]" in out
    assert "wrong" in out
