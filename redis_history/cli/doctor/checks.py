"""Interprets the replies of a server, without I/O."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct
from rich.filesize import decimal

from redis_history.store.capabilities import Capabilities
from redis_history.store.operations.index import IndexState
from redis_history.store.operations.settings import Searching
from redis_history.store.server_info import merged_flags
from redis_history.store.urls import CLUSTER, SENTINEL, embedded_server, parse_several, parse_url

#: "ok"; "limited": works in part, or may stop working; "problem": conversations may be lost, or nothing works.
State = Literal["ok", "limited", "problem"]

_FULL: Final = 0.9  # of maxmemory
#: For each purpose of `missing_rights`, the state without these rights, and the purpose in words. The rights to make an
#: index reach every namespace, so they are not suggested.
_PURPOSES: Final[dict[str, tuple[State, str]]] = {
    "reading": ("problem", "to read"),
    "writing": ("problem", "to write"),
    "following": ("limited", "to be notified of changes"),
    "searching": ("limited", "to use a search index"),
    "confirming": ("limited", "for durability levels above the default"),
    "describing": ("ok", "to identify the server"),
    "clustering": ("problem", "to follow slots that are moved"),
    "sharding": ("ok", "to publish changes to one shard only"),
}
#: A user without these writes nothing. With some rights to write, a script could end in the middle.
_WRITES: Final = {"hset", "zadd", "rpush", "unlink"}
#: Commands that a worker does not need for compaction.
_REPLIES: Final = {"append", "strlen", "zpopmin"}
#: For each series of versions, the first one in which a Lua script cannot leave the sandbox (CVE-2025-49844 and
#: CVE-2025-46817 to 46819), by the release notes of 2025-10-03 of both servers; None: the series never
#: received the fix. Newer series, and series of managed servers, are not listed. Every user of a store may run scripts.
_SAFE_SINCE: Final[dict[str, dict[tuple[int, int], tuple[int, int, int] | None]]] = {
    "redis": {
        (6, 2): (6, 2, 20), (7, 0): None, (7, 2): (7, 2, 11), (7, 4): (7, 4, 6), (8, 0): (8, 0, 4), (8, 2): (8, 2, 2),
    },
    "valkey": {(7, 2): (7, 2, 11), (8, 0): (8, 0, 6), (8, 1): (8, 1, 4)},
}  # fmt: skip
#: The names of servers that are not written with a capital letter alone.
_NAMES: Final = {"keydb": "KeyDB"}
_COMPATIBLE: Final = "use another server: see docs/how-to/managed-servers.md"
_CLIENT_SEARCH: Final = "searches read and rank the newest messages in the client"


class Finding(Struct, frozen=True):
    """`check`: the name of the check; `detail`: its result; `fix`: the remedy, as a command if possible."""

    check: str
    state: State
    detail: str
    fix: str | None = None


class Answers(Struct, frozen=True):
    """`info`: the INFO of each node. `settable`: whether this user may change notify-keyspace-events. `refusal`: why
    scripts cannot run. `missing`: see `missing_rights`. `lacking`: see `missing_patterns`. `unknown`: see
    `unknown_commands`. `user`: the user's name on the server, if known. `unsearchable`: whether this user lacks the
    right to use the index. `index`, `form`: the search index of the namespace. `failures`: the number of messages that
    could not be indexed. `unusable`: why the index of this server is never used; `incapable`: the error of its search
    module when the index was made."""

    info: list[dict[str, str]]
    settable: bool
    refusal: str | None
    missing: dict[str, list[str]] | None
    lacking: list[str] = []
    unknown: list[str] = []
    user: str | None = None
    unsearchable: bool = False
    index: IndexState | None = None
    form: Searching | None = None
    failures: int = 0
    unusable: str = ""
    incapable: str = ""


class Where(NamedTuple):
    """The server to check, and how to reach it.

    `call`: the beginning of a command of redis-cli or valkey-cli that reaches the server, without secrets. `private`:
    whether it is a private server. `several`: whether it is a cluster, whose nodes are configured one by one. `user`:
    the user in the URL. `password`: whether the URL has a password. `lacks`: commands of administrators, and settings,
    that the server does not support."""

    address: str
    call: tuple[str, ...]
    database: int = 0
    private: bool = False
    several: bool = False
    user: str | None = None
    password: bool = False
    lacks: frozenset[str] = frozenset()

    def redis_cli(self, *words: str, admin: bool = False) -> str:
        """The command to type. `admin`: run it as an administrator, if the URL names a user or a password. Where the
        server does not have the command, as many managed ones, what to change there instead."""
        if words[0] in self.lacks or (words[0] == "CONFIG" and words[2] in self.lacks):
            what = " = ".join(words[2:]) if words[0] == "CONFIG" else f"the user {' '.join(words[2:])}"
            return f"in the settings of the service that runs this server, which does not take {words[0]}: {what}"
        login: tuple[str, ...] = ()
        if self.password or self.user:  # --askpass asks for the password
            login = ("--user", "AN-ADMIN" if admin else self.user or "default", "--askpass")
        return shlex.join((*self.call, *login, *words)) + ("  (on each node)" if self.several else "")

    def config(self, name: str, value: str, *, admin: bool = False) -> str:
        """The command that changes a setting."""
        return self.redis_cli("CONFIG", "SET", name, value, admin=admin)


def where_is(url: str, database: int, backend: str = "redis") -> Where:
    """The address of the server in a store's URL. Raises ConfigurationError for an invalid URL."""
    target = parse_url(url)
    program = "valkey-cli" if backend == "valkey" else "redis-cli"
    if target.scheme == "embedded":
        server = embedded_server(target)
        return Where(f"embedded://{server.path}", (program, "-s", server.unix_socket), private=True)
    parts = urlsplit(parse_several(target.url).url if target.scheme in SENTINEL + CLUSTER else target.url)
    options = dict(parse_qsl(parts.query))
    call: tuple[str, ...]
    if target.scheme == "unix":
        call = (program, "-s", target.path)
    elif target.scheme in SENTINEL:
        call = (program, "-h", "THE-PRIMARY")
    else:
        call = (program, "-h", parts.hostname or "localhost", "-p", str(parts.port or 6379))
    call += ("--tls",) if target.scheme.startswith("rediss") else ()
    call += ("-n", str(database)) if database else ()
    return Where(
        target.address,
        call,
        database,
        several=target.scheme in CLUSTER,
        user=unquote(parts.username or "") or options.get("username"),
        password=bool(parts.password or options.get("password")),
    )


