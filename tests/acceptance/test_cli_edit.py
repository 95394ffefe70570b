"""`redis-history say`, `rename`, `fork`, `log`, `delete` and `erase`, and refused connections."""

import subprocess
import sys
from typing import Any

import pytest

from redis_history import Conversation, HistoryStore, Usage, assistant, tool_use, user
from tests.support.commands import environment
from tests.support.servers import free_port


def test_say_appends_a_message_once(store: HistoryStore, on: Any) -> None:
    (first,) = on("say", "c", "Hello, suitcase", "--as", "ann", "--message-id", "m1", "--json").lines
    assert first == {"conversation_id": "c", "id": "m1", "revision": 1, "duplicate": False}
    (again,) = on("say", "c", "Hello, suitcase", "--as", "ann", "--message-id", "m1", "--json").lines
    assert again["duplicate"] is True
    assert on("say", "c", "--role", "assistant", "--as", "desk", stdin=b"Two\nlines\n").returncode == 0
    one, two = store.get("c")
    assert (one.role, one.participant.kind, one.text) == ("user", "user", "Hello, suitcase")
    assert (two.role, two.participant.kind, two.text) == ("assistant", "agent", "Two\nlines")
    assert [hit.message.id for hit in store.search_all("suitcase")] == ["m1"], "it is in the search index"
    assert on("say", "c", "-", stdin=b"\n").returncode == 2


def test_rename_sets_and_removes_the_title(store: HistoryStore, on: Any) -> None:
    store.append("c", user("x"))
    for title, stored in (("Lost suitcase", "Lost suitcase"), ("", None)):
        assert on("rename", "c", title).returncode == 0
        record = store.get_conversation("c")
        assert record.title == stored
    assert on("rename", "missing", "x").returncode == 1


def test_delete_asks_first(store: HistoryStore, on: Any) -> None:
    for name in ("a", "b"):
        store.append(name, user("x"))
    assert on("delete", "a").returncode == 2, "nobody can be asked"
    done = on("delete", "a", "missing", "--yes", "--json")
    assert done.returncode == 1
    assert done.lines == [{"conversation_id": "a", "deleted": True}, {"conversation_id": "missing", "deleted": False}]
    assert [one.conversation_id for one in store.list_conversations()] == ["b"]


def test_fork_copies_up_to_a_message(store: HistoryStore, on: Any) -> None:
    store.append_many("c", [user(name, id=name) for name in "abc"])
    (made,) = on("fork", "c", "d", "--through", "b", "--json").lines
    assert made == {"conversation_id": "d", "message_count": 2}
    assert [message.id for message in store.get("d")] == ["a", "b"]
    new_id = on("fork", "c").stdout.strip()
    assert len(store.get(new_id)) == 3
    assert on("fork", "missing").returncode == 1
    assert on("fork", "c", "d").returncode == 1, "it exists"


def test_stop_asks_the_agent_at_work(store: HistoryStore, on: Any) -> None:
    assert (on("stop", "c").returncode, on("stop", "c").stdout) == (1, "c: no agent is at work\n")
    store.append("c", user("Why?"))
    with store.run("c", agent_name="Ada") as run:
        shown = on("show", "c").stdout
        assert "Ada is at work, since" in shown
        done = on("stop", "c", "--reason", "wrong question")
        assert (done.returncode, "Ada was asked to stop (wrong question)" in done.stdout) == (0, True)
        assert run.wait_stop(10)
        assert run.stop_reason == "wrong question"
        assert on("stop", "c", "--json").lines == [{"conversation_id": "c", "stopping": True}]


def test_erase_deletes_what_a_user_owns(store: HistoryStore, on: Any) -> None:
    for name, owner in (("a", 7), ("b", 7), ("c", "7")):
        store.create_conversation(Conversation(name, user_id=owner))
        store.append(name, user("x"))
    assert on("erase", "--user", "7").returncode == 2, "nobody can be asked"
    *each, ended = on("erase", "--user", "7", "--yes", "--json").lines
    assert sorted(one["conversation_id"] for one in each) == ["a", "b"]
    assert ended == {"kind": "ended", "user_id": 7, "conversations": 2, "messages": 2}
    assert [one.conversation_id for one in store.list_conversations()] == ["c"]
    assert on("erase", "--user", '"7"', "-y").stdout == '"7": 1 conversation with 1 message erased\n'


