"""The conversation of one process: `History`, its plugins and its selectors. No I/O."""

from redis_history.history._reduction import ReduceOptions, Reduction
from redis_history.history.history import History, HistoryOptions
from redis_history.history.masking import RetrieveTool, ToolResultMasking, tool_result_masking
from redis_history.history.plugins import Plugin

__all__ = [
    "History",
    "HistoryOptions",
    "Plugin",
    "ReduceOptions",
    "Reduction",
    "RetrieveTool",
    "ToolResultMasking",
    "tool_result_masking",
]
