"""The live view, and the endpoints of a chat, as ASGI applications. Needs `pip install 'redis_history[web]'`."""

from redis_history.values._validation import missing

try:
    import starlette as _starlette  # noqa: F401
except ImportError as error:
    raise missing("web", error) from error

from redis_history.web._places import ChatLimits
from redis_history.web.access import Action, Authorize, SignedIn, allow_all
from redis_history.web.chat import ChatEndpoints
from redis_history.web.routing import Limits, LiveView

__all__ = ["Action", "Authorize", "ChatEndpoints", "ChatLimits", "Limits", "LiveView", "SignedIn", "allow_all"]
