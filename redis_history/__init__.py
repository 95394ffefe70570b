"""LLM conversation history in Redis: atomic appends, gapless live subscriptions."""

from redis_history._async.store import AsyncHistoryStore
from redis_history._async.subscription import AsyncSubscription
from redis_history._sync.store import HistoryStore
from redis_history._sync.subscription import Subscription
from redis_history._version import __version__
from redis_history.backends.redis.failures import RetryPolicy
from redis_history.events import (
    ConversationDeleted,
    Cursor,
    Event,
    MessagesAppended,
    MessagesDeleted,
    Reset,
)
from redis_history.model import (
    AttachmentPart,
    Message,
    Part,
    Participant,
    Position,
    ReasoningPart,
    Source,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
    assistant,
    system,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.operations import Appended, Snapshot

__all__ = [
    "Appended",
    "AsyncHistoryStore",
    "AsyncSubscription",
    "AttachmentPart",
    "ConversationDeleted",
    "Cursor",
    "Event",
    "HistoryStore",
    "Message",
    "MessagesAppended",
    "MessagesDeleted",
    "Part",
    "Participant",
    "Position",
    "ReasoningPart",
    "Reset",
    "RetryPolicy",
    "Snapshot",
    "Source",
    "Subscription",
    "TextPart",
    "ToolResultPart",
    "ToolUsePart",
    "UnknownPart",
    "__version__",
    "assistant",
    "system",
    "text",
    "tool",
    "tool_result",
    "tool_use",
    "user",
]
