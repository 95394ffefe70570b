"""The asynchronous side. scripts/unasync generates the synchronous side from it.

Histories in a store, captures and compressors.
"""
