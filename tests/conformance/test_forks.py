"""Forks: a copy is a snapshot of one moment, or absent."""

import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redis_history import Conversation, assistant, errors, system, tool, tool_result, tool_use, user
from redis_history.store.operations import Clear, DeleteConversation, DeleteMessages, ReadPage
from redis_history.values import Position
from redis_history.values.events import BEGINNING
from tests.conformance.conftest import ids, is_gone, take
from tests.conformance.test_compaction import summary
from tests.conformance.test_transfer import exported, import_into
from tests.support.faces import act_after
from tests.support.servers import until


async def _both(store: Any, conversation_id: str) -> tuple[list[Any], list[Any]]:
    return await store.get(conversation_id), await store.get(conversation_id, include_archived=True)


async def _talk(store: Any, ids: str = "abcdef", conversation_id: str = "c") -> None:
    await store.append_many(conversation_id, [user(f"text {one}", id=one) for one in ids])


@pytest.mark.proves("fork")
async def test_a_fork_has_the_messages_and_the_record(store: Any) -> None:
    record = Conversation("c", user_id=7, agent_name="helper", title="Trip", metadata={"a": [1]}, auditing_id="x")
    await store.create_conversation(record)
    await _talk(store)
    made = await store.fork("c", "d")
    source = await store.get_conversation("c")
    assert await store.get("d") == await store.get("c")
    assert made == await store.get_conversation("d")
    origin = made.forked_from
    assert (origin.conversation_id, origin.revision, origin.message_id) == ("c", source.revision, "f")
    same = (
        "user_id",
        "agent_name",
        "title",
        "metadata",
        "auditing_id",
        "message_count",
        "characters",
        "estimated_tokens",
    )
    same += ("first_message_at", "last_message_at")  # type: ignore[assignment]
    assert [getattr(made, name) for name in same] == [getattr(source, name) for name in same]
    assert made.created_at > source.created_at


async def test_a_fork_and_its_origin_change_independently(store: Any) -> None:
    await _talk(store)
    await store.fork("c", "d")
    await store.append("c", user("only c", id="g"))
    added = await store.append("d", user("only d", id="g"))
    assert added.message.position > (await store.get_message("d", "f")).position
    await store.delete_messages("d", ["a"])
    await store.update_message("c", user("other", id="b"))
    assert ids(await store.get("c")) == [*"abcdefg"]
    assert [one.text for one in await store.get("d")] == [*(f"text {one}" for one in "bcdef"), "only d"]
    assert (await store.append("d", user("text c", id="c"))).duplicate
    await store.delete_conversation("c")
    assert len(await store.get("d")) == 6


async def test_a_fork_up_to_a_message(store: Any) -> None:
    await _talk(store)
    third = await store.get_message("c", "c")
    for number, through in enumerate(("c", third, third.position)):
        made = await store.fork("c", f"d{number}", through=through)
        assert ids(await store.get(f"d{number}")) == ["a", "b", "c"]
        assert made.forked_from.message_id == "c"
        assert made.message_count == 3
    empty = await store.fork("c", "e", through=Position(0, 1))
    assert (await store.get("e"), empty.forked_from.message_id) == ([], None)


async def test_bad_forks_change_nothing(store: Any) -> None:
    await _talk(store)
    with pytest.raises(errors.ConversationNotFoundError):
        await store.fork("absent", "d")
    with pytest.raises(errors.ConversationExistsError):
        await store.fork("c", "c")
    with pytest.raises(errors.MessageNotFoundError):
        await store.fork("c", "d", through="absent")
    with pytest.raises(errors.InvalidConversationIdError):
        await store.fork("c", "")
    assert await store.get_conversation("d") is None


