# Generated from ../_async by scripts/unasync: do not edit.
"""The synchronous side, which scripts/unasync generates from the asynchronous side.

Histories in a store, captures and compressors.
"""
