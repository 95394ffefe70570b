"""The base of custom backends: conversations in a storage of keys and values, such as a file or a database.

Operations are applied as in memory (`Space`), inside a transaction of the storage. Each conversation is one value, read
when an operation needs it, and written if the operation has changed it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from redis_history.store.capabilities import Capabilities
from redis_history.store.memory.backend import MemoryBackend
from redis_history.store.memory.owed import TurnState
from redis_history.store.memory.space import Change, ConversationState, Draft, Runs, Space, StoredMessage
from redis_history.store.memory.usage import OwnerTotals, StoredBudget
from redis_history.store.operations import Entry, LeaseKind
from redis_history.store.operations.backend import Wake, WakeAll
from redis_history.store.operations.base import T
from redis_history.values import Message, Position
from redis_history.values.usage import Numbers

__all__ = ["StoredBackend"]

K = TypeVar("K")

#: The key of the value that all conversations share; and how many changes it names.
_SHARED: Final = "shared"
_CHANGES: Final = 100


class StoredBackend(MemoryBackend):
    """Has all features. A subclass defines `transaction`, `get`, `set` and `keys`, and calls `ring` if others may have
    changed the storage. Any number of processes may use it, if transactions exclude each other.

    `log_length`, `ttl` and `max_messages` are those of a store."""

    def __init__(self, *, log_length: int = 10_000, ttl: float | None = None, max_messages: int | None = None) -> None:
        super().__init__(log_length=log_length, ttl=ttl, max_messages=max_messages, max_conversations=None)
        self._conversations: _Stored[str, ConversationState] = _Stored(
            self, "c", partial(_conversation, log_length), _pack, _mark
        )
        self._runs: _Stored[tuple[str, LeaseKind], Runs] = _Stored(self, "r", _decoder(Runs), _encode)
        self._drafts: _Stored[str, Draft] = _Stored(self, "d", _draft, _pack_draft)
        self._turns: _Stored[str, list[TurnState]] = _Stored(self, "t", _decoder(list[TurnState]), _encode)
        space = self._space
        space.conversations, space.runs, space.drafts = self._conversations, self._runs, self._drafts
        self._totals: _Stored[str, OwnerTotals] = _Stored(self, "p", _decoder(OwnerTotals), _encode)
        self._budgets: _Stored[str, StoredBudget] = _Stored(self, "b", _decoder(StoredBudget), _encode)
        space.usage.owners, space.usage.budgets = self._totals, self._budgets
        self._seats: _Stored[tuple[str | None, str], dict[str, float]] = _Stored(
            self, "q", _decoder(dict[str, float]), _encode
        )
        space.turns.states, space.turns.seats = self._turns, self._seats
        #: Their changes concern no watcher.
        self._others: tuple[_Stored[Any, Any], ...] = (self._drafts, self._seats, self._totals, self._budgets)
        # Other processes may watch a conversation that this one deletes: logs of deleted conversations are kept.
        space.watchers_of_all.append(lambda conversation_id: None)
        self._watched: dict[str, float] = {}  # since when, by conversation; "": all
        self._seen: int | None = None  # the last change that was made known

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]:
        """A transaction that excludes all others. It is undone if the block raises."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The value of a key, or None."""

    @abstractmethod
    def set(self, key: str, value: bytes | None) -> None:
        """Store a value; None removes the key."""

    @abstractmethod
    def keys(self, prefix: str) -> Iterable[str]:
        """All keys that begin with `prefix`, in any order."""

    def ring(self) -> None:
        """Wake the subscriptions and runs of conversations that others may have changed. From any thread."""
        with self._lock, self.transaction():
            shared, space = self._shared(), self._space
            count, self._seen = shared.changes - (self._seen or 0), shared.changes
        changed = shared.changed[-count:] if count else []
        if count > len(changed):
            changed = [name for name, _ in space.watchers]
        with self._lock:
            wakes = [wake for (name, _), those in space.watchers.items() if name in changed for wake in those]
            for wake_all in space.watchers_of_all:
                wakes += [partial(wake_all, name) for name in ([None] if count > len(shared.changed) else changed)]
            for workers in space.turns.watchers.values() if count else ():
                wakes += [partial(wake_worker, None) for wake_worker in workers]
        for wake in wakes:
            wake()

    def watch(self, conversation_id: str, wake: Wake) -> None:
        with self._lock:
            if (conversation_id, "") not in self._space.watchers:
                self._watched[conversation_id] = time.time()
            super().watch(conversation_id, wake)

    def watch_all(self, wake: WakeAll) -> None:
        with self._lock:
            if len(self._space.watchers_of_all) == 1:
                self._watched[""] = time.time()
            super().watch_all(wake)

    def capabilities(self) -> Capabilities:
        return Capabilities("custom")

    def close(self) -> None:
        with self._lock:
            self._closed = True

    @contextmanager
    def _open_space(self) -> Iterator[Space]:
        try:
            with super()._open_space() as space, self.transaction():
                shared = self._shared()
                space.deleted, space.ended = {**shared.deleted}, {**shared.ended}
                logs = {name: deque(log) for name, log in shared.logs.items() if self._saw_end(name, shared)}
                space.deleted_logs = logs
                yield space
                self._save(space, shared)
        except BaseException:  # also if the transaction cannot be committed
            self._outcomes.clear()
            kinds: tuple[_Stored[Any, Any], ...] = (self._conversations, self._runs, self._turns, *self._others)
            for kind in kinds:
                kind.forget()
            raise

    def _save(self, space: Space, shared: _Shared) -> None:
        for one in self._others:
            one.save()
        changed = [*self._conversations.save(), *(name for name, kind in self._runs.save() if kind == "run")]
        changed += self._turns.save()
        logs = shared.logs | {name: list(log) for name, log in space.deleted_logs.items()}
        after = _Shared(
            logs={name: log for name, log in logs.items() if name in space.deleted},
            deleted=space.deleted,
            ended=space.ended,
            changes=shared.changes + len(changed),
            changed=[*shared.changed, *changed][-_CHANGES:],
        )
        if after != shared:
            self.set(_SHARED, _encode(after))

    def _shared(self) -> _Shared:
        data = self.get(_SHARED)
        shared = _Shared() if data is None else _decode_shared(data)
        if self._seen is None:
            self._seen = shared.changes
        return shared

    def _saw_end(self, name: str, shared: _Shared) -> bool:
        """Whether somebody here has watched the conversation since before it was deleted."""
        at, space = shared.deleted.get(name, 0.0), self._space
        return ((name, "") in space.watchers and self._watched[name] <= at) or (
            len(space.watchers_of_all) > 1 and self._watched[""] <= at
        )


