"""Transcripts of other tools as messages of ours, streamed from files."""

from redis_history.importers.reader import FORMATS, read_transcripts
from redis_history.importers.transcript import ImportProblem, OnError, Transcript

__all__ = ["FORMATS", "ImportProblem", "OnError", "Transcript", "read_transcripts"]
