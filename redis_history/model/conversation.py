"""The record of a conversation: what it is, beside its messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from redis_history.model.parts import OpenStruct

__all__ = ["RECORD_FIELDS", "Conversation"]


class Conversation(OpenStruct, frozen=True):
    """A conversation as `create_conversation` takes it and `get_conversation` gives it.

    The first six are the caller's. `user_id` and `auditing_id` are a string or an integer of 64 bits, and come back as
    they were given: 1 and "1" are different owners. The others are kept by the store with each change, and ignored when
    given: `message_count`, `characters` and estimated `tokens` of the messages, `created_at`, `updated_at` (of the last
    change), `revision`, `schema_version`.
    """

    conversation_id: str
    user_id: int | str | None = None
    agent_name: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    auditing_id: int | str | None = None
    message_count: int = 0
    characters: int = 0
    tokens: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    revision: int = 0
    schema_version: int = 1


#: What the caller decides, and may change.
RECORD_FIELDS = ("user_id", "agent_name", "title", "auditing_id", "metadata")
