import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import Conversation, assistant, text, user
from redis_history.errors import (
    ConversationExistsError,
    ConversationNotFoundError,
    MessageConflictError,
    RevisionConflictError,
)

DEEP: Any = reduce(lambda inner, _: [inner], range(2000), "x")


@pytest.mark.proves("read-back")
@pytest.mark.smoke
async def test_an_appended_message_is_read_back_as_it_was_returned(store: Any) -> None:
    sent = user("Hello", text("again"), id="m1", scope="channel", trace_id="t", metadata={"channel_name": "general"})
    appended = await store.append("c", sent)
    assert (appended.revision, appended.duplicate) == (1, False)
    assert appended.message.sequence == 1
    assert appended.message.timestamp is not None
    assert replace(appended.message, sequence=None, timestamp=None) == sent
    assert await store.get("c") == [appended.message]
    assert await store.get_message("c", "m1") == appended.message


@pytest.mark.proves("stored-once")
@pytest.mark.smoke
async def test_the_same_message_again_changes_nothing(store: Any) -> None:
    first = await store.append("c", user("once", id="m1"))
    again = await store.append("c", user("once", id="m1"))
    read = await store.append("c", first.message)
    assert again.duplicate
    assert read.duplicate
    assert (again.revision, again.message) == (first.revision, first.message) == (read.revision, read.message)
    assert len(await store.get("c")) == 1
    assert (await store.append("c", user("next"))).revision == 2


@pytest.mark.proves("stored-once")
@pytest.mark.smoke
async def test_a_message_that_another_store_has_stored_is_returned_whole(stores: Any) -> None:
    first = await stores().append("c", assistant("once", id="m1"))
    again = await stores().append("c", assistant("once", id="m1"))
    assert (again.message, again.duplicate) == (first.message, True)


@pytest.mark.proves("stored-once")
async def test_the_same_id_with_other_content_is_a_conflict(store: Any) -> None:
    await store.append("c", user("one", id="m1"))
    with pytest.raises(MessageConflictError, match="m1") as caught:
        await store.append_many("c", [user("new", id="m2"), user("two", id="m1")])
    assert caught.value.message_id == "m1"
    with pytest.raises(MessageConflictError):
        await store.append("c", user("one", id="m1", timestamp="2020-01-01"))
    assert [message.text for message in await store.get("c")] == ["one"]


@pytest.mark.proves("one-change")
async def test_a_batch_is_one_change_in_order(store: Any) -> None:
    appended = await store.append_many("c", [user(str(number)) for number in range(100)])
    assert {item.revision for item in appended} == {1}
    assert [item.message.sequence for item in appended] == list(range(1, 101))
    stamps = [item.message.timestamp for item in appended]
    assert all(later - earlier == timedelta(microseconds=1) for earlier, later in pairwise(stamps))
    assert await store.get("c") == [item.message for item in appended]


async def test_a_batch_stores_new_messages_and_marks_duplicates(store: Any) -> None:
    first = await store.append("c", user("a", id="a"))
    appended = await store.append_many(
        "c", [user("b", id="b"), user("a", id="a"), user("b", id="b"), user("c", id="c")]
    )
    assert [item.duplicate for item in appended] == [False, True, False, False]
    assert [item.message.sequence for item in appended] == [2, 1, 2, 3]
    assert appended[1].message == first.message
    assert [item.revision for item in appended] == [2, 1, 2, 2]
    assert [message.id for message in await store.get("c")] == ["a", "b", "c"]


@pytest.mark.proves("order")
async def test_explicit_times_sort_and_equal_ones_keep_arrival_order(store: Any) -> None:
    day = datetime(2024, 5, 1, tzinfo=UTC)
    await store.append("c", user("third", timestamp=day + timedelta(days=1)))
    await store.append_many("c", [user(f"same {number}", timestamp=day) for number in range(20)])
    await store.append("c", user("first", timestamp="1969-12-31T23:59:59.999999Z"))
    await store.append("c", user("now"))
    await store.append("c", user("future", timestamp="2200-01-01T00:00:00Z"))
    texts = [message.text for message in await store.get("c")]
    assert texts == ["first", *(f"same {number}" for number in range(20)), "third", "now", "future"]


