"""docs/operations.md and docker-compose.yml, against each other and a real server."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_history import HistoryStore, user
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.notifications import merged_flags
from redis_history.backends.redis.rights import RIGHTS, patterns
from redis_history.errors import BackendError, BackendRefusedError, CapabilityError
from tests.conftest import drop_indexes
from tests.docs.pages import DOCS, ROOT, blocks, code, prose, rows, sections
from tests.support.servers import RealServer, wait_until

KEYS = Keyspace("support")
KEYS_OF_C = KEYS.conversation("c")
OPERATIONS = DOCS / "operations.md"
COMPOSE = ROOT / "docker-compose.yml"
[ACL] = [block.content.strip() for block in blocks(OPERATIONS) if block.language == "acl"]


def _command() -> dict[str, str]:
    """The options in the command of docker-compose.yml."""
    text = COMPOSE.read_text(encoding="utf-8")
    [listed] = re.findall(r"command:\n((?: +- .*\n)+)", text)
    words = [word.strip('"') for word in re.findall(r"- (.*)", listed)]
    assert words.pop(0) == "redis-server"
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}


def test_the_settings_of_docker_compose_are_those_of_the_page() -> None:
    documented = {
        code(row[0]): code(row[1]) for row in rows(sections(OPERATIONS)["The server"]) if row[0].startswith("`")
    }
    assert _command() == documented


def test_a_server_takes_the_settings_of_docker_compose(own_server: Callable[..., RealServer]) -> None:
    wanted = _command()
    with own_server(
        options=tuple(word for name, value in wanted.items() for word in (f"--{name}", value))
    ).client() as c:
        for name, value in wanted.items():
            assert sorted(c.config_get(name)[name]) == sorted(value)
    assert merged_flags(wanted["notify-keyspace-events"]) is None


def test_docker_compose_is_private_and_keeps_its_data() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    assert re.search(r"image: redis:8\.\d+", text)
    assert re.findall(r'- "(.*6379)"', text) == ["127.0.0.1:6379:6379"]
    assert "- redis-data:/data" in text
    assert re.search(r"^volumes:\n  redis-data:", text, re.MULTILINE)
    assert "healthcheck:" in text
    assert "`redis-data`" in prose(OPERATIONS)


def _yaml(text: str) -> Any:
    """The subset of YAML that docker-compose.yml is written in: maps by indent, lists, and scalars as text."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert "\t" not in text

    def scalar(word: str) -> Any:
        return json.loads(word) if word[:1] in ('"', "[") else word

    def read(indent: int) -> Any:
        found: Any = None
        while lines and (deep := len(lines[0]) - len(lines[0].lstrip())) >= indent:
            line = lines[0].strip()
            assert deep == indent, f"indented by {deep}, not by {indent}: {line}"
            del lines[0]
            if line.startswith("- "):
                found = [] if found is None else found
                found.append(scalar(line[2:]))
                continue
            match = re.fullmatch(r"([\w-]+):(?: (.+))?", line)
            assert match, f"neither a list's item nor a key: {line}"
            found = {} if found is None else found
            assert match[1] not in found, f"{match[1]} comes twice"
            inside = bool(lines) and len(lines[0]) - len(lines[0].lstrip()) > indent
            found[match[1]] = scalar(match[2]) if match[2] else read(indent + 2) if inside else None
        return found

    return read(0)


def test_docker_compose_has_the_structure_of_the_compose_specification() -> None:
    """With what is at hand everywhere; where there is the command itself, it is asked too."""
    found = _yaml(COMPOSE.read_text(encoding="utf-8"))
    assert set(found) == {"services", "volumes"}
    [service] = found["services"].values()
    kinds = {
        **dict.fromkeys(("command", "ports", "volumes"), list),
        **dict.fromkeys(("image", "restart", "stop_grace_period"), str),
        "healthcheck": dict,
    }
    assert {name: type(value) for name, value in service.items()} == kinds
    assert all(isinstance(item, str) for name in ("command", "ports", "volumes") for item in service[name])
    check = service["healthcheck"]
    assert check["test"][0] == "CMD-SHELL"
    assert int(check["retries"]) > 0
    for duration in (*(check[name] for name in ("interval", "timeout", "start_period")), service["stop_grace_period"]):
        assert re.fullmatch(r"\d+s", duration)
    assert service["restart"] in ("no", "always", "on-failure", "unless-stopped")
    assert {volume.partition(":")[0] for volume in service["volumes"]} == set(found["volumes"])
    if command := shutil.which("docker-compose"):
        subprocess.run([command, "--file", str(COMPOSE), "config", "-q"], check=True, timeout=60)


