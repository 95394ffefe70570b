"""Each node of a cluster searches its own conversations: while slots move, after a failover, and all together."""

import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from msgspec.structs import force_setattr, replace
from redis.crc import key_slot

from redis_history import HistoryStore, RetryPolicy, user
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.search import Search
from redis_history.store.operations.settings import SearchIndex, Searching, Settings
from redis_history.store.search.query import parse_query
from tests.conftest import Servers
from tests.support.cluster import RealCluster
from tests.support.servers import RealServer, wait_until, wait_until_replicated

PATIENT = RetryPolicy(deadline=30.0, first_wait=0.005, longest_wait=0.05)
NAMES = [f"c{number}" for number in range(12)]
WORDS = ["harbour", "lantern", "marble", "orchard", "pepper", "quarry", "ribbon", "saddle", "timber", "velvet"]


def texts(name: str, count: int = 40) -> list[str]:
    chance = random.Random(name)
    return [f"{name} {' '.join(chance.choices(WORDS, k=6))}" for _ in range(count)]


def fill(store: HistoryStore) -> None:
    for name in NAMES:
        store.append_many(name, [user(text, id=f"{name}-{n}") for n, text in enumerate(texts(name))])


def expected(word: str, names: list[str] = NAMES) -> set[str]:
    return {f"{name}-{n}" for name in names for n, text in enumerate(texts(name)) if word in text.split()}


def found(store: HistoryStore, word: str, name: str | None = None) -> set[str]:
    options: dict[str, Any] = {"limit": 1000, "token_cap": None}
    hits = store.search_all(word, **options) if name is None else store.search(name, word, **options)
    return {hit.message.id for hit in hits}


@pytest.mark.proves("cluster")
def test_all_conversations_are_ranked_as_on_one_server(server_of: Servers, namespace: str) -> None:
    ranked, asked = [], []
    for kind in ("redis", "cluster"):
        server: Any = server_of(kind)
        with HistoryStore(server.url, namespace=namespace, search="require") as store:
            fill(store)
            assert found(store, "velvet") == expected("velvet")
            before = _searches(server)
            hits = store.search_all("marble velvet saddle", limit=30, token_cap=None)
            asked.append([later - earlier for earlier, later in zip(before, _searches(server), strict=True)])
            ranked.append([hit.message.id for hit in hits])
            done = store.reindex()
            assert (done.documents, done.removed) == (len(NAMES) * 40, 0)
    assert len(set(ranked[0]) & set(ranked[1])) >= 25
    assert asked[1] == asked[0] * 3, "each node is asked once"


def _searches(server: Any) -> list[int]:
    """The number of FT.SEARCH that each node has executed."""
    stats = [node.watcher.info("commandstats") for node in getattr(server, "nodes", [server])]
    return [one.get("cmdstat_FT.SEARCH", {"calls": 0})["calls"] for one in stats]


@pytest.mark.proves("cluster")
@pytest.mark.full
def test_the_slot_of_an_index_leaves_its_node_and_comes_back(own_cluster: RealCluster, namespace: str) -> None:
    with HistoryStore(own_cluster.url, namespace=namespace, retry=PATIENT) as store:
        fill(store)
        assert found(store, "velvet") == expected("velvet")
        node = own_cluster.nodes[0]
        [name] = [one for one in node.watcher.execute_command("FT._LIST") if namespace.encode() in one]
        slot = int(key_slot(name))
        for target in (own_cluster.another(slot), node):
            own_cluster.move(slot, target)
            for one in NAMES:
                assert found(store, "velvet", one) == expected("velvet", [one])
            with HistoryStore(own_cluster.url, namespace=namespace, retry=PATIENT) as other:
                for each in (store, other):
                    assert found(each, "velvet") == expected("velvet")
        left = [one for one in node.watcher.execute_command("FT._LIST") if namespace.encode() in one]
        assert len(left) == 1, "a node has one index"


