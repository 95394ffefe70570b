"""Commands as values: the words to send, and how to read the reply. And the parts that all writing calls share."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

import msgspec
from msgspec import Struct
from redis.exceptions import MovedError, NoScriptError, ResponseError, TryAgainError

from redis_history.engine.durability import Confirmation
from redis_history.errors import CorruptDataError, DurabilityError, RedisHistoryError
from redis_history.model import Message
from redis_history.operations import ANY, DeleteConversation, LeaseKind, Precondition, RunFence, Write, rules
from redis_history.operations.failures import is_transient
from redis_history.operations.keys import ConversationKeys, IndexPart, Keyspace, extend_keys
from redis_history.search.redisearch import VECTOR, document


class Script(NamedTuple):
    """A Lua script. `sha`: the SHA-1 of its source, for EVALSHA."""

    name: str
    sha: bytes
    source: bytes


def _load(name: str, *preludes: str) -> Script:
    declared: list[bytes] = []
    source = _INCLUDE.sub(partial(_included, declared), _source(*preludes, name))
    if declared:
        source = b"local %b\n%b" % (b", ".join(declared), source)
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return Script(name, sha, source)


#: A line of a script that includes other files. Their functions, declared at the start of the script, are created only
#: if this part runs; each takes 0.3 microseconds.
_INCLUDE = re.compile(rb"^ *-- include (\w+(?: \w+)*)$", re.MULTILINE)
_LOCAL = re.compile(rb"^local (function )?(\w+(?:, \w+)*)", re.MULTILINE)


def _included(declared: list[bytes], line: re.Match[bytes]) -> bytes:
    source = _source(*line[1].decode().split())
    declared += [name for found in _LOCAL.finditer(source) for name in found[2].split(b", ")]
    source = re.sub(rb"^local \w+(?:, \w+)*(?: --.*)?$", b"", source, flags=re.MULTILINE)
    return _LOCAL.sub(lambda found: (found[1] or b"") + found[2], source)


def _source(*parts: str) -> bytes:
    folder = files("redis_history.operations")
    return b"\n".join((folder / ("lua" if part[0] == "_" else "") / f"{part}.lua").read_bytes() for part in parts)


_WRITING = ("_member", "_live", "_archive", "_change", "_life", "_journal", "_document")
_PLACES = ("_locate", "_archived")
APPEND: Final = _load("append", "_member", "_live", "_change")
ARCHIVES: Final = _load("archives", "_member", "_archive")
CHANGES: Final = _load("changes", "_head", "_member", "_live", "_archive", *_PLACES)
CLEAR: Final = _load("clear", *_WRITING, "_empty")
COMPACT: Final = _load("compact", *_WRITING, *_PLACES)
COPY: Final = _load("copy")
DELETE: Final = _load("delete", *_WRITING, *_PLACES)
DELETE_CONVERSATION: Final = _load("delete_conversation", *_WRITING)
DRAFT: Final = _load("draft", "_member", "_locate")
EXPAND: Final = _load("expand", *_WRITING, *_PLACES)
FETCH: Final = _load("fetch", "_member", "_archive", "_locate")
FIND: Final = _load("find", "_member", "_archive", *_PLACES)
FORGET: Final = _load("forget")
GROW: Final = _load("grow")
HEAD: Final = _load("head", "_head", "_member", "_live")
INDEX: Final = _load("index", *_WRITING, *_PLACES)
MARK: Final = _load("mark", "_member", "_archive", "_locate")
PAGE: Final = _load("page", "_member", "_locate")
PAGE_ARCHIVED: Final = _load("page_archived", "_member", "_archive", "_locate")
PUBLISH: Final = _load("publish", *_WRITING)
PURGE: Final = _load("purge", "_member")
RECORD: Final = _load("record", *_WRITING)
RENEW: Final = _load("renew", *_WRITING)
RUN: Final = _load("run", "_grace")
REPLY: Final = _load("reply", "_member", "_live", "_locate")
SEARCH: Final = _load("search")
TRIM: Final = _load("trim", *_WRITING, *_PLACES, "_trim")
UPDATE: Final = _load("update", *_WRITING, *_PLACES, "_grace")
T = TypeVar("T")

#: The steps of an operation: a generator without I/O. It yields a `Call`, a list of repeatable calls (one round trip),
#: an `Upkeep` or a `Pause`. It receives the outcome, the list of outcomes, whether the upkeep was done, or None. Errors
#: of redis_history.errors are raised at the `yield`. It returns the operation's outcome.
Steps = Generator[Any, Any, T]

#: The fields and values of the search document of a message and its vector.
DocumentOf = Callable[[Message, bytes], list[bytes]]

#: The argument of writing scripts for the time when the call was first sent.
SENT: Final = 6


@dataclass(frozen=True, slots=True)
class Searching:
    """The form of a search index. `vectors`: their dimension. `required`: fail without search on the server."""

    language: str = "english"
    vectors: int | None = None
    required: bool = False

    def document(self, message: Message, vector: bytes = b"") -> list[bytes]:
        """The fields and values of a message's search document, with its vector if there is one."""
        fields = document(message)
        return [*fields, VECTOR, vector] if vector else fields


