"""The order of what was found, by an index and by reading alike."""

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history import Message, TextPart, tool_use, user
from redis_history.store.search.hits import SearchHit, cut_to_tokens, passage
from redis_history.store.search.query import Query, Term, parse_query
from redis_history.store.search.ranking import Matches, Ranked, Scan, fuse, rank
from redis_history.store.search.words import load_stemmer
from redis_history.values.sizes import TokenCounter, estimate_tokens, message_tokens
from tests.property.strategies import messages

NOTHING = Query(())
#: Endings of words and of stems, after Porter.
ENDINGS = """
    s sses us ied ies ed eed edly ing ingly e y ly tional enci anci abli entli ization ational ation ator alism aliti
    fulness ousness iveness iviti biliti ogi lessli alize icate ical ness ative ance able ible ement ment ity ability
"""


def query_of(count: int) -> Query:
    return Query(tuple(Term("word", (f"w{n}",)) for n in range(count)))


def matches(*sequences: int, conversation: Any = "c", score: float = 1.0) -> Matches:
    return Matches(len(sequences), {conversation: dict.fromkeys(sequences, score)} if sequences else {})


def order(*found: Matches, **options: Any) -> list[int]:
    return [one.sequence for one in rank(query_of(len(found)), found, **{"size": 1000, **options})]


def test_more_terms_and_rarer_ones_come_first() -> None:
    assert order(matches(10, 20), matches(20, 30)) == [20, 30, 10]
    assert order(matches(10), matches(20, 30, 40)) == [10, 40, 30, 20]


def test_a_term_counts_less_with_each_step_away() -> None:
    first, second = matches(10, 20, 30, 40, 60), matches(11, 22, 33, 44, 50)
    ranked = {one.sequence: one.score for one in rank(query_of(2), (first, second), size=1000)}
    whole = ranked[50]
    assert [ranked[n] / whole for n in (10, 20, 30, 40, 60)] == pytest.approx([1.7, 1.5, 1.3, 1.0, 1.0])
    assert [ranked[n] / whole for n in (11, 22, 33, 44)] == pytest.approx([1.7, 1.5, 1.3, 1.0])


def test_neighbors_are_of_the_same_conversation() -> None:
    found = Matches(2, {"a": {1: 1.0}, "b": {2: 1.0}})
    other = Matches(1, {"a": {2: 1.0}})
    scores = {(one.conversation, one.sequence): one.score for one in rank(query_of(2), (found, other), size=1000)}
    assert scores["a", 1] > scores["b", 2]


def test_equal_scores_have_one_order() -> None:
    found = Matches(4, {"b": {1: 1.0, 9: 1.0}, "a": {5: 1.0, 7: 1.0}})
    ranked = rank(query_of(1), (found,), size=1000)
    assert [(one.conversation, one.sequence) for one in ranked] == [("b", 9), ("b", 1), ("a", 7), ("a", 5)]


def test_a_phrase_counts_as_its_words() -> None:
    query = Query((Term("phrase", ("a", "b")), Term("word", ("c",))))
    assert [one.sequence for one in rank(query, (matches(1), matches(9)), size=10)] == [1, 9]


SCORES = st.dictionaries(st.integers(1, 30), st.floats(0, 100, allow_subnormal=False), max_size=20)
FOUND = st.builds(
    lambda scores, more: Matches(len(scores) + more, {"c": scores} if scores else {}), SCORES, st.integers(0, 3)
)


@given(st.lists(FOUND, min_size=1, max_size=5), st.integers(0, 100), st.none() | FOUND)
def test_any_matches_have_an_order(found: list[Matches], size: int, together: Matches | None) -> None:
    query = query_of(len(found))
    ranked = rank(query, found, size=size, together=together)
    assert ranked == rank(query, found, size=size, together=together)
    assert {one.sequence for one in ranked} >= {n for one in found for n in one.scores.get("c", {})}
    assert len({one.sequence for one in ranked}) == len(ranked)
    assert all(one.score >= other.score >= 0 for one, other in pairwise(ranked))


def ranked_of(scores: dict[int, float]) -> list[Ranked]:
    return [Ranked("c", n, score) for n, score in sorted(scores.items(), key=lambda item: -item[1])]


def near(scores: dict[int, float]) -> Matches:
    return Matches(len(scores), {"c": scores})


