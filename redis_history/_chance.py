"""Randomness of our own: the generator of the module `random` is the program's, which may have seeded it.

A program that seeds it alike in every process must not have them all try again in step; and one that relies on what
its seed gives (a simulation, a property test) must not miss numbers because a thread here drew them.
"""

from __future__ import annotations

import os
import random
from typing import Final

__all__ = ["CHANCE"]

# Seeded by the operating system, and again in a forked child, so that processes never share a stream.
CHANCE: Final = random.Random()  # noqa: S311 -- ids and waits must differ, they are no secrets
os.register_at_fork(after_in_child=CHANCE.seed)
