"""`redis-history ls`, `show` and `search`: for people and for programs, and harmless to terminals."""

import re
import subprocess
import unicodedata
from typing import Any

import pytest
from rich.cells import cell_len

from redis_history import (
    AttachmentPart,
    Conversation,
    HistoryStore,
    Message,
    Participant,
    ReasoningPart,
    Source,
    Usage,
    assistant,
    system,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.support.commands import command, environment, run, run_process
from tests.support.servers import RealServer

TERMINAL = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
ANN = Participant(kind="user", id="u1", display_name="Ann")
DESK = Participant(kind="agent", id="desk", display_name="Desk")
HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold red]x[/] \u202egnp.exe \x9b31m \x08\x7f\r\n\u2028second \U000e0041line"


def plain(text: str) -> str:
    """Without what rich itself sends to set colors."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def suitcase() -> list[Message]:
    calls = (tool_use("c1", "find_bag", {"flight": "KL 4711"}), tool_use("c1", "find_bag", {"flight": "TP 1"}))
    claim = AttachmentPart(name="claim.pdf", mime_type="application/pdf", size=12345, reference="s3://b/claim.pdf")
    return [
        system("You are a desk.", timestamp="2026-01-30T10:00:00Z"),
        user("I lost my green suitcase.\nFlight KL 4711.", participant=ANN, timestamp="2026-01-31T10:00:00Z"),
        assistant(ReasoningPart(text="Look it up."), "Let me look.", *calls, participant=DESK,
                  timestamp="2026-01-31T10:00:01Z"),
        tool(tool_result("c1", "Nothing.", is_error=True), timestamp="2026-01-31T10:00:02Z"),
        tool(tool_result("c1", "Tag seen in Porto.\nBelt 4"), timestamp="2026-01-31T10:00:03Z"),
        assistant("It is in Porto.", claim, participant=DESK, scope="thread", timestamp="2026-01-31T10:00:04Z",
                  sources=(Source(document_name="Handbook"),)),
    ]  # fmt: skip


def test_ls_prints_lines_to_pipes_and_a_table_to_terminals(store: HistoryStore, on: Any) -> None:
    store.create_conversation(Conversation("first", title="Lost suitcase", user_id="ann", agent_name="desk"))
    store.append_many("第二", [user("你好"), assistant("很好")])
    done = on("ls")
    assert (done.returncode, done.stderr) == (0, "")
    newest, oldest = (line.split("\t") for line in done.stdout.splitlines())
    assert newest[:4] == ["第二", "", "2", "2"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", newest[4])
    assert oldest[:4] + oldest[5:] == ["first", "Lost suitcase", "0", "0", "ann", "desk"]
    shown = plain(on("ls", environment=TERMINAL).stdout).splitlines()
    assert shown[0].split() == ["ID", "TITLE", "MESSAGES", "TOKENS", "CHANGED", "USER", "AGENT"]
    width = [sum(1 + (unicodedata.east_asian_width(c) == "W") for c in line.rstrip()) for line in shown]
    assert max(width) <= 100
    assert re.search(r"\b\d+ s\b", shown[1])


def test_ls_in_pages_and_of_an_owner(store: HistoryStore, on: Any) -> None:
    owners = {"int": 1, "str": "1", "negative": -5, "name": "ann", "quoted": '"ann"'}
    for name, owner in owners.items():
        store.create_conversation(Conversation(name, user_id=owner))
    done = on("ls", "--limit", "2", "--offset", "1", "--json")
    assert [one["conversation_id"] for one in done.lines] == ["name", "negative"]
    assert done.stderr == "There are more: --offset 3, or --all\n"
    assert set(done.lines[0]) == set(Conversation.__struct_fields__) - {"extra"}
    assert done.lines[0]["updated_at"].endswith("Z")
    rows = [line.split("\t") for line in on("ls", "--all").stdout.splitlines()]
    assert len(rows) == 5
    for name, *_, owner, _agent in rows:  # as it is shown, so it can be given
        (found,) = on("--json", "ls", "--user", owner).lines
        assert (found["conversation_id"], found["user_id"]) == (name, owners[name])
    nobody = on("ls", "--agent", "nobody")
    assert nobody.stderr.startswith("There are no such conversations in the namespace 'test-")
    assert (on("ls", "--user", "1", "--offset", "9").returncode, on("ls", "--user", "0").returncode) == (0, 1)


def test_show_is_a_timeline_with_results_beside_their_calls(store: HistoryStore, on: Any) -> None:
    store.create_conversation(Conversation("bag", title="Lost suitcase", user_id="ann"))
    store.append_many("bag", suitcase())
    done = on("show", "bag")
    assert (done.returncode, done.stderr) == (0, "")
    head, facts, _, *body = done.stdout.splitlines()
    assert head == "bag  Lost suitcase"
    assert facts.startswith("6 messages · ")
    assert (
        "\n".join(body)
        == """\