def _user(server: RealServer, rules: list[str]) -> str:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "support", "reset", *rules)
        client.execute_command("ACL", "LOG", "RESET")
        client.script_flush()
        client.flushall()
        drop_indexes(client, "support")
    return f"unix://support:change-me@{server.socket}"


def _denied(server: RealServer) -> set[str]:
    with server.client() as client:
        return {entry["object"].lower() for entry in client.acl_log()}


def _everything(server: RealServer, url: str, listening: bool) -> None:
    """All that a store does; subscriptions first, so that deletions find somebody who listens."""
    channel = b"__keyspace@0__:" + KEYS_OF_C.log

    def heard(count: int) -> bool:
        with server.client() as client:
            return not listening or client.pubsub_numsub(channel)[0][1] == client.pubsub_numpat() == count

    same = next(name for name in map(str, range(10_000)) if KEYS.conversation(name).registry == KEYS_OF_C.registry)
    with HistoryStore(url, namespace="support") as store, HistoryStore(url, namespace="support", ttl=0.05) as mortal:
        with store.subscribe("c") as subscription, store.subscribe_all() as every:
            wait_until(lambda: heard(1) or _denied(server), "the subscription")
            store.append_many("c", [user(str(n), id=str(n), timestamp="2026-01-31") for n in range(5)])
            assert subscription.get(timeout=10) is not None
            assert every.get(timeout=10) is not None
            messages = store.get("c")
            assert store.get("c", since="2026-01-01", before=messages[3].position) == messages[:3]
            assert store.get_message("c", "2") == messages[2]
            assert store.delete_messages("c", ["1", "3"]) == 2
            assert store.snapshot("c").message_count == 3
            store.update_conversation("c", title="t")
            store.update_message("c", user("new", id="2"))
            for through in ("0", "2"):
                store.compact("c", through=through, summary=user(id=f"s{through}", metadata={"is_summary": True}))
            assert len(store.get("c", include_archived=True)) == 5
            for through in ("2", "0"):
                store.expand("c", f"s{through}")
            store.restore("c", store.get("c")[:2])
            store.clear("c")
            mortal.append(same, user("its name stays until somebody lists"))
            wait_until(lambda: mortal.get(same) == [], "the end of a conversation")
            assert [conversation.conversation_id for conversation in store.list_conversations()] == ["c"]
            assert store.delete_conversation("c")
        wait_until(lambda: heard(0) or _denied(server), "the end of the subscription")
        _search(server, url, store)
        assert store.capabilities.backend == "redis"
    for durability in ("fsync", "replicas"):
        with HistoryStore(url, namespace="support", durability=durability) as durable:  # type: ignore[arg-type]
            durable.append("c", user("x"))
            durable.delete_conversation("c")


def _search(server: RealServer, url: str, store: HistoryStore) -> None:
    """With an index, also over long conversations, and through a change of its form."""
    with HistoryStore(url, namespace="support", search="require") as searching:
        searching.append_many("c", [user("word", id=str(n)) for n in range(1000)])
        searching.append("c", user("rare", id="one over what is removed at once"))
        for hits in (searching.search("c", "rare", context=1), searching.search_all("rare")):
            assert [hit.message.text for hit in hits] == ["rare"]
        assert searching.reindex().documents == 1001
    with HistoryStore(url, namespace="support", language="german") as german, server.client() as client:
        [former] = client.execute_command("FT._LIST")

        def moved() -> bool:
            german.search_all("rare")
            return former not in client.execute_command("FT._LIST") or bool(_denied(server))

        wait_until(moved, "the index of another form")
    assert store.clear("c") > 0


