"""Groups the messages of a table by their conversations, in bounded memory: the rows of many may be interleaved."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Any, Final, Self

import msgspec

#: Bytes of rows that are kept in memory; further ones go to a temporary file.
_IN_MEMORY: Final = 16 << 20


class Rows:
    """The rows of a file, as JSON, and where those of each conversation begin: 8 bytes a row."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 -- closed by __exit__
        self._places: dict[str | None, array[int]] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def keys(self) -> list[str | None]:
        """The conversations in the order of their first rows. None: of rows that name no conversation."""
        return list(self._places)

    def add(self, key: str | None, line: int, row: Any) -> None:
        # Not msgspec, which cannot write integers beyond 64 bits.
        text = f"{line} {json.dumps(row)}\n".encode()
        self._file.write(text)
        self._places.setdefault(key, array("Q")).append(self._end)
        self._end += len(text)

    def of(self, key: str | None) -> Iterator[tuple[int, Any, int]]:
        """The rows of a conversation in order: the line, the row and its bytes. Call it after the last `add`."""
        for place in self._places[key]:
            self._file.seek(place)
            line, _, text = self._file.readline().partition(b" ")
            yield int(line), msgspec.json.decode(text), len(text)
