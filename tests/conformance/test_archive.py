"""Archived messages are read, found and deleted with the others; caps do not count them."""

from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import user
from redis_history.errors import MessageConflictError, MessageNotFoundError
from redis_history.types import Expanded
from tests.conformance.conftest import ids
from tests.conformance.test_compaction import _expected_totals, _filled, _totals, summary


@pytest.mark.proves("archive")
async def test_what_is_archived_is_known(store: Any) -> None:
    """Its ids stay taken, it cannot be edited, and it can be deleted."""
    before = await _filled(store)
    await store.compact("c", through="c", summary=summary(id="s"))
    again = await store.append("c", user("text a", id="a"))
    assert (again.duplicate, again.message) == (True, before[0])
    with pytest.raises(MessageConflictError):
        await store.append("c", user("other", id="a"))
    with pytest.raises(MessageNotFoundError):
        await store.update_message("c", user("other", id="c"))
    assert await store.delete_messages("c", ["a", "c", "e"]) == 3
    assert ids(await store.get("c")) == ["s", "d", "f"]
    assert ids(await store.get("c", include_archived=True)) == ["b", "s", "d", "f"]
    assert await store.get_message("c", "c") is None
    assert await _totals(store) == await _expected_totals(store)
    assert await store.expand("c", "s") == Expanded(4, 1)
    assert ids(await store.get("c")) == ["b", "d", "f"]
    assert await _totals(store) == await _expected_totals(store)


async def test_the_summary_may_be_edited_and_deleted(store: Any) -> None:
    before = await _filled(store)
    await store.compact("c", through="c", summary=summary(id="s"))
    await store.update_message("c", summary("better", id="s"))
    assert (await store.get("c"))[0].text == "better"
    assert await store.delete_messages("c", ["s"]) == 1
    assert ids(await store.get("c", include_archived=True)) == ids(before)
    assert await store.get("c", include_archived=True) == before
    with pytest.raises(MessageNotFoundError):
        await store.expand("c", "s")
    await store.compact("c", through="d", summary=summary(id="s"))
    await store.expand("c", "s")
    assert ids(await store.get("c")) == ["d", "e", "f"]
    assert await _totals(store) == await _expected_totals(store)


@pytest.mark.proves("archive")
@pytest.mark.parametrize("how", ["clear", "restore", "delete_conversation", "clear of nothing live"])
async def test_what_takes_all_messages_takes_the_archive_too(store: Any, how: str) -> None:
    before = await _filled(store)
    await store.compact("c", through="c", summary=summary(id="s1"))
    await store.compact("c", through="e", summary=summary(id="s2"))
    if how == "clear of nothing live":
        await store.delete_messages("c", ["s2", "f"])
        how = "clear"
    await (store.restore("c", [user("new", id="n")]) if how == "restore" else getattr(store, how)("c"))
    left = ["n"] if how == "restore" else []
    assert ids(await store.get("c", include_archived=True)) == left
    assert await store.get_message("c", "a") is None
    assert await store.get_message("c", "s1") is None
    with pytest.raises(MessageNotFoundError):
        await store.expand("c", "s2")
    await store.append_many("c", [replace(one, timestamp=None, sequence=None) for one in before])
    assert ids(await store.get("c", include_archived=True)) == [*left, *ids(before)]
    assert await _totals(store) == await _expected_totals(store)


async def test_a_cap_counts_what_is_live(stores: Any) -> None:
    store = stores(max_messages=4)
    await _filled(store, "abcd")
    await store.compact("c", through="c", summary=summary(id="s"))
    await _filled(store, "ef")
    assert ids(await store.get("c")) == ["s", "d", "e", "f"]
    await _filled(store, "g")  # the oldest is the summary, and its originals stay in the archive
    assert ids(await store.get("c")) == ["d", "e", "f", "g"]
    assert ids(await store.get("c", include_archived=True)) == [*"abcdefg"]
    assert await _totals(store) == await _expected_totals(store)
    with pytest.raises(MessageNotFoundError):
        await store.expand("c", "s")
    await store.compact("c", through="e", summary=summary(id="s"))
    assert ids(await store.get("c")) == ["s", "f", "g"]
    await store.expand("c", "s")
    assert ids(await store.get("c")) == ["d", "e", "f", "g"]


async def test_what_is_archived_is_found(stores: Any) -> None:
    store = stores()
    await store.append_many("c", [user(f"fish number {name}", id=name) for name in "abcdef"])
    await store.compact("c", through="b", summary=summary("about salmon", id="s1"))

    async def found(query: str, **options: Any) -> set[str]:
        options = {"limit": 100, "token_cap": None, **options}
        hits = await store.search("c", query, **options)
        if stores.backend in ("memory", "redis", "valkey"):
            every = await store.search_all(query, **options)
            assert {(hit.message.id, hit.archived) for hit in every} == {(hit.message.id, hit.archived) for hit in hits}
        for hit in hits:
            assert hit.message == await store.get_message("c", hit.message.id)
            assert hit.archived == (hit.message not in await store.get("c"))
        assert len({hit.message.id for hit in hits}) == len(hits)
        return {hit.message.id for hit in hits}

    assert await found("fish") == set("abcdef")
    assert await found("fish", archived=True) == set("ab")
    assert await found("fish", archived=False) == set("cdef")
    assert await found("salmon") == {"s1"}
    await store.compact("c", through="d", summary=summary("about herrings", id="s2"))
    assert await found("salmon") == set()  # a former summary: what it stood for is found itself
    assert await found("herrings") == {"s2"}
    assert await found("fish", archived=True) == set("abcd")
    await store.update_message("c", summary("about eels", id="s2"))
    assert await found("herrings eels") == {"s2"}
    await store.delete_messages("c", ["b", "d"])
    assert await found("fish number") == set("acef")
    assert await found("eels fish", archived=False) == {"s2", "e", "f"}
    [hit] = [hit for hit in await store.search("c", "fish number c", context=2) if hit.message.id == "c"]
    assert (ids(hit.before)[-1:], hit.after) == (["s1"], ())
    await store.expand("c", "s2")
    assert await found("salmon eels") == {"s1"}
    assert await found("fish", archived=True) == {"a"}
    await store.expand("c", "s1")
    assert await found("fish salmon") == set("acef")
    assert await found("fish", archived=True) == set()
    await store.compact("c", through="e", summary="x")
    await store.clear("c")
    assert await found("fish x") == set()
