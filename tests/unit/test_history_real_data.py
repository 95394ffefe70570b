"""Transcripts of every format in a history."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from redis_history import History, extractive_summarizer, tool_result_masking
from redis_history.compaction.summaries import summary_message, usable
from redis_history.importers import read_transcripts
from redis_history.tokens import message_tokens
from tests.support.transcripts import FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_results_stay_with_their_calls(path: Path) -> None:
    for transcript in read_transcripts(path, on_error=lambda problem: None):
        history = History(transcript.messages)
        assert History.from_json(history.to_json()).entries == history.entries
        before = _without_a_call(history)
        history.use(masking := tool_result_masking(keep_recent_results=1))
        shown = [part for entry in history.get_entries() for part in entry.tool_results]
        stored = [part for entry in history.entries for part in entry.tool_results]
        occurrences: dict[str, int] = {}
        for part, original in zip(shown, stored, strict=True):
            name = part.tool_use_id
            occurrences[name] = occurrences.get(name, 0) + 1
            assert history.get_tool_result(name, occurrences[name]) == original.content
            if str(part.content).startswith("[MASKED") and isinstance(original.content, str):
                assert masking.retrieve_tool(name, occurrences[name]) == original.content
        for size in (40, 20, 10, 5):
            history.reduce(max_entries=size)
            assert _without_a_call(history) <= before


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


def _without_a_call(history: History) -> set[str]:
    """Messages with a result whose call is not there."""
    calls: set[str] = set()
    found = set()
    for entry in history:
        if not {part.tool_use_id for part in entry.tool_results} <= calls | {part.id for part in entry.tool_uses}:
            found.add(entry.id)
        calls |= {part.id for part in entry.tool_uses}
    return found
