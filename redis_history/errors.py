"""Everything this package raises, in one tree.

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
    ├── ConflictError                           the state is not what the call needs; nothing was written
    │   ├── MessageConflictError                same id, other content
    │   ├── RevisionConflictError               `expected_revision` is not the current one
    │   ├── ConversationExistsError
    │   ├── CompactionConflictError             what is to be replaced is not (any more) what was summarised
    │   └── LeaseLostError                      somebody else may work on the conversation by now
    ├── NotFoundError (also a LookupError)
    │   ├── ConversationNotFoundError
    │   └── MessageNotFoundError
    ├── SummaryError                            a summariser gave nothing that can be used
    ├── CapabilityError                         this server or backend cannot do that
    ├── EventLoopError (also a RuntimeError)    an asynchronous store is used in a second event loop
    ├── MissingExtraError (also an ImportError) a package that this part needs is not installed
    └── BackendError                            the backend failed
        ├── BackendUnavailableError             no answer within the deadline
        │   └── OutcomeUnknownError             a write was sent, and it cannot be known whether it was made
        ├── BackendRefusedError                 an answer, but no: read-only, out of memory, no permission
        ├── DurabilityError                     the change was made, but not confirmed as durable in time
        ├── UnsupportedServerError              too old, or not a Redis
        ├── CorruptDataError                    stored bytes are not what this package writes
        ├── StoreClosedError
        ├── UnsavedLimitError                   too many messages wait for a server that is away
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
    """A message, or one of its parts, cannot be stored as it is."""


class InvalidTimestampError(InvalidMessageError):
    """Not a finite instant that can be stored exactly, in microseconds."""


class MessageTooLargeError(InvalidMessageError):
    """A message is over the caps on size, depth or number of items."""


class BatchTooLargeError(InvalidInputError):
    """More than one atomic change may hold; use smaller batches."""


class InvalidCursorError(InvalidInputError):
    """Not a cursor that a subscription of this package gave out."""


class TornPairError(InvalidInputError):
    """The range of a compaction has a tool call whose result is behind it, or still awaited. The message names an end
    that would do."""


class ConfigurationError(InvalidInputError):
    """A URL, an option or a combination of options is wrong."""


class ConflictError(RedisHistoryError):
    """The stored state is not what the call requires. Nothing was written."""


class MessageConflictError(ConflictError):
    """A message of this id is stored already, with other content.

    `message_id` is the id in question.
    """

    def __init__(self, message: str, *, message_id: str) -> None:
        super().__init__(message)
        self.message_id = message_id


class RevisionConflictError(ConflictError):
    """The conversation is not at the revision that the call expected.

    `current_revision` is what it is at (0: it does not exist); `expected_revision` what was asked for.
    """

    def __init__(self, message: str, *, current_revision: int, expected_revision: int | None = None) -> None:
        super().__init__(message)
        self.current_revision = current_revision
        self.expected_revision = expected_revision


class ConversationExistsError(ConflictError):
    """The conversation exists, and the call required that it does not."""


class CompactionConflictError(ConflictError):
    """The messages in the range of a compaction are not those that were summarised: somebody edited, deleted,
    inserted or compacted meanwhile. Read them again, and summarise anew."""


class LeaseLostError(ConflictError):
    """The lease on a conversation ended before the work did, and another worker may have begun it."""


class NotFoundError(RedisHistoryError, LookupError):
    """What the call names does not exist."""


class ConversationNotFoundError(NotFoundError):
    """No such conversation."""


class MessageNotFoundError(NotFoundError):
    """No message of that id in the conversation."""


class SummaryError(RedisHistoryError):
    """A summariser failed, took too long, or gave no text, or more than it was to replace. Nothing was written."""


class CapabilityError(RedisHistoryError):
    """The server or backend in use cannot do this; the text says what could."""


class EventLoopError(RedisHistoryError, RuntimeError):
    """An asynchronous store or subscription is used in an event loop while another one, which used it first, runs."""


class MissingExtraError(RedisHistoryError, ImportError):
    """A package that this part of ours needs is not installed; the text says which extra brings it."""


class BackendError(RedisHistoryError):
    """The backend failed."""


class BackendUnavailableError(BackendError):
    """The backend did not answer within the deadline. If a write was sent, it is an OutcomeUnknownError."""


class OutcomeUnknownError(BackendUnavailableError):
    """A write was sent, and it cannot be known whether it was made; if so, it was made once.

    Either no copy of it got a reply before the deadline, or one reached the server more than a minute after the first
    was sent, when the server cannot tell any more. An append may be repeated with the same message ids: what is stored
    is not stored again. Before you repeat another write, read the conversation.

    `forgotten` is True if the server answered that it cannot tell any more.
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
    """So much waits for the server that no more is taken; this message, or this rewrite, was not."""


class EmbeddedServerError(BackendError):
    """The private server cannot be found, started or reached.

    If no server was found, `looked_at` are the places that were searched, each with the reason why nothing there can be
    used. `summary` is the text without them and without `remedy`.
    """

    def __init__(self, message: str, *, remedy: str = "", looked_at: Iterable[object] = ()) -> None:
        self.summary, self.remedy, self.looked_at = message, remedy, tuple(map(str, looked_at))
        places = "".join(f"\n  {place}" for place in self.looked_at)
        super().__init__(message + remedy + (f". Looked at:{places}" if places else ""))
