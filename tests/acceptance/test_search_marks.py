"""The marks of archived messages in the search index, through compactions, expansions and killed processes."""

import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import HistoryStore, user
from redis_history.store.operations.documents import WriteDocuments
from redis_history.store.operations.keys import Keyspace
from tests.acceptance.test_search_index import filled, pending_work
from tests.support.forks import Forked
from tests.support.servers import RealServer, wait_until


def _killed_before_marks(url: str, then: str) -> None:
    """Compacts, or expands, and is killed after the server has done it, before the documents are marked."""
    with HistoryStore(url) as store:
        if then == "expand":
            store.compact("c", through="299", summary=SUMMARY)
        backend: Any = store._backend
        carry_out = backend.carry_out

        def carrying(work: Any, **options: Any) -> Any:
            first = work[0] if type(work) is list else work
            if first.script is not None and first.script.name == "mark":
                os.kill(os.getpid(), signal.SIGKILL)
            return carry_out(work, **options)

        backend.carry_out = carrying
        if then == "expand":
            store.expand("c", "s")
        else:
            store.compact("c", through="299", summary=SUMMARY)


SUMMARY = user("a summary", id="s", metadata={"is_summary": True})


def _by_archived(search: Callable[..., Any], *where: str) -> tuple[set[str], set[str]]:
    """The hits of a search in the archive, and among live messages."""
    hits = [search(*where, "word", limit=5000, token_cap=None, archived=archived) for archived in (True, False)]
    archived, live = ({hit.message.id for hit in one} for one in hits)
    return archived, live


@pytest.mark.parametrize(
    ("killed", "by"),
    [
        ("compact", "search"),
        ("expand", "search_all"),
        ("compact", "another process"),
        *(pytest.param(*one, marks=pytest.mark.full) for one in (("compact", "search_all"), ("expand", "search"))),
    ],
)
def test_marks_that_a_killed_process_left_are_completed(
    own_server: Callable[..., RealServer], killed: str, by: str
) -> None:
    server = own_server()
    with HistoryStore(server.url) as store:
        every = filled(store, 1000)
        process = Forked(_killed_before_marks, server.url, killed)
        wait_until(lambda: not process.running, "the end of the process", 60)
        process.kill()
        assert len(pending_work(server)) == 1  # the note that there is something left
        archived = {str(n) for n in range(300)} if killed == "compact" else set()
        assert {one.id for one in store.get("c")} - {"s"} == every - archived
        if by == "another process":
            with HistoryStore(server.url) as other:
                other.append("d", user("x"))
                other.append("d", user("x"))
            with server.client() as client:
                assert client.hget(Keyspace("default").conversation("c").state, "j") is None
        elif by == "search_all":
            assert _by_archived(store.search_all) == (archived, every - archived)
        assert _by_archived(store.search, "c") == (archived, every - archived)
        assert pending_work(server) == []
        assert _by_archived(store.search_all) == (archived, every - archived)


def test_marks_are_right_after_any_compactions_and_expansions(own_server: Callable[..., RealServer]) -> None:
    """Without any marks: a store that does not search leaves all of them to others."""
    server = own_server()
    chance = random.Random(7)
    with HistoryStore(server.url) as store, HistoryStore(server.url, search="off") as silent:
        every = filled(store, 400)
        archived: set[str] = set()
        for number in range(12):
            live = silent.get("c")
            summary = next((one for one in live if one.is_summary), None)
            if summary is not None and chance.random() < 0.4:
                silent.expand("c", summary.id)
            else:
                through = live[chance.randrange(1, len(live) - 1)]
                silent.compact("c", through=through, summary=replace(SUMMARY, id=f"s{number}"))
            if chance.random() < 0.3:
                assert _by_archived(store.search, "c")[0] == every - {one.id for one in store.get("c")}
        archived = every - {one.id for one in store.get("c")}
        assert _by_archived(store.search, "c") == (archived, every - archived)
        assert pending_work(server) == []


def test_late_documents_have_the_right_marks(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with HistoryStore(server.url) as store:
        every = filled(store, 60)
        messages, cursor = tuple(store.get("c")), store.snapshot("c").cursor
        late = WriteDocuments("c", messages, cursor.epoch, cursor.revision)
        store.compact("c", through="29", summary=SUMMARY)
        archived = {str(n) for n in range(30)}
        store._backend.execute(late)
        assert _by_archived(store.search, "c") == (archived, every - archived)
        store.expand("c", "s")
        store._backend.execute(late)
        assert _by_archived(store.search, "c") == (set(), every)
