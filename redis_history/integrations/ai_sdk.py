"""AI SDK (Vercel): the answer of a run as a UI message stream, for routes of your own. See `redis_history.web`."""

from redis_history.web.ai_sdk import HEADERS, sse, ui_message_stream

__all__ = ["HEADERS", "sse", "ui_message_stream"]
