"""No query, filter or id leaves its conversation or its namespace, and none makes the server fail.

Documents are written by hand, so what is proved is the language of the calls; that the store uses them is proved where
the store is tested. `--full` runs it with 1,000 examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from redis_history import Message, Participant, Position, tool_use
from redis_history.requests import Filters, make_filters
from redis_history.search.redisearch import NAMESPACE
from tests.search.index import Index

IDS = [
    "a|b", "a", "b", "a*", "*", "{x}", "x", "{", "}", '"', "'", "a\\b", "a\\|b", " a ", "a b", "a\0b", "\0", "a\nb",
    "a,b", "🙂", "é", "e\u0301", "$c", "$p0", "%", "%61", "-a", "@c:{a}", "A", "ab", "\ud800", "x" * 512, "w'a'",
]  # fmt: skip
CONVERSATIONS = IDS[:20]

# Words the documents have, and everything with a meaning for the server.
PIECES = st.sampled_from(
    [
        *("tea", "teas", "milk", "电影", "影", "to", "be", "or", "not", "te*", "*", "**", '"', '"milk tea"', "“", "”"),
        *("|", "-", "~", "%", "%%tea%%", "@c:{*}", "@c:{a}", "@t:", "$p0", "$c", "(", ")", "{", "}", "[", "]", "=>"),
        *("{$slop:9}", "w'*'", "'", "\\", "\\\\", "\0", "\n", "\t", ",", ";", ":", "=", "<", ">", "!", "?", "#", "🙂"),
        *(
            "ismissing(@c)",
            "INKEYS",
            "(-@c:{a})",
            "[KNN 9 @v $p0]",
            "x" * 70,
            "\u200b",
            "\u202e",
            "\ud800",
            "é",
            "1e309",
        ),
    ]
)
QUERIES = st.one_of(
    st.lists(PIECES, max_size=12).map(" ".join),
    st.lists(PIECES, max_size=12).map("".join),
    st.text(st.characters(), max_size=80),
)
HOSTILE = st.one_of(st.sampled_from(IDS), st.text(st.characters(), min_size=1, max_size=12))
POSITIONS = st.none() | st.builds(Position, st.integers(-(2**53) + 1, 2**53 - 1), st.sampled_from([0, 1, 7]))
FILTERS = st.builds(
    make_filters,
    roles=st.none() | st.lists(st.sampled_from(["user", "assistant", "tool", "system"])),
    participant_ids=st.none() | st.lists(HOSTILE, max_size=3),
    scope=st.sampled_from([None, None, "dm", "thread", "channel"]),
    since=POSITIONS,
    before=POSITIONS,
    tool_names=st.none() | st.lists(HOSTILE, max_size=3),
    archived=st.sampled_from([None, None, False, True]),
)


def messages(conversation: str) -> list[Message]:
    """Each has a word of its own, `own<sequence>`, and words that others have."""
    return [
        Message(role="user", parts="milk tea own1", participant=Participant("user", conversation), sequence=1),
        Message(role="assistant", parts=("teas 电影 own2", tool_use("1", conversation)), sequence=2),
        Message(role="assistant", parts="to be or not to be own3", scope="dm", sequence=3),
    ]


@pytest.fixture
def indexes(make_index: Callable[..., Index]) -> list[Index]:
    """Two namespaces with the same conversations."""
    both = [make_index(), make_index()]
    for index in both:
        for conversation in CONVERSATIONS:
            index.add(conversation, messages(conversation))
    return both


def thorough(full: bool, examples: int = 1_000) -> Any:
    # Shrinking is for the long run: each example asks a server.
    phases = list(Phase) if full else [phase for phase in Phase if phase is not Phase.shrink]
    return settings(
        max_examples=examples if full else 100, deadline=None, phases=phases, suppress_health_check=list(HealthCheck)
    )


def test_no_query_leaves_its_conversation(indexes: list[Index], full: bool) -> None:
    @thorough(full)
    @given(st.sampled_from(indexes), st.sampled_from(CONVERSATIONS), QUERIES)
    def search(index: Index, conversation: str, query: str) -> None:
        for found in index.search([conversation], query):
            assert found.conversation == conversation
            assert found.sequence in (1, 2, 3)

    search()


def test_no_filter_leaves_its_conversation(indexes: list[Index], full: bool) -> None:
    index = indexes[0]

    @thorough(full)
    @given(st.sampled_from(CONVERSATIONS), QUERIES, FILTERS)
    def search(conversation: str, query: str, filters: Filters) -> None:
        found = index.search([conversation], query, filters)
        for one in found:
            assert one.conversation == conversation
            # The time of the documents is 0, of whatever position.
            kept = make_filters(
                roles=filters.roles,  # type: ignore[arg-type]
                participant_ids=filters.participant_ids,
                scope=filters.scope,
                tool_names=filters.tool_names,
            )
            assert kept.wants(messages(conversation)[one.sequence - 1])
            assert filters.archived is not True
        assert filters.impossible or index.count([conversation], filters) <= 3

    search()


def test_no_id_is_taken_for_another(make_index: Callable[..., Index], full: bool) -> None:
    index, other = make_index(), make_index()

    @thorough(full)
    @given(st.lists(HOSTILE, min_size=2, max_size=4, unique=True))
    def write_and_search(ids: list[str]) -> None:
        for conversation in ids:
            index.add(conversation, messages(conversation))
        other.add(ids[0], messages(ids[0]))
        try:
            for conversation in ids:
                for sequence in (1, 2, 3):
                    (found,) = index.search([conversation], f"own{sequence}")
                    assert (found.conversation, found.sequence) == (conversation, sequence)
                assert index.count([conversation]) == 3
                own = make_filters(participant_ids=[conversation])
                assert index.sequences([conversation], "tea", own) == [1]
                (found,) = index.search(NAMESPACE, "tea", own)
                assert found.conversation == conversation
                (found,) = index.search(NAMESPACE, "teas", make_filters(tool_names=[conversation]))
                assert found.conversation == conversation
            assert {found.conversation for found in index.search(ids, "tea")} == set(ids)
            assert {found.conversation for found in other.search(NAMESPACE, "tea")} == {ids[0]}
        finally:
            for conversation in ids:
                for sequence in (1, 2, 3):
                    index.remove(conversation, sequence)
                    other.remove(conversation, sequence)

    write_and_search()
    assert index.count() == other.count() == 0
