"""What to compact, and when. Pure: nothing here talks to a store or a model."""

from redis_history.compaction.policy import Plan, Policy

__all__ = ["Plan", "Policy"]
