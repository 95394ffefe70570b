"""Histories that save and follow automatically, on every backend."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from redis_history import AsyncRedisHistory, system, user
from redis_history.errors import InvalidInputError, MessageConflictError, RevisionConflictError, StoreClosedError
from redis_history.store.operations import Append, Clear, ReadChanges, ReadHead, Restore
from tests.support.histories import history_over, numbered, stored_texts, texts
from tests.support.servers import until

# Autosave


@pytest.mark.smoke
async def test_autosave_saves_and_follows(stores: Any) -> None:
    store, one, other = stores(), history_over(stores()), history_over(stores())
    seen: list[str] = []
    other.on("entry", lambda message: seen.append(message.text))
    await one.autosave("c")
    await other.autosave("c")
    with pytest.raises(InvalidInputError):
        await one.save("another conversation")
    for number in range(20):
        one.add_text("user", str(number))
    await one.flush()
    assert await stored_texts(store) == [str(number) for number in range(20)]
    await until(lambda: len(seen) == 20, "what one wrote")
    assert seen == [str(number) for number in range(20)]
    assert other.entries == one.entries == await store.get("c")
    for history in (one, other):
        await history.aclose()
        assert not history.autosaving


@pytest.mark.proves("history-events")
async def test_changes_of_every_kind_arrive(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    events: list[Any] = []
    await store.append_many("c", [user("a", id="a"), user("b", id="b")])
    await history.autosave("c")
    history.on("clear", lambda: events.append("clear"))
    history.on("restore", lambda messages: events.append([one.text for one in messages]))
    for change, expected in (
        (store.update_message("c", user("A", id="a")), ["A", "b"]),
        (store.delete_messages("c", ["b"]), ["A"]),
        (store.restore("c", [user("x"), user("y")]), ["x", "y"]),
        (store.clear("c"), []),
        (store.append("c", user("anew")), ["anew"]),
    ):
        await change
        await until(lambda expected=expected: texts(history) == expected, "the change")
    await stores.until_watched("c")
    await store.delete_conversation("c")
    await until(lambda: texts(history) == [], "the end")
    await store.append("c", user("another generation"))
    await until(lambda: texts(history) == ["another generation"], "the new conversation")
    assert events == [["x", "y"], "clear", "clear"]
    history.add_text("user", "still here")
    await history.flush()
    assert history.entries == await store.get("c")
    await history.aclose()


@contextlib.asynccontextmanager
async def nothing_is_sent(history: Any) -> AsyncIterator[None]:
    """Hold the lock with which a history sends."""
    lock = getattr(history, "_target", history)._sending
    await (lock.acquire() if isinstance(lock, asyncio.Lock) else asyncio.to_thread(lock.acquire))
    yield
    lock.release()


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
    async with nothing_is_sent(history):
        history.clear()
        history.add_text("user", "and")
        await store.append("c", user("meanwhile"))
    with pytest.raises(RevisionConflictError):
        await history.flush()
    await history.flush()  # it is raised once
    assert [type(error) for error in errors] == [RevisionConflictError]
    await until(lambda: texts(history) == ["s", "meanwhile", "and"], lambda: texts(history))
    assert history.entries == await store.get("c")
    for one in (history, other):
        await one.aclose()


@pytest.mark.proves("unsaved-limit")
async def test_an_id_that_is_taken_does_not_stop_the_rest(stores: Any) -> None:
    store, history = stores(), history_over(stores(), max_length=2)
    await store.append_many("c", [user("theirs", id="m"), *numbered(0, 1, 2)])
    await history.autosave("c")
    history.add_text("user", "a")
    history.add_entry(user("mine", id="m"))
    history.add_text("user", "b")
    with pytest.raises(MessageConflictError):
        await history.flush()
    await history.aclose()
    assert history.unsaved == []
    assert await stored_texts(store) == ["theirs", "0", "1", "2", "a", "b"]


@pytest.mark.proves("autosave")
async def test_close_saves_the_rest(stores: Any) -> None:
    history = history_over(stores())
    await history.autosave("c")
    for number in range(50):
        history.add_text("user", str(number))
    await history.aclose()
    await history.aclose()
    assert await stored_texts(stores()) == [str(number) for number in range(50)]
    for call in (history.load, history.save, history.autosave):
        with pytest.raises(StoreClosedError):
            await call("c")
    assert len(history) == 50


async def test_handlers_may_save(stores: Any) -> None:
    """No lock is held while a handler runs."""
    store, history = stores(), history_over(stores())
    target = getattr(history, "_target", history)
    flushed: list[int] = []

    async def flush() -> None:
        await target.flush()
        flushed.append(1)

    def handler(snapshot: Any) -> Any:
        if not snapshot or snapshot[-1].sequence is None:
            return None  # the addition itself, because the acknowledgement comes from the background
        if isinstance(target, AsyncRedisHistory):
            return flush()
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


# Late replies


class Held:
    """Holds the next reply to an operation of one kind until `let_go`."""

    def __init__(self, store: Any, kind: type) -> None:
        backend = getattr(store, "_target", store)._backend
        execute, kinds = backend.execute, [kind]
        self.reached, self._go = threading.Event(), threading.Event()

        def held(op: Any) -> bool:
            if type(op) not in kinds:
                return False
            kinds.clear()
            self.reached.set()
            return True

        async def execute_async(op: Any) -> Any:
            outcome = await execute(op)
            if held(op):
                await asyncio.to_thread(self._go.wait, 30)
            return outcome

        def execute_sync(op: Any) -> Any:
            outcome = execute(op)
            if held(op):
                self._go.wait(30)
            return outcome

        backend.execute = execute_async if inspect.iscoroutinefunction(execute) else execute_sync

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
    elif how == "delete_conversation":
        await store.delete_conversation("c")
        for number in range(5):  # another revision than any before
            await store.append("c", user(f"anew {number}"))
    else:
        done = await store.compact("c", through=stored[1], summary="summary")
        if how == "expand":
            await store.expand("c", done.summary.id)


def _do(history: Any, own: str) -> None:
    if own == "add":
        history.add_text("user", "mine")
    elif own == "clear":
        history.clear()
    else:
        history.restore([user("mine 1"), user("mine 2"), user("mine")])


#: The reply that is late, the change here, and that of others. By default, each of them with two others.
LATE = [
    pytest.param(kind, own, how, marks=[pytest.mark.full] * ((first - second) % 4 > 0))
    for first, (kind, own) in enumerate(
        [
            *((ReadChanges, "add"), (ReadHead, "clear"), (ReadHead, "restore")),
            *((Append, "add"), (Clear, "clear"), (Restore, "restore")),
        ]
    )
    for second, how in enumerate(
        ["append", "delete", "update", "clear", "restore", "compact", "expand", "delete_conversation"]
    )
]


@pytest.mark.proves("autosave")
@pytest.mark.backends("memory", "redis")
@pytest.mark.parametrize(("kind", "own", "how"), LATE)
@pytest.mark.full
async def test_a_late_reply_takes_nothing_back(stores: Any, how: str, kind: type, own: str) -> None:
    store, mine = stores(), stores()
    history = history_over(mine)
    await store.append_many("c", numbered(*range(4)))
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


@pytest.mark.parametrize("theirs", ["clear", "restore"])
async def test_a_clear_or_restore_of_others_is_not_taken_for_the_own(stores: Any, theirs: str) -> None:
    """Both act on the same revision, and theirs is first; so the own is rejected, and theirs is announced."""
    store, history = stores(), history_over(stores())
    await store.append_many("c", numbered(1, 2))
    await history.autosave("c")
    events: list[Any] = []
    history.on("error", lambda error: events.append(type(error).__name__))
    async with nothing_is_sent(history):
        history.restore([user("mine")]) if theirs == "restore" else history.clear()
        history.on("clear", lambda: events.append("clear"))
        history.on("restore", lambda messages: events.append([one.text for one in messages]))
        await (store.clear("c") if theirs == "clear" else store.restore("c", [user("theirs")]))
        expected = "clear" if theirs == "clear" else ["theirs"]
        await until(lambda: events == [expected], lambda: events)
    with pytest.raises(RevisionConflictError):
        await history.flush()
    assert events == [expected, "RevisionConflictError"]
    assert history.entries == await store.get("c")
    await history.aclose()


async def test_the_own_clear_and_restore_are_not_announced_as_those_of_others(stores: Any) -> None:
    store, mine = stores(), stores()
    history = history_over(mine)
    await store.append_many("c", numbered(1, 2))
    await history.autosave("c")
    events: list[str] = []
    for kind, act in ((Restore, lambda: history.restore([user("mine")])), (Clear, history.clear)):
        held = Held(mine, kind)
        act()
        unsubscribe = [history.on(name, lambda name=name: events.append(name)) for name in ("clear", "restore")]
        await until(held.reached.is_set, "the writing")
        revision = (await store.snapshot("c")).cursor.revision
        await until(lambda: history._syncer.cursor.revision == revision, "its event, before its reply")  # noqa: B023
        held.let_go()
        await history.flush()
        assert history.entries == await store.get("c")
        assert events == []
        for end in unsubscribe:
            end()
    await history.aclose()
