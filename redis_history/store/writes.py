"""The elements of a write: messages to store, conditions, the right of a lease, and the outcome of an append."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from redis_history.errors import InvalidInputError
from redis_history.values import Message, Position, beside
from redis_history.values._validation import check_integer
from redis_history.values.beside import Content, split
from redis_history.values.pairs import marks
from redis_history.values.sizes import count_characters, estimate_tokens
from redis_history.values.times import to_microseconds
from redis_history.values.usage import pack_usage
from redis_history.values.wire import BESIDE, COMPRESSED, FREE_FORM, compress_body, encode, placed

#: "run": one agent works on the conversation. "compressor": one compressor works on it. They do not exclude each other.
LeaseKind = Literal["run", "compressor"]


#: The field of the state for each kind of lease.
FIELDS: Final[dict[LeaseKind, bytes]] = {"run": b"R", "compressor": b"W"}


class RunFence(Struct, frozen=True):
    """The right of the holder of a lease to write: the number of the lease within the conversation, and its id."""

    fence: int
    run_id: str
    kind: LeaseKind = "run"

    @property
    def stored(self) -> bytes:
        """As the scripts take it."""
        return b"%b%d:%b" % (FIELDS[self.kind], self.fence, self.run_id.encode())


class Precondition(Struct, frozen=True):
    """The conditions of a write. If one does not hold, the write raises RevisionConflictError,
    ConversationNotFoundError, ConversationExistsError, or RunLostError if `run` is not the present one."""

    expected_revision: int | None = None
    must_exist: bool = False
    must_not_exist: bool = False
    run: RunFence | None = None

    @classmethod
    def of(
        cls, expected_revision: int | None = None, must_exist: bool = False, must_not_exist: bool = False
    ) -> Precondition:
        """Raises InvalidInputError."""
        if expected_revision is None and not must_exist and not must_not_exist:
            return ANY
        check_integer(expected_revision, "expected_revision", 0, 2**53 - 1, optional=True, error=InvalidInputError)
        if must_exist and must_not_exist:
            raise InvalidInputError("must_exist and must_not_exist exclude each other")
        return cls(expected_revision, must_exist, must_not_exist)

    def held_at(self, revision: int) -> bool:
        """Whether the condition held for the call that made this revision."""
        if self.expected_revision not in (None, revision - 1):
            return False
        return not self.must_not_exist or revision == 1


ANY = Precondition()


class Entry(Struct, frozen=True):
    """A message to store: its `body` and `flags` (see `values.wire`), `timestamp` (µs; None: the server's clock),
    `characters` and `tokens` for the totals, `tools`, the marks of its tool calls and results
    (`values.pairs.marks`), and `usage`, which totals count (`values.usage.pack_usage`)."""

    message: Message
    body: bytes
    flags: int
    timestamp: int | None
    characters: int
    tokens: int
    tools: bytes = b""
    usage: bytes = b""

    @classmethod
    def of(cls, message: Message, *, live: bool = False) -> Entry:
        """Raises InvalidMessageError. `live`: a reply that is being written here; any other is interrupted."""
        if not live and type(message) is Message and message.status == "streaming":
            message = replace(message, status="interrupted")
        body, flags = encode(message)
        timestamp = None if message.timestamp is None else to_microseconds(message.timestamp)
        characters = count_characters(message)
        tools = marks(message) if flags & FREE_FORM else b""
        usage = b"" if message.usage is None else pack_usage(message.usage)
        return cls(message, body, flags, timestamp, characters, estimate_tokens(characters), tools, usage)

    def packed(self, *, zstd: bool) -> Packed:
        """Its stored form, compressed if the store does that and it becomes smaller."""
        body = self.body
        if len(body) < beside.LARGE_BYTES and not zstd:  # as most
            return Packed(self, self.flags, body, ())
        body, table, contents = split(body)
        flags = self.flags | BESIDE if contents else self.flags
        if zstd and (smaller := compress_body(body, table)) is not None:
            return Packed(self, flags | COMPRESSED, smaller, contents)
        return Packed(self, flags, body + table if table else body, contents)

    def placed(self, position: Position) -> Message:
        """The message at this position."""
        return placed(self.message, position.sequence, position.timestamp)


class Packed(NamedTuple):
    """The stored form of an entry: its flags, its body without its large contents, and these."""

    entry: Entry
    flags: int
    body: bytes
    contents: Sequence[Content]

    @property
    def head(self) -> bytes:
        """The bytes that a script takes before `rest`: characters, flags, header byte and tool marks."""
        entry = self.entry
        return entry.characters.to_bytes(3, "big") + bytes((self.flags, self.body[0])) + entry.tools

    @property
    def rest(self) -> bytes:
        """The rest of the body."""
        return self.body[1:]


class Appended(Struct, frozen=True):
    """The outcome of one appended message: `message` has its timestamp and sequence, `revision` is the change that
    stored it. `duplicate`: an earlier call had already stored it."""

    revision: int
    message: Message
    duplicate: bool