def test_the_access_rights_are_enough_and_none_too_many(own_server: Callable[..., RealServer]) -> None:
    server = own_server(
        tcp=True,
        options=("--notify-keyspace-events", "Kt", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"),
    )
    own_server(options=("--replicaof", "127.0.0.1", str(server.port)))
    with server.client() as client:
        wait_until(lambda: client.wait(1, 100) == 1, "the replica to follow")
    words = ACL.split()
    assert words[:2] == ["user", "support"]
    rules = words[2:]
    _everything(server, _user(server, rules), listening=True)
    assert _denied(server) == set()

    allowed = [rule for rule in rules if rule.startswith("+")]
    assert len(allowed) > 20
    for rule in allowed:
        url = _user(server, [other for other in rules if other != rule])
        with contextlib.suppress(BackendError, CapabilityError):
            _everything(server, url, listening=not rule.endswith("subscribe"))
        wait_until(lambda: _denied(server), f"anything that needs {rule}")
        # Who cannot see whether notifications are on tries to listen to what is published as well.
        tried = "rh:{support:" if rule == "+config|get" else "no channel"
        assert {one for one in _denied(server) if not one.startswith(tried)} == {rule.removeprefix("+")}


def test_the_doctor_looks_for_these_rights() -> None:
    """For those that the test above has shown to be needed; the others are of a cluster."""
    looked_for = {command.split()[0] for purpose, commands in RIGHTS.items() for command in commands}
    allowed = {rule.removeprefix("+") for rule in ACL.split() if rule.startswith("+")}
    assert looked_for - {command.split()[0] for command in RIGHTS["clustering"]} == allowed
    named = prose(DOCS / "how-to" / "cluster.md")
    assert all(f"`+{command.split()[0]}`" in named for command in RIGHTS["clustering"])
    assert set(patterns(KEYS, 0)) == {rule for rule in ACL.split() if rule[0] in "~&"}


def test_the_access_rights_end_at_the_namespace(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    url = _user(server, ACL.split()[2:])
    for namespace in ("support2", "other", "support:x"):
        with HistoryStore(server.url, namespace=namespace) as others:
            others.append("c", user("x"))
        with redis.Redis.from_url(url) as client, pytest.raises(redis.ResponseError, match=r"(?i)permission"):
            client.execute_command("FT.SEARCH", Keyspace(namespace).index, "*")
        with HistoryStore(url, namespace=namespace) as store:
            with pytest.raises(BackendRefusedError):
                store.append("c", user("x"))
            with pytest.raises(BackendRefusedError):
                store.get("c")


def test_the_connections_of_a_process(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with server.client() as client, HistoryStore(f"{server.url}?client_name=counted") as store:

        def ours() -> list[dict[str, str]]:
            return [line for line in client.client_list() if line["name"] == "counted"]

        store.append("c", user("x"))
        assert len(ours()) == 1
        subscriptions = [store.subscribe(str(number)) for number in range(10)]
        wait_until(lambda: len(client.pubsub_channels("__keyspace@0__:*")) == 10, "the subscriptions")
        for number in range(10):
            store.append(str(number), user("x"))
        assert all(subscription.get(timeout=10) for subscription in subscriptions)
        assert 2 <= len(ours()) <= 3, "one to three, says the page"
        wait_until(
            lambda: all(line["lib-name"].startswith("redis-py(redis_history_v") for line in ours()),
            "the connections to have the library's name",
        )
    assert "`lib-name=redis-py(redis_history_v…)`" in prose(OPERATIONS)


def test_the_log_texts_are_those_of_the_code() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "redis_history").rglob("*.py"))
    found = rows(sections(OPERATIONS)["Logging"])
    assert len(found) > 5
    for level, begins, _ in found:
        text = code(begins)
        assert text is not None
        calls = re.findall(r"_logger\.(\w+)\(\s*f?\"([^\"]*)", source)
        levels = {"exception": "ERROR"}
        assert level in {levels.get(name, name.upper()) for name, logged in calls if text in logged}, text
