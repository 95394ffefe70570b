"""Diagnoses a server (`examine`) and this machine (`examine_here`), and proposes fixes."""

from redis_history.doctor.checks import Finding, State
from redis_history.doctor.examination import examine, try_out
from redis_history.doctor.here import examine_here

__all__ = ["Finding", "State", "examine", "examine_here", "try_out"]