class SearchIndex:
    """A backend's index. `form`: the wanted form; `parts`: one, or in a cluster one for each bucket."""

    def __init__(self, form: Searching, parts: list[IndexPart]) -> None:
        self.form = form
        self.parts = parts
        #: Whether the server searches; None before the first call.
        self.works: bool | None = None
        #: Whether searches use the index of this form; until it is filled, they use the former one.
        self.settled = False
        #: Whether scripts can search. In clusters of Redis 8, where one node searches for all, they cannot.
        self.scripts = True

    def part(self, conversation_id: str) -> IndexPart:
        """The part with the documents of a conversation."""
        return self.parts[self.part_number(conversation_id)]

    def part_number(self, conversation_id: str) -> int:
        return Keyspace.bucket_of(conversation_id) % len(self.parts)


class Outage:
    """When the server was last out of reach. Meanwhile no writer could renew the lease of its reply, so a reader that
    comes back first must not take the writers for dead."""

    #: Seconds after the last sign of an outage in which holders can renew their leases: a call may take 5 seconds to
    #: notice the outage, and then waits for a second. More would break the promise that 10 seconds after an outage
    #: nobody waits for a holder that died in it, because those who wait look every second.
    GRACE: Final = 8.0
    #: A lease outlives an outage of 4 seconds. If this store has heard nothing for almost as long, there may have been
    #: a longer one without a failed call of this store, after which writers come back when their wait is over.
    SILENCE: Final = 3.5
    GRACE_AFTER_SILENCE: Final = 3.0

    def __init__(self) -> None:
        self._ends = float("-inf")
        self._heard: float | None = None

    def note(self) -> None:
        """A call has just failed."""
        self._ends = time.monotonic() + self.GRACE

    def heard(self) -> None:
        """The server has just answered."""
        now = time.monotonic()
        if self._heard is not None and now - self._heard > self.SILENCE:
            self._ends = max(self._ends, now + self.GRACE_AFTER_SILENCE)
        self._heard = now

    @property
    def is_recent(self) -> bool:
        return time.monotonic() < self._ends


