"""`capture`: what an agent is given and gives back becomes messages of a conversation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

from redis_history._async.capturing import AsyncAppends, AsyncCapture
from redis_history._sync.capturing import Appends, Capture
from redis_history.capturing.mapping import as_participant
from redis_history.capturing.settings import MAX_PENDING, OnError, Settings
from redis_history.errors import InvalidInputError
from redis_history.model import Participant

__all__ = ["capture"]


@overload
def capture(
    store: AsyncAppends,
    conversation_id: str | Callable[..., str] | None = None,
    *,
    agent: Participant | str | None = None,
    user: Participant | str | None = None,
    inbound: Callable[..., Any] | None = None,
    outbound: Callable[[Any], Any] | None = None,
    on_error: OnError | None = None,
    background: bool = False,
    max_pending: int = MAX_PENDING,
) -> AsyncCapture: ...
@overload
def capture(
    store: Appends,
    conversation_id: str | Callable[..., str] | None = None,
    *,
    agent: Participant | str | None = None,
    user: Participant | str | None = None,
    inbound: Callable[..., Any] | None = None,
    outbound: Callable[[Any], Any] | None = None,
    on_error: OnError | None = None,
    background: bool = False,
    max_pending: int = MAX_PENDING,
) -> Capture: ...
def capture(
    store: Any,
    conversation_id: str | Callable[..., str] | None = None,
    *,
    agent: Participant | str | None = None,
    user: Participant | str | None = None,
    inbound: Callable[..., Any] | None = None,
    outbound: Callable[[Any], Any] | None = None,
    on_error: OnError | None = None,
    background: bool = False,
    max_pending: int = MAX_PENDING,
) -> Capture | AsyncCapture:
    """Records the turns of an agent: a decorator for it, and a context manager (docs/how-to/capture.md).

    `conversation_id`: an id, or a function of the agent's arguments; None: its argument or the key of that name.
    `agent` and `user`: who wrote what names nobody. `inbound`: from the agent's arguments to what it was told;
    `outbound`: from what it returns, or the list of what it streams, to what it said; both may give a Message, text, a
    dict in chat form, or a list of these. `background`: append behind the agent's back; then `max_pending` messages
    may wait. `on_error`: told of each turn that is not recorded, in place of the log.

    No error of recording reaches the agent. Raises InvalidInputError, ConfigurationError for wrong options.
    """
    append = getattr(store, "append", None)
    if append is None or not hasattr(store, "append_many"):
        raise InvalidInputError(f"capture needs a store, not {type(store).__name__}")
    settings = Settings(
        conversation_id,
        as_participant(agent, "agent", "agent"),
        as_participant(user, "user", "user"),
        inbound,
        outbound,
        on_error,
        background,
        max_pending,
    )
    return AsyncCapture(store, settings) if inspect.iscoroutinefunction(append) else Capture(store, settings)
