"""A call of the server as a value: what is sent, and how its reply is read. And what all writing calls share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import msgspec
from msgspec import Struct

from redis_history.backends import refusals
from redis_history.backends.redis.durability import Confirmation, confirming
from redis_history.backends.redis.keys import ConversationKeys, Keyspace
from redis_history.backends.redis.scripts import Script
from redis_history.model import Message
from redis_history.operations import ANY, Precondition, Write

if TYPE_CHECKING:
    from redis_history.backends.redis.indexing import SearchIndex

__all__ = [
    "SENT",
    "Call",
    "DocumentOf",
    "Pause",
    "Settings",
    "Steps",
    "Upkeep",
    "as_is",
    "change",
    "change_header",
    "once",
    "plain",
    "refused",
    "revised",
    "write",
]

T = TypeVar("T")

#: The steps of an operation: a generator that does no I/O. It yields a `Call`; or a list of calls that do no harm when
#: repeated, for one round trip; or an `Upkeep`; or a `Pause`. It is sent the outcome, the list of outcomes, whether the
#: upkeep was done, or None. Errors of redis_history.errors are raised at the `yield`. It returns the outcome.
Steps = Generator[Any, Any, T]

#: The fields and values of the search document of a message and its vector.
DocumentOf = Callable[[Message, bytes], list[bytes]]
#: Which argument of every writing script says when its call was first sent.
SENT: Final = 6


@dataclass(frozen=True, slots=True)
class Settings:
    """What a store fixes for all its calls. `log_length`: changes kept per conversation, at least. `ttl`: seconds.
    `doorbell`: how changes are heard of, as in `requests.DOORBELLS`.
    `confirm`: what every write is to be confirmed by; None: by its reply alone. `index`: what is known of the search
    index; None: without search.
    """

    keyspace: Keyspace
    log_length: int
    database: int = 0
    ttl: float | None = None
    max_messages: int | None = None
    confirm: Confirmation | None = None
    index: SearchIndex | None = None
    doorbell: str = "auto"

    @property
    def document(self) -> DocumentOf | None:
        """None: write no documents. It changes when the index is found or lost, so an operation asks once."""
        return self.index.form.document if self.index is not None and self.index.works else None

    def doorbell_channel(self, keys: ConversationKeys) -> bytes:
        """The channel that rings when the conversation's change log changes."""
        return self._channel(keys.log)

    @property
    def doorbell_pattern(self) -> bytes:
        """The channels of all conversations."""
        return self._channel(self.keyspace.logs)

    def _channel(self, log: bytes) -> bytes:
        # A notification of the server's own, or a channel named as the log, to which the writing scripts publish.
        return log if self.doorbell == "publish" else b"__keyspace@%d__:%b" % (self.database, log)


class Call(Struct, frozen=True):
    """A command for the server; `decode` reads its reply.

    With a script, `keys` are its KEYS and their number, packed (RESP), and `args` its ARGV; without, `args` is all of
    the command. `sent_at`: the argument that says when the call was first sent, of calls that must not run twice.
    `confirm`: the command that is sent right after; `decode` then takes both replies.
    """

    script: Script | None
    keys: bytes
    args: list[bytes]
    decode: Callable[[Any], Any]
    sent_at: int | None = None
    confirm: Confirmation | None = None

    def pack(self, *, teach: bool = False, sent: bytes | None = None) -> bytes:
        """The bytes to send. `teach` sends the script's source along; `sent` is put at `sent_at`."""
        args = self.args
        if sent is not None and self.sent_at is not None:
            args = [*args]
            args[self.sent_at] = sent
        packed = b"".join([b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args])
        if self.script is None:
            return b"*%d\r\n%b" % (len(args), packed)
        # Beside the arguments: the command, the script, the number of keys (the first that follows) and they.
        parts = len(args) + 3 + int(self.keys[4 : self.keys.index(b"\r", 4)])
        packed = b"*%d\r\n%b%b%b" % (parts, self.script.teach if teach else self.script.call, self.keys, packed)
        return packed if self.confirm is None else packed + self.confirm.command


def as_is(reply: Any) -> Any:
    return reply


def change(op: Write, settings: Settings, keys: ConversationKeys) -> list[bytes]:
    """The header of a write: its token, and what it demands."""
    return change_header(op.token, settings, keys, op.precondition)


def change_header(
    token: str, settings: Settings, keys: ConversationKeys, precondition: Precondition = ANY
) -> list[bytes]:
    """The arguments with which every writing script begins."""
    ttl = b"" if settings.ttl is None else b"%d" % round(settings.ttl * 1000)
    length = b"%d" % settings.log_length
    kept = b"" if settings.confirm is None else b"1"
    channel = keys.log if settings.doorbell == "publish" else b""
    return [token.encode(), *_condition(precondition), length, keys.name, ttl, b"0", channel, kept]


def _condition(precondition: Precondition) -> tuple[bytes, bytes]:
    if precondition is ANY:
        return b"", b""
    expected = precondition.expected_revision
    existence = b"exists" if precondition.must_exist else b"absent" if precondition.must_not_exist else b""
    if precondition.lease is not None:
        existence = b"lease:" + precondition.lease.value.encode()
    return (b"" if expected is None else b"%d" % expected), existence


def refused(op: Write, reply: list[Any]) -> NoReturn:
    """Raises what a writing script returned in place of an outcome."""
    kind = reply[0]
    if kind == b"conflict":
        raise refusals.message_conflict(op.conversation_id, reply[1].decode())
    if kind == b"missing":
        raise refusals.conversation_missing(op.conversation_id)
    if kind == b"exists":
        raise refusals.conversation_exists(op.conversation_id, reply[1])
    if kind == b"lease":
        raise refusals.lease_lost(op.conversation_id)
    raise refusals.revision_conflict(op.conversation_id, reply[1], op.precondition.expected_revision)


def revised(op: Write, reply: int | list[Any]) -> int:
    """The revision after a write that tells nothing else. Raises as `refused`."""
    if type(reply) is list:
        if reply[0] != b"buried":
            refused(op, reply)
        reply = reply[1]
    return cast(int, reply)


class Upkeep(Struct, frozen=True):
    """Steps that do nothing for the outcome of an operation: it does not fail if they do. They yield lists of calls and
    nothing else. With `later`, a later operation continues them where they failed."""

    steps: Steps[None]
    later: bool = False


def once(calls: list[Call]) -> Steps[None]:
    """The steps that are only these calls."""
    yield calls


class Pause(Struct, frozen=True):
    """Wait so many seconds."""

    seconds: float


def plain(*command: bytes) -> Call:
    """A command without a script; its outcome is its reply."""
    return Call(None, b"", [*command], as_is)


def write(op: Write, settings: Settings, call: Call, after: Callable[[Any], Steps[None]] | None = None) -> Steps[Any]:
    """The steps of a write: its call, then the upkeep that `after` makes of the reply. The outcome comes last, because
    it may be an error: that the write is not confirmed."""
    if settings.confirm is not None:
        decode = confirming(op, call.decode, settings.confirm)
        call = msgspec.structs.replace(call, decode=decode, confirm=settings.confirm)
    if after is None:
        return (yield call)
    reply = yield msgspec.structs.replace(call, decode=as_is)
    yield Upkeep(after(reply if settings.confirm is None else reply[0]), later=True)
    return call.decode(reply)