class _Shared(msgspec.Struct):
    """The state of `Space` apart from conversations: the number of `changes`, and the conversations of the last
    ones."""

    logs: dict[str, list[Change]] = {}
    deleted: dict[str, float] = {}
    ended: dict[str, tuple[str, float]] = {}
    changes: int = 0
    changed: list[str] = []


class _Stored(MutableMapping[K, T], Generic[K, T]):
    """The values of one kind. Those of the present transaction are in `_used`; decoded ones are kept for the next.

    `mark`: whatever differs if a value has changed; None: encode it to see.
    """

    def __init__(
        self,
        storage: StoredBackend,
        kind: str,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes],
        mark: Callable[[T], object] | None = None,
    ) -> None:
        self._storage, self._kind, self._decode, self._encode, self._mark = storage, kind, decode, encode, mark
        self._used: dict[K, tuple[bytes | None, object, T | None]] = {}
        self._known: dict[K, tuple[bytes, T]] = {}

    def _key(self, key: Any) -> str:
        return f"{self._kind}:{key}" if isinstance(key, str) else f"{self._kind}:{key[1]}:{key[0]}"

    def _load(self, key: K) -> T | None:
        if key in self._used:
            return self._used[key][2]
        data, value = self._storage.get(self._key(key)), None
        if data is not None:
            before, value = self._known.get(key, (None, None))
            if data != before:
                value = self._decode(data)
        self._used[key] = data, self._mark(value) if self._mark and value is not None else None, value
        return value

    def __getitem__(self, key: K) -> T:
        value = self._load(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: T) -> None:
        self._load(key)
        self._used[key] = self._used[key][0], None, value

    def __delitem__(self, key: K) -> None:
        self[key]
        self._used[key] = self._used[key][0], None, None

    def __iter__(self) -> Iterator[Any]:
        names = {key.removeprefix(f"{self._kind}:") for key in self._storage.keys(f"{self._kind}:")}
        gone = {key for key, (_, _, value) in self._used.items() if value is None}
        return iter((names | self._used.keys()) - gone)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def save(self) -> list[K]:
        """Write the changed values, and return their keys."""
        changed = []
        for key, (before, mark, value) in self._used.items():
            if value is None:
                self._known.pop(key, None)
                data = None
            else:
                data = before if mark is not None and self._mark and mark == self._mark(value) else self._encode(value)
                self._known[key] = data, value  # type: ignore[assignment]
            if data != before:
                self._storage.set(self._key(key), data)
                changed.append(key)
        self._used.clear()
        return changed

    def forget(self) -> None:
        for key in self._used:
            self._known.pop(key, None)
        self._used.clear()


