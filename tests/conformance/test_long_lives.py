"""A conversation with hundreds of compactions is read, erased, forked, exported and expanded like any other.

The index of its archives has blocks of 50 (lua/_archive.lua), so these lives have several."""

from pathlib import Path
from typing import Any

import pytest

from redis_history import Message, errors, user
from redis_history.values import Position
from redis_history.values.events import BEGINNING, HistoryExpanded
from tests.conformance.conftest import ids, take
from tests.conformance.test_compaction import _expected_totals, _totals, summary
from tests.conformance.test_transfer import exported, import_into
from tests.support.faults import killed_before

COUNT = 130
SERVERS = pytest.mark.backends("plain", "redis", "valkey", "cluster")


async def lived(store: Any, count: int = COUNT, name: str = "c") -> list[str]:
    """Compact a conversation `count` times: s3 replaces s2 and m3. Returns the ids of all messages in order."""
    order = []
    for number in range(count):
        await store.append(name, user(f"text {number}", id=f"m{number}"))
        await store.compact(name, through=f"m{number}", summary=summary(f"sum {number}", id=f"s{number}"))
        order += [f"m{number}", f"s{number}"]
    await store.append(name, user("the last", id="last"))
    return [*order, "last"]


async def _every(store: Any, name: str = "c") -> list[Message]:
    return [one async for one in store.iter(name, batch=30, include_archived=True)]


@pytest.mark.proves("archive", "long-lives")
@pytest.mark.full
async def test_windows_of_a_long_life(store: Any) -> None:
    order = await lived(store)
    every = await _every(store)
    assert ids(every) == ids(await store.get("c", include_archived=True)) == order
    at = {one.id: one.position for one in every}
    assert ids(await store.get("c", limit=7, include_archived=True)) == order[-7:]
    for middle in (3, 49, 50, 77, 128):
        before = await store.get("c", limit=5, before=at[f"m{middle}"], include_archived=True)
        assert ids(before) == order[: 2 * middle][-5:]
        since = await store.get("c", since=at[f"m{middle}"], include_archived=True)
        # A summary has the position of the last message that it replaced.
        assert ids(since) == order[2 * middle + 2 :]
        assert (await store.get_message("c", f"s{middle}")).text == f"sum {middle}"
        assert (await store.append("c", user(f"text {middle}", id=f"m{middle}"))).duplicate
    assert await _totals(store) == await _expected_totals(store)


@pytest.mark.proves("archive")
async def test_messages_with_times_of_the_past_are_found_in_a_long_life(store: Any) -> None:
    """All of their archives extend from the earlier times to the present."""
    for number in range(COUNT):
        old = user("old", id=f"o{number}", timestamp=f"2001-01-01T00:00:{number % 60:02}.{number:06}Z")
        await store.append_many("c", [old, user("new", id=f"m{number}")])
        await store.compact("c", through=f"m{number}", summary=summary(id=f"s{number}"))
    for number in range(0, COUNT, 7):
        for name in (f"o{number}", f"m{number}", f"s{number}"):
            assert (await store.get_message("c", name)).id == name
    assert len(await _every(store)) == 3 * COUNT
    assert await store.delete_messages("c", [f"o{number}" for number in range(COUNT)]) == COUNT
    assert ids(await _every(store)) == [name for number in range(COUNT) for name in (f"m{number}", f"s{number}")]


@pytest.mark.proves("erase")
async def test_an_erasure_takes_all_summaries_of_a_long_life_that_may_quote(store: Any) -> None:
    order = await lived(store)
    cursor = (await store.snapshot("c")).cursor
    subscription = store.subscribe("c", after=cursor)
    assert await store.erase("c", ["m40"]) == 1
    # The newest compactions were expanded before, so that their other messages are live.
    left = [name for name in order if name[0] != "s" or int(name[1:]) < 40]
    left.remove("m40")
    assert ids(await _every(store)) == left
    assert await _totals(store) == await _expected_totals(store)
    while isinstance(event := await subscription.get(timeout=10), HistoryExpanded):
        pass
    assert "m40" in event.message_ids
    assert {name for name in event.message_ids if name != "m40"} <= {f"s{number}" for number in range(40, COUNT)}
    await subscription.aclose()
    for name in ("s40", "s100", f"s{COUNT - 1}"):
        assert await store.get_message("c", name) is None
        assert not (await store.append("c", user("anew", id=name))).duplicate
    await store.compact("c", through=f"m{COUNT - 1}", summary=summary(id="again"))
    assert await store.erase("c", ["m3"]) == 1
    assert {name for name in ids(await _every(store)) if name[0] == "s"} == {"s0", "s1", "s2", "s40", "s100", "s129"}


@SERVERS
@pytest.mark.proves("erase")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.full
async def test_an_erasure_that_is_killed_is_made_for_all_readers(stores: Any, number: int) -> None:
    """Messages that it must still remove are already invisible to all readers, and the next caller can continue."""
    store, other = stores(), stores()
    order = await lived(store)
    with killed_before(store, "scrub", number):
        await store.erase("c", ["m0"])
    left = [name for name in order if name[0] != "s" and name != "m0"]
    for reader in (store, other):
        assert ids(await _every(reader)) == ids(await reader.get("c", include_archived=True)) == left
        assert [await reader.get_message("c", name) for name in ("m0", "s0", "s1", "s60")] == [None] * 4
    assert ids(await other.get("c", limit=3, before=(await other.get_message("c", "m5")).position,
                               include_archived=True)) == ["m2", "m3", "m4"]  # fmt: skip
    assert await other.delete_messages("c", ["s10", "m10"]) == 1
    with pytest.raises(errors.MessageNotFoundError):
        await other.update_message("c", user("x", id="s11"))
    changed = await other.append("c", user("anew", id="s12"))
    assert not changed.duplicate
    assert (await other.append("c", user("anew", id="s12"))).duplicate
    left = [one for one in left if one != "m10"] + ["s12"]
    await other.fork("c", "d")
    assert await other.erase("c", ["m0"]) == 0
    for name in ("c", "d"):
        assert ids(await _every(other, name)) == left
        assert (await other.get_message(name, "s12")).text == "anew"
    assert await _totals(other) == await _expected_totals(other)


