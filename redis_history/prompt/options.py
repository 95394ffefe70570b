"""What a prompt is made by, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from redis_history._time import Instant, to_microseconds
from redis_history.errors import ConfigurationError, InvalidInputError
from redis_history.model import Message, Scope

__all__ = ["PromptOptions", "check_agent", "prompt_options"]

_MAX_TURNS = 100_000
_MAX_MINUTES = 50_000_000  # 95 years: the window must begin at a time that can be told


class PromptOptions(Struct, frozen=True, kw_only=True):
    """How a prompt is assembled. Raises ConfigurationError for what makes no sense, InvalidTimestampError for `now`.

    `scope`: only messages said there. `token_budget`: of all that is in the prompt; None: no limit.
    `addressed_only_mode`: leave out what is not for this agent. `rolling_summary_threshold`: of more messages than
    these, the older ones are summarised; None: never. `time_window_minutes`: leave out what is older.
    `max_turns_to_load`: messages read from the store. `agent_aliases`: other names and ids of the agent.
    `system_prompt`: stands first, and is stored nowhere. `token_counter`: tokens of a text; None: a quarter of the
    characters. `also_addressed`: which further messages count as addressed. `now`: the end of the time window.
    """

    scope: Scope | None = None
    token_budget: int | None = 3000
    addressed_only_mode: bool = True
    rolling_summary_threshold: int | None = 40
    time_window_minutes: float | None = None
    max_turns_to_load: int = 100
    agent_aliases: tuple[str, ...] = ()
    system_prompt: str | None = None
    token_counter: Callable[[str], int] | None = None
    also_addressed: Callable[[Message], bool] | None = None
    now: Instant | None = None

    def __post_init__(self) -> None:
        if self.scope is not None and self.scope not in get_args(Scope):
            raise ConfigurationError(f"scope is None or one of {', '.join(get_args(Scope))}, not {self.scope!r}")
        _check_count("token_budget", self.token_budget, 1, optional=True)
        _check_count("rolling_summary_threshold", self.rolling_summary_threshold, 1, optional=True)
        _check_count("max_turns_to_load", self.max_turns_to_load, 1, most=_MAX_TURNS)
        if not isinstance(self.addressed_only_mode, bool):
            raise ConfigurationError(f"addressed_only_mode is True or False, not {self.addressed_only_mode!r}")
        minutes = self.time_window_minutes
        if minutes is not None and (
            not isinstance(minutes, int | float)
            or isinstance(minutes, bool)
            or not math.isfinite(minutes)
            or not 0 < minutes < _MAX_MINUTES
        ):
            raise ConfigurationError(f"time_window_minutes is None or a positive number of minutes, not {minutes!r}")
        force_setattr(self, "agent_aliases", _names(self.agent_aliases))
        if self.system_prompt is not None and not isinstance(self.system_prompt, str):
            raise ConfigurationError(f"system_prompt is None or text, not {type(self.system_prompt).__name__}")
        for name in ("token_counter", "also_addressed"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigurationError(f"{name} is None or a function, not {getattr(self, name)!r}")
        if self.now is not None:
            to_microseconds(self.now)


def prompt_options(options: PromptOptions | Mapping[str, Any] | None) -> PromptOptions:
    """Options given as such, or as a mapping; None: the defaults. Raises ConfigurationError."""
    if options is None:
        return PromptOptions()
    if isinstance(options, PromptOptions):
        return options
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"the options are PromptOptions or a mapping, not {type(options).__name__}")
    known = PromptOptions.__struct_fields__
    if unknown := [str(name)[:40] for name in options if name not in known]:
        raise ConfigurationError(f"there is no option {', '.join(unknown[:5])}; there are {', '.join(known)}")
    return PromptOptions(**options)


def check_agent(agent_id: str, agent_name: str | None) -> None:
    """Raises InvalidInputError unless these can name an agent; None: it has no name beside its id."""
    if not isinstance(agent_id, str) or not agent_id.strip():
        raise InvalidInputError(f"agent_id is the id of a participant, not {agent_id!r}")
    if agent_name is not None and (not isinstance(agent_name, str) or not agent_name.strip()):
        raise InvalidInputError(f"agent_name is None or a name, not {agent_name!r}")


def _names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigurationError(f"agent_aliases is a list of names, such as [{names!r}]")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"agent_aliases is a list of names, and {name!r} is none")
    return found


def _check_count(name: str, value: Any, least: int, *, most: int | None = None, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most:,}"
        raise ConfigurationError(f"{name} is a number {bounds}{' or None' if optional else ''}, not {value!r}")
