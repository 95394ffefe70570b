"""A private server for one user, from pip packages: no root, no container, no port.

    with EmbeddedServer("~/notes") as server:
        client = redis.Redis.from_url(server.url)

Its data is on disk, in one folder. All processes that open the folder share one server. The server ends
soon after its last user. See docs/how-to/embedded.md.
"""

from __future__ import annotations

from ._binaries import Candidate, ServerBinary, candidates, find_server
from ._install import install
from ._instance import EmbeddedServer, EmbeddedStatus, keep, let_go, status

__all__ = [
    "Candidate",
    "EmbeddedServer",
    "EmbeddedStatus",
    "ServerBinary",
    "candidates",
    "find_server",
    "install",
    "keep",
    "let_go",
    "status",
]
