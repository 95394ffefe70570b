"""The permissions (ACL) of the users of the server: the line of each role, and how to check them. See
docs/how-to/security.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from redis_history.store.operations.keys import Keyspace

Role = Literal["reader", "writer", "worker", "tenant", "operator"]

_COMPACTING: Final = (
    "hset {state} a b",
    "hsetnx {state} a b",
    "hdel {state} a",
    "zadd {messages} 1 a",
    "zrem {registry} a",
    "zrangestore {archive} {messages} 0 1",
    "zremrangebyrank {messages} 0 1",
    "rpush {log} a",
    "ltrim {log} 0 1",
    "unlink {state}",
    "rename {messages} {archive}",
    "pexpire {log} 1",
    "pexpireat {state} 1",
    "persist {log}",
    "pttl {state}",
    "publish {published} a",
    "set {large} a",
    "exists {large}",
)
#: By purpose, the commands with example arguments; {names} stand for keys and channels.
RIGHTS: Final[dict[str, tuple[str, ...]]] = {
    "reading": (
        "eval 0 1 {state}",
        "evalsha 0 1 {state}",
        "time",
        "hmget {state} a",
        "hget {state} a",
        "zrange {messages} 0 1",
        "zrangebyscore {messages} 0 1",
        "zrevrange {messages} 0 1",
        "zcount {messages} 0 1",
        "zcard {registry}",
        "zscore {registry} a",
        "lrange {log} 0 1",
        "llen {log}",
        "lindex {log} 0",
        "getrange {content} 0 1",
        "hscan {totals} 0",
    ),
    "writing": (
        *_COMPACTING,
        "append {content} a",
        "strlen {content}",
        "pubsub|numsub a",
        "pubsub|numpat",
        "zpopmin {pending_delete}",
    ),
    "compacting": _COMPACTING,
    "following": (
        "subscribe {channel} rh2:doorbell",
        "unsubscribe {channel}",
        "psubscribe {pattern}",
        "punsubscribe {pattern}",
        "ping",
    ),
    "searching": (
        "ft.info {index}",
        "ft.search {index} a",
        "hset {document} a b",
    ),
    #: A user with these rights can make an index over the documents of any namespace, and read them: RediSearch does
    #: not check key patterns.
    "indexing": (
        "scan 0",
        "ft.create {index} schema t text",
        "ft.aliasadd {index} {index}",
        "ft.aliasupdate {index} {index}",
        "ft.dropindex {index}",
    ),
    "confirming": ("waitaof 1 0 0", "wait 1 0"),
    "describing": ("info", "client|setinfo lib-name a", "module|list"),
    #: The nodes of a cluster need these, too.
    "clustering": ("command", "cluster|slots", "asking"),
    #: Without these, which came with Redis 7, published messages reach all nodes of a cluster.
    "sharding": ("ssubscribe {published}", "sunsubscribe {published}", "spublish {published} a"),
}

_OF_CLUSTERS: Final = ("clustering", "sharding")
#: The purposes of each role. No role has `config|get`, which shows passwords.
ROLES: Final[dict[Role, tuple[str, ...]]] = {
    "reader": ("reading", "following", "describing"),
    "writer": ("reading", "writing", "following", "confirming", "describing"),
    "worker": ("reading", "compacting", "following", "describing"),
    "tenant": ("reading", "writing", "following", "searching", "confirming", "describing"),
    "operator": ("reading", "writing", "following", "searching", "indexing", "confirming", "describing"),
}


def acl_line(keyspace: Keyspace, database: int, role: Role, *, cluster: bool) -> str:
    """The line of an ACL file for a user with this role, named like it."""
    purposes = (*ROLES[role], *(_OF_CLUSTERS if cluster else ()))
    commands = dict.fromkeys(command.split()[0] for purpose in purposes for command in RIGHTS[purpose])
    if database:
        commands["select"] = None
    # A change of messages also removes or marks the search documents that a tenant has written.
    changing = not {"writing", "compacting"}.isdisjoint(purposes)
    if not changing:
        commands.pop("spublish", None)
    keys = _key_patterns(keyspace)[: None if "searching" in purposes else 2 if changing else 1]
    channels = _channel_patterns(keyspace, database)
    allowed = (f"+{name}" for name in commands)
    return " ".join(("user", role, "on >change-me resetkeys", *keys, "resetchannels", *channels, "-@all", *allowed))


#: EVAL itself is allowed, because the check runs with it. So a refusal concerns the key.
_EVAL_WITH_KEY: Final = (b"eval", b"0", b"1")
_FOREIGN_KEY: Final = b"redis_history is not here"

_SCRIPT: Final = b"""
local unpack = table.unpack or unpack
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
    """Purpose, name and words of each command; then, with the purpose "keys", each pattern and a key of it."""
    keys = keyspace.conversation("doctor")
    names = {
        "state": keys.state,
        "messages": keys.messages,
        "log": keys.log,
        "registry": keys.registry,
        "archive": keys.archive("0", 1),
        "content": keys.state[:-1] + b"t:1",
        "large": keys.content(b"1"),
        "totals": keyspace.totals(None)[0],
        "pending_delete": keys.pending_work + b":1",
        "index": keyspace.index,
        "document": keyspace.documents_of("doctor", b"1") + b"1",
        "channel": b"__keyspace@%d__:%b" % (database, keys.log),
        "pattern": b"__keyspace@%d__:%b" % (database, keyspace.logs),
        "published": keys.log,
    }
    for purpose, commands in RIGHTS.items():
        for command in commands if cluster or purpose not in _OF_CLUSTERS else ():
            name, *arguments = command.split()
            words = [names.get(word.strip("{}"), word.encode()) for word in arguments]
            yield purpose, name, [*name.encode().split(b"|"), *words]
    index = keyspace.index
    keys_of_patterns = (names["state"], names["document"], index, index + b":1", _FOREIGN_KEY)
    for pattern, key in zip((*_key_patterns(keyspace), ""), keys_of_patterns, strict=True):
        yield "keys", pattern, [*_EVAL_WITH_KEY, key]


