"""No query, filter or id leaves its conversation or its namespace, and none makes the server fail.

`--full` runs 10,000 queries within a conversation, and 1,000 of the other examples.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from redis_history import HistoryStore, Message, Participant, SearchHit, assistant, tool_use, user
from redis_history.errors import InvalidInputError
from redis_history.values.filters import make_filters
from redis_history.values.ids import check_conversation_id
from tests.support.servers import RealServer


def _is_id(name: str) -> bool:
    try:
        check_conversation_id(name)
    except InvalidInputError:
        return False
    return True


IDS = [
    "a|b", "a", "b", "a*", "*", "{x}", "x", "{", "}", '"', "'", "a\\b", "a\\|b", " a ", "a b", "a\0b", "\0", "a\nb",
    "a,b", "🙂", "é", "e\u0301", "$c", "$p0", "%", "%61", "-a", "@c:{a}", "A", "ab", "\ud800", "x" * 512, "w'a'",
]  # fmt: skip
# Words of the messages, and everything with a meaning for the server.
PIECES = st.sampled_from(
    [
        *("tea", "teas", "milk", "电影", "影", "to", "be", "or", "not", "te*", "*", "**", '"', '"milk tea"', "“", "”"),
        *("|", "-", "~", "%", "%%tea%%", "@c:{*}", "@c:{a}", "@t:", "$p0", "$c", "(", ")", "{", "}", "[", "]", "=>"),
        *("{$slop:9}", "w'*'", "'", "\\", "\\\\", "\0", "\n", "\t", ",", ";", ":", "=", "<", ">", "!", "?", "#", "🙂"),
        *("ismissing(@c)", "INKEYS", "(-@c:{a})", "[KNN 9 @v $p0]", "x" * 70, "\u200b", "\u202e", "\ud800", "é"),
    ]
)
QUERIES = st.one_of(
    st.lists(PIECES, max_size=12).map(" ".join),
    st.lists(PIECES, max_size=12).map("".join),
    st.text(st.characters(), max_size=80),
)
HOSTILE = st.one_of(st.sampled_from(IDS), st.text(st.characters(), min_size=1, max_size=12))
CONVERSATIONS = [name for name in IDS if _is_id(name)][:20]
# Ids and names must be text that UTF-8 can carry.
NAMES = HOSTILE.filter(_is_id)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "roles": st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), max_size=3),
        "participant_ids": st.lists(HOSTILE, max_size=3),
        "scope": st.sampled_from(["dm", "thread", "channel"]),
        "since": st.sampled_from(["1999-01-01", "2026-01-02", "2200-01-01"]),
        "before": st.sampled_from(["1999-01-01", "2026-01-03", "2200-01-01"]),
        "tool_names": st.lists(HOSTILE, max_size=3),
        "context": st.integers(0, 3),
        "offset": st.integers(0, 2),
        "archived": st.booleans(),
        "highlight": st.booleans(),
    },
)


def thorough(full: bool, examples: int = 500) -> Any:
    # Shrinking is for the long run: each example asks a server.
    phases = list(Phase) if full else [phase for phase in Phase if phase is not Phase.shrink]
    return settings(
        max_examples=examples if full else 100, deadline=None, phases=phases, suppress_health_check=list(HealthCheck)
    )


def said(namespace: str, conversation: str) -> list[Message]:
    """Three messages; their ids and the word `own…` are of this conversation of this namespace alone."""
    own = hashlib.sha256(repr((namespace, conversation)).encode()).hexdigest()[:16]
    word = f"own{own}"
    return [
        user(f"milk tea {word}", id=f"1 {own}", participant=Participant("user", conversation), timestamp="2026-01-01"),
        assistant(f"teas 电影 {word}", tool_use("1", conversation), id=f"2 {own}", timestamp="2026-01-02"),
        assistant(f"to be or not to be {word}", id=f"3 {own}", scope="dm", timestamp="2026-01-03"),
    ]


@pytest.fixture(scope="module", params=["redis", "plain", pytest.param("cluster", marks=pytest.mark.full)])
def stores(request: pytest.FixtureRequest, server_of: Any) -> Iterator[dict[str, HistoryStore]]:
    """Two namespaces with the same conversations, one by an index, one without."""
    server: RealServer = server_of(request.param)
    both = {name: HistoryStore(server.url, namespace=name) for name in ("isolated", "isolated2")}
    for name, store in both.items():
        for conversation in CONVERSATIONS:
            store.append_many(conversation, said(name, conversation))
        assert store.capabilities.search == ("client" if request.param == "plain" else "server")
    yield both
    for name, store in both.items():
        server_of.clear(name)
        store.close()


def check(namespace: str, conversation: str, hits: list[SearchHit]) -> None:
    own = {one.id for one in said(namespace, conversation)}
    for hit in hits:
        assert hit.conversation_id == conversation
        assert {hit.message.id, *(one.id for one in (*hit.before, *hit.after))} <= own


@pytest.mark.proves("search-isolated")
def test_each_own_message_is_found_and_no_other(stores: dict[str, HistoryStore]) -> None:
    assert len(CONVERSATIONS) == 20
    for namespace, store in stores.items():
        for conversation in CONVERSATIONS:
            expected = said(namespace, conversation)
            word = expected[0].text.split()[-1]
            assert {hit.message.id for hit in store.search(conversation, word)} == {one.id for one in expected}
            [first] = store.search(conversation, "tea", participant_ids=[conversation])
            [second] = store.search(conversation, "tea", tool_names=[conversation])
            assert [first.message.id, second.message.id] == [expected[0].id, expected[1].id]
            other = next(name for name in CONVERSATIONS if name != conversation)
            assert store.search(other, word) == []


@pytest.mark.proves("search-isolated")
def test_no_query_and_no_filter_leaves_its_conversation(stores: dict[str, HistoryStore], full: bool) -> None:
    @thorough(full, 3_000)
    @given(st.sampled_from(sorted(stores)), st.sampled_from(CONVERSATIONS), QUERIES, FILTERS)
    def search(namespace: str, conversation: str, query: str, filters: dict[str, Any]) -> None:
        hits = stores[namespace].search(conversation, query, **filters)
        check(namespace, conversation, hits)
        passes = make_filters(**{name: filters[name] for name in filters.keys() - {"context", "offset", "highlight"}})
        assert all(passes.wants(hit.message) and not filters.get("archived") for hit in hits)

    search()


@pytest.mark.proves("search-isolated")
def test_no_query_leaves_its_namespace(stores: dict[str, HistoryStore], full: bool) -> None:
    if stores["isolated"].capabilities.search != "server":
        pytest.skip("a search of all conversations needs an index")

    @thorough(full)
    @given(st.sampled_from(sorted(stores)), QUERIES, FILTERS)
    def search(namespace: str, query: str, filters: dict[str, Any]) -> None:
        for hit in stores[namespace].search_all(query, **filters):
            check(namespace, hit.conversation_id, [hit])

    search()


@pytest.mark.proves("search-isolated", "stored-text")
@pytest.mark.full
def test_no_id_is_taken_for_another(stores: dict[str, HistoryStore], full: bool) -> None:
    store, other = stores["isolated"], stores["isolated2"]

    @thorough(full)
    @given(st.lists(NAMES.filter(lambda name: name not in CONVERSATIONS), min_size=2, max_size=3, unique=True))
    def write_and_search(names: list[str]) -> None:
        try:
            for name in names:
                store.append_many(name, said("isolated", name))
            for name in names:
                expected = said("isolated", name)
                found = store.search(name, "tea to be " + expected[0].text.split()[-1])
                assert {hit.message.id for hit in found} == {one.id for one in expected}
                assert other.search(name, "tea") == []
        finally:
            for name in names:
                store.delete_conversation(name)

    write_and_search()
