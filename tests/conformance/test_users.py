"""Everything that a user owns: read one by one, and erased."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redis_history import Conversation, Cursor, user
from redis_history.errors import ConversationExistsError, InvalidInputError
from tests.conformance.test_compaction import summary


async def _own(store: Any, owner: Any, names: Any) -> None:
    for name in names:
        await store.create_conversation(Conversation(name, user_id=owner))
        await store.append(name, user("x"))


async def _ids(conversations: Any) -> list[str]:
    return sorted([one.conversation_id async for one in conversations])


async def test_all_conversations_are_iterated(store: Any) -> None:
    names = sorted(f"c{number}" for number in range(130))
    await _own(store, "u", names)
    await _own(store, "v", ["d"])
    await store.fork("c1", "f")
    assert await _ids(store.iter_conversations()) == [*names, "d", "f"]
    assert await _ids(store.iter_conversations(user_id="u")) == [*names, "f"]
    assert await _ids(store.iter_conversations(user_id="v")) == ["d"]
    assert await _ids(store.iter_conversations(forked_from="c1", user_id="u")) == ["f"]
    assert await _ids(store.iter_conversations(agent_name="a")) == []


@pytest.mark.proves("erase-user")
async def test_a_user_is_erased_and_others_are_not(store: Any) -> None:
    await _own(store, 1, [f"c{number}" for number in range(70)])
    await _own(store, "1", ["text"])
    await _own(store, None, ["nobody"])
    assert await store.erase_user(1) == 70
    assert await _ids(store.iter_conversations()) == ["nobody", "text"]
    assert await store.erase_user(1) == 0
    with pytest.raises(InvalidInputError):
        await store.erase_user(None)


async def test_an_interrupted_erasure_continues(store: Any) -> None:
    await _own(store, "u", "abcd")
    seen: list[str] = []

    def interrupt(one: Conversation) -> None:
        seen.append(one.conversation_id)
        if len(seen) == 2:
            raise KeyError

    with pytest.raises(KeyError):
        await store.erase_user("u", on_progress=interrupt)
    assert len(await store.list_conversations(user_id="u")) == 2
    assert await store.erase_user("u") == 2


async def test_conversations_made_meanwhile_are_erased_and_given_ones_are_kept(stores: Any) -> None:
    store, other = stores(), stores()
    await _own(store, "u", "abc")
    erased, kept, _ = [one.conversation_id async for one in store.iter_conversations(user_id="u")]
    await other.create_conversation(Conversation("new", user_id="u"))
    await other.append(erased, user("again"))
    await other.update_conversation(kept, user_id="v")
    assert await store.erase_user("u") == 3
    assert await _ids(store.iter_conversations()) == [kept]
    assert await _ids(store.iter_conversations(user_id="u")) == []


async def test_a_fork_belongs_to_its_own_owner(store: Any) -> None:
    """A fork gets the owner of its origin, and is erased with his conversations, unless it was given to another."""
    await _own(store, "u", "a")
    await store.append("a", user("text", id="m"))
    for name in ("own", "given"):
        assert (await store.fork("a", name)).user_id == "u"
    await store.update_conversation("given", user_id="v")
    assert await store.erase_user("u") == 2
    assert await _ids(store.iter_conversations()) == ["given"]
    assert [one.id for one in await store.get("given")][1:] == ["m"]
    assert await store.erase_user("v") == 1


async def test_an_existing_record_is_returned_as_it_is(store: Any) -> None:
    made = await store.create_conversation(Conversation("c", user_id="u"), exist_ok=True)
    assert await store.create_conversation(Conversation("c", user_id="v"), exist_ok=True) == made
    with pytest.raises(ConversationExistsError):
        await store.create_conversation(Conversation("c", user_id="v"))
    assert made.user_id == "u"


async def test_the_log_says_what_changed_and_when(store: Any) -> None:
    start = datetime.now(UTC) - timedelta(seconds=5)
    await store.create_conversation(Conversation("c", title="t"))
    await store.append_many("c", [user(str(number), id=str(number)) for number in range(4)])
    await store.update_message("c", user("edited", id="1"))
    await store.delete_messages("c", ["0"])
    await store.compact("c", through="2", summary=summary(id="s"))
    events = await store.log("c")
    assert [type(event).__name__ for event in events] == [
        "ConversationUpdated", "MessagesAppended", "MessageUpdated", "MessagesDeleted", "HistoryCompacted",
    ]  # fmt: skip
    assert [event.revision for event in events] == [1, 2, 3, 4, 5]
    assert (events[1].gone_ids, events[2].message_id, events[3].message_ids) == (("0",), "1", ("0",))
    times = [event.changed_at for event in events]
    assert times == sorted(times)
    assert start < times[0] <= times[-1] < datetime.now(UTC) + timedelta(seconds=5)
    assert await store.log("c", limit=2) == events[:2]
    assert await store.log("c", after=events[2].cursor) == events[3:]
    assert await store.log("absent") == []
    with pytest.raises(InvalidInputError):
        await store.log("c", limit=0)
    await store.fork("c", "d")
    assert [type(event).__name__ for event in await store.log("d")] == ["Reset"]


async def test_a_cursor_of_a_former_life_gets_a_reset_from_the_log(stores: Any) -> None:
    store = stores()
    await store.append_many("c", [user(str(number)) for number in range(3)])
    for number in range(3):
        await store.append("c", user(str(number)))
    events = await store.log("c")
    former = events[1].cursor
    await store.delete_conversation("c")
    assert await store.log("c") == []
    (gone,) = await store.log("c", after=events[-1].cursor)
    assert type(gone).__name__ == "ConversationDeleted" or gone.reason == "conversation_missing"
    for number in range(6):
        await store.append("c", user(f"new {number}"))
    (reset,) = await store.log("c", after=former)
    assert (type(reset).__name__, reset.reason, reset.revision) == ("Reset", "conversation_replaced", 6)
    assert await store.log("c", after=reset.cursor) == []
    await store.append("c", user("later"))
    (later,) = await store.log("c", after=reset.cursor)
    assert later.messages[0].text == "later"
    (ahead,) = await store.log("c", after=Cursor(later.cursor.epoch, 40, later.cursor.token))
    assert (type(ahead).__name__, ahead.reason) == ("Reset", "server_rewound")
    assert len(await store.log("c")) == 7


async def test_a_cursor_that_the_log_has_lost_gets_a_reset(stores: Any) -> None:
    store = stores(log_length=10)
    await store.append("c", user("first"))
    (first,) = await store.log("c")
    for number in range(300):
        await store.update_conversation("c", title=str(number))
    (reset,) = await store.log("c", after=first.cursor)
    assert (type(reset).__name__, reset.reason) == ("Reset", "log_trimmed")
