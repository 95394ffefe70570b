"""docs/how-to/security.md, against real servers."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import redis

from redis_history import Compressor, Conversation, HistoryStore, Usage, user
from redis_history.cli.doctor.rights import RIGHTS, ROLES, Role, acl_line
from redis_history.errors import BackendRefusedError
from redis_history.integrations.importers import export_messages
from redis_history.store.operations import scripts
from redis_history.store.operations.keys import Keyspace
from tests.docs.pages import DOCS, blocks, code, prose, rows, sections
from tests.support.servers import RealServer, wait_until

KEYS = Keyspace("support")
CHANNEL = b"__keyspace@0__:" + KEYS.conversation("c").log
SECURITY = DOCS / "how-to" / "security.md"
[DOCUMENTED] = (block.content for block in blocks(SECURITY) if block.language == "acl")
RULES = {role: acl_line(KEYS, 0, role, cluster=False).split()[2:] for role in ROLES}
KINDS = ["redis", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("redis8", "valkey"))]
#: Where a store asks for a right and does without: to see the settings, and, for a tenant, to make the index.
DISPENSABLE = {"config|get", "ft.create"}
#: The scripts of roles with fewer rights than a tenant.
READING = ("changes", "fetch", "find", "head", "page", "page_archived", "reply")
SCRIPTS: dict[str, tuple[str, ...]] = {
    "reader": READING,
    "worker": (*READING, "compact", "mark", "run"),
    "writer": tuple(name for name in scripts.SCRIPTS if name not in ("documents", "search")),
}


class Site:
    """A server with a user for each role in the namespace `support`."""

    def __init__(self, server: RealServer) -> None:
        self.server = server
        self.searches = server.binary.search
        self.admin = server.client()
        for role, rules in RULES.items():
            if not self.searches:  # a server does not know the commands of a module that it has not loaded
                rules = [rule for rule in rules if not rule.startswith("+ft.")]
            self.admin.execute_command("ACL", "SETUSER", role, "reset", *rules)

    def url(self, role: str) -> str:
        return f"unix://{role}:change-me@{self.server.socket}"

    def store(self, role: str, **options: Any) -> HistoryStore:
        """The store of a user. "default" may do everything."""
        if role not in ("tenant", "operator"):
            options["search"] = "off"
        url = self.server.url if role == "default" else self.url(role)
        return HistoryStore(url, namespace="support", **options)

    def denied(self) -> set[str]:
        return {entry["object"].lower() for entry in self.admin.acl_log()} - DISPENSABLE

    @contextlib.contextmanager
    def counting(self) -> Iterator[set[str]]:
        """The commands that anybody runs in the meantime, in scripts too."""
        used: set[str] = set()
        self.admin.config_resetstat()
        yield used
        for name, one in self.admin.info("commandstats").items():
            if one["calls"]:
                used.add(name.removeprefix("cmdstat_").lower())


@pytest.fixture
def make_site(own_server: Callable[..., RealServer]) -> Iterator[Callable[[str], Site]]:
    made: list[Site] = []

    def make(kind: str) -> Site:
        made.append(Site(own_server(kind, options=("--notify-keyspace-events", "Kl"))))
        return made[-1]

    yield make
    for site in made:
        site.admin.close()


def reads(site: Site, role: str) -> None:
    with site.store("default") as others:
        others.append_many("c", [user(f"word {n}", id=str(n), timestamp="2026-01-31") for n in range(5)])
        others.compact("c", through="1", summary="two words")
        others.append("large", user("x" * 40_000))
    with site.store(role) as store:
        assert len(store.get("large")[0].text) == 40_000
        messages = store.get("c")
        assert store.get("c", since="2026-01-01", before=messages[3].position) == messages[:3]
        assert len(store.get("c", include_archived=True)) == 6
        assert store.get_message("c", "1") is not None
        assert list(store.iter("c")) == store.snapshot("c").messages == messages
        assert [hit.message.id for hit in store.search("c", '"word 4"')] == ["4"]
        assert [one.conversation_id for one in store.list_conversations()] == ["large", "c"]
        assert store.list_conversations(user_id=7) == []
        assert store.get_conversation("c") is not None
        assert store.get_run("c") is None
        assert store.usage(user_id=7) == Usage()
        assert store.usage_by("day") == {}
        assert export_messages(store, site.server.folder / "exported").messages == 7
        assert store.capabilities.backend in ("redis", "valkey")


def follows(site: Site, role: str) -> None:
    def heard(count: int) -> bool:
        return site.admin.pubsub_numsub(CHANNEL)[0][1] == count and (site.admin.pubsub_numpat() > 0) == (count > 0)

    with site.store("default") as others, site.store(role) as store:
        others.append("c", user("before"))
        with store.subscribe("c") as subscription, store.subscribe_all() as every:
            wait_until(lambda: heard(1), "the subscriptions")
            others.append("c", user("live"))
            assert subscription.get(timeout=10) is not None
            assert every.get(timeout=10) is not None
            with others.stream("c") as reply:
                reply.write("a word")
                wait_until(lambda: store.get("c")[-1].text == "a word", "what is written")
        wait_until(lambda: heard(0), "the end of the subscriptions")
        with store.subscribe("never written"):
            pass


def writes(site: Site, role: str) -> None:
    with site.store(role) as store, site.store(role, ttl=0.05) as mortal, site.store(role, max_messages=5) as capped:
        store.create_conversation(Conversation("w", user_id=7, agent_name="a"))
        store.append_many("w", [user(str(n), id=str(n)) for n in range(9)])
        store.append("w", user("0", id="0"))
        store.update_message("w", user("new" * 20_000, id="2"))
        store.fork("w", "f")
        assert store.delete_conversation("f")
        assert store.delete_messages("w", ["1"]) == 1
        store.update_conversation("w", title="t", user_id=8)
        assert [one.conversation_id for one in store.list_conversations(user_id=8)] == ["w"]
        with store.stream("w") as reply:
            reply.write("a")
        store.compact("w", through="3", summary=user("s", id="s", metadata={"is_summary": True}))
        store.expand("w", "s")
        store.restore("w", store.get("w")[:3])
        store.erase("w", ["0"])
        with store.run("w") as run:
            run.append(user("x"))
            assert store.stop_run("w")
        capped.append("w", user("x"))
        assert store.clear("w")
        mortal.append("m", user("its name stays until somebody lists"))
        wait_until(lambda: mortal.get("m") == [], "the end of a conversation")
        assert "m" not in [one.conversation_id for one in store.list_conversations()]
        with store.subscribe("w"):
            assert store.delete_conversation("w")


def compacts(site: Site, role: str) -> None:
    with site.store("default", ttl=600) as others:
        for name in ("k", "l"):
            others.append_many(name, [user(str(n), id=str(n)) for n in range(40)])
    with site.store(role) as store:
        assert Compressor(store, lambda messages, previous: "all", max_messages=9).run_once().compressed == 2
        store.compact("k", through=store.get("k")[2], summary="x" * 40_000)


def searches(site: Site, role: str) -> None:
    """With the index that an operator made, over messages that a writer added without it."""
    if not site.searches:
        return
    with site.store("default") as others:
        others.append_many("s", [user("a word"), user("another one")])
    if role == "tenant":
        with site.store(role) as store:
            assert store.capabilities.search == "client", "there is no index yet"
            assert [hit.message.text for hit in store.search("s", "word")] == ["a word"]
    with site.store("operator") as store:
        store.reindex()
    with site.store("writer") as writer, site.store(role) as store:
        store.append("s", user("the same word", id="x"))
        writer.append("s", user("a word of a writer"))
        assert store.capabilities.search == "server"
        expected = {"a word", "the same word", "a word of a writer"}
        assert {hit.message.text for hit in store.search("s", "word")} == expected
        assert store.search_all("word", context=1)
        store.append_many("s", [user("word", id=str(n)) for n in range(1000)])
        store.delete_messages("s", ["x"])
        assert store.clear("s")  # more than one step removes


def indexes(site: Site, role: str) -> None:
    if not site.searches:
        return
    with site.store(role) as store:
        store.append("i", user("word"))
        assert store.reindex().documents > 0
    with site.store(role, language="german") as german:
        [former] = site.admin.execute_command("FT._LIST")
        german.search_all("word")
        wait_until(
            lambda: german.search_all("word") and former not in site.admin.execute_command("FT._LIST"), "a change"
        )


WORK = {
    "reading": reads,
    "writing": writes,
    "compacting": compacts,
    "following": follows,
    "searching": searches,
    "indexing": indexes,
}


def commands(*purposes: str) -> set[str]:
    return {command.split()[0] for purpose in purposes for command in RIGHTS[purpose]}


def in_scripts(names: Iterable[str]) -> set[str]:
    """The commands in the source of scripts."""
    found = set()
    for name in names:
        for command, sub in re.findall(r"call\('([A-Z]+)'(?:, '([A-Z]+)')?", scripts.SCRIPTS[name].source.decode()):
            found.add(f"{command}|{sub}".lower() if command == "PUBSUB" else command.lower())
    return found


@pytest.mark.parametrize("role", ["reader", "writer", "worker", "tenant", "operator"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.proves("acl")
@pytest.mark.full
def test_a_role_has_the_rights_that_it_needs(make_site: Callable[[str], Site], kind: str, role: Role) -> None:
    site = make_site(kind)
    used: set[str] = set()  # by others, too, who write while this role reads
    for purpose in (one for one in WORK if one in ROLES[role]):
        with site.counting() as found:
            WORK[purpose](site, role)
        used |= found
        assert site.denied() == set(), purpose
    rare = in_scripts(SCRIPTS.get(role, SCRIPTS["writer"]))
    allowed = {rule[1:] for rule in RULES[role] if rule[0] == "+"} - commands("confirming")
    if not site.searches:
        allowed -= commands("searching", "indexing") - commands("writing")
    assert allowed - used - rare == set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.proves("acl")
def test_a_writer_and_a_worker_change_messages_that_have_search_documents(
    make_site: Callable[[str], Site], kind: str
) -> None:
    site = make_site(kind)
    with site.store("operator") as others, site.store("writer") as writer, site.store("worker") as worker:
        for name in ("few", "many"):
            others.append_many(name, [user("word", id=str(n)) for n in range(9 if name == "few" else 900)])
            writer.update_message(name, user("another word", id="0"))
            assert writer.delete_messages(name, ["1"]) == 1
            for through in ("3", "5"):
                worker.compact(name, through=through, summary="a summary")
            writer.expand(name, writer.get(name)[0].id)
            assert {hit.message.id for hit in others.search(name, "another")} == {"0"}
            assert writer.delete_conversation(name)
    assert site.denied() == set()
    assert not site.admin.keys("rhd2:*"), "no content is left"


@pytest.mark.parametrize("role", SCRIPTS)
def test_each_command_of_a_script_is_a_right_of_its_role(role: Role) -> None:
    """A script checks rights only when it comes to a command, which no test may do."""
    # Scripts include functions that they do not call: those that remove replies, change turns, or ask whether a slot
    # moves.
    uncalled = {
        "reader": {"hset", "hdel", "unlink", "zadd", "zrem", "publish", "pubsub|numsub"},
        "worker": {"pubsub|numsub"},
    }.get(role, set())
    assert in_scripts(SCRIPTS[role]) - commands(*ROLES[role]) == uncalled
    assert in_scripts(scripts.SCRIPTS) - commands(*ROLES["tenant"]) == set()


@pytest.mark.proves("acl")
def test_writes_are_confirmed_by_a_replica(own_server: Callable[..., RealServer]) -> None:
    server = own_server(tcp=True, options=("--repl-diskless-sync-delay", "0"))
    own_server(options=("--replicaof", "127.0.0.1", str(server.port)))
    site = Site(server)
    wait_until(lambda: site.admin.wait(1, 100) == 1, "the replica to follow")
    with site.store("writer", durability="replicas") as store:
        store.append("c", user("x"))
    assert site.denied() == set()
    site.admin.close()


@pytest.mark.parametrize("role", RULES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.proves("acl")
def test_what_no_role_may_do(make_site: Callable[[str], Site], kind: str, role: str) -> None:
    site = make_site(kind)
    others = [HistoryStore(site.server.url, namespace=name) for name in ("other", "support2", "support:x")]
    for other in others:
        other.append("c", user("a secret of others"))
    refused: list[tuple[Any, ...]] = [
        ("CONFIG", "GET", "requirepass"),
        ("CONFIG", "GET", "*"),
        ("CONFIG", "SET", "requirepass", ""),
        ("ACL", "LIST"),
        ("ACL", "GETUSER", "default"),
        ("KEYS", "*"),
        ("FLUSHALL",),
        ("MONITOR",),
        ("PSUBSCRIBE", "*"),
        ("SUBSCRIBE", b"__keyspace@0__:" + Keyspace("other").conversation("c").log),
        ("MIGRATE", "127.0.0.1", 1, "", 0, 1, "KEYS", "a"),
    ]
    for name in ("other", "support2", "support:x"):
        keys = Keyspace(name).conversation("c")
        for key in (keys.messages, keys.state, keys.log):
            script = "return redis.call('ZRANGE', ARGV[1], 0, -1)"
            refused += [("ZRANGE", key, 0, -1), ("HMGET", key, "a"), ("EVAL", script, 0, key), ("EVAL", "", 1, key)]
        if site.searches:
            refused.append(("FT.SEARCH", Keyspace(name).index, "*"))
    if role != "operator":
        refused.append(("SCAN", 0))
        if site.searches:
            mine = KEYS.index + b":mine"
            refused += [
                ("FT.CREATE", mine, "PREFIX", 1, Keyspace("other").documents, "SCHEMA", "text", "TEXT"),
                ("FT.CREATE", KEYS.index, "SCHEMA", "text", "TEXT"),
                ("FT.ALIASADD", mine, Keyspace("other").index),
                ("FT.ALIASUPDATE", KEYS.index, Keyspace("other").index),
                ("FT.DROPINDEX", KEYS.index),
                ("FT.AGGREGATE", Keyspace("other").index, "*"),
                ("FT._LIST",),
            ]
    with redis.Redis.from_url(site.url(role), single_connection_client=True) as client:
        for command in refused:
            with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
                client.execute_command(*command)
    for other in others:
        with HistoryStore(site.url(role), namespace=other.namespace, search="off") as store:
            with pytest.raises(BackendRefusedError):
                store.get("c")
            with pytest.raises(BackendRefusedError):
                store.append("c", user("x"))
        other.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.proves("acl")
def test_a_reader_changes_nothing(make_site: Callable[[str], Site], kind: str) -> None:
    site = make_site(kind)
    reads(site, "reader")
    with site.store("reader") as store:
        before = {key: site.admin.dump(key) for key in site.admin.keys("*")}
        for write in (
            lambda: store.append("c", user("x")),
            lambda: store.append("new", user("x")),
            lambda: store.update_message("c", user("x", id="4")),
            lambda: store.update_conversation("c", title="t"),
            lambda: store.merge_metadata("c", {"k": 1}),
            lambda: store.delete_messages("c", ["4"]),
            lambda: store.restore("c", [user("x")]),
            lambda: store.compact("c", through="3", summary="x"),
            lambda: store.expand("c", store.get("c")[0].id),
            lambda: store.clear("c"),
            lambda: store.erase("c", ["4"]),
            lambda: store.stream("c").__enter__(),
            lambda: store.run("c").__enter__(),
            lambda: store.delete_conversation("c"),
        ):
            with pytest.raises(BackendRefusedError):
                write()
            assert {key: site.admin.dump(key) for key in site.admin.keys("*")} == before
        with site.store("writer", ttl=0.05) as brief:
            brief.append("brief", user("x"))
            wait_until(lambda: brief.get_conversation("brief") is None, "its end")
            assert [one.conversation_id for one in store.list_conversations()] == ["large", "c"]
            counted = store.count_conversations()
            brief.list_conversations()
            assert (counted, store.count_conversations()) == (3, 2)


def test_the_page_has_the_line_of_a_role_and_the_names_of_all() -> None:
    assert DOCUMENTED.strip() == acl_line(KEYS, 0, "reader", cluster=False)
    assert [str(code(row[0])) for row in rows(sections(SECURITY)["Access rights"])] == list(ROLES)
    assert not any("+config|get" in rules for rules in RULES.values())
    assert "+select" in acl_line(KEYS, 3, "reader", cluster=False)
    assert "&__keyspace@3__:rh2:{support:*" in acl_line(KEYS, 3, "reader", cluster=False)
    named = prose(DOCS / "how-to" / "cluster.md")
    assert all(f"`+{command}`" in named for command in (*commands("clustering"), *commands("sharding")))
