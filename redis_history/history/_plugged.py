"""Plugins and handlers of a history."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any, Literal, Self

from redis_history._validation import check_function
from redis_history.history._listeners import Listeners, run_aside
from redis_history.history.plugins import Plugin, check_plugin, hook

__all__ = ["Plugged", "PluginErrorHandler", "Unsubscribe"]

_logger = logging.getLogger("redis_history")

Unsubscribe = Callable[[], None]
PluginErrorHandler = Callable[[Exception, Plugin, str], object]


class Plugged:
    """The part of a history that tells, and lets plugins take part."""

    _EVENTS: tuple[str, ...] = ("entry", "clear", "restore", "change", "plugin_error")

    def __init__(self, on_plugin_error: PluginErrorHandler | None) -> None:
        check_function(on_plugin_error, "on_plugin_error")
        self._on_plugin_error = on_plugin_error
        self._lock = threading.RLock()
        self._listeners = Listeners(self._EVENTS)
        self._plugins: list[Plugin] = []

    def use(self, plugin: Plugin) -> Self:
        """Register a plugin; the history itself, so that calls can be chained. Raises InvalidInputError for what has
        none of the hooks, and what its `on_registered` raises."""
        check_plugin(plugin)
        if (registered := hook(plugin, "on_registered")) is not None:
            registered(self)
        with self._lock:
            self._plugins = [*self._plugins, plugin]
        return self

    def on(
        self,
        event: Literal["entry", "clear", "restore", "change", "plugin_error", "error"],
        handler: Callable[..., object],
    ) -> Unsubscribe:
        """Call a handler, plain or a coroutine function, with each such event; the outcome ends that.

        Raises InvalidInputError for an event there is not.
        """
        return self._listeners.on(event, handler)

    def subscribe(self, listener: Callable[..., object]) -> Unsubscribe:
        """Call `listener` after each change, with the snapshot if it takes one; the outcome ends that."""
        return self._listeners.on("change", listener)

    def _after_add(self, plugin: Plugin) -> None:
        def failed(error: Exception) -> None:
            if self._on_plugin_error is not None:
                try:
                    self._on_plugin_error(error, plugin, "after_add")
                except Exception:
                    _logger.exception("a handler of plugin_error failed")
            elif not self._listeners.wants("plugin_error"):
                _logger.error("after_add of %r failed", plugin, exc_info=error)
            self._listeners.post("plugin_error", error, plugin, "after_add")
            self._listeners.deliver()

        if (after_add := hook(plugin, "after_add")) is not None:
            try:
                outcome = after_add(self)
                if inspect.isawaitable(outcome):
                    run_aside(outcome, failed)
            except Exception as error:  # noqa: BLE001 -- whatever a plugin raises is its own; it is reported
                failed(error)

    def _added(self) -> None:
        """Have the plugins told of an addition."""
        for plugin in self._plugins:
            self._listeners.post_call(lambda plugin=plugin: self._after_add(plugin))  # type: ignore[misc]

    def _hooks(self, name: str) -> list[Callable[..., Any]]:
        return [found for plugin in tuple(self._plugins) if (found := hook(plugin, name)) is not None]

    def _renew_locks(self) -> None:
        """In a forked child, where those who held them are not."""
        self._lock = threading.RLock()
        self._listeners.renew_lock()
