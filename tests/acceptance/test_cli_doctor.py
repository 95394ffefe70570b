"""`redis-history doctor`: finds what a server lacks, and the fixes that it suggests work."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore, RetryPolicy, errors, user
from redis_history.cli import _stores
from tests.conftest import Servers
from tests.support.commands import run
from tests.support.restricted import renamed
from tests.support.servers import RealServer, Start, free_port, wait_until


def examined(url: str, *options: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """Findings by check."""
    done = run("--url", url, "--json", "doctor", *options)
    assert done.returncode == status, done.stdout + done.stderr
    return {one["check"]: one for one in done.lines}


def apply(server: RealServer, fix: str) -> None:
    """Run the suggested command, without redis-cli, which may not be installed."""
    words = shlex.split(fix)
    assert words[:3] == ["redis-cli", "-s", str(server.socket)]
    if words[3] == "--user":
        assert words[4:6] == ["AN-ADMIN", "--askpass"]
        del words[3:6]
    with server.client() as client:
        client.execute_command(*words[3:])


def test_a_good_server(server: RealServer, namespace: str) -> None:
    done = run("--url", server.url, "--namespace", namespace, "doctor")
    assert done.returncode == 0, done.stdout
    rows = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    assert [row[0] for row in rows] == [
        "server", "version", "servers", "memory", "persistence", "rights", "notifications", "search", "this package",
        "private server",
    ]  # fmt: skip
    version = tuple(map(int, rows[1][2].partition(":")[0].split(" ")[1].split(".")))
    is_old = version[:2] == (7, 4) and version < (7, 4, 6)  # Redis Stack's last wheel has 7.4.1
    assert {row[0] for row in rows if row[1] != "ok"} == ({"version"} if is_old else set())


def test_nothing_is_suggested_that_the_server_does_not_have(own_server: Start) -> None:
    """Managed servers, for example, lack administrators' commands."""
    options = ("--rename-command", "CONFIG", "", "--rename-command", "ACL", "", "--appendonly", "no")
    server = own_server("plain", options=options)
    found = examined(server.url, status=1)
    assert found["persistence"]["fix"].endswith("does not take CONFIG: appendonly = yes")
    assert not [one for one in found.values() if "redis-cli" in (one["fix"] or "")]


@pytest.mark.parametrize("lacking", ["RENAME", "EVAL"])
def test_a_command_that_the_server_lacks_is_named(own_server: Start, lacking: str) -> None:
    """No right helps, and the errors of scripts do not name it."""
    server = own_server("plain", options=renamed((lacking,)))
    found = examined(server.url, status=1)["rights"]
    assert found["state"] == "problem"
    assert lacking in found["detail"].upper()
    assert "docs/how-to/managed-servers.md" in found["fix"]
    with HistoryStore(server.url) as store, pytest.raises(errors.UnsupportedServerError):
        [store.append("c", user("x")), store.fork("c", new_id="d")]


@pytest.mark.parametrize(
    ("login", "said"),
    [(":wrong", "is wrong"), ("nobody:x", "is wrong"), ("", "Put the user name and password into the URL")],
)
def test_the_hint_for_credentials(own_server: Start, login: str, said: str) -> None:
    server = own_server("plain", options=("--requirepass", "right"))
    url = server.url.replace("unix://", f"unix://{login}@" if login else "unix://")
    assert said in examined(url, status=1)["server"]["fix"]


def test_commands_are_not_wrapped_on_a_terminal(own_server: Start) -> None:
    server = own_server("plain", options=("--appendonly", "yes", "--appendfsync", "no"))
    terminal = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "COLUMNS": "60"}
    shown = run("--url", server.url, "doctor", environment=terminal).stdout
    assert "Fixes:" in shown
    assert f"    redis-cli -s {server.socket} CONFIG SET appendfsync everysec\n" in shown, "not wrapped"
    assert "CONFIG REWRITE" in shown


@pytest.mark.proves("doctor")
def test_the_fixes_of_dangerous_settings_work(own_server: Start) -> None:
    options = ("--maxmemory-policy", "allkeys-lru", "--appendonly", "no", "--maxmemory", "2mb")
    server = own_server("plain", options=options)
    found = examined(server.url, status=1)
    assert {name for name, one in found.items() if one["state"] == "problem"} == {"memory", "persistence"}
    assert "allkeys-lru" in found["memory"]["detail"]
    assert "a restart loses everything" in found["persistence"]["detail"]
    assert found["search"]["state"] == "limited"
    for name in ("memory", "persistence"):
        apply(server, found[name]["fix"])
    found = examined(server.url)
    assert {found[name]["state"] for name in ("persistence", "notifications")} == {"ok"}
    assert "on: subscribers see changes at once" in found["notifications"]["detail"]
    assert found["notifications"]["fix"] is None
    assert "noeviction" in found["memory"]["detail"]
    while found["memory"]["state"] != "ok":
        apply(server, found["memory"]["fix"])  # more memory
        found = examined(server.url)
    with server.client() as client:
        client.config_set("appendfsync", "no")
    assert "never fsynced" in examined(server.url, status=1)["persistence"]["detail"]


