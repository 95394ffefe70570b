"""Whether anything draws from the generator of the module `random`, which is the program's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def untouched() -> Iterator[None]:
    """Use it inside a test function, because pytest-randomly reseeds the generator between phases."""
    before = random.getstate()
    yield
    assert random.getstate() == before, "something drew from the program's generator"
