"""The message model: immutable values, no I/O."""

from redis_history.values.helpers import assistant, reasoning, system, text, tool, tool_result, tool_use, user
from redis_history.values.message import (
    SCHEMA_VERSION,
    Conversation,
    Message,
    Metadata,
    Participant,
    Position,
    Role,
    Scope,
    Source,
    Status,
)
from redis_history.values.parts import (
    AttachmentPart,
    Modality,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.values.usage import Usage

__all__ = [
    "SCHEMA_VERSION",
    "AttachmentPart",
    "Conversation",
    "Message",
    "Metadata",
    "Modality",
    "Part",
    "Participant",
    "Position",
    "ReasoningPart",
    "Role",
    "Scope",
    "Source",
    "Status",
    "TextPart",
    "ToolResultPart",
    "ToolUsePart",
    "UnknownPart",
    "Usage",
    "assistant",
    "reasoning",
    "system",
    "text",
    "tool",
    "tool_result",
    "tool_use",
    "user",
]
