"""Who changed what: in the log of a conversation, and in the audit trail, which outlives it."""

from typing import Any

import pytest

from redis_history import Conversation, HistoryStore, errors, user
from redis_history.types import AuditEntry
from tests.conformance.test_compaction import summary


async def _work(store: Any) -> None:
    await store.create_conversation(Conversation("c", auditing_id="case-7"))
    await store.append_many("c", [user(name, id=name) for name in "abcd"])
    await store.update_message("c", user("edited", id="a"), by="ann")
    await store.pin("c", "b", by="bob")
    await store.update_conversation("c", title="T", metadata={"k": 1}, by="ann\n'; \x00")
    await store.merge_metadata("c", {"k": 2}, by="cleo")
    await store.delete_messages("c", ["c"], by="ann")
    await store.compact("c", through="a", summary=summary("s", id="s"))
    await store.expand("c", "s")
    await store.restore("c", [user("x", id="x")], by="ann")
    await store.clear("c", by="ann")


WORK = [
    ("conversation_updated", (), None),
    ("messages_appended", (), None),
    ("message_updated", ("a",), "ann"),
    ("message_updated", ("b",), "bob"),
    ("conversation_updated", (), "ann\n'; \x00"),
    ("conversation_updated", (), "cleo"),
    ("messages_deleted", ("c",), "ann"),
    ("history_compacted", ("s",), None),
    ("history_expanded", ("s",), None),
    ("history_restored", (), "ann"),
    ("history_cleared", (), "ann"),
]


@pytest.mark.smoke
@pytest.mark.full
async def test_the_log_says_who_made_a_change(stores: Any) -> None:
    store = stores()
    await _work(store)
    events = await store.log("c")
    assert [(type(event).__struct_config__.tag, event.by) for event in events] == [(kind, by) for kind, _, by in WORK]
    assert [*events[4].fields] == ["title", "metadata"]
    async with store.subscribe("c") as subscription:
        await subscription.open()
        await stores.until_watched("c")
        await store.delete_conversation("c", by="boss")
        assert (await subscription.get(timeout=10)).by == "boss"


async def test_the_trail_outlives_the_conversation(stores: Any) -> None:
    store = stores(audit=3600)
    await _work(store)
    await store.append("d", user("x"))
    await store.fork("d", "e")
    await store.delete_conversation("c", by="boss")
    await store.create_conversation(Conversation("c", auditing_id=8))

    async def trail(**given: Any) -> list[AuditEntry]:
        return (await store.audit_trail(**given))[::-1]

    found = await trail(auditing_id="case-7")
    assert [(one.change, one.message_ids, one.by) for one in found] == [*WORK, ("conversation_deleted", (), "boss")]
    assert found[4].fields == ("title", "metadata")
    assert {one.conversation_id for one in found} == {"c"}
    assert [one.changed_at for one in found] == sorted(one.changed_at for one in found)
    assert [one.auditing_id for one in await trail(conversation_id="c")] == 12 * ["case-7"] + [8]
    everything = await trail()
    assert [one.change for one in everything if one.conversation_id == "e"] == ["conversation_copied"]
    assert await store.audit_trail(limit=3) == everything[:-4:-1]
    assert await store.audit_trail(limit=0) == []
    assert [one.change for one in await trail(by="bob")] == ["message_updated"]
    middle = found[5].changed_at
    assert await trail(auditing_id="case-7", since=middle) == found[6:]
    assert await trail(auditing_id="case-7", before=middle) == found[:5]
    assert await trail(auditing_id="absent") == []
    if stores.backend != "memory":
        await stores().append("c", user("not audited"))
        assert len(await trail(conversation_id="c")) == 13


async def test_old_changes_leave_the_trail(stores: Any) -> None:
    store = stores(audit=1)
    await store.append("c", user("x"))
    first = (await store.audit_trail())[0]

    async def is_gone() -> bool:
        await store.append("c", user("x"))
        return first not in await store.audit_trail(limit=1000)

    from tests.support.servers import until

    await until(is_gone, "the trail to forget")


@pytest.mark.backends("memory")
async def test_wrong_names_and_options_are_rejected(stores: Any) -> None:
    store = stores()
    await store.append("c", user("x", id="a"))
    for wrong in ("", "x" * 201, 3, "\ud800"):
        with pytest.raises(errors.InvalidInputError):
            await store.delete_messages("c", ["a"], by=wrong)
    for wrong in (0, -1, "x", True, float("nan")):
        with pytest.raises(errors.ConfigurationError):
            HistoryStore("memory://", audit=wrong)
    assert len(await store.get("c")) == 1
    assert await store.audit_trail() == []
