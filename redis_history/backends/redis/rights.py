"""The rights that a server's user needs, and how to ask the server for them. docs/operations.md gives the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from redis_history.backends.redis.keys import Keyspace

#: By what they are for, each command with arguments that it would take; in these, the names of keys and channels.
RIGHTS: Final[dict[str, tuple[str, ...]]] = {
    "storing": (
        "info",
        "eval 0 1 {state}",
        "evalsha 0 1 {state}",
        "time",
        "hmget {state} a",
        "hget {state} a",
        "hset {state} a b",
        "hsetnx {journal} a b",
        "hdel {state} a",
        "zadd {messages} 1 a",
        "zrange {messages} 0 1",
        "zrangebyscore {messages} 0 1",
        "zcount {messages} 0 1",
        "zcard {registry}",
        "zrem {registry} a",
        "rpush {log} a",
        "lrange {log} 0 1",
        "lindex {log} 0",
        "llen {log}",
        "ltrim {log} 0 1",
        "append {content} a",
        "strlen {content}",
        "getrange {content} 0 1",
        "unlink {state}",
        "rename {messages} {archive}",
        "pexpire {log} 1",
        "pexpireat {state} 1",
        "persist {log}",
        "pttl {state}",
        "exists {messages}",
        "zrevrange {messages} 0 1",
        "zscore {registry} a",
        "zrangestore {archive} {messages} 0 1",
        "zremrangebyrank {messages} 0 1",
    ),
    "following": (
        "subscribe {channel} rh2:doorbell",
        "unsubscribe {channel}",
        "psubscribe {pattern}",
        "punsubscribe {pattern}",
        "config|get notify-keyspace-events",
        "pubsub|numsub a",
        "pubsub|numpat",
    ),
    "searching": (
        "hscan {pending_work} 0",
        "zpopmin {pending_delete}",
        "scan 0",
        "ft.create {index} schema t text",
        "ft.aliasadd {index} {index}",
        "ft.aliasupdate {index} {index}",
        "ft.dropindex {index}",
        "ft.info {index}",
        "ft.search {index} a",
        "hset {document} a b",
    ),
    "confirming": ("waitaof 1 0 0", "wait 1 0"),
    "describing": ("client|setinfo lib-name a", "module|list"),
    #: Only for the nodes of a cluster.
    "clustering": ("cluster|slots", "asking"),
}

#: A question runs as EVAL, so that this user may call it is known: what is refused of it is the key.
_REACHES: Final = (b"eval", b"0", b"1")
_ELSEWHERE: Final = b"redis_history is not here"

_SCRIPT: Final = b"""
local refused, at = {}, 1
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  local known, allowed = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, at + words))
  refused[#refused + 1] = not known and 2 or allowed and 0 or 1
  at = at + 1 + words
end
return refused
"""


def _questions(keyspace: Keyspace, database: int, cluster: bool) -> Iterator[tuple[str, str, list[bytes]]]:
    """For what, the name of the command, and its words; then, for "reaching", a key of each pattern by the pattern."""
    keys = keyspace.conversation("doctor")
    names = {
        "state": keys.state,
        "messages": keys.messages,
        "log": keys.log,
        "registry": keys.registry,
        "archive": keys.archive(1),
        "journal": keys.state[:-1] + b"j0",
        "content": keys.state[:-1] + b"t:1",
        "pending_work": keys.pending_work,
        "pending_delete": keys.pending_work + b":1",
        "index": keyspace.index,
        "document": keyspace.documents_of("doctor", b"1") + b"1",
        "channel": b"__keyspace@%d__:%b" % (database, keys.log),
        "pattern": b"__keyspace@%d__:%b" % (database, keyspace.logs),
    }
    for purpose, commands in RIGHTS.items():
        for command in commands if cluster or purpose != "clustering" else ():
            name, *arguments = command.split()
            words = [names.get(word.strip("{}"), word.encode()) for word in arguments]
            yield purpose, name, [*name.encode().split(b"|"), *words]
    index = keyspace.index
    reached = (names["state"], names["document"], index, index + b":1", _ELSEWHERE)
    for pattern, key in zip((*_key_patterns(keyspace), ""), reached, strict=True):
        yield "reaching", pattern, [*_REACHES, key]


def rights_question(keyspace: Keyspace, database: int, *, cluster: bool) -> list[bytes]:
    """The command to send, to each node; its reply is for `missing_rights` and `missing_patterns`."""
    arguments: list[bytes] = []
    for _, _, words in _questions(keyspace, database, cluster):
        arguments += (b"%d" % len(words), *words)
    return [b"EVAL", _SCRIPT, b"0", *arguments]  # touches no key, so any node will do


def missing_rights(
    keyspace: Keyspace, database: int, replies: Sequence[Any], *, cluster: bool
) -> dict[str, list[str]] | None:
    """The commands that are not allowed (as they are used here: of these keys and channels), by what they are for, from
    the replies of all nodes. Unknown commands cannot be forbidden. None: the server cannot answer (before 7.0).
    """
    missing: dict[str, list[str]] = {}
    for reply in replies:
        if not isinstance(reply, list) or all(answer == 2 for answer in reply):
            return None
        for (purpose, name, _), answer in zip(_questions(keyspace, database, cluster), reply, strict=True):
            if purpose != "reaching" and answer == 1 and name not in missing.setdefault(purpose, []):
                missing[purpose].append(name)
    return {purpose: names for purpose, names in missing.items() if names}


def missing_patterns(keyspace: Keyspace, database: int, replies: Sequence[Any], *, cluster: bool) -> list[str]:
    """The patterns of keys and channels of the namespace that the user lacks, as rules of an ACL; none where a server
    does not tell. Redis refuses patterns for a user with all keys or channels."""
    refused: set[tuple[str, str]] = set()
    for reply in replies:
        if isinstance(reply, list):
            asked = zip(_questions(keyspace, database, cluster), reply, strict=True)
            refused |= {(purpose, name) for (purpose, name, _), answer in asked if answer == 1}
    lacking = [pattern for pattern in _key_patterns(keyspace) if ("reaching", pattern) in refused]
    # Unsubscribing needs no right to the channel: a user who may unsubscribe but not subscribe lacks the channel. A
    # user who may do neither lacks the commands; probably the channels too if only some of the keys are allowed.
    enters = {("following", "subscribe"), ("following", "psubscribe")} & refused
    if enters and (("following", "unsubscribe") not in refused or ("reaching", "") in refused):
        lacking += _channel_patterns(keyspace, database)
    return lacking


def patterns(keyspace: Keyspace, database: int) -> list[str]:
    """The patterns of keys and channels of a namespace, as rules of an ACL."""
    return [*_key_patterns(keyspace), *_channel_patterns(keyspace, database)]


def _channel_patterns(keyspace: Keyspace, database: int) -> list[str]:
    channel = f"__keyspace@{database}__:"
    return [f"&{channel}{_prefix(keyspace)}*", f"&{channel}{keyspace.logs.decode()}", "&rh2:doorbell"]


def _prefix(keyspace: Keyspace) -> str:
    return keyspace.patterns[0].decode().removesuffix("??}:*")


def _key_patterns(keyspace: Keyspace) -> list[str]:
    prefix, index = _prefix(keyspace), keyspace.index.decode()
    return [f"~{prefix}*", f"~rhd2{prefix[3:]}*", f"~{index}", f"~{index}:*"]
