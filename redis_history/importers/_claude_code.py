"""Import sessions of Claude Code: a `.jsonl` file of entries, or `{path, blob, entries}` records with one session each.

Each entry with a `message` becomes a message with the entry's `uuid` as its id. Other fields of the entry are kept in
`provider_meta["claude_code"]`. Claude Code can split a reply of the model into several entries with the same
`message.id` and tool results between them. These entries stay separate messages: written entries never change, so an
unfinished session can be imported again. Messages of one reply have the same `metadata["response_id"]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from redis_history.errors import InvalidInputError
from redis_history.formats import from_anthropic
from redis_history.importers.source import Record, Source, each
from redis_history.importers.transcript import Transcript, Turn, build, need, rest, scalar

_MARKS = frozenset(("uuid", "sessionId", "leafUuid", "messageId", "parentUuid"))


def matches(record: Any) -> bool:
    """Whether `record` is a line of a session file, or a session."""
    return _is_entry(record) or (isinstance(record, dict) and isinstance(record.get("entries"), list))


def _is_entry(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("type"), str) and not _MARKS.isdisjoint(record)


def claude_code(source: Source) -> Iterator[Transcript]:
    """Import the sessions of a file. If its lines are entries, the file is one session."""
    if not any(map(_is_entry, source.head)):
        yield from each(source, _wrapped)
        return
    transcript = _session(source, source.of_one_conversation(), source.name)
    if transcript.messages:
        yield transcript


def _wrapped(source: Source, line: int, record: Any) -> Transcript:
    entries = need(record, "entries", list)
    path, blob = scalar(record.get("path")), scalar(record.get("blob"))
    name = "@".join(filter(None, (path, blob))) or f"{source.name}:{line}"
    return _session(source, [(line, entry) for entry in entries], name, record)


def _session(source: Source, entries: list[Record], name: str, wrapper: Mapping[str, Any] | None = None) -> Transcript:
    turns: list[Turn] = []
    skipped: Counter[str] = Counter()
    first: dict[str, Any] = {}
    title = None
    for line, entry in entries:
        if not isinstance(entry, dict):
            source.problem(line, "the line is not an entry of a session")
            continue
        if not first.get("sessionId") and scalar(entry.get("sessionId")):
            first = entry
        title = scalar(entry.get("summary")) or title
        if not isinstance(entry.get("message"), dict):
            skipped[str(entry.get("type"))] += 1
            continue
        try:
            turns.append(_turn(entry, None if wrapper else line))
        except InvalidInputError as error:
            source.problem(line, str(error))
    # Logs of sub-agents have the session id of their parent.
    agent = scalar(first.get("agentId")) if first.get("isSidechain") is True else None
    metadata = rest(wrapper or {}, "entries")
    return build(
        turns,
        format="claude_code",
        key=":".join(filter(None, (scalar(first.get("sessionId")) or name, agent))),
        on_bad_line=source.problem,
        title=title,
        metadata={**metadata, "entries_without_message": dict(skipped)} if skipped else metadata,
        form="anthropic",
    )


def _turn(entry: dict[str, Any], line: int | None) -> Turn:
    original = entry["message"]
    message = from_anthropic([original])[0]
    message = msgspec.structs.replace(
        message,
        metadata={"response_id": original["id"]} if scalar(original.get("id")) else {},
        scope="thread" if entry.get("isSidechain") is True else None,
        provider_meta={**message.provider_meta, "claude_code": rest(entry, "message")},
    )
    time = entry.get("timestamp")
    return Turn(message, id=scalar(entry.get("uuid")), time=time, at=time, line=line, original=original)