async def test_forks_are_listed_by_their_origin(store: Any) -> None:
    await _talk(store)
    await store.create_conversation(Conversation("x", user_id="u"))
    for name in ("d", "e"):
        await store.fork("c", name)
    await store.fork("d", "d2")
    await store.fork("x", "y")
    await store.append("d", user("newer"))
    assert [one.conversation_id for one in await store.list_conversations(forked_from="c")] == ["d", "e"]
    assert [one.conversation_id for one in await store.list_conversations(forked_from="c", offset=1)] == ["e"]
    assert [one.conversation_id for one in await store.list_conversations(forked_from="d")] == ["d2"]
    assert [one.conversation_id for one in await store.list_conversations(forked_from="x", user_id="u")] == ["y"]
    assert await store.list_conversations(forked_from="x", user_id="v") == []
    [found] = await store.list_conversations(forked_from="d", preview=True)
    assert found.title == "text a"
    await store.delete_conversation("d")
    assert [one.conversation_id for one in await store.list_conversations(forked_from="c")] == ["e"]
    await store.clear("e")
    await store.update_conversation("e", title="t")
    assert [one.conversation_id for one in await store.list_conversations(forked_from="c")] == ["e"]


async def _compacted_twice(store: Any) -> None:
    """Messages a to h; s1 replaced a to c, s2 replaced s1, d and e; then the system message y."""
    await store.append_many("c", [system("rules", id="y"), *(user(f"text {one}", id=one) for one in "abcdefgh")])
    await store.compact("c", through="c", summary=summary(id="s1"))
    await store.compact("c", through="e", summary=summary(id="s2"))


@pytest.mark.proves("fork")
async def test_archived_messages_come_along(store: Any) -> None:
    await _compacted_twice(store)
    await store.fork("c", "d")
    assert await _both(store, "d") == await _both(store, "c")
    for name in ("c", "d"):
        await store.expand(name, "s2")
        assert ids(await store.get(name)) == ["y", "s1", *"defgh"]
    for name in ("c", "d"):
        await store.expand(name, "s1")
    assert await _both(store, "d") == await _both(store, "c")
    await store.compact("d", through="h", summary=summary(id="s3"))
    assert ids(await store.get("d")) == ["y", "s3"]
    assert ids(await store.get("d", include_archived=True)) == ["y", *"abcdefgh", "s3"]


@pytest.mark.parametrize(
    ("through", "live", "every"),
    [
        ("f", ["y", "s2", "f"], ["y", *"abc", "s1", *"de", "s2", "f"]),
        ("e", ["y", "s2"], ["y", *"abc", "s1", *"de", "s2"]),
        ("d", ["y", "s1", "d"], ["y", *"abc", "s1", "d"]),
        ("c", ["y", "s1"], ["y", *"abc", "s1"]),
        ("b", ["y", "a", "b"], ["y", "a", "b"]),
    ],
)
async def test_a_fork_up_to_an_archived_message_has_the_originals(
    store: Any, through: str, live: list[str], every: list[str]
) -> None:
    await _compacted_twice(store)
    made = await store.fork("c", "d", through=through)
    found = await _both(store, "d")
    assert (ids(found[0]), ids(found[1])) == (live, every)
    assert made.message_count == len(live)
    await store.append_many("d", [user("more", id="m"), user("more", id="n")])
    await store.compact("d", through="m", summary=summary(id="s9"))
    assert ids(await store.get("d")) == ["y", "s9", "n"]


async def test_archives_without_their_summary_come_along(store: Any) -> None:
    await _compacted_twice(store)
    await store.delete_messages("c", ["s1", "d"])
    await store.fork("c", "d")
    await store.delete_messages("c", ["s2"])
    await store.fork("c", "e")
    assert await _both(store, "e") == await _both(store, "c")
    await store.expand("d", "s2")
    assert ids(await store.get("d")) == ["y", *"efgh"]
    assert ids(await store.get("d", include_archived=True)) == ["y", *"abcefgh"]


@pytest.mark.proves("fork")
async def test_empty_archives_come_along(store: Any) -> None:
    await _compacted_twice(store)
    await store.delete_messages("c", [*"abc"])
    await store.fork("c", "d")
    for name in ("c", "d"):
        await store.expand(name, "s2")
        assert (await store.expand(name, "s1")).count == 0
    assert ids((await _both(store, "d"))[1]) == ids((await _both(store, "c"))[1]) == ["y", *"defgh"]


