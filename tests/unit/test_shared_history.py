"""A history that follows: what it shows between the times when all is quiet."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import HistoryStore, Message, compression, tool_result, tool_use, user
from redis_history.agents.history._outbox import stamped
from redis_history.errors import ConfigurationError
from redis_history.store.operations import ReadChanges
from redis_history.store.operations.append import Restore
from tests.support.histories import Dropping, Synced, texts


@pytest.fixture
def store() -> Iterator[HistoryStore]:
    with HistoryStore("memory://") as store:
        yield store


def following(store: HistoryStore, **options: Any) -> Synced:
    history = Synced(max_unsaved=100, **options)
    history.syncer.load("c", store.snapshot("c"))
    history.syncer.following = True
    return history


def send(store: HistoryStore, history: Synced) -> None:
    steps: Any = history.syncer.next()
    history.syncer.appended(steps, store.append_many("c", [step.message for step in steps]))


def receive_events(store: HistoryStore, history: Synced) -> None:
    cursor = history.syncer.cursor
    assert cursor is not None
    assert history.syncer.apply(store._backend.execute(ReadChanges("c", cursor)).events) is None


def test_an_own_entry_does_not_vanish_for_a_while(store: HistoryStore) -> None:
    store.append("c", user("before"))
    history = following(store)
    shown: list[list[str]] = []
    history.subscribe(lambda snapshot: shown.append([entry.text for entry in snapshot]))
    store.clear("c")
    history.add_text("user", "mine")
    send(store, history)
    cursor = history.syncer.cursor
    assert cursor is not None
    for event in store._backend.execute(ReadChanges("c", cursor)).events:
        history.syncer.apply([event])
        history._listeners.deliver()
    assert all("mine" in texts_ for texts_ in shown)
    assert texts(history) == ["mine"]
    assert history.entries == store.get("c")


def test_messages_lost_by_a_rewound_server_are_sent_again(store: HistoryStore) -> None:
    store.append("c", user("before"))
    history = following(store)
    older = store.snapshot("c")
    history.add_text("user", "acknowledged")
    send(store, history)
    assert history.syncer.unsaved == []
    history.syncer.read_again(older, "server_rewound")
    assert texts(history) == ["before", "acknowledged"]
    assert [message.text for message in history.syncer.unsaved] == ["acknowledged"]
    assert (history.syncer.outbox.count, history.syncer.outbox.size) == (1, next(iter(history.syncer.outbox)).size)


def test_an_event_is_not_taken_for_a_confirmation(store: HistoryStore) -> None:
    """With `durability`, a server that fails may lose changes that it has already announced."""
    store.append("c", user("before"))
    history = following(store, confirms=True)
    older = store.snapshot("c")
    added = history.add_text("user", "sent")
    steps: Any = history.syncer.next()
    stored = store.append("c", added).message
    receive_events(store, history)
    assert history.entries[-1] == stored
    assert history.syncer.unsaved == [added]
    assert history.syncer.next() == steps
    history.syncer.read_again(older, "server_rewound")
    assert (texts(history), history.syncer.next()) == (["before", "sent"], steps)
    history.syncer.read_again(store.snapshot("c"))
    store.delete_messages("c", [added.id])
    receive_events(store, history)
    assert (texts(history), history.syncer.unsaved) == (["before"], [added])
    assert history.syncer.without_deleted(steps) == history.syncer.unsaved == []


@pytest.mark.parametrize("reason", ["conversation_missing", "conversation_replaced"])
@pytest.mark.parametrize("confirms", [False, True])
def test_messages_of_a_deleted_conversation_are_not_sent_again(
    store: HistoryStore, reason: str, confirms: bool
) -> None:
    history = following(store, confirms=confirms)
    sent = history.add_text("user", "sent")
    if confirms:
        store.append("c", sent)
        receive_events(store, history)
    else:
        send(store, history)
    history.add_text("user", "waiting")
    store.delete_conversation("c")
    history.syncer.read_again(store.snapshot("c"), reason)
    assert texts(history) == [message.text for message in history.syncer.unsaved] == ["waiting"]


def test_a_rewrite_waits_for_its_confirmation(store: HistoryStore) -> None:
    store.append("c", user("before"))
    older = store.snapshot("c")
    history = following(store, confirms=True)
    history.restore([user("anew")])
    change: Any = history.syncer.next()
    op = Restore.of("c", change.target, expected_revision=change.seen)
    revision = store._write(replace(op, token=change.token))
    receive_events(store, history)
    assert (texts(history), history.syncer.next()) == (["anew"], change)
    store.append("c", user("by others"))
    receive_events(store, history)
    assert texts(history) == ["anew", "by others"]
    history.syncer.read_again(older, "server_rewound")
    assert (texts(history), history.syncer.next(), change.seen) == (["anew"], change, 1)
    history.syncer.rewritten(change, revision, changed=True)
    assert history.syncer.next() is None
    history.syncer.read_again(older, "server_rewound")
    assert history.syncer.next() is change


def test_an_acknowledgement_during_a_read_is_not_taken_for_a_deleted_conversation(store: HistoryStore) -> None:
    store.append("c", user("before"))
    history = following(store)
    generation = history._generation
    history.add_text("user", "mine")
    reads = history.syncer.changes_by_others()
    changes = store._backend.execute(next(reads))  # the read comes first, its reply after that of the append
    send(store, history)
    with pytest.raises(StopIteration):
        reads.send(changes)
    assert history._generation == generation  # a reduction under way stays valid
    assert texts(history) == ["before", "mine"]


def test_messages_that_come_before_an_unsaved_one_during_a_summary_make_it_void(store: HistoryStore) -> None:
    store.append_many("c", [user(f"Message {number}, which is long enough.", id=f"m{number}") for number in range(8)])
    history = following(store)

    def summarize(messages: Sequence[Message], previous: str | None) -> str:
        if len(history) == 9:
            store.append("c", user("of others", id="others"))
        receive_events(store, history)
        return "x"

    history.use(compression(summarize, keep_recent=2))
    history.add_entry(user("mine", id="mine"))
    assert history.reduce(max_entries=5).removed == 0
    assert [entry.id for entry in history.entries[-3:]] == ["m7", "others", "mine"]
    history.reduce(max_entries=5)
    assert history.entries[0].is_summary
    assert [entry.id for entry in history.entries[-3:]] == ["m7", "others", "mine"]


def test_half_a_pair_does_not_come_back(store: HistoryStore) -> None:
    store.append("c", user([tool_use("1", "f")]))
    history = following(store, max_length=3)
    history.add_message("tool", [tool_result("1", "result")])
    for number in range(3):
        history.add_text("user", str(number))
    assert texts(history) == ["0", "1", "2"]
    history.use(Dropping()).reduce(max_entries=1)
    assert texts(history) == ["2"]
    store.append("c", user("by others"))
    receive_events(store, history)
    assert "result" not in texts(history)
    assert [message.text for message in history.syncer.unsaved] == ["result", "0", "1", "2"]


def test_messages_without_a_time_stay_where_they_were_put() -> None:
    times = [None, "2026-01-01", None, None, "2026-01-02", None]
    messages: list[Message] = [user(str(number), timestamp=time) for number, time in enumerate(times)]
    found = stamped(messages)
    days = [message.timestamp.day if message.timestamp else None for message in found]
    assert days == [1, 1, 2, 2, 2, None]
    assert [message.id for message in found] == [message.id for message in messages]


@pytest.mark.parametrize("max_unsaved", [0, None, True, 1.5])
def test_options_that_make_no_sense(max_unsaved: Any) -> None:
    with pytest.raises(ConfigurationError):
        Synced(max_unsaved=max_unsaved)
