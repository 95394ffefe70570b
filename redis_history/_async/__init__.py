"""The asynchronous side; the synchronous one is generated from it by scripts/unasync."""
