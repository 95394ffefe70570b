"""What a provider's form could not carry: told, never dropped in silence."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import msgspec

__all__ = ["Loss", "Losses", "OnLoss"]

_log = logging.getLogger("redis_history.formats")


class Loss(msgspec.Struct, frozen=True):
    """Something of a message that the target form has no place for. `part` is its index in `message.parts`, or None
    when the message as a whole is meant; `reason` says what and why."""

    message_id: str
    part: int | None
    reason: str


OnLoss = Callable[[Loss], None]


class Losses:
    """Collects the losses of one conversion: each goes to `on_loss`; without one, a single warning is logged."""

    def __init__(self, form: str, on_loss: OnLoss | None) -> None:
        self._form = form
        self._on_loss = on_loss
        self._counts: Counter[str] = Counter()
        self.count = 0

    def add(self, message_id: str, part: int | None, reason: str) -> None:
        self.count += 1
        if self._on_loss is not None:
            self._on_loss(Loss(message_id, part, reason))
        else:
            self._counts[reason] += 1

    def close(self) -> None:
        if self._counts:
            told = "; ".join(f"{reason} ({count} times)" for reason, count in self._counts.items())
            _log.warning("not carried over to %s: %s", self._form, told)
