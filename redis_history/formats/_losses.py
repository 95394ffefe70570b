"""Reports of content that a provider's format cannot represent."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

_log = logging.getLogger("redis_history.formats")
_ALL = range(sys.maxsize)


class Loss(msgspec.Struct, frozen=True):
    """Content of the message `message_id` that the target format cannot represent.

    `part` is its index in `message.parts`, or None for the message as a whole. `reason` says what was lost and why.
    """

    message_id: str
    part: int | None
    reason: str


OnLoss = Callable[[Loss], None]


class Losses:
    """Calls `on_loss` for each loss of a conversion. Without `on_loss`, logs one warning for all at the end."""

    def __init__(self, form: str, on_loss: OnLoss | None) -> None:
        self._form = form
        self._on_loss = on_loss
        self._counts: Counter[str] = Counter()
        #: The places of the parts in their message, if only some of its parts are converted.
        self.places: Sequence[int] = _ALL

    def add(self, message_id: str, part: int | None, reason: str | None) -> None:
        """Report a loss. A `reason` of None means that nothing was lost."""
        if reason is None:
            return
        if self._on_loss is not None:
            self._on_loss(Loss(message_id, None if part is None else self.places[part], reason))
        else:
            self._counts[reason] += 1

    def __enter__(self) -> Losses:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._counts and error is None:
            reasons = "; ".join(f"{reason} ({count} times)" for reason, count in self._counts.items())
            _log.warning("lost in the conversion to %s: %s", self._form, reasons)
