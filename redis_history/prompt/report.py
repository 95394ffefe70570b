"""A prompt, and what was left out of it."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from msgspec import Struct

from redis_history.model import Message

__all__ = ["AssembledPrompt", "LeftOut", "LeftOutReason", "PromptReport"]

LeftOutReason = Literal[
    "scope", "time_window", "not_addressed", "summarised", "budget", "pair", "other_agent_tools", "empty"
]


class LeftOut(Struct, frozen=True, gc=False):
    """A message that is not in the prompt, and why. `partial`: the rest of it is."""

    message_id: str
    reason: LeftOutReason
    partial: bool = False


class PromptReport(Struct, frozen=True):
    """How a prompt came to be. Tokens are as counted by the `token_counter`.

    `loaded`: messages read. `left_out`: in the order of the conversation. `tokens`: of the whole prompt, of which
    `system_tokens` and `summary_tokens` are of system prompts and of summaries.
    """

    loaded: int
    left_out: tuple[LeftOut, ...]
    tokens: int
    token_budget: int | None
    system_tokens: int
    summary_tokens: int

    @property
    def over_budget(self) -> bool:
        """Whether what is always inside (system prompt, summary, the newest turn) is more than the budget."""
        return self.token_budget is not None and self.tokens > self.token_budget

    @property
    def counts(self) -> dict[LeftOutReason, int]:
        """How many messages were left out, as a whole or in part, for each reason that there was."""
        return dict(Counter(one.reason for one in self.left_out))

    def ids(self, reason: LeftOutReason) -> list[str]:
        """The messages left out, as a whole or in part, for this reason."""
        return [one.message_id for one in self.left_out if one.reason == reason]


class AssembledPrompt(Struct, frozen=True):
    """Messages as this agent's model is to read them, and the report. The messages go into `formats.to_*` as they are.

    They keep id, time and participant of those they were made of.
    """

    messages: tuple[Message, ...]
    report: PromptReport

    def to_dicts(self) -> list[dict[str, str]]:
        """`{"role", "content"}` of all messages that have text of their own: no tool calls, no results."""
        return [
            {"role": message.role, "content": message.text}
            for message in self.messages
            if message.role != "tool" and not message.tool_results and message.text
        ]
