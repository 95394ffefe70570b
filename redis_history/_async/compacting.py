"""The compacting part of a store: a summary in place of messages, and back."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from redis_history import requests
from redis_history._async.writing import AsyncWriting
from redis_history.backends.base import features
from redis_history.errors import CapabilityError, MessageNotFoundError
from redis_history.model import Message, Position
from redis_history.operations import Compacted, Expanded, FindMessage

__all__ = ["AsyncCompacting"]


class AsyncCompacting(AsyncWriting):
    """`compact` and `expand` of a store."""

    async def compact(
        self,
        conversation_id: str,
        *,
        through: Position | Message | str,
        summary: Message | str,
        seen: Iterable[Message] | None = None,
        expected_revision: int | None = None,
    ) -> Compacted:
        """Put a summary in place of all messages up to `through`, as one change; they move to the archive.

        `through` is the last of them: a message, its position or its id. System messages stay; a former summary is
        replaced too. What others append meanwhile stays. `summary` is a text, or a message with
        `metadata={"is_summary": True}`; it gets the place of the last message that it replaces.

        `seen` are the messages that were summarised: if not exactly these would be replaced (edited, deleted,
        inserted or compacted meanwhile), CompactionConflictError, and nothing is written. Without it, whatever is
        there at that moment is replaced. If there is nothing to replace, or only a summary, nothing changes, and the
        outcome says so.

        Raises TornPairError if the range tears a tool call from its result, and names a `through` that would do;
        MessageNotFoundError for an unknown id, RevisionConflictError, MessageConflictError (the id of the summary is
        taken), CapabilityError for a backend that cannot.
        """
        self._check_compacts()
        place = requests.through_of(through)
        at = Position(0, 0) if isinstance(place, str) else place
        op = requests.compact(conversation_id, at, summary, seen, expected_revision=expected_revision)
        if isinstance(place, str):
            last = await self._backend.execute(FindMessage(conversation_id, place))
            if last is None or last.position is None:
                raise MessageNotFoundError(f"conversation {conversation_id[:80]!r} has no message {place[:64]!r}")
            op = replace(op, through=last.position)
        return await self._write(op)

    async def expand(self, conversation_id: str, summary_id: str, *, expected_revision: int | None = None) -> Expanded:
        """Put what a summary replaced back in its place, as one change: the same messages in the same order, and a
        former summary if there was one.

        Raises MessageNotFoundError unless it is the live summary of the conversation; RevisionConflictError,
        CapabilityError for a backend that cannot.
        """
        self._check_compacts()
        op = requests.expand(conversation_id, summary_id, expected_revision=expected_revision)
        expanded = await self._write(op)
        if expanded is None:
            raise MessageNotFoundError(
                f"{summary_id[:64]!r} is not the summary that stands in conversation {conversation_id[:80]!r}"
            )
        return expanded

    def _check_compacts(self) -> None:
        if not features(self._backend).compacts:
            raise CapabilityError("this backend cannot compact: see Features in redis_history.backends.base")
