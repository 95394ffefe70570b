"""Which messages belong together: a tool call and its result. Pure, over the marks of `Entry.tools`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["oldest_with_results"]

_MARK = 5  # bytes: "u" or "r", and four of a digest of the id


def oldest_with_results(tools: Sequence[bytes], excess: int) -> list[int]:
    """The indices of the `excess` oldest messages, and of later ones that answer their tool calls.

    A result belongs to the nearest earlier call of its id. _trim.lua does the same on the server.
    """
    open_calls: set[bytes] = set()
    gone: list[int] = []
    for index, marks in enumerate(tools):
        if index >= excess and not open_calls:
            break
        own = list(_marks(marks))
        if index < excess or any(kind == b"r" and call in open_calls for kind, call in own):
            gone.append(index)
            for kind, call in own:
                if kind == b"u":
                    open_calls.add(call)
                else:
                    open_calls.discard(call)
        else:  # a later call of the same id: what follows answers that one
            open_calls.difference_update(call for kind, call in own if kind == b"u")
    return gone


def _marks(marks: bytes) -> Iterator[tuple[bytes, bytes]]:
    for at in range(0, len(marks), _MARK):
        yield marks[at : at + 1], marks[at + 1 : at + _MARK]
