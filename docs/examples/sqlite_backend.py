"""Conversations in an SQLite file, for `HistoryStore(backend=SQLiteBackend("history.db"))`."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from redis_history import Conversation, Cursor, Message, Position, errors
from redis_history import operations as ops
from redis_history.events import BEGINNING
from redis_history.model.pairs import oldest_with_results
from redis_history.model.wire import decode_member, encode_member, from_microseconds, placed
from redis_history.operations import changelog
from redis_history.operations.backend import Backend, ChangedHeads, ChangeQuery, Wake, WakeAll

T = TypeVar("T")
LOWEST, HIGHEST = Position(-(2**63), 0), Position(2**63 - 1, 0)
ALL = ""  # in place of a conversation's id: they have one character at least
POLL = 0.05  # seconds until changes by other processes are noticed
OUTLIVES = 60_000_000  # microseconds that the log of a deleted conversation stays, for those who watch
OF_MESSAGES = "(SELECT {}(timestamp) FROM messages WHERE conversation = conversations.id)"
COLUMNS = f"*, {OF_MESSAGES.format('min')} AS first, {OF_MESSAGES.format('max')} AS last"
SCHEMA = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, epoch TEXT, revision INT, token TEXT, sequence INT, stamp INT, created INT, updated INT,
    ttl INT, ends INT, message_count INT, characters INT, tokens INT, user_id, agent_name TEXT, record BLOB);
CREATE INDEX IF NOT EXISTS by_change ON conversations (updated);
CREATE INDEX IF NOT EXISTS by_end ON conversations (ends);
CREATE TABLE IF NOT EXISTS messages (
    conversation TEXT, timestamp INT, sequence INT, id TEXT, revision INT, flags INT, body BLOB, characters INT,
    tokens INT, tools BLOB, UNIQUE (conversation, timestamp, sequence), UNIQUE (conversation, id));
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON messages BEGIN
    UPDATE conversations SET message_count = message_count + 1, characters = characters + new.characters,
        tokens = tokens + new.tokens WHERE id = new.conversation; END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON messages BEGIN
    UPDATE conversations SET message_count = message_count - 1, characters = characters - old.characters,
        tokens = tokens - old.tokens WHERE id = old.conversation; END;
CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON conversations BEGIN
    DELETE FROM messages WHERE conversation = old.id; END;
CREATE TABLE IF NOT EXISTS log (
    conversation TEXT, revision INT, token TEXT, kind INT, note BLOB, replaced INT, at INT,
    PRIMARY KEY (conversation, revision));
CREATE INDEX IF NOT EXISTS by_kind ON log (kind, at); COMMIT;
"""