def sequences(ranked: list[Ranked]) -> list[int]:
    return [one.sequence for one in ranked]


def test_vectors_that_agree_with_the_words_count() -> None:
    words = {n: 10.0 + (n == 7) for n in range(1, 200, 10)} | {3: 11.0}
    vectors = {n: (0.5 if n in words else 0.0) + (0.3 if n == 41 else 0.0) for n in range(1, 200)}
    assert sequences(fuse(ranked_of(words), near(vectors), 200))[:2] == [41, 3]


@pytest.mark.proves("embedders")
def test_random_vectors_only_break_ties() -> None:
    chance = random.Random(5)
    words = {n: chance.random() for n in range(1, 401) if n % 4}
    for seed in range(20):
        chance.seed(seed)
        vectors = {n: chance.gauss(0, 1) for n in range(1, 401)}
        ranked = sequences(fuse(ranked_of(words), near(vectors), 400))
        assert len({*ranked[:10]} & {*sequences(ranked_of(words))[:10]}) >= 8
        assert {*ranked[-100:]} == {*range(4, 401, 4)}


def test_without_words_the_nearest_come_first_and_spread_to_neighbors() -> None:
    assert sequences(fuse([], near({1: 0.1, 5: 0.9, 9: 0.5}), 9)) == [5, 9, 1]
    assert sequences(fuse([], near({1: 0.9, 2: 0.5, 3: 0.9, 10: 0.6, 20: 0.0}), 20)).index(2) == 2
    assert fuse([], near({}), 0) == []


@given(FOUND, FOUND, st.integers(0, 100), st.sampled_from([1.0, -1e9, 1e9, math.inf, math.nan]))
def test_fusion_orders_anything(found: Matches, vectors: Matches, size: int, scale: float) -> None:
    ranked = rank(query_of(1), [found], size=size)
    listed = {where: {n: scale * score for n, score in those.items()} for where, those in vectors.scores.items()}
    fused = fuse(ranked, Matches(vectors.total, listed), size)
    places = [(one.conversation, one.sequence) for one in fused]
    assert len({*places}) == len(places) >= len(ranked)
    assert all(one.score >= other.score >= 0 for one, other in pairwise(fused))


def test_a_scan_ranks_alike_in_any_chunks_and_order() -> None:
    texts = [
        " ".join(random.Random(n).choices(["tea", "milk", "sugar", "camping", "woods", "we", "went"], k=6))
        for n in range(40)
    ]
    said = [Message(role="user", parts=(text,), sequence=n) for n, text in enumerate(texts, 1)]

    def scan(messages: list[Message], chunk: int) -> list[int]:
        one = Scan(parse_query("tea in the woods"))
        for start in range(0, len(messages), chunk):
            one.add(messages[start : start + chunk])
        return sequences(one.ranked())

    expected = scan(said, 100)
    assert expected
    assert scan(said, 1) == expected
    assert scan(said[::-1], 7) == expected


@given(st.text("abcdeilnorstuxyz", max_size=5), st.lists(st.sampled_from(ENDINGS.split()), max_size=3))
def test_an_english_word_begins_as_its_stem_but_for_two_letters(beginning: str, endings: list[str]) -> None:
    word, stem = beginning + "".join(endings), load_stemmer("english")
    assert stem is not None
    assert word.startswith(stem(word)[: max(1, len(stem(word)) - 2)])


@pytest.mark.parametrize("terms", [1, 30])
def test_a_scan_finds_the_words_with_the_stem_of_a_term(terms: int) -> None:
    texts = ["He is dying.", "The dice", "They DIE", "skies", "a sky", "skill", "running", "ran", "rung", "ru", "a-b b"]
    said = [Message(role="user", parts=(text,), sequence=n) for n, text in enumerate(texts, 1)]

    def found(query: str) -> set[str]:
        scan = Scan(parse_query(query + "".join(f" absent{n}" for n in range(1, terms))))
        scan.add(said)
        return {texts[sequence - 1] for sequence in sequences(scan.ranked())}

    assert found("die") == {"He is dying.", "They DIE"}
    assert found("sky") == {"skies", "a sky"}
    assert found("runs") == {"running", "ran"}
    assert found("ski*") == {"skies", "skill"}
    assert found('"a b"') == {"a-b b"}