@pytest.mark.proves("read-back")
async def test_times_are_exact_to_the_microsecond(store: Any) -> None:
    moments = [
        datetime(1684, 8, 1, 1, 2, 3, 999999, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
        datetime(2255, 6, 1, 0, 0, 0, 123457, tzinfo=UTC),
    ]
    await store.append_many("c", [user("x", timestamp=moment) for moment in reversed(moments)])
    assert [message.timestamp for message in await store.get("c")] == moments


@pytest.mark.proves("dense")
@pytest.mark.smoke
async def test_many_writers_give_dense_sequences_and_revisions(stores: Any) -> None:
    writers = [stores() for _ in range(4)]

    async def write(store: Any, name: str) -> list[Any]:
        return [await store.append("c", user(f"{name}-{number}")) for number in range(25)]

    done = await asyncio.gather(*(write(store, str(index)) for index, store in enumerate(writers)))
    appended = [item for one in done for item in one]
    assert sorted(item.revision for item in appended) == list(range(1, 101))
    assert sorted(item.message.sequence for item in appended) == list(range(1, 101))
    stored = await writers[0].get("c")
    assert [message.sequence for message in stored] == list(range(1, 101))
    for index in range(4):
        mine = [message.text for message in stored if message.text.startswith(f"{index}-")]
        assert mine == [f"{index}-{number}" for number in range(25)]


async def test_must_exist(store: Any) -> None:
    with pytest.raises(ConversationNotFoundError):
        await store.append("c", user("x"), must_exist=True)
    await store.append("c", user("x"))
    assert (await store.append("c", user("y"), must_exist=True)).revision == 2


#: Calls of which only the first takes effect: the condition is that nobody else was there before.
FIRST: dict[str, Callable[[Any, str], Any]] = {
    "append": lambda store, text: store.append("c", user(text), expected_revision=1),
    "append to a new one": lambda store, text: store.append("d", user(text), must_not_exist=True),
    "update": lambda store, text: store.update_message("c", user(text, id="a"), expected_revision=1),
    "create": lambda store, text: store.create_conversation(Conversation("d", title=text)),
}


@pytest.mark.proves("conditions", "records")
@pytest.mark.parametrize("name", FIRST)
async def test_one_of_20_callers_wins(stores: Any, name: str) -> None:
    writers = [stores() for _ in range(4)]
    await writers[0].append("c", user("first", id="a"))
    calls = (FIRST[name](store, f"by {number}") for number, store in enumerate(writers * 5))
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(outcome, RevisionConflictError | ConversationExistsError) for outcome in done) == 19
    [winner] = [outcome for outcome in done if not isinstance(outcome, BaseException)]
    if name == "create":
        assert (await writers[0].get_conversation("d")).title == winner.title
    else:
        assert (await writers[0].get("d" if "new" in name else "c"))[-1] == winner.message


@pytest.mark.proves("conditions")
async def test_a_repeated_conditional_append_still_succeeds(store: Any) -> None:
    """A caller whose reply was lost repeats the call. Its own message must not make it fail."""
    await store.append("c", user("first"))
    once = await store.append("c", user("second", id="m2"), expected_revision=1)
    again = await store.append("c", user("second", id="m2"), expected_revision=1)
    assert (again.revision, again.duplicate) == (once.revision, True)
    with pytest.raises(RevisionConflictError):
        await store.append("c", user("second", id="m2"), expected_revision=5)


@pytest.mark.proves("isolated")
@pytest.mark.parametrize("conversation_id", ["a", "x" * 512, "é" * 256, "a|b{c}*:?", "\0\n\r\t", "💬", " ", "%41", "A"])
async def test_any_valid_conversation_id_is_distinct(store: Any, conversation_id: str) -> None:
    await store.append(conversation_id, user("mine"))
    for other in ("a", "A", "%41", "x" * 511):
        if other != conversation_id:
            assert await store.get(other) == []
    assert [message.text for message in await store.get(conversation_id)] == ["mine"]
    assert [one.conversation_id for one in await store.list_conversations()] == [conversation_id]


async def test_a_message_near_the_cap_is_stored(store: Any) -> None:
    sent = user("x" * 3_900_000)
    await store.append("c", sent)
    assert [message.text for message in await store.get("c")] == [sent.text]
