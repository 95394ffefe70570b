"""Prompts of rooms with many people."""

from __future__ import annotations

import re
from collections import defaultdict

import orjson
import pytest

from redis_history import Message, Participant, assemble_messages, user
from redis_history.prompt.assembly import Addressing
from tests.support.transcripts import FILES, opened


@pytest.fixture(
    scope="module", params=[path for path in FILES if path.name.startswith("irc")], ids=lambda path: path.name
)
def rooms(request: pytest.FixtureRequest) -> dict[str, list[Message]]:
    found: dict[str, list[Message]] = defaultdict(list)
    with opened(request.param) as lines:
        for line in lines:
            row = orjson.loads(line)
            if row["kind"] == "message":
                who = Participant("user", row["speaker"], row["speaker"])
                found[row["file"]].append(
                    user(row["text"], id=str(row["n"]), participant=who, scope="channel", timestamp=row["n"])
                )
    return dict(found)


def test_everybody_who_is_addressed_at_the_beginning_of_a_line_is_found(rooms: dict[str, list[Message]]) -> None:
    asked = 0
    for messages in rooms.values():
        nicks = {message.participant.id for message in messages if message.participant is not None}
        for nick in nicks:
            addressing = Addressing(nick, nick, ())
            begins = re.compile(re.escape(nick) + r"\s*[:,]\s", re.IGNORECASE)
            for message in messages:
                if begins.match(message.text):
                    asked += 1
                    assert addressing.why(message) is not None, (nick, message.text)
    assert asked >= 10


def test_a_prompt_for_the_busiest_of_each_room(rooms: dict[str, list[Message]]) -> None:
    """Whoever spoke most is the agent: all it said and all that names it, within the budget, in order."""
    for file, messages in rooms.items():
        spoken: dict[str, int] = defaultdict(int)
        for message in messages:
            assert message.participant is not None
            spoken[message.participant.id] += 1
        nick = max(spoken, key=lambda one: spoken[one])
        agent = Participant("agent", nick, nick)
        talk = [
            user(one.text, id=one.id, participant=agent, scope="channel", timestamp=one.timestamp)
            if one.participant is not None and one.participant.id == nick
            else one
            for one in messages
        ]
        prompt = assemble_messages(talk, nick, nick, {"max_turns_to_load": 2000})
        assert 0 < prompt.report.tokens <= 3000, file
        numbers = [int(message.id) for message in prompt.messages]
        assert numbers == sorted(numbers)
        roles = {message.role for message in prompt.messages}
        assert roles == {"user", "assistant"}, file
        for message in prompt.messages:
            if message.role == "user":
                assert message.participant is not None
                assert message.text.startswith(f"{message.participant.id}: ")
