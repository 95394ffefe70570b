"""How to connect, taken over from one pool for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["connection_settings"]

#: What a pool or a cluster client adds to the settings of its connections for itself.
_ITS_OWN: Final = ("maint_", "oss_cluster_", "orig_", "himport_", "event_dispatcher", "response_callbacks", "cache")


def connection_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pool's connections, without where they lead."""
    return {
        name: value
        for name, value in settings.items()
        if name not in ("host", "port") and not name.startswith(_ITS_OWN)
    }
