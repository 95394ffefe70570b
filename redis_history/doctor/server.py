"""Interprets a server's replies: version, memory, disk, replicas, rights and notifications. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from redis_history.backends.redis.durability import Confirmation
from redis_history.backends.redis.notifications import merged_flags
from redis_history.capabilities import Capabilities
from redis_history.doctor.finding import Finding, State
from redis_history.doctor.questions import Answers
from redis_history.doctor.where import Where
from redis_history.errors import CapabilityError

__all__ = ["check_server"]

#: CVE-2025-49844 lets a script leave its sandbox. For each release line, the first fixed version.
_MENDED: Final = {
    "redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
_FULL: Final = 0.9  # of maxmemory
_NEEDS: Final[dict[str, tuple[State, str]]] = {
    "storing": ("problem", "to store and read"),
    "following": ("limited", "to be notified of changes"),
    "searching": ("limited", "to keep a search index"),
    "confirming": ("limited", "for durability levels above the default"),
    "describing": ("ok", "to identify the server"),
    "clustering": ("problem", "to follow slots that are moved"),
}


def check_server(found: Capabilities, answers: Answers, where: Where) -> Iterator[Finding]:
    """Findings about everything but search."""
    yield _version(found, where)
    yield _role(found, answers)
    yield _memory(found, answers, where)
    yield from _disk(found, answers, where)
    yield _durability(found, where)
    yield _scripts(answers, where)
    yield _notifications(found, answers, where)


def _version(found: Capabilities, where: Where) -> Finding:
    if found.version is None:
        fix = "allow this user INFO: `+info`"
        return Finding("version", "limited", f"{found.backend}, version unknown", fix)
    version = tuple(int(number) for number in found.version.split("."))
    said = f"{found.backend} {found.version}"
    lines = _MENDED.get(found.backend, ())
    mended = next((line for line in lines if line[:2] >= version[:2]), None)
    if mended is None or (version >= mended and version[:2] == mended[:2]):
        return Finding("version", "ok", said)
    if where.private:
        return Finding("version", "ok", f"{said}; only you could exploit its script vulnerability (CVE-2025-49844)")
    known = ".".join(map(str, mended))
    return Finding(
        "version",
        "limited",
        f"{said} has a vulnerability that lets a script leave its sandbox (CVE-2025-49844)",
        f"upgrade to {found.backend} {known} or newer",
    )


def _role(found: Capabilities, answers: Answers) -> Finding:
    kind = found.mode or "standalone"
    if any(info.get("role") == "slave" for info in answers.info):
        return Finding("servers", "problem", f"{kind}: this is a read-only replica", "use the URL of the primary")
    primaries = len(answers.info)
    said = f"cluster of {primaries} primaries" if kind == "cluster" else kind
    replicas = found.replicas or 0
    each = " each" if kind == "cluster" else ""
    if replicas or kind not in ("cluster", "sentinel"):
        return Finding("servers", "ok", f"{said}, {replicas} replica{'' if replicas == 1 else 's'}{each}")
    return Finding("servers", "limited", f"{said}, but no replica could take over", "add replicas")


def _memory(found: Capabilities, answers: Answers, where: Where) -> Finding:
    used = max((int(info.get("used_memory", 0)) for info in answers.info), default=0)
    limits = [int(info.get("maxmemory", 0)) for info in answers.info]
    limit = min((one for one in limits if one), default=0)
    said = f"{found.eviction or 'policy unknown'}, {_size(used)} in use" + (f" of {_size(limit)}" if limit else "")
    if found.eviction not in (None, "noeviction"):
        text = f"{said}: when memory is full, the server deletes conversations"
        return Finding("memory", "problem", text, where.config("maxmemory-policy", "noeviction"))
    if limit and used > _FULL * limit:
        text = f"{said}: memory is nearly full; when it is full, the server rejects writes"
        return Finding("memory", "limited", text, where.config("maxmemory", f"{2 * limit}"))
    return Finding("memory", "ok", said)


def _size(count: int) -> str:
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _disk(found: Capabilities, answers: Answers, where: Where) -> Iterator[Finding]:
    failing = [
        name
        for info in answers.info
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if info.get(name, "ok") not in ("ok", "")
    ]
    if failing:
        text = f"the server cannot write to its disk ({failing[0]})"
        yield Finding("disk", "problem", text, "read the server's log; is the disk full?")
    if found.aof is None:
        yield Finding("persistence", "limited", "unknown: the server does not report its settings for persistence")
    elif not found.aof:
        lost = "all since the last snapshot" if found.snapshots else "everything"
        text = f"no append-only file: a restart loses {lost}"
        yield Finding("persistence", "problem", text, where.config("appendonly", "yes"))
    elif found.appendfsync == "no":
        text = "append-only file, but never fsynced: a power failure loses data that the system has not written yet"
        yield Finding("persistence", "problem", text, where.config("appendfsync", "everysec"))
    else:
        keeps = {
            "always": "a power failure loses no confirmed write",
            "everysec": "a power failure loses about the last second",
        }.get(found.appendfsync or "", "the server does not report how often it fsyncs")
        said = f"append-only file, appendfsync {found.appendfsync or 'unknown'}: {keeps}"
        # Redis 7.4.1 may truncate a torn AOF within a transaction, and only logs it. The private server avoids this.
        unchanged = any(info.get("aof_last_rewrite_time_sec") == "-1" for info in answers.info)
        if unchanged and found.backend == "redis" and not where.private:
            said += ". Not rewritten since the start: if the log says that the start truncated it, rewrite it now"
            yield Finding("persistence", "ok", said, where.redis_cli("BGREWRITEAOF", admin=True))
        else:
            yield Finding("persistence", "ok", said)


def _durability(found: Capabilities, where: Where) -> Finding:
    said = f"available: {', '.join(found.durability)}"
    try:
        Confirmation("fsync", 1, 1.0).check(found)
    except CapabilityError as error:
        reason = str(error).partition("cannot be kept: ")[2]
        state: State = "limited" if found.aof else "ok"  # without AOF, the finding about persistence has the fix
        fix = where.always() if "appendfsync" in reason else None
        return Finding("durability", state, f"{said}; not fsync: {reason}", fix)
    return Finding("durability", "ok", said)


def _scripts(answers: Answers, where: Where) -> Finding:
    who = answers.user or where.user or "default"
    if answers.refusal is not None:
        fix = where.redis_cli("ACL", "SETUSER", who, "+eval", "+evalsha", admin=True)
        return Finding("rights", "problem", f"Lua scripts cannot run: {answers.refusal}", fix)
    if answers.missing is None:
        text = "scripts run; this server cannot report single rights (Redis can since 7.0)"
        return Finding("rights", "ok", text)
    if not answers.missing:
        return Finding("rights", "ok", f"scripts run; {who} has all rights that are needed")
    states = [_NEEDS[purpose][0] for purpose in answers.missing]
    state = min(states, key=("problem", "limited", "ok").index)
    told = "; ".join(f"{_NEEDS[purpose][1]}: {', '.join(names)}" for purpose, names in answers.missing.items())
    rules = dict.fromkeys(f"+{name}" for names in answers.missing.values() for name in names)
    fix = where.redis_cli("ACL", "SETUSER", who, *answers.lacking, *rules, admin=True)
    return Finding("rights", state, f"{who} lacks rights that are needed {told}", fix)


def _notifications(found: Capabilities, answers: Answers, where: Where) -> Finding:
    flags = merged_flags("") or "Kt"
    fix = where.config("notify-keyspace-events", flags)
    other = f"ask an administrator to run: {where.config('notify-keyspace-events', flags, admin=True)}"
    if found.notifications:
        return Finding("notifications", "ok", "on: subscribers see changes at once")
    if found.notifications is None:
        text = (
            "unknown, because this user may not read the setting; if off, subscribers see changes within some seconds"
        )
        return Finding("notifications", "limited", text, other)
    if answers.settable:
        text = "off; the first subscriber turns them on until the server restarts"
        return Finding("notifications", "ok", text, None if where.private else fix)
    text = "off, and this user may not turn them on: subscribers see changes within some seconds"
    return Finding("notifications", "limited", text, other)
