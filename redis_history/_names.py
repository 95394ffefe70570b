"""The public names. `redis_history` imports them at the first use of one; `X as X` exports a name to type checkers."""

# ruff: noqa: I001 -- the imports of a module stay together

from redis_history._async.capturing import (
    AsyncCapture as AsyncCapture,
    AsyncTurn as AsyncTurn,
)
from redis_history._async.compressor import AsyncCompressor as AsyncCompressor
from redis_history._async.namespace_subscription import AsyncNamespaceSubscription as AsyncNamespaceSubscription
from redis_history._async.store import AsyncHistoryStore as AsyncHistoryStore
from redis_history._async.stored_history import AsyncRedisHistory as AsyncRedisHistory
from redis_history._async.subscription import AsyncSubscription as AsyncSubscription
from redis_history._capture import capture as capture
from redis_history._sync.capturing import (
    Capture as Capture,
    Turn as Turn,
)
from redis_history._sync.compressor import Compressor as Compressor
from redis_history._sync.namespace_subscription import NamespaceSubscription as NamespaceSubscription
from redis_history._sync.store import HistoryStore as HistoryStore
from redis_history._sync.stored_history import RedisHistory as RedisHistory
from redis_history._sync.subscription import Subscription as Subscription
from redis_history._version import __version__ as __version__
from redis_history.capabilities import Capabilities as Capabilities
from redis_history.compaction.extractive import extractive_summarizer as extractive_summarizer
from redis_history.compaction.models import (
    anthropic_summarizer as anthropic_summarizer,
    openai_summarizer as openai_summarizer,
)
from redis_history.compaction.summaries import Summarizer as Summarizer
from redis_history.compaction.worker import (
    CompressionProgress as CompressionProgress,
    CompressorStats as CompressorStats,
)
from redis_history.events import (
    ConversationDeleted as ConversationDeleted,
    ConversationUpdated as ConversationUpdated,
    Cursor as Cursor,
    Event as Event,
    HistoryCleared as HistoryCleared,
    HistoryCompacted as HistoryCompacted,
    HistoryExpanded as HistoryExpanded,
    HistoryRestored as HistoryRestored,
    MessagesAppended as MessagesAppended,
    MessagesDeleted as MessagesDeleted,
    MessageUpdated as MessageUpdated,
    Reset as Reset,
    ResetReason as ResetReason,
)
from redis_history.history import (
    Compression as Compression,
    History as History,
    Plugin as Plugin,
    ReduceOptions as ReduceOptions,
    Reduction as Reduction,
    RetrieveTool as RetrieveTool,
    ToolResultMasking as ToolResultMasking,
    compression as compression,
    tool_result_masking as tool_result_masking,
)
from redis_history.model import (
    AttachmentPart as AttachmentPart,
    Conversation as Conversation,
    Message as Message,
    Part as Part,
    Participant as Participant,
    Position as Position,
    ReasoningPart as ReasoningPart,
    Role as Role,
    Scope as Scope,
    Source as Source,
    TextPart as TextPart,
    ToolResultPart as ToolResultPart,
    ToolUsePart as ToolUsePart,
    UnknownPart as UnknownPart,
    assistant as assistant,
    system as system,
    text as text,
    tool as tool,
    tool_result as tool_result,
    tool_use as tool_use,
    user as user,
)
from redis_history.operations import (
    Appended as Appended,
    Compacted as Compacted,
    Expanded as Expanded,
    Snapshot as Snapshot,
)
from redis_history.prompt import (
    Addressed as Addressed,
    AddressedReason as AddressedReason,
    AssembledPrompt as AssembledPrompt,
    LeftOut as LeftOut,
    LeftOutReason as LeftOutReason,
    PromptOptions as PromptOptions,
    PromptReport as PromptReport,
    assemble_messages as assemble_messages,
    assemble_prompt as assemble_prompt,
)
from redis_history.requests.store_options import (
    Embedder as Embedder,
    VectorField as VectorField,
)
from redis_history.retry import (
    RetryDetails as RetryDetails,
    RetryPolicy as RetryPolicy,
)
from redis_history.search.hits import Highlight as Highlight
from redis_history.search.hits import (
    Reindexed as Reindexed,
    SearchHit as SearchHit,
)
from redis_history.tokens import tiktoken_counter as tiktoken_counter
from redis_history.tools import (
    AsyncConversationSearchTool as AsyncConversationSearchTool,
    ConversationSearchTool as ConversationSearchTool,
    conversation_search_tool as conversation_search_tool,
)
