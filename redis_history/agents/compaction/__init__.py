"""Decide what to compact, and when. Pure: no access to a store or a model."""

from redis_history.agents.compaction.policy import Plan, Policy

__all__ = ["Plan", "Policy"]
