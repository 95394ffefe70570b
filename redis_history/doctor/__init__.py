"""What works on a server and on this machine, and what to do about the rest: `examine`, and `examine_here`."""

from redis_history.doctor.examination import examine
from redis_history.doctor.finding import Finding, State
from redis_history.doctor.here import examine_here
from redis_history.doctor.trial import try_out

__all__ = ["Finding", "State", "examine", "examine_here", "try_out"]
