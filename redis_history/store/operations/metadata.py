"""Set some keys of the metadata in a conversation's record, and leave the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from redis_history.errors import CorruptDataError, InvalidInputError
from redis_history.store.changelog import Kind
from redis_history.store.memory.space import Space
from redis_history.store.operations.base import UNREADABLE, Pause, Revised, Steps, plain
from redis_history.store.operations.record import RECORD, RECORD_KEYS, check_record, decode_value
from redis_history.store.operations.settings import Settings
from redis_history.store.writes import Precondition
from redis_history.values._validation import refuse
from redis_history.values.ids import check_conversation_id, new_token, rng

_METADATA: Final = RECORD_KEYS["metadata"]
#: Seconds, at most, until the next attempt after the first and after many concurrent changes.
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 1.0


class MergeMetadata(Revised, frozen=True):
    """Set these keys of a record's metadata; None removes one. The outcome is the revision.

    The merged metadata are written only if the stored bytes are still those they were computed from. Otherwise the
    steps begin again. So the server does not decode values: Lua would not keep all their types.
    """

    changes: dict[str, Any]

    @classmethod
    def of(cls, conversation_id: str, changes: Mapping[str, Any]) -> MergeMetadata:
        """Raises InvalidConversationIdError, InvalidInputError."""
        check_conversation_id(conversation_id)
        if not isinstance(changes, Mapping):
            refuse(changes, "changes", "a dict of keys of the metadata", InvalidInputError)
        if not changes:
            raise InvalidInputError("changes is empty; merge_metadata needs at least one key to set")
        stored = check_record(conversation_id, {"metadata": dict(changes)})
        return cls(conversation_id, stored.metadata, precondition=Precondition.of(must_exist=True))

    def steps(self, settings: Settings) -> Steps[int]:
        state = settings.keyspace.conversation(self.conversation_id).state
        op, pause = self, _FIRST_PAUSE
        while True:
            seen: bytes = (yield plain(b"HGET", state, _METADATA)) or b""
            merged = msgspec.msgpack.encode(self._merged(self._decoded(seen)))
            call = op.script_call(RECORD, settings, RECORD.args(fields=_METADATA, values=[_METADATA, merged, seen]))
            outcome: int | bytes = yield from op.send(call, settings)
            if isinstance(outcome, int):
                return outcome
            # Another change was faster, so another one succeeded: the loop ends. The refused call keeps its token, by
            # which the server recognizes late copies of it.
            op = replace(op, token=new_token())
            yield Pause(rng.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def decode(self, reply: Any) -> Any:
        """The revision, or b"changed" if the metadata are not those that were read."""
        return reply[0] if type(reply) is list and reply[0] == b"changed" else super().decode(reply)

    def apply(self, space: Space) -> int:
        present = space.check(self.conversation_id, self.precondition)
        fields = {"metadata": self._merged(present.record.get("metadata", {}) if present is not None else {})}
        conversation = space.find_or_create(self.conversation_id, self.token)
        conversation.record.update(msgspec.msgpack.decode(msgspec.msgpack.encode(fields)))
        return space.write(self, conversation, Kind.RECORD, fields=fields)

    def _merged(self, present: dict[str, Any]) -> dict[str, Any]:
        merged = {**present, **self.changes}
        merged = {name: value for name, value in merged.items() if value is not None or name not in self.changes}
        check_record(self.conversation_id, {"metadata": merged})
        return merged

    def _decoded(self, stored: bytes) -> dict[str, Any]:
        try:
            return msgspec.convert(decode_value(stored) if stored else {}, type=dict[str, Any])
        except UNREADABLE as error:
            raise CorruptDataError(
                f"the metadata of conversation {self.conversation_id[:80]!r} are unreadable: {error}"
            ) from error
