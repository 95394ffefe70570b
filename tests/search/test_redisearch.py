"""The commands to RediSearch and its replies, and what real servers do with them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import HistoryStore, Position, user
from redis_history.errors import ConfigurationError, CorruptDataError, InvalidInputError
from redis_history.store.search.query import parse_query
from redis_history.store.search.redisearch import read_found, search_commands, tag
from redis_history.store.search.text import pack
from redis_history.store.search.words import LANGUAGES
from tests.conftest import Servers
from tests.support.servers import RealServer


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=40))
def test_tags_of_different_values_are_different(one: str, other: str) -> None:
    assert (tag(one) == tag(other)) == (one == other)
    assert tag(one)
    assert not set(tag(one)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%")


def test_long_tags_are_cut_and_stay_different() -> None:
    tags = {tag("x" * n) for n in (2048, 2049, 10_000)} | {tag("é" * 400)}
    assert len(tags) == 4
    assert max(map(len, tags)) <= 2400


@pytest.mark.parametrize("scope", [[], "", "abc", ()])
def test_a_scope_is_never_empty(scope: Any) -> None:
    with pytest.raises(InvalidInputError):
        search_commands(b"i", scope, parse_query("x"))


def test_impossible_searches_find_nothing(server: RealServer, namespace: str) -> None:
    assert search_commands(b"i", ["c"], parse_query("!")) == []
    with HistoryStore(server.url, namespace=namespace, search="require") as store:
        store.append("c", user("a needle"))
        assert ids(store, "a needle")
        for none in ({"roles": []}, {"tool_names": []}, {"since": Position(30, 0), "before": Position(20, 0)}):
            assert store.search("c", "a needle", **none) == store.search_all("a needle", **none) == []


def test_replies_of_both_protocols() -> None:
    resp2 = [2, b"k:1", b"1.5", b"k:2", b"0.5"]
    resp3 = {
        b"attributes": [],
        b"total_results": 2,
        b"format": b"STRING",
        b"results": [{b"id": b"k:1", b"score": 1.5}, {b"id": b"k:2", b"score": 0.5}],
        b"warning": [],
    }
    assert read_found(resp2) == read_found(resp3) == (2, [(b"k:1", 1.5), (b"k:2", 0.5)])
    assert read_found([7]) == (7, [])
    near = [2, b"k:1", [b"d", b"0.5"], b"k:2", [b"d", b"-1e-07"]]
    assert read_found(near).documents == [(b"k:1", -0.5), (b"k:2", 1e-07)]


@pytest.mark.parametrize("reply", [None, [], b"OK", {}, [b"x"], [1, b"k"], [1, b"k", b"x"], {b"results": 3}])
def test_other_replies_are_corrupt(reply: Any) -> None:
    with pytest.raises(CorruptDataError):
        read_found(reply)


def ids(store: HistoryStore, query: str) -> set[str]:
    return {hit.message.id for hit in store.search("c", query)}


def test_every_language_is_one_of_the_server(
    server: RealServer, server_of: Servers, namespace: str, full: bool
) -> None:
    for language in sorted(LANGUAGES | {"none"}) if full else ("english", "german", "none"):
        name = f"{namespace}-{language}"
        with HistoryStore(server.url, namespace=name, language=language, search="require") as store:
            store.append("c", user("camping 电影 häuser viele Katzen", id="1"))
            assert ids(store, 'häuser "camping" cam* 电影') == {"1"}
            for word, stemmed in (("camp", "english"), ("Katze", "german")):
                assert ids(store, word) == {"1"} or language != stemmed
                assert ids(store, word) == set() or language != "none"
        server_of.clear(name)


def test_the_stemmer_is_the_servers_algorithm(server: RealServer, namespace: str) -> None:
    """So that both ways find the same, except the few words that Snowball 3 has another stem of than the server."""
    pytest.importorskip("Stemmer")
    words = ["camp", "camps", "camped", "camping", "happy", "happily", "happiness", "ran", "running", "runner"]
    messages = [user(word, id=word) for word in words]
    with HistoryStore(server.url, namespace=namespace) as store, HistoryStore("memory://") as memory:
        store.append_many("c", messages)
        memory.append_many("c", messages)
        assert ids(store, "camps") == {"camp", "camps", "camped", "camping"}
        for word in words:
            assert ids(store, word) == ids(memory, word)


def test_the_best_message_for_all_terms_is_found_beyond_the_depth(
    server: RealServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each term alone has better matches than the depth holds; only together they name the message."""
    monkeypatch.setattr("redis_history.store.search.ranking.DEPTH", 10)
    filler = "so many other words are said in between of other things"
    texts = [text for word in ("tea", "milk", "sugar") for _ in range(20) for text in (word, filler, filler)]
    with HistoryStore(server.url, namespace=namespace) as store:
        store.append_many("c", [user(text) for text in texts])
        store.append("c", user("tea or milk or sugar and so on", id="best"))
        [best] = store.search("c", "tea milk sugar", limit=1)
        assert best.message.id == "best"
        assert len(store.search("c", "tea milk sugar", limit=10, token_cap=None)) == 10


@pytest.mark.parametrize("dimension", [0, -1, 40_000, 1.5, True, "3"])
def test_dimensions(dimension: Any) -> None:
    with pytest.raises(ConfigurationError, match="vectors must be"):
        HistoryStore("memory://", vectors=dimension)


@pytest.mark.parametrize("vectors", [None, 384])
@pytest.mark.parametrize("embedder", ["bert", 5])
def test_an_embedder_is_a_function_or_the_default(embedder: Any, vectors: int | None) -> None:
    with pytest.raises(ConfigurationError, match=r'embedder must be.*"default"'):
        HistoryStore("memory://", embedder=embedder, vectors=vectors)


@pytest.mark.parametrize("vector", [[1.0], [1.0, float("nan")], ["a", "b"], None, [1.7e308, 1.7e308]])
def test_a_vector_has_finite_numbers_of_its_dimension(vector: Any) -> None:
    with pytest.raises(InvalidInputError):
        pack(vector, 2)