@SERVERS
@pytest.mark.parametrize("act", ["expand", "fork", "export", "erase", "clear", "delete_conversation"])
@pytest.mark.full
async def test_what_comes_after_an_erasure_that_was_killed(stores: Any, tmp_path: Path, act: str) -> None:
    store = stores()
    await lived(store, 60)
    kept = await store.append("c", user("more", id="more"))
    await store.compact("c", through=kept.message, summary=summary(id="top"))
    await store.delete_messages("c", ["top"])  # an erasure would expand it and all others
    with killed_before(store, "scrub"):
        await store.erase("c", ["m0"])
    await store.append("c", user("new", id="new"))
    await store.compact("c", through="new", summary=summary(id="top"))
    left = [*(f"m{number}" for number in range(1, 60)), "last", "more", "new", "top"]
    if act == "expand":
        assert (await store.expand("c", "top")).count == 1
        left.remove("top")
    elif act == "fork":
        await store.fork("c", "d")
        assert ids(await _every(store, "d")) == left
    elif act == "export":
        await exported(store, tmp_path / "file")
        await store.delete_conversation("c")
        await import_into(store, tmp_path / "file")
    elif act == "erase":
        assert await store.erase("c", ["m1", "s1"]) == 1
        left.remove("m1")
        left.remove("top")
    else:
        await getattr(store, act)("c")
        left = []
    assert ids(await _every(store)) == left


@pytest.mark.proves("fork", "backup", "long-lives")
@pytest.mark.full
async def test_copies_of_a_long_life(store: Any, tmp_path: Path) -> None:
    """A fork, and the import of an export, are equal to the original, also after all summaries are expanded."""
    order = await lived(store)
    await store.delete_messages("c", ["s20", "m21", "m77", "m78"])
    order = [name for name in order if name not in ("s20", "m21", "m77", "m78")]
    source = await _every(store)
    await exported(store, tmp_path / "file")
    await store.fork("c", "d")
    assert await _every(store, "d") == source
    assert await store.get("d") == await store.get("c")
    await store.fork("d", "e", through="m90")
    assert ids(await _every(store, "e")) == [*order[: order.index("m90") + 1], "s90"]
    assert ids(await store.get("e")) == ["s90"]
    await store.delete_conversation("c")
    await import_into(store, tmp_path / "file")
    for name in ("c", "d"):
        assert await _every(store, name) == source
        assert await store.erase(name, ["m100"]) == 1
        live = ids(await store.get(name))
        assert not {f"s{number}" for number in range(100, COUNT)} & {*live}
        while found := [one for one in await store.get(name) if one.is_summary]:
            await store.expand(name, found[0].id)
        # Where a summary was deleted, the chain ends.
        assert ids(await store.get(name))[-1] == "last"
        assert await _totals(store, name) == await _expected_totals(store, name)
    assert ids(await _every(store, "d")) == ids(await _every(store, "c"))


@pytest.mark.proves("archive")
@pytest.mark.parametrize("act", ["clear", "delete_conversation", "restore"])
@pytest.mark.full
async def test_a_long_life_ends(store: Any, act: str) -> None:
    await lived(store, 60)
    await (store.restore("c", []) if act == "restore" else getattr(store, act)("c"))
    assert await _every(store) == []
    assert ids(await _every(store)) == []
    order = await lived(store, 3)
    assert ids(await _every(store)) == order


@SERVERS
@pytest.mark.proves("ttl")
async def test_archives_of_a_long_life_live_on(stores: Any) -> None:
    """A change renews all archives that would otherwise expire too soon."""
    store = stores(ttl=3600)
    order = await lived(store, 60)
    await stores(ttl=7200).append("c", user("x", id="x"))
    assert ids(await _every(store)) == [*order, "x"]


async def test_subscribers_get_the_changes_of_a_long_life(store: Any) -> None:
    await lived(store, 60)
    subscription = store.subscribe("c", after=BEGINNING)
    events = await take(subscription, 121)
    assert ids(one for event in events for one in getattr(event, "messages", ())) == [
        *(f"m{number}" for number in range(60)),
        "last",
    ]
    await subscription.aclose()


async def test_a_page_of_one_position_is_whole(store: Any) -> None:
    """If compactions replace only a summary and earlier messages, their summaries share a position."""
    await store.append("c", user("now", id="now"))
    await store.compact("c", through="now", summary=summary(id="s0"))
    at: Position = (await store.get_message("c", "s0")).position
    for number in range(1, 4):
        old = user("old", id=f"o{number}", timestamp=f"2001-01-0{number}")
        await store.append("c", old)
        await store.compact("c", through=at, summary=summary(id=f"s{number}"))
    assert ids(await _every(store)) == ["o1", "o2", "o3", "now", "s0", "s1", "s2", "s3"]
    assert ids(await store.get("c", limit=1, include_archived=True)) == ["s3"]
    assert await store.erase("c", ["now"]) == 1
    assert ids(await _every(store)) == ["o1", "o2", "o3"]