def rights_question(keyspace: Keyspace, database: int, *, cluster: bool) -> list[bytes]:
    """The command to send to each node; `missing_rights` and `missing_patterns` read the replies."""
    arguments: list[bytes] = []
    for _, _, words in _questions(keyspace, database, cluster):
        arguments += (b"%d" % len(words), *words)
    return [b"EVAL", _SCRIPT, b"0", *arguments]  # no keys, so every node accepts it


def missing_rights(
    keyspace: Keyspace, database: int, replies: Sequence[Any], *, cluster: bool
) -> dict[str, list[str]] | None:
    """The forbidden commands by purpose, from the replies of all nodes; checked with the keys and channels of this
    namespace. None: a server cannot check (before 7.0)."""
    missing: dict[str, list[str]] = {}
    for reply in replies:
        if not isinstance(reply, list) or all(answer == 2 for answer in reply):
            return None
        for (purpose, name, _), answer in zip(_questions(keyspace, database, cluster), reply, strict=True):
            if purpose != "keys" and answer == 1 and name not in missing.setdefault(purpose, []):
                missing[purpose].append(name)
    return {purpose: names for purpose, names in missing.items() if names}


def unknown_commands(keyspace: Keyspace, database: int, replies: Sequence[Any], *, cluster: bool) -> list[str]:
    """The commands that are needed to read and write, and that a server does not have. Empty if it cannot check."""
    unknown: dict[str, None] = {}
    for reply in replies:
        if isinstance(reply, list) and not all(answer == 2 for answer in reply):
            asked = zip(_questions(keyspace, database, cluster), reply, strict=True)
            found = (name for (purpose, name, _), answer in asked if answer == 2 and purpose in ("reading", "writing"))
            unknown |= dict.fromkeys(found)
    return list(unknown)


def missing_patterns(keyspace: Keyspace, database: int, replies: Sequence[Any], *, cluster: bool) -> list[str]:
    """The missing patterns of keys and channels, as ACL rules. Empty if a server cannot check. Redis rejects patterns
    for a user with all keys or channels."""
    refused: set[tuple[str, str]] = set()
    for reply in replies:
        if isinstance(reply, list):
            asked = zip(_questions(keyspace, database, cluster), reply, strict=True)
            refused |= {(purpose, name) for (purpose, name, _), answer in asked if answer == 1}
    lacking = [pattern for pattern in _key_patterns(keyspace) if ("keys", pattern) in refused]
    # Unsubscribing needs no channel permission: a user with unsubscribe but without subscribe lacks the channel. A user
    # with neither lacks the commands, and probably the channels too if only some keys are allowed.
    subscribing = {("following", "subscribe"), ("following", "psubscribe")} & refused
    if subscribing and (("following", "unsubscribe") not in refused or ("keys", "") in refused):
        lacking += _channel_patterns(keyspace, database)
    return lacking


def _channel_patterns(keyspace: Keyspace, database: int) -> list[str]:
    names = (f"{_prefix(keyspace)}*", keyspace.logs.decode())
    notified = [f"&__keyspace@{database}__:{name}" for name in names]
    return [*notified, *(f"&{name}" for name in names), "&rh2:doorbell"]


def _prefix(keyspace: Keyspace) -> str:
    return keyspace.patterns[0].decode().removesuffix("??}:*")


def _key_patterns(keyspace: Keyspace) -> list[str]:
    prefix, index = _prefix(keyspace), keyspace.index.decode()
    return [f"~{prefix}*", f"~rhd2{prefix[3:]}*", f"~{index}", f"~{index}:*"]
