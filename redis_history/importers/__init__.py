"""Import transcripts of other tools into a store, from files or from Redis, and export a store to a file."""

from redis_history.importers.frameworks import FRAMEWORKS, FrameworkSource
from redis_history.importers.reader import FORMATS, Importer, read_transcripts
from redis_history.importers.source import ImportLimits, Source
from redis_history.importers.transcript import ImportProblem, OnError, Transcript, Turn, build
from redis_history.importers.transfer import (
    Exported,
    Imported,
    OnProgress,
    async_export_messages,
    async_import_messages,
    export_messages,
    import_messages,
)

__all__ = [
    "FORMATS",
    "FRAMEWORKS",
    "Exported",
    "FrameworkSource",
    "ImportLimits",
    "ImportProblem",
    "Imported",
    "Importer",
    "OnError",
    "OnProgress",
    "Source",
    "Transcript",
    "Turn",
    "async_export_messages",
    "async_import_messages",
    "build",
    "export_messages",
    "import_messages",
    "read_transcripts",
]