@pytest.mark.proves("fork")
async def test_an_erasure_reaches_a_summary_whose_originals_were_deleted(store: Any) -> None:
    await _compacted_twice(store)
    await store.delete_messages("c", ["s1", "d", "e"])
    await store.fork("c", "d")
    for name in ("c", "d"):
        assert await store.erase(name, ["a"]) == 1
        assert ids(await store.get(name, include_archived=True)) == ["y", *"bcfgh"]


@pytest.mark.proves("fork")
async def test_a_fork_behind_a_summary_of_earlier_messages(store: Any) -> None:
    """They were added with a time of the past, when the summary of later messages had been deleted."""
    await _talk(store, "abcd")
    await store.compact("c", through="c", summary=summary(id="s1"))
    await store.delete_messages("c", ["s1"])
    await store.append("c", user("text x", id="x", timestamp=datetime(2001, 1, 1, tzinfo=UTC)))
    await store.compact("c", through="x", summary=summary(id="s2"))
    await store.fork("c", "d", through="b")
    assert ids(await store.get("d")) == ["s2", "a", "b"]
    assert ids(await store.get("d", include_archived=True)) == ["x", "s2", "a", "b"]


@pytest.mark.parametrize("act", ["compact", "expand", "clear", "restore"])
@pytest.mark.proves("fork")
async def test_a_fork_begins_again_when_messages_move_during_it(store: Any, act: str) -> None:
    acts: dict[str, Callable[[], Any]] = {
        "compact": lambda: store.compact("c", through="g", summary=summary(id="s3")),
        "expand": lambda: store.expand("c", "s2"),
        "clear": lambda: store.clear("c"),
        "restore": lambda: store.restore("c", [user("r", id="r")]),
    }
    await _compacted_twice(store)
    act_after(store, ReadPage, acts[act])
    made = await store.fork("c", "d")
    assert made.forked_from.revision == (await store.get_conversation("c")).revision
    assert await _both(store, "d") == await _both(store, "c")


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.proves("fork")
async def test_a_summary_that_is_deleted_during_a_fork_is_none(store: Any, again: bool) -> None:
    await _compacted_twice(store)

    async def delete() -> None:
        await store.delete_messages("c", ["s2"])
        if again:
            await store.append("c", user("a note", id="s2"))

    act_after(store, ReadPage, delete)
    await store.fork("c", "d")
    assert await _both(store, "d") == await _both(store, "c")
    for name in ("c", "d"):
        with pytest.raises(errors.MessageNotFoundError):
            await store.expand(name, "s2")
        await store.compact(name, through="g", summary=summary(id="s3"))
        await store.expand(name, "s3")
    assert await _both(store, "d") == await _both(store, "c")


async def test_results_of_calls_come_along(store: Any) -> None:
    await store.append_many(
        "c",
        [
            user("go", id="u"),
            assistant(tool_use("t1", "f"), tool_use("t2", "f"), id="call"),
            tool(tool_result("t1", "one"), id="r1"),
            user("wait", id="w"),
            tool(tool_result("t2", "two"), id="r2"),
            assistant("done", id="end"),
        ],
    )
    await store.fork("c", "d", through="call")
    assert ids(await store.get("d")) == ["u", "call", "r1", "r2"]
    await store.fork("c", "e", through="w")
    assert ids(await store.get("e")) == ["u", "call", "r1", "w", "r2"]
    await store.fork("c", "f", through="u")
    assert ids(await store.get("f")) == ["u"]


async def _has_call(store: Any) -> bool:
    return bool((await store.get_message("c", "r")).tool_uses)


async def test_a_reply_that_is_being_written_is_left_out(store: Any) -> None:
    await _talk(store, "ab")
    async with store.stream("c", id="r", interval=0) as reply:
        await reply.write("half")
        await reply.add(tool_use("t1", "f"))
        await until(lambda: _has_call(store))
        await store.append("c", tool(tool_result("t1", "one"), id="r1"))
        await store.append("c", user("x", id="x"))
        made = await store.fork("c", "d")
    assert ids(await store.get("d")) == ["a", "b", "x"]
    assert made.message_count == 3
    await store.fork("c", "e")
    assert ids(await store.get("e")) == ["a", "b", "r", "r1", "x"]


