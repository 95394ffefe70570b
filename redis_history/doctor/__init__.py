"""Diagnoses a server (`examine`) and this machine (`examine_here`), and proposes fixes."""

from redis_history.doctor.examination import examine
from redis_history.doctor.finding import Finding, State
from redis_history.doctor.here import examine_here
from redis_history.doctor.trial import try_out

__all__ = ["Finding", "State", "examine", "examine_here", "try_out"]