#: The state, the detail and the fix of a finding.
_Result = tuple[State, str, str | None]


def check_server(server: Capabilities, answers: Answers, where: Where) -> Iterator[Finding]:
    """Findings about everything but search."""
    yield Finding("version", *_version(server, where))
    yield Finding("servers", *_role(server, answers))
    yield Finding("memory", *_memory(server, answers, where))
    statuses = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    for failing in [one for info in answers.info for one in statuses if info.get(one, "ok") not in ("ok", "")][:1]:
        text = f"the server cannot write to its disk ({failing})"
        yield Finding("disk", "problem", text, "read the server's log; is the disk full?")
    yield Finding("persistence", *_persistence(server, where))
    yield Finding("rights", *_rights(server, answers, where))
    yield Finding("notifications", *_notifications(server, answers, where))


def _version(server: Capabilities, where: Where) -> _Result:
    if server.version is None:
        fix = None if "INFO" in where.lacks else "allow this user INFO: `+info`"
        return "limited", f"{server.backend}, version unknown", fix
    text = f"{_NAMES.get(server.backend, server.backend.capitalize())} {server.version}"
    if server.backend not in ("redis", "valkey"):
        return "ok", f"{text}, with which redis_history was not tested: see docs/how-to/managed-servers.md", None
    if where.private:
        return "ok", text, None  # other users cannot reach it
    numbers = tuple(map(int, server.version.split(".")))
    safe = _SAFE_SINCE.get(server.backend, {}).get((numbers[0], numbers[1]), (0, 0, 0))
    if safe is not None and numbers >= safe:
        return "ok", text, None
    text += ": a user that may run scripts can leave their sandbox, and take over the server (CVE-2025-49844)"
    fix = f"upgrade to {'.'.join(map(str, safe))} or newer" if safe else "upgrade: this series got no fix"
    return "limited", text, f"{fix}, unless the packager of this server has added the fix"


