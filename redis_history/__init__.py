"""LLM conversation history in Redis: atomic appends, gapless live subscriptions."""

from redis_history._async.capturing import AsyncCapture, AsyncTurn
from redis_history._async.store import AsyncHistoryStore
from redis_history._async.subscription import AsyncSubscription
from redis_history._sync.capturing import Capture, Turn
from redis_history._sync.store import HistoryStore
from redis_history._sync.subscription import Subscription
from redis_history._version import __version__
from redis_history.backends.redis.failures import RetryPolicy
from redis_history.capabilities import Capabilities
from redis_history.capturing.capture import capture
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
from redis_history.prompt import (
    AssembledPrompt,
    LeftOut,
    LeftOutReason,
    PromptOptions,
    PromptReport,
    assemble_messages,
    assemble_prompt,
)

__all__ = [
    "Appended",
    "AssembledPrompt",
    "AsyncCapture",
    "AsyncHistoryStore",
    "AsyncSubscription",
    "AsyncTurn",
    "AttachmentPart",
    "Capabilities",
    "Capture",
    "Conversation",
    "ConversationDeleted",
    "ConversationUpdated",
    "Cursor",
    "Event",
    "HistoryCleared",
    "HistoryRestored",
    "HistoryStore",
    "LeftOut",
    "LeftOutReason",
    "Message",
    "MessageUpdated",
    "MessagesAppended",
    "MessagesDeleted",
    "Part",
    "Participant",
    "Position",
    "PromptOptions",
    "PromptReport",
    "ReasoningPart",
    "Reset",
    "ResetReason",
    "RetryPolicy",
    "Role",
    "Scope",
    "Snapshot",
    "Source",
    "Subscription",
    "TextPart",
    "ToolResultPart",
    "ToolUsePart",
    "Turn",
    "UnknownPart",
    "__version__",
    "assemble_messages",
    "assemble_prompt",
    "assistant",
    "capture",
    "system",
    "text",
    "tool",
    "tool_result",
    "tool_use",
    "user",
]
