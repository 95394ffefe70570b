"""The steps of an import, without I/O: a sync and an async driver execute them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from os import PathLike
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from redis_history._validation import check_integer
from redis_history.errors import (
    CapabilityError,
    ConflictError,
    ConversationExistsError,
    InvalidInputError,
    MessageConflictError,
    NotFoundError,
)
from redis_history.importers.transcript import ImportProblem, OnError, Transcript
from redis_history.model import Conversation, Message
from redis_history.model.ranges import stays
from redis_history.operations import Appended, Compacted

__all__ = ["Imported", "OnProgress", "Step", "check_batch", "steps"]


class Imported(msgspec.Struct, frozen=True):
    """Progress or result of an import: numbers of conversations and messages read, of messages that were new or already
    in the store, and of reported problems."""

    conversations: int = 0
    messages: int = 0
    new: int = 0
    duplicates: int = 0
    problems: int = 0


OnProgress = Callable[[Imported], None]


class Step(NamedTuple):
    """A call of a store method. Exceptions of the types in `known` are returned as the answer, not raised."""

    method: str
    arguments: tuple[Any, ...]
    known: tuple[type[Exception], ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})


_Steps = Generator[Step, Any, None]
#: Errors of a store that cannot compact at all, or cannot compact these messages.
_NO_COMPACTION = (CapabilityError, ConflictError, NotFoundError, InvalidInputError)


def check_batch(batch: int) -> None:
    """Raises InvalidInputError unless it is from 1 to 1,000."""
    check_integer(batch, "batch", 1, 1000, error=InvalidInputError)


class _Tally:
    def __init__(self, path: str, on_error: OnError, on_progress: OnProgress | None) -> None:
        self.counts = Imported()
        self._path = path
        self._on_error = on_error
        self._on_progress = on_progress

    def add(self, **counts: int) -> None:
        changed = {name: getattr(self.counts, name) + count for name, count in counts.items()}
        self.counts = msgspec.structs.replace(self.counts, **changed)

    def problem(self, number: int, reason: str) -> None:
        self._on_error(ImportProblem(self._path, number, reason))

    def progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.counts)


def steps(
    transcripts: Iterable[Transcript],
    source: str | PathLike[str],
    *,
    batch: int,
    on_error: OnError,
    on_progress: OnProgress | None,
) -> Generator[Step, Any, Callable[[], Imported]]:
    """Yield all store calls of an import, conversation by conversation. Send back the result of each call, or the
    error if its type is in `known`."""
    tally = _Tally(str(source), on_error, on_progress)
    for number, transcript in enumerate(transcripts, 1):
        yield from _record(transcript, number, tally)
        for part in _parts_of(transcript):
            for at in range(0, len(part.messages), batch):
                yield from _append(transcript.conversation_id, part.messages[at : at + batch], number, tally)
                tally.progress()
            if part.summary is not None:
                yield from _compact(transcript.conversation_id, part.replaced, part.summary, number, tally)
        tally.add(conversations=1)
        tally.progress()
    return lambda: tally.counts


class _Part(NamedTuple):
    """A section of a transcript: messages to append, then an optional summary that replaces the messages in
    `replaced`."""

    messages: tuple[Message, ...]
    replaced: tuple[Message, ...] = ()
    summary: Message | None = None


def _parts_of(transcript: Transcript) -> Iterator[_Part]:
    """Split a transcript into sections, in the order in which they were written. A live message before a summary was
    appended after it (otherwise the summary would have replaced it); its timestamp gives its position. Archived
    messages without a later summary are live messages of the last section."""
    every, archived = transcript.messages, transcript.archived
    begin, former, later = 0, tuple[Message, ...](), list[Message]()
    for at, message in enumerate(every):
        if not message.is_summary:
            continue
        before = every[begin:at]
        if leaving := tuple(one for one in before if one.id in archived):
            appended = tuple(one for one in before if one.id in archived or stays(one))
            yield _Part(appended, (*former, *leaving), message)
            later += (one for one in before if one.id not in archived and not stays(one))
            begin, former = at + 1, (message,)
    yield _Part((*later, *every[begin:]))


def _record(transcript: Transcript, number: int, tally: _Tally) -> _Steps:
    given = transcript.record
    record = given or Conversation(transcript.conversation_id, title=transcript.title, metadata=transcript.metadata)
    known = (ConversationExistsError, InvalidInputError)
    answer = yield Step("create_conversation", (record,), known)
    if isinstance(answer, InvalidInputError):
        tally.problem(number, f"the record of conversation {transcript.conversation_id[:80]!r} is left out: {answer}")
        yield Step("create_conversation", (Conversation(transcript.conversation_id),), known)


def _compact(
    conversation_id: str, replaced: tuple[Message, ...], summary: Message, number: int, tally: _Tally
) -> _Steps:
    """Replace the appended messages by a summary, unless the store already has it."""
    if (yield Step("get_message", (conversation_id, summary.id))) is not None:
        yield from _append(conversation_id, (summary,), number, tally)  # reports a summary with other content
        return
    change = {"through": replaced[-1].id, "summary": summary, "seen": replaced}
    answer = yield Step("compact", (conversation_id,), _NO_COMPACTION, change)
    if isinstance(answer, Compacted) and answer.changed:
        tally.add(messages=1, new=1)
        return
    reason = answer if isinstance(answer, Exception) else "there is nothing to replace"
    of = f"the summary {summary.id[:80]!r} of {conversation_id[:80]!r}"
    tally.problem(number, f"{of} is stored as a normal message, and the messages it replaced stay: {reason}")
    yield from _append(conversation_id, (summary,), number, tally)


def _append(conversation_id: str, messages: tuple[Message, ...], number: int, tally: _Tally) -> _Steps:
    answer = yield Step("append_many", (conversation_id, messages), (MessageConflictError, InvalidInputError))
    if isinstance(answer, list):
        old = sum(1 for one in answer if isinstance(one, Appended) and one.duplicate)
        tally.add(messages=len(answer), new=len(answer) - old, duplicates=old)
    elif len(messages) > 1:  # the batch is too large, or one message is rejected: split it
        half = len(messages) // 2
        yield from _append(conversation_id, messages[:half], number, tally)
        yield from _append(conversation_id, messages[half:], number, tally)
    else:
        tally.add(messages=1)
        tally.problem(number, f"message {messages[0].id[:80]!r} of {conversation_id[:80]!r} is left out: {answer}")