@pytest.mark.proves("cluster")
@pytest.mark.full
def test_searches_while_a_slot_moves(own_cluster: RealCluster, namespace: str) -> None:
    slot = int(key_slot(Keyspace(namespace).conversation("c0").state))
    target = own_cluster.another(slot)
    with HistoryStore(own_cluster.url, namespace=namespace, retry=PATIENT) as store:
        fill(store)
        force_setattr(store._options, "search_wait", 0.1)  # seconds until `search_all` gives up
        stored = _documents(own_cluster, namespace)
        source = own_cluster.begin_migration(slot, target)
        for step in range(3):
            for name in NAMES[:3]:
                assert found(store, "velvet", name) == expected("velvet", [name])
            assert _documents(own_cluster, namespace) >= stored, "a search destroys no documents"
            store.append("c0", user("while it moves", id=f"moving {step}"))
            if step == 0:
                assert found(store, "velvet") == expected("velvet"), "read and ranked by the store"
                _move_some(own_cluster, slot, source, target, documents=True)
        _move_some(own_cluster, slot, source, target, documents=False)
        assert found(store, "velvet", "c0") == expected("velvet", ["c0"])
        own_cluster.move_keys(slot, source, target)  # raises BUSYKEY if the search has made a document that was to come
        own_cluster.end_migration(slot, target)
        for name in NAMES:
            assert found(store, "velvet", name) == expected("velvet", [name])
        assert found(store, "velvet") == expected("velvet")
        with HistoryStore(own_cluster.url, namespace=namespace, retry=PATIENT) as other:
            assert found(other, "marble") == expected("marble")


#: By the conversation, what takes its message "secret" away, or the text of it.
REMOVALS: dict[str, Callable[[HistoryStore], Any]] = {
    "erase": lambda store: store.erase("erase", ["secret"]),
    "update": lambda store: store.update_message("update", user("other", id="secret")),
    "restore": lambda store: store.restore("restore", [user("new")]),
    "cap": lambda store: store.append("cap", user("new")),
    "compact": lambda store: store.compact("compact", through="more", summary="all"),
    "expand": lambda store: store.expand("expand", "secret"),
}


@pytest.mark.proves("cluster")
@pytest.mark.full
def test_no_document_stays_behind_in_a_slot_that_moves(own_cluster: RealCluster, namespace: str) -> None:
    options: dict[str, Any] = {"namespace": namespace, "retry": PATIENT, "max_messages": 2}
    with HistoryStore(own_cluster.url, **options) as store, ThreadPoolExecutor() as pool:
        for name, remove in REMOVALS.items():
            secret = user("a secret word", id="secret")
            if name in ("compact", "expand"):
                store.append_many(name, [user("first", id="first"), user("more", id="more")])
                store.compact(name, through="first", summary=replace(secret, metadata={"is_summary": True}))
            else:
                store.append_many(name, [secret, user("more")])
            slot = int(key_slot(Keyspace(namespace).conversation(name).state))
            target = own_cluster.another(slot)
            source = own_cluster.begin_migration(slot, target)
            _move_some(own_cluster, slot, source, target, documents=False)
            target.watcher.config_resetstat()
            done = pool.submit(remove, store)
            wait_until(partial(_waits, done, target), "the call to wait")
            own_cluster.move_keys(slot, source, target)
            own_cluster.end_migration(slot, target)
            done.result()
            for key in target.watcher.scan_iter(match=Keyspace(namespace).patterns[1]):
                assert b"a secret word" not in target.watcher.hvals(key), key


def _waits(done: Future[Any], target: RealServer) -> bool:
    return done.done() or "errorstat_TRYAGAIN" in target.watcher.info("errorstats")


def _documents(cluster: RealCluster, namespace: str) -> int:
    """The number of documents on all nodes."""
    pattern, keys = Keyspace(namespace).patterns[1], set()
    for node in cluster.nodes:
        with node.client() as client:
            keys.update(client.scan_iter(match=pattern, count=1000))
    return len(keys)


