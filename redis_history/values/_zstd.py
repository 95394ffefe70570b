"""zstd, from the standard library (Python 3.14) or the package `zstandard` (the extra `zstd`)."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from redis_history.errors import CorruptDataError, MissingExtraError

_LEVEL = 3


@cache  # a failed import is slow
def _library() -> Any:
    for name in ("compression.zstd", "zstandard"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise MissingExtraError(
        "messages compressed with zstd need a package that is not installed: pip install 'redis_history[zstd]'"
    )


def check_zstd() -> None:
    """Raises MissingExtraError."""
    _library()


def compress(data: bytes) -> bytes:
    """One frame, which says how long `data` is. Raises MissingExtraError."""
    frame: bytes = _library().compress(data, _LEVEL)
    return frame


def decompress(frame: bytes, most: int) -> bytes:
    """Raises CorruptDataError for anything but one frame that says that it holds at most `most` bytes, and does, and
    MissingExtraError.

    Any client that can write into the namespace chooses the frame, and a few bytes of it can stand for gigabytes. So
    the declared size bounds the output, in addition to a check of the output afterwards.
    """
    library = _library()
    try:
        if library.__name__ == "zstandard":
            size = library.frame_content_size(frame)
            _check_size(size, most)
            # Allocates the size that the frame says, and fails if its blocks hold more.
            data: bytes = library.ZstdDecompressor().decompress(frame, allow_extra_data=False)
            is_whole = True
        else:
            size = library.get_frame_info(frame).decompressed_size
            _check_size(size, most)
            reader = library.ZstdDecompressor()
            data = reader.decompress(frame, max_length=size + 1)  # one more shows that there is more
            is_whole = reader.eof and not reader.unused_data
    except (library.ZstdError, ValueError) as error:
        raise CorruptDataError(f"a compressed message cannot be read: {error}") from error
    if not is_whole or len(data) != size:
        raise CorruptDataError("a compressed message is not one whole frame")
    return data


def _check_size(size: int | None, most: int) -> None:
    # zstandard returns an empty frame without a look at what follows it. No message is empty.
    if size is None or not 0 < size <= most:
        raise CorruptDataError(f"a compressed message has {size} bytes, the cap is {most:,}")
