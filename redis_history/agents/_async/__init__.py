"""The asynchronous side. scripts/unasync generates the synchronous side from it."""
