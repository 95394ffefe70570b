"""The types of arguments and results, for annotations, and helpers that few programs need."""

from redis_history._async.capturing import AsyncCapture, AsyncTurn
from redis_history._async.replies import AsyncReply
from redis_history._async.runs import AsyncRun
from redis_history._async.subscription import AsyncNamespaceSubscription, AsyncSubscription
from redis_history._sync.capturing import Capture, Turn
from redis_history._sync.replies import Reply
from redis_history._sync.runs import Run
from redis_history._sync.subscription import NamespaceSubscription, Subscription
from redis_history.compaction.summaries import Summarizer
from redis_history.compaction.worker import CompressionProgress, CompressorStats
from redis_history.events import ResetReason
from redis_history.history import ReduceOptions, Reduction, RetrieveTool, ToolResultMasking
from redis_history.history.compression import Compression
from redis_history.model import Part, Role, Scope, Status
from redis_history.model.message import ForkedFrom
from redis_history.model.runs import RunInfo, RunStatus, RunWaiter
from redis_history.operations import Appended, Compacted, Expanded, Preview, Snapshot
from redis_history.operations.options import Embedder
from redis_history.prompt import Addressed, AddressedReason, AssembledPrompt, LeftOut, LeftOutReason, PromptReport
from redis_history.retry import RetryDetails
from redis_history.search.hits import Highlight, Reindexed, SearchHits
from redis_history.tokens import MEDIA_TOKENS, tiktoken_counter
from redis_history.tools import AsyncConversationSearchTool, ConversationSearchTool

__all__ = [
    "MEDIA_TOKENS",
    "Addressed",
    "AddressedReason",
    "Appended",
    "AssembledPrompt",
    "AsyncCapture",
    "AsyncConversationSearchTool",
    "AsyncNamespaceSubscription",
    "AsyncReply",
    "AsyncRun",
    "AsyncSubscription",
    "AsyncTurn",
    "Capture",
    "Compacted",
    "Compression",
    "CompressionProgress",
    "CompressorStats",
    "ConversationSearchTool",
    "Embedder",
    "Expanded",
    "ForkedFrom",
    "Highlight",
    "LeftOut",
    "LeftOutReason",
    "NamespaceSubscription",
    "Part",
    "Preview",
    "PromptReport",
    "ReduceOptions",
    "Reduction",
    "Reindexed",
    "Reply",
    "ResetReason",
    "RetrieveTool",
    "RetryDetails",
    "Role",
    "Run",
    "RunInfo",
    "RunStatus",
    "RunWaiter",
    "Scope",
    "SearchHits",
    "Snapshot",
    "Status",
    "Subscription",
    "Summarizer",
    "ToolResultMasking",
    "Turn",
    "tiktoken_counter",
]
