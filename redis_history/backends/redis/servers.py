"""Which servers can be used, from what INFO says."""

from __future__ import annotations

from typing import Final, NamedTuple

from redis_history.errors import UnsupportedServerError

__all__ = ["Server", "read_info"]

_MINIMUM: Final = {"redis": (6, 2), "valkey": (7, 2)}


class Server(NamedTuple):
    """`product` is "redis" or "valkey" (as is everything compatible that does not say otherwise)."""

    product: str
    version: tuple[int, ...]


def read_info(reply: object) -> Server:
    """The server that gave this INFO reply. Raises UnsupportedServerError if it is too old, or no Redis at all."""
    if isinstance(reply, bytes):
        reply = reply.decode(errors="replace")
    if not isinstance(reply, str):
        raise UnsupportedServerError(f"the answer to INFO is no text but {type(reply).__name__}: this is no Redis")
    text = reply
    info = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    product = "valkey" if "valkey_version" in info else "redis"
    said = info.get(f"{product}_version", "")
    try:
        version = tuple(int(number) for number in said.split(".")[:3])
    except ValueError as error:
        raise UnsupportedServerError(f"the server does not say which version it is: {said[:40]!r}") from error
    if version < _MINIMUM[product]:
        needed = ".".join(map(str, _MINIMUM[product]))
        raise UnsupportedServerError(f"this is {product} {said}; redis_history needs {product} {needed} or newer")
    return Server(product, version)
