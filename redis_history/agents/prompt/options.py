"""The options of a prompt, the prompt, and the report on the messages that were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from redis_history.errors import ConfigurationError
from redis_history.values import Message, Scope, _validation
from redis_history.values.times import Instant, to_microseconds

_MAX_TURNS = 100_000
_MAX_MINUTES = 50_000_000  # 95 years, so that the window begins at a valid time


class PromptOptions(Struct, frozen=True, kw_only=True):
    """How to assemble a prompt.

    - `scope`: only include messages of this scope.
    - `token_budget`: maximum tokens of the whole prompt, from 1; None for no limit.
    - `addressed_only_mode`: leave out messages that are not for this agent. "strict" only keeps its own messages and
      those that mention it in the metadata.
    - `rolling_summary_threshold`: if there are more messages, summarize the older ones; None for never.
    - `time_window_minutes`: leave out older messages.
    - `max_turns_to_load`: number of messages to read from the store, 1 to 100,000.
    - `agent_aliases`: other names and ids of the agent.
    - `system_prompt`: the first message of the prompt; it is not stored.
    - `token_counter`: returns the tokens of a text; None estimates a quarter of the characters. Images and files count
      as `MEDIA_TOKENS`.
    - `also_addressed`: a function that says which other messages count as addressed.
    - `now`: the end of the time window: a datetime, an ISO 8601 string or seconds since 1970; None: this moment.

    Raises ConfigurationError for an invalid option, and InvalidTimestampError for `now`.
    """

    scope: Scope | None = None
    token_budget: int | None = 3000
    addressed_only_mode: bool | Literal["strict"] = True
    rolling_summary_threshold: int | None = 40
    time_window_minutes: float | None = None
    max_turns_to_load: int = 100
    agent_aliases: tuple[str, ...] = ()
    system_prompt: str | None = None
    token_counter: Callable[[str], int] | None = None
    also_addressed: Callable[[Message], bool] | None = None
    now: Instant | None = None

    def __post_init__(self) -> None:
        _validation.check_choice(self.scope, "scope", (*get_args(Scope), None))
        _validation.check_integer(self.token_budget, "token_budget", 1, optional=True)
        _validation.check_integer(self.rolling_summary_threshold, "rolling_summary_threshold", 1, optional=True)
        _validation.check_integer(self.max_turns_to_load, "max_turns_to_load", 1, _MAX_TURNS)
        _validation.check_choice(self.addressed_only_mode, "addressed_only_mode", (True, False, "strict"))
        _validation.check_number(
            self.time_window_minutes, "time_window_minutes", 0, _MAX_MINUTES, above=True, optional=True
        )
        force_setattr(self, "agent_aliases", _validation.check_names(self.agent_aliases, "agent_aliases"))
        for alias in self.agent_aliases:
            _validation.check_text(alias, "an item of agent_aliases")
        _validation.check_name(self.system_prompt, "system_prompt", ConfigurationError)
        for name in ("token_counter", "also_addressed"):
            _validation.check_function(getattr(self, name), name)
        if self.now is not None:
            with _validation.named("now"):
                to_microseconds(self.now)


def prompt_options(options: PromptOptions | Mapping[str, Any] | None) -> PromptOptions:
    """PromptOptions from PromptOptions, a mapping or None (the defaults). Raises ConfigurationError."""
    if isinstance(options, PromptOptions):
        return options
    try:
        return PromptOptions(**({} if options is None else options))
    except TypeError as error:  # no mapping, or an unknown option
        known = ", ".join(PromptOptions.__struct_fields__)
        raise ConfigurationError(f"options must be PromptOptions or a dict of {known}: {error}") from error


AddressedReason = Literal["own", "mention", "summary", "system", "dm", "two_party", "named", "also_addressed", "pinned"]

LeftOutReason = Literal[
    "scope", "streaming", "time_window", "not_addressed", "summarized", "budget", "pair", "other_agent_tools", "empty"
]


class Addressed(Struct, frozen=True, gc=False):
    """A message that addressed-only mode kept: `message_id`, and the `reason`: "own" (by the agent, or a result of its
    call), "mention" (in `mentions`), "system", "dm", "two_party" (only one other participant talks), "named" (a name
    in the text), "also_addressed" (by that function), "pinned" or "summary"."""

    message_id: str
    reason: AddressedReason


class LeftOut(Struct, frozen=True, gc=False):
    """A message that was left out of the prompt: `message_id` and `reason` (docs/how-to/prompts.md). `partial`: only
    some of its parts were left out."""

    message_id: str
    reason: LeftOutReason
    partial: bool = False


class PromptReport(Struct, frozen=True):
    """A report on a prompt. Tokens are counted with `token_counter`.

    `loaded`: number of messages read. `left_out`: messages left out, in the order of the conversation. `tokens`: size
    of the whole prompt, of at most `token_budget`, including `system_tokens` for system prompts and `summary_tokens`
    for summaries. `addressed`: the messages that addressed-only mode kept, and why, in the order of the conversation;
    later steps may still leave them out. Empty without that mode.
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
    """The `messages` for this agent's model, and the `report`. Pass the messages to `formats.to_…`.

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