class Ringing:
    """How the writes of this store wake subscribers. `publishes`: the scripts publish each change, because this user
    may not see or change the server's setting for keyspace notifications."""

    def __init__(self) -> None:
        self.publishes = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that all calls of a store share. `log_length`: the least number of changes kept per conversation.
    `ttl`: seconds. `confirm`: None if the reply is enough. `index`: None without search.
    `zstd`: whether to compress messages that become smaller. `outage`: the last one, as this store saw it.
    """

    keyspace: Keyspace
    log_length: int
    database: int = 0
    ttl: float | None = None
    max_messages: int | None = None
    confirm: Confirmation | None = None
    index: SearchIndex | None = None
    zstd: bool = False
    ringing: Ringing = field(default_factory=Ringing)
    outage: Outage = field(default_factory=Outage)
    cluster: bool = False

    @property
    def document(self) -> DocumentOf | None:
        """None: write no documents. Changes when the index is found or lost, so each operation reads it once."""
        return self.index.form.document if self.index is not None and self.index.works else None

    @property
    def notifications(self) -> bytes:
        """What the channels of keyspace notifications begin with; the key follows."""
        return b"__keyspace@%d__:" % self.database


class Call(Struct, frozen=True):
    """A command for the server; `decode` reads its reply.

    With a script, `keys` are the number of its KEYS and these, and `args` its ARGV; without, `args` is the whole
    command. `sent_at`: for calls that must not run twice, the argument for the time when the call was first sent.
    `confirm`: sends a confirming command right after; `decode` then takes both replies. `errors`: in a list of calls, a
    permanent error, a redirection and TRYAGAIN are outcomes.
    """

    script: Script | None
    keys: tuple[bytes, ...]
    args: list[bytes]
    decode: Callable[[Any], Any]
    sent_at: int | None = None
    confirm: Confirmation | None = None
    errors: bool = False

    @property
    def key(self) -> bytes:
        """The key that says which node of a cluster has to execute it."""
        return self.keys[1] if self.keys else self.args[1]

    def words(self, *, with_source: bool = False, sent: bytes | None = None) -> list[bytes]:
        """The command and its arguments. `with_source` sends the script's source; `sent` is put at `sent_at`."""
        args = self.args
        if sent is not None and self.sent_at is not None:
            args = [*args]
            args[self.sent_at] = sent
        script = self.script
        if script is None:
            return args
        return [*((b"EVAL", script.source) if with_source else (b"EVALSHA", script.sha)), *self.keys, *args]


def as_is(reply: Any) -> Any:
    return reply


def write_call(
    script: Script, op: Write[Any], settings: Settings, args: Iterable[bytes], decode: Callable[[Any, Any], Any]
) -> Call:
    """The call of a writing script, with `args` after the header. `decode` takes the operation and the reply."""
    keys = settings.keyspace.conversation(op.conversation_id)
    header = change_header(op.token, settings, keys, op.precondition)
    return Call(script, keys.writing, [*header, *args], partial(decode, op), SENT)


def change_header(
    token: str, settings: Settings, keys: ConversationKeys, precondition: Precondition = ANY
) -> list[bytes]:
    """The first arguments of every writing script."""
    ttl = b"" if settings.ttl is None else b"%d" % round(settings.ttl * 1000)
    length = b"%d" % settings.log_length
    kept = (b"" if settings.confirm is None else b"1") + (b"c" if settings.cluster else b"")
    channel = keys.log if settings.ringing.publishes else b""
    return [token.encode(), *_condition(precondition), length, keys.name, ttl, b"0", channel, kept]


def _condition(precondition: Precondition) -> tuple[bytes, bytes]:
    if precondition is ANY:
        return b"", b""
    expected = precondition.expected_revision
    existence = b"exists" if precondition.must_exist else b"absent" if precondition.must_not_exist else b""
    if precondition.run is not None:
        existence = b"run:" + stored_fence(precondition.run)
    return (b"" if expected is None else b"%d" % expected), existence


#: The field of the state for each kind of lease.
FIELDS: Final[dict[LeaseKind, bytes]] = {"run": b"R", "compressor": b"W"}


def stored_fence(fence: RunFence) -> bytes:
    """A fence for the writing scripts."""
    return b"%b%d:%b" % (FIELDS[fence.kind], fence.fence, fence.run_id.encode())


def refused(op: Write[Any], reply: list[Any]) -> NoReturn:
    """Raises the error for a writing script's refusal."""
    kind = reply[0]
    if kind == b"conflict":
        raise rules.message_conflict(op.conversation_id, reply[1].decode())
    if kind == b"missing":
        raise rules.conversation_missing(op.conversation_id)
    if kind == b"exists":
        raise rules.conversation_exists(op.conversation_id, reply[1])
    if kind == b"run":
        raise rules.run_lost(op.conversation_id)
    raise rules.revision_conflict(op.conversation_id, reply[1], op.precondition.expected_revision)


def revised(op: Write[Any], reply: int | list[Any]) -> int:
    """The revision after a write that returns nothing else. Raises as `refused`."""
    if type(reply) is list:
        if reply[0] != b"pending":
            refused(op, reply)
        reply = reply[1]
    return cast(int, reply)


