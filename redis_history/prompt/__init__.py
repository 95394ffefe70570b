"""From a history to a prompt."""

from redis_history.prompt.assemble import (
    AsyncReads,
    AsyncSummarizer,
    Reads,
    Summarizer,
    assemble_messages,
    assemble_prompt,
)
from redis_history.prompt.options import PromptOptions
from redis_history.prompt.report import AssembledPrompt, LeftOut, LeftOutReason, PromptReport

__all__ = [
    "AssembledPrompt",
    "AsyncReads",
    "AsyncSummarizer",
    "LeftOut",
    "LeftOutReason",
    "PromptOptions",
    "PromptReport",
    "Reads",
    "Summarizer",
    "assemble_messages",
    "assemble_prompt",
]
