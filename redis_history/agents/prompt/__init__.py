"""Assemble the prompt of an agent from a conversation."""

from redis_history.agents.prompt.assemble import assemble_messages, assemble_prompt
from redis_history.agents.prompt.options import (
    Addressed,
    AddressedReason,
    AssembledPrompt,
    LeftOut,
    LeftOutReason,
    PromptOptions,
    PromptReport,
)

__all__ = [
    "Addressed",
    "AddressedReason",
    "AssembledPrompt",
    "LeftOut",
    "LeftOutReason",
    "PromptOptions",
    "PromptReport",
    "assemble_messages",
    "assemble_prompt",
]