def hit(name: str, length: int, **beside: Any) -> SearchHit:
    return SearchHit(user("x" * length, id=name), 1.0, "c", **beside)


def test_hits_are_cut_to_tokens() -> None:
    beside = (user("x" * 400),)
    hits = [hit("0", 40), hit("1", 4_000), hit("2", 20), hit("3", 36, before=beside), hit("4", 4)]
    assert cut_to_tokens(hits, 20, NOTHING) == [hits[0], hits[2], hits[4]], "no room for a useful excerpt"
    assert cut_to_tokens(hits, None, NOTHING) == hits
    assert cut_to_tokens(hits, 0, NOTHING) == []
    kept = cut_to_tokens(hits, 130, NOTHING)
    assert [one.message for one in kept] == [one.message for one in hits]
    assert [one.truncated for one in kept] == [False, True, False, False, False]
    assert kept[1].excerpt == "x" * 120, "a quarter of what is left for four hits"
    assert kept[3].before == ()


def test_an_excerpt_is_the_passage_that_matches() -> None:
    filler = "filler " * 1_000
    spread = f"{filler}a lone needle {filler}needle beside needle {filler}"
    [kept] = cut_to_tokens([SearchHit(user(spread), 1.0, "c")], 30, parse_query("needle"))
    assert kept.excerpt is not None
    assert "needle beside needle" in kept.excerpt, "where most terms are"
    assert kept.excerpt in spread
    assert 100 <= len(kept.excerpt) <= 120
    assert kept.message.text == spread, "the message stays as it is stored"
    hidden = Message(role="assistant", parts=(TextPart(filler), tool_use("1", "find", {"of": f"{filler} needle"})))
    [kept] = cut_to_tokens([SearchHit(hidden, 1.0, "c")], 30, parse_query("needle"))
    assert (kept.excerpt or "").endswith("needle"), "found in the input of a tool"


COUNTERS: list[TokenCounter | None] = [
    None,
    len,
    lambda text: len(text.split()),
    lambda text: len(text.encode()) // 3 + 3,
    lambda text: 7 * (len(text) % 5) + len(text) // 4,
]


def total(hits: list[SearchHit], counter: TokenCounter | None) -> int:
    def size(text: str) -> int:
        return 0 if not text else estimate_tokens(len(text)) if counter is None else counter(text)

    return sum(
        size(hit.excerpt)
        if hit.excerpt is not None
        else sum(message_tokens(one, counter) for one in (*hit.before, hit.message, *hit.after))
        for hit in hits
    )


@pytest.mark.proves("token-cap")
@given(
    st.lists(st.tuples(messages(), st.lists(messages(), max_size=2)), max_size=8),
    st.integers(0, 400),
    st.sampled_from(COUNTERS),
    st.integers(1, 50),
)
def test_hits_never_have_more_tokens_than_the_cap(
    found: list[tuple[Message, list[Message]]], cap: int, counter: TokenCounter | None, times: int
) -> None:
    hits = [
        SearchHit(replace(one, id=str(n), parts=one.parts * times), 1.0, "c", (), tuple(beside), tuple(beside))
        for n, (one, beside) in enumerate(found)
    ]
    kept = cut_to_tokens(hits, cap, parse_query("a x 0"), counter=counter)
    assert total(kept, counter) <= cap
    assert bool(kept) is bool(hits and cap)
    places = [int(one.message.id) for one in kept]
    assert places == sorted(set(places)), "in the order of the hits"
    for place, one in zip(places, kept, strict=True):
        assert one.message == hits[place].message
        if message_tokens(one.message, counter) > cap:
            assert one.truncated


@given(
    st.text(st.characters(codec="utf-8"), max_size=300),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 20)), max_size=5),
    st.integers(0, 320),
)
def test_a_passage_is_no_longer_than_asked(text: str, places: list[tuple[int, int]], size: int) -> None:
    ranges: list[tuple[int, int]] = []
    for first, length in sorted(places):
        if first + length <= len(text) and (not ranges or ranges[-1][1] < first):
            ranges.append((first, first + length))
    start, stop = passage(text, ranges, size)
    assert 0 <= start <= stop <= len(text)
    assert stop - start <= size
    if any(last - first <= size for first, last in ranges):
        assert any(start <= first and last <= stop for first, last in ranges)
