"""Histories over every backend: loaded, saved, and kept the same."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from itertools import pairwise
from typing import Any

import pytest

from redis_history import AsyncRedisHistory, Plugin, assistant, system, tool_use, user
from redis_history.errors import (
    BatchTooLargeError,
    CapabilityError,
    InvalidConversationIdError,
    InvalidInputError,
    InvalidMessageError,
    MessageConflictError,
    RevisionConflictError,
    StoreClosedError,
)
from redis_history.operations import Append, Clear, ReadChanges, ReadHead, Restore
from tests.support.histories import Dropping, history_over, texts
from tests.support.servers import until


@pytest.mark.smoke
async def test_what_is_saved_is_loaded(stores: Any) -> None:
    history = history_over(stores())
    history.add_system("Be brief.")
    history.add_message("user", ["see ", tool_use("1", "f")])
    assert history.unsaved == history.entries
    assert await history.save("c") == 2
    assert history.unsaved == []
    other = history_over(stores())
    await other.load("c")
    assert other.entries == history.entries == await stores().get("c")
    assert [entry.sequence for entry in other.entries] == [1, 2]
    assert (other.get_system_message(), other.conversation_id) == ("Be brief.", "c")


@pytest.mark.proves("histories")
async def test_saving_sends_only_what_is_new(stores: Any) -> None:
    history = history_over(stores())
    await history.load("c")
    for number in range(5):
        history.add_text("user", str(number))
        assert await history.save() == 1
    assert await history.save("c") == 0
    assert (await stores().snapshot("c")).cursor.revision == 5


async def test_two_histories_that_save_keep_both_additions(stores: Any) -> None:
    store, one, other = stores(), history_over(stores()), history_over(stores())
    await store.append("c", user("first"))
    await one.load("c")
    await other.load("c")
    one.add_text("user", "of one")
    other.add_text("user", "of other")
    await one.save("c")
    await other.save("c")
    assert texts(other) == ["first", "of one", "of other"]
    assert other.entries == await store.get("c")
    one.add_text("user", "more")
    await one.save("c")
    assert one.entries == await store.get("c")
    assert texts(one) == ["first", "of one", "of other", "more"]


async def test_saving_without_loading_merges(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await store.append("c", user("there"))
    history.add_text("user", "mine")
    await history.save("c")
    assert texts(history) == ["there", "mine"]
    assert history.entries == await store.get("c")


@pytest.mark.proves("histories")
async def test_loading_keeps_what_is_not_saved(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("c", [system("Be brief."), user("there")])
    history.add_system("Be brief.")
    history.add_text("user", "mine")
    await history.load("c")
    assert texts(history) == ["Be brief.", "there", "mine"]
    assert await history.save() == 1
    assert history.entries == await store.get("c")


async def test_a_history_of_another_conversation_is_not_overwritten(stores: Any) -> None:
    history = history_over(stores())
    await history.load("a")
    history.add_text("user", "for a")
    with pytest.raises(InvalidInputError):
        await history.load("b")
    await history.save()
    await history.load("b")
    assert history.entries == []


async def test_saving_elsewhere_copies(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("a", [user("1"), assistant("2")])
    await history.load("a")
    history.add_text("user", "3")
    assert await history.save("b") == 3
    assert [message.text for message in await store.get("b")] == ["1", "2", "3"]
    assert [message.text for message in await store.get("a")] == ["1", "2"]
    assert history.conversation_id == "b"


@pytest.mark.proves("no-overwrite")
@pytest.mark.parametrize("rewrite", ["clear", "restore", "reset"])
async def test_a_rewrite_overwrites_nobody(stores: Any, rewrite: str) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("c", [user("1"), user("2")])
    await history.load("c")
    _rewrite(history, rewrite)
    history.add_text("user", "after")
    await store.append("c", user("meanwhile"))
    with pytest.raises(RevisionConflictError):
        await history.save()
    assert [message.text for message in await store.get("c")] == ["1", "2", "meanwhile"]
    await history.load("c")
    assert texts(history) == ["1", "2", "meanwhile", "after"]
    _rewrite(history, rewrite)
    await history.save()
    assert history.entries == await store.get("c")
    assert "1" not in texts(history)


def _rewrite(history: Any, how: str) -> None:
    if how == "restore":
        history.restore([system("anew")])
    else:
        getattr(history, how)()


@pytest.mark.proves("autosave")
async def test_adds_and_rewrites_are_saved_in_order(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await history.load("c")
    history.add_text("user", "a")
    history.clear()
    history.add_text("user", "b")
    history.restore([system("s"), *history.entries, user("c")])
    history.add_text("user", "d")
    assert texts(history) == ["s", "b", "c", "d"]
    await history.save()
    assert texts(history) == ["s", "b", "c", "d"]
    assert history.entries == await store.get("c")


@pytest.mark.compaction
async def test_a_summary_of_any_plugin_is_a_compaction(stores: Any) -> None:
    class Summary(Plugin):
        async def reduce(self, entries: Any, options: Any) -> Any:
            return [user("[summary]"), *entries[-2:]]

    store, history = stores(), history_over(stores())
    await store.append_many("c", [user(str(number)) for number in range(6)])
    await history.load("c")
    before = history.entries
    history.use(Summary())
    await history.reduce(max_tokens=1)
    await history.save()
    live = await store.get("c")
    assert [message.text for message in live] == ["[summary]", "4", "5"]
    assert history.entries == live
    every = await store.get("c", include_archived=True)
    assert [message for message in every if not message.is_summary] == before


async def test_entries_left_out_by_a_plugin_stay_in_the_store(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("c", [user(str(number)) for number in range(6)])
    await history.load("c")
    history.use(Dropping())
    history.add_text("user", "6")
    assert await history.reduce(max_entries=2) == 5
    assert texts(history) == ["5", "6"]
    await history.save()
    assert texts(history) == ["5", "6"]
    await store.append("c", user("of others"))
    history.add_text("user", "7")
    await history.save()
    assert texts(history) == ["5", "6", "of others", "7"]
    assert [message.text for message in await store.get("c")] == [*map(str, range(7)), "of others", "7"]
    await history.load("c")
    assert history.entries == await store.get("c")


@pytest.mark.compaction
async def test_a_plugin_may_leave_out_and_summarise(stores: Any) -> None:
    """Left-out entries are archived with the summarised messages around them."""

    class Both(Plugin):
        async def reduce(self, entries: Any, options: Any) -> Any:
            return [entries[0], user("[summary]"), entries[3], *entries[5:]]

    store, history = stores(), history_over(stores())
    await store.append_many("c", [system("s"), *(user(str(number)) for number in range(1, 8))])
    await history.load("c")
    history.use(Both())
    for shown, stored in (("3567", "34567"), ("57", "4567"), ("7", "67")):
        await history.reduce(max_tokens=1)
        assert texts(history) == ["s", "[summary]", *shown]
        await history.save()
        assert texts(history) == ["s", "[summary]", *shown]
        assert [message.text for message in await store.get("c")] == ["s", "[summary]", *stored]
    every = await store.get("c", include_archived=True)
    assert [one.text for one in every if not one.is_summary] == ["s", *map(str, range(1, 8))]


@pytest.mark.parametrize("how", ["edit", "two", "system", "reorder", "insert"])
async def test_a_plugin_cannot_rewrite_a_stored_conversation_by_a_reduction(stores: Any, how: str) -> None:
    class Odd(Plugin):
        def reduce(self, entries: Any, options: Any) -> Any:
            return {
                "edit": [user("other", id=entries[0].id), *entries[1:]],
                "two": [user("x"), user("y"), *entries[2:]],
                "system": [system("x"), *entries[2:]],
                "reorder": entries[::-1],
                "insert": [*entries[:2], user("x"), *entries[3:]],
            }[how]

    store, history = stores(), history_over(stores())
    await store.append_many("c", [user(str(number)) for number in range(4)])
    await history.load("c")
    history.use(Odd())
    with pytest.raises(InvalidInputError):
        await history.reduce(max_tokens=1)
    assert await history.save() == 0
    assert history.entries == await store.get("c")
    assert (await store.snapshot("c")).cursor.revision == 1


@pytest.mark.proves("no-overwrite")
async def test_bounds_take_nothing_from_the_store(stores: Any) -> None:
    store, history = stores(), history_over(stores(), max_length=3)
    await store.append_many("c", [system("s"), *(user(str(number)) for number in range(6))])
    await history.load("c")
    assert texts(history) == ["s", "4", "5"]
    for number in (6, 7, 8, 9):
        history.add_text("user", str(number))
    assert texts(history) == ["s", "8", "9"]
    await history.save()
    assert texts(history) == ["s", "8", "9"]
    assert [message.text for message in await store.get("c")] == ["s", *map(str, range(10))]
    history.use(_Rewriting())
    with pytest.raises(InvalidInputError):
        await history.reduce()
    assert texts(history) == ["s", "8", "9"]


class _Rewriting(Plugin):
    async def reduce(self, entries: Any, options: Any) -> Any:
        return [user("other")]


async def test_invalid_input_is_rejected_before_sending(stores: Any) -> None:
    history = history_over(stores())
    await history.load("c")
    with pytest.raises(InvalidMessageError):
        history.add_entry(user("x", metadata={"a": {1, 2}}))
    with pytest.raises(InvalidMessageError):
        history.add_text("user", "\ud800")
    with pytest.raises(BatchTooLargeError):
        history.restore([user(str(number)) for number in range(1001)])
    assert (history.entries, history.unsaved) == ([], [])
    for call in (history.load, history.save, history.autosave):
        with pytest.raises(InvalidConversationIdError):
            await call("")
    for call in (history_over(stores()).save, history_over(stores()).autosave):
        with pytest.raises(InvalidInputError):
            await call()
    transient = history_over(stores(), transient=True)
    for call in (transient.load, transient.save, transient.autosave):
        with pytest.raises(InvalidInputError, match="transient"):
            await call("c")


async def test_a_large_save_is_split_into_batches(stores: Any) -> None:
    history = history_over(stores(max_messages=None) if stores.backend != "memory" else stores())
    for number in range(1100):
        history.add_text("user", str(number))
    assert await history.save("c") == 1100
    assert texts(history) == [str(number) for number in range(1100)]
    snapshot = await stores().snapshot("c", limit=2000)
    assert (snapshot.cursor.revision, snapshot.messages) == (2, history.entries)


async def test_a_conversation_deleted_and_created_again(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("c", [user("1"), user("2")])
    await store.append("c", user("3"))
    await history.load("c")
    await store.delete_conversation("c")
    history.add_text("user", "mine")
    assert await history.save() == 1
    assert texts(history) == ["mine"]
    assert history.entries == await store.get("c")
    history.clear()
    await history.save()
    assert history.entries == await store.get("c") == []


async def test_a_long_conversation_is_loaded_while_others_write(stores: Any) -> None:
    options = {} if stores.backend == "memory" else {"max_messages": None}
    store, history = stores(**options), history_over(stores(**options))
    for start in range(0, 4500, 900):
        await store.append_many("c", [user(str(number), id=str(number)) for number in range(start, start + 900)])
    done = asyncio.Event()

    async def others() -> None:
        number = 0
        while not done.is_set() and number < (100 if stores.custom else 4000):  # files are slow
            await store.append("c", user(f"other {number}"))
            await store.delete_messages("c", [str(number)])
            number += 1

    writing = asyncio.create_task(others())
    for _ in range(3):
        await history.load("c")
    done.set()
    await writing
    history.add_text("user", "mine")
    await history.save()
    stored = await store.get("c")
    assert history.entries == stored
    assert len(stored) == 4501


async def test_the_same_id_with_other_content_is_a_conflict(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await history.load("c")
    await store.append("c", user("theirs", id="m"))
    history.add_entry(user("mine", id="m"))
    with pytest.raises(MessageConflictError):
        history.add_entry(user("another", id="m"))
    assert len(history.entries) == 1
    with pytest.raises(MessageConflictError):
        await history.save()
    await history.load("c")
    assert (texts(history), history.unsaved) == (["theirs"], [])


# Autosave


@pytest.mark.smoke
async def test_autosave_saves_and_follows(stores: Any) -> None:
    store, one, other = stores(), history_over(stores()), history_over(stores())
    seen: list[str] = []
    other.on("entry", lambda message: seen.append(message.text))
    await one.autosave("c")
    await other.autosave("c")
    assert one.autosaving
    for number in range(20):
        one.add_text("user", str(number))
    await one.flush()
    assert [message.text for message in await store.get("c")] == [str(number) for number in range(20)]
    await until(lambda: len(seen) == 20, "what one wrote")
    assert seen == [str(number) for number in range(20)]
    assert other.get_snapshot() is other.get_snapshot()
    assert other.entries == one.entries == await store.get("c")
    for history in (one, other):
        await history.aclose()
        assert not history.autosaving


async def test_both_have_the_order_of_the_store(stores: Any) -> None:
    store, one, other = stores(), history_over(stores()), history_over(stores())
    await one.autosave("c")
    await other.autosave("c")
    for number in range(30):
        one.add_text("user", f"one {number}")
        other.add_text("assistant", f"other {number}")
        if number % 10 == 0:
            await store.append("c", user(f"early {number}", timestamp=f"2020-01-01T00:00:{number:02d}Z"))
    await one.flush()
    await other.flush()
    await until(lambda: len(one) == len(other) == 63, lambda: (len(one), len(other)))
    stored = await store.get("c")
    await until(lambda: one.entries == other.entries == stored, "the same order")
    for name in ("one", "other"):
        mine = [message.text for message in stored if message.text.startswith(f"{name} ")]
        assert mine == [f"{name} {number}" for number in range(30)]
    for history in (one, other):
        await history.aclose()


@pytest.mark.proves("history-events")
async def test_changes_of_every_kind_arrive(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    events: list[Any] = []
    await store.append_many("c", [user("a", id="a"), user("b", id="b")])
    await history.autosave("c")
    history.on("clear", lambda: events.append("clear"))
    history.on("restore", lambda messages: events.append([one.text for one in messages]))
    await store.update_message("c", user("A", id="a"))
    await until(lambda: texts(history) == ["A", "b"], "the update")
    await store.delete_messages("c", ["b"])
    await until(lambda: texts(history) == ["A"], "the deletion")
    await store.restore("c", [user("x"), user("y")])
    await until(lambda: texts(history) == ["x", "y"], "the restore")
    await store.clear("c")
    await until(lambda: texts(history) == [], "the clearing")
    await store.append("c", user("anew"))
    await until(lambda: texts(history) == ["anew"], "the append")
    await stores.until_watched("c")
    await store.delete_conversation("c")
    await until(lambda: texts(history) == [], "the end")
    await store.append("c", user("another life"))
    await until(lambda: texts(history) == ["another life"], "the other life")
    assert events == [["x", "y"], "clear", "clear"]
    history.add_text("user", "still here")
    await history.flush()
    assert history.entries == await store.get("c")
    await history.aclose()


async def test_a_local_rewrite_is_saved_or_reported(stores: Any) -> None:
    store, history, other = stores(), history_over(stores()), history_over(stores())
    await history.autosave("c")
    await other.autosave("c")
    for number in range(4):
        history.add_text("user", str(number))
    history.restore([system("s")])
    await history.flush()
    await until(lambda: texts(other) == ["s"] and other.entries == history.entries, "the restore")
    errors: list[Exception] = []
    history.on("error", errors.append)
    await _lose_a_race(store, history)
    with pytest.raises(RevisionConflictError):
        await history.flush()
    await history.flush()  # told once
    assert [type(error) for error in errors] == [RevisionConflictError]
    await until(lambda: texts(history) == ["s", "meanwhile", "and"], lambda: texts(history))
    assert history.entries == await store.get("c")
    for one in (history, other):
        await one.aclose()


async def _lose_a_race(store: Any, history: Any) -> None:
    """A rewrite that is decided on before the news of a change of somebody else, and sent after it."""
    target = getattr(history, "_target", history)
    if isinstance(target._sending, asyncio.Lock):
        await target._sending.acquire()
    else:
        await asyncio.to_thread(target._sending.acquire)
    history.clear()
    history.add_text("user", "and")
    await store.append("c", user("meanwhile"))
    target._sending.release()


@pytest.mark.proves("unsaved-limit")
async def test_an_id_that_is_taken_does_not_stop_the_rest(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("c", [user("theirs", id="m"), *(user(str(number)) for number in range(3))])
    bounded = history_over(stores(), max_length=2)
    await bounded.autosave("c")
    bounded.add_text("user", "a")
    bounded.add_entry(user("mine", id="m"))
    bounded.add_text("user", "b")
    with pytest.raises(MessageConflictError):
        await bounded.flush()
    await bounded.aclose()
    assert bounded.unsaved == []
    await history.load("c")
    assert texts(history) == ["theirs", "0", "1", "2", "a", "b"]


async def test_messages_the_server_cannot_confirm_yet_are_saved_later(stores: Any) -> None:
    """With `durability="replicas"` a server without a replica refuses each write, until it has one."""
    mine = stores()
    history = history_over(mine)
    await history.autosave("c")
    backend = getattr(mine, "_target", mine)._backend
    execute, errors = backend.execute, []
    history.on("error", errors.append)

    def refused(op: Any) -> Any:
        if type(op) in (Append, Clear):
            raise CapabilityError("no replica")
        return execute(op)

    backend.execute = refused
    history.add_text("user", "first")
    history.clear()
    history.add_text("user", "second")
    with pytest.raises(CapabilityError):
        await history.flush()
    await until(lambda: errors, "the failure")
    assert texts(history) == ["second"]
    assert [message.text for message in history.unsaved] == ["first", "second"]
    backend.execute = execute
    await history.flush()
    assert history.unsaved == []
    assert [message.text for message in await stores().get("c")] == ["second"]
    await history.aclose()


@pytest.mark.proves("autosave")
async def test_close_saves_the_rest(stores: Any) -> None:
    history = history_over(stores())
    await history.autosave("c")
    for number in range(50):
        history.add_text("user", str(number))
    await history.aclose()
    await history.aclose()
    assert [message.text for message in await stores().get("c")] == [str(number) for number in range(50)]
    for call in (history.load, history.save, history.autosave):
        with pytest.raises(StoreClosedError):
            await call("c")
    assert len(history) == 50


async def test_one_conversation_at_a_time(stores: Any) -> None:
    history = history_over(stores())
    await history.autosave("c")
    await history.autosave()
    for call in (history.load, history.save, history.autosave):
        with pytest.raises(InvalidInputError):
            await call("d")
    await history.aclose()


async def test_handlers_may_save(stores: Any) -> None:
    """A handler is called when nothing is held that it might want."""
    store, history = stores(), history_over(stores())
    target = getattr(history, "_target", history)
    flushed: list[int] = []

    def handler(snapshot: Any) -> Any:
        if not snapshot or snapshot[-1].sequence is None:
            return None  # told where it was added; the news that it is stored comes from the background
        if isinstance(target, AsyncRedisHistory):
            return _flush(target, flushed)
        target.flush()
        flushed.append(1)
        return None

    await history.autosave("c")
    history.on("change", handler)
    history.add_text("user", "mine")
    await until(lambda: flushed, "the handler")
    await store.append("c", user("theirs"))
    await until(lambda: len(history) == 2 and len(flushed) >= 2, "the handlers")
    await history.aclose()


async def _flush(history: AsyncRedisHistory, flushed: list[int]) -> None:
    await history.flush()
    flushed.append(1)


# Replies that come late

CHANGES = ["append", "delete", "update", "clear", "restore", "compact", "expand", "delete_conversation"]


class Held:
    """Holds the next reply to an operation of one kind until it is let go."""

    def __init__(self, store: Any, kind: type) -> None:
        self._backend = getattr(store, "_target", store)._backend
        self._execute = self._backend.execute
        self._kind: type | None = kind
        self.reached, self._go = threading.Event(), threading.Event()
        self._backend.execute = self._later if inspect.iscoroutinefunction(self._execute) else self._late

    async def _later(self, op: Any) -> Any:
        outcome = await self._execute(op)
        if type(op) is self._kind:
            self._kind = None
            self.reached.set()
            await asyncio.to_thread(self._go.wait, 30)
        return outcome

    def _late(self, op: Any) -> Any:
        outcome = self._execute(op)
        if type(op) is self._kind:
            self._kind = None
            self.reached.set()
            self._go.wait(30)
        return outcome

    def let_go(self) -> None:
        self._go.set()


async def _change(store: Any, how: str) -> None:
    stored = await store.get("c")
    if how == "append":
        await store.append("c", user("one more"))
    elif how == "delete":
        await store.delete_messages("c", [stored[0].id])
    elif how == "update":
        await store.update_message("c", user("changed", id=stored[-1].id))
    elif how == "clear":
        await store.clear("c")
    elif how == "restore":
        await store.restore("c", [user("r1"), user("r2"), user("r3")])
    elif how == "compact":
        await store.compact("c", through=stored[1], summary="summary")
    elif how == "expand":
        done = await store.compact("c", through=stored[1], summary="summary")
        await store.expand("c", done.summary.id)
    else:
        await store.delete_conversation("c")
        for number in range(5):  # another revision than any before
            await store.append("c", user(f"anew {number}"))


@pytest.mark.proves("autosave")
@pytest.mark.backends("memory", "redis")
@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (ReadChanges, "add"),
        (ReadHead, "clear"),
        (ReadHead, "restore"),
        (Append, "add"),
        (Clear, "clear"),
        (Restore, "restore"),
    ],
)
@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.compaction
async def test_a_late_reply_takes_nothing_back(stores: Any, how: str, kind: type, own: str) -> None:
    store, mine = stores(), stores()
    history = history_over(mine)
    await store.append_many("c", [user(str(number)) for number in range(4)])
    await history.autosave("c")
    reached: list[Any] = [history._syncer.cursor]
    history.on("change", lambda: reached.append(history._syncer.cursor))
    await _change(store, "append")
    await until(lambda: len(history) == 5, "the first change")
    held = Held(mine, kind)
    if kind is ReadHead:
        await _change(store, "expand")  # its event carries no content, so the conversation is read again
    elif kind is ReadChanges:
        await _change(store, how)
    if kind in (ReadHead, ReadChanges):
        await until(held.reached.is_set, "the reading")
        await _change(store, how)
        _do(history, own)
    else:
        _do(history, own)
        await until(held.reached.is_set, "the writing")
        if how != "append" and len(await store.get("c")) < 3:
            await store.append_many("c", [user("more"), user("and more")])
        await _change(store, how)
    await store.append("c", user("last"))
    held.let_go()
    await until(lambda: texts(history)[-1:] == ["last"] or "mine" in texts(history)[-1:], lambda: texts(history))
    with contextlib.suppress(RevisionConflictError):
        await history.flush()
    stored = await store.get("c")
    await until(lambda: history.entries == stored, lambda: (texts(history), [one.text for one in stored]))
    for before, after in pairwise(reached):
        assert before.epoch != after.epoch or before.revision <= after.revision
    with contextlib.suppress(RevisionConflictError):
        await history.aclose()


def _do(history: Any, own: str) -> None:
    if own == "add":
        history.add_text("user", "mine")
    elif own == "clear":
        history.clear()
    else:
        history.restore([user("mine 1"), user("mine 2"), user("mine")])


@pytest.mark.parametrize("theirs", ["clear", "restore"])
async def test_a_clear_or_restore_of_others_is_not_taken_for_the_own(stores: Any, theirs: str) -> None:
    """Both act on the same revision, and theirs is first; so the own is refused, and theirs is announced."""
    store, mine = stores(), stores()
    history = history_over(mine)
    await store.append_many("c", [user("1"), user("2")])
    await history.autosave("c")
    told: list[Any] = []
    history.on("error", lambda error: told.append(type(error).__name__))
    target = getattr(history, "_target", history)
    if isinstance(target._sending, asyncio.Lock):
        await target._sending.acquire()
    else:
        await asyncio.to_thread(target._sending.acquire)
    history.restore([user("mine")]) if theirs == "restore" else history.clear()
    history.on("clear", lambda: told.append("clear"))
    history.on("restore", lambda messages: told.append([one.text for one in messages]))
    await (store.clear("c") if theirs == "clear" else store.restore("c", [user("theirs")]))
    wanted = "clear" if theirs == "clear" else ["theirs"]
    await until(lambda: told == [wanted], lambda: told)
    target._sending.release()
    with pytest.raises(RevisionConflictError):
        await history.flush()
    assert told == [wanted, "RevisionConflictError"]
    assert history.entries == await store.get("c")
    await history.aclose()


async def test_the_own_clear_and_restore_are_not_announced_as_those_of_others(stores: Any) -> None:
    store, mine = stores(), stores()
    history = history_over(mine)
    await store.append_many("c", [user("1"), user("2")])
    await history.autosave("c")
    told: list[str] = []
    for kind, act in ((Restore, lambda: history.restore([user("mine")])), (Clear, history.clear)):
        held = Held(mine, kind)
        act()
        ends = [history.on(name, lambda name=name: told.append(name)) for name in ("clear", "restore")]
        await until(held.reached.is_set, "the writing")
        revision = (await store.snapshot("c")).cursor.revision
        await until(lambda: history._syncer.cursor.revision == revision, "its event, before its reply")  # noqa: B023
        held.let_go()
        await history.flush()
        assert history.entries == await store.get("c")
        assert told == []
        for end in ends:
            end()
    await history.aclose()
