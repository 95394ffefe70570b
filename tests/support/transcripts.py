"""Transcripts for tests: the bundled samples, and those in the folder $REDIS_HISTORY_DATA."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import IO

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
#: Real transcripts, which are not part of the project.
REAL = sorted(Path(folder).glob("*.json*")) if (folder := os.environ.get("REDIS_HISTORY_DATA")) else []
FILES = [*SAMPLES, *REAL]


def opened(path: Path) -> IO[bytes]:
    """The file, unpacked."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