def _move_some(cluster: RealCluster, slot: int, source: Any, target: Any, *, documents: bool) -> None:
    """Some documents, or everything but documents."""
    with source.client() as client:
        keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10_000)
        moved = [key for key in keys if (key[:4] == b"rhd2") == documents][: 60 if documents else None]
        client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *moved)


@pytest.mark.proves("failover")
@pytest.mark.full
def test_a_replica_searches_after_a_failover(own_cluster: RealCluster, namespace: str) -> None:
    primary = own_cluster.owner(int(key_slot(Keyspace(namespace).conversation("c0").state)))
    replica = own_cluster.add_replica(primary)
    with HistoryStore(own_cluster.url, namespace=namespace, retry=PATIENT) as store:
        fill(store)
        wait_until_replicated(primary, replica)
        primary.kill()
        own_cluster.run(replica, "FAILOVER", "TAKEOVER")
        wait_until(lambda: found(store, "velvet", "c0") == expected("velvet", ["c0"]), "the replica to search")
        assert found(store, "velvet") == expected("velvet")
        store.append("c0", user("velvet again", id="again"))
        assert "again" in found(store, "velvet")


#: The answers of a server about a conversation: its counters, documents, matches, and its counters again. In order: the
#: generation of its documents, messages, archived messages, streaming replies, unmarked moves.
ANSWERS = {
    "as many documents as messages": ([b"g", b"2", None, None, None], 2, [b"g", b"2", None, None, None], 1),
    "each counted twice": ([b"g", b"2", None, None, None], 4, [b"g", b"2", None, None, None], 2),
    "a message that was appended meanwhile": ([b"g", b"2", None, None, None], 3, [b"g", b"3", None, None, None], 1),
    "a streaming reply": ([b"g", b"3", None, b"r" * 33, None], 2, [b"g", b"3", None, b"r" * 33, None], 1),
    "a document is missing": ([b"g", b"3", None, None, None], 2, [b"g", b"3", None, None, None], None),
    "another conversation": ([b"g", b"2", None, None, None], 3, [b"h", b"3", None, None, None], None),
}


@pytest.mark.parametrize(("before", "documents", "after", "times"), ANSWERS.values(), ids=list(ANSWERS))
def test_documents_are_counted_without_a_script(before: Any, documents: int, after: Any, times: int | None) -> None:
    """As in a cluster of Redis 8, after a slot has moved or while another process writes."""
    keyspace = Keyspace("n")
    index = SearchIndex(Searching(), keyspace, cluster=True)
    index.works, index.settled, index.scripts = True, True, False
    steps = Search("c", parse_query("word1", "english")).steps(Settings(keyspace, 1000, index=index))
    next(steps)
    steps.send(before)
    prefix = keyspace.documents_of("c", b"g")
    # The documents, the matches of the word, and none of the questions.
    steps.send([[documents], [documents, prefix + b"1", b"0.5", prefix + b"2", b"0.25"], [0]])
    with pytest.raises(StopIteration) as end:
        steps.send(after)
    found = end.value.value
    if times is None:
        assert found is None
    else:
        assert found.matches[0].total == documents // times
        assert found.matches[0].scores == {("c", b"g"): {1: 0.5, 2: 0.25}}


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_servers_whose_scripts_may_not_search(server_of: Servers, namespace: str, kind: str) -> None:
    """As in a cluster of Redis 8, where a node asks the others."""
    embed = lambda texts: [[float(len(text)), 1.0] for text in texts]  # noqa: E731
    with HistoryStore(server_of(kind).url, namespace=namespace, embedder=embed, vectors=2) as store:
        fill(store)
        by_script = [store.search(name, "velvet marble", limit=20) for name in NAMES[:3]]
        index: Any = store._backend._settings.index
        index.scripts = False
        assert [store.search(name, "velvet marble", limit=20) for name in NAMES[:3]] == by_script
        assert store.search("none", "velvet") == []
