"""A prompt, and the report on the messages that were left out."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from msgspec import Struct

from redis_history.model import Message

__all__ = ["Addressed", "AddressedReason", "AssembledPrompt", "LeftOut", "LeftOutReason", "PromptReport"]

AddressedReason = Literal["own", "mention", "summary", "system", "dm", "two_party", "named", "also_addressed"]

LeftOutReason = Literal[
    "scope", "time_window", "not_addressed", "summarised", "budget", "pair", "other_agent_tools", "empty"
]


class Addressed(Struct, frozen=True, gc=False):
    """A message that addressed-only mode kept, and why."""

    message_id: str
    reason: AddressedReason


class LeftOut(Struct, frozen=True, gc=False):
    """A message that was left out of the prompt, and why. `partial`: only some of its parts were left out."""

    message_id: str
    reason: LeftOutReason
    partial: bool = False


class PromptReport(Struct, frozen=True):
    """A report on a prompt. Tokens are counted with `token_counter`.

    `loaded`: number of messages read. `left_out`: messages left out, in the order of the conversation. `tokens`: size
    of the whole prompt, including `system_tokens` for system prompts and `summary_tokens` for summaries. `addressed`:
    the messages that addressed-only mode kept, and why, in the order of the conversation; later steps may still leave
    them out. Empty without that mode.
    """

    loaded: int
    left_out: tuple[LeftOut, ...]
    tokens: int
    token_budget: int | None
    system_tokens: int
    summary_tokens: int
    addressed: tuple[Addressed, ...] = ()

    @property
    def over_budget(self) -> bool:
        """Whether the required content (system prompt, summary, newest turn) exceeds the budget."""
        return self.token_budget is not None and self.tokens > self.token_budget

    @property
    def counts(self) -> dict[LeftOutReason, int]:
        """The number of messages left out, completely or partially, for each reason that occurred."""
        return dict(Counter(one.reason for one in self.left_out))

    def ids(self, reason: LeftOutReason) -> list[str]:
        """The ids of messages left out, completely or partially, for this reason."""
        return [one.message_id for one in self.left_out if one.reason == reason]


class AssembledPrompt(Struct, frozen=True):
    """The messages for this agent's model, and the report. Pass the messages to `formats.to_*`.

    They keep the ids, timestamps and participants of the stored messages.
    """

    messages: tuple[Message, ...]
    report: PromptReport

    def to_dicts(self) -> list[dict[str, str]]:
        """`{"role", "content"}` of all messages with text. Tool calls and results are left out."""
        return [
            {"role": message.role, "content": message.text}
            for message in self.messages
            if message.role != "tool" and not message.tool_results and message.text
        ]
