"""A call of the server as a value: what is sent, and how its reply is read. And what all writing calls share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, cast

import msgspec
from msgspec import Struct

from redis_history.backends import refusals
from redis_history.backends.redis.durability import Confirmation, confirming
from redis_history.backends.redis.keys import ConversationKeys, Keyspace
from redis_history.backends.redis.scripts import Script
from redis_history.model import Message
from redis_history.operations import ANY, Precondition, Write

__all__ = ["AGAIN", "Call", "Settings", "as_is", "change", "change_header", "confirmed", "refused", "revised", "then"]

#: Which argument of every writing script says that it may have run before.
AGAIN: Final = 6


@dataclass(frozen=True, slots=True)
class Settings:
    """What a store fixes for all its calls. `log_length`: changes kept per conversation, at least. `ttl`: seconds.
    `doorbell`: how changes are heard of, as in `requests.DOORBELLS`.
    `confirm`: what every write is to be confirmed by; None: by its reply alone. `document`: the fields and values of
    the search document of a message and its vector; None: without search.
    """

    keyspace: Keyspace
    log_length: int
    database: int = 0
    ttl: float | None = None
    max_messages: int | None = None
    confirm: Confirmation | None = None
    document: Callable[[Message, bytes], list[bytes]] | None = None
    doorbell: str = "auto"

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
    the command. `retry_at`: the argument to set to "1" when the call is sent again and might have run before.
    `follow`: from its reply, the call that is left to do after it, if any; it has no outcome of its own.
    `confirm`: the command that is sent right after; `decode` then takes both replies.
    """

    script: Script | None
    keys: bytes
    args: list[bytes]
    decode: Callable[[Any], Any]
    retry_at: int | None = None
    follow: Callable[[Any], Call | None] | None = None
    confirm: Confirmation | None = None

    def pack(self, *, teach: bool = False, again: bool = False) -> bytes:
        """The bytes to send. `teach` sends the script's source along; `again` marks a repeated call."""
        args = self.args
        if again and self.retry_at is not None:
            args = [*args]
            args[self.retry_at] = b"1"
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


def then(call: Call, last: Call | None) -> Call:
    """A call, those that follow it, and then one more."""

    def follow(reply: Any) -> Call | None:
        following = call.follow(reply) if call.follow else None
        return last if following is None else then(following, last)

    return msgspec.structs.replace(call, follow=follow)


def confirmed(call: Call, op: Write, settings: Settings) -> Call:
    """The call of a write, with what is to confirm it."""
    if settings.confirm is None:
        return call
    decode = confirming(op, call.decode, settings.confirm)
    follow = None if call.follow is None else partial(_following, call.follow)
    return msgspec.structs.replace(call, confirm=settings.confirm, decode=decode, follow=follow)


def _following(follow: Callable[[Any], Call | None], replies: tuple[Any, Any]) -> Call | None:
    return follow(replies[0])