def _role(server: Capabilities, answers: Answers) -> _Result:
    mode, replicas = server.mode or "standalone", server.replicas or 0
    if any(info.get("role") == "slave" for info in answers.info):
        return "problem", f"{mode}: this is a read-only replica", "use the URL of the primary"
    text = f"cluster of {len(answers.info)} primaries" if mode == "cluster" else mode
    if replicas or mode == "standalone":
        each = " each" if mode == "cluster" else ""
        return "ok", f"{text}, {replicas} replica{'' if replicas == 1 else 's'}{each}", None
    return "limited", f"{text}, but no replica could take over", "add replicas"


def _memory(server: Capabilities, answers: Answers, where: Where) -> _Result:
    used = max((int(info.get("used_memory", 0)) for info in answers.info), default=0)
    limits = [int(info.get("maxmemory", 0)) for info in answers.info]
    limit = min((one for one in limits if one), default=0)
    text = f"{server.eviction or 'policy unknown'}, {decimal(used)} in use" + (f" of {decimal(limit)}" if limit else "")
    if server.eviction not in (None, "noeviction"):
        which = (
            "keys that expire, so conversations with a ttl lose"
            if server.eviction.startswith("volatile")
            else ("any keys, so conversations lose")
        )
        text += f": when memory is full, the server deletes {which} messages or their state, and are broken"
        return "problem", text, where.config("maxmemory-policy", "noeviction")
    if limit and used > _FULL * limit:
        text += ": memory is nearly full; when it is full, the server rejects writes"
        return "limited", text, where.config("maxmemory", f"{2 * limit}")
    return "ok", text, None


def _persistence(server: Capabilities, where: Where) -> _Result:
    if server.aof is None:
        return "limited", "unknown: the server does not report its settings for persistence", None
    if not server.aof:
        lost = "all since the last snapshot" if server.snapshots else "everything"
        text = f"no append-only file: a restart loses {lost}"
        if "CONFIG" in where.lacks:
            text += ", unless the service keeps writes in another way, as MemoryDB does (durable_server=True)"
        return "problem", text, where.config("appendonly", "yes")
    if server.appendfsync == "no":
        text = "append-only file, but never fsynced: a power failure loses data that the system has not written yet"
        return "problem", text, where.config("appendfsync", "everysec")
    loss = {
        "always": "a power failure loses no confirmed write",
        "everysec": "a power failure loses about the last second",
    }.get(server.appendfsync or "", "the server does not report how often it fsyncs")
    return "ok", f"append-only file, appendfsync {server.appendfsync or 'unknown'}: {loss}", None


def _rights(server: Capabilities, answers: Answers, where: Where) -> _Result:
    user = answers.user or where.user or "default"
    if answers.refusal is not None:
        unknown = "unknown command" in answers.refusal.lower()
        fix = None if unknown else where.redis_cli("ACL", "SETUSER", user, "+eval", "+evalsha", admin=True)
        return "problem", f"Lua scripts cannot run: {answers.refusal.partition(', with args')[0]}", fix or _COMPATIBLE
    if answers.unknown:
        return "problem", f"the server lacks commands that are needed: {', '.join(answers.unknown)}", _COMPATIBLE
    if answers.missing is None:
        return "ok", "scripts run; this server cannot report single rights (Redis can since 7.0)", None
    missing = {purpose: names for purpose, names in answers.missing.items() if purpose in _PURPOSES}
    # Without the module, the server does not know its commands, and does not say that they are forbidden.
    searches = server.search_module or answers.index or "ft.search" in missing.get("searching", ())
    if not searches:
        missing.pop("searching", None)
    if not missing:
        role = "a tenant; an operator's user makes the search index" if "indexing" in answers.missing else "an operator"
        role = role if searches or "searching" not in answers.missing else "a writer"
        return "ok", f"scripts run; {user} has all rights of {role}", None
    if set(missing.get("writing", ())) >= _WRITES and "reading" not in missing:
        return "limited", f"{user} may read, and not write, as a reader", "redis-history doctor --acl tenant"
    if set(missing.get("writing", ())) >= _REPLIES and not {"reading", "compacting"} & answers.missing.keys():
        return "limited", f"{user} may read and compact, as a worker", "redis-history doctor --acl tenant"
    state = min((_PURPOSES[purpose][0] for purpose in missing), key=("problem", "limited", "ok").index)
    if missing.get("searching") == ["hset"]:  # a store that may use the index writes documents, and here fails to
        state = "problem"
    needs = "; ".join(f"{_PURPOSES[purpose][1]}: {', '.join(names)}" for purpose, names in missing.items())
    rules = dict.fromkeys(f"+{name}" for names in missing.values() for name in names)
    fix = where.redis_cli("ACL", "SETUSER", user, *answers.lacking, *rules, admin=True)
    return state, f"{user} lacks rights that are needed {needs}", fix


