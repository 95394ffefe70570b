"""LLM conversation history in Redis: atomic appends, gapless live subscriptions, search, compaction."""

# ruff: noqa: I001 -- the imports of a module stay together
# fmt: off

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis_history._async.capturing import AsyncCapture as AsyncCapture, AsyncTurn as AsyncTurn
    from redis_history._async.compressor import AsyncCompressor as AsyncCompressor
    from redis_history._async.replies import AsyncReply as AsyncReply
    from redis_history._async.store import AsyncHistoryStore as AsyncHistoryStore
    from redis_history._async.stored_history import AsyncRedisHistory as AsyncRedisHistory
    from redis_history._async.subscription import (
        AsyncNamespaceSubscription as AsyncNamespaceSubscription, AsyncSubscription as AsyncSubscription,
    )
    from redis_history._capture import capture as capture
    from redis_history._sync.capturing import Capture as Capture, Turn as Turn
    from redis_history._sync.compressor import Compressor as Compressor
    from redis_history._sync.replies import Reply as Reply
    from redis_history._sync.store import HistoryStore as HistoryStore
    from redis_history._sync.stored_history import RedisHistory as RedisHistory
    from redis_history._sync.subscription import (
        NamespaceSubscription as NamespaceSubscription, Subscription as Subscription,
    )
    from redis_history._version import __version__ as __version__
    from redis_history.capabilities import Capabilities as Capabilities
    from redis_history.compaction.extractive import extractive_summarizer as extractive_summarizer
    from redis_history.compaction.models import (
        anthropic_summarizer as anthropic_summarizer, openai_summarizer as openai_summarizer,
    )
    from redis_history.compaction.summaries import Summarizer as Summarizer
    from redis_history.compaction.worker import (
        CompressionProgress as CompressionProgress, CompressorStats as CompressorStats,
    )
    from redis_history.events import (
        ConversationDeleted as ConversationDeleted, ConversationUpdated as ConversationUpdated, Cursor as Cursor,
        Event as Event, HistoryCleared as HistoryCleared, HistoryCompacted as HistoryCompacted,
        HistoryExpanded as HistoryExpanded, HistoryRestored as HistoryRestored, MessagesAppended as MessagesAppended,
        MessagesDeleted as MessagesDeleted, MessageUpdated as MessageUpdated, ReplyEnded as ReplyEnded,
        ReplyGrew as ReplyGrew, Reset as Reset, ResetReason as ResetReason,
    )
    from redis_history.history import (
        History as History, Plugin as Plugin, ReduceOptions as ReduceOptions, Reduction as Reduction,
        RetrieveTool as RetrieveTool, ToolResultMasking as ToolResultMasking,
        tool_result_masking as tool_result_masking,
    )
    from redis_history.history.compression import Compression as Compression, compression as compression
    from redis_history.model import (
        AttachmentPart as AttachmentPart, Conversation as Conversation, Message as Message, Part as Part,
        Participant as Participant, Position as Position, ReasoningPart as ReasoningPart, Role as Role, Scope as Scope,
        Source as Source, Status as Status, TextPart as TextPart, ToolResultPart as ToolResultPart,
        ToolUsePart as ToolUsePart, UnknownPart as UnknownPart, assistant as assistant, system as system, text as text,
        tool as tool, tool_result as tool_result, tool_use as tool_use, user as user,
    )
    from redis_history.operations import (
        Appended as Appended, Compacted as Compacted, Expanded as Expanded, Preview as Preview, Snapshot as Snapshot,
    )
    from redis_history.prompt import (
        Addressed as Addressed, AddressedReason as AddressedReason, AssembledPrompt as AssembledPrompt,
        LeftOut as LeftOut, LeftOutReason as LeftOutReason, PromptOptions as PromptOptions,
        PromptReport as PromptReport, assemble_messages as assemble_messages, assemble_prompt as assemble_prompt,
    )
    from redis_history.requests.store_options import Embedder as Embedder, VectorField as VectorField
    from redis_history.retry import RetryDetails as RetryDetails, RetryPolicy as RetryPolicy
    from redis_history.search.hits import (
        Highlight as Highlight, Reindexed as Reindexed, SearchHit as SearchHit, SearchHits as SearchHits,
    )
    from redis_history.tokens import tiktoken_counter as tiktoken_counter
    from redis_history.tools import (
        AsyncConversationSearchTool as AsyncConversationSearchTool, ConversationSearchTool as ConversationSearchTool,
        conversation_search_tool as conversation_search_tool,
    )

    __all__: list[str]
else:  # a type checker that sees a __getattr__ believes in every name
    from importlib import import_module

    # Where the public names are. Each is imported at its first use, so that a program waits only for what it uses.
    _MODULES = {
        "_async.capturing": "AsyncCapture AsyncTurn",
        "_async.compressor": "AsyncCompressor",
        "_async.replies": "AsyncReply",
        "_async.store": "AsyncHistoryStore",
        "_async.stored_history": "AsyncRedisHistory",
        "_async.subscription": "AsyncNamespaceSubscription AsyncSubscription",
        "_capture": "capture",
        "_sync.capturing": "Capture Turn",
        "_sync.compressor": "Compressor",
        "_sync.replies": "Reply",
        "_sync.store": "HistoryStore",
        "_sync.stored_history": "RedisHistory",
        "_sync.subscription": "NamespaceSubscription Subscription",
        "_version": "__version__",
        "capabilities": "Capabilities",
        "compaction.extractive": "extractive_summarizer",
        "compaction.models": "anthropic_summarizer openai_summarizer",
        "compaction.summaries": "Summarizer",
        "compaction.worker": "CompressionProgress CompressorStats",
        "events": (
            "ConversationDeleted ConversationUpdated Cursor Event HistoryCleared HistoryCompacted "
            "HistoryExpanded HistoryRestored MessagesAppended MessagesDeleted MessageUpdated ReplyEnded "
            "ReplyGrew Reset ResetReason"
        ),
        "history": ("History Plugin ReduceOptions Reduction RetrieveTool ToolResultMasking tool_result_masking"),
        "history.compression": "Compression compression",
        "model": (
            "AttachmentPart Conversation Message Part Participant Position ReasoningPart Role Scope Source Status "
            "TextPart ToolResultPart ToolUsePart UnknownPart assistant system text tool tool_result tool_use "
            "user"
        ),
        "operations": "Appended Compacted Expanded Preview Snapshot",
        "prompt": (
            "Addressed AddressedReason AssembledPrompt LeftOut LeftOutReason PromptOptions PromptReport "
            "assemble_messages assemble_prompt"
        ),
        "requests.store_options": "Embedder VectorField",
        "retry": "RetryDetails RetryPolicy",
        "search.hits": "Highlight Reindexed SearchHit SearchHits",
        "tokens": "tiktoken_counter",
        "tools": "AsyncConversationSearchTool ConversationSearchTool conversation_search_tool",
    }
    _HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
    __all__ = sorted(_HOMES)

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
