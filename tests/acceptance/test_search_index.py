"""The search index and its documents through what happens to servers and processes."""

import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest

from redis_history import Compressor, HistoryStore, user
from redis_history.errors import CapabilityError
from redis_history.store.operations import Clear, ScanConversations
from redis_history.store.operations.documents import WriteDocuments
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.settings import Settings
from tests.support.forks import Forked, barrier
from tests.support.servers import RealServer, wait_until
from tests.support.steps import first_call


def documents(server: RealServer, namespace: str = "default") -> int:
    with server.client() as client:
        return sum(1 for _ in client.scan_iter(match=Keyspace(namespace).patterns[1], count=1000))


def pending_work(server: RealServer) -> list[bytes]:
    with server.client() as client:
        return list(client.scan_iter(match="rh2:*}:g*", count=1000))


def indexes(server: RealServer) -> list[bytes]:
    with server.client() as client:
        return list(client.execute_command("FT._LIST"))


def found(store: HistoryStore, conversation_id: str, query: str) -> set[str]:
    return {hit.message.id for hit in store.search(conversation_id, query, limit=5000, token_cap=None)}


def filled(store: HistoryStore, count: int, conversation_id: str = "c") -> set[str]:
    for start in range(0, count, 1000):
        store.append_many(
            conversation_id, [user(f"word n{n}", id=str(n)) for n in range(start, min(start + 1000, count))]
        )
    return {str(n) for n in range(count)}


def _begin(url: str, name: str, together: Any) -> list[str]:
    """The state that a process finds when it makes the index."""
    together.wait(60)
    with HistoryStore(url) as store:
        store.append(name, user("word", id=name))
        return [hit.message.id for hit in store.search(name, "word")]