async def test_a_fork_is_announced(store: Any) -> None:
    await _talk(store)
    one = store.subscribe("d", after=BEGINNING)
    every = store.subscribe_all(after={"c": (await store.snapshot("c")).cursor})
    made = await store.fork("c", "d")
    for subscription in (one, every):
        [event] = await take(subscription, 1)
        assert (event.conversation_id, type(event).__name__, event.revision) == ("d", "Reset", made.revision)
    await store.append("d", user("more", id="m"))
    for subscription in (one, every):
        [event] = await take(subscription, 1)
        assert ids(event.messages) == ["m"]
        await subscription.aclose()
    resumed = store.subscribe("d", after=event.cursor)
    await store.append("d", user("again", id="n"))
    [event] = await take(resumed, 1)
    assert ids(event.messages) == ["n"]
    await resumed.aclose()


async def test_a_fork_lives_as_long_as_its_origin(stores: Any) -> None:
    store = stores(ttl=0.4)
    await _talk(store)
    await store.compact("c", through="b", summary=summary(id="s"))
    await store.fork("c", "d")
    assert len(await store.get("d", include_archived=True)) == 7
    await until(lambda: is_gone(store, "d"))


@pytest.mark.backends("plain", "redis", "cluster")
@pytest.mark.proves("fork", "ttl")
async def test_a_fork_lives_as_long_as_a_change_during_the_call_says(stores: Any) -> None:
    store = stores()
    await _talk(store)
    act_after(store, ReadPage, lambda: stores(ttl=2.0).append("c", user("more")))
    await store.fork("c", "d")
    await until(lambda: is_gone(store, "d"))


async def test_the_next_append_to_a_fork_applies_the_cap(stores: Any) -> None:
    store = stores(max_messages=4)
    await _talk(store, "abcd")
    await store.fork("c", "d")
    await store.append("d", user("more", id="m"))
    assert ids(await store.get("d")) == ["b", "c", "d", "m"]


async def test_forks_are_found(store: Any) -> None:
    await _compacted_twice(store)
    await store.append("c", user("a zebra in the garden", id="z"))
    await store.fork("c", "d")
    assert ids([hit.message for hit in await store.search("d", "zebra")]) == ["z"]
    assert "b" in ids([hit.message for hit in await store.search("d", "text b", limit=20)])
    assert not (await store.search("d", "zebra")).incomplete


@pytest.mark.proves("fork")
@pytest.mark.full
async def test_a_fork_is_one_moment_while_others_write(stores: Any) -> None:
    """It equals the conversation at the revision that it names, which a model of the writes knows."""
    store, other = stores(), stores()
    texts = {f"m{number}": "0" for number in range(1500)}
    for start in range(0, 1500, 500):
        await store.append_many("c", [user("0", id=f"m{number}") for number in range(start, start + 500)])
    states = {3: texts}
    done = asyncio.Event()

    async def write() -> None:
        number, revision = 0, 3
        while not done.is_set() and number < 1000:
            number += 1
            added, edited, gone = {f"p{number}": "x", f"q{number}": "x"}, f"m{number % 400}", f"m{1499 - number}"
            await other.append_many("c", [user(text, id=name) for name, text in added.items()])
            states[revision + 1] = states[revision] | added
            await other.update_message("c", user(str(number), id=edited))
            states[revision + 2] = states[revision + 1] | {edited: str(number)}
            await other.delete_messages("c", [gone, f"p{number - 3}", f"q{number - 3}"])
            left = {gone, f"p{number - 3}", f"q{number - 3}"}
            states[revision + 3] = {name: text for name, text in states[revision + 2].items() if name not in left}
            revision += 3

    writing = asyncio.create_task(write())
    try:
        for number in range(3):
            made = await store.fork("c", f"d{number}")
            found = await store.get(f"d{number}")
            await until(lambda: made.forked_from.revision in states)  # noqa: B023 -- awaited here
            assert {one.id: one.text for one in found} == states[made.forked_from.revision]
            assert made.message_count == len(found)
    finally:
        done.set()
        await writing


