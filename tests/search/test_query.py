"""The language of queries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.store.search.query import MAX_CANDIDATES, MAX_PHRASE, MAX_TERMS, Query, Term, parse_query, stop_words
from redis_history.store.search.words import is_unspaced, words


def _texts(query: Query) -> list[str]:
    marks = {"word": "{}", "phrase": '"{}"', "prefix": "{}*"}
    return [marks[term.kind].format(" ".join(term.words)) for term in query.terms]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What did Caroline say about camping?", ["caroline", "say", "camping"]),
        ("camping Camping CAMPING", ["camping"]),
        ('say "Green Tea" please', ["say", '"green tea"', "please"]),
        ("say “green tea” and „grüner Tee“", ["say", '"green tea"', '"grüner tee"']),
        ('"to be or not to be"', ['"to be or not to be"']),
        ('an unclosed "quote here', ["unclosed", "quote", "here"]),
        ('"" " " "!"', []),
        ('"camping"', ['"camping"']),
        ("camp* and swim*, or a*", ["camp*", "swim*"]),
        ("c* *c * a*b a * b", ["c", "b"]),
        ("**bold** and *this*", ["bold"]),
        ("snake_ca*", ["snake", "ca*"]),
        ("open src/main.py", ["open", "src", "main", "py", '"src main py"']),
        ("getName of it's", ["getname", "get", "name", '"getname get name"']),
        ("what is it", ["what", "is", "it"]),
        ("电影院", ["电影", "影院"]),
        ('"电影院"', ['"电影 影院"']),
        ("猫", ["猫*"]),
        ('"猫"', ["猫*"]),
        ("电影* 猫*", ["电影", "猫*"]),
        ("- OR | @c:{*} $c w'x'", ["c", "w", "x"]),
        ("🙂 … !", []),
        ("", []),
    ],
)
def test_terms(query: str, expected: list[str]) -> None:
    assert _texts(parse_query(query)) == expected


def test_stop_words_are_those_of_the_language() -> None:
    assert _texts(parse_query("wo ist das Auto, what is it", "german")) == [
        *["wo", "ist", "das", "auto", "what", "is", "it"]
    ]
    assert _texts(parse_query("what is it", "none")) == ["what", "is", "it"]


def test_no_more_terms_than_the_bound() -> None:
    assert len(parse_query(" ".join(f"word{n}" for n in range(1_000))).terms) == MAX_CANDIDATES
    (phrase,) = parse_query('"' + " ".join(f"word{n}" for n in range(100)) + '"').terms
    assert len(phrase.words) == MAX_PHRASE


def test_phrases_without_a_hit_become_words() -> None:
    query = parse_query('say "where is the green tea" and "of it"')
    assert _texts(query.widened([1, 0, 3])) == ["say", "green", "tea", '"of it"']
    assert _texts(query.widened([0, 2, 0])) == ["say", '"where is the green tea"', "of", "it"]


def test_the_rarest_terms_are_kept() -> None:
    query = parse_query(" ".join(f"word{n}" for n in range(300)))
    kept = _texts(query.rarest([n % 3 * 10 for n in range(300)]))
    assert len(kept) == MAX_TERMS
    assert {f"word{n}" for n in range(1, 300, 3)} <= set(kept), "those with 10 matches before those with 20"
    assert not {f"word{n}" for n in range(0, 300, 3)} & set(kept), "none without a match"


@pytest.mark.proves("linear-time")
@pytest.mark.parametrize("filler", ["a ", '"', "*", "x*", '"x" ', "电", "🙂", "\0", "the ", "ﷺ"])
@pytest.mark.full
def test_a_long_query_is_read_fast(filler: str) -> None:
    query = parse_query(filler * 1_000_000 + "needle")
    assert len(query.terms) <= MAX_TERMS
    assert Term("word", ("needle",)) not in query.terms


SYNTAX = st.sampled_from(['"', "*", " ", "the", "ab", "电影", "“", "”", "|", "@t:{x}", "$p0", "\\", "=>{$slop:9}"])


@pytest.mark.proves("search-isolated")
@given(st.one_of(st.text(st.characters(), max_size=500), st.lists(SYNTAX, max_size=40).map("".join)))
def test_any_text_is_a_query(query: str) -> None:
    parsed = parse_query(query)
    assert len(parsed.terms) <= MAX_TERMS
    assert len(set(parsed.terms)) == len(parsed.terms)
    for term in parsed.terms:
        assert term.words
        assert term.kind == "phrase" or len(term.words) == 1
        if term.kind == "prefix":
            assert len(term.word) >= 2 or is_unspaced(term.word)
        assert all(words(word)[:1] == [word] for word in term.words)
    stopped = [term for term in parsed.terms if term.kind == "word" and term.word in stop_words("english")]
    assert not stopped or stopped == list(parsed.terms)


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=60))
def test_any_part_of_a_text_in_quotes_is_found_as_a_phrase(written: str) -> None:
    inner = written.replace('"', " ").replace("“", " ").replace("”", " ").replace("„", " ")
    for term in parse_query(f'"{inner}"').terms:
        have = words(inner)
        size = len(term.words)
        if term.kind == "phrase":
            assert any(tuple(have[at : at + size]) == term.words for at in range(len(have)))
