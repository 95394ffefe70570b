"""Import lists of messages of OpenAI, Anthropic, LangChain and ShareGPT, as JSON or JSONL.

A record is a list of messages, an object that has such a list, the request or the answer of a provider, also in a line
of a batch file, or a single message. Single messages form the conversations that their columns name, such as
`conversation_id`, in any order of lines; without such a column they form one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.formats import from_anthropic
from redis_history.integrations.importers._columns import (
    CONVERSATION,
    USER,
    conversation_of,
    names_conversation,
    scalar,
    user_of,
)
from redis_history.integrations.importers._records import Form, Found, find, form_of, row_of
from redis_history.integrations.importers._rows import Rows
from redis_history.integrations.importers._turns import Item, Report, turns_of
from redis_history.integrations.importers.source import Source
from redis_history.integrations.importers.transcript import Transcript, Turn, build, unique_id
from redis_history.values import system as system_message

_KEYS: Final = ("conversation_id", "custom_id", "id", "session_id", "thread_id", *CONVERSATION)
_LANGCHAIN_KEYS: Final = ("session_id", "conversation_id", "thread_id", "id", *CONVERSATION)


def read_chats(source: Source, form: Form | None = None) -> Iterator[Transcript]:
    """Read each conversation in this form; None: in that of its messages."""
    seen: dict[str, int] = {}
    has_lists = False
    with Rows() as rows:
        for line, record in source.records():
            try:
                found = None if row_of(record) is not None else find(record)
                outer = record if isinstance(record, dict) else {}
                if found is None or _is_table(found.messages, outer):
                    for row in [record] if found is None else found.messages:
                        _add_row(rows, line, row, source.problem)
                    continue
                has_lists = True
                transcript = _conversation(source, line, outer, found, form)
            except InvalidInputError as error:
                source.problem(line, str(error))
            else:
                yield from _unique(transcript, seen)
        for key in rows.keys:
            items = _items(source, rows, key)
            if key is None and (has_lists or len(rows.keys) > 1):
                for item in items:
                    source.problem(item.line, f"the message has none of {', '.join(CONVERSATION[:4])}, as others have")
                continue
            try:
                transcript = _transcript(source, items, form, None, key) if items else None
            except InvalidInputError as error:
                name = source.name if key is None else f"{source.name}:{key}"
                source.problem(items[0].line, f"the conversation {name[:80]!r} is left out: {error}")
            else:
                yield from _unique(transcript, seen)


def _unique(transcript: Transcript | None, seen: dict[str, int]) -> Iterator[Transcript]:
    """The transcript with an id that none before it has; nothing for None."""
    if transcript is not None:
        yield replace(transcript, conversation_id=unique_id(transcript.conversation_id, seen))


def _is_table(messages: list[Any], outer: Mapping[str, Any]) -> bool:
    """Whether the messages of a record are rows of a table: the rows name several conversations, or a single
    conversation that the record does not name."""
    names = {repr([row.get(name) for name in CONVERSATION]) for row in messages if names_conversation(row)}
    return len(names) > 1 or (len(names) == 1 and not any(name in outer for name in _KEYS))


def _add_row(rows: Rows, line: int, record: Any, report: Report) -> None:
    if row_of(record) is None:
        kinds = "a message, a list of messages, or an object with `messages`"
        report(line, f"the record must be {kinds}; for other data see `build` in docs/how-to/import.md")
        return
    try:
        rows.add(conversation_of(record), line, record)
    except InvalidMessageError as error:
        report(line, str(error))


def _items(source: Source, rows: Rows, key: str | None) -> list[Item]:
    """The rows of a conversation. Reports a problem and returns [] if they exceed `max_conversation_bytes`."""
    found: list[Item] = []
    size = 0
    for line, row, length in rows.of(key):
        size += length
        if size > source.limits.max_conversation_bytes:
            subject = "the conversation" if key is None else f"the conversation {key[:80]!r}"
            source.problem(line, source.limits.refusal("max_conversation_bytes", subject))
            return []
        found.append(Item(line, row_of(row), row))
    # Columns of the conversation are left out of its messages.
    known = CONVERSATION if len(_owners(found)) > 1 else (*CONVERSATION, *USER)
    return [
        item._replace(message={name: value for name, value in item.message.items() if name not in known})
        for item in found
    ]


def _owners(items: Iterable[Item]) -> dict[int | str, int]:
    """The users that messages name, in order, and the lines that name each first."""
    found: dict[int | str, int] = {}
    for item in items:
        if (owner := user_of(item.columns)) is not None:
            found.setdefault(owner, item.line)
    return found


def _conversation(
    source: Source, line: int, outer: dict[str, Any], found: Found, form: Form | None
) -> Transcript | None:
    if not found.messages:
        raise InvalidMessageError("the conversation has no messages")
    form = form or found.form or form_of(found.messages, found.system)
    names = _LANGCHAIN_KEYS if form == "langchain" else _KEYS
    key = next(filter(None, (scalar(outer.get(name)) for name in names)), None)
    if found.further:
        source.problem(line, f"{found.further} alternative answers are left out")
    items = [Item(line, message, message if isinstance(message, dict) else {}) for message in found.messages]
    items[-1] = items[-1]._replace(usage=found.usage)
    rest = {name: value for name, value in found.rest.items() if name not in ("title", *USER)}
    return _transcript(
        source, items, form, found.system, key, place=f":{line}",
        title=scalar(outer.get("title")), user_id=user_of(outer), metadata=rest,
    )  # fmt: skip


def _transcript(
    source: Source, items: list[Item], form: Form | None, system: Any, key: str | None, *, place: str = "",
    user_id: int | str | None = None, **fields: Any,
) -> Transcript | None:  # fmt: skip
    """The conversation of these messages; None if none of them is left. Reports what is left out. Without a `key` of
    its own, its `place` in the file identifies it, with its owner and beginning: other files may have the same name."""
    form = form or form_of(item.message for item in items)
    owners = _owners(items)
    if user_id is None and owners:
        user_id, *others = owners
        if others:
            source.problem(owners[others[0]], f"the conversation names several users; {user_id!r} becomes its owner")
    first = _system(system, form)
    turns = [*first, *turns_of(items, form, source.problem)]
    end = f"{place}~{_beginning(turns, user_id)}" if key is None else f":{key}"
    made = build(turns, format=form, key=source.name + end, on_bad_line=source.problem, user_id=user_id, **fields)
    return made if len(made.messages) > len(first) else None


def _beginning(turns: list[Turn], user_id: int | str | None) -> str:
    """The digest of the owner and the first message of a conversation, which stays when the conversation grows.
    Instructions do not count: many conversations have the same, and some name the day."""
    said = (turn.message for turn in turns if turn.message.role != "system")
    first = next(((one.role, one.text) for one in said), None)
    return hashlib.blake2b(json.dumps((user_id, first)).encode(), digest_size=6).hexdigest()


def _system(value: Any, form: Form) -> list[Turn]:
    """The message for a `system` value next to the messages."""
    if value in (None, "", []):
        return []
    if form == "anthropic" and isinstance(value, str | list):
        return [Turn(message) for message in from_anthropic([], system=value)]
    if isinstance(value, str):
        return [Turn(system_message(value))]
    raise InvalidMessageError("`system` must be text or blocks")
