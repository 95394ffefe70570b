"""Transcripts of every format: through storage, and to every provider and back."""

from itertools import pairwise

import msgspec
import pytest

from redis_history.formats import to_anthropic, to_openai_chat
from redis_history.importers import read_transcripts
from tests.support.sdk import validate
from tests.support.transcripts import FILES
from tests.unit.format_cases import FORMATS, through_storage, turns

#: How many messages of a file the default run converts to all providers and back.
_MESSAGES = 400


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_conversation_comes_through_storage_and_back(path):
    problems = []
    conversations = set()
    for transcript in read_transcripts(path, on_error=problems.append):
        assert transcript.messages
        assert transcript.conversation_id not in conversations
        conversations.add(transcript.conversation_id)
        assert len({message.id for message in transcript.messages}) == len(transcript.messages)
        times = [message.timestamp for message in transcript.messages]
        assert all(times) or not any(times)
        assert all(earlier <= later for earlier, later in pairwise(times) if earlier)
        stored = through_storage(transcript.messages)
        bare = [msgspec.structs.replace(m, timestamp=None, sequence=None) for m in (*stored, *transcript.messages)]
        assert bare[: len(stored)] == bare[len(stored) :]
        if transcript.form is not None:
            back = (to_openai_chat if transcript.form == "openai_chat" else to_anthropic)(stored, shape="original")
            assert back == list(transcript.originals)
    assert problems == []
    assert conversations


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_importing_twice_gives_the_same(path):
    assert list(read_transcripts(path)) == list(read_transcripts(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_conversation_goes_to_every_provider_and_back(path, full):
    transcripts = list(read_transcripts(path))
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
