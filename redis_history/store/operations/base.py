"""The base of all operations: values that name an operation, calls of Lua scripts, and the steps that yield them.

A Redis server executes the `steps` of an operation, the memory backend its `apply`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, Final, Generic, NoReturn, Self, TypeVar, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from redis_history.errors import (
    BackendRefusedError,
    CorruptDataError,
    DurabilityError,
    InvalidInputError,
    RedisHistoryError,
)
from redis_history.store import refusals
from redis_history.store.durability import Confirmation
from redis_history.store.memory.space import Space
from redis_history.store.operations.keys import ConversationKeys, Keyspace, content_name
from redis_history.store.operations.scripts import CHANGE, Script, pack_change, with_key_locking
from redis_history.store.operations.settings import ExtraKeys, Settings
from redis_history.store.writes import ANY, Packed, Precondition, RunFence
from redis_history.values import Message
from redis_history.values._validation import check_name, refuse
from redis_history.values.beside import packed as pack_content
from redis_history.values.ids import new_token
from redis_history.values.wire import decode_member

_logger = logging.getLogger("redis_history")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_W = TypeVar("_W", bound="Write[Any]")

# Calls and steps

#: A generator without I/O, which returns a `T`. The steps of a task, such as a search or a fork, yield operations,
#: which `HistoryStore.execute` executes: they receive the outcomes, and errors are raised at the `yield`. The steps of
#: an operation yield a `Call`, a list of repeatable calls (one round trip), an `Upkeep`, a `Pause` or a `ByNode`, which
#: a backend of Redis executes, and receive the outcome, the list of outcomes, whether the upkeep was done, or None.
Steps = Generator[Any, Any, T]

#: Places of the arguments of writing scripts that are set later, such as the time when the call was first sent.
CONDITION, TTL, SENT = map(CHANGE.names.index, ("condition", "ttl", "sent"))
#: Milliseconds until a large content that no script has linked expires.
CONTENT_LASTS_MS: Final = b"60000"
#: How often a call sends its large contents again, because the server has lost them before its script ran.
_CONTENTS_SENT: Final = 5


class Call(Struct, frozen=True):
    """A command for the server; `decode` reads its reply.

    With a script, `keys` are its KEYS, and `args` its ARGV; without, `args` is the whole command, and `keys` only say
    which node executes it. `sent_at`: for calls that must not run twice, the argument for the time when the call was
    first sent. `confirm`: sends a confirming command right after; `decode` then takes both replies. `errors`: in a list
    of calls, a permanent error, a redirection and TRYAGAIN are outcomes. `renews`: it keeps a lease or a reply alive,
    so it must not wait for large reads. `contents`: keys and values of large contents (see lua/_contents.lua), which
    are sent right before.
    """

    script: Script | None
    keys: tuple[bytes, ...]
    args: list[bytes]
    decode: Callable[[Any], Any]
    sent_at: int | None = None
    confirm: Confirmation | None = None
    errors: bool = False
    renews: bool = False
    contents: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def is_urgent(self) -> bool:
        """Whether it travels with the small writes, apart from reads."""
        return self.renews or self.sent_at is not None

    @property
    def key(self) -> bytes:
        """The key that says which node of a cluster has to execute it."""
        return self.keys[0] if self.keys else self.args[1]

    @property
    def contents_first(self) -> list[list[bytes]]:
        """The commands that write the contents: if they are not there yet, and for a short time, because only the
        script makes them stay."""
        return [[b"SET", key, value, b"NX", b"PX", CONTENT_LASTS_MS] for key, value in self.contents]

    def words(self, *, with_source: bool = False, sent: bytes | None = None, locking: bool = False) -> list[bytes]:
        """The command and its arguments. `with_source` sends the script's source; `sent` is put at `sent_at`;
        `locking`: see `with_key_locking`."""
        args = self.args
        if sent is not None and self.sent_at is not None:
            args = [*args]
            args[self.sent_at] = sent
        script = self.script
        if script is None:
            return args
        if locking:
            script = with_key_locking(script)
        how = (b"EVAL", script.source) if with_source else (b"EVALSHA", script.sha)
        return [*how, b"%d" % len(self.keys), *self.keys, *args]


def as_is(reply: Any) -> Any:
    return reply


def as_map(reply: Any) -> Mapping[Any, Any]:
    """A map of RESP3, or names and values in turn of RESP2."""
    return reply if isinstance(reply, Mapping) else dict(zip(reply[::2], reply[1::2], strict=True))


def plain(
    *command: bytes, decode: Callable[[Any], Any] = as_is, errors: bool = False, beside: bytes | None = None
) -> Call:
    """A command without a script. `beside`: a key, if the command goes to the node of this key."""
    return Call(None, () if beside is None else (beside,), [*command], decode, errors=errors)


#: Errors of decoders for damaged data.
UNREADABLE: Final = (ValueError, LookupError, ArithmeticError, TypeError, RecursionError, msgspec.MsgspecError)


def decoded(call: Call, reply: Any) -> Any:
    """The outcome of a call. Raises CorruptDataError if the reply contains damaged data."""
    try:
        return call.decode(reply)
    except RedisHistoryError:
        raise
    except UNREADABLE as error:
        raise CorruptDataError(f"stored data is unreadable: {error}") from error


def readable(member: bytes) -> Message | None:
    """The message in a member. None, with a log line, if it cannot be decoded."""
    try:
        return decode_member(member)
    except CorruptDataError as error:
        _logger.error("skipped an unreadable message: %s", error)
        return None


class Upkeep(Struct, frozen=True):
    """Maintenance: the operation does not fail if these steps do. They yield only lists of calls. With `later`, a
    later operation continues them where they failed."""

    steps: Steps[None]
    later: bool = False


def once(calls: list[Call]) -> Steps[None]:
    """Steps with only these calls."""
    yield calls


class Pause(Struct, frozen=True):
    """Wait this many seconds."""

    seconds: float


class ByNode(Struct, frozen=True):
    """Group keys by the node of a cluster that serves them, as far as is known. The outcome is a list of lists, each
    with the keys of the highest slots first, because the lowest slots usually move first."""

    keys: list[bytes]


def read(call: Call, settings: Settings) -> Steps[Any]:
    """The steps of a read. Its script may ask for the keys of archives or contents of replies. Its last argument says
    whether it is in a cluster."""
    if call.script is None or not call.script.asks:
        return (yield call)
    return decoded(call, (yield from with_extra_keys(_asking(call, settings), settings.contents)))


def _asking(call: Call, settings: Settings) -> Call:
    return replace(call, args=[*call.args, b"c" if settings.cluster else b""])


def read_all(calls: list[Call], settings: Settings) -> Steps[list[Any]]:
    """The outcomes of several reads, in one round trip, and a further one for those that ask for keys."""
    asking = [at for at, one in enumerate(calls) if one.script is not None and one.script.asks]
    if not asking:
        outcomes: list[Any] = yield calls
        return outcomes
    sent = [replace(one, decode=as_is) for one in calls]
    for at in asking:
        sent[at] = _asking(sent[at], settings)
    replies = yield sent
    while waiting := [at for at in asking if _missing_keys(replies[at])]:
        for at in waiting:
            sent[at] = replace(sent[at], keys=(*sent[at].keys, *replies[at][1:]))
        for at, reply in zip(waiting, (yield [sent[at] for at in waiting]), strict=True):
            replies[at] = reply
    return [decoded(one, reply) for one, reply in zip(calls, replies, strict=True)]


def with_turn_keys(call: Call, conversation_id: str, agent_name: str | None, settings: Settings) -> Call:
    """A call that changes the turn of an agent, with the keys of turns that are known."""
    bucket = Keyspace.bucket_of(conversation_id)
    known = settings.keyspace.turn_keys(agent_name, bucket)
    extra = (*known, *settings.turn_keys.of(call.key))
    return replace(call, keys=(*call.keys, *dict.fromkeys(key for key in extra if key not in call.keys)))


def with_extra_keys(call: Call, known: ExtraKeys | None = None, turns: ExtraKeys | None = None) -> Steps[Any]:
    """The steps of a call whose script may ask for further keys (see lua/_change.lua), or for its large contents, which
    the server has lost. Returns the raw reply. `turns` only remembers keys, for with_turn_keys."""
    before = known.of(call.key) if known is not None else ()
    call = replace(call, decode=as_is, keys=(*call.keys, *(key for key in before if key not in call.keys)))
    contents, sent = call.contents, 0
    while True:
        reply = yield call
        own = reply if call.confirm is None else reply[0]
        if contents and own == [b"contents"]:  # the script has written nothing
            if sent == _CONTENTS_SENT:
                raise BackendRefusedError(
                    "the server does not keep the large contents of a message for the moment that a write takes; is "
                    "its memory full, with an eviction policy?"
                )
            sent += 1
            call = replace(call, contents=contents)
            continue
        missing = _missing_keys(own)
        if missing is None:
            return reply
        if known is not None:
            known.learn(call.key, (*before, *missing))
        if turns is not None:
            turns.learn(call.key, (*turns.of(call.key), *missing))
        call = replace(call, keys=(*call.keys, *missing), contents=())


def with_contents(
    call: Call, keys: ConversationKeys, packed: Iterable[Packed], settings: Settings, draft: str = ""
) -> Call:
    """The call, with the large contents of the messages that it stores, in the conversation or in a draft."""
    contents: list[tuple[bytes, bytes]] = []
    for one in packed:
        if one.contents:
            names = [content_name(one.entry.message.id, content.digest) for content in one.contents]
            values = [pack_content(content, zstd=settings.zstd) for content in one.contents]
            contents += zip((keys.content(name, draft) for name in names), values, strict=True)
    if not contents:
        return call
    return replace(call, keys=(*call.keys, *(key for key, _ in contents)), contents=tuple(contents))


def _missing_keys(reply: Any) -> list[bytes] | None:
    """The keys that a writing script asks for, before it has written anything: see lua/_change.lua."""
    return reply[1:] if type(reply) is list and reply[:1] == [b"keys"] else None


# Operations


class Op(Generic[T_co]):
    """An operation whose outcome is a `T_co`."""

    __slots__ = ()

    def steps(self, settings: Settings) -> Steps[T_co]:
        """Execute it on a Redis server."""
        raise NotImplementedError

    def apply(self, space: Space) -> T_co:
        """Execute it in the memory of this process."""
        raise NotImplementedError


class Read(Op[T_co]):
    """A read that takes one call, so that it can share a round trip with others."""

    __slots__ = ()

    def call(self, settings: Settings) -> Call:
        raise NotImplementedError

    def completed(self, outcome: Any, settings: Settings) -> Steps[T_co]:
        """The outcome, with what further calls add to it, such as the text of replies that are being written."""
        completed: T_co = outcome
        return completed
        yield  # a generator, as in subclasses

    def steps(self, settings: Settings) -> Steps[T_co]:
        outcome = yield from read(self.call(settings), settings)
        return (yield from self.completed(outcome, settings))


class ReadTogether(Struct, Op[list[Any]], frozen=True):
    """The outcomes of several reads (`FindMessage`, `ReadConversation`, `ReadPage`, `Fetch`), in order, in one round
    trip, but not of one moment."""

    reads: tuple[Read[Any], ...]

    def steps(self, settings: Settings) -> Steps[list[Any]]:
        if not self.reads:
            return []
        outcomes = yield from read_all([one.call(settings) for one in self.reads], settings)
        for at, one in enumerate(self.reads):
            outcomes[at] = yield from one.completed(outcomes[at], settings)
        return outcomes

    def apply(self, space: Space) -> list[Any]:
        return [one.apply(space) for one in self.reads]


def change_header(
    token: str, settings: Settings, keys: ConversationKeys, precondition: Precondition = ANY, by: str | None = None
) -> list[bytes]:
    """The first arguments of every writing script."""
    length, ttl, kept = settings.header
    if by is not None:
        kept += b"\n" + by.encode()
    revision, condition = (b"", b"") if precondition is ANY else _condition(precondition)
    return pack_change(
        token=token.encode(),
        expected_revision=revision,
        condition=condition,
        log_length=length,
        name=keys.name,
        ttl=ttl,
        sent=b"0",
        publishing=settings.publishing,
        flags=kept,
    )


def _condition(precondition: Precondition) -> tuple[bytes, bytes]:
    expected = precondition.expected_revision
    existence = b"exists" if precondition.must_exist else b"absent" if precondition.must_not_exist else b""
    if precondition.run is not None:
        existence += (b";" if existence else b"") + b"run:" + precondition.run.stored
    return (b"" if expected is None else b"%d" % expected), existence


class OnConversation(Struct, frozen=True):
    conversation_id: str


class Write(OnConversation, Op[T_co], frozen=True, kw_only=True):
    """An operation that changes a conversation. `token` is that of the change. `by`: who makes it, for the log."""

    precondition: Precondition = ANY
    by: str | None = None
    token: str = field(default_factory=new_token)

    def decode(self, reply: Any) -> Any:
        """The outcome in the script's reply. Raises the error for a refusal."""
        raise NotImplementedError

    def for_run(self, run: RunFence) -> Self:
        """The write, for the holder of this run only."""
        return replace(self, precondition=replace(self.precondition, run=run))

    def script_call(
        self,
        script: Script,
        settings: Settings,
        args: Iterable[bytes],
        decode: Callable[[Any], Any] | None = None,
        *,
        packed: Iterable[Packed] = (),
        reply: str = "",
    ) -> Call:
        """The call of its script, with `args` after the header. `packed`: the messages that it stores. `reply`: the
        token of the reply that it begins or ends. In a cluster, its content is not declared before the script asks for
        it, because it may be absent."""
        keys = settings.keyspace.conversation(self.conversation_id)
        header = change_header(self.token, settings, keys, self.precondition, self.by)
        declared = (*keys.writing, keys.reply(reply)) if reply and not settings.cluster else keys.writing
        call = Call(script, declared, [*header, *args], decode or self.decode, SENT)
        return with_contents(call, keys, packed, settings)

    def send(
        self,
        call: Call,
        settings: Settings,
        after: Callable[[Any], Steps[None]] | None = None,
        *,
        drop: Callable[[bytes, Settings], Steps[None]] | None = None,
    ) -> Steps[Any]:
        """The steps of a write: its call, then the upkeep that `after` makes from the reply. The reply is decoded last,
        because that raises an error if the write is not confirmed. `drop`: of a change that removes content for good,
        removes the drafts of forks under way (see with_forks in lua/_journal.lua)."""
        if settings.audit is not None:
            call = replace(call, keys=(*call.keys, settings.keyspace.conversation(self.conversation_id).trail))
        if settings.confirm is not None:
            confirmed = partial(self._confirmed, call.decode, settings.confirm)
            call = replace(call, decode=confirmed, confirm=settings.confirm)
        reply = yield from with_extra_keys(call, settings.lists, settings.turn_keys)
        own = reply if settings.confirm is None else reply[0]
        if drop is not None and type(own) is list and own[0] == b"forks":
            _, own, forks = own
            reply = own if settings.confirm is None else (own, reply[1])
            yield from drop(forks, settings)  # no upkeep: before that, not all copies are gone
        if after is not None:
            yield Upkeep(after(own), later=True)
        return decoded(call, reply)

    def _confirmed(self, decode: Callable[[Any], Any], confirmation: Confirmation, replies: tuple[Any, Any]) -> Any:
        reply, confirmed = replies
        outcome = decode(reply)  # raises if the script refused, so nothing was written
        # A word instead of an outcome asks for a further step: see Compact and Expand.
        if outcome is None or isinstance(outcome, bytes) or confirmation.reached(confirmed):
            return outcome
        cause = confirmed if isinstance(confirmed, Exception) else None
        revision = self.revision_in(reply)
        where = "the server's disk" if confirmation.tier == "fsync" else "a replica"
        what = "the deletion" if revision is None else f"revision {revision}"
        raise DurabilityError(
            f"{what} of conversation {self.conversation_id[:80]!r} was made, but within {confirmation.timeout:g} s it "
            f"was not confirmed to be on {where}"
            f"{f' ({cause})' if cause else ''}; it may be lost in a crash. The same call again is safe, and asks again",
            conversation_id=self.conversation_id,
            revision=revision,
            token=self.token,
        ) from cause

    def revision_in(self, reply: Any) -> int | None:
        """The revision in the script's reply: a number, a text that begins with it, or a list with either."""
        while isinstance(reply, list):
            reply = reply[1] if reply[0] in (b"stored", b"pending", b"nothing") else reply[0]
        return int(reply.split()[0]) if isinstance(reply, bytes) else int(reply)

    def refuse(self, reply: list[Any]) -> NoReturn:
        """Raises the error for the script's refusal."""
        kind = reply[0]
        if kind == b"conflict":
            raise refusals.message_conflict(self.conversation_id, reply[1].decode())
        if kind == b"missing":
            raise refusals.conversation_missing(self.conversation_id)
        if kind == b"exists":
            raise refusals.conversation_exists(self.conversation_id, reply[1])
        if kind == b"turns":
            raise refusals.too_many_turns(self.conversation_id)
        if kind == b"run":
            raise refusals.run_lost(self.conversation_id)
        raise refusals.revision_conflict(self.conversation_id, reply[1], self.precondition.expected_revision)


#: Characters of the name of who makes a change.
MAX_BY: Final = 200


def said_by(op: _W, by: str | None) -> _W:
    """The write, as made by this person or program. Raises InvalidInputError."""
    if by is None:
        return op
    check_name(by, "by")
    if not 0 < len(by) <= MAX_BY:
        refuse(by, "by", f"None or a str of 1 to {MAX_BY} characters", InvalidInputError)
    return replace(op, by=by)


class Revised(Write[int], frozen=True):
    """A write whose outcome is the revision."""

    def decode(self, reply: int | list[Any]) -> int:
        if type(reply) is list:
            if reply[0] != b"pending":
                self.refuse(reply)
            reply = reply[1]
        return cast(int, reply)


def field_of(message_id: str) -> bytes:
    """The field of the state with the position of a message."""
    return b":" + hashlib.sha1(message_id.encode(), usedforsecurity=False).digest()[:12]