def test_an_owner_is_found_whatever_its_type(store: HistoryStore, on: Any) -> None:
    """Sessions and JSON often have numbers as text. A number is the number first."""
    for name, owner in (("a", "42"), ("b", 7), ("c", "7"), ("d", "ann"), ("e", None)):
        store.create_conversation(Conversation(name, user_id=owner))
        store.append(name, user("biscuit"))
    for owner, found in (("42", ["a"]), ('"42"', ["a"]), ("7", ["b"]), ('"7"', ["c"]), ("ann", ["d"])):
        assert [one["conversation_id"] for one in on("ls", "--user", owner, "--json").lines] == found
    searched = on("search", "biscuit", "--user", "42", "--json")
    if searched.returncode != 2:  # 2: no search on this server
        assert [one["conversation_id"] for one in searched.lines] == ["a"]
    store.append("a", assistant(tool_use("k", "pay", {}, needs_approval=True), usage=Usage(10, 5)))
    store.ask("a", user("And now?"))
    store.set_budget("42", tokens=100)
    assert on("usage", "--user", "42").stdout.splitlines()[-2].startswith("total\t10\t")
    assert on("usage", "--user", "42").stdout.splitlines()[-1].startswith("budget")
    for command in ("turns", "approvals"):
        done = on(command, "--user", "42")
        assert (done.returncode, done.stdout[:2], done.stderr) == (0, "a\t", "")
    assert on("approvals", "--limit", "9" * 30).stdout.startswith("a\t")
    assert on("turns", "--user", "7").returncode == 0, "the owner exists"
    done = on("erase", "--user", "42", "-y")
    assert (done.stdout, done.stderr) == ('"42": 1 conversation with 3 messages erased\n', "")
    done = on("erase", "--user", "7", "-y")
    assert done.stdout == "7: 1 conversation with 1 message erased\n"
    assert done.stderr == 'the owner "7", a text, still has 1 conversation\n'
    assert sorted(one.conversation_id for one in store.list_conversations()) == ["c", "d", "e"]


@pytest.mark.parametrize("command", ["ls", "turns", "usage", "approvals", "erase", "erase --yes", "erase --yes --json"])
def test_an_unknown_owner_is_an_error_that_names_the_others(store: HistoryStore, on: Any, command: str) -> None:
    done = on(*command.split(), "--user", "5")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'there is no owner 5 and no owner "5" in the namespace' in done.stderr
    assert "no conversation has an owner" in done.stderr
    for name, owner in (("a", 7), ("b", "7"), ("c", "ann\x1b"), ("d", "ann\x1b")):
        store.create_conversation(Conversation(name, user_id=owner))
    for nobody in ("5", '"5"', "bob", ""):
        done = on(*command.split(), "--user", nobody)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith('that changed last: ann␛, "7", 7\n'), done.stderr
    assert store.count_conversations() == 4


def test_log_shows_what_changed(store: HistoryStore, on: Any) -> None:
    store.append_many("c", [user(name, id=name) for name in "ab"])
    store.update_message("c", user("new", id="a"))
    store.delete_messages("c", ["b"])
    store.update_conversation("c", title="First")
    store.update_conversation("c", title="Second", user_id="ann")
    rows = [line.split("\t") for line in on("log", "c", "-n", str(10**20)).stdout.splitlines()]
    what = ["appended a by user, b (removed since)", "edited a by user", "deleted b"]
    what += ["changed the record: title", "changed the record: title, user_id"]  # no values: those of then are unknown
    assert [(row[0], row[2]) for row in rows] == list(zip("12345", what, strict=True))
    found = on("log", "c", "-n", "3", "--json").lines
    assert [one["event"] for one in found] == ["messages_deleted", "conversation_updated", "conversation_updated"]
    assert all(one["changed_at"].endswith("Z") for one in found), "as all other times"
    assert "edited" in on("show", "c").stdout
    assert on("log", "missing").returncode == 1


def test_a_refused_connection_is_reported_at_once() -> None:
    code = """if True:
        from redis_history import RetryPolicy
        from redis_history.cli import _stores, main
        _stores.PATIENCE = RetryPolicy(deadline=600)
        main()"""
    argv = [sys.executable, "-c", code, "--url", f"redis://127.0.0.1:{free_port()}", "ls"]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 3
    assert "nothing listens" in done.stderr
    assert "--url embedded://" in done.stderr, "the remedy"
