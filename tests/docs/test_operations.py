"""docs/operations.md and docker-compose.yml, against each other and a real server."""

import contextlib
import io
import itertools
import random
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redis_history import HistoryStore, Reset, user
from redis_history.store.lanes import EXCHANGES, Kind
from redis_history.store.server_info import merged_flags
from tests.docs.pages import DOCS, ROOT, blocks, code, rows, sections
from tests.support.servers import Start, wait_until

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


def test_a_server_takes_the_settings_of_docker_compose(own_server: Start) -> None:
    wanted = _command()
    with own_server(
        options=tuple(word for name, value in wanted.items() for word in (f"--{name}", value))
    ).client() as c:
        for name, value in wanted.items():
            assert sorted(c.config_get(name)[name]) == sorted(value)
    assert merged_flags(wanted["notify-keyspace-events"]) is None


#: The kinds of calls as the page names them.
NAMES: dict[Kind, str] = {
    "write": "small writes",
    "read": "reads",
    "large": "requests of 64 kB or more",
    "confirmed": "writes with a confirmation",
}


def test_the_connections_of_a_process(own_server: Start) -> None:
    server = own_server()
    with server.client() as client, HistoryStore(f"{server.url}?client_name=counted") as store:

        def ours() -> list[dict[str, str]]:
            return [line for line in client.client_list() if line["name"] == "counted"]

        most = sum(EXCHANGES.values())
        row = sections(OPERATIONS)["Connections"]
        assert f"at most {most} to each server" in row
        for kind in EXCHANGES:
            assert f"{EXCHANGES[kind]} for {NAMES[kind]}" in row
        with ThreadPoolExecutor(32) as threads:
            list(threads.map(lambda number: store.append(str(number), user("x")), range(300)))
        assert 2 <= len(ours()) <= most
        subscriptions = [store.subscribe(str(number)) for number in range(10)]
        wait_until(lambda: len(client.pubsub_channels("__keyspace@0__:*")) == 10, "the subscriptions")
        for number in range(10):
            store.append(str(number), user("x"))
        assert all(subscription.get(timeout=10) for subscription in subscriptions)
        assert 3 <= len(ours()) <= most + 1
        wait_until(
            lambda: all(line["lib-name"].startswith("redis-py(redis_history_v") for line in ours()),
            "the connections to have the library's name",
        )


_WORDS = ["".join(random.Random(n).choices("abcdefghijklmnoprstuvw", k=2 + n % 8)) for n in range(5_000)]
_FREQUENT = list(itertools.accumulate(1 / (n + 1) for n in range(len(_WORDS))))


def used_memory(client: Any) -> int:
    """Return the memory without the buffers of the store's connections, which it reopens, and garbage of scripts."""
    client.eval("collectgarbage()", 0)
    client.client_kill_filter(_type="normal", skipme=True)
    memory = client.info("memory")
    return int(memory["used_memory"] - memory["mem_aof_buffer"])  # what waits for a slow disk


@pytest.mark.parametrize("search", ["off", "require"])
@pytest.mark.parametrize(
    ("conversations", "messages", "words"),
    [(20, 40, 25), *(pytest.param(*one, marks=pytest.mark.full) for one in ((1, 400, 100), (4, 40, 500)))],
)
def test_the_formula_for_memory(own_server: Start, conversations: int, messages: int, words: int, search: Any) -> None:
    [formula] = [block.content for block in blocks(OPERATIONS) if "def bytes_of" in block.content]
    session: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(formula, session)
    chance = random.Random(words)
    server = own_server(options=("--hash-max-listpack-value", "512"))
    with HistoryStore(server.url, search=search) as store, server.client() as client:
        for start in range(0, len(_WORDS), 500):  # the words themselves are in an index once
            store.append("warm", user(" ".join(_WORDS[start : start + 500])))
        before = used_memory(client)
        characters = 0
        for number in range(conversations * messages):
            text = " ".join(chance.choices(_WORDS, cum_weights=_FREQUENT, k=words))
            characters += len(text)
            store.append(f"c{number % conversations}", user(text))
        taken = (used_memory(client) - before) / conversations
    told = session["bytes_of"](messages, characters // (conversations * messages), index=search == "require")
    assert taken == pytest.approx(told, rel=1 / 3)


def test_the_figures_to_monitor_exist(own_server: Start) -> None:
    server = own_server(options=("--appendonly", "yes"))
    names = {
        name
        for row in rows(sections(OPERATIONS)["Monitoring"])
        for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", row[0])
    }
    assert len(names) > 10
    with HistoryStore(server.url, namespace="support") as store, server.client() as client:
        store.append("c", user("x"))
        told = set(client.info("all"))
        told |= set(map(str, client.ft("rh2:support").info()))
    assert names - told == set()


@pytest.mark.proves("failover")
def test_a_snapshot_is_restored(own_server: Start) -> None:
    server = own_server(options=("--appendonly", "yes"))
    with HistoryStore(server.url) as store, server.client() as client:
        store.append("c", user("saved", id="1"))
        client.save()
        saved = (server.folder / "dump.rdb").read_bytes()
        lost = store.append("c", user("not saved", id="2")).message
        cursor = store.snapshot("c").cursor
        server.kill()
        shutil.rmtree(server.folder / "appendonlydir")
        (server.folder / "dump.rdb").write_bytes(saved)
        options, server.options = server.options, ("--appendonly", "no")
        server.start()
        client.config_set("appendonly", "yes")
        wait_until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, "the append-only file")
        server.kill(signal.SIGTERM)
        server.options = options
        server.start()

        assert [message.text for message in store.get("c")] == ["saved"]
        with store.subscribe("c", after=cursor) as changes:
            event = changes.get(timeout=10)
            assert isinstance(event, Reset)
            assert event.reason == "server_rewound"
        assert not store.append("c", lost).duplicate
        assert store.append("c", user("saved", id="1")).duplicate
        wait_until(lambda: len(store.search_all("saved")) == 2, "the index")
