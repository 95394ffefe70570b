"""Reads replies (RESP2 and RESP3) from bytes. Returns the same values as redis-py without decoding.

redis-py's parsers call several functions, or coroutines, for each string of a reply: half the time of a long read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from redis.exceptions import ConnectionError, InvalidResponse

#: `take` returns it while the reply is incomplete.
NEED_MORE: Final = object()

#: Larger values are protocol errors. 512 MB is the server's default limit for a string.
_LONGEST: Final = 512 * 1024 * 1024
_DEEPEST: Final = 128
_LONGEST_LINE: Final = 64 * 1024

_STRING: Final = ord("$")
_ERROR, _VERBATIM = _LIKE_STRINGS = b"!="
_MAP: Final = ord("%")
_AGGREGATES: Final = b"*~%>|"
_WITH_KEYS: Final = b"%|"
_BETWEEN: Final = b">|"  # push messages and attributes are skipped


class ReplyReader:
    """Add bytes with `feed`, in pieces of any size; take complete replies with `take`."""

    def __init__(self, parse_error: Callable[[str], Exception]) -> None:
        """`parse_error` makes the exception for the text of an error."""
        self._parse_error = parse_error
        self._buffer = b""
        self._at = 0
        self._pieces: list[bytes] = []  # after the buffer
        self._missing = 0  # bytes to wait for before parsing again
        self._outer: list[tuple[int, list[Any], int]] = []  # type, values and missing values of open aggregates

    @property
    def empty(self) -> bool:
        """Whether all bytes were taken."""
        return self._at == len(self._buffer) and not self._pieces and not self._outer

    def feed(self, data: bytes) -> None:
        self._pieces.append(data)
        self._missing -= len(data)

    def take(self) -> Any:
        """The next reply, or NEED_MORE. Errors are values, except ConnectionErrors, which are raised.

        Raises InvalidResponse, after which this reader must not be used.
        """
        if self._missing > 0:
            return NEED_MORE
        if self._pieces:
            buffer = self._buffer = b"".join([self._buffer[self._at :], *self._pieces])
            self._pieces.clear()
            self._at = 0
        else:
            buffer = self._buffer
        at, size, outer = self._at, len(buffer), self._outer
        kind, values, left = outer.pop() if outer else (0, [], 1)
        while True:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                if size - at > _LONGEST_LINE:
                    raise _invalid(buffer[at:])
                missing = 1
                break
            first = buffer[at]
            if first == _STRING or first in _LIKE_STRINGS:
                length = _length(buffer, at, end)
                if length < 0:
                    value: Any = None
                    at = end + 2
                else:
                    stop = end + 2 + length
                    if stop + 2 > size:
                        missing = stop + 2 - size
                        break
                    if buffer[stop] != 13:
                        raise _invalid(buffer[at:end])
                    value = buffer[end + 2 : stop]
                    at = stop + 2
                    if first == _VERBATIM:
                        value = value[4:]
                    elif first == _ERROR:
                        value = self._error(value)
            elif first in _AGGREGATES:
                count = _length(buffer, at, end)
                at = end + 2
                if count > 0:
                    if len(outer) == _DEEPEST:
                        raise InvalidResponse("Protocol Error: too many levels")
                    outer.append((kind, values, left))
                    kind, values, left = first, [], count * 2 if first in _WITH_KEYS else count
                    continue
                if first in _BETWEEN:
                    continue
                value = None if count < 0 else {} if first == _MAP else []
            else:
                value = self._simple(first, buffer[at + 1 : end])
                at = end + 2
            values.append(value)
            left -= 1
            while not left and outer:  # end of an aggregate
                done, value = kind, values
                kind, values, left = outer.pop()
                if done in _BETWEEN:
                    continue
                values.append(_map(value) if done == _MAP else value)
                left -= 1
            if not left:
                self._buffer, self._at = (b"", 0) if at == size else (buffer, at)  # idle connections hold no replies
                return values[0]
        self._at = at
        self._missing = missing
        if outer:
            outer.append((kind, values, left))
        return NEED_MORE

    def _simple(self, first: int, line: bytes) -> Any:
        try:
            match chr(first):
                case "+":
                    return line
                case ":" | "(":
                    return int(line)
                case "-":
                    return self._error(line)
                case "_":
                    return None
                case ",":
                    return float(line)
                case "#":
                    return line == b"t"
        except ValueError:
            pass
        raise _invalid(bytes([first]) + line)

    def _error(self, text: bytes) -> Exception:
        error = self._parse_error(text.decode("utf-8", errors="replace"))
        if isinstance(error, ConnectionError):
            raise error
        return error


def as_map(reply: Any) -> Mapping[Any, Any]:
    """A map of RESP3, or names and values in turn of RESP2."""
    return reply if isinstance(reply, Mapping) else dict(zip(reply[::2], reply[1::2], strict=True))


def _length(buffer: bytes, at: int, end: int) -> int:
    try:
        length = int(buffer[at + 1 : end])
    except ValueError:
        length = -2
    if not -1 <= length <= _LONGEST:
        raise _invalid(buffer[at:end])
    return length


def _map(values: list[Any]) -> dict[Any, Any]:
    try:
        return dict(zip(values[::2], values[1::2], strict=True))
    except TypeError as error:
        raise InvalidResponse("Protocol Error: the key of a map must be a simple value") from error


def _invalid(line: bytes) -> InvalidResponse:
    return InvalidResponse(f"Protocol Error: {line[:100]!r}")
