from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import HistoryStore, Message, assistant, system, tool, tool_result, tool_use, user
from redis_history.agents.compaction import Plan, Policy
from redis_history.agents.compaction.policy import turn_in_progress
from redis_history.errors import InvalidInputError
from redis_history.values.ranges import good_ends, stays, tears
from redis_history.values.sizes import message_tokens


def ids(messages: Any) -> list[str]:
    return [message.id for message in messages]


def talk(count: int, size: int = 40) -> list[Message]:
    """Messages of `size` / 4 tokens."""
    return [user("x" * size, id=str(number)) for number in range(count)]


def planned(plan: Plan | None) -> Plan:
    assert plan is not None
    return plan


def test_nothing_to_do_within_all_limits() -> None:
    policy = Policy(max_tokens=100, max_messages=10, older_than="2020-01-01", keep_recent=0)
    assert policy.plan(talk(10)) is None
    assert policy.plan([]) is None


def test_too_many_messages_or_tokens() -> None:
    plan = planned(Policy(max_messages=10, keep_recent=2).plan(talk(20)))
    assert ids(plan.messages) == [str(number) for number in range(16)]
    assert (plan.previous, plan.enough, plan.through.id, plan.tokens) == (None, True, "15", 160)
    assert plan.reason.startswith("20 messages, 10 ")
    plan = planned(Policy(max_tokens=100, keep_recent=2, summary_tokens=10).plan(talk(20)))
    assert len(plan.seen) == 16  # 4 * 10 + 10 = 50
    assert plan.reason.startswith("200 tokens, 100 ")
    counted = Policy(max_tokens=20, keep_recent=1, summary_tokens=1, counter=len, target=1)
    assert ids(planned(counted.plan(talk(4, 8))).messages) == ["0", "1"]


def test_too_old() -> None:
    now = datetime(2026, 1, 10, tzinfo=UTC)
    messages = [user("x", id=str(day), timestamp=datetime(2026, 1, day, tzinfo=UTC)) for day in range(1, 10)]
    policy = Policy(older_than=timedelta(days=5), keep_recent=0, summary_tokens=1)
    assert ids(planned(policy.plan(messages, now=now)).messages) == ["1", "2", "3", "4"]
    assert policy.plan(messages, now=datetime(2026, 1, 5, tzinfo=UTC)) is None
    assert ids(planned(Policy(older_than="2026-01-03", keep_recent=0, summary_tokens=1).plan(messages)).messages) == [
        "1",
        "2",
    ]
    plan = planned(Policy(older_than=timedelta(days=1), keep_recent=6, summary_tokens=1).plan(messages, now=now))
    assert (ids(plan.messages), plan.enough) == (list("12345678"), True)
    both = planned(Policy(older_than="2026-01-03", max_messages=4, keep_recent=0, summary_tokens=1).plan(messages))
    assert len(both.messages) == 8
    assert both.reason.startswith("9 messages, 4 ")
    assert both.reason.endswith(plan.reason)


def test_the_turn_in_progress_and_system_messages_stay() -> None:
    messages = [system("x" * 4000, id="s"), *talk(10), system("y", id="t"), user("z", id="z")]
    policy = Policy(max_tokens=50, keep_recent=4, summary_tokens=10)
    plan = planned(policy.plan(messages))
    assert ids(plan.messages) == [str(number) for number in range(10)]
    assert not plan.enough
    turn = [user("z", id="z"), assistant(tool_use("1", "f"), id="c"), tool(tool_result("1", "r"), id="r")]
    for count in range(1, 4):
        plan = planned(policy.plan([*messages[:-1], *turn[:count]]))
        assert ids(plan.messages) == [str(number) for number in range(10)]
    plan = planned(policy.plan([*messages[:-1], *turn, assistant("done", id="d")]))
    assert ids(plan.messages)[-4:] == ["z", "c", "r", "d"]
    assert policy.plan([system("x" * 4000), *talk(2)]) is None


def test_messages_before_the_summary_leave_with_it() -> None:
    """Messages that came later, with their own times, precede it. A store has one summary only."""
    old, new = talk(6), [user("x", id=f"n{number}") for number in range(4)]
    summary = user("s", id="s", metadata={"is_summary": True})
    plan = planned(Policy(max_messages=6, keep_recent=2).plan([*old, summary, *new]))
    assert ids(plan.seen) == [*map(str, range(6)), "s", "n0", "n1"]
    assert plan.previous == summary
    plan = planned(Policy(max_messages=6, keep_recent=5, target=1).plan([*old, summary, *new]))
    assert ids(plan.seen) == [*map(str, range(6)), "s"]
    with HistoryStore("memory://") as store:
        store.append_many("c", [user(str(number), timestamp="2026-01-02") for number in range(10)])
        store.compact("c", through=store.get("c")[4], summary="s")
        store.append_many("c", [user(str(number), timestamp="2026-01-01") for number in range(10)])
        plan = planned(Policy(max_messages=12, keep_recent=2, summary_tokens=1).plan(store.get("c")))
        assert store.compact("c", through=plan.through, summary="t", seen=plan.seen).count == 11
        assert [message.is_summary for message in store.get("c")] == [True, *[False] * 5]