class SQLiteBackend(Backend):
    """For any number of threads, and of processes of one machine. An operation is one transaction."""

    def __init__(
        self, path: str | Path, log_length: int = 10_000, ttl: float | None = None, max_messages: int | None = None
    ) -> None:
        self._log_length, self._max_messages, self._ttl = log_length, max_messages, ttl and round(ttl * 1e6)
        self._lock = threading.RLock()
        self._watched: dict[str, tuple[int, list[Wake]]] = {}  # since when, and by whom
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(SCHEMA)

    def execute(self, op: ops.Op[T]) -> T:
        """Each operation has the method of its name. Those that write carry a token."""
        writes = hasattr(op, "token")
        with self._lock:
            if self._closing.is_set():
                raise errors.StoreClosedError("the store was closed")
            try:
                self._run("BEGIN IMMEDIATE" if writes else "BEGIN")
                self._now = time.time_ns() // 1000
                if writes:
                    self._purge()
                outcome: T = getattr(self, f"_{type(op).__name__.lower()}")(op)
                self._run("COMMIT")
            except sqlite3.Error as error:
                raise errors.BackendUnavailableError(f"the SQLite file cannot be used: {error}") from error
            finally:
                self._db.rollback()
        if writes:
            self._ring()
        return outcome

    def watch(self, conversation_id: str, wake: Wake) -> None:
        with self._lock:
            self._watched.setdefault(conversation_id, (time.time_ns() // 1000, []))[1].append(wake)
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._look, name="sqlite-doorbell", daemon=True)
                self._thread.start()

    def unwatch(self, conversation_id: str, wake: Wake) -> None:
        with self._lock:
            _, wakes = self._watched.get(conversation_id, (0, []))
            if wake in wakes:
                wakes.remove(wake)
            if not wakes:
                self._watched.pop(conversation_id, None)

    def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        alive = "SELECT id, epoch, revision, token FROM conversations WHERE ifnull(ends > ?, 1)"
        with self._lock:
            heads = {row["id"]: Cursor(*row[1:]) for row in self._run(alive, time.time_ns() // 1000)}
        gone = dict.fromkeys(query.known.keys() - heads.keys(), BEGINNING)
        return ChangedHeads(gone | {name: head for name, head in heads.items() if head != query.known.get(name)})

    def watch_all(self, wake: WakeAll) -> None:
        self.watch(ALL, cast(Wake, wake))

    def unwatch_all(self, wake: WakeAll) -> None:
        self.unwatch(ALL, cast(Wake, wake))

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._db.close()

    def _look(self) -> None:
        """SQLite tells cheaply whether another connection has changed the file; then everybody looks."""
        known = None
        while not self._closing.wait(POLL):
            with self._lock:
                before, known = known, self._run("PRAGMA data_version").fetchone()[0]
            if before != known:
                self._ring()

    def _ring(self) -> None:
        for name, (_, wakes) in list(self._watched.items()):
            for wake in [*wakes]:
                cast(WakeAll, wake)(None) if name == ALL else wake()

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._db.execute(statement, values)

    def _purge(self) -> None:
        """What has expired, and the logs of what was deleted a while ago."""
        ended = "SELECT conversation FROM log WHERE kind = 10 AND at <= ?"
        expired = "SELECT id FROM conversations WHERE ends <= ?"
        both = f"DELETE FROM log WHERE conversation IN ({ended} UNION {expired})"  # noqa: S608
        self._run(both, self._now - OUTLIVES, self._now)
        self._run("DELETE FROM conversations WHERE ends <= ?", self._now)

    def _find(self, name: str) -> Any:
        statement = f"SELECT {COLUMNS} FROM conversations WHERE id = ? AND ifnull(ends > ?, 1)"  # noqa: S608
        return self._run(statement, name, self._now).fetchone()

    def _stored(self, name: str, message_id: str) -> Any:
        return self._run("SELECT * FROM messages WHERE conversation = ? AND id = ?", name, message_id).fetchone()

    def _check(self, op: Any) -> Any:
        """The conversation, or None. Raises unless the precondition holds."""
        found, wanted, where = self._find(op.conversation_id), op.precondition, repr(op.conversation_id[:80])
        at, expected = found["revision"] if found else 0, wanted.expected_revision
        if expected not in (None, at):
            text = f"conversation {where} is at revision {at}, not at {expected}"
            raise errors.RevisionConflictError(text, current_revision=at, expected_revision=expected)
        if wanted.must_exist and not found:
            raise errors.ConversationNotFoundError(f"there is no conversation {where}")
        if wanted.must_not_exist and found:
            raise errors.ConversationExistsError(f"conversation {where} exists already, at revision {at}")
        return found

    def _begin(self, op: Any) -> int:
        """Makes the conversation if there is none; when a former life of it ended, if its log was there."""
        if self._find(op.conversation_id):
            return 0
        ended = self._run("SELECT max(at) FROM log WHERE conversation = ?", op.conversation_id).fetchone()[0]
        self._run("DELETE FROM log WHERE conversation = ?", op.conversation_id)
        new = "INSERT INTO conversations VALUES (?, ?, 0, ?, 0, 0, ?, 0, NULL, NULL, 0, 0, 0, NULL, NULL, ?)"
        self._run(new, op.conversation_id, op.token, op.token, self._now, msgspec.msgpack.encode({}))
        return ended or 0

    def _write(self, op: Any, kind: int, replaced: int = 0, **note: Any) -> int:
        """The last writes of a change. Its revision. `note`: references to what was changed, no content."""
        found, name = self._find(op.conversation_id), op.conversation_id
        revision, ttl = found["revision"] + 1, self._ttl or found["ttl"]
        at = max(self._now, found["updated"] + 1) if revision > 1 else found["created"]
        update = "UPDATE conversations SET revision = ?, token = ?, updated = ?, ttl = ?, ends = ? WHERE id = ?"
        self._run(update, revision, changelog.token_of(op.token), at, ttl, ttl and at + ttl, name)
        entry = (name, revision, changelog.token_of(op.token), kind, msgspec.msgpack.encode(note), replaced, at)
        self._run("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", *entry)
        self._run("DELETE FROM log WHERE conversation = ? AND revision <= ?", name, revision - self._log_length)
        return cast(int, revision)

    def _put(self, name: str, entry: ops.Entry, revision: int, at: Position) -> None:
        what = (*at, entry.message.id, revision, entry.flags, entry.body)
        size = (entry.characters, entry.tokens, entry.tools)
        self._run("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", name, *what, *size)

    def _remove(self, name: str, ids: list[str]) -> None:
        self._db.executemany("DELETE FROM messages WHERE conversation = ? AND id = ?", [(name, one) for one in ids])

    def _trim(self, name: str) -> list[str]:
        """The ids of the oldest, which leave, and of what belongs to them."""
        if self._max_messages is None or (excess := self._find(name)["message_count"] - self._max_messages) <= 0:
            return []
        order = "SELECT id, tools FROM messages WHERE conversation = ? ORDER BY timestamp, sequence"
        stored = self._run(order, name).fetchall()
        gone = [stored[index]["id"] for index in oldest_with_results([row["tools"] for row in stored], excess)]
        self._remove(name, gone)
        return gone

    def _append(self, op: ops.Append) -> list[ops.Appended]:
        known: dict[str, ops.Appended] = {}
        for entry in op.entries:
            if row := self._stored(op.conversation_id, entry.message.id):
                if row["body"] != entry.body or entry.timestamp not in (None, row["timestamp"]):
                    text = f"conversation {op.conversation_id[:80]!r} has other content of id {entry.message.id!r}"
                    raise errors.MessageConflictError(text, message_id=entry.message.id)
                at = Position(row["timestamp"], row["sequence"])
                known[entry.message.id] = _appended(entry, row["revision"], at, True)
        if len(known) == len(op.entries):  # the precondition must have held when they were stored
            wanted, then = op.precondition, known[op.entries[-1].message.id].revision
            if wanted.expected_revision in (None, then - 1) and (then == 1 or not wanted.must_not_exist):
                return list(known.values())
        self._check(op)
        self._add(op, changelog.Kind.APPENDED, known)
        return [known[entry.message.id] for entry in op.entries]

    def _restore(self, op: ops.Restore) -> int:
        self._check(op)
        self._run("DELETE FROM messages WHERE conversation = ?", op.conversation_id)
        return self._add(op, changelog.Kind.RESTORED, {})

    def _add(self, op: ops.Append | ops.Restore, kind: int, known: dict[str, ops.Appended]) -> int:
        name, replaced, places = op.conversation_id, self._begin(op), []
        found = self._find(name)
        revision, sequence, stamp = found["revision"] + 1, found["sequence"], max(self._now - 1, found["stamp"])
        for entry in op.entries:
            if entry.message.id not in known:
                stamp, sequence = stamp + (entry.timestamp is None), sequence + 1
                at = Position(stamp if entry.timestamp is None else entry.timestamp, sequence)
                self._put(name, entry, revision, at)
                places.append((entry.message.id, sequence))
                known[entry.message.id] = _appended(entry, revision, at, False)
        self._run("UPDATE conversations SET stamp = ?, sequence = ? WHERE id = ?", stamp, sequence, name)
        return self._write(op, kind, replaced, places=places, ids=self._trim(name))

    def _clear(self, op: ops.Clear) -> int:
        if not (found := self._check(op)) or not found["message_count"]:
            return found["revision"] if found else 0
        self._run("DELETE FROM messages WHERE conversation = ?", op.conversation_id)
        return self._write(op, changelog.Kind.CLEARED)

    def _updatemessage(self, op: ops.UpdateMessage) -> ops.Appended | None:
        found, expected = self._find(op.conversation_id), op.precondition.expected_revision
        row = self._stored(op.conversation_id, op.entry.message.id) if found else None
        at = Position(row["timestamp"], row["sequence"]) if row else LOWEST
        if row and row["body"] == op.entry.body and expected in (None, found["revision"], row["revision"] - 1):
            return _appended(op.entry, row["revision"], at, False)
        self._check(op)
        if not row:
            return None
        self._remove(op.conversation_id, [op.entry.message.id])
        self._put(op.conversation_id, op.entry, found["revision"] + 1, at)
        name = op.entry.message.id
        revision = self._write(op, changelog.Kind.UPDATED, ids=[name], places=[(name, at.sequence)])
        return _appended(op.entry, revision, at, False)

    def _deletemessages(self, op: ops.DeleteMessages) -> int:
        found = [one for one in op.message_ids if self._stored(op.conversation_id, one)] if self._check(op) else []
        if found:
            self._remove(op.conversation_id, found)
            self._write(op, changelog.Kind.DELETED, ids=found)
        return len(found)

    def _deleteconversation(self, op: ops.DeleteConversation) -> bool:
        if found := self._check(op):
            self._write(op, changelog.Kind.ENDED)
            self._run("DELETE FROM conversations WHERE id = ?", op.conversation_id)
        return found is not None

    def _writerecord(self, op: ops.WriteRecord) -> int:
        self._check(op)
        replaced = self._begin(op)
        record = {**msgspec.msgpack.decode(self._find(op.conversation_id)["record"]), **op.fields}
        values = (record.get("user_id"), record.get("agent_name"), msgspec.msgpack.encode(record), op.conversation_id)
        self._run("UPDATE conversations SET user_id = ?, agent_name = ?, record = ? WHERE id = ?", *values)
        return self._write(op, changelog.Kind.RECORD, replaced, fields=list(op.fields))

    def _readconversation(self, op: ops.ReadConversation) -> Conversation | None:
        return _conversation(found) if (found := self._find(op.conversation_id)) else None

    def _listconversations(self, op: ops.ListConversations) -> list[Conversation]:
        statement = f"""SELECT {COLUMNS} FROM conversations
            WHERE ifnull(ends > ?1, 1) AND ifnull(user_id = ?2, ?2 IS NULL) AND ifnull(agent_name = ?3, ?3 IS NULL)
            ORDER BY updated DESC LIMIT ?4 OFFSET ?5"""  # noqa: S608
        return list(map(_conversation, self._run(statement, self._now, op.user_id, op.agent_name, op.limit, op.offset)))

    def _findmessage(self, op: ops.FindMessage) -> Message | None:
        row = self._stored(op.conversation_id, op.message_id) if self._find(op.conversation_id) else None
        return _message(row) if row else None

    def _readpage(self, op: ops.ReadPage) -> ops.Page:
        after = op.after._replace(sequence=op.after.sequence + 1) if op.after else LOWEST
        window = "conversation = ? AND (timestamp, sequence) >= (?, ?) AND (timestamp, sequence) < (?, ?)"
        order = "timestamp DESC, sequence DESC" if op.newest else "timestamp, sequence"
        statement = f"SELECT * FROM messages WHERE {window} ORDER BY {order} LIMIT ?"  # noqa: S608
        bounds = (*after, *(op.before or HIGHEST))
        rows = self._run(statement, op.conversation_id, *bounds, op.limit) if self._find(op.conversation_id) else ()
        messages = list(map(_message, rows))
        return ops.Page(messages[::-1] if op.newest else messages)

    def _readhead(self, op: ops.ReadHead) -> ops.Head:
        found = self._find(op.conversation_id)
        if not found:
            entries, _ = self._entries(op.conversation_id, 0, -1)
            return ops.Head(Cursor(BEGINNING.epoch, entries[-1].revision, entries[-1].token) if entries else BEGINNING)
        page = self._readpage(ops.ReadPage(op.conversation_id, op.messages, newest=True))
        at = Cursor(found["epoch"], found["revision"], found["token"])
        return ops.Head(at, found["message_count"], found["characters"], found["tokens"], page)

    def _readchanges(self, op: ops.ReadChanges) -> ops.Changes:
        head = self._readhead(ops.ReadHead(op.conversation_id)).cursor
        entries, replaces = self._entries(op.conversation_id, op.after.revision, op.limit + 1)
        return changelog.recover(op.conversation_id, op.after, head, entries, op.limit, former="log" * replaces)

    def _entries(self, name: str, revision: int, most: int) -> tuple[list[changelog.LogEntry], bool]:
        """Of the log, and whether its conversation took the place of another. The log of a deleted conversation is for
        those here who watched it when it was deleted."""
        since = min(self._watched[one][0] if one in self._watched else 2**63 - 1 for one in (name, ALL))
        alive = "SELECT 1 FROM conversations WHERE id = ?2 AND ifnull(ends > ?5, 1)"
        ended = "SELECT 1 FROM log WHERE conversation = ?2 AND kind = 10 AND at > ?1"
        statement = f"""SELECT revision, token, kind, note, replaced > ?1 AS replaces FROM log
            WHERE conversation = ?2 AND revision >= ?3 AND EXISTS ({alive} UNION {ended}) ORDER BY revision LIMIT ?4"""  # noqa: S608
        rows = self._run(statement, since, name, revision, most, self._now).fetchall()
        return [self._with_content(name, row) for row in rows], bool(rows and rows[0]["replaces"])

    def _with_content(self, name: str, row: Any) -> changelog.LogEntry:
        """An entry with the messages and fields that it refers to, as they are now."""
        note, messages = msgspec.msgpack.decode(row["note"]), []
        for message_id, sequence in note.get("places", ()):
            stored = self._stored(name, message_id)
            if stored and stored["sequence"] == sequence:
                messages.append(_message(stored))
        found = self._find(name)
        record = msgspec.msgpack.decode(found["record"]) if found else {}
        fields = {key: record[key] for key in note.get("fields", ()) if key in record}
        gone = {message_id for message_id, _ in note.get("places", ())} - {message.id for message in messages}
        gone &= self._named(name, row["revision"])
        at, ids = (row["revision"], row["token"], row["kind"]), tuple(note.get("ids", ()))
        return changelog.LogEntry(*at, tuple(messages), tuple(gone), ids, fields=fields)

    def _named(self, name: str, revision: int) -> set[str]:
        """The ids of messages that this change or a later one has removed."""
        later = "SELECT note FROM log WHERE conversation = ? AND revision >= ? AND kind IN (2, 3, 7)"
        notes = self._run(later, name, revision).fetchall()
        return {gone for row in notes for gone in msgspec.msgpack.decode(row["note"]).get("ids", ())}


def _appended(entry: ops.Entry, revision: int, at: Position, duplicate: bool) -> ops.Appended:
    return ops.Appended(revision, placed(entry.message, at.sequence, at.timestamp), duplicate)


def _message(row: Any) -> Message:
    return decode_member(encode_member(row["sequence"], row["characters"], row["flags"], row["timestamp"], row["body"]))


def _conversation(row: Any) -> Conversation:
    kept: dict[str, Any] = {name: row[name] for name in ("message_count", "characters", "tokens", "revision")}
    times = {"created_at": "created", "updated_at": "updated", "first_message_at": "first", "last_message_at": "last"}
    kept |= {name: None if row[at] is None else from_microseconds(row[at]) for name, at in times.items()}
    return Conversation(row["id"], **msgspec.msgpack.decode(row["record"]), **kept)
