"""The types of arguments and results, for annotations, and helpers that few programs need."""

from redis_history.agents._async.capturing import AsyncCapture, AsyncCapturedTurn
from redis_history.agents._sync.capturing import Capture, CapturedTurn
from redis_history.agents.compaction.summaries import Summarizer
from redis_history.agents.compaction.worker import CompressionProgress, CompressorStats
from redis_history.agents.history import ReduceOptions, Reduction, RetrieveTool, ToolResultMasking
from redis_history.agents.history.compression import Compression
from redis_history.agents.prompt import (
    Addressed,
    AddressedReason,
    AssembledPrompt,
    LeftOut,
    LeftOutReason,
    PromptReport,
)
from redis_history.agents.tools import AsyncConversationSearchTool, ConversationSearchTool
from redis_history.store._async.replies import AsyncReply
from redis_history.store._async.runs import AsyncRun
from redis_history.store._async.subscription import AsyncNamespaceSubscription, AsyncSubscription
from redis_history.store._sync.replies import Reply
from redis_history.store._sync.runs import Run
from redis_history.store._sync.subscription import NamespaceSubscription, Subscription
from redis_history.store.operations import Appended, AuditEntry, Compacted, Expanded, Preview, Snapshot, Steps
from redis_history.store.operations.options import Embedder
from redis_history.store.operations.tasks import Executes
from redis_history.store.retry import RetryDetails
from redis_history.store.search.hits import Highlight, Reindexed, SearchHits
from redis_history.values import Part, Role, Scope, Status
from redis_history.values.approvals import Approval
from redis_history.values.events import ResetReason
from redis_history.values.message import ForkedFrom
from redis_history.values.runs import RunInfo, RunStatus, RunWaiter
from redis_history.values.sizes import MEDIA_TOKENS, tiktoken_counter
from redis_history.values.usage import Budget, Period, UsageGroup

__all__ = [
    "MEDIA_TOKENS",
    "Addressed",
    "AddressedReason",
    "Appended",
    "Approval",
    "AssembledPrompt",
    "AsyncCapture",
    "AsyncCapturedTurn",
    "AsyncConversationSearchTool",
    "AsyncNamespaceSubscription",
    "AsyncReply",
    "AsyncRun",
    "AsyncSubscription",
    "AuditEntry",
    "Budget",
    "Capture",
    "CapturedTurn",
    "Compacted",
    "Compression",
    "CompressionProgress",
    "CompressorStats",
    "ConversationSearchTool",
    "Embedder",
    "Executes",
    "Expanded",
    "ForkedFrom",
    "Highlight",
    "LeftOut",
    "LeftOutReason",
    "NamespaceSubscription",
    "Part",
    "Period",
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
    "Steps",
    "Subscription",
    "Summarizer",
    "ToolResultMasking",
    "UsageGroup",
    "tiktoken_counter",
]
