"""Helpers for tests of recorded agents."""

from __future__ import annotations

from redis_history import Message, Participant

BOT = Participant("agent", "bot", "Bot")
ANN = Participant("user", "ann", "Ann")


def roles_and_texts(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


EXPECTED = [("user", "hi"), ("assistant", "HI")]


async def upper(message: str) -> str:
    return message.upper()
