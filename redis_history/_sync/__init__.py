# Generated from ../_async by scripts/unasync: do not edit.
"""The asynchronous side; the synchronous one is generated from it by scripts/unasync."""
