"""Summarizers for compressor processes that a test starts."""

import random
import sys
import time
from collections.abc import Sequence

from redis_history import Message, extractive_summarizer

_extract = extractive_summarizer(max_tokens=200)


def held(messages: Sequence[Message], previous: str | None) -> str:
    """Says that it was called, and waits for a line on standard input."""
    print("held", flush=True)
    assert sys.stdin.readline()
    return f"{previous or 'Nothing'} + {len(messages)} messages"


def slow(messages: Sequence[Message], previous: str | None) -> str:
    """Takes a while, so that a process that is killed is most likely at work."""
    time.sleep(random.uniform(0.02, 0.15))
    return _extract(messages, previous)
