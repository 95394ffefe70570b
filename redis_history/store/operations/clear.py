"""Remove all messages of a conversation."""

from __future__ import annotations

from functools import partial
from typing import Final

from redis_history.store.changelog import Kind
from redis_history.store.memory.space import Space
from redis_history.store.operations.base import Revised, Steps
from redis_history.store.operations.documents import purge_after
from redis_history.store.operations.drafts import drop_forks
from redis_history.store.operations.scripts import WRITING, load_script
from redis_history.store.operations.settings import Settings

CLEAR: Final = load_script("clear", *WRITING, "_empty")


class Clear(Revised, frozen=True):
    """Remove all messages and keep the conversation. The outcome is the revision."""

    def steps(self, settings: Settings) -> Steps[int]:
        keys = settings.keyspace.conversation(self.conversation_id)
        return self.send(self.script_call(CLEAR, settings, ()), settings, partial(purge_after, keys), drop=drop_forks)

    def apply(self, space: Space) -> int:
        conversation = space.check(self.conversation_id, self.precondition)
        if conversation is None or not (conversation.live or conversation.archives):
            space.drop_forks(self.conversation_id)
            return conversation.revision if conversation else 0
        conversation.empty()
        space.drop_forks(self.conversation_id)
        return space.write(self, conversation, Kind.CLEARED)
