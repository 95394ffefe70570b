"""Histories over every backend: loaded, saved, and kept the same."""

import asyncio
from typing import Any

import pytest

from redis_history import Plugin, assistant, errors, system, tool, tool_result, tool_use, user
from redis_history.store.operations import ReadChanges
from tests.support.histories import Dropping, history_over, numbered, stored_texts, texts


@pytest.mark.smoke
@pytest.mark.proves("histories")
async def test_save_sends_what_is_new_and_load_reads_all(stores: Any) -> None:
    history = history_over(stores())
    history.add_system("Be brief.")
    history.add_message("user", ["see ", tool_use("1", "f")])
    assert history.unsaved == history.entries
    assert await history.save("c") == 2
    assert history.unsaved == []
    for number in range(5):
        history.add_text("user", str(number))
        assert await history.save() == 1
    assert await history.save("c") == 0
    other = history_over(stores())
    await other.load("c")
    assert other.entries == history.entries == await stores().get("c")
    assert [entry.sequence for entry in other.entries] == [*range(1, 8)]
    assert (other.get_system_message(), other.conversation_id) == ("Be brief.", "c")
    assert (await stores().snapshot("c")).cursor.revision == 6


@pytest.mark.proves("histories")
async def test_loading_keeps_what_is_not_saved(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("a", [system("Be brief."), user("there")])
    history.add_system("Be brief.")
    history.add_text("user", "mine")
    await history.load("a")
    assert texts(history) == ["Be brief.", "there", "mine"]
    with pytest.raises(errors.InvalidInputError):
        await history.load("b")
    assert await history.save() == 1
    assert history.entries == await store.get("a")
    history.add_text("user", "3")
    assert await history.save("b") == 4, "another conversation gets all entries"
    assert await stored_texts(store, "b") == ["Be brief.", "there", "mine", "3"]
    assert await stored_texts(store, "a") == ["Be brief.", "there", "mine"]
    await history.load("d")
    assert history.entries == []


@pytest.mark.proves("no-overwrite")
@pytest.mark.parametrize("rewrite", ["clear", "restore", "reset"])
async def test_a_rewrite_overwrites_nobody(stores: Any, rewrite: str) -> None:
    store, history = stores(), history_over(stores())

    def do_rewrite() -> None:
        history.restore([system("anew")]) if rewrite == "restore" else getattr(history, rewrite)()

    await store.append_many("c", numbered(1, 2))
    await history.load("c")
    do_rewrite()
    history.add_text("user", "after")
    await store.append("c", user("meanwhile"))
    with pytest.raises(errors.RevisionConflictError):
        await history.save()
    assert await stored_texts(store) == ["1", "2", "meanwhile"]
    await history.load("c")
    assert texts(history) == ["1", "2", "meanwhile", "after"]
    do_rewrite()
    await history.save()
    assert history.entries == await store.get("c")
    assert "1" not in texts(history)


@pytest.mark.proves("no-overwrite")
@pytest.mark.parametrize("rewrite", ["clear", "restore", "reset"])
@pytest.mark.parametrize("loaded", ["before", "meanwhile"])
async def test_a_rewrite_removes_no_reply_that_it_did_not_show(stores: Any, rewrite: str, loaded: str) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("c", numbered(1, 2))
    if loaded == "before":
        await history.load("c")
    async with store.stream("c", id="r") as reply:
        await reply.write("an answer")
        if loaded == "before":
            history.add_text("user", "3")
            await history.save()  # which also reads the beginning of the reply
        else:
            await history.load("c")
        assert "r" not in {entry.id for entry in history.entries}
        history.restore(history.entries[:1]) if rewrite == "restore" else getattr(history, rewrite)()
        with pytest.raises(errors.RevisionConflictError, match="a reply is being written"):
            await history.save()
    assert (await store.get_message("c", "r")).text == "an answer"
    await history.load("c")
    assert "an answer" in texts(history)
    history.clear()
    await history.save()
    assert await store.get("c") == []


async def test_entries_left_out_by_a_plugin_stay_in_the_store(stores: Any) -> None:
    store, history = stores(), history_over(stores())
    await store.append_many("c", numbered(*range(6)))
    await history.load("c")
    history.use(Dropping())
    history.add_text("user", "6")
    assert await history.reduce(max_entries=2) == 5
    await history.save()
    assert texts(history) == ["5", "6"]
    await store.append("c", user("of others"))
    history.add_text("user", "7")
    await history.save()
    assert texts(history) == ["5", "6", "of others", "7"]
    assert await stored_texts(store) == [*map(str, range(7)), "of others", "7"]
    await history.load("c")
    assert history.entries == await store.get("c")


async def test_a_plugin_may_leave_out_and_summarize(stores: Any) -> None:
    """A summary is a compaction. Left-out entries are archived with the summarized messages around them."""

    class Both(Plugin):
        async def reduce(self, entries: Any, options: Any) -> Any:
            return [entries[0], user("[summary]"), entries[3], *entries[5:]]

    store, history = stores(), history_over(stores())
    await store.append_many("c", [system("s"), *numbered(*range(1, 8))])
    await history.load("c")
    history.use(Both())
    for shown, stored in (("3567", "34567"), ("57", "4567"), ("7", "67")):
        await history.reduce(max_tokens=1)
        assert texts(history) == ["s", "[summary]", *shown]
        await history.save()
        assert texts(history) == ["s", "[summary]", *shown]
        assert await stored_texts(store) == ["s", "[summary]", *stored]
    every = await store.get("c", include_archived=True)
    assert [one.text for one in every if not one.is_summary] == ["s", *map(str, range(1, 8))]


@pytest.mark.parametrize("how", ["edit", "two", "system", "reorder", "insert"])
async def test_a_plugin_cannot_rewrite_a_stored_conversation_by_a_reduction(stores: Any, how: str) -> None:
    class Rewriting(Plugin):
        def reduce(self, entries: Any, options: Any) -> Any:
            return {
                "edit": [user("other", id=entries[0].id), *entries[1:]],
                "two": [user("x"), user("y"), *entries[2:]],
                "system": [system("x"), *entries[2:]],
                "reorder": entries[::-1],
                "insert": [*entries[:2], user("x"), *entries[3:]],
            }[how]

    store, history = stores(), history_over(stores())
    await store.append_many("c", numbered(*range(4)))
    await history.load("c")
    history.use(Rewriting())
    with pytest.raises(errors.InvalidInputError):
        await history.reduce(max_tokens=1)
    assert await history.save() == 0
    assert history.entries == await store.get("c")
    assert (await store.snapshot("c")).cursor.revision == 1


@pytest.mark.proves("no-overwrite")
async def test_limits_remove_nothing_from_the_store(stores: Any) -> None:
    class Summarizing(Plugin):
        async def reduce(self, entries: Any, options: Any) -> Any:
            return [user("other")]

    store, history = stores(), history_over(stores(), max_length=3)
    await store.append_many("c", [system("s"), *numbered(*range(6))])
    await history.load("c")
    assert texts(history) == ["s", "4", "5"]
    for number in (6, 7, 8, 9):
        history.add_text("user", str(number))
    await history.save()
    assert texts(history) == ["s", "8", "9"]
    assert await stored_texts(store) == ["s", *map(str, range(10))]
    history.use(Summarizing())
    with pytest.raises(errors.InvalidInputError):
        await history.reduce()
    assert texts(history) == ["s", "8", "9"]


@pytest.mark.proves("no-overwrite")
@pytest.mark.parametrize("loaded", [None, "d"])
async def test_entries_beyond_the_limits_are_saved_to_any_conversation(stores: Any, loaded: str | None) -> None:
    store, history = stores(), history_over(stores(), max_length=3)
    if loaded is not None:
        await history.load(loaded)
    history.add_system("s")
    for number in range(6):
        history.add_text("user", str(number))
    assert len(history.unsaved) == 7
    assert await history.save("c") == 7
    assert texts(history) == ["s", "4", "5"]
    assert await stored_texts(store) == ["s", *map(str, range(6))]


@pytest.mark.proves("histories")
@pytest.mark.parametrize("unpinned", [False, True])
async def test_a_compaction_by_others_leaves_the_call_of_a_later_pinned_result(stores: Any, unpinned: bool) -> None:
    store, history = stores(), history_over(stores())
    result = tool(tool_result("t", "rules"), id="pin", metadata={"pinned": True})
    await store.append_many("c", [user("a"), assistant(tool_use("t", "f")), user("b"), result, user("c")])
    await history.load("c")
    await store.compact("c", through="pin", summary="of a and b")
    if unpinned:
        await store.pin("c", "pin", pinned=False)
    await history.save()
    assert history.entries == await store.get("c")


async def test_invalid_input_is_rejected_before_sending(stores: Any) -> None:
    history = history_over(stores())
    await history.load("c")
    for error, call in (
        (errors.InvalidMessageError, lambda: history.add_entry(user("x", metadata={"a": {1, 2}}))),
        (errors.InvalidMessageError, lambda: history.add_text("user", "\ud800")),
        (errors.BatchTooLargeError, lambda: history.restore(numbered(*range(1001)))),
    ):
        with pytest.raises(error):
            call()
    assert (history.entries, history.unsaved) == ([], [])
    transient, unbound = history_over(stores(), transient=True), history_over(stores())
    for name in ("load", "save", "autosave"):
        with pytest.raises(errors.InvalidConversationIdError):
            await getattr(history, name)("")
        with pytest.raises(errors.InvalidInputError, match="transient"):
            await getattr(transient, name)("c")
        if name != "load":
            with pytest.raises(errors.InvalidInputError):
                await getattr(unbound, name)()


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
    await store.append_many("c", numbered(1, 2))
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


@pytest.mark.full
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


async def test_a_save_that_cannot_read_the_changes_of_others_may_be_repeated(stores: Any) -> None:
    store, mine = stores(), stores()
    history = history_over(mine)
    await history.load("c")
    backend = getattr(mine, "_target", mine)._backend
    execute = backend.execute

    def failing(op: Any) -> Any:
        if type(op) is ReadChanges:
            raise errors.BackendUnavailableError("away")
        return execute(op)

    await store.append("c", user("theirs"))
    for act in (lambda: history.add_text("user", "mine"), history.clear):
        act()
        backend.execute = failing
        with pytest.raises(errors.BackendUnavailableError):
            await history.save()
        assert history.unsaved == []
        backend.execute = execute
        revision = (await store.snapshot("c")).cursor.revision
        assert await history.save() == 0
        assert history.entries == await store.get("c")
        assert (await store.snapshot("c")).cursor.revision == revision, "nothing is sent twice"
