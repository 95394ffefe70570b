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
    ├── ConflictError                           the stored state does not allow the call; nothing was written
    │   ├── MessageConflictError                same id, other content
    │   ├── RevisionConflictError               `expected_revision` is not the current one
    │   ├── ConversationExistsError
    │   ├── CompactionConflictError             the messages to replace are not those that were summarised
    │   └── LeaseLostError                      another worker may have the conversation
    ├── NotFoundError (also a LookupError)
    │   ├── ConversationNotFoundError
    │   └── MessageNotFoundError
    ├── SummaryError                            a summariser returned no usable text
    ├── CapabilityError                         this server or backend cannot do it
    ├── EventLoopError (also a RuntimeError)    an asynchronous store is used in a second event loop
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

__all__ = [
    "BackendError",
    "BackendRefusedError",
    "BackendUnavailableError",
    "BatchTooLargeError",
    "CapabilityError",
    "CompactionConflictError",
    "ConfigurationError",
    "ConflictError",
    "ConversationExistsError",
    "ConversationNotFoundError",
    "CorruptDataError",
    "DurabilityError",
    "EmbeddedServerError",
    "EventLoopError",
    "InvalidConversationIdError",
    "InvalidCursorError",
    "InvalidInputError",
    "InvalidMessageError",
    "InvalidTimestampError",
    "LeaseLostError",
    "MessageConflictError",
    "MessageNotFoundError",
    "MessageTooLargeError",
    "MissingExtraError",
    "NotFoundError",
    "OutcomeUnknownError",
    "RedisHistoryError",
    "RevisionConflictError",
    "StoreClosedError",
    "SummaryError",
    "TornPairError",
    "UnsavedLimitError",
    "UnsupportedServerError",
]


class RedisHistoryError(Exception):
    """Base of every error of this package."""


class InvalidInputError(RedisHistoryError, ValueError):
    """The call itself is wrong. Raised before anything is sent."""


class InvalidConversationIdError(InvalidInputError):
    """Not a non-empty string of at most 512 bytes UTF-8."""


class InvalidMessageError(InvalidInputError):
    """A message or a part of it cannot be stored."""


class InvalidTimestampError(InvalidMessageError):
    """Not a finite time that can be stored exactly, in microseconds."""


class MessageTooLargeError(InvalidMessageError):
    """A message is over the caps on size, depth or number of items."""


class BatchTooLargeError(InvalidInputError):
    """More messages or bytes than one atomic change can hold; use smaller batches."""


class InvalidCursorError(InvalidInputError):
    """Not a cursor that a subscription of this package gave out."""


class TornPairError(InvalidInputError):
    """The range of a compaction separates a tool call from its result, or the result is still missing. The message
    names a better end."""


class ConfigurationError(InvalidInputError):
    """A URL, an option or a combination of options is wrong."""


class ConflictError(RedisHistoryError):
    """The stored state does not allow the call, which wrote nothing."""


class MessageConflictError(ConflictError):
    """A message with this id, `message_id`, is stored with other content."""

    def __init__(self, message: str, *, message_id: str) -> None:
        super().__init__(message)
        self.message_id = message_id


class RevisionConflictError(ConflictError):
    """The conversation is not at the revision that the call expected.

    `current_revision` is its revision (0: it does not exist), `expected_revision` the required one.
    """

    def __init__(self, message: str, *, current_revision: int, expected_revision: int | None = None) -> None:
        super().__init__(message)
        self.current_revision = current_revision
        self.expected_revision = expected_revision


class ConversationExistsError(ConflictError):
    """The conversation exists, and the call requires a new one."""


class CompactionConflictError(ConflictError):
    """The messages in the range are not those that were summarised, because they were edited, deleted, inserted or
    compacted meanwhile. Read them again and summarise anew."""


class LeaseLostError(ConflictError):
    """The lease on a conversation ended before the work did; another worker may have started."""


class NotFoundError(RedisHistoryError, LookupError):
    """A named conversation or message does not exist."""


class ConversationNotFoundError(NotFoundError):
    """No such conversation."""


class MessageNotFoundError(NotFoundError):
    """No message of that id in the conversation."""


class SummaryError(RedisHistoryError):
    """A summariser failed, took too long, or returned no text or too much. No summary was written."""


class CapabilityError(RedisHistoryError):
    """The server or backend in use cannot do this; the message says which can."""


class EventLoopError(RedisHistoryError, RuntimeError):
    """An asynchronous store or subscription is used in an event loop while another one, which used it first, runs."""


class MissingExtraError(RedisHistoryError, ImportError):
    """A required package is not installed; the message names the extra."""


class BackendError(RedisHistoryError):
    """The backend failed."""


class BackendUnavailableError(BackendError):
    """The backend did not answer within the deadline. If a write was sent, it is an OutcomeUnknownError."""


class OutcomeUnknownError(BackendUnavailableError):
    """A write was sent, and its outcome is unknown. It was made once or not at all.

    No copy of it got a reply before the deadline, or a copy reached the server more than a minute after the first was
    sent, when the server has forgotten it. You can repeat an append with the same message ids: stored messages are not
    stored again. Before you repeat another write, read the conversation.

    `forgotten` is True if the server answered that it has forgotten.
    """

    def __init__(self, message: str, *, forgotten: bool = False) -> None:
        super().__init__(message)
        self.forgotten = forgotten


class BackendRefusedError(BackendError):
    """The backend answered, and refused.

    `reason` is "credentials" (user name or password), "permission", "read_only", "out_of_memory", "certificate", or
    "state" (the server takes no writes now).
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class DurabilityError(BackendError):
    """The change was made, but what `durability` asks for was not confirmed in time.

    The server has the change, and everybody sees it; whether it survives a crash is not known. The same call again with
    the same message ids is safe: it changes nothing, and asks for the confirmation again.

    `conversation_id` and `revision` name the change (`revision` is None if its conversation was deleted by it), `token`
    is that of its cursor: an event, or a cursor of later, that has it proves that the change is still there.
    """

    def __init__(self, message: str, *, conversation_id: str, revision: int | None, token: str) -> None:
        super().__init__(message)
        self.conversation_id = conversation_id
        self.revision = revision
        self.token = token


class UnsupportedServerError(BackendError):
    """The server is too old, or not one this package can use."""


class CorruptDataError(BackendError):
    """Stored bytes are not what this package writes."""


class StoreClosedError(BackendError):
    """The store was closed."""


class UnsavedLimitError(BackendError):
    """Too many changes wait for the server; this one was not accepted."""


class EmbeddedServerError(BackendError):
    """The private server cannot be found, started or reached.

    If no server was found, `looked_at` are the places that were searched, each with the reason why nothing there can be
    used. `summary` is the text without them and without `remedy`.
    """

    def __init__(self, message: str, *, remedy: str = "", looked_at: Iterable[object] = ()) -> None:
        self.summary, self.remedy, self.looked_at = message, remedy, tuple(map(str, looked_at))
        places = "".join(f"\n  {place}" for place in self.looked_at)
        super().__init__(message + remedy + (f". Looked at:{places}" if places else ""))