def _notifications(server: Capabilities, answers: Answers, where: Where) -> _Result:
    fix = "see rights" if "following" in (answers.missing or {}) else None
    if server.doorbell == "poll":
        return "limited", "the server refuses SUBSCRIBE: subscribers see changes within some seconds", fix
    state, text, setting = _announcements(server, answers, where)
    if server.doorbell_all == "poll" and state == "ok":
        text += ", but subscribe_all, live views and compressors within some seconds: the server refuses PSUBSCRIBE"
        return "limited", text, fix
    return state, text, setting


def _announcements(server: Capabilities, answers: Answers, where: Where) -> _Result:
    setting = ("notify-keyspace-events", merged_flags("") or "Kl")
    if server.notifications:
        return "ok", "on: subscribers see changes at once", None
    if server.notifications is False and answers.settable:
        text = "off; the first subscriber turns them on until the server restarts"
        return "ok", text, None if where.private else where.config(*setting)
    if server.doorbell == "publish" and "publish" not in (answers.missing or {}).get("compacting", ()):
        return "ok", "not needed: stores of this user publish their changes, and subscribers see them at once", None
    text = "off, and this user may not turn them on: subscribers see changes within some seconds"
    if server.notifications is None:
        text = "unknown, as this user may not read the setting; if off, subscribers see changes within some seconds"
    fix = where.config(*setting, admin=True)
    lacks = not {"CONFIG", setting[0]}.isdisjoint(where.lacks)
    return "limited", text, fix if lacks else f"ask an administrator to run: {fix}"


def check_search(server: Capabilities, answers: Answers, where: Where, *, stored: bool) -> Finding:
    """`stored`: whether there are conversations in the namespace."""
    return Finding("search", *_search(server, answers, where, stored))


def _search(server: Capabilities, answers: Answers, where: Where, stored: bool) -> _Result:
    index, module = answers.index, server.search_module or "search"
    if answers.unsearchable:
        return "limited", f"this user may not use the index: {_CLIENT_SEARCH}", "see rights"
    load = "use Redis 8 or newer, or Redis Stack: `docker compose up -d`, or use --url embedded://"
    if answers.unusable:
        return "limited", f"{answers.unusable}, so there is no index: {_CLIENT_SEARCH}", load
    if server.search_module is None and index is None:
        return "limited", f"no search module: {_CLIENT_SEARCH}", load
    if answers.incapable and index is None and not where.database:
        text = f"{module} is not RediSearch, whose index the store needs ({answers.incapable}): {_CLIENT_SEARCH}"
        return "limited", text, load
    if where.database:
        text = f"there is no index on database {where.database}, only on 0: {_CLIENT_SEARCH}"
        return "limited", text, "use database 0: the path /0 of the URL"
    if server.search_module == "search 8.0.0":
        return "limited", "search 8.0.0 has a bug: it sometimes returns no results", "upgrade to Redis 8.0.1 or newer"
    is_operator = "indexing" not in (answers.missing or {})
    reindex = "redis-history reindex" if is_operator else "ask an operator to run: redis-history reindex"
    if index is None and not is_operator:
        return "limited", f"{module}, but no index, and this user may not make one: {_CLIENT_SEARCH}", reindex
    if index is None:
        if stored:
            return "limited", f"{module}, but no index: searches find nothing", reindex
        return "ok", f"{module}; the first call of a store creates the index", None
    text = f"{module}, {index.documents:,} messages in the index ({_describe(answers.form)})"
    if not index.complete:
        text += f", still being built: {100 * index.share:.0f} %"
        return "limited", text, "wait: until then, searches in all conversations read the newest messages"
    if answers.failures:
        return "limited", f"{text}; {answers.failures:,} could not be indexed", reindex
    if stored and not index.documents:
        return "limited", f"{text}, though there are conversations", reindex
    return "ok", text, None


def _describe(form: Searching | None) -> str:
    if form is None:
        return "of another version"
    return form.language + (f", vectors of {form.vectors} numbers" if form.vectors else "")
