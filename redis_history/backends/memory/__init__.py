"""Conversations in this process's memory."""

from redis_history.backends.memory.backend import AsyncMemoryBackend, MemoryBackend

__all__ = ["AsyncMemoryBackend", "MemoryBackend"]
