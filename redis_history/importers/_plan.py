"""What an import writes, as steps without I/O: two drivers, sync and async, carry them out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from os import PathLike
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

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
    """How far an import is, or what it did: conversations and messages read, how many of these were new to the store,
    how many it had already, and how many problems were reported."""

    conversations: int = 0
    messages: int = 0
    new: int = 0
    duplicates: int = 0
    problems: int = 0


OnProgress = Callable[[Imported], None]


class Step(NamedTuple):
    """A call of a method of the store, and what to give back if it raises one of these."""

    method: str
    arguments: tuple[Any, ...]
    known: tuple[type[Exception], ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})


_Steps = Generator[Step, Any, None]
#: What the store says if it cannot compact, or not just these messages.
_NO_COMPACTION = (CapabilityError, ConflictError, NotFoundError, InvalidInputError)


def check_batch(batch: int) -> None:
    """Raises InvalidInputError unless it is from 1 to 1,000."""
    if type(batch) is not int or not 1 <= batch <= 1000:
        raise InvalidInputError(f"batch is a number of messages from 1 to 1,000, not {batch!r}")


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
    """Everything an import writes, conversation by conversation. A step is answered with what the method gave, or with
    the error it raised, if it is one of those named."""
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
    """A stretch of a transcript: messages to be appended, and then, maybe, a summary in place of those `replaced`."""

    messages: tuple[Message, ...]
    replaced: tuple[Message, ...] = ()
    summary: Message | None = None


def _parts_of(transcript: Transcript) -> Iterator[_Part]:
    """The transcript as it came about. A live message in front of a summary came later, or it would have been replaced
    as well: its time says where it belongs. What is archived without a summary behind it is live in the last part."""
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
        tally.problem(number, f"the record of {transcript.conversation_id[:80]!r} is left out: {answer}")
        yield Step("create_conversation", (Conversation(transcript.conversation_id),), known)


def _compact(
    conversation_id: str, replaced: tuple[Message, ...], summary: Message, number: int, tally: _Tally
) -> _Steps:
    """Put a summary in place of what has been appended, unless the store has it already."""
    if (yield Step("get_message", (conversation_id, summary.id))) is not None:
        yield from _append(conversation_id, (summary,), number, tally)  # which finds out whether it is the same
        return
    change = {"through": replaced[-1].id, "summary": summary, "seen": replaced}
    answer = yield Step("compact", (conversation_id,), _NO_COMPACTION, change)
    if isinstance(answer, Compacted) and answer.changed:
        tally.add(messages=1, new=1)
        return
    reason = answer if isinstance(answer, Exception) else "there is nothing to replace"
    of = f"the summary {summary.id[:80]!r} of {conversation_id[:80]!r}"
    tally.problem(number, f"{of} is a message like others, and what it replaced stays: {reason}")
    yield from _append(conversation_id, (summary,), number, tally)


def _append(conversation_id: str, messages: tuple[Message, ...], number: int, tally: _Tally) -> _Steps:
    answer = yield Step("append_many", (conversation_id, messages), (MessageConflictError, InvalidInputError))
    if isinstance(answer, list):
        old = sum(1 for one in answer if isinstance(one, Appended) and one.duplicate)
        tally.add(messages=len(answer), new=len(answer) - old, duplicates=old)
    elif len(messages) > 1:  # too large together, or one of them is refused: find it
        half = len(messages) // 2
        yield from _append(conversation_id, messages[:half], number, tally)
        yield from _append(conversation_id, messages[half:], number, tally)
    else:
        tally.add(messages=1)
        tally.problem(number, f"message {messages[0].id[:80]!r} of {conversation_id[:80]!r} is left out: {answer}")