def test_processes_that_start_at_once_make_one_index(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    names = [f"p{number}" for number in range(8)]
    together = barrier(len(names))
    processes = [Forked(_begin, server.url, name, together) for name in names]
    assert [process.result() for process in processes] == [[name] for name in names]
    assert len(indexes(server)) == 1
    with HistoryStore(server.url) as store:
        assert {hit.message.id for hit in store.search_all("word", limit=100)} == set(names)


@pytest.mark.proves("index")
def test_a_dropped_index_is_made_again(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client:
        every = filled(store, 300)
        for how in ("FT.DROPINDEX", "FT.DROPINDEX", "FLUSHALL"):
            client.execute_command(how, *([] if how == "FLUSHALL" else indexes(server)))
            if how == "FLUSHALL":
                assert found(store, "c", "word") == set()
                every = filled(store, 20)
            assert found(store, "c", "word") == every
            assert {hit.message.id for hit in store.search_all("word", limit=1000, token_cap=None)} == every
            store.append("c", user("word", id=f"after {how}"))
            every.add(f"after {how}")
            assert found(store, "c", "word") == every
        assert len(indexes(server)) == 1


def test_messages_from_before_search_need_a_reindex(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with HistoryStore(server.url, search="off") as silent:
        for name in "abc":
            filled(silent, 250, name)
    assert documents(server) == 0
    with HistoryStore(server.url) as store:
        assert store.search_all("n7") == []
        assert found(store, "a", "n7") == {"7"}
        assert documents(server) == 250, "the first search within a conversation writes its documents"
        assert {hit.conversation_id for hit in store.search_all("n7")} == {"a"}
        seen: list[tuple[int, int]] = []
        with server.client() as client:
            client.hset(Keyspace("default").documents_of("gone", b"0" * 16) + b"1", mapping={"t": "n7"})
        done = store.reindex(on_progress=lambda done, known: seen.append((done, known)))
        assert (done.conversations, done.documents, done.removed) == (3, 750, 1)
        assert seen == [(1, 3), (2, 3), (3, 3)]
        assert {hit.conversation_id for hit in store.search_all("n7")} == {"a", "b", "c"}


def test_reindex_while_conversations_come_and_go(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with HistoryStore(server.url, search="off") as silent, HistoryStore(server.url) as store:
        for number in range(30):
            silent.append(f"c{number}", user("word", id=f"c{number}"))

        def meanwhile(done: int, known: int) -> None:
            if done <= 10:
                silent.append(f"late{done}", user("word", id=f"late{done}"))
                silent.update_conversation(f"c{done}", title="moved to the top")
                silent.delete_conversation(f"c{29 - done}")

        found = store.reindex(on_progress=meanwhile)
        listed = {one.conversation_id for one in store.list_conversations(limit=100)}
        assert len(listed) == 30
        assert {hit.message.id for hit in store.search_all("word", limit=100)} == listed
        assert (found.conversations, found.removed) == (40, 0)
        assert documents(server) == 30


@pytest.mark.proves("index")
def test_documents_that_a_killed_process_left_are_removed(own_server: Callable[..., RealServer]) -> None:
    """A clear whose process ends before it has removed the documents: they are found no more, and the next process
    removes them."""
    server = own_server()
    with HistoryStore(server.url) as store:
        filled(store, 2500)
        call = first_call(Clear("c"), Settings(Keyspace("default"), 1000))
        with server.client() as client:
            words = call.words(with_source=True, sent=b"%d000000" % client.time()[0])
            assert client.execute_command(*words, NEVER_DECODE=True)[0] == b"pending"
        assert documents(server) == 2500
        assert len(pending_work(server)) == 2
        assert found(store, "c", "word") == set()
        assert store.search_all("word") == []
        store.append("c", user("word", id="new"))
        assert found(store, "c", "word") == {"new"}
        assert {hit.message.id for hit in store.search_all("word")} == {"new"}
    with HistoryStore(server.url) as store:
        assert store.get_message("c", "new") is not None
        assert documents(server) == 1
        assert pending_work(server) == []


def test_late_documents_of_a_former_conversation_are_ignored(own_server: Callable[..., RealServer]) -> None:
    """Copies of the calls that write documents, after a deletion and new messages with the same ids."""
    server = own_server()
    with HistoryStore(server.url) as store:
        backend: Any = store._backend
        replies, sent = backend._replies, []
        backend._replies = lambda calls, **options: sent.append(calls) or replies(calls, **options)
        store.append("c", user("first", id="first"))
        store.append_many("c", [user(f"zebra {n}", id=str(n)) for n in range(600)])  # documents in several calls
        backend._replies = replies
        late = [calls for calls in sent if calls[0].script is not None and calls[0].script.name == "documents"]
        assert late
        cursor = store.snapshot("c").cursor
        late_search = WriteDocuments("c", tuple(store.get("c")), cursor.epoch, cursor.revision)
        store.delete_conversation("c")
        store.append_many("c", [user("hello", id="0"), user("other", id="599")])
        for calls in late:
            backend.carry_out(calls)
        backend.execute(late_search)
        assert found(store, "c", "zebra") == set()
        assert found(store, "c", "hello") == {"0"}
        assert documents(server) == 2


def _killed_after_a_clear(url: str) -> None:
    with HistoryStore(url) as store:
        backend: Any = store._backend
        backend._maintain = lambda upkeep: os.kill(os.getpid(), signal.SIGKILL)
        store.clear("c")


@pytest.mark.proves("index")
def test_a_running_process_removes_what_a_killed_one_left(
    own_server: Callable[..., RealServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_history.store._sync.redis_backend._WORK_SECONDS", 0.05)
    server = own_server()
    with HistoryStore(server.url) as store:
        filled(store, 1200)
        process = Forked(_killed_after_a_clear, server.url)
        wait_until(lambda: not process.running, "the end of the process", 60)
        process.kill()
        wait_until(lambda: store.get("d") == [] and documents(server) == 0, "the documents to go", 20)
        assert pending_work(server) == []


def _limited(server: RealServer, without: str) -> str:
    with server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "limited", "reset", *["on", ">x", "~*", "&*", "+@all"], *without.split()
        )
    return f"{server.url}?username=limited&password=x"


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING" and one.name == "redis_history"]


def test_reads_do_not_fail_when_they_cannot_clean_up(
    own_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, HistoryStore(server.url, search="off") as silent:
        same = [name for name in map(str, range(2000)) if Keyspace.bucket_of(name) == Keyspace.bucket_of("0")][:2]
        for name in same:
            store.append(name, user("word"))
        silent.append_many("c", [user("word", id=str(n)) for n in range(20)])  # without documents
        with server.client() as client:
            client.unlink(Keyspace("default").conversation(same[0]).state)  # as if it had expired
    with HistoryStore(_limited(server, "-zrem -time")) as store:
        assert {one.conversation_id for one in store.list_conversations()} == {same[1], "c"}
        assert found(store, "c", "word") == {str(n) for n in range(20)}
        assert found(store, "c", "word") == {str(n) for n in range(20)}
    assert 1 <= len(_warnings(caplog)) <= 3


def _largest_reply(store: HistoryStore) -> Callable[[], int]:
    """How many items the largest reply to the store has from now on, and how many those of one round trip have."""
    backend: Any = store._backend
    replies, sizes = backend._replies, [0]

    def measured(calls: Any, **options: Any) -> Any:
        got = replies(calls, **options)
        sizes.extend(len(one) for one in got if isinstance(one, list))
        return got

    backend._replies = measured
    return lambda: max(sizes)


def test_replies_stay_small_however_many_conversations_there_are(own_server: Callable[..., RealServer]) -> None:
    """1,500 conversations, 1,000 of them in one bucket: no reply has more than 256 members, each with its score."""
    server = own_server()
    bucket = Keyspace.bucket_of("0")
    names = [name for name in map(str, range(100_000)) if Keyspace.bucket_of(name) == bucket][:1000]
    names += [f"other {number}" for number in range(500)]
    with HistoryStore(server.url, search="off") as silent:
        for name in names:
            silent.append(name, user("word"))
    with HistoryStore(server.url) as store:
        largest = _largest_reply(store)
        assert {one.conversation_id for one in store.list_conversations(limit=100_000)} == set(names)
        assert [one.conversation_id for one in store.list_conversations(limit=2, offset=1000)] == names[499:497:-1]
        assert 256 <= largest() <= 512
        compressor = Compressor(store, lambda *_: "", max_messages=10)
        compressor.run_once()
        assert compressor.preview() == []
        progress: list[tuple[int, int]] = []
        assert store.reindex(on_progress=lambda *now: progress.append(now)).conversations == 1500
        assert progress[-1] == (1500, 1500)
        assert largest() <= 512
        assert len(store.search_all("word", limit=5000, token_cap=None)) == 1500


def test_a_scan_finds_all_conversations(own_server: Callable[..., RealServer]) -> None:
    """Also those that change in the meantime."""
    server = own_server("plain")
    names = [f"c{number}" for number in range(1000)]
    chance = random.Random(3)
    with HistoryStore(server.url) as store:
        for name in names:
            store.append(name, user("word"))
        seen: set[str] = set()
        page = store._backend.execute(ScanConversations(limit=64))
        pages = 1
        while True:
            seen.update(one.conversation_id for one in page.conversations)
            if page.cursor is None:
                break
            for name in chance.sample(names, 20):
                store.append(name, user("word"))
            page = store._backend.execute(ScanConversations(limit=64, cursor=page.cursor))
            pages += 1
        assert seen == set(names)
        assert pages > 2


@pytest.mark.proves("index-expiry", "ttl")
@pytest.mark.parametrize("former", [None, 5_000_000])
def test_all_documents_end_with_a_conversation_that_gets_a_ttl_late(
    own_server: Callable[..., RealServer], former: float | None
) -> None:
    """By a single change, after which nobody changes it any more."""
    server = own_server()
    with HistoryStore(server.url, ttl=former) as store, HistoryStore(server.url, ttl=60) as ending:
        filled(store, 600)
        store.compact("c", through="299", summary="gist")
        ending.append("c", user("word", id="last"))
        with server.client() as client:
            lives = [client.pttl(key) for key in client.scan_iter(match="rhd2:*", count=1000)]
        assert len(lives) == 602
        assert all(0 < life <= 90_000 for life in lives)


@pytest.mark.proves("index-expiry", "ttl")
@pytest.mark.parametrize("ttl", [60, 0.5])
def test_many_documents_end_with_a_conversation_that_gets_a_ttl_late(
    own_server: Callable[..., RealServer], ttl: float
) -> None:
    """Another process gives the rest an end, or removes them if the conversation has ended before."""
    server = own_server()
    with HistoryStore(server.url) as store, HistoryStore(server.url, ttl=ttl) as ending:
        filled(store, 5_000)
        store.compact("c", through="4499", summary="gist")
        ending.append("c", user("word", id="last"))
    with server.client() as client, HistoryStore(server.url) as later:
        if ttl < 1:
            wait_until(lambda: not client.keys("*:c:m"), "it to expire")
        later.get("c")
        lives = [client.pttl(key) for key in client.scan_iter(match="rhd2:*", count=1000)]
        assert len(lives) == (0 if ttl < 1 else 5_002)
        assert all(0 < life <= 90_000 for life in lives)


@pytest.mark.proves("index")
def test_documents_that_expired_too_soon_are_written_again(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client:
        every = filled(store, 50)
        client.unlink(*list(client.scan_iter(match="rhd2:*"))[:20])
        assert found(store, "c", "word") == every
        assert documents(server) == 50


def test_another_language_moves_the_index(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with HistoryStore(server.url) as english:
        filled(english, 500)
        english.append("c", user("Die Katzen schliefen", id="cat"))
        assert found(english, "c", "katze") == set()
        [former] = indexes(server)
        with HistoryStore(server.url, language="german") as german:
            wait_until(lambda: found(german, "c", "katze") == {"cat"}, "the German index")
            assert len(found(german, "c", "word")) == 500
            [current] = indexes(server)
            assert current != former
        assert len(found(english, "c", "word")) == 500, "those who had the former one go on"


def test_servers_without_search(own_server: Callable[..., RealServer], server: RealServer) -> None:
    plain = own_server("plain")
    with HistoryStore(plain.url, search="require") as store, pytest.raises(CapabilityError, match="search='require'"):
        store.append("c", user("x"))
    with plain.client() as client:
        assert client.dbsize() == 0, "refused before anything was written"
    with HistoryStore(f"{server.url}?db=1", namespace="one") as store, server.client() as client:
        store.append("c", user("word", id="1"))
        assert found(store, "c", "word") == {"1"}
        assert {hit.message.id for hit in store.search_all("word")} == {"1"}
        with pytest.raises(CapabilityError):
            store.reindex()
        store.delete_conversation("c")
    with (
        HistoryStore(f"{server.url}?db=1", search="require") as store,
        pytest.raises(CapabilityError, match="database 1"),
    ):
        store.get("c")


def test_a_user_without_the_right_to_search(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with server.client() as client:
        rights = "on >x ~* &* +@all -ft.create -ft.search -ft.info"
        client.execute_command("ACL", "SETUSER", "limited", *rights.split())
    url = f"{server.url}?username=limited&password=x"
    with HistoryStore(url) as store:
        store.append("c", user("word", id="1"))
        assert found(store, "c", "word") == {"1"}
    with HistoryStore(url, search="require") as store, pytest.raises(CapabilityError, match="permission"):
        store.append("c", user("word", id="2"))


def meaning(texts: Any) -> list[list[float]]:
    """Two meanings: animals, and everything else."""
    animals = ("cat", "dog", "kitten", "puppy")
    return [[1.0, 0.0] if any(animal in text for animal in animals) else [0.0, 1.0] for text in texts]


@pytest.mark.proves("embedders")
def test_an_embedder_that_fails(own_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture) -> None:
    server = own_server()

    def broken(texts: Any) -> list[list[float]]:
        raise OSError("no network")

    for embedder, says in ((broken, "no network"), (lambda texts: [[1.0]] * len(texts), "not of 2")):
        caplog.clear()
        with HistoryStore(server.url, embedder=embedder, vectors=2) as store:
            store.append(says, user("word", id="1"))
            assert found(store, says, "word") == {"1"}, "by its words"
        assert says in caplog.text
