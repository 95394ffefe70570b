# The public names, and where they are defined. __init__.py reads this file.

from redis_history._async.compressor import AsyncCompressor as AsyncCompressor
from redis_history._async.store import AsyncHistoryStore as AsyncHistoryStore
from redis_history._async.stored_history import AsyncRedisHistory as AsyncRedisHistory
from redis_history._capture import capture as capture
from redis_history._sync.compressor import Compressor as Compressor
from redis_history._sync.store import HistoryStore as HistoryStore
from redis_history._sync.stored_history import RedisHistory as RedisHistory
from redis_history._version import __version__ as __version__
from redis_history.capabilities import Capabilities as Capabilities
from redis_history.compaction.extractive import extractive_summarizer as extractive_summarizer
from redis_history.compaction.models import (
    anthropic_summarizer as anthropic_summarizer,
)
from redis_history.compaction.models import (
    openai_summarizer as openai_summarizer,
)
from redis_history.events import (
    ConversationDeleted as ConversationDeleted,
)
from redis_history.events import (
    ConversationUpdated as ConversationUpdated,
)
from redis_history.events import (
    Cursor as Cursor,
)
from redis_history.events import (
    Event as Event,
)
from redis_history.events import (
    HistoryCleared as HistoryCleared,
)
from redis_history.events import (
    HistoryCompacted as HistoryCompacted,
)
from redis_history.events import (
    HistoryExpanded as HistoryExpanded,
)
from redis_history.events import (
    HistoryRestored as HistoryRestored,
)
from redis_history.events import (
    MessagesAppended as MessagesAppended,
)
from redis_history.events import (
    MessagesDeleted as MessagesDeleted,
)
from redis_history.events import (
    MessageUpdated as MessageUpdated,
)
from redis_history.events import (
    ReplyEnded as ReplyEnded,
)
from redis_history.events import (
    ReplyGrew as ReplyGrew,
)
from redis_history.events import (
    Reset as Reset,
)
from redis_history.events import (
    RunChanged as RunChanged,
)
from redis_history.history import (
    History as History,
)
from redis_history.history import (
    Plugin as Plugin,
)
from redis_history.history import (
    tool_result_masking as tool_result_masking,
)
from redis_history.history.compression import compression as compression
from redis_history.model import (
    AttachmentPart as AttachmentPart,
)
from redis_history.model import (
    Conversation as Conversation,
)
from redis_history.model import (
    Message as Message,
)
from redis_history.model import (
    Participant as Participant,
)
from redis_history.model import (
    Position as Position,
)
from redis_history.model import (
    ReasoningPart as ReasoningPart,
)
from redis_history.model import (
    Source as Source,
)
from redis_history.model import (
    TextPart as TextPart,
)
from redis_history.model import (
    ToolResultPart as ToolResultPart,
)
from redis_history.model import (
    ToolUsePart as ToolUsePart,
)
from redis_history.model import (
    UnknownPart as UnknownPart,
)
from redis_history.model import (
    assistant as assistant,
)
from redis_history.model import (
    reasoning as reasoning,
)
from redis_history.model import (
    system as system,
)
from redis_history.model import (
    text as text,
)
from redis_history.model import (
    tool as tool,
)
from redis_history.model import (
    tool_result as tool_result,
)
from redis_history.model import (
    tool_use as tool_use,
)
from redis_history.model import (
    user as user,
)
from redis_history.prompt import (
    PromptOptions as PromptOptions,
)
from redis_history.prompt import (
    assemble_messages as assemble_messages,
)
from redis_history.prompt import (
    assemble_prompt as assemble_prompt,
)
from redis_history.retry import RetryPolicy as RetryPolicy
from redis_history.search.hits import SearchHit as SearchHit
from redis_history.tools import conversation_search_tool as conversation_search_tool

__all__: list[str]
