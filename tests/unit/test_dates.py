"""The times that a query names."""

from datetime import UTC, datetime

import pytest

from redis_history.store.search.query import MAX_QUERY_CHARACTERS, named_periods, parse_query
from redis_history.values.times import from_microseconds

NOW = datetime(2026, 11, 22, 15, 30, tzinfo=UTC)  # a Sunday


def named(query: str) -> list[tuple[str, str]]:
    return [
        (f"{from_microseconds(begin):%Y-%m-%d}", f"{from_microseconds(end):%Y-%m-%d}")
        for begin, end in named_periods(query, NOW)
    ]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("What did Ann paint on 7 July, 2023?", ("2023-07-07", "2023-07-08")),
        ("dinner on May 3rd 2023", ("2023-05-03", "2023-05-04")),
        ("the 1st of december 2024", ("2024-12-01", "2024-12-02")),
        ("What happened in December 2023?", ("2023-12-01", "2024-01-01")),
        ("log of 2023-05-07", ("2023-05-07", "2023-05-08")),
        ("log of 2023-05", ("2023-05-01", "2023-06-01")),
        ("the beach in 2023", ("2023-01-01", "2024-01-01")),
        ("what we said yesterday", ("2026-11-21", "2026-11-22")),
        ("plans for today", ("2026-11-22", "2026-11-23")),
        ("last week's budget", ("2026-11-09", "2026-11-16")),
        ("this week", ("2026-11-16", "2026-11-23")),
        ("last month", ("2026-10-01", "2026-11-01")),
        ("last year", ("2025-01-01", "2026-01-01")),
        ("last May", ("2026-05-01", "2026-06-01")),
        ("last November", ("2025-11-01", "2025-12-01")),
        ("29 February 2024", ("2024-02-29", "2024-03-01")),
        ("Was war am 7. Juli 2023?", ("2023-07-07", "2023-07-08")),
        ("das Essen am 07.05.2024", ("2024-05-07", "2024-05-08")),
        ("letzten Mai", ("2026-05-01", "2026-06-01")),
        ("der März 2024", ("2024-03-01", "2024-04-01")),
        ("im Jahr 2023", ("2023-01-01", "2024-01-01")),
        ("diese Woche", ("2026-11-16", "2026-11-23")),
        ("und vorgestern?", ("2026-11-20", "2026-11-21")),
        ("2023年5月7日我们去了哪里", ("2023-05-07", "2023-05-08")),
        ("2023年12月", ("2023-12-01", "2024-01-01")),
        ("我们2023年去了哪里", ("2023-01-01", "2024-01-01")),
        ("去年十二月三十一号", ("2025-12-31", "2026-01-01")),
        ("今年三月", ("2026-03-01", "2026-04-01")),
        ("去年的电影", ("2025-01-01", "2026-01-01")),
        ("昨天", ("2026-11-21", "2026-11-22")),
        ("上个月说的", ("2026-10-01", "2026-11-01")),
        ("上周五", ("2026-11-09", "2026-11-16")),
    ],
)
def test_a_time(query: str, wanted: tuple[str, str]) -> None:
    assert named(query) == [wanted]


def test_a_date_without_a_year_is_of_any_of_ten() -> None:
    found = named("When did they go camping in June?")
    assert found[:2] == [("2026-06-01", "2026-07-01"), ("2025-06-01", "2025-07-01")]
    assert len(found) == 10
    assert named("on 24 December")[0] == ("2025-12-24", "2025-12-25")
    assert len(named("29 February")) == 2


NO_TIMES = [
    "", "You may go", "May I?", "31 June 2023", "2023-13-01", "version 2023-05-07-1", "1999", "march 40, 2023",
    "3个月", "十五月", "周围", "31.02.2023", "1.2.3",
]  # fmt: skip


@pytest.mark.parametrize("query", NO_TIMES)
def test_no_time(query: str) -> None:
    assert named(query) == []


def test_many_times_and_long_queries_are_bounded() -> None:
    assert len(parse_query("in June on 3 May in July on 4 August").periods) == 30
    assert parse_query("7 July 2023 " * (MAX_QUERY_CHARACTERS // 10)).periods == parse_query("7 July 2023").periods
