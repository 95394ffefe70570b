"""Validated options of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from redis_history._time import Instant, to_microseconds
from redis_history._validation import (
    check_choice,
    check_function,
    check_integer,
    check_name,
    check_names,
    check_number,
    check_text,
    refuse,
)
from redis_history.errors import ConfigurationError, InvalidInputError
from redis_history.model import Message, Scope

__all__ = ["PromptOptions", "check_agent", "prompt_options"]

_MAX_TURNS = 100_000
_MAX_MINUTES = 50_000_000  # 95 years, so that the window begins at a valid time


class PromptOptions(Struct, frozen=True, kw_only=True):
    """How to assemble a prompt.

    - `scope`: only include messages of this scope.
    - `token_budget`: maximum tokens of the whole prompt; None for no limit.
    - `addressed_only_mode`: leave out messages that are not for this agent. "strict" only keeps its own messages and
      those that mention it in the metadata.
    - `rolling_summary_threshold`: if there are more messages, summarise the older ones; None for never.
    - `time_window_minutes`: leave out older messages.
    - `max_turns_to_load`: number of messages to read from the store.
    - `agent_aliases`: other names and ids of the agent.
    - `system_prompt`: the first message of the prompt; it is not stored.
    - `token_counter`: returns the tokens of a text; None estimates a quarter of the characters.
    - `also_addressed`: a function that says which other messages count as addressed.
    - `now`: the end of the time window.

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
        check_choice(self.scope, "scope", (*get_args(Scope), None))
        check_integer(self.token_budget, "token_budget", 1, optional=True)
        check_integer(self.rolling_summary_threshold, "rolling_summary_threshold", 1, optional=True)
        check_integer(self.max_turns_to_load, "max_turns_to_load", 1, _MAX_TURNS)
        check_choice(self.addressed_only_mode, "addressed_only_mode", (True, False, "strict"))
        check_number(
            self.time_window_minutes,
            "time_window_minutes",
            0,
            _MAX_MINUTES,
            above=True,
            kind="a number of minutes",
            optional=True,
        )
        force_setattr(self, "agent_aliases", check_names(self.agent_aliases, "agent_aliases"))
        for alias in self.agent_aliases:
            check_text(alias, "an item of agent_aliases")
        check_name(self.system_prompt, "system_prompt", ConfigurationError)
        for name in ("token_counter", "also_addressed"):
            check_function(getattr(self, name), name)
        if self.now is not None:
            to_microseconds(self.now)


def prompt_options(options: PromptOptions | Mapping[str, Any] | None) -> PromptOptions:
    """PromptOptions from PromptOptions, a mapping or None (the defaults). Raises ConfigurationError."""
    if options is None:
        return PromptOptions()
    if isinstance(options, PromptOptions):
        return options
    if not isinstance(options, Mapping):
        refuse(options, "options", "None, PromptOptions or a dict")
    known = PromptOptions.__struct_fields__
    if unknown := [str(name)[:40] for name in options if name not in known]:
        raise ConfigurationError(f"unknown option {', '.join(unknown[:5])}; known options: {', '.join(known)}")
    return PromptOptions(**options)


def check_agent(agent_id: str, agent_name: str | None) -> None:
    """Raises InvalidInputError unless these can name an agent; None: it has no name beside its id."""
    check_text(agent_id, "agent_id", error=InvalidInputError)
    check_text(agent_name, "agent_name", optional=True, error=InvalidInputError)
