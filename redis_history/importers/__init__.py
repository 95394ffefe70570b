"""Import transcripts of other tools from files into a store, and export a store to a file."""

from redis_history.importers._plan import Imported, OnProgress
from redis_history.importers.reader import FORMATS, read_transcripts
from redis_history.importers.source import ImportLimits
from redis_history.importers.transcript import ImportProblem, OnError, Transcript
from redis_history.importers.transfer import (
    Exported,
    async_export_messages,
    async_import_messages,
    export_messages,
    import_messages,
)

__all__ = [
    "FORMATS",
    "Exported",
    "ImportLimits",
    "ImportProblem",
    "Imported",
    "OnError",
    "OnProgress",
    "Transcript",
    "async_export_messages",
    "async_import_messages",
    "export_messages",
    "import_messages",
    "read_transcripts",
]
