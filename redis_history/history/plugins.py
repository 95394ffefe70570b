"""What a plugin of a history can do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from redis_history.errors import InvalidInputError
from redis_history.history._reduction import ReduceOptions
from redis_history.model import Message

if TYPE_CHECKING:
    from redis_history.history.history import History

__all__ = ["Plugin", "check_plugin", "hook"]

_HOOKS = ("on_registered", "after_add", "reduce", "transform")


class Plugin:
    """Base of plugins: override the hooks you need. Any object with one of these methods will do as well.

    Hooks of several plugins run in the order of their registration. None is called with a lock held.
    """

    def on_registered(self, history: History) -> None:
        """Called once, inside `history.use`. An error reaches its caller, and the plugin is not registered."""

    def after_add(self, history: History) -> Awaitable[object] | None:
        """Called after each local addition, after the handlers of its events. Plain, or a coroutine function.

        Not called for what was loaded, restored or written by others, nor for what a plugin adds while `reduce` runs.
        Errors go to `plugin_error`, never to who added. A coroutine runs as a task where an event loop runs, and
        otherwise to its end before the addition returns.
        """
        return None

    async def reduce(self, entries: Sequence[Message], options: ReduceOptions) -> Sequence[Message]:
        """What `history.reduce` shall leave of `entries`, which are as stored. Plain, or a coroutine function.

        Entries that are returned as they were keep their identity; others should have an id of their own. What is
        added meanwhile stays, behind. An error reaches the caller of `reduce`, and the history stays as it was.
        """
        return entries

    def transform(self, entries: list[Message]) -> Sequence[Message]:
        """The entries as readers shall see them. Called at every `get_entries`; must be quick and change no state.

        An error reaches the caller: to show what a failing plugin would have hidden is worse.
        """
        return entries


def hook(plugin: object, name: str) -> Callable[..., Any] | None:
    """A hook of a plugin, or None if it has none of its own."""
    if getattr(type(plugin), name, None) is getattr(Plugin, name):
        return None
    found = getattr(plugin, name, None)
    return found if callable(found) else None


def check_plugin(plugin: object) -> None:
    """Raises InvalidInputError for what has none of the hooks."""
    if isinstance(plugin, type) or not (
        isinstance(plugin, Plugin) or any(hook(plugin, name) is not None for name in _HOOKS)
    ):
        raise InvalidInputError(f"{plugin!r} is no plugin: it has none of {', '.join(_HOOKS)}")
