"""Remove all messages of a conversation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from redis_history.operations.base import Revised, Steps
from redis_history.operations.changelog import Kind
from redis_history.operations.documents import purge_after
from redis_history.operations.scripts import WRITING, load_script
from redis_history.operations.settings import Settings

if TYPE_CHECKING:
    from redis_history.engine.space import Space

CLEAR: Final = load_script("clear", *WRITING, "_empty")


class Clear(Revised, frozen=True):
    """Remove all messages and keep the conversation. The outcome is the revision."""

    def steps(self, settings: Settings) -> Steps[int]:
        keys = settings.keyspace.conversation(self.conversation_id)
        return self.send(self.script_call(CLEAR, settings, ()), settings, partial(purge_after, keys))

    def apply(self, space: Space) -> int:
        space.check(self.conversation_id, self.precondition)
        conversation = space.find(self.conversation_id)
        if conversation is None or not (conversation.live or conversation.archives):
            return conversation.revision if conversation else 0
        conversation.empty()
        return space.write(self, conversation, Kind.CLEARED)
