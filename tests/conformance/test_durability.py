"""The capabilities of backends, and writes that wait until they are on disk."""

from typing import Any

import pytest

from redis_history import Capabilities, Conversation, user
from redis_history.errors import CapabilityError, ConfigurationError, DurabilityError, MessageNotFoundError
from redis_history.store.changelog import is_of_call
from tests.conformance.conftest import Stores
from tests.support.restricted import DOORBELLS, LIKE


@pytest.mark.smoke
async def test_capabilities_are_those_of_the_backend(stores: Stores, store: Any) -> None:
    found = await store.capabilities
    assert found is await store.capabilities, "asked once"
    assert isinstance(found, Capabilities)
    assert found.dangers == ()
    if stores.backend == "memory":
        assert found in (
            Capabilities("memory", search="client", doorbell="direct", doorbell_all="direct"),
            Capabilities("custom"),
        )
        return
    if stores.kind in LIKE:
        assert (found.doorbell, found.doorbell_all) == DOORBELLS[stores.kind]
        assert found.mode == ("cluster" if stores.backend == "cluster" else None)
        assert found.appendfsync is None
        return
    assert found.backend == ("valkey" if stores.backend == "valkey" else "redis")
    assert found.mode == ("cluster" if stores.backend == "cluster" else "standalone")
    has_search = stores.backend != "plain"
    assert found.search == ("server" if has_search else "client")
    assert (found.search_module is not None) == has_search
    assert (found.doorbell, found.doorbell_all) == ("notifications", "notifications")
    assert (found.aof, found.appendfsync) == (True, "everysec")
    assert (found.eviction, found.replicas, found.durability[0]) == ("noeviction", 0, "server")
    assert f"backend: {found.backend}\nversion: {found.version}\n" in str(found)


async def test_memory_has_no_durability(stores: Stores) -> None:
    if stores.backend != "memory":
        return
    for durability in ("fsync", "replicas"):
        with pytest.raises(ConfigurationError, match=durability):
            stores(durability=durability)
    assert (await stores(durability="server").append("c", user("x"))).revision == 1


async def test_fsynced_writes_have_the_usual_outcomes(stores: Stores, fsyncing: Any) -> None:
    store, other = stores(durability="fsync"), stores(durability="fsync")
    created = await store.create_conversation(Conversation("c", title="t"))
    assert (created.title, created.revision) == ("t", 1)
    first = await store.append("c", user("1", id="1"))
    assert (first.revision, first.message.sequence) == (2, 1)
    assert (await other.append("c", user("1", id="1"))).duplicate
    assert [one.revision for one in await store.append_many("c", [user(n, id=n) for n in "123"])] == [2, 3, 3]
    assert (await store.update_message("c", user("two", id="2"))).revision == 4
    assert (await other.update_message("c", user("two", id="2"))).revision == 4
    with pytest.raises(MessageNotFoundError):
        await store.update_message("c", user("x", id="unknown"))
    assert await store.delete_messages("c", ["3"]) == 1
    assert await other.delete_messages("c", ["3"]) == 0
    assert await store.restore("c", [user("new", id="n")]) == 6
    assert await store.clear("c") == await other.clear("c") == 7
    assert (await store.update_conversation("c", title="u")).title == "u"
    assert [message.text for message in await store.get("c")] == []
    assert await store.delete_conversation("c")
    assert not await other.delete_conversation("c")
    assert await other.clear("c") == 0
    assert await other.list_conversations() == []


@pytest.mark.proves("fsync")
async def test_a_write_that_is_not_fsynced_in_time_raises_and_may_be_repeated(stores: Stores, fsyncing: Any) -> None:
    store = stores(durability="fsync", durability_timeout=0.2)
    before = await store.append("c", user("before", id="before"))
    assert not await store.delete_conversation("other")
    fsyncing("no")
    reader = stores()
    async with reader.subscribe("c", after=(await reader.snapshot("c")).cursor) as subscription:
        with pytest.raises(DurabilityError, match=r"2.*'c'") as caught:
            await store.append("c", user("x", id="x"))
        event = await subscription.get(timeout=10)
    error = caught.value
    assert (error.conversation_id, error.revision) == ("c", event.revision)
    assert is_of_call(event.cursor, error.token)
    with pytest.raises(DurabilityError, match="2"):
        await store.append("c", user("x", id="x"))
    with pytest.raises(DurabilityError) as caught:
        await store.delete_conversation("other")
    assert caught.value.revision is None
    assert [message.id for message in await store.get("c")] == ["before", "x"], "it is there"
    fsyncing("always")
    again = await store.append("c", user("x", id="x"))
    assert (again.duplicate, again.revision, before.revision) == (True, 2, 1)


async def test_a_step_of_an_expansion_that_writes_nothing_needs_no_confirmation(stores: Stores, fsyncing: Any) -> None:
    """The first step of a long one only finds that messages must be copied."""
    plain, store = stores(), stores(durability="fsync", durability_timeout=0.05)
    for part in "abc":
        await plain.append_many("c", [user(part, id=f"{part}{number}") for number in range(700)])
    await plain.compact("c", through="b350", summary=user("s", id="s", metadata={"is_summary": True}))
    await store.append("c", user("x"))
    fsyncing("no")
    for write in (store.append("c", user("y")), store.expand("c", "s")):
        with pytest.raises(DurabilityError):
            await write
    assert (await plain.snapshot("c", limit=1)).message_count == 2102


@pytest.mark.proves("confirmable")
async def test_a_server_that_never_fsyncs_is_rejected_before_the_write(stores: Stores, fsyncing: Any) -> None:
    fsyncing("no")
    store = stores(durability="fsync")
    assert await store.get("c") == []
    with pytest.raises(CapabilityError):
        await store.append("c", user("x"))
    with pytest.raises(CapabilityError, match="needs a connected replica"):
        await stores(durability="replicas").append("c", user("x"))
    assert await store.get("c") == []
    fsyncing("always")
    assert (await store.append("c", user("x"))).revision == 1, "checked again"
