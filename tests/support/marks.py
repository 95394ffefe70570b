"""Parameters of which the default run takes some."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def some(cases: Iterable[Any], each: int) -> list[Any]:
    """The cases as parameters, of which only each n-th runs without `--full`. A mapping has their ids."""
    named = cases.items() if isinstance(cases, Mapping) else ((None, case) for case in cases)
    return [
        pytest.param(
            *(case if type(case) is tuple else (case,)), id=name, marks=[pytest.mark.full] if at % each else []
        )
        for at, (name, case) in enumerate(named)
    ]
