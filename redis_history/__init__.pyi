# The public names, and where they are defined. __init__.py reads this file.
# ruff: noqa: I001 -- one block for each module, where isort wants one for each name

from redis_history.agents._async.compressor import AsyncCompressor as AsyncCompressor
from redis_history.agents._async.turn_worker import AsyncWorker as AsyncWorker
from redis_history.store._async.store import AsyncHistoryStore as AsyncHistoryStore
from redis_history.agents._async.stored_history import AsyncRedisHistory as AsyncRedisHistory
from redis_history.agents.capturing.capture import capture as capture
from redis_history.agents._sync.compressor import Compressor as Compressor
from redis_history.agents._sync.turn_worker import Worker as Worker
from redis_history.store._sync.store import HistoryStore as HistoryStore
from redis_history.agents._sync.stored_history import RedisHistory as RedisHistory
from redis_history._version import __version__ as __version__
from redis_history.store.capabilities import Capabilities as Capabilities
from redis_history.agents.compaction.extractive import extractive_summarizer as extractive_summarizer
from redis_history.agents.compaction.models import (
    anthropic_summarizer as anthropic_summarizer,
    openai_summarizer as openai_summarizer,
)
from redis_history.values.events import (
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
    ReplyEnded as ReplyEnded,
    ReplyGrew as ReplyGrew,
    Reset as Reset,
    RunChanged as RunChanged,
    TurnChanged as TurnChanged,
)
from redis_history.agents.history import (
    History as History,
    Plugin as Plugin,
    tool_result_masking as tool_result_masking,
)
from redis_history.agents.history.compression import compression as compression
from redis_history.values import (
    AttachmentPart as AttachmentPart,
    Conversation as Conversation,
    Message as Message,
    Participant as Participant,
    Position as Position,
    ReasoningPart as ReasoningPart,
    Source as Source,
    TextPart as TextPart,
    ToolResultPart as ToolResultPart,
    ToolUsePart as ToolUsePart,
    UnknownPart as UnknownPart,
    Usage as Usage,
    assistant as assistant,
    reasoning as reasoning,
    system as system,
    text as text,
    tool as tool,
    tool_result as tool_result,
    tool_use as tool_use,
    user as user,
)
from redis_history.agents.prompt import (
    PromptOptions as PromptOptions,
    assemble_messages as assemble_messages,
    assemble_prompt as assemble_prompt,
)
from redis_history.store.retry import RetryPolicy as RetryPolicy
from redis_history.store.search.hits import SearchHit as SearchHit
from redis_history.agents.tools import conversation_search_tool as conversation_search_tool
from redis_history.values.turns import Turn as Turn

__all__: list[str]
