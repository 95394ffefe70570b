"""A custom backend without an operation to poll all conversations: subscriptions list and compare."""

from __future__ import annotations

from typing import Any

import pytest

from redis_history import HistoryStore, MessagesAppended, Reset, user
from redis_history.engine.memory import MemoryBackend
from redis_history.errors import CapabilityError
from redis_history.operations.backend import Backend, Features, features


class PlainBackend:
    """The four methods that every backend has, and no other."""

    def __init__(self) -> None:
        memory = MemoryBackend(max_conversations=None)
        self.execute: Any = memory.execute
        self.watch = memory.watch
        self.unwatch = memory.unwatch
        self.close = memory.close


class DerivedBackend(Backend, PlainBackend):
    """The same, derived from the protocol."""


@pytest.mark.parametrize("kind", [PlainBackend, DerivedBackend])
def test_a_backend_needs_no_undeclared_features(kind: Any) -> None:
    with HistoryStore(backend=kind()) as store:
        store.append_many("c", [user("one word", id="a"), user("another", id="b")])
        assert features(store._backend) == Features(search_mode="client")
        assert [message.id for message in store.get("c", include_archived=True)] == ["a", "b"]
        assert [message.id for message in store.iter("c", include_archived=True)] == ["a", "b"]
        assert [hit.message.id for hit in store.search("c", "word")] == ["a"]
        assert [hit.message.id for hit in store.search_all("word")] == ["a"]
        (preview,) = store.list_conversations(preview=True)
        assert preview.last_message is not None
        assert (preview.title, preview.last_message.id) == ("one word", "b")
        assert store.capabilities.backend == "custom"
        for refused in (
            lambda: store.reindex(),
            lambda: store.compact("c", through="a", summary="x"),
            lambda: store.expand("c", "a"),
        ):
            with pytest.raises(CapabilityError):
                refused()


@pytest.mark.proves("all-conversations")
@pytest.mark.parametrize("conversations", [3, 501])
def test_subscribe_all_works_by_listing(conversations: int) -> None:
    with HistoryStore(backend=PlainBackend(), poll_interval=0.05) as store:
        for number in range(conversations):
            store.append(f"c{number}", user("before"))
        with store.subscribe_all() as changes:
            for number in range(conversations):
                store.append(f"c{number}", user("after"))
            store.append("new", user("first"))
            events = [changes.get(timeout=20) for _ in range(conversations + 1)]
            assert {event.conversation_id: event.revision for event in events if event} == {
                "new": 1,
                **{f"c{number}": 2 for number in range(conversations)},
            }
            store.delete_conversation("c1")
            gone = changes.get(timeout=20)
            assert isinstance(gone, Reset)
            assert (gone.conversation_id, gone.reason) == ("c1", "conversation_missing")
            cursors = changes.cursors
        store.append("c0", user("while nobody watched"))
        with store.subscribe_all(after=cursors) as changes:
            event = changes.get(timeout=20)
            assert isinstance(event, MessagesAppended)
            assert (event.conversation_id, event.revision) == ("c0", 3)
            assert changes.get(timeout=0) is None
