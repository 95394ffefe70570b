"""Checks of options."""

from __future__ import annotations

import math

from redis_history.errors import ConfigurationError

__all__ = ["check_count", "check_seconds", "check_text"]


def check_count(value: object, name: str, least: int = 0) -> None:
    """Raises ConfigurationError unless it is a whole number from `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} is a number from {least}, not {value!r}")


def check_seconds(value: object, name: str, least: float = 0.001) -> None:
    """Raises ConfigurationError unless it is a finite number of seconds from `least`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < least:
        raise ConfigurationError(f"{name} is a number of seconds from {least:g}, not {value!r}")


def check_text(value: object, name: str) -> None:
    """Raises ConfigurationError unless it is text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name} is a text, not {value!r}")
