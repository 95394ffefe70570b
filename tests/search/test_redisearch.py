"""The rules of RediSearch, each seen on a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from redis_history import Message, Participant, Position, tool_result, tool_use, user
from redis_history._words import LANGUAGES
from redis_history.errors import ConfigurationError, CorruptDataError, InvalidInputError
from redis_history.requests import make_filters
from redis_history.requests.store_options import VectorField
from redis_history.search.query import parse_query
from redis_history.search.ranking import Matches
from redis_history.search.redisearch import (
    NAMESPACE,
    count_command,
    create_arguments,
    document,
    read_found,
    read_matches,
    search_commands,
    tag,
)
from redis_history.search.text import pack
from tests.search.index import Index
from tests.support.servers import RealServer


def said(*texts: str, **fields: Any) -> list[Message]:
    return [Message(role="user", parts=(text,), sequence=n, **fields) for n, text in enumerate(texts, 1)]


# Values


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=40))
def test_tags_of_different_values_are_different(one: str, other: str) -> None:
    assert (tag(one) == tag(other)) == (one == other)
    assert tag(one)
    assert not set(tag(one)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%")


def test_tags_have_a_bound() -> None:
    tags = {tag("x" * n) for n in (2048, 2049, 10_000)} | {tag("é" * 400)}
    assert len(tags) == 4
    assert max(map(len, tags)) <= 2400


def test_a_document_has_what_a_message_tells() -> None:
    message = Message(
        role="assistant",
        parts=("Hello, World!", tool_use("1", "a,b", {"q": "tea"}), tool_result("0", "ok", name="clock")),
        participant=Participant("agent", "a|b"),
        scope="dm",
    )
    fields = document(message)
    assert dict(zip(fields[::2], fields[1::2], strict=True)) == {
        b"t": b"hello world a b tea clock ok",
        b"r": b"assistant",
        b"p": b"a%7Cb",
        b"s": b"dm",
        b"w": b"a%2Cb,clock",
    }
    assert document(user("")) == [b"t", b"", b"r", b"user"]


# Commands


@pytest.mark.parametrize("scope", [[], "", "abc", ()])
def test_a_scope_is_never_empty(scope: Any) -> None:
    with pytest.raises(InvalidInputError):
        search_commands(b"i", scope, parse_query("x"))
    with pytest.raises(InvalidInputError):
        count_command(b"i", scope)


def test_filters_that_nothing_passes_are_not_asked() -> None:
    with pytest.raises(InvalidInputError, match="filters"):
        count_command(b"i", ["c"], make_filters(roles=[]))
    bounds = make_filters(since=Position(30, 0), before=Position(20, 0))
    assert search_commands(b"i", ["c"], parse_query("tea"), bounds) == []


def test_an_index_is_never_over_everything() -> None:
    for prefixes in ([], [b""]):
        with pytest.raises(InvalidInputError, match="prefixes"):
            create_arguments(b"i", prefixes)


def test_what_nothing_matches_is_not_asked() -> None:
    query = parse_query("a needle")
    assert search_commands(b"i", ["c"], parse_query("!")) == []
    assert search_commands(b"i", ["c"], query, make_filters(roles=[])) == []
    assert read_matches([], query, lambda key: None) == ([Matches(0, {})], None)


def test_the_scope_stands_first_and_in_parentheses() -> None:
    commands = search_commands(b"i", ["c", "d"], parse_query('tea "iced tea" cof*'), make_filters(roles=["user"]))
    assert [command[2] for command in commands] == [
        b"(@c:{$p0|$p1}) (@r:{$p2}) ($p3)",
        b"(@c:{$p0|$p1}) (@r:{$p2}) (((($p3) ($p4))=>{$slop:0;$inorder:true}))",
        b"(@c:{$p0|$p1}) (@r:{$p2}) ($p3*)",
        b"(@c:{$p0|$p1}) (@r:{$p2}) (($p3|$p4*)=>{$weight:0}) (~$p3 ~$p4*)",
    ]
    assert all(command[-2:] == [b"DIALECT", b"2"] for command in commands)


# Replies


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
def test_other_replies(reply: Any) -> None:
    with pytest.raises(CorruptDataError):
        read_found(reply)


def test_a_reply_for_each_command() -> None:
    with pytest.raises(CorruptDataError):
        read_matches([[0]], parse_query("one two three"), lambda key: None)


def test_a_real_reply_over_resp3(server: RealServer, index: Index) -> None:
    index.add("c", said("green tea", "black tea"))
    query = parse_query("tea green")
    commands = search_commands(index.name, ["c"], query)
    with redis.Redis(unix_socket_path=str(server.socket), protocol=3, legacy_responses=False) as client:
        replies = [client.execute_command(*command, NEVER_DECODE=True) for command in commands]
    assert all(isinstance(reply, dict) for reply in replies)
    found, together = read_matches(replies, query, index.place)
    again, together_again = read_matches(index.send(commands), query, index.place)
    assert [one.total for one in found] == [2, 1] == [one.total for one in again]
    for one, other in zip([*found, together], [*again, together_again], strict=True):
        assert one is not None
        assert other is not None
        assert one.scores["c"] == pytest.approx(other.scores["c"])


# Hits


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("camped", {2}),
        ("camp*", {2, 3}),
        ('"camping"', {2}),
        ('"camp"', set()),
        ('"went camping"', {2}),
        ('"camping went"', set()),
        ('"to be or not to be"', {4}),
        ("电影", {1, 3}),
        ("电影院", {1, 3}),
        ('"电影院"', {3}),
        ("影", {1, 3}),
        ("院", {3}),
        ('"好看的电影"', {1}),
        ('"看电影"', set()),
        ("हिन्दी", {5}),
        ("세계", {6}),
        ("STRASSE naive naïve", {7}),
        ("snake", {7}),
        ('"path x 1"', {7}),
        ("3.14", {7}),
        ("nothing of it", set()),
    ],
)
def test_what_is_found(index: Index, query: str, expected: set[int]) -> None:
    texts = [
        "我最近在看一部很好看的电影",
        "we went camping in the woods",
        "ABC电影院 campus",
        "to be or not to be",
        "हिन्दी भाषा",
        "안녕하세요 세계",
        "naïve Straße 3.14 https://example.com/path?x=1 snake_case",
    ]
    index.add("c", said(*texts))
    assert set(index.sequences(["c"], query)) == expected


@pytest.mark.parametrize("language", sorted(LANGUAGES | {"none"}))
def test_every_language_is_one_of_the_server(make_index: Callable[..., Index], language: str) -> None:
    index = make_index(language=language)
    index.add("c", said("camping 电影 häuser"))
    assert index.sequences(["c"], 'häuser "camping" cam* 电影') == [1]
    assert index.sequences(["c"], "camp") == ([1] if language == "english" else index.sequences(["c"], "camp"))


def test_stemming_is_of_the_language(make_index: Callable[..., Index]) -> None:
    for language, found in (("german", [1]), ("none", [])):
        index = make_index(language=language)
        index.add("c", said("viele Katzen"))
        assert index.sequences(["c"], "Katze") == found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"roles": ["user"]}, {1, 2}),
        ({"roles": ["user", "tool"]}, {1, 2, 4}),
        ({"participant_ids": ["a|b"]}, {1}),
        ({"participant_ids": ["a", "b", "*", ""]}, {2}),
        ({"scope": "dm"}, {3}),
        ({"tool_names": ["x,y"]}, {4}),
        ({"tool_names": ["x", "y"]}, set()),
        ({"since": Position(20, 0)}, {2, 3, 4}),
        ({"since": Position(20, 2**53 - 1)}, {3, 4}),
        ({"since": Position(20, 2**53 - 1), "before": Position(30, 0)}, set()),
        ({"since": Position(40, 0), "before": Position(20, 0)}, set()),
        ({"since": Position(20, 2**53 - 1), "before": Position(20, 0)}, set()),
        ({"before": Position(20, 0)}, {1}),
        ({"since": Position(20, 0), "before": Position(40, 0)}, {2, 3}),
        ({"since": Position(20, 0), "before": Position(40, 1)}, {2, 3, 4}),
        ({"since": Position(-(2**53), 0), "before": Position(2**53, 0)}, {1, 2, 3, 4}),
        ({"archived": False}, {1, 2, 3}),
        ({"archived": True}, {4}),
    ],
)
def test_filters(index: Index, options: Any, expected: set[int]) -> None:
    def at(microsecond: int) -> str:
        return f"1970-01-01T00:00:00.{microsecond:06d}Z"

    messages = [
        Message(role="user", parts="tea", participant=Participant("user", "a|b"), timestamp=at(10), sequence=1),
        Message(role="user", parts="tea", participant=Participant("user", ""), timestamp=at(20), sequence=2),
        Message(role="assistant", parts="tea", scope="dm", timestamp=at(30), sequence=3),
        Message(role="tool", parts=(tool_result("1", "tea", name="x,y"),), timestamp=at(40), sequence=4),
    ]
    index.add("c", messages[:3])
    index.add("c", messages[3:], archived=True)
    filters = make_filters(**options)
    assert set(index.sequences(["c"], "tea", filters)) == expected
    if not filters.impossible:
        assert index.count(["c"], filters) == len(expected)


def test_scopes(index: Index) -> None:
    for conversation in ("a", "b", "c"):
        index.add(conversation, said("tea"))
    assert {found.conversation for found in index.search(["a", "c"], "tea")} == {"a", "c"}
    assert {found.conversation for found in index.search(NAMESPACE, "tea")} == {"a", "b", "c"}
    assert (index.count(["a", "c"]), index.count()) == (2, 3)


def test_what_is_removed_is_not_found(index: Index) -> None:
    index.add("c", said("tea", "tea"))
    index.remove("c", 1)
    assert index.sequences(["c"], "tea") == [2]
    assert index.count() == 1


def test_what_is_best_for_all_terms_is_found_beyond_the_depth(index: Index) -> None:
    """Each term alone has better matches than the depth holds; only together they name the message."""
    filler = "so many other words are said in between of other things"
    texts = [text for word in ("tea", "milk", "sugar") for _ in range(20) for text in (word, filler, filler)]
    index.add("c", said(*texts, "tea or milk or sugar and so on"))
    assert index.search(["c"], "tea milk sugar", depth=100)[0].sequence == 181
    assert len(index.search(["c"], "tea milk sugar", depth=10)) < 61
    assert index.search(["c"], "tea milk sugar", depth=10)[0].sequence == 181


# Vectors


@pytest.mark.parametrize("algorithm", ["flat", "hnsw"])
def test_the_nearest_of_a_conversation(make_index: Callable[..., Index], algorithm: Any) -> None:
    index = make_index(vector=VectorField(2, algorithm))
    near, far, mine = pack([1, 0.1], 2), pack([0, 1], 2), pack([1, 0], 2)
    index.add("a", said("far", "near"), vectors=[far, near])
    index.add("a|b", said("nearest"), vectors=[mine])
    index.add("a", [Message(role="user", parts="no vector", sequence=3)])
    assert index.nearest(["a"], mine) == [("a", 2), ("a", 1)]
    assert index.nearest(["a", "a|b"], mine) == [("a|b", 1), ("a", 2), ("a", 1)]
    assert index.nearest(NAMESPACE, mine)[0] == ("a|b", 1)
    assert index.nearest(["a"], mine, make_filters(roles=["tool"])) == []
    assert index.sequences(["a"], "far") == [1]


@pytest.mark.parametrize("dimension", [0, -1, 40_000, 1.5, True, "3"])
def test_dimensions(dimension: Any) -> None:
    with pytest.raises(ConfigurationError, match="dimension"):
        VectorField(dimension)


@pytest.mark.parametrize("vector", [[1.0], [1.0, float("nan")], ["a", "b"], None, [1e300, 0.0]])
def test_vectors_that_are_none(vector: Any) -> None:
    with pytest.raises(InvalidInputError):
        pack(vector, 2)
