"""Vectors beside words: what an embedder is, and how its vectors are stored. Pure."""

from __future__ import annotations

import math
import struct
from typing import Any

from redis_history.errors import InvalidInputError


def pack(vector: Any, dimension: int) -> bytes:
    """A vector as the server takes it. Raises InvalidInputError unless it is so many finite numbers."""
    try:
        values = [float(value) for value in vector]
        packed = struct.pack(f"<{len(values)}f", *values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"the embedder gave no vector of 32-bit floats but {str(vector)[:80]}") from error
    if len(values) != dimension:
        raise InvalidInputError(f"the embedder gave a vector of {len(values)} numbers, not of {dimension}")
    if not all(map(math.isfinite, values)):
        raise InvalidInputError("the embedder gave a vector with a number that is not finite")
    return packed


def pack_all(vectors: Any, count: int, dimension: int) -> list[bytes]:
    """The vectors of so many texts. Raises InvalidInputError for another number of them, or as `pack`."""
    packed = [pack(vector, dimension) for vector in vectors]
    if len(packed) != count:
        raise InvalidInputError(f"the embedder gave {len(packed)} vectors for {count} texts")
    return packed
