"""Summaries of the tool calls in transcripts of every format."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from redis_history import extractive_summarizer
from redis_history.compaction.summaries import summary_message, usable
from redis_history.importers import read_transcripts
from redis_history.tokens import message_tokens
from tests.support.transcripts import FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_tool_calls_alone_can_be_summarised(path: Path) -> None:
    """Ranges as agents leave them that say nothing; without a model."""
    summarize = extractive_summarizer()
    for transcript in read_transcripts(path, on_error=lambda problem: None):
        calls = [message for message in transcript.messages if message.tool_uses and message.role != "system"]
        alone = [msgspec.structs.replace(message, parts=message.tool_uses) for message in calls]
        if sum(map(message_tokens, alone)) > 50:
            text = summarize(alone, None)
            assert usable(text, alone)
            assert " called " in text
            rolled = summarize(alone, text)
            assert usable(rolled, [*alone, summary_message(text)])
            assert " called " in rolled
