"""Import conversations into a store, from files or from keys of agent frameworks, and export a store to a file."""

from redis_history.integrations.importers.exporting import Exported, async_export_messages, export_messages
from redis_history.integrations.importers.frameworks import FRAMEWORKS, FrameworkSource
from redis_history.integrations.importers.importing import Imported, OnProgress, async_import_messages, import_messages
from redis_history.integrations.importers.reader import FORMATS, read_transcripts
from redis_history.integrations.importers.source import ImportLimits
from redis_history.integrations.importers.transcript import ImportProblem, OnError, Transcript, Turn, build

__all__ = [
    "FORMATS",
    "FRAMEWORKS",
    "Exported",
    "FrameworkSource",
    "ImportLimits",
    "ImportProblem",
    "Imported",
    "OnError",
    "OnProgress",
    "Transcript",
    "Turn",
    "async_export_messages",
    "async_import_messages",
    "build",
    "export_messages",
    "import_messages",
    "read_transcripts",
]
