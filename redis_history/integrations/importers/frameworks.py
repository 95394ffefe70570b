"""Conversations that agent frameworks have stored in Redis with their own classes."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b32decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from redis_history import HistoryStore
from redis_history.errors import InvalidInputError
from redis_history.formats import from_langchain, from_openai_responses, to_openai_responses
from redis_history.integrations._extras import BATCH
from redis_history.integrations.importers.source import report
from redis_history.integrations.importers.transcript import ImportProblem, OnError, Transcript, title_of, unique_id
from redis_history.store.urls import parse_url
from redis_history.values import Message, Position
from redis_history.values._validation import check_choice
from redis_history.values.ids import MAX_ID_BYTES, check_conversation_id
from redis_history.values.times import to_microseconds

#: The key of metadata with the state of ADK.
STATE = "adk"
_LAST = 10**15  # a sequence after all others of the same time


class _Entry(NamedTuple):
    """A stored message: its key, its number in the conversation, its bytes and their value."""

    key: str
    number: int
    raw: bytes
    value: Any


#: Converts entries, and yields each message with the entry it begins with.
_Convert = Callable[[Sequence[_Entry]], Iterable[tuple[_Entry, Message]]]


class _Layout(NamedTuple):
    """Keys of the type `kind` that begin with `prefix`. `name` gives the conversation of what follows it, or None.
    `matches`: whether the first entry of a list belongs to the framework."""

    prefix: str
    kind: str
    name: Callable[[str, str], str | None]
    convert: _Convert
    newest_first: bool = False
    matches: Callable[[Any], bool] | None = None


class FrameworkSource:
    """The conversations that the Redis class of a framework stored on the server at `url`.

    `framework` is a name in FRAMEWORKS. Iterate over a source for a `Transcript` of each conversation, or pass it to
    `import_messages`. `len()` is the number of conversations. The server is only read. Conversations keep their names.
    The ids of messages are those of the framework, or derived from their content, so that a repeated import adds only
    new messages. `key_prefix` is the beginning of the keys, if it is not the framework's default. Bad entries are
    skipped and passed to `on_error` (without it, logged as warnings).

    Raises InvalidInputError for an unknown framework, ConfigurationError for an invalid URL, and the errors of a store.
    """

    def __init__(
        self, framework: str, url: str, *, key_prefix: str | None = None, on_error: OnError | None = None
    ) -> None:
        check_choice(framework, "framework", FRAMEWORKS, InvalidInputError)
        if parse_url(url).scheme == "memory":
            raise InvalidInputError("url: memory:// holds no conversations of other programs; name a Redis server")
        self._framework, self._url, self._prefix, self._on_error = framework, url, key_prefix, on_error
        self._found: dict[str, tuple[_Layout, dict[str, None]]] = {}  # keys by conversation, in order
        with HistoryStore(url, search="off") as store:
            for layout in _LAYOUTS[framework]:
                self._find(store, layout)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Transcript]:
        with HistoryStore(self._url, search="off") as store:
            for name, (layout, keys) in sorted(self._found.items()):
                if layout.kind == "string":
                    yield from self._adk(store, *keys)
                    continue
                yield self._transcript(name, layout, self._entries(store, layout, [*keys]))

    def _find(self, store: HistoryStore, layout: _Layout) -> None:
        prefix = layout.prefix if self._prefix is None else self._prefix
        for raw_key in _scan(store, prefix, layout):
            key = raw_key.decode(errors="replace")
            name = layout.name(prefix, key.removeprefix(prefix))
            try:
                if name is None or "\ufffd" in key:
                    raise InvalidInputError(f"the key does not look like one of {self._framework}")
                check_conversation_id(name)
            except InvalidInputError as error:
                self._problem(key, 1, str(error))
                continue
            known, keys = self._found.setdefault(name, (layout, {}))
            if known is not layout or (keys and key not in keys and layout.kind == "list"):
                self._problem(key, 1, f"{next(iter(keys))} has the same session; import each with its own --key-prefix")
            else:
                keys[key] = None  # SCAN may repeat a key

    def _entries(self, store: HistoryStore, layout: _Layout, keys: list[str]) -> list[_Entry]:
        if layout.kind == "list":
            items = _items(store, keys[0].encode(), newest_first=layout.newest_first)
            raws = [(keys[0], number, raw) for number, raw in enumerate(items, 1)]
        else:
            pages = ((page, _ask(store, [[b"JSON.GET", key.encode()] for key in page])) for page in _pages(keys))
            raws = [(key, 1, raw) for page, replies in pages for key, raw in zip(page, replies, strict=True)]
        found = []
        for key, number, raw in raws:
            value = _value(raw)
            if isinstance(value, dict):
                found.append(_Entry(key, number, raw, value))
            elif raw is not None:  # None: it expired since the scan
                self._problem(key, number, "not a JSON object")
        return found if layout.kind == "list" else sorted(found, key=lambda one: (_time(one) or 0, one.key))

    def _transcript(self, name: str, layout: _Layout, entries: list[_Entry]) -> Transcript:
        prefix = hashlib.blake2b(f"{self._framework}:{name}".encode(), digest_size=8).hexdigest()
        seen: dict[str, int] = {}
        messages = []
        for entry, message in self._converted(layout.convert, entries):
            own = message.id if layout.convert is _langchain and message.id == _own_id(entry.value) else None
            digest = hashlib.blake2b(entry.raw, digest_size=12).hexdigest()
            messages.append(replace(message, id=unique_id(own or f"{prefix}-{digest}", seen)))
        return Transcript(
            conversation_id=name, format=self._framework, messages=tuple(messages), title=title_of(messages)
        )

    def _adk(self, store: HistoryStore, key: str) -> Iterator[Transcript]:
        """The session of ADK at a key, and the state that it shares with others. The user and application are in it."""
        from redis_history.integrations import google_adk as adapter

        [raw] = _ask(store, [[b"GET", key.encode()]])
        session = _value(raw)
        try:
            app, user, id_ = (str(session[name]) for name in ("app_name", "user_id", "id"))
            entries = [_Entry(key, number, b"", event) for number, event in enumerate(session["events"], 1)]
            _, state = adapter._split(session["state"])
        except (TypeError, LookupError, AttributeError):
            if raw is not None:  # it expired since the scan
                self._problem(key, 1, "not a session of ADK")
            return
        messages = [message for _, message in self._converted(_google_adk, entries)]
        times = [message.timestamp for message in messages if message.timestamp]
        if times != sorted(times):  # the order of the events is that of the session
            messages, times = [replace(message, timestamp=None) for message in messages], []
        # The state has the changes of all these events already.
        applied = {"applied": str(Position(to_microseconds(times[-1]), _LAST))} if times else {}
        yield Transcript(
            conversation_id=adapter._id(app, user, id_),
            format=self._framework,
            messages=tuple(messages),
            agent_name=app,
            user_id=user,
            metadata=_imported_state(state, session_id=id_, **applied),
        )
        for names, shared in (((app,), f"app:{app}"), ((app, user), f"user:{app}:{user}")):
            [fields] = _ask(store, [[b"HGETALL", shared.encode()]])
            values = {name.decode(): _value(value) for name, value in _pairs(fields)}
            if values:
                yield Transcript(
                    conversation_id=adapter._id(*names),
                    format=self._framework,
                    messages=(),
                    metadata=_imported_state(values),
                )

    def _converted(self, convert: _Convert, entries: list[_Entry]) -> list[tuple[_Entry, Message]]:
        """Entries that cannot be converted are reported, one by one, and left out."""
        try:
            return list(convert(entries))
        except (ValueError, LookupError, TypeError) as error:  # InvalidInputError is a ValueError
            if len(entries) == 1:
                self._problem(entries[0].key, entries[0].number, str(error).partition("\n")[0])
                return []
        return list(convert([entry for entry in entries if self._converted(convert, [entry])]))

    def _problem(self, key: str, number: int, reason: str) -> None:
        report(ImportProblem(key, number, reason), self._on_error)


def _imported_state(state: dict[str, Any], **note: str) -> dict[str, Any]:
    """The metadata for `AdkSessionService`, with a digest of the state, for `renewed_state`."""
    return {STATE: json.dumps({**note, "state": state, "imported": _digest(state)})}


def _digest(state: Any) -> str:
    return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()


def renewed_state(stored: Any, given: str) -> tuple[str, list[str]]:
    """The stored metadata of ADK with the state of another import. State that was changed here since the last import
    gets only the keys that it lacks; also returns the keys that have another value."""
    if not isinstance(stored, str):
        return given, []
    old, new = json.loads(stored), json.loads(given)
    state = old.get("state", {})
    if old.get("imported") != _digest(state):
        old["state"] = {**new["state"], **state}
        return json.dumps(old), [key for key, value in new["state"].items() if old["state"][key] != value]
    places = [note["applied"] for note in (old, new) if "applied" in note]
    applied = {"applied": max(places, key=Position.parse)} if places else {}
    return json.dumps({**old, **new, **applied}), []


def _scan(store: HistoryStore, prefix: str, layout: _Layout) -> Iterator[bytes]:
    pattern = re.sub(r"([][*?\\])", r"\\\1", prefix).encode() + b"*"
    cursor = b"0"
    while True:
        command = [b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000", b"TYPE", layout.kind.encode()]
        try:
            [[cursor, keys]] = _ask(store, [command])
        except InvalidInputError as error:
            if "unknown type name" in str(error):  # Valkey 9 without a JSON module, so without such keys
                return
            raise
        for page in _pages(keys):
            firsts = _ask(store, [[b"LINDEX", key, b"0"] for key in page]) if layout.matches else page
            for key, first in zip(page, firsts, strict=True):
                if layout.matches is None or layout.matches(_value(first)):
                    yield key
        if int(cursor) == 0:
            return


def _pairs(fields: Any) -> Iterable[tuple[bytes, bytes]]:
    """The fields of a hash, which are a list in RESP2."""
    return fields.items() if isinstance(fields, dict) else zip(fields[::2], fields[1::2], strict=True)


def _items(store: HistoryStore, key: bytes, *, newest_first: bool) -> Iterator[bytes]:
    """The items of a list, the oldest first, by pages."""
    [length] = _ask(store, [[b"LLEN", key]])
    for at in range(0, length, BATCH):
        first, last = (-at - BATCH, -at - 1) if newest_first else (at, at + BATCH - 1)
        [page] = _ask(store, [[b"LRANGE", key, b"%d" % first, b"%d" % last]])
        yield from reversed(page) if newest_first else page


def _pages(keys: list[Any]) -> Iterator[list[Any]]:
    return (keys[at : at + BATCH] for at in range(0, len(keys), BATCH))


def _ask(store: HistoryStore, commands: list[list[bytes]]) -> list[Any]:
    """Replies to commands that change nothing."""
    backend: Any = store._backend
    replies = backend.ask(commands) if commands else [[]]
    if len(replies) > 1:
        raise InvalidInputError("url: a cluster is read node by node; give the redis:// URL of each primary")
    for reply in replies[0]:
        if isinstance(reply, Exception):
            raise InvalidInputError(f"url: the server cannot answer {commands[0][0].decode()}: {reply}") from reply
    return cast("list[Any]", replies[0])


def _value(raw: Any) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (TypeError, ValueError, RecursionError):
        return None


def _own_id(value: Any) -> str | None:
    """The id of a LangChain message, if it can be an id of a message here."""
    id_ = value["data"].get("id") if isinstance(value.get("data"), dict) else None
    return id_ if isinstance(id_, str) and id_ and len(id_.encode(errors="replace")) <= MAX_ID_BYTES else None


def _time(entry: _Entry) -> float | None:
    time = entry.value.get("timestamp")
    return float(time) if isinstance(time, int | float) else None


def _langchain(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, Message]]:
    times = [_time(entry) for entry in entries]
    for entry in entries:
        data = entry.value.get("data")
        if not isinstance(data, dict):
            raise InvalidInputError("not a serialized LangChain message: it has no data")
        data = dict(data)
        id_ = _own_id(entry.value)
        if id_ is not None:
            del data["id"]  # as LangChainHistory stores it
        said = (data.get("additional_kwargs") or {}).get("tool_calls")
        if said and "tool_calls" not in data:  # langchain-redis keeps only the provider's own form of the calls
            data["tool_calls"] = [
                {
                    "name": call["function"]["name"],
                    "args": msgspec.json.decode(call["function"]["arguments"]),
                    "id": call["id"],
                    "type": "tool_call",
                }
                for call in said
            ]
        [message] = from_langchain([{"type": entry.value.get("type"), "data": data}])
        time = _time(entry) if None not in times else None
        at = None if time is None else datetime.fromtimestamp(time, UTC)
        yield entry, replace(message, id=id_ or message.id, timestamp=at)


def _openai_agents(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, Message]]:
    at = 0
    for message in from_openai_responses([entry.value for entry in entries]):  # a reply is one message
        yield entries[at], message
        at += len(to_openai_responses([message], shape="original"))


def _llama_index(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, Message]]:
    from redis_history.integrations.llama_index import ChatMessage, from_llama_index  # type: ignore[attr-defined]

    for entry in entries:
        yield entry, from_llama_index(ChatMessage.model_validate(entry.value))


def _agent_framework(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, Message]]:
    from redis_history.integrations import agent_framework as adapter

    theirs = [adapter.FrameworkMessage.from_dict(entry.value) for entry in entries]  # type: ignore[attr-defined]
    yield from zip(entries, adapter.from_agent_framework(theirs), strict=True)


def _google_adk(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, Message]]:
    from redis_history.integrations import google_adk as adapter

    for entry in entries:
        event = adapter.Event.model_validate(entry.value)  # type: ignore[attr-defined]
        yield entry, replace(adapter._message(event), timestamp=datetime.fromtimestamp(event.timestamp, UTC))


def _session(prefix: str, rest: str) -> str | None:
    """The session is the rest of the key, after a colon that the prefix may lack."""
    return (rest if prefix.endswith(":") else rest.removeprefix(":")) or None


def _session_of_agents(prefix: str, rest: str) -> str | None:
    """`agents:session:<session>:messages`. The class has other keys with this prefix."""
    rest = _session(prefix, rest) or ""
    return rest.removesuffix(":messages") if rest.endswith(":messages") else None


def _session_of_agent_framework(prefix: str, rest: str) -> str | None:
    """`chat_messages:<session>`, or `chat_messages|v2|<tenant>|<application>|<agent>|<source>|<session>`."""
    if "|v2|" not in prefix + rest:
        return _session(prefix, rest)
    segment = rest.rpartition("|")[2]
    code = segment.removeprefix("~redis-session-")
    if code == segment or not code.isalnum():  # a plain id, or the digest of a long one
        return segment
    return b32decode(code.upper() + "=" * (-len(code) % 8)).decode(errors="replace")


_LAYOUTS = {
    "langchain": (
        _Layout("message_store:", "list", _session, _langchain, newest_first=True),
        _Layout("chat:", "ReJSON-RL", lambda prefix, rest: _session(prefix, rest.rpartition(":")[0]), _langchain),
    ),
    "openai-agents": (_Layout("agents:session:", "list", _session_of_agents, _openai_agents),),
    # Its keys are the sessions themselves, so its lists are recognized by their content.
    "llama-index": (
        _Layout("", "list", lambda prefix, rest: prefix + rest, _llama_index,
                matches=lambda value: isinstance(value, dict) and {"role", "additional_kwargs"} <= value.keys()),
    ),
    "google-adk": (_Layout("session:", "string", _session, _google_adk),),
    "agent-framework": (_Layout("chat_messages", "list", _session_of_agent_framework, _agent_framework),),
}  # fmt: skip

#: Frameworks whose own classes a `FrameworkSource` reads.
FRAMEWORKS: tuple[str, ...] = tuple(_LAYOUTS)
