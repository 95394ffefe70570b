"""Sessions of Claude Code: a `.jsonl` file of entries, or `{path, blob, entries}` records that hold one each.

An entry with a `message` becomes a message, its `uuid` the id; the rest of the entry is kept in
`provider_meta["claude_code"]`. One reply of the model can stand in several entries of the same `message.id`, with
tool results between them: they stay several messages (as the file grows, an entry never changes, so a session can
be imported again while it goes on), and `metadata["response_id"]` says which belong together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from redis_history.errors import InvalidInputError
from redis_history.formats import from_anthropic
from redis_history.importers._convert import each, need, rest, scalar
from redis_history.importers.source import Record, Source
from redis_history.importers.transcript import Transcript, Turn, build

__all__ = ["claude_code", "is_entry"]

_MARKS = frozenset(("uuid", "sessionId", "leafUuid", "messageId", "parentUuid"))


def is_entry(record: Any) -> bool:
    """Whether this is a line of a session file."""
    return isinstance(record, dict) and isinstance(record.get("type"), str) and not _MARKS.isdisjoint(record)


def claude_code(source: Source) -> Iterator[Transcript]:
    """The sessions of a file: one, if its lines are the entries."""
    if not any(map(is_entry, source.head)):
        yield from each(source, _wrapped)
        return
    transcript = _session(source, source.records(), source.name, {}, own_lines=True)
    if transcript.messages:
        yield transcript


def _wrapped(source: Source, line: int, record: Any) -> Transcript:
    entries = need(record, "entries", list)
    path, blob = scalar(record.get("path")), scalar(record.get("blob"))
    name = "@".join(filter(None, (path, blob))) or f"{source.name}:{line}"
    return _session(source, ((line, entry) for entry in entries), name, rest(record, "entries"), own_lines=False)


def _session(
    source: Source, entries: Iterable[Record], name: str, known: dict[str, Any], *, own_lines: bool
) -> Transcript:
    turns: list[Turn] = []
    skipped: Counter[str] = Counter()
    first: dict[str, Any] = {}
    title = None
    for line, entry in entries:
        if not isinstance(entry, dict):
            source.problem(line, "not an entry of a session")
            continue
        if not first.get("sessionId") and scalar(entry.get("sessionId")):
            first = entry
        title = scalar(entry.get("summary")) or title
        if not isinstance(entry.get("message"), dict):
            skipped[str(entry.get("type"))] += 1
            continue
        try:
            turn = _turn(entry)
        except InvalidInputError as error:
            source.problem(line, str(error))
        else:
            turns.append(turn._replace(line=line if own_lines else None))
    # The log of a sub-agent carries the id of the session that started it.
    agent = scalar(first.get("agentId")) if first.get("isSidechain") is True else None
    session = scalar(first.get("sessionId"))
    return build(
        turns,
        format="claude_code",
        key=":".join(filter(None, (session or name, agent))),
        on_bad_line=source.problem,
        title=title,
        metadata={**known, **({"entries_without_message": dict(skipped)} if skipped else {})},
        form="anthropic",
    )


def _turn(entry: dict[str, Any]) -> Turn:
    original = entry["message"]
    message = from_anthropic([original])[0]
    metadata = {"response_id": original["id"]} if scalar(original.get("id")) else {}
    side = entry.get("isSidechain") is True
    message = msgspec.structs.replace(
        message,
        metadata=metadata,
        scope="thread" if side else None,
        provider_meta={**message.provider_meta, "claude_code": rest(entry, "message")},
    )
    time = entry.get("timestamp")
    return Turn(message, id=scalar(entry.get("uuid")), time=time, at=time, original=original)
