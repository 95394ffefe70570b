"""docs/operations.md and docker-compose.yml, against each other and a real server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from redis_history import HistoryStore, user
from redis_history.backends.redis.notifications import merged_flags
from tests.docs.pages import DOCS, ROOT, code, prose, rows, sections
from tests.support.servers import RealServer, wait_until

OPERATIONS = DOCS / "operations.md"
COMPOSE = ROOT / "docker-compose.yml"


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
