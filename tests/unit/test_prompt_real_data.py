"""Prompts of rooms with many people."""

from __future__ import annotations

import re
from collections import defaultdict

import orjson
import pytest

from redis_history import Message, Participant, PromptOptions, user
from redis_history.prompt.addressing import Addressing
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
            addressing = Addressing(nick, nick, PromptOptions())
            begins = re.compile(re.escape(nick) + r"\s*[:,]\s", re.IGNORECASE)
            for message in messages:
                if begins.match(message.text):
                    asked += 1
                    assert addressing.why(message) is not None, (nick, message.text)
    assert asked >= 10