class Upkeep(Struct, frozen=True):
    """Maintenance: the operation does not fail if these steps do. They yield only lists of calls. With `later`, a
    later operation continues them where they failed."""

    steps: Steps[None]
    later: bool = False


def once(calls: list[Call]) -> Steps[None]:
    """Steps with only these calls."""
    yield calls


class Pause(Struct, frozen=True):
    """Wait so many seconds."""

    seconds: float


def plain(*command: bytes, decode: Callable[[Any], Any] = as_is, errors: bool = False) -> Call:
    """A command without a script."""
    return Call(None, (), [*command], decode, errors=errors)


#: What decoders raise for replies that contain damaged data.
_UNREADABLE: Final = (ValueError, LookupError, ArithmeticError, TypeError, RecursionError, msgspec.MsgspecError)


def decoded(call: Call, reply: Any) -> Any:
    """The outcome of a call. Raises CorruptDataError if the reply contains damaged data."""
    try:
        return call.decode(reply)
    except RedisHistoryError:
        raise
    except _UNREADABLE as error:
        raise CorruptDataError(f"stored data is unreadable: {error}") from error


def write(
    op: Write[Any], settings: Settings, call: Call, after: Callable[[Any], Steps[None]] | None = None
) -> Steps[Any]:
    """The steps of a write: its call, then the upkeep that `after` makes from the reply. The reply is decoded last,
    because that raises an error if the write is not confirmed."""
    if settings.confirm is not None:
        confirmed = partial(_confirmed, op, call.decode, settings.confirm)
        call = msgspec.structs.replace(call, decode=confirmed, confirm=settings.confirm)
    reply = yield from with_extra_keys(call)
    if after is not None:
        yield Upkeep(after(reply if settings.confirm is None else reply[0]), later=True)
    return decoded(call, reply)


def read(call: Call, settings: Settings) -> Steps[Any]:
    """The steps of a read whose script may need archives or contents of replies; its last argument says that it runs
    in a cluster."""
    if not settings.cluster:
        return (yield call)
    return decoded(call, (yield from with_extra_keys(msgspec.structs.replace(call, args=[*call.args, b"c"]))))


#: The scripts of reads that may ask for further keys.
_ASKING: Final = frozenset({CHANGES, FETCH, FIND, HEAD, PAGE_ARCHIVED, REPLY})


def read_all(calls: list[Call], settings: Settings) -> Steps[list[Any]]:
    """The outcomes of several reads, in one round trip, and a further one for those that ask for keys."""
    if not settings.cluster:
        outcomes: list[Any] = yield calls
        return outcomes
    sent = [
        msgspec.structs.replace(one, args=[*one.args, b"c"] if one.script in _ASKING else one.args, decode=as_is)
        for one in calls
    ]
    replies = yield sent
    while waiting := [at for at, one in enumerate(sent) if one.script in _ASKING and _missing_keys(replies[at])]:
        for at in waiting:
            sent[at] = msgspec.structs.replace(sent[at], keys=extend_keys(sent[at].keys, replies[at][1:]))
        for at, reply in zip(waiting, (yield [sent[at] for at in waiting]), strict=True):
            replies[at] = reply
    return [decoded(one, reply) for one, reply in zip(calls, replies, strict=True)]


def with_extra_keys(call: Call) -> Steps[Any]:
    """The steps of a call whose script may ask for further keys: see lua/_change.lua. Returns the raw reply."""
    call = msgspec.structs.replace(call, decode=as_is)
    reply = yield call
    while (missing := _missing_keys(reply if call.confirm is None else reply[0])) is not None:
        call = msgspec.structs.replace(call, keys=extend_keys(call.keys, missing))
        reply = yield call
    return reply


def _missing_keys(reply: Any) -> list[bytes] | None:
    """The keys that a writing script asks for, which did nothing: see lua/_change.lua."""
    return reply[1:] if type(reply) is list and reply[:1] == [b"keys"] else None