def _executed(store: Any, op: Any) -> Any:
    """Execute an operation, perhaps again, and return its outcome."""
    found = getattr(store, "_target", store).backend.execute(op)
    return found if inspect.isawaitable(found) else asyncio.sleep(0, found)


@pytest.mark.proves("fork", "at-most-once")
@pytest.mark.parametrize("made", ["fork", "import"])
async def test_a_late_copy_of_a_call_to_a_former_conversation_changes_no_copy(
    store: Any, tmp_path: Path, made: str
) -> None:
    """The journal of a deleted conversation also applies to a new conversation with its id."""
    await _talk(store)
    await _talk(store, "xyz", "d")
    await exported(store, tmp_path / "file", conversation_ids=["d"])
    calls = [DeleteMessages("d", ("x", "a")), Clear("d"), DeleteConversation("d")]
    outcomes = [await _executed(store, op) for op in calls]
    if made == "fork":
        await store.fork("c", "d")
    else:
        await import_into(store, tmp_path / "file")
    before = await store.get("d")
    assert len(before) == (6 if made == "fork" else 3)
    assert [await _executed(store, op) for op in calls] == outcomes
    assert await store.get("d") == before


@pytest.mark.proves("fork")
async def test_what_is_appended_to_a_fork_comes_last(store: Any) -> None:
    """This also holds if the clock of the server is behind the newest message, as after a failover."""
    await _talk(store)
    ahead = datetime.now(UTC) + timedelta(seconds=20)
    await store.append("c", user("ahead", id="ahead", timestamp=ahead))
    await store.fork("c", "d")
    appended = await store.append_many("d", [user("next", id="next"), user("last", id="last")])
    assert ids(await store.get("d")) == [*"abcdef", "ahead", "next", "last"]
    assert appended[0].message.timestamp > ahead


@pytest.mark.proves("fork")
async def test_a_fork_has_one_live_summary_at_most(store: Any) -> None:
    """The archive of the later messages is expanded in the fork. The summary before it would then be live, next to the
    summary of messages with earlier times, which was written later."""
    await _talk(store, "ab")
    await store.compact("c", through="b", summary=summary("sum of a and b", id="s1"))
    await store.append_many("c", [user(f"text {one}", id=one) for one in "de"])
    await store.compact("c", through="e", summary=summary("sum of all", id="s2"))
    await store.append("c", user("text g", id="g"))
    await store.delete_messages("c", ["s2"])
    for number in (1, 2):
        await store.append("c", user("old", id=f"o{number}", timestamp=f"2020-01-01T00:00:0{number}Z"))
    await store.compact("c", through="o2", summary=summary("sum of the old", id="s3"))
    await store.fork("c", "f", through=(await store.get_message("c", "d")).position)
    assert ids(await store.get("f")) == ["o1", "o2", "s1", "d"]
    assert ids(await store.get("f", include_archived=True)) == ["o1", "o2", "a", "b", "s1", "d"]
    await store.compact("f", through="d", summary=summary(id="s9"))
    assert await store.erase("f", ["a"]) == 1
    assert ids(await store.get("f", include_archived=True)) == ["o1", "o2", "b", "d"]


async def test_a_fork_can_have_another_owner(store: Any) -> None:
    """The fork has its owner from the first moment, and never appears among the chats of the owner of the source."""
    await store.create_conversation(Conversation("c", user_id="ann"))
    await store.append("c", user("x"))
    assert (await store.fork("c", "same")).user_id == "ann"
    assert (await store.fork("c", "other", user_id="bob")).user_id == "bob"
    assert (await store.fork("c", "nobody", user_id=None)).user_id is None
    assert {one.conversation_id for one in await store.list_conversations(user_id="ann")} == {"c", "same"}
    assert [one.conversation_id for one in await store.list_conversations(user_id="bob")] == ["other"]
    with pytest.raises(errors.InvalidInputError, match="user_id"):
        await store.fork("c", "wrong", user_id=1.5)
    assert await store.get_conversation("wrong") is None
    assert await store.erase_user("bob") > 0
    assert await store.get_conversation("other") is None
