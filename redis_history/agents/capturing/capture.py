"""`capture`: store the input and output of an agent as messages of a conversation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from redis_history.agents._async.capturing import AsyncCapture
from redis_history.agents._sync.capturing import Capture
from redis_history.agents.capturing.mapping import as_participant
from redis_history.agents.capturing.settings import IdOrFunction, OnError, Settings
from redis_history.errors import InvalidInputError
from redis_history.values import Participant

if TYPE_CHECKING:
    from redis_history.store._async.store import AsyncHistoryStore
    from redis_history.store._sync.store import HistoryStore


class _Options(TypedDict, total=False):
    agent: Participant | str | None
    user: Participant | str | None
    inbound: Callable[..., Any] | None
    outbound: Callable[[Any], Any] | None
    on_error: OnError | None
    live: bool


@overload
def capture(
    store: AsyncHistoryStore, conversation_id: IdOrFunction = None, **options: Unpack[_Options]
) -> AsyncCapture: ...
@overload
def capture(store: HistoryStore, conversation_id: IdOrFunction = None, **options: Unpack[_Options]) -> Capture: ...
def capture(store: Any, conversation_id: IdOrFunction = None, **options: Any) -> Capture | AsyncCapture:
    """Record the turns of an agent, as a decorator, or by hand with `turn` (docs/how-to/capture.md).

    `conversation_id`: an id, or a function of the agent's arguments. Without it, the agent's argument `conversation_id`
    is used.
    `agent`, `user`: the participants of messages that do not name one.
    `inbound`: a function from the agent's arguments to its input. `outbound`: a function from the agent's return
    value, or the list of its streamed chunks, to its output. Both may return a Message, text, a chat dict (`role` and
    `content`), or a list of these.
    `live`: store the chunks of an agent as they come, with `store.stream`. Chunks are stored as one message at the end
    if this is False, and with `outbound`.
    `on_error`: called for each turn that was not recorded; without it the error is logged.

    Errors of recording never reach the agent. Raises InvalidInputError or ConfigurationError for invalid options.
    """
    if not hasattr(store, "append") or not hasattr(store, "append_many"):
        raise InvalidInputError(f"store must be a HistoryStore or AsyncHistoryStore, not {type(store).__name__}")
    people = {kind: as_participant(options.get(kind), kind) for kind in ("agent", "user")}
    kind = AsyncCapture if inspect.iscoroutinefunction(store.append) else Capture
    return kind(store, Settings(conversation_id, **{**options, **people}))