@pytest.mark.proves("doctor")
def test_the_fix_for_missing_rights_works(own_server: Start) -> None:
    server = own_server(options=("--notify-keyspace-events", "Kl"))
    rules = ["on", ">secret", "resetkeys", "~rh2:{support:*", "resetchannels", "-@all", "+@read", "+@write", "+info"]
    rules += ["+eval", "+evalsha", "+time", "+acl|whoami", "-rpush"]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "ann", *rules)
    url = f"unix://ann:secret@{server.socket}"
    found = examined(url, "--namespace", "support", status=1)
    assert found["rights"]["state"] == "problem"
    assert "rpush" in found["rights"]["detail"]
    assert "secret" not in str(found)
    assert found["notifications"]["state"] == "limited"
    apply(server, found["rights"]["fix"])
    found = examined(url, "--namespace", "support")
    assert found["rights"]["detail"].startswith("scripts run; ann has all rights of a tenant")


@pytest.mark.proves("doctor")
def test_the_lines_of_roles(own_server: Start) -> None:
    server = own_server(options=("--notify-keyspace-events", "Kl"))
    roles = {
        "reader": ("limited", "reader may read, and not write"),
        "writer": ("limited", "writer lacks rights that are needed to use a search index: ft.info, ft.search"),
        "worker": ("limited", "worker may read and compact, as a worker"),
        "tenant": ("ok", "scripts run; tenant has all rights of a tenant"),
        "operator": ("ok", "scripts run; operator has all rights of an operator"),
    }
    found = {}
    for role, (state, detail) in roles.items():
        [line] = run("--url", server.url, "--namespace", "ü", "doctor", "--acl", role).stdout.splitlines()
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", *line.split()[1:])
        url = f"unix://{role}:change-me@{server.socket}"
        found[role] = examined(url, "--namespace", "ü")
        assert found[role]["rights"]["state"] == state
        assert found[role]["rights"]["detail"].startswith(detail)
        assert found[role]["notifications"]["state"] == ("limited" if role == "reader" else "ok")
    advice, fix = found["tenant"]["search"]["fix"].split(": ")
    assert advice == "ask an operator to run"
    refused = run("--url", f"unix://tenant:change-me@{server.socket}", "--namespace", "ü", *fix.split()[1:])
    assert "a user with the rights of an operator" in refused.stderr
    run("--url", url, "--namespace", "ü", *fix.split()[1:])
    found["tenant"] = examined(f"unix://tenant:change-me@{server.socket}", "--namespace", "ü")
    assert found["tenant"]["search"]["state"] == "ok"
    clustered = run("--url", "redis+cluster://a:1,b:2", "doctor", "--acl", "writer").stdout
    assert clustered.startswith("user writer on >change-me ")
    assert "+cluster|slots" in clustered
    assert "+select" in run("--url", "redis://nowhere/3", "doctor", "--acl", "worker").stdout


@pytest.mark.parametrize("kind", ["valkey", "plain", "cluster"])
def test_other_servers(server_of: Servers, namespace: str, kind: str) -> None:
    url = server_of(kind).url
    found = examined(url, "--namespace", namespace)
    assert found["rights"]["state"] == "ok"
    assert found["version"]["detail"].startswith("Valkey" if kind == "valkey" else "Redis")
    if kind != "valkey":
        assert found["search"]["state"] == ("ok" if kind == "cluster" else "limited")
    assert ("cluster of 3 primaries" in found["servers"]["detail"]) == (kind == "cluster")


def test_an_index_that_is_missing_or_empty(server: RealServer, namespace: str, on: Any) -> None:
    with HistoryStore(server.url, namespace=namespace, search="off") as store:
        store.append("c", user("x"))

    def search() -> dict[str, Any]:
        return examined(server.url, "--namespace", namespace)["search"]

    assert search()["fix"] == "redis-history reindex"
    with HistoryStore(server.url, namespace=namespace, language="german") as store:
        store.get("c")
    empty = "0 messages in the index (german), though there are conversations"
    wait_until(lambda: empty in search()["detail"], "the index to be built")
    assert on(*search()["fix"].split()[1:]).returncode == 0
    assert search()["state"] == "ok"
    assert "1 messages in the index (german)" in search()["detail"]


def test_no_private_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDIS_HISTORY_SERVER", "/no/such/server")
    found = examined(f"embedded://{tmp_path / 'data'}", status=1)
    for name, state in (("server", "problem"), ("private server", "limited")):
        assert found[name]["state"] == state
        assert found[name]["detail"].startswith("no server can be started")
        assert found[name]["fix"] == "pip install 'redis_history[embedded]' && redis-history embedded install"


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stores, "PATIENCE", RetryPolicy(deadline=0.1))
    found = examined(f"redis://127.0.0.1:{free_port()}", status=1)
    assert found["server"]["state"] == "problem"
    assert "--url embedded://" in found["server"]["fix"]
    assert "this package" in found, "the machine is checked without a server, too"