def test_no_plan_without_a_gain() -> None:
    """Else it would be done again and again."""
    policy = Policy(max_tokens=100, keep_recent=1, summary_tokens=50)
    assert policy.plan([*talk(1), user("x" * 4000)]) is None
    assert planned(policy.plan([*talk(2), user("x" * 4000)])).enough is False
    assert Policy(max_messages=1, keep_recent=1).plan(talk(2)) is None


def test_a_few_words_leave_unless_fewer_tokens_are_wanted() -> None:
    """A summary of them does not save tokens, but the other limits hold then."""
    summary = user("s" * 40, id="s", timestamp="2020-01-01", metadata={"is_summary": True})
    old = [user("ok", id=f"o{number}", timestamp="2020-01-01") for number in range(17)]
    for policy in (Policy(older_than="2025-01-01", keep_recent=2), Policy(max_messages=3, keep_recent=2)):
        for before in ([], [summary]):
            plan = planned(policy.plan([*before, *old[:16], *talk(2)]))
            assert (len(plan.messages), plan.enough) == (16, True)
    policy, big = Policy(max_tokens=100, keep_recent=2), user("x" * 4000)
    for before in ([], [summary]):
        assert policy.plan([*before, *old[:16], big]) is None
        assert len(planned(policy.plan([*before, *old, big])).messages) == 17
    policy = Policy(max_tokens=100, counter=len)
    assert policy.plan([*old, big]) is None
    assert policy.plan([*old, *old, big]) is not None


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"max_tokens": 0}, {"max_tokens": "5"}, {"max_messages": True}),
        *({"older_than": age} for age in ("yesterday", timedelta.max, timedelta(days=1_000_000))),
        *({"max_tokens": 1, "keep_recent": -1}, {"max_tokens": 1, "target": 0}, {"max_tokens": 1, "target": 1.5}),
        *({"max_tokens": 1, "summary_tokens": -1}, {"max_tokens": 1, "counter": 5}),
    ],
)
def test_invalid_policies_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Policy(**options)


PARTS = st.sampled_from(["x", "x" * 40, *(tool_use(n, "f") for n in "12"), *(tool_result(n, "r") for n in "12")])
ROLES = st.sampled_from([user, user, assistant, assistant, tool, system])
TALKS = st.lists(st.builds(lambda role, parts: role(parts), ROLES, st.lists(PARTS, max_size=3)), max_size=25)
LIMITS = st.fixed_dictionaries(
    {
        "max_tokens": st.none() | st.integers(1, 120),
        "max_messages": st.none() | st.integers(1, 20),
        "keep_recent": st.integers(0, 6),
        "target": st.sampled_from([0.3, 0.5, 1.0]),
        "summary_tokens": st.integers(0, 20),
    }
).filter(lambda limits: limits["max_tokens"] or limits["max_messages"])


def _meeting(live: list[Message], policy: Policy) -> Iterator[int]:
    """Each number of messages that could be left so that the limits hold, system messages not counted."""
    turn, ends = turn_in_progress(live), good_ends(live)
    leaving = [index for index, message in enumerate(live) if not stays(message)]
    for number, index in enumerate(leaving, 1):
        rest = [message for at, message in enumerate(live) if stays(message) or at > index]
        has_new = number > 1 or not live[index].is_summary  # a summary alone is not summarized again
        if ends[index] and index < turn and not any(message.is_summary for message in rest) and has_new:
            tokens = sum(map(message_tokens, rest)) + policy.summary_tokens
            fits = policy.max_tokens is None or tokens <= policy.max_tokens
            if fits and (policy.max_messages is None or len(rest) + 1 <= policy.max_messages):
                yield len(leaving) - number


@pytest.mark.proves("bounds")
@given(TALKS, LIMITS)
def test_plans_keep_their_promises(messages: list[Message], limits: dict[str, Any]) -> None:
    """And come to an end: each is taken by a store as it is, until there is nothing to do."""
    policy = Policy(**limits)
    with HistoryStore("memory://") as store:
        store.append_many("c", messages)
        before = store.get("c")
        for number in range(30):
            live = store.get("c")
            plan = policy.plan(live)
            if plan is None:
                break
            gone = list(plan.seen)
            left = [message for message in live if message not in gone]
            assert gone == [message for message in live if not stays(message)][: len(gone)]
            turn = live[turn_in_progress(live) :]
            assert [message for message in turn if message not in left] == []
            meeting = list(_meeting(live, policy))
            assert plan.enough == bool(meeting)
            if any(number >= policy.keep_recent for number in meeting):
                assert len([message for message in left if not stays(message)]) >= policy.keep_recent
            assert not tears(live, {message.id for message in gone})
            summary = user("y" * 4 * policy.summary_tokens or "y", id=f"s{number}", metadata={"is_summary": True})
            done = store.compact("c", through=plan.through, summary=summary, seen=plan.seen)
            assert (done.changed, done.count) == (True, len(gone))
            if plan.enough and policy.summary_tokens:
                after = store.get("c")
                assert len(after) <= (policy.max_messages or len(after))
                assert sum(map(message_tokens, after)) <= (policy.max_tokens or float("inf"))
        else:
            raise AssertionError("it never ends")
        for one in reversed(range(number)):
            store.expand("c", f"s{one}")
        assert store.get("c") == before
