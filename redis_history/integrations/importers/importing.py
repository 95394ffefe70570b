"""Import transcripts into a store. The work is written as steps, for both kinds of stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike

import msgspec

from redis_history import errors
from redis_history.integrations.importers.frameworks import STATE, renewed_state
from redis_history.integrations.importers.reader import read_transcripts
from redis_history.integrations.importers.source import ImportLimits, report
from redis_history.integrations.importers.transcript import ImportProblem, OnError, Original, Transcript
from redis_history.store import operations as ops
from redis_history.store.operations import Steps
from redis_history.store.operations import fork as forks
from redis_history.store.operations.tasks import Executes, R, Work
from redis_history.values import Conversation, Message, large
from redis_history.values._validation import check_integer, refuse
from redis_history.values.ids import check_conversation_id
from redis_history.values.message import RECORD_FIELDS
from redis_history.values.wire import digest_of


class Imported(msgspec.Struct, frozen=True):
    """Progress or result of an import: numbers of `conversations` and `messages` read, of messages that were `new` or
    already in the store (`duplicates`), and of reported `problems`."""

    conversations: int = 0
    messages: int = 0
    new: int = 0
    duplicates: int = 0
    problems: int = 0


OnProgress = Callable[[Imported], None]


def import_messages(
    source: str | PathLike[str] | Iterable[Transcript],
    store: Executes[Imported, R],
    *,
    format: str = "auto",
    batch: int = 200,
    limits: ImportLimits | None = None,
    on_error: OnError | None = None,
    on_progress: OnProgress | None = None,
) -> R:
    """Import the conversations of `source` into `store`, one at a time, in batches of `batch` messages (1 to 1,000).
    Await the result if the store is asynchronous: then the source is read in a thread, which may also call `on_error`.
    `async_import_messages` is the same function.

    `source` is a path (`format` and `limits` are for it), or transcripts, such as a `FrameworkSource`.

    A repeated import adds nothing, because ids depend only on the source. A conversation that has grown gets its new
    messages, and ADK state that only the old program has changed. It is left out if the store has one of another owner
    under its id; so are the new messages of a file behind one that differs in the store. A new conversation gets the
    title, owner and metadata of the source. A conversation of an export appears unchanged in one step, with its
    revision, times and archives. If it already exists, missing messages are added, except archived messages, which are
    reported as a problem.

    Problems are passed to `on_error`; without it they are logged as warnings. Invalid records are skipped and reported
    as problems, and so are messages with an unknown role, without content, or already stored with other content.
    `on_progress` is called after every batch. `limits` restricts the amount of data (None: `ImportLimits()`).

    Raises InvalidInputError like `read_transcripts`, and the errors of the store.
    """
    return store.execute(_Import(source, batch, on_error, on_progress).steps(format, limits))


async_import_messages = import_messages


@dataclass
class _Import:
    """An import, conversation by conversation, and its counts."""

    source: str | PathLike[str] | Iterable[Transcript]
    batch: int
    on_error: OnError | None
    on_progress: OnProgress | None
    counts: Imported = Imported()  # noqa: RUF009 - it is frozen
    number: int = 0  # of the conversation

    def __post_init__(self) -> None:
        check_integer(self.batch, "batch", 1, 1000, error=errors.InvalidInputError)

    def steps(self, format: str, limits: ImportLimits | None) -> Steps[Imported]:
        transcripts = iter((yield Work(lambda: self._read(format, limits))))
        end = object()
        while (transcript := (yield Work(lambda: next(transcripts, end)))) is not end:
            if not isinstance(transcript, Transcript):
                refuse(transcript, "an item of source", "a Transcript, such as `build` makes", errors.InvalidInputError)
            self.number += 1
            if transcript.exported is None or not (yield from self._publish(transcript, transcript.exported)):
                yield from self._add(transcript)
            self._count(conversations=1)
            self._report_progress()
        return self.counts

    def _publish(self, transcript: Transcript, exported: Original) -> Steps[bool]:
        """Create the conversation as it was exported. Returns False if the store already has it with other messages, or
        if lines are missing or invalid."""
        snapshot, count = exported.snapshot, len(transcript.messages)
        record, numbers = snapshot.record, {archive.number for archive in snapshot.archives}
        archive_of = {name: number for name, number in exported.archive_of.items() if number in numbers}
        places = {(archive_of.get(one.id, 0), one.position) for one in transcript.messages}
        lacks = any(one.position is None for one in transcript.messages)
        if lacks or not len(places) == len({one.id for one in transcript.messages}) == count:
            return False
        fields = {name: getattr(record, name) for name in RECORD_FIELDS}
        try:
            ops.WriteRecord.of(record.conversation_id, fields, create=True)
            if record.forked_from is not None:
                check_conversation_id(record.forked_from.conversation_id)
        except errors.InvalidInputError:
            return False
        present: Conversation | None = yield ops.ReadConversation(record.conversation_id)
        if present is not None:
            if (present.revision, present.updated_at) != (record.revision, record.updated_at) or not record.revision:
                return False
            if present.message_count != sum(one.id not in archive_of for one in transcript.messages):
                return False  # either file lacked lines
            self._count(messages=count, duplicates=count)
            return True
        try:
            yield from forks.publish(snapshot, archive_of, transcript.messages)
        except errors.ConversationExistsError:  # another import has just created it
            return False
        self._count(messages=count, new=count)
        return True

    def _add(self, transcript: Transcript) -> Steps[None]:
        """Append the messages that the store lacks."""
        messages, exported = transcript.messages, transcript.exported
        if not (yield from self._create(transcript)):
            self._leave_out(transcript, messages, "the conversation there has another owner")
            return
        if exported is None and isinstance(self.source, str | PathLike):
            messages = yield from self._continuing(transcript)
        if exported is not None:
            archived = [one for one in messages if one.id in exported.archive_of]
            messages = tuple(one for one in messages if one.id not in exported.archive_of)
            if archived:
                self._count(messages=len(archived), duplicates=len(archived))
                self._problem(
                    f"{len(archived):,} archived messages of {transcript.conversation_id[:80]!r} are left out: only a "
                    "conversation that does not exist gets archives; import it into another namespace, or delete it"
                )
        for at in range(0, len(messages), self.batch):
            yield from self._append(transcript.conversation_id, messages[at : at + self.batch])
            self._report_progress()

    def _continuing(self, transcript: Transcript) -> Steps[tuple[Message, ...]]:
        """The messages of a file without the new ones behind a message that differs in the store: other files may have
        conversations of the same id."""
        id_, messages = transcript.conversation_id, transcript.messages
        found = yield from ops.read_messages(id_, include_archived=True, contents=False)
        stored = {message.id: digest_of(message) for message in found}
        equal = {one.id for one in messages if one.id in stored and _digest(one) == stored[one.id]}
        if not stored or not messages:
            return messages
        if not equal:
            self._leave_out(transcript, messages, "the conversation there has none of them")
            return ()
        kept: list[Message] = []
        others: list[Message] = []
        follows = True
        for message in messages:
            if message.id in stored:
                follows = message.id in equal
            (kept if follows or message.id in stored else others).append(message)
        if others:
            self._leave_out(transcript, others, "the message before them is not as in the conversation there")
        return tuple(kept)

    def _leave_out(self, transcript: Transcript, messages: Sequence[Message], reason: str) -> None:
        self._count(messages=len(messages))
        id_ = transcript.conversation_id
        self._problem(
            f"{len(messages):,} of {len(transcript.messages):,} messages of {id_[:80]!r} are left out: {reason}, so it "
            "may be another one: rename the file, or use another namespace"
        )

    def _read(self, format: str, limits: ImportLimits | None) -> Iterable[Transcript]:
        if not isinstance(self.source, str | PathLike):
            if not isinstance(self.source, Iterable):
                refuse(self.source, "source", "a path, or transcripts", errors.InvalidInputError)
            return self.source
        return read_transcripts(self.source, format=format, on_error=self._report, limits=limits)

    def _create(self, transcript: Transcript) -> Steps[bool]:
        """Create the conversation. False: the store has one of another owner."""
        id_ = transcript.conversation_id
        record = Conversation(
            id_,
            title=transcript.title,
            user_id=transcript.user_id,
            agent_name=transcript.agent_name,
            metadata=transcript.metadata,
        )
        if transcript.exported is not None:
            record = transcript.exported.snapshot.record
        try:
            with suppress(errors.InvalidInputError):
                try:
                    yield from ops.create_record(record)
                except errors.InvalidInputError as error:
                    self._problem(f"the record of conversation {id_[:80]!r} is left out: {error}")
                    yield from ops.create_record(Conversation(id_))
        except errors.ConversationExistsError:
            present = yield ops.ReadConversation(id_)
            if present is not None and None not in (owners := {present.user_id, record.user_id}) and len(owners) > 1:
                return False
            if transcript.format == "google-adk" and STATE in transcript.metadata:
                yield from self._renew_state(transcript)
        return True

    def _renew_state(self, transcript: Transcript) -> Steps[None]:
        """Bring the state that the old program has changed since an earlier import. A concurrent change is read."""
        id_ = transcript.conversation_id
        while (found := (yield ops.ReadConversation(id_))) is not None:
            state, kept = renewed_state(found.metadata.get(STATE), transcript.metadata[STATE])
            try:
                if state != found.metadata.get(STATE):
                    changed = {"metadata": {**found.metadata, STATE: state}}
                    yield from ops.change_record(id_, changed, found.revision)
            except (errors.RevisionConflictError, errors.ConversationNotFoundError):
                continue
            except errors.InvalidInputError as error:
                self._problem(f"the state of {id_[:80]!r} is left out: {error}")
            else:
                if kept:
                    self._problem(f"the state of {id_[:80]!r} has been changed here, and keeps {', '.join(kept)[:200]}")
            return

    def _append(self, id_: str, messages: tuple[Message, ...]) -> Steps[None]:
        try:
            done = yield from ops.append_messages(id_, messages)
        except (errors.MessageConflictError, errors.InvalidInputError) as error:
            if len(messages) > 1:  # the batch is too large, or one message is rejected: split it
                half = len(messages) // 2
                yield from self._append(id_, messages[:half])
                yield from self._append(id_, messages[half:])
            elif isinstance(error, errors.MessageTooLargeError):
                kept, lacks = large.fitted(messages[0])
                for _, reason in lacks:
                    self._problem(f"message {messages[0].id[:80]!r} of {id_[:80]!r} is stored without its {reason}")
                for piece in kept:
                    yield from self._append(id_, (piece,))
            else:
                self._count(messages=1)
                self._problem(f"message {messages[0].id[:80]!r} of {id_[:80]!r} is left out: {error}")
        else:
            duplicates = sum(one.duplicate for one in done)
            self._count(messages=len(done), new=len(done) - duplicates, duplicates=duplicates)

    def _count(self, **counts: int) -> None:
        changed = {name: getattr(self.counts, name) + count for name, count in counts.items()}
        self.counts = msgspec.structs.replace(self.counts, **changed)

    def _problem(self, reason: str) -> None:
        path = str(self.source) if isinstance(self.source, str | PathLike) else "transcripts"
        self._report(ImportProblem(path, self.number, reason))

    def _report(self, problem: ImportProblem) -> None:
        self._count(problems=1)
        report(problem, self.on_error)

    def _report_progress(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.counts)


def _digest(message: Message) -> bytes:
    """The digest of the form in which a message was stored."""
    return digest_of(large.fitted(message)[0][0])
