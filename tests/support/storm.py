"""Writers and watchers for the proofs of subscriptions: what was written, what was told, and whether that agrees."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis_history import (
    ConversationDeleted,
    Cursor,
    Event,
    HistoryStore,
    MessagesAppended,
    Reset,
    RetryPolicy,
    user,
)
from redis_history.errors import ConversationNotFoundError, MessageNotFoundError
from redis_history.events import BEGINNING

PATIENT = RetryPolicy(deadline=120.0, longest_wait=0.1)


class Ledger:
    """What was acknowledged to the writers: of each message, which revision of which conversation stored it."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, tuple[str, int]] = {}

    def ids_of(self, conversation_id: str) -> set[str]:
        return {name for name, (where, _) in [*self.acknowledged.items()] if where == conversation_id}


class Watcher:
    """One subscriber's view: each change must follow the one before, unless a Reset stands between."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.name = name
        self.at: dict[str, Cursor] = {}
        self.resets: Counter[tuple[str, str]] = Counter()
        self.told: dict[str, set[str]] = defaultdict(set)
        self.events = 0
        self.faults: list[str] = []
        self._ledger = ledger

    def tell(self, event: Event) -> None:
        self.events += 1
        name, before = event.conversation_id, self.at.get(event.conversation_id, BEGINNING)
        if isinstance(event, Reset):
            self.resets[name, event.reason] += 1
        else:
            new_life = event.revision == 1 and before.epoch == BEGINNING.epoch
            if not new_life and (event.revision != before.revision + 1 or event.cursor.epoch != before.epoch):
                self.faults.append(f"{self.name}: {type(event).__name__} {event.cursor} of {name} after {before}")
        if isinstance(event, MessagesAppended):
            for message in event.messages:
                where = self._ledger.acknowledged.get(message.id, (name, event.revision))
                if message.id in self.told[name]:
                    self.faults.append(f"{self.name}: message {message.id} of {name} was told twice")
                if where != (name, event.revision):
                    self.faults.append(f"{self.name}: {message.id} told as {name} {event.revision}, stored as {where}")
                self.told[name].add(message.id)
        ended = isinstance(event, ConversationDeleted)
        self.at[name] = Cursor(BEGINNING.epoch, event.revision, event.cursor.token) if ended else event.cursor

    def is_at(self, heads: dict[str, Cursor]) -> bool:
        """Whether all that there is was told. Of a conversation that is gone, that it is."""
        return all(
            self.at.get(name, BEGINNING) == head
            if head.revision and head.epoch != BEGINNING.epoch
            else self.at.get(name, BEGINNING).epoch == BEGINNING.epoch
            for name, head in heads.items()
        )

    def missing(self) -> set[str]:
        """Acknowledged messages of conversations without a Reset that were not told."""
        reset = {name for name, _ in self.resets}
        return {
            message_id
            for message_id, (name, _) in self._ledger.acknowledged.items()
            if name in self.told and name not in reset and message_id not in self.told[name]
        }


class Writers:
    """Threads that change conversations at random, each through a store of its own, until they are told to stop."""

    def __init__(self, url: str, conversations: list[str], ledger: Ledger, seed: int, **options: Any) -> None:
        self._url = url
        self._options = options
        self._conversations = conversations
        self._ledger = ledger
        self._seed = seed
        self._round = 0
        self.changes = 0
        self.errors: list[BaseException] = []

    def run(
        self, changes: int, *, threads: int = 3, between: Callable[[], object] | None = None, url: str = ""
    ) -> None:
        """Make so many changes, at the usual server or that of `url`. `between` is called again and again meanwhile,
        from this thread."""
        self._round += 1
        at_work = [
            threading.Thread(target=self._work, args=(self._round * 100 + number, changes // threads, url))
            for number in range(threads)
        ]
        for thread in at_work:
            thread.start()
        while any(thread.is_alive() for thread in at_work):
            if between is not None:
                between()
            at_work[0].join(0.02)
        for thread in at_work:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _work(self, number: int, changes: int, url: str) -> None:
        choose = random.Random(self._seed * 10_000 + number)
        try:
            with HistoryStore(url or self._url, retry=PATIENT, **self._options) as store:
                for index in range(changes):
                    self._change(store, choose, f"{number}-{index}")
                    self.changes += 1
        except BaseException as error:  # noqa: BLE001 -- for the test that waits for this thread
            self.errors.append(error)

    def _change(self, store: HistoryStore, choose: random.Random, name: str) -> None:
        where, what = choose.choice(self._conversations), choose.random()
        own = [user(f"{name} {part}", id=f"{name}-{part}") for part in range(3 if what < 0.05 else 1)]
        if what < 0.9:
            for item in store.append_many(where, own):
                self._ledger.acknowledged[item.message.id] = (where, item.revision)
        elif what < 0.94:
            store.delete_messages(where, [message.id for message in store.get(where, limit=1)])
        elif what < 0.97:
            for message in store.get(where, limit=1):
                with suppress(MessageNotFoundError):  # another writer was faster
                    store.update_message(where, user(f"changed by {name}", id=message.id))
        elif what < 0.995:
            with suppress(ConversationNotFoundError):
                store.update_conversation(where, title=name)
        else:
            store.clear(where)
