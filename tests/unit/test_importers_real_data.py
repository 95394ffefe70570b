"""Transcripts of all kinds: to every provider and back."""

import pytest

from tests.support.sdk import validate
from tests.support.transcripts import FILES, read
from tests.unit.format_cases import FORMATS, through_storage, turns

#: How many messages of a file the default run converts to all providers and back.
_MESSAGES = 400


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_conversation_goes_to_every_provider_and_back(path, full):
    transcripts = read(path)
    if not full:  # some of each kind
        count = sum(len(transcript.messages) for transcript in transcripts)
        transcripts = transcripts[:: max(1, count // _MESSAGES)]
    for transcript in transcripts:
        messages = list(transcript.messages)
        for format_ in FORMATS:
            losses = []
            items = format_.to(messages, on_loss=losses.append)
            validate(format_.name, items)
            back = format_.there_and_back(messages, on_loss=lambda loss: None)
            lost = {(loss.message_id, loss.part) for loss in losses}
            if not lost:
                assert turns(back) == turns(messages)
            again = format_.from_(items)
            assert format_.to(through_storage(again), on_loss=lambda loss: None) == items
