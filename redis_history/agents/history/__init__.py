"""`History`, the conversation of one process, with its plugins and selectors. No I/O."""

from redis_history.agents.history._limits import ReduceOptions, Reduction
from redis_history.agents.history.compression import Compression, compression
from redis_history.agents.history.history import History, HistoryOptions, Plugin
from redis_history.agents.history.masking import RetrieveTool, ToolResultMasking, tool_result_masking

__all__ = [
    "Compression",
    "History",
    "HistoryOptions",
    "Plugin",
    "ReduceOptions",
    "Reduction",
    "RetrieveTool",
    "ToolResultMasking",
    "compression",
    "tool_result_masking",
]