── 2026-01-30 ──
10:00:00  system
  You are a desk.

── 2026-01-31 ──
10:00:00  Ann  user
  I lost my green suitcase.
  Flight KL 4711.

10:00:01  Desk  assistant
  Look it up.
  Let me look.
  → find_bag(flight="KL 4711")
    ← Tag seen in Porto.
      Belt 4
  → find_bag(flight="TP 1")
    ✗ Nothing.

10:00:04  Desk  assistant  thread
  It is in Porto.
  ▤ claim.pdf  application/pdf, 12,345 bytes, s3://b/claim.pdf
  sources: Handbook
"""
    )


def test_show_selects_messages_and_parts(store: HistoryStore, on: Any) -> None:
    store.append_many("bag", suitcase())
    shown = on("show", "bag", "--no-tools", "--no-reasoning").stdout
    assert [text in shown for text in ("find_bag", "Look it up", "Let me look.")] == [False, False, True]
    done = on("--json", "show", "bag", "-n", "2")
    assert [one["text"] for one in done.lines] == ["Tag seen in Porto.\nBelt 4", "It is in Porto."]
    assert done.stderr == "Only the newest 2 are shown: --limit N, or --all\n"
    position = done.lines[0]["position"]
    for options, count in (
        (("--role", "user", "--role", "tool"), 3),
        (("--participant", "desk", "--scope", "thread"), 1),
        (("--before", position), 4),
        (("--since", position), 1),  # after it, not at it
        (("--since", "2026-01-31T10:00:02.999"), 2),  # in the time zone of the process: UTC
        (("--since", "2026-01-31T10:00:03"), 1),
        (("--since", "2026-01-31T11:00:03+01:00"), 1),
        (("--since", "1h"), 0),
    ):
        assert len(on("--json", "show", "bag", *options).lines) == count, options
    assert on("show", "bag", "--since", "2026").returncode == 2


def test_results_far_from_their_calls_and_long_ones(store: HistoryStore, on: Any) -> None:
    messages = [
        assistant(tool_use("c1", "clock", "not {json")),
        user("Hurry."),
        tool(tool_result("c1", [{"type": "text", "text": "noon"}])),
        tool(tool_result("c9", {"a": 1})),
        assistant(tool_use("1", "read", {"a": "b" * 500})),
        tool(tool_result("1", "line\n" * 99)),
    ]
    store.append_many("c", messages)
    shown = on("show", "c").stdout
    assert '  → clock("not {json")\n\n' in shown
    assert "  ← c1: noon\n" in shown
    assert '  ← c9: {"a":1}\n' in shown
    assert shown.count("line\n") == 12 - 1
    assert "(100 lines, 495 characters; --full shows all)" in shown
    assert "b" * 500 not in shown
    shown = on("show", "c", "--full").stdout
    assert (shown.count("line\n"), "b" * 500 in shown) == (99, True)


def test_archived_messages_are_marked(store: HistoryStore, on: Any) -> None:
    messages = [system("Stay."), *(user(f"Message {number} of a suitcase") for number in range(6))]
    store.append_many("c", messages)
    store.compact("c", through=messages[4].id, summary="Four were said.")
    shown = on("show", "c").stdout
    assert "Summary of earlier messages\n  Four were said.\n" in shown
    assert "Message 0" not in shown
    shown = on("show", "c", "--archived").stdout
    assert re.findall(r"user  archived\n  (Message \d)", shown) == [f"Message {number}" for number in range(4)]
    assert re.findall(r"user\n  (Message \d)", shown) == ["Message 4", "Message 5"]
    assert "system\n  Stay." in shown
    assert len(on("--json", "show", "c", "--archived", "--all").lines) == 8
    for options, found in (((), 6), (("--archived",), 6), (("--no-archived",), 2)):
        assert len(on("--json", "search", "suitcase", *options).lines) == found


def test_few_archived_messages_are_shown_without_reading_all(store: HistoryStore, server: RealServer, on: Any) -> None:
    store.append_many("c", [user("x" * 1000, timestamp=number, id=str(number)) for number in range(1000)])
    store.compact("c", through="9", summary="Ten were said.")
    store.append("c", user("Late.", timestamp=9.5))

    def sent() -> int:
        return server.watcher.info("stats")["total_net_output_bytes"]

    before = sent()
    shown = on("show", "c", "--archived", "--before", "1970-01-01T00:00:10Z", "--limit", "3").stdout
    assert re.findall(r"(archived|Ten were|Late)", shown) == ["archived", "Ten were", "Late"]
    assert sent() - before < 200_000


def harmless(text: str) -> bool:
    """Whether a terminal shows it, and does nothing else."""
    text = plain(text)
    return not any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") and c not in "\n\t\u200d" for c in text)


@pytest.mark.proves("terminal")
@pytest.mark.parametrize("settings", [{}, TERMINAL], ids=["pipe", "terminal"])
def test_hostile_text_cannot_control_the_terminal(store: HistoryStore, on: Any, settings: dict[str, str]) -> None:
    identity = HOSTILE[:60]
    store.create_conversation(Conversation(identity, title=HOSTILE, user_id=HOSTILE, agent_name=HOSTILE))
    message = user(
        f"suitcase {HOSTILE}", ReasoningPart(text=HOSTILE), tool_use(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}),
        tool_result("c", HOSTILE, is_error=True), AttachmentPart(name=HOSTILE, mime_type=HOSTILE, reference=HOSTILE),
        participant=Participant(kind="user", id=HOSTILE, display_name=HOSTILE),
        sources=(Source(document_name=HOSTILE),),
    )  # fmt: skip
    store.append(identity, message)
    commands = [("ls",), ("show", identity), ("tail", identity), ("search", "suitcase")]
    commands.append(("search", "suitcase", "-c", identity))
    for words in commands:
        done = on(*words, environment=settings)
        assert done.returncode == 0, done.stderr
        assert harmless(done.stdout), words
        assert "[bold red]x[/]" in done.stdout, "markup is text"
        assert "␛[2J" in done.stdout, words
        as_json = on("--json", *words, environment=settings)
        assert harmless(as_json.stdout)
        assert "\\u009b31m" in as_json.stdout
    assert on("--json", "ls").lines[0]["title"] == HOSTILE, "and JSON loses nothing"
    missing = on("show", HOSTILE)
    assert missing.returncode == 1
    assert harmless(missing.stderr)


def test_joined_emoji_and_wide_letters_stay_as_they_are(store: HistoryStore, on: Any) -> None:
    text = "我的行李箱丢了 👨‍👩‍👧 می‌خواهم"
    store.append("c", user(text))
    assert f"  {text}\n" in on("show", "c").stdout
    wrapped = on("show", "c", environment={**TERMINAL, "COLUMNS": "20"}).stdout
    assert max(map(cell_len, plain(wrapped).splitlines()[4:])) <= 20


def test_search_marks_the_words_and_filters(store: HistoryStore, on: Any) -> None:
    store.append_many("bag", suitcase())
    store.append("other", user("Another suitcase."))
    done = on("search", "suitcases", "--conversation", "bag", "--context", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "bag  2026-01-31 10:00  Ann\n"
        "    system: You are a desk.\n"
        "  Ann: I lost my green suitcase. Flight KL 4711.\n"
        "    Desk: Let me look.\n"
        "\n"
    )
    marked = on("search", "suitcases", "-c", "bag", environment={"FORCE_COLOR": "1", "NO_COLOR": ""}).stdout
    assert re.search(r"\x1b\[[\d;]*43m\s*suitcase\x1b", marked)
    assert {one["conversation_id"] for one in on("--json", "search", "suitcase").lines} == {"bag", "other"}
    (hit,) = on("--json", "search", "porto", "--role", "tool").lines
    assert hit["message"]["text"] == "Tag seen in Porto.\nBelt 4"
    (fragment,) = hit["highlights"]
    assert [fragment["text"][start:end] for start, end in fragment["ranges"]] == ["Porto"]
    for since, count in {hit["message"]["position"]: 0, "2026-01-31T10:00:02.999": 1}.items():
        assert len(on("--json", "search", "belt", "-c", "bag", "--role", "tool", "--since", since).lines) == count
    nothing = on("search", "elephant")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, "", "Nothing was found.\n")


def test_search_keeps_an_index_of_another_language(server: RealServer, namespace: str, on: Any) -> None:
    with HistoryStore(server.url, namespace=namespace, language="german") as store, server.client() as client:
        store.append("c", user("Die Koffer sind in Porto."))
        before = client.execute_command("FT._LIST")
        assert len(on("--json", "search", "Koffern").lines) == 1
        assert client.execute_command("FT._LIST") == before


def test_a_missing_conversation_is_reported(store: HistoryStore, namespace: str, on: Any) -> None:
    for words in (("show", "c"), ("tail", "c"), ("search", "x", "-c", "c"), ("export", "c")):
        done = on(*words)
        assert done.returncode == 1
        assert done.stderr.startswith(f"redis-history: there is no conversation 'c' in the namespace '{namespace}'")
    assert "--namespace" in done.stderr
    store.append("real", user("x"))
    assert "redis-history ls" in on("show", "c").stderr


@pytest.mark.parametrize("kind", ["plain", "cluster"])
def test_namespaces(server_of: Any, namespace: str, kind: str) -> None:
    """They are listed with the number of their conversations, and a wrong one says which exist."""
    url, odd = server_of(kind).url, f"{namespace} *ü{{1}}"
    try:
        for one, count in ((namespace, 2), (odd, 70)):
            with HistoryStore(url, namespace=one, search="off") as store:
                for number in range(count):
                    store.append(f"c{number}", user("x"))
        lines = run("--url", url, "namespaces").stdout.splitlines()
        assert {f"{namespace}\t2", f"{odd}\t70"} <= set(lines)
        assert {"namespace": odd, "conversations": 70} in run("--url", url, "--json", "namespaces").lines
        for words in (["ls"], ["show", "c"], ["export"]):
            done = run("--url", url, "--namespace", f"{namespace}-wrong", *words)
            assert done.returncode == (words[0] == "show")
            assert f"Namespaces with conversations: {namespace}, {odd}" in done.stderr
        assert "Namespaces" not in run("--url", url, "--namespace", namespace, "show", "c").stderr
    finally:
        server_of.clear(odd)


def test_a_reader_that_leaves_early_is_not_an_error(store: HistoryStore, where: tuple[str, ...]) -> None:
    store.append_many("c", [user("x" * 600) for _ in range(1000)])
    argv = command(*where, "show", "c", "--all")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.parametrize("width", [20, 80])
def test_ids_are_shown_however_narrow_it_is(store: HistoryStore, on: Any, width: int) -> None:
    long = "a-conversation-of-a-long-name:12345"
    for one in (long, "c"):
        store.create_conversation(Conversation(one, title="A title", user_id="u" * 30, agent_name="agent"))
        store.append(one, user("hello"))
    lines = plain(on("ls", environment={**TERMINAL, "COLUMNS": str(width)}).stdout).splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    column = re.match(r"ID\s*", lines[0])
    assert "".join(line[: column.end()].strip() for line in lines[1:]).endswith(long)


@pytest.mark.full
def test_a_locale_without_unicode(store: HistoryStore, server: RealServer) -> None:
    store.append("日本語会話", user("你好"))
    where = ("--url", server.url, "--namespace", store.namespace)
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = run_process(*where, "show", "日本語会話", **bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u4f60\\u597d" in done.stdout


def test_usage_by_day_by_agent_and_of_an_owner_with_a_budget(store: HistoryStore, on: Any) -> None:
    for name, owner, agent, day in (("c", 7, "a", 1), ("d", "7", "b\t!", 2)):
        store.create_conversation(Conversation(name, user_id=owner, agent_name=agent))
        used = Usage(100, 10, 40, 0.25 * day, "m")
        store.append(name, assistant("x", id="m", usage=used, timestamp=f"2026-01-0{day}"))
    total = "total\t200\t80\t20\t0.75\n"
    assert on("usage").stdout == f"2026-01-01\t100\t40\t10\t0.25\n2026-01-02\t100\t40\t10\t0.5\n{total}"
    assert on("usage", "--by", "agent").stdout == f"a\t100\t40\t10\t0.25\nb␉!\t100\t40\t10\t0.5\n{total}"
    assert on("usage", "--since", "2026-01-02", "--until", "2026-01-02").stdout.count("\n") == 2
    assert on("usage", "--since", "7d").stdout == "total\t0\t0\t0\t0\n"
    assert on("usage", "--user", '"7"').stdout.splitlines()[-1] == "total\t100\t40\t10\t0.5", "no budget"
    store.set_budget(7, tokens=1000, cost=0.25, period="total")
    done = on("usage", "--user", "7")
    assert done.stdout.splitlines()[-1] == "budget (total): 110 of 1,000 tokens, 0.25 of 0.25 cost exhausted"
    store.set_budget(7, tokens=10**6, period="day")
    assert "budget (day): 0 of 1,000,000 tokens used, begins anew 2" in on("usage", "--user", "7").stdout
    one, whole, budget = on("usage", "--user", "7", "--json").lines
    numbers = {"input_tokens": 100, "cached_tokens": 40, "output_tokens": 10, "cost": 0.25}
    assert (one, whole) == ({"day": "2026-01-01", **numbers}, {"day": None, **numbers})
    assert (budget["budget"]["tokens"], budget["budget"]["exhausted"]) == (10**6, False)
    for wrong in (("--since", "now"), ("--by", "user")):
        assert on("usage", *wrong).returncode == 2
