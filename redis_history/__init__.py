"""LLM conversation history in Redis: atomic appends, gapless live subscriptions."""

from redis_history._async.store import AsyncHistoryStore
from redis_history._async.subscription import AsyncSubscription
from redis_history._sync.store import HistoryStore
from redis_history._sync.subscription import Subscription
from redis_history._version import __version__
from redis_history.backends.redis.failures import RetryPolicy
from redis_history.capabilities import Capabilities
from redis_history.events import (
    ConversationDeleted,
    ConversationUpdated,
    Cursor,
    Event,
    HistoryCleared,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    Reset,
    ResetReason,
)
from redis_history.model import (
    AttachmentPart,
    Conversation,
    Message,
    Part,
    Participant,
    Position,
    ReasoningPart,
    Role,
    Scope,
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
from redis_history.search.highlight import Highlight
from redis_history.search.hits import Reindexed, SearchHit
from redis_history.search.vectors import Embedder, VectorField
from redis_history.tools import AsyncConversationSearchTool, ConversationSearchTool, conversation_search_tool

__all__ = [
    "Appended",
    "AsyncConversationSearchTool",
    "AsyncHistoryStore",
    "AsyncSubscription",
    "AttachmentPart",
    "Capabilities",
    "Conversation",
    "ConversationDeleted",
    "ConversationSearchTool",
    "ConversationUpdated",
    "Cursor",
    "Embedder",
    "Event",
    "Highlight",
    "HistoryCleared",
    "HistoryRestored",
    "HistoryStore",
    "Message",
    "MessageUpdated",
    "MessagesAppended",
    "MessagesDeleted",
    "Part",
    "Participant",
    "Position",
    "ReasoningPart",
    "Reindexed",
    "Reset",
    "ResetReason",
    "RetryPolicy",
    "Role",
    "Scope",
    "SearchHit",
    "Snapshot",
    "Source",
    "Subscription",
    "TextPart",
    "ToolResultPart",
    "ToolUsePart",
    "UnknownPart",
    "VectorField",
    "__version__",
    "assistant",
    "conversation_search_tool",
    "system",
    "text",
    "tool",
    "tool_result",
    "tool_use",
    "user",
]
