"""The public names; `redis_history` gives them on demand."""

from redis_history._async.capturing import AsyncCapture, AsyncTurn
from redis_history._async.compressor import AsyncCompressor
from redis_history._async.namespace_subscription import AsyncNamespaceSubscription
from redis_history._async.store import AsyncHistoryStore
from redis_history._async.stored_history import AsyncRedisHistory
from redis_history._async.subscription import AsyncSubscription
from redis_history._capture import capture
from redis_history._sync.capturing import Capture, Turn
from redis_history._sync.compressor import Compressor
from redis_history._sync.namespace_subscription import NamespaceSubscription
from redis_history._sync.store import HistoryStore
from redis_history._sync.stored_history import RedisHistory
from redis_history._sync.subscription import Subscription
from redis_history._version import __version__
from redis_history.capabilities import Capabilities
from redis_history.compaction.extractive import extractive_summarizer
from redis_history.compaction.models import anthropic_summarizer, openai_summarizer
from redis_history.compaction.summaries import Summarizer
from redis_history.compaction.worker import CompressionProgress, CompressorStats
from redis_history.events import (
    ConversationDeleted,
    ConversationUpdated,
    Cursor,
    Event,
    HistoryCleared,
    HistoryCompacted,
    HistoryExpanded,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    Reset,
    ResetReason,
)
from redis_history.history import (
    Compression,
    History,
    Plugin,
    ReduceOptions,
    Reduction,
    RetrieveTool,
    ToolResultMasking,
    compression,
    tool_result_masking,
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
from redis_history.operations import Appended, Compacted, Expanded, Snapshot
from redis_history.prompt import (
    Addressed,
    AddressedReason,
    AssembledPrompt,
    LeftOut,
    LeftOutReason,
    PromptOptions,
    PromptReport,
    assemble_messages,
    assemble_prompt,
)
from redis_history.requests.store_options import Embedder, VectorField
from redis_history.retry import RetryDetails, RetryPolicy
from redis_history.search.highlight import Highlight
from redis_history.search.hits import Reindexed, SearchHit
from redis_history.tokens import tiktoken_counter
from redis_history.tools import AsyncConversationSearchTool, ConversationSearchTool, conversation_search_tool

__all__ = [
    "Addressed",
    "AddressedReason",
    "Appended",
    "AssembledPrompt",
    "AsyncCapture",
    "AsyncCompressor",
    "AsyncConversationSearchTool",
    "AsyncHistoryStore",
    "AsyncNamespaceSubscription",
    "AsyncRedisHistory",
    "AsyncSubscription",
    "AsyncTurn",
    "AttachmentPart",
    "Capabilities",
    "Capture",
    "Compacted",
    "Compression",
    "CompressionProgress",
    "Compressor",
    "CompressorStats",
    "Conversation",
    "ConversationDeleted",
    "ConversationSearchTool",
    "ConversationUpdated",
    "Cursor",
    "Embedder",
    "Event",
    "Expanded",
    "Highlight",
    "History",
    "HistoryCleared",
    "HistoryCompacted",
    "HistoryExpanded",
    "HistoryRestored",
    "HistoryStore",
    "LeftOut",
    "LeftOutReason",
    "Message",
    "MessageUpdated",
    "MessagesAppended",
    "MessagesDeleted",
    "NamespaceSubscription",
    "Part",
    "Participant",
    "Plugin",
    "Position",
    "PromptOptions",
    "PromptReport",
    "ReasoningPart",
    "RedisHistory",
    "ReduceOptions",
    "Reduction",
    "Reindexed",
    "Reset",
    "ResetReason",
    "RetrieveTool",
    "RetryDetails",
    "RetryPolicy",
    "Role",
    "Scope",
    "SearchHit",
    "Snapshot",
    "Source",
    "Subscription",
    "Summarizer",
    "TextPart",
    "ToolResultMasking",
    "ToolResultPart",
    "ToolUsePart",
    "Turn",
    "UnknownPart",
    "VectorField",
    "__version__",
    "anthropic_summarizer",
    "assemble_messages",
    "assemble_prompt",
    "assistant",
    "capture",
    "compression",
    "conversation_search_tool",
    "extractive_summarizer",
    "openai_summarizer",
    "system",
    "text",
    "tiktoken_counter",
    "tool",
    "tool_result",
    "tool_result_masking",
    "tool_use",
    "user",
]