def _confirmed(op: Write[Any], decode: Callable[[Any], T], confirmation: Confirmation, replies: tuple[Any, Any]) -> T:
    reply, confirmed = replies
    outcome = decode(reply)  # raises if the script refused, so nothing was written
    # A word instead of an outcome asks for a further step: see Compact and Expand.
    if outcome is None or isinstance(outcome, bytes) or confirmation.reached(confirmed):
        return outcome
    cause = confirmed if isinstance(confirmed, Exception) else None
    revision = None if type(op) is DeleteConversation else revision_in(reply)
    where = "the server's disk" if confirmation.tier == "fsync" else "a replica"
    what = "the deletion" if revision is None else f"revision {revision}"
    raise DurabilityError(
        f"{what} of conversation {op.conversation_id[:80]!r} was made, but within {confirmation.timeout:g} s it was "
        f"not confirmed to be on {where}"
        f"{f' ({cause})' if cause else ''}; it may be lost in a crash. The same call again is safe, and asks again",
        conversation_id=op.conversation_id,
        revision=revision,
        token=op.token,
    ) from cause


def revision_in(reply: Any) -> int:
    """The revision in the reply of a writing script: a number, a text that begins with it, or a list of either."""
    if isinstance(reply, list):
        reply = reply[1] if reply[0] in (b"stored", b"pending", b"nothing") else reply[0]
    return int(reply.split()[0]) if isinstance(reply, bytes) else int(reply)


#: Two free-running clocks differ by less than 1 in 1,000 (NTP slews by 1 in 2,000 at most).
_SLOWEST_CLOCK: Final = 0.999


class ServerClock:
    """The time of a server, rather early than late, by its last report.

    Another server may use the address after a failover, so the report counts only while the connections last, and for
    `_TRUSTED` seconds after the last reply.
    """

    _TRUSTED: Final = 5.0

    def __init__(self) -> None:
        self._report: tuple[int, float] | None = None
        self._heard = 0.0

    def learn(self, microseconds: int) -> None:
        """The server has just reported this time."""
        self._heard = time.monotonic()
        self._report = microseconds, self._heard

    def heard(self) -> None:
        """The server has just replied."""
        self._heard = time.monotonic()

    def forget(self) -> None:
        """A connection was lost or made, or the server is not the primary."""
        self._report = None

    @property
    def now(self) -> int:
        """The time in microseconds; 0 if it is not known."""
        report, now = self._report, time.monotonic()
        if report is None or now - self._heard > self._TRUSTED:
            return 0
        return int(report[0] + (now - report[1]) * 1e6 * _SLOWEST_CLOCK)


class Attempt:
    """All copies of one writing call. `sent`: when the first copy was sent, in microseconds of the server's clock; 0
    before that. `uncertain`: a copy got no reply, so the server may execute it at any time. For the server's decision,
    see lua/_change.lua.
    """

    __slots__ = ("sent", "uncertain")

    def __init__(self) -> None:
        self.sent = 0
        self.uncertain = False

    @property
    def argument(self) -> bytes:
        """ARGV[7] of the scripts."""
        return b"-%d" % self.sent if self.uncertain else b"%d" % self.sent

    def answered(self, clock: ServerClock, reply: Any, before: bool) -> None:
        """Record the reply to a copy. `before`: whether an earlier copy is uncertain."""
        self.uncertain = before
        if is_late(reply):
            clock.learn(int(reply[2]))
        elif isinstance(reply, ResponseError) and not before:
            self.sent = 0  # not executed, and the next copy may go to another server


def is_late(reply: Any) -> bool:
    """Whether a writing script did nothing, because it cannot tell whether an earlier copy was executed."""
    return type(reply) is list and len(reply) == 3 and reply[0] == b"late"


def raise_first(calls: list[Call], replies: list[Any]) -> list[Any]:
    """The replies. Raises the first error, except NoScriptError, and except permanent errors and TRYAGAIN of calls with
    `errors`."""
    for call, reply in zip(calls, replies, strict=True):
        if not isinstance(reply, ResponseError) or isinstance(reply, NoScriptError):
            continue
        if call.errors and isinstance(reply, TryAgainError):
            continue
        if not call.errors or isinstance(reply, MovedError) or is_transient(reply):
            raise reply
    return replies
