"""Transcripts of other tools as messages of ours, streamed from files into a store; and a store as a file."""

from redis_history.importers._plan import Imported, OnProgress
from redis_history.importers.reader import FORMATS, read_transcripts
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