class _Entry(msgspec.Struct, array_like=True):
    """An `Entry` without the decoded message."""

    message_id: str
    body: bytes
    flags: int
    timestamp: int | None
    characters: int
    tokens: int
    tools: bytes
    usage: bytes = b""

    @classmethod
    def of(cls, entry: Entry) -> _Entry:
        size = entry.characters, entry.tokens, entry.tools, entry.usage
        return cls(entry.message.id, entry.body, entry.flags, entry.timestamp, *size)

    def entry(self) -> Entry:
        message = Message(role="user", parts=(), id=self.message_id)
        return Entry(
            message, self.body, self.flags, self.timestamp, self.characters, self.tokens, self.tools, self.usage
        )


_Packed = tuple[ConversationState, list[Change], list[tuple[_Entry, Position, int, str]]]
_Ledger = dict[str, tuple[int, Numbers] | None]
_PackedDraft = tuple[int, float, list[tuple[int, list[tuple[Position, _Entry]]]], str | None, _Ledger]


def _as_list(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    raise TypeError(type(value))


def _as_deque(_: Any, values: list[Any]) -> deque[Any]:
    return deque(values, maxlen=32)


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_as_list).encode


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_as_deque).decode


def _pack(state: ConversationState) -> bytes:
    stored = [(_Entry.of(one.entry), one.position, one.revision, one.token) for one in state.stored.values()]
    return _encode((replace(state, log=deque(), stored={}, archived={}), list(state.log), stored))


_decode_shared: Final = _decoder(_Shared)
_unpack: Final = _decoder(_Packed)
_unpack_draft: Final = _decoder(_PackedDraft)


def _conversation(log_length: int, data: bytes) -> ConversationState:
    state: ConversationState
    state, log, stored = _unpack(data)
    archived = {message_id: archive for archive in state.archives for _, message_id in archive.held}
    messages = {packed.message_id: StoredMessage(packed.entry(), *rest) for packed, *rest in stored}
    return replace(state, log=deque(log, maxlen=log_length), stored=messages, archived=archived)


def _mark(state: ConversationState) -> object:
    replies = [(token, len(reply.content), reply.ends) for token, reply in state.replies.items()]
    return state.epoch, state.revision, state.token, replies


def _pack_draft(draft: Draft) -> bytes:
    sets = [
        (archive, [(position, _Entry.of(entry)) for position, entry in held.items()])
        for archive, held in draft.sets.items()
    ]
    return _encode((draft.page, draft.touched, sets, draft.source, draft.ledger))


def _draft(data: bytes) -> Draft:
    page, touched, packed, source, ledger = _unpack_draft(data)
    sets = {archive: {at: one.entry() for at, one in held} for archive, held in packed}
    return Draft(page, touched, sets, source, ledger)
