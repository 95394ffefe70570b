from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redis_history import Participant, assistant, system, user

DAY = datetime(2024, 5, 1, tzinfo=UTC)


async def _hours(store: Any, count: int = 10) -> list[Any]:
    """Messages "0" … at one hour's distance."""
    sent = [user(str(hour), timestamp=DAY + timedelta(hours=hour)) for hour in range(count)]
    return [item.message for item in await store.append_many("c", sent)]


def _texts(messages: list[Any]) -> str:
    return "".join(message.text for message in messages)


async def test_unknown_conversations_and_messages(store: Any) -> None:
    assert await store.get("nobody") == []
    assert [message async for message in store.iter("nobody")] == []
    assert await store.get_message("nobody", "m") is None
    await store.append("c", user("x"))
    assert await store.get_message("c", "unknown") is None


async def test_limit_keeps_the_most_recent(store: Any) -> None:
    await _hours(store)
    assert _texts(await store.get("c", limit=3)) == "789"
    assert _texts(await store.get("c", limit=100)) == "0123456789"
    assert await store.get("c", limit=0) == []


async def test_bounds(store: Any) -> None:
    hour_5 = "2024-05-01T07:00:00+02:00"
    await _hours(store)
    assert _texts(await store.get("c", since=hour_5)) == "6789"
    assert _texts(await store.get("c", before=hour_5)) == "01234"
    assert _texts(await store.get("c", before=hour_5, limit=2)) == "34"
    assert _texts(await store.get("c", since="2024-05-01T02:00:00Z", before=hour_5)) == "34"
    assert _texts(await store.get("c", since=hour_5, limit=2)) == "89"
    assert _texts([message async for message in store.iter("c", since=hour_5, batch=2)]) == "6789"
    assert await store.get("c", since=hour_5, before=hour_5) == []
    assert await store.get("c", since="2024-05-01T08:00:00Z", before=hour_5) == []


async def test_bounds_by_position_page_through_equal_times(store: Any) -> None:
    await store.append_many("c", [user(str(number), timestamp=DAY) for number in range(10)])
    found: list[Any] = []
    bound: Any = None
    while page := await store.get("c", limit=3, before=bound):
        found = page + found
        bound = page[0].position
    assert _texts(found) == "0123456789"
    assert _texts(await store.get("c", since=found[4].position)) == "56789"
    assert _texts(await store.get("c", since=str(found[4].position))) == "56789"
    assert _texts(await store.get("c", since=found[4].position, before=found[7].position)) == "56"
    assert _texts([one async for one in store.iter("c", since=found[4].position, batch=2)]) == "56789"
    assert await store.get("c", since=DAY) == [], "all of them are at this time, not after it"
    assert _texts(await store.get("c", since=DAY - timedelta(microseconds=1))) == "0123456789"
    assert await store.get("c", before=DAY) == []
    assert _texts(await store.get("c", before=DAY + timedelta(microseconds=1))) == "0123456789"


@pytest.mark.smoke
async def test_filters_hold_together(store: Any) -> None:
    ann, bot = Participant("user", "ann"), Participant("agent", "bot")
    await store.append_many(
        "c",
        [
            system("0"),
            user("1", participant=ann, scope="channel"),
            assistant("2", participant=bot, scope="channel"),
            user("3", participant=ann, scope="thread"),
            user("4", participant=Participant("user", "bob"), scope="thread"),
            assistant("5", participant=bot, scope="thread"),
        ],
    )
    assert _texts(await store.get("c", roles=["user"])) == "134"
    assert _texts(await store.get("c", participant_ids=["ann", "bot"])) == "1235"
    assert _texts(await store.get("c", scope="thread")) == "345"
    assert _texts(await store.get("c", scope="thread", roles=["user"], participant_ids=["ann"])) == "3"
    assert _texts(await store.get("c", roles=iter(["user", "assistant"]), limit=2)) == "45"
    assert _texts(await store.get("c", roles=["system"], limit=5)) == "0"
    assert await store.get("c", roles=[]) == []


async def test_a_rare_message_is_found_behind_many(store: Any) -> None:
    await store.append("c", system("rare"))
    for _ in range(3):
        await store.append_many("c", [user("x") for _ in range(1000)])
    assert _texts(await store.get("c", roles=["system"], limit=1)) == "rare"


async def test_iter_includes_messages_appended_meanwhile(store: Any) -> None:
    await store.append_many("c", [user(str(number)) for number in range(5)])
    seen = []
    async for message in store.iter("c", batch=2):
        seen.append(message.text)
        if len(seen) == 3:
            await store.append("c", user("late"))
    assert seen == ["0", "1", "2", "3", "4", "late"]


async def test_snapshot_is_the_newest_messages_and_their_revision(store: Any) -> None:
    messages = await _hours(store)
    await store.append("c", user("last"))
    snapshot = await store.snapshot("c", limit=3)
    assert _texts(snapshot.messages) == "89last"
    assert (snapshot.cursor.revision, snapshot.message_count) == (2, len(messages) + 1)
    empty = await store.snapshot("nobody")
    assert (empty.messages, empty.cursor.revision, empty.message_count) == ([], 0, 0)


async def test_messages_that_were_read_are_copies(store: Any) -> None:
    await store.append("c", user("x", metadata={"tags": ["a"]}))
    (await store.get("c"))[0].metadata["tags"].append("b")
    assert (await store.get("c"))[0].metadata == {"tags": ["a"]}
