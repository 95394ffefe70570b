# Generated from ../_async by scripts/unasync: do not edit.
"""The search index of a namespace: made when first needed, made anew when it is lost, moved when its form changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from redis_history._sync._runtime import sleep
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.searching import IndexState, Searching, create_index, read_index_info

__all__ = ["SearchIndex"]

_logger = logging.getLogger("redis_history")
#: Seconds between looks at an index that the server is still filling.
_LOOK = 0.05


class SearchIndex:
    """`send` sends one command and gives its reply.

    Searches go through an alias. An index of another form (language, vectors) is built beside the one in use, over the
    same documents, and the alias moves when the server has filled it; until then the former one answers.
    """

    def __init__(self, send: Callable[..., Any], keyspace: Keyspace, searching: Searching) -> None:
        self._send = send
        self._keyspace = keyspace
        self._searching = searching
        #: Why there is no index, once that is known.
        self.refusal: str | None = None
        #: Whether searches go to the index of this form, and not yet to a former one.
        self.settled = False

    def ensure(self) -> IndexState | None:
        """Make the index if there is none; how far it is, or None if this server has no search (see `refusal`)."""
        alias = self._keyspace.index
        name, command = create_index(self._keyspace, self._searching)
        try:
            self._unless_there(*command)
            self._unless_there(b"FT.ALIASADD", alias, name)
            state = self._state(alias)
            if state.name != name:
                state = self._move(alias, state.name, name)
        except ResponseError as error:
            if is_transient(error):
                raise
            self.refusal = str(error)
            return None
        self.refusal = None
        self.settled = state.name == name
        return state

    def filled(self, seconds: float, *, again: bool = False) -> IndexState | None:
        """`ensure`, and wait until the server has filled it, for so long at most."""
        state = self.ensure()
        waited = 0.0
        while state is not None and not state.complete and waited < seconds:
            sleep(_LOOK)
            waited += _LOOK
            state = self.ensure()
        return state

    def _move(self, alias: bytes, former: bytes, name: bytes) -> IndexState:
        state = self._state(name)
        if not state.complete:
            _logger.info("the search index %r is being built (%.0f %%)", name, 100 * state.share)
            return self._state(alias)
        self._send(b"FT.ALIASUPDATE", alias, name)
        try:
            self._send(b"FT.DROPINDEX", former)
        except ResponseError as error:  # another process was first
            _logger.info("the former search index %r is not there any more: %s", former, error)
        return state

    def _state(self, name: bytes) -> IndexState:
        return read_index_info(self._send(b"FT.INFO", name))

    def _unless_there(self, *command: bytes) -> None:
        try:
            self._send(*command)
        except ResponseError as error:
            if "exists" not in str(error):
                raise
