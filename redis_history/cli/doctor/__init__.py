"""Diagnoses a server (`examine`) and this machine (`examine_installation`), and proposes fixes."""

from redis_history.cli.doctor.checks import Finding, State
from redis_history.cli.doctor.examination import GET_SERVER, access_line, examine, examine_installation

__all__ = ["GET_SERVER", "Finding", "State", "access_line", "examine", "examine_installation"]
