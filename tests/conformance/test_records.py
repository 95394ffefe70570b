import base64
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redis_history import AttachmentPart, Conversation, assistant, system, tool, tool_result, tool_use, user
from redis_history.errors import ConversationNotFoundError, InvalidInputError, RevisionConflictError
from redis_history.store.operations.keys import Keyspace
from redis_history.values import UnknownPart
from redis_history.values.sizes import count_characters, message_tokens
from tests.conformance.conftest import SOON, is_gone
from tests.conftest import Servers
from tests.support.servers import until

RECORD = {"user_id": "ann", "agent_name": "helper", "title": "Über 你好", "auditing_id": "a-1"}


async def test_a_conversation_is_created_with_its_record(store: Any) -> None:
    given = Conversation("c", metadata={"tags": ["x"], "n": None}, schema_version=9, **RECORD)
    created = await store.create_conversation(given)
    assert created.schema_version == Conversation("d").schema_version == 1
    assert created == await store.get_conversation("c")
    assert {name: getattr(created, name) for name in RECORD} == RECORD
    assert created.metadata == {"tags": ["x"], "n": None}
    assert (created.message_count, created.characters, created.estimated_tokens, created.revision) == (0, 0, 0, 1)
    assert created.created_at == created.updated_at
    assert abs(created.created_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert await store.get("c") == []
    assert (await store.append("c", user("x"), must_exist=True)).revision == 2


@pytest.mark.proves("lists")
@pytest.mark.smoke
async def test_totals_and_times_are_kept_by_every_change(store: Any) -> None:
    created = await store.create_conversation(Conversation("c"))
    await store.append_many("c", [user("1234567", id="a"), assistant("12", tool_use("1", "name", {"k": 1}), id="b")])
    now = await store.get_conversation("c")
    assert (now.message_count, now.characters, now.estimated_tokens) == (2, 20, 2 + 4)
    assert now.created_at == created.created_at
    assert now.updated_at > created.updated_at
    await store.update_message("c", user("123", id="a"))
    after = await store.get_conversation("c")
    assert (after.message_count, after.characters, after.estimated_tokens) == (2, 16, 1 + 4)
    assert after.updated_at > now.updated_at
    await store.append("c", user("123", id="a"))
    assert await store.get_conversation("c") == after, "a duplicate is no change"
    await store.delete_messages("c", ["b"])
    last = await store.get_conversation("c")
    assert (last.message_count, last.characters, last.estimated_tokens, last.revision) == (1, 3, 1, 4)


@pytest.mark.smoke
async def test_totals_are_the_sizes_of_the_messages(store: Any) -> None:
    """The totals stay exact for all kinds of parts and after every kind of change."""
    shot = base64.b64encode(os.urandom(200_000)).decode()
    item = UnknownPart({"type": "mcp_call", "id": "m", "output": "Row 1 was paid. " * 5_000, "signature": shot})
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": shot}}
    said = [
        user("Look", AttachmentPart(name="a.png", modality="image", reference=f"data:image/png;base64,{shot}"), id="a"),
        assistant(tool_use("c", "shoot", {"at": "x"}), item, id="b"),
        tool(tool_result("c", [block]), id="t"),
        user("Go on", id="d"),
        assistant("Done", id="e"),
    ]

    async def check() -> None:
        record, stored = await store.get_conversation("c"), await store.get("c")
        assert record.characters == sum(map(count_characters, stored))
        assert record.estimated_tokens == sum(map(message_tokens, stored)) < 45_000

    await store.append_many("c", said)
    await check()
    assert (await store.get_conversation("c")).estimated_tokens > 20_000, "the text of the opaque part counts"
    await store.update_message("c", user(item, id="a"))
    await check()
    await store.compact("c", through="t", summary="They looked.")
    await check()
    [summary] = [one for one in await store.get("c") if one.is_summary]
    await store.expand("c", summary.id)
    await check()
    await store.delete_messages("c", ["b", "t"])
    await check()
    await store.restore("c", said)
    await check()


@pytest.mark.proves("records")
async def test_fields_are_updated_one_by_one(store: Any) -> None:
    await store.create_conversation(Conversation("c", metadata={"a": 1}, **RECORD))
    updated = await store.update_conversation("c", title="new")
    assert (updated.title, updated.metadata, updated.user_id) == ("new", {"a": 1}, "ann")
    updated = await store.update_conversation("c", metadata={"b": 2}, title=None)
    assert (updated.title, updated.metadata, updated.auditing_id) == (None, {"b": 2}, "a-1")
    assert updated.revision == 3


async def test_an_update_needs_the_conversation_and_its_revision(store: Any) -> None:
    with pytest.raises(ConversationNotFoundError):
        await store.update_conversation("nobody", title="x")
    await store.create_conversation(Conversation("c"))
    with pytest.raises(RevisionConflictError):
        await store.update_conversation("c", title="x", expected_revision=5)
    assert (await store.get_conversation("c")).title is None


@pytest.mark.proves("records")
async def test_the_record_survives_clear_and_restore(store: Any) -> None:
    await store.create_conversation(Conversation("c", **RECORD))
    await store.append("c", user("x"))
    await store.clear("c")
    await store.restore("c", [user("y")])
    assert (await store.get_conversation("c")).title == RECORD["title"]


async def _ids(store: Any, **options: Any) -> list[str]:
    return [conversation.conversation_id for conversation in await store.list_conversations(**options)]


@pytest.mark.proves("lists")
async def test_conversations_are_listed_by_their_last_change(store: Any) -> None:
    assert await _ids(store) == []
    names = [f"c{number}" for number in range(120)]
    for name in names:
        await store.append(name, user("x"))
    await store.append("c7", user("again"))
    await store.delete_conversation("c50")
    wanted = ["c7", *(name for name in reversed(names) if name not in ("c7", "c50"))]
    assert await _ids(store) == wanted[:50]
    assert await _ids(store, limit=1000) == wanted
    assert await _ids(store, limit=10, offset=100) == wanted[100:110]
    assert await _ids(store, limit=10, offset=115) == wanted[115:]
    assert await _ids(store, limit=0) == []
    assert await _ids(store, offset=500) == []
    first = (await store.list_conversations(limit=1))[0]
    assert first == await store.get_conversation("c7")


OWNERS: list[int | str] = [1, "1", 0, "0", "", -1, "-1", 2**53 + 1, str(2**53 + 1), 2**63 - 1, -(2**63), "ann", "1.0"]


async def test_owners_keep_their_type(stores: Any) -> None:
    """An int and a text are different owners."""
    store, reader = stores(), stores()
    for number, owner in enumerate(OWNERS):
        given = Conversation(f"c{number}", user_id=owner, agent_name="a", auditing_id=OWNERS[-number - 1])
        for found in (await store.create_conversation(given), await reader.get_conversation(f"c{number}")):
            assert (type(found.user_id), found.user_id) == (type(owner), owner)
            assert (type(found.auditing_id), found.auditing_id) == (type(given.auditing_id), given.auditing_id)
    await store.append("without an owner", user("x"))
    for number, owner in enumerate(OWNERS):
        assert await _ids(reader, user_id=owner) == [f"c{number}"]
        assert await _ids(reader, user_id=owner, agent_name="a", limit=5) == [f"c{number}"]
        [listed] = await reader.list_conversations(user_id=owner)
        assert type(listed.user_id) is type(owner)
    assert await _ids(reader, user_id=5) == []


@pytest.mark.proves("lists")
@pytest.mark.smoke
async def test_lists_of_owners_and_agents(store: Any) -> None:
    for number in range(12):
        owner, agent = ("ann", 7)[number % 2], ("support", None)[number % 3 == 0]
        await store.create_conversation(Conversation(f"c{number}", user_id=owner, agent_name=agent))
    await store.append("c2", user("x"))
    await store.update_conversation("c4", user_id=None)
    await store.update_conversation("c5", user_id="ann", agent_name="other")
    await store.delete_conversation("c6")
    assert await _ids(store, user_id="ann") == ["c5", "c2", "c10", "c8", "c0"]
    assert await _ids(store, user_id="ann", agent_name="support") == ["c2", "c10", "c8"]
    assert await _ids(store, agent_name="support", limit=2, offset=1) == ["c2", "c11"]
    assert await _ids(store, user_id="ann", limit=2, offset=1) == ["c2", "c10"]
    assert await _ids(store, user_id=7) == ["c11", "c9", "c7", "c3", "c1"]
    assert await _ids(store, user_id="7") == await _ids(store, agent_name="nobody") == []


async def test_previews(store: Any) -> None:
    await store.create_conversation(Conversation("titled", title="Mine", user_id=1))
    await store.create_conversation(Conversation("long", user_id=1))
    await store.append_many(
        "long", [system("be kind"), assistant("Hello!"), user("Where is\n my " + "very " * 20 + "order?")]
    )
    last = await store.append("long", assistant("Here."))
    await store.append("other", user("x"))
    long, titled = await store.list_conversations(user_id=1, preview=True)
    assert (titled.title, titled.last_message) == ("Mine", None)
    assert long.title.startswith("Where is my very very")
    assert len(long.title) <= 80
    assert long.last_message == last.message
    assert long.conversation == await store.get_conversation("long")
    assert [one.title for one in await store.list_conversations(limit=1, preview=True)] == ["x"]
    await store.append("shot", user(f"![shot](data:image/png;base64,{'iVBORw0KGgo' * 100}) What is it?"))
    assert [one.title for one in await store.list_conversations(limit=1, preview=True)] == [
        "![shot]([image]) What is it?"
    ]


async def test_the_dates_of_a_conversation_are_those_of_its_messages(store: Any) -> None:
    created = await store.create_conversation(Conversation("c"))
    assert created.first_message_at is created.last_message_at is None
    old = [
        user("a", id="a", timestamp="2020-01-02"),
        user("b", timestamp="2019-05-01"),
        user("c", timestamp="1960-01-01"),
    ]
    await store.append_many("c", old)
    [found] = await store.list_conversations()
    assert (str(found.first_message_at.date()), str(found.last_message_at.date())) == ("1960-01-01", "2020-01-02")
    appended = await store.append("c", user("now"))
    assert (await store.get_conversation("c")).last_message_at == appended.message.timestamp
    await store.restore("c", old[:1])
    found = await store.get_conversation("c")
    assert found.first_message_at == found.last_message_at == old[0].timestamp
    await store.clear("c")
    assert (await store.get_conversation("c")).first_message_at is None


@pytest.mark.proves("lists")
async def test_conversations_are_counted(store: Any) -> None:
    assert await store.count_conversations() == 0
    for number in range(5):
        agent = "a" if number < 2 else None
        await store.create_conversation(Conversation(f"c{number}", user_id=number % 2, agent_name=agent))
    await store.append("c5", user("x"))
    for wanted, count in (
        ({}, 6),
        ({"user_id": 0}, 3),
        ({"agent_name": "a"}, 2),
        ({"user_id": 2}, 0),
        ({"user_id": "0"}, 0),
    ):
        assert await store.count_conversations(**wanted) == count
    assert await store.count_conversations(user_id=0, agent_name="a") == 1
    await store.delete_conversation("c0")
    assert [await store.count_conversations(), await store.count_conversations(user_id=0)] == [5, 2]
    with pytest.raises(InvalidInputError):
        await store.count_conversations(user_id=1.5)


@pytest.mark.backends("redis", "cluster")
async def test_names_that_are_not_ours_are_left_out_of_lists(
    stores: Any, server_of: Servers, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = stores()
    await store.append("c", user("x"))
    await store.append("d", user("x"))
    keys = Keyspace(namespace)
    with server_of(stores.kind).client() as client:
        for name in (b"\xff\xfe", b"a b", b"%zz", b"", b"x" * 600, b"%ff"):
            client.zadd(keys.conversation("c").registry, {name: 9e15})
        client.hset(keys.conversation("d").state, "M", b"\x91" * 2000)
    assert [one.conversation_id for one in await store.list_conversations()] == ["c"]
    assert "is not the name of a conversation" in caplog.text
    async with store.subscribe_all() as changes:
        await store.append("c", user("y"))
        assert (await changes.get(timeout=SOON)).conversation_id == "c"


async def test_lists_let_go_of_an_expired_conversation_that_has_another_owner_now(stores: Any) -> None:
    store = stores(ttl=1.0)
    await store.create_conversation(Conversation("c", user_id="ann", agent_name="helper"))
    await until(lambda: is_gone(store))
    await stores(ttl=60).create_conversation(Conversation("c", user_id="bob"))
    for owner in ({"user_id": "ann"}, {"agent_name": "helper"}):
        assert await store.list_conversations(**owner) == []
        assert await store.count_conversations(**owner) == 0
    assert await store.count_conversations(user_id="bob") == 1
