"""The commands that the doctor sends to a server, and the parsed replies. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from redis_history.backends.redis.indexing import IndexState, Searching, read_index_form, read_index_info
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.rights import missing_patterns, missing_rights, rights_question
from redis_history.errors import CorruptDataError

__all__ = ["Answers", "questions", "read_answers"]

#: An invalid flag: CONFIG SET rejects it without a change. The error shows whether this user may change settings.
_NO_FLAG: Final = b"!"


class Answers(Struct, frozen=True):
    """`info`: the INFO of each node. `settable`: whether this user may change notify-keyspace-events. `clock`: the time
    of each node in seconds since 1970. `refusal`: why scripts cannot run. `missing`: see `missing_rights`. `lacking`:
    see `missing_patterns`. `user`: the user's name on the server, if known. `unsearchable`: whether this user lacks
    the right to use the index. `index`, `form`: the search index of the namespace. `failures`: the number of messages
    that could not be indexed."""

    info: list[dict[str, str]]
    settable: bool
    clock: list[float]
    refusal: str | None
    missing: dict[str, list[str]] | None
    lacking: list[str] = []
    user: str | None = None
    unsearchable: bool = False
    index: IndexState | None = None
    form: Searching | None = None
    failures: int = 0


def questions(keyspace: Keyspace, database: int, *, cluster: bool) -> list[list[bytes]]:
    """The commands to send to each node. They change nothing."""
    return [
        [b"INFO"],
        [b"CONFIG", b"SET", b"notify-keyspace-events", _NO_FLAG],
        [b"TIME"],
        [b"ACL", b"WHOAMI"],
        rights_question(keyspace, database, cluster=cluster),
        [b"FT.INFO", keyspace.index],
    ]


def read_answers(keyspace: Keyspace, database: int, nodes: Sequence[Sequence[Any]], *, cluster: bool) -> Answers:
    """Parses the replies of all nodes. `nodes`: for each node, its replies in the order of `questions`."""
    infos, settings, times, users, rights, indexes = (list(replies) for replies in zip(*nodes, strict=True))
    refusal = next((str(reply) for reply in rights if isinstance(reply, Exception)), None)
    index, form, failures = None, None, 0
    if len(indexes) == 1 and not isinstance(indexes[0], Exception):
        index, form = _index(indexes[0]), read_index_form(keyspace, indexes[0])
        failures = _failures(indexes[0])
    missing = missing_rights(keyspace, database, rights, cluster=cluster)
    return Answers(
        info=[_info(reply) for reply in infos],
        settable=not any(_is_refused(reply) for reply in settings),
        clock=[int(reply[0]) + int(reply[1]) / 1e6 for reply in times if not isinstance(reply, Exception)],
        refusal=refusal,
        missing=missing,
        lacking=missing_patterns(keyspace, database, rights, cluster=cluster),
        user=next((reply.decode() for reply in users if isinstance(reply, bytes)), None),
        unsearchable="ft.search" in (missing or {}).get("searching", ()) or any(map(_is_forbidden, indexes)),
        index=index,
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
    return "permission" in text or "unknown" in text or "unsupported" in text or "not allowed" in text


def _is_forbidden(reply: Any) -> bool:
    """Whether this user lacks the right. A server without the command replies with another error."""
    text = str(reply).lower() if isinstance(reply, Exception) else ""
    return "noperm" in text or "no permission" in text


def _index(reply: Any) -> IndexState | None:
    try:
        return read_index_info(reply)
    except CorruptDataError:
        return None


def _failures(reply: Any) -> int:
    info = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    return int(info.get(b"hash_indexing_failures", 0))
