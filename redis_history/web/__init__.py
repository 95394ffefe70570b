"""The live view: routes for an application of Starlette or FastAPI. Needs `pip install 'redis_history[web]'`."""

from redis_history.integrations._extras import missing

try:
    import starlette as _starlette  # noqa: F401
except ImportError as error:
    raise missing("web", error) from error

from redis_history.web._view import Limits
from redis_history.web.access import Action, Authorize
from redis_history.web.routing import routes

__all__ = ["Action", "Authorize", "Limits", "routes"]
