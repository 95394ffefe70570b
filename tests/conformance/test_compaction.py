import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import (
    HistoryCompacted,
    HistoryExpanded,
    Message,
    Participant,
    Position,
    assistant,
    errors,
    system,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.types import Compacted, Expanded
from redis_history.values.wire import encode_body
from tests.conformance.conftest import ids


def summary(content: str = "what was said", **fields: Any) -> Message:
    return user(content, metadata={"is_summary": True}, **fields)


async def _filled(store: Any, names: str = "abcdef", **fields: Any) -> list[Message]:
    appended = await store.append_many("c", [user(f"text {name}", id=name, **fields) for name in names])
    return [one.message for one in appended]


async def _totals(store: Any, name: str = "c") -> tuple[int, int, int]:
    found = await store.get_conversation(name)
    return found.message_count, found.characters, found.estimated_tokens


async def _expected_totals(store: Any, name: str = "c") -> tuple[int, int, int]:
    sizes = [len(message.text) for message in await store.get(name)]
    return len(sizes), sum(sizes), sum(-(-size // 4) for size in sizes)


@pytest.mark.proves("compaction", "every-change")
@pytest.mark.smoke
async def test_a_summary_takes_the_place_of_what_it_replaces(store: Any) -> None:
    before = await _filled(store)
    done = await store.compact("c", through="c", summary="a to c", seen=before[:3])
    assert done == Compacted(2, done.summary, 3, True)
    assert (done.summary.role, done.summary.text, done.summary.is_summary) == ("user", "a to c", True)
    assert done.summary.position == before[2].position
    assert await store.get("c") == [done.summary, *before[3:]]
    assert await store.get("c", include_archived=True) == [*before[:3], done.summary, *before[3:]]
    assert await _totals(store) == await _expected_totals(store)
    assert (await store.snapshot("c")).messages == await store.get("c")
    assert await store.get_message("c", "a") == before[0]
    assert await store.get_message("c", "c") == before[2]
    assert await store.get_message("c", done.summary.id) == done.summary


@pytest.mark.parametrize("kind", ["position", "message", "id"])
async def test_the_end_of_the_range_is_a_message_its_position_or_its_id(store: Any, kind: str) -> None:
    before = await _filled(store)
    through = {"position": before[2].position, "message": before[2], "id": "c"}[kind]
    await store.compact("c", through=through, summary=summary(id="s"))
    assert ids(await store.get("c")) == ["s", "d", "e", "f"]
    with pytest.raises(errors.MessageNotFoundError, match="nobody"):
        await store.compact("c", through="nobody", summary="x")


async def test_the_place_is_exact_among_equal_times(store: Any) -> None:
    before = await _filled(store, "abcdef", timestamp="2024-01-01")
    done = await store.compact("c", through="c", summary=summary(id="s"))
    assert done.summary.position == before[2].position
    assert ids(await store.get("c")) == ["s", "d", "e", "f"]
    assert ids(await store.get("c", before=before[3].position)) == ["s"]
    assert await store.get_message("c", "c") == before[2]
    await store.expand("c", "s")
    assert await store.get("c") == before


@pytest.mark.proves("archive")
@pytest.mark.smoke
async def test_expand_gives_back_the_exact_list(store: Any) -> None:
    messages = [
        system("You help.", id="sys"),
        user("hi", id="u", timestamp="2030-01-01", trace_id="t"),
        assistant(tool_use("1", "f", {"x": [1, None]}), id="a"),
        tool(tool_result("1", [{"type": "text", "text": "r"}]), id="t"),
        user("再见", id="z", timestamp="2020-01-01"),
    ]
    await store.append_many("c", messages)
    before, totals = await store.get("c"), await _totals(store)
    bodies = [encode_body(message) for message in before]
    done = await store.compact("c", through=before[-1], summary="all")
    assert await store.expand("c", done.summary.id) == Expanded(3, 4)
    after = await store.get("c")
    assert after == before
    assert [encode_body(message) for message in after] == bodies
    assert await _totals(store) == totals
    assert await store.get("c", include_archived=True) == before
    assert await store.get_message("c", done.summary.id) is None


async def test_system_messages_stay_where_they_are(store: Any) -> None:
    messages = [system("s1", id="s1"), *(user(name, id=name) for name in "ab"), system("s2", id="s2")]
    messages += [user("c", id="c"), system("s3", id="s3"), system("s4", id="s4"), user("d", id="d")]
    await store.append_many("c", messages)
    before = await store.get("c")
    done = await store.compact("c", through="s4", summary=summary(id="x"), seen=before[:7])
    assert done.count == 3
    assert done.summary.position == before[4].position
    assert ids(await store.get("c")) == ["s1", "s2", "x", "s3", "s4", "d"]
    assert await _totals(store) == await _expected_totals(store)
    await store.expand("c", "x")
    assert await store.get("c") == before


async def test_one_summary_rolls_on_and_absorbs_the_one_before(store: Any) -> None:
    before = await _filled(store)
    await store.compact("c", through="b", summary=summary("one", id="s1"))
    middle = await store.get("c")
    done = await store.compact("c", through="d", summary=summary("two", id="s2"), seen=middle[:3])
    assert done.count == 3
    assert ids(await store.get("c")) == ["s2", "e", "f"]
    assert ids(await store.get("c", include_archived=True)) == ["a", "b", "s1", "c", "d", "s2", "e", "f"]
    assert (await store.get_message("c", "b")).text == "text b"
    assert (await store.get_message("c", "s1")).text == "one"
    with pytest.raises(errors.MessageNotFoundError, match="s1"):
        await store.expand("c", "s1")
    assert await store.expand("c", "s2") == Expanded(4, 3)
    assert await store.get("c") == middle
    assert await store.expand("c", "s1") == Expanded(5, 2)
    assert await store.get("c") == before
    assert await _totals(store) == await _expected_totals(store)


async def test_nothing_to_do_is_said_not_done(store: Any) -> None:
    assert await store.compact("nobody", through=Position(10, 1), summary="x") == Compacted(0, None, 0, False)
    assert await store.get_conversation("nobody") is None
    await store.append("c", system("only this"))
    assert await store.compact("c", through=Position(2**52, 1), summary="x") == Compacted(1, None, 0, False)
    await store.append_many("c", [user("a", id="a"), user("b", id="b")])
    done = await store.compact("c", through="b", summary="x")
    assert done.changed
    again = await store.compact("c", through="a", summary="y")
    assert again == Compacted(3, None, 0, False)
    again = await store.compact("c", through="b", summary="y", seen=[done.summary])
    assert again == Compacted(3, None, 0, False)
    assert (await store.snapshot("c")).cursor.revision == 3


async def test_the_same_summary_again_changes_nothing(store: Any) -> None:
    before = await _filled(store)
    one = summary(id="s")
    first = await store.compact("c", through="c", summary=one, seen=before[:3], expected_revision=1)
    again = await store.compact("c", through="c", summary=one, seen=before[:3], expected_revision=1)
    assert again == replace(first, changed=False)
    await store.append("c", user("g"))
    assert await store.compact("c", through="c", summary=one, seen=before[:3]) == replace(first, changed=False)
    with pytest.raises(errors.RevisionConflictError):
        await store.compact("c", through="c", summary=one, expected_revision=2)
    assert (await store.snapshot("c")).cursor.revision == 3


async def test_the_same_summary_again_at_the_present_revision(store: Any) -> None:
    await _filled(store)
    one = summary(id="s")
    done = await store.compact("c", through="c", summary=one)
    again = await store.compact("c", through="s", summary=one, expected_revision=done.revision)
    assert again == Compacted(done.revision, None, 0, False)
    with pytest.raises(errors.MessageConflictError):
        await store.compact("c", through="e", summary=one, expected_revision=done.revision)
    assert (await store.snapshot("c")).cursor.revision == done.revision


@pytest.mark.proves("compaction")
async def test_a_summary_of_other_messages_is_refused(store: Any) -> None:
    before = await _filled(store)
    seen = before[:3]

    async def is_refused(match: str) -> None:
        revision = (await store.snapshot("c")).cursor.revision
        with pytest.raises(errors.CompactionConflictError, match=match):
            await store.compact("c", through="c", summary="x", seen=seen)
        assert (await store.snapshot("c")).cursor.revision == revision

    await store.append("c", user("in between", id="n", timestamp=before[1].timestamp))
    await is_refused("'n'")
    await store.delete_messages("c", ["n"])
    await store.update_message("c", user("changed", id="b"))
    await is_refused("'b'")
    await store.update_message("c", user("text b", id="b"))
    await store.delete_messages("c", ["a"])
    await is_refused("'a'")
    seen = before[1:3]
    assert (await store.compact("c", through="c", summary="x", seen=seen)).count == 2
    await is_refused("'b'|'c'")


async def test_a_summary_behind_the_range_is_not_left_alone(store: Any) -> None:
    await _filled(store, timestamp="2024-01-01")
    await store.compact("c", through="d", summary=summary(id="s"))
    await store.append_many("c", [user("old", id=name, timestamp="2023-01-01") for name in "xy"])
    with pytest.raises(errors.CompactionConflictError):
        await store.compact("c", through="y", summary="two")
    await store.compact("c", through="s", summary=summary(id="s2"))
    assert ids(await store.get("c")) == ["s2", "e", "f"]
    await store.expand("c", "s2")
    assert ids(await store.get("c")) == ["x", "y", "s", "e", "f"]


ANN, BOB = Participant("agent", "ann"), Participant("agent", "bob")
_WAITS = [user("q", id="q"), assistant(tool_use("1", "f"), id="a")]
_GIVEN_UP = [*_WAITS, user("are you there?", id="u"), assistant("yes", id="b")]
#: Messages, the last good end before other ends, and a good end.
PAIRS: dict[str, tuple[list[Message], dict[str, str], str]] = {
    "repeated ids": (
        [
            user("q", id="q"),
            assistant(tool_use("1", "f"), tool_use("2", "f"), id="a1"),
            tool(tool_result("2", "r"), id="t2"),
            tool(tool_result("1", "r"), id="t1"),
            assistant(tool_use("1", "f"), id="a2"),
            tool(tool_result("1", "r"), id="t3"),
        ],
        {"a1": "q", "t2": "q", "a2": "t1"},
        "t1",
    ),
    "a call that waits": ([*_WAITS, user("are you there?", id="u")], {"a": "q", "u": "q"}, "q"),
    "a call that was given up": (_GIVEN_UP, {}, "u"),
    "a result after all": (
        [*_GIVEN_UP, user("w", id="w"), tool(tool_result("1", "r"), id="t"), user("z", id="z")],
        dict.fromkeys("aubw", "q"),
        "t",
    ),
    "agents that number their calls alike": (
        [
            user("q", id="q"),
            assistant(tool_use("1", "f"), id="a", participant=ANN),
            assistant(tool_use("1", "g"), id="b", participant=BOB),
            tool(tool_result("1", "r"), id="r1"),
            user("w", id="w"),
            tool(tool_result("1", "s"), id="r2"),
        ],
        dict.fromkeys(("a", "b", "r1", "w"), "q"),
        "r2",
    ),
}


@pytest.mark.proves("pairs")
@pytest.mark.parametrize("case", PAIRS)
async def test_a_call_is_not_separated_from_its_result(store: Any, case: str) -> None:
    messages, bad, good = PAIRS[case]
    await store.append_many("c", messages)
    for through, better in bad.items():
        with pytest.raises(errors.InvalidInputError, match=f"through='{better}'"):
            await store.compact("c", through=through, summary="x")
    assert (await store.snapshot("c")).cursor.revision == 1
    await store.compact("c", through=good, summary=summary(id="s"))
    left = messages[ids(messages).index(good) + 1 :]
    assert ids(await store.get("c")) == ["s", *ids(left)]


async def test_subscribers_are_told(store: Any) -> None:
    await _filled(store)
    async with store.subscribe("c") as changes:
        await changes.get(timeout=0)
        done = await store.compact("c", through="c", summary="x")
        event = await changes.get(timeout=10)
        assert isinstance(event, HistoryCompacted)
        assert (event.summary, event.count, event.revision) == (done.summary, 3, 2)
        assert event.through == done.summary.position
        await store.expand("c", done.summary.id)
        event = await changes.get(timeout=10)
        assert isinstance(event, HistoryExpanded)
        assert (event.summary_id, event.count, event.revision) == (done.summary.id, 3, 3)


@pytest.mark.proves("compaction")
@pytest.mark.parametrize("seeing", [True, False])
async def test_of_two_compactors_one_compacts(stores: Any, seeing: bool) -> None:
    one, other = stores(), stores()
    before = await _filled(one, "abcdefghij")
    seen = before[:5] if seeing else None
    done = await asyncio.gather(
        *(
            who.compact("c", through="e", summary=f"by {index}", seen=seen)
            for index, who in enumerate([one, other] * 4)
        ),
        return_exceptions=True,
    )
    [winner] = [outcome for outcome in done if isinstance(outcome, Compacted) and outcome.changed]
    for outcome in done:
        assert isinstance(outcome, errors.CompactionConflictError if seeing and outcome is not winner else Compacted)
    assert [message for message in await one.get("c") if message.is_summary] == [winner.summary]
    assert (await one.snapshot("c")).cursor.revision == 2


async def test_appends_meanwhile_stay(stores: Any) -> None:
    store = stores()
    await _filled(store, "abcdefgh")

    async def appends(who: Any, name: str) -> None:
        for number in range(25):
            await who.append("c", user(f"{name} {number}", id=f"{name} {number}"))

    names: list[str] = []

    async def compacts(who: Any) -> None:
        while len(everyone := await who.get("c", include_archived=True)) - len(names) < 8 + 50 or not names:
            live = await who.get("c")
            one = summary(id=f"s{len(names)}")
            if (await who.compact("c", through=live[-1], summary=one, seen=live)).changed:
                names.append(one.id)
        assert len({message.id for message in everyone}) == len(everyone)

    await asyncio.gather(appends(stores(), "x"), appends(stores(), "y"), compacts(stores()))
    everything = await store.get("c", include_archived=True)
    originals = [one.id for one in everything if not one.is_summary]
    assert sorted(originals) == sorted([*"abcdefgh", *(f"{name} {number}" for name in "xy" for number in range(25))])
    assert ids(one for one in await store.get("c") if one.is_summary) == names[-1:]
    for name in reversed(names):
        await store.expand("c", name)
    assert ids(await store.get("c")) == originals
    assert await _totals(store) == await _expected_totals(store)


async def test_erasing_removes_a_former_summary_after_the_newer_one_was_deleted(store: Any) -> None:
    await _filled(store)
    await store.compact("c", through="b", summary=summary("quotes a", id="s1"))
    await store.compact("c", through="c", summary=summary("they talked", id="s2"))
    await store.delete_messages("c", ["s2"])
    assert await store.erase("c", ["a", "unknown"]) == 1
    assert ids(await store.get("c", include_archived=True)) == [*"bcdef"]
    assert await store.get_message("c", "s1") is None
    assert await _totals(store) == await _expected_totals(store)


async def test_erasing_expands_an_edited_summary(store: Any) -> None:
    await _filled(store)
    await store.compact("c", through="c", summary=summary("quotes a", id="s"))
    await store.update_message("c", user("in short: a", id="s"))
    assert await store.erase("c", ["a"]) == 1
    assert ids(await store.get("c")) == [*"bcdef"]
    assert await _totals(store) == await _expected_totals(store)


async def test_a_compaction_of_erased_messages_is_refused(stores: Any) -> None:
    store, compressor = stores(), stores()
    await _filled(store)
    seen = await compressor.get("c")
    await store.erase("c", ["a"])
    with pytest.raises(errors.CompactionConflictError):
        await compressor.compact("c", through="c", summary=summary("quotes a"), seen=seen[:3])
