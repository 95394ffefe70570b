"""The cost of models' tokens, by prices that the application gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from redis_history.errors import ConfigurationError


def checked_prices(prices: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The prices of a million tokens by model: of input, output, and input from a cache, by default that of other
    input. Raises ConfigurationError."""
    if not isinstance(prices, Mapping):
        raise ConfigurationError(f'prices must be a mapping such as {{"m-1": (2.5, 10.0)}}, not {prices!r}')
    return {model: _checked(model, price) for model, price in prices.items()}


def _checked(model: Any, price: Any) -> list[float]:
    numbers = list(price) if isinstance(price, Sequence) and not isinstance(price, str | bytes) else []
    if not isinstance(model, str) or not 2 <= len(numbers) <= 3 or not all(map(_is_price, numbers)):
        wanted = "two or three numbers: of a million tokens of input, of output, and of cached input"
        raise ConfigurationError(f"the price of {str(model)[:80]!r} must be {wanted}, not {price!r}")
    return [float(one) for one in (*numbers, numbers[0])[:3]]


def _is_price(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def price_of(text: str) -> tuple[str, list[float]]:
    """The model and the price in an option such as m-1=2.5/10 or m-1=2.5/10/0.25. Raises ConfigurationError."""
    model, _, price = text.rpartition("=")
    try:
        numbers = [float(one) for one in price.split("/")]
    except ValueError:
        numbers = []
    if not model:
        raise ConfigurationError(f"a price must be MODEL=INPUT/OUTPUT, such as m-1=2.5/10, not {text[:80]!r}")
    return model, _checked(model, numbers)
