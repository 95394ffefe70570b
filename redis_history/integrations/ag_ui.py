"""AG-UI: the answer of a run as events, for routes of your own. See `redis_history.web`."""

from redis_history.web.ag_ui import events, to_ag_ui

__all__ = ["events", "to_ag_ui"]
