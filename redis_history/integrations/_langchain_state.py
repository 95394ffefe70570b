"""The messages in the state of a LangChain agent, and those that are stored: changes of each reach the other.

The state remembers what both had in common after the last step (`Common`). A message of it that the state lacks was
removed there, for example with a `RemoveMessage`, so it is removed from the conversation. A message of it that the
conversation lacks was deleted or compacted there, so the state drops it. Other messages are new, on either side.

A state that goes back to an earlier checkpoint lacks messages, too, but never had them in common. So each stored
message names the line of checkpoints that it comes from, and a state without a later message of its own line has left
the branch that this message is on.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypedDict
from zlib import crc32

from msgspec.structs import replace

from redis_history.errors import CompactionConflictError, MessageNotFoundError, TornPairError
from redis_history.integrations._extras import BATCH
from redis_history.integrations.langchain import LangChainHistory, _restore, _to_langchain, _write
from redis_history.store import operations as ops
from redis_history.store.operations import Steps
from redis_history.store.operations.fork import fork
from redis_history.store.operations.tasks import OutsideRuns
from redis_history.values import Message
from redis_history.values._validation import missing

try:
    from langchain_core.messages import BaseMessage, RemoveMessage
except ImportError as error:
    raise missing("langchain-agents", error) from error

_logger = logging.getLogger("redis_history")

_MARK: Final = "langgraph"  # key of provider_meta
#: Messages of a removed range that are tried as its end, if a tool call at the end has no result.
_MOST_ENDS: Final = 20
#: Archived messages that are read before the live ones.
_SOME: Final = 20


class Common(TypedDict):
    """The messages that a state and a conversation had in common, stored in the state and so in each checkpoint."""

    #: The digest of each message, by id.
    ids: dict[str, int]
    #: All messages up to this sequence are known or older.
    sequence: int
    #: The line of checkpoints.
    line: str


class StateSync:
    """Brings a state and a conversation together, once. `thread` is None without a checkpointer; `travels`: the caller
    has named a checkpoint."""

    def __init__(
        self, history: LangChainHistory, state: Mapping[str, Any], common: Common | None, *,
        thread: object, travels: bool,
    ) -> None:  # fmt: skip
        self._history, self._key, self._turns = history, history.session_id, history._turns
        self._given: list[BaseMessage] = state["messages"]
        self._is_first = common is None
        self._known: dict[str, int] = dict(common["ids"]) if common else {}
        self._sequence = common["sequence"] if common else 0
        self._travels = travels
        self._thread = None if thread is None else f"{crc32(str(thread).encode()):08x}"
        self._line = common["line"] if common else f"{self._thread}{secrets.token_hex(4)}"
        self._is_changed = False

    def begin(self) -> Steps[list[BaseMessage]]:
        """Store what is new, and return all messages that the state should have."""
        stored = yield from self._read(self._history.limit)
        if self._is_first and self._travels:
            self._adopt(stored)
        has_left = yield from self._left_branch(stored)
        if (yield from self._apply(stored)) or has_left:
            stored = yield from self._read(self._history.limit)
        self._sequence = max([self._sequence, *(message.sequence or 0 for message in stored)])
        new = self._given[_behind(self._given, self._known.keys() | _ids(stored)) :]
        joined = [*self._history._converted(stored), *new]
        yield from self._append(new)
        self._known = _digests(joined)
        self._is_changed = True
        return joined

    def save(self) -> Steps[None]:
        """Store what the state has, after a step."""
        yield from self._apply(None)
        start = _behind(self._given, self._known.keys()) or _first_new(self._given)
        before = self._sequence
        yield from self._append(self._given[start:])
        if self._travels and self._turns.sequences and self._sequence == before:
            yield from self._left_branch((yield from self._read(None)))  # a run that began at an earlier checkpoint

    @property
    def common(self) -> Common | None:
        """The messages that both have in common now, or None if that has not changed."""
        if not self._is_changed:
            return None
        return {"ids": self._known, "sequence": self._sequence, "line": self._line}

    def _read(self, limit: int | None) -> Steps[list[Message]]:
        return ops.read_messages(self._key, limit)

    def _storable(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        self._turns.mark = {} if self._thread is None else {_MARK: self._line}
        return self._history._storable(messages)

    def _write(self, messages: Sequence[BaseMessage]) -> Steps[None]:
        return _write(self._key, self._storable(messages), self._turns)

    def _append(self, new: Sequence[BaseMessage]) -> Steps[None]:
        if not new:
            return
        yield from self._write(new)
        self._known |= _digests(new)
        self._is_changed = True
        sequences = self._turns.sequences
        if sequences and sequences[0] == self._sequence + 1:  # else there may be others in between
            self._sequence = sequences[-1]

    def _apply(self, stored: Sequence[Message] | None) -> Steps[bool]:
        """Make the changes of the state in the conversation, except new messages at the end. Returns whether there were
        any. `stored`: the messages of the conversation, if they were read; what was changed there stays."""
        if self._is_first:
            return False
        given = {str(message.id): message for message in self._given}
        gone = [id_ for id_ in self._known if id_ not in given]
        known = self._known.keys() | _ids(stored or ())
        start = _behind(self._given, known) or _first_new(self._given)
        front = [one for one in self._given[:start] if str(one.id) not in known]
        changed = [one for id_, one in given.items() if self._known.get(id_, digest := _digest(one)) != digest]
        if changed and stored is not None:
            present = _digests(one for message in stored for one in _to_langchain(message, _ignore))
            changed = [one for one in changed if present.get(str(one.id)) == self._known[str(one.id)]]
        if not (gone or front or changed):
            return False
        is_summary = bool(gone) and len(front) == 1 and (yield from self._compact(gone, front[0]))
        if gone and not is_summary:
            yield from self._write([RemoveMessage(id=id_) for id_ in gone])
        if front and not is_summary:
            yield from self._insert({str(one.id) for one in front})
        if changed:
            yield from self._write(changed)
        self._known = {id_: digest for id_, digest in self._known.items() if id_ in given}
        self._known |= _digests(self._given[:start])
        self._is_changed = True
        return True

    def _compact(self, gone: Sequence[str], given: BaseMessage) -> Steps[bool]:
        """Store a summary in the place of the messages that the state replaced by it: these move to the archive. False
        if the message cannot be a summary."""
        [kept] = self._storable([given])
        [summary], losses = self._turns.fit([self._turns.message(kept)])
        if summary.role == "system" or summary.tool_uses or summary.tool_results:
            return False
        summary = replace(summary, metadata={**summary.metadata, "is_summary": True})
        for id_ in [*reversed(gone)][:_MOST_ENDS]:
            with suppress(TornPairError, MessageNotFoundError, CompactionConflictError):
                done = yield OutsideRuns(ops.compact_messages(self._key, id_.partition("#part-")[0], summary))
                if done.summary is not None:
                    self._turns.report(losses)
                    if rest := gone[gone.index(id_) + 1 :]:
                        yield from self._write([RemoveMessage(id=one) for one in rest])
                    return True
        return False

    def _insert(self, ids: Iterable[str]) -> Steps[None]:
        """Store messages that the state has before or between others."""
        base = [one for message in (yield from self._read(None)) for one in _to_langchain(message, _ignore)]
        merged = _merged(base, self._given, ids)
        yield from _restore(self._key, self._storable(merged), self._turns)

    def _adopt(self, stored: Sequence[Message]) -> None:
        """Continue the line of this thread: the caller went back to its beginning."""
        lines = (str(message.provider_meta.get(_MARK)) for message in stored)
        self._line = next((line for line in lines if line[:8] == self._thread), self._line)

    def _left_branch(self, stored: Sequence[Message]) -> Steps[bool]:
        """Remove the messages of the branch that the state has left, and store those that it has again. Returns whether
        there was one."""
        here = self._known.keys() | {str(message.id) for message in self._given}

        def left(messages: Sequence[Message]) -> list[str]:
            return [one.id for one in messages if self._is_later(one) and not here & _ids([one])]

        def later_summary(messages: Sequence[Message]) -> str | None:
            return next((one.id for one in messages if one.is_summary and one.id not in here), None)

        if not left(stored):
            if later_summary(stored) is None or self._thread is None:
                return False
            with_archived = yield from ops.read_messages(self._key, len(stored) + _SOME, include_archived=True)
            if not left(with_archived):
                return False
        if not self._travels or self._is_first:
            # Not a checkpoint that the caller named: perhaps a process died before it saved one. Or a state without
            # messages: perhaps the checkpointer has lost them.
            copy = yield OutsideRuns(fork(self._key))
            _logger.warning(
                "the state of the agent lacks messages of conversation %r; a fork keeps them: %r",
                self._key[:80],
                copy.conversation_id,
            )
        live = yield from self._read(None)
        while summary := later_summary(live):
            try:
                yield from ops.expand_summary(self._key, summary)
            except MessageNotFoundError:
                here |= {summary}
            live = yield from self._read(None)
        gone = left(live)
        for at in range(0, len(gone), BATCH):
            yield ops.DeleteMessages.of(self._key, gone[at : at + BATCH])
        present = _ids(live)
        again = {id_ for one in self._given if (id_ := str(one.id)) in self._known and id_ not in present}
        if again:
            yield from self._insert(again)
        return True

    def _is_later(self, message: Message) -> bool:
        is_own = self._thread is not None and message.provider_meta.get(_MARK) == self._line
        return is_own and not message.is_summary and (message.sequence or 0) > self._sequence


def _ignore(loss: object) -> None:
    """Losses of messages that are only compared."""


def _ids(messages: Iterable[Message]) -> frozenset[str]:
    """The ids that these messages have in LangChain."""
    found: set[str] = set()
    for message in messages:
        if len(message.parts) == 1 or not message.tool_results:
            found.add(message.id)
        else:
            found.update(str(one.id) for one in _to_langchain(message, _ignore))
    return frozenset(found)


def _behind(messages: Sequence[BaseMessage], ids: Iterable[str]) -> int:
    """The index after the last message whose id is in `ids`; 0 without such a message."""
    return max((at for at, message in enumerate(messages, 1) if str(message.id) in ids), default=0)


def _first_new(messages: Sequence[BaseMessage]) -> int:
    """The index of the first message to append, in a state without known messages: a summary may be before it."""
    if not messages or messages[0].additional_kwargs.get("lc_source") != "summarization":
        return 0
    return 1


def _merged(base: Sequence[BaseMessage], given: Sequence[BaseMessage], ids: Iterable[str]) -> list[BaseMessage]:
    """`base`, with the messages of `given` that have these ids, each before its next neighbor there, or at the end."""
    places = {str(message.id): at for at, message in enumerate(base)}
    found: list[BaseMessage] = []
    rest = iter(base)
    done, waiting = 0, []
    for message in given:
        at = places.get(str(message.id))
        if at is None:
            waiting += [message] if str(message.id) in ids else []
        elif at >= done:
            before = [next(rest) for _ in range(at - done)]
            found += [*before, *waiting, next(rest)]
            done, waiting = at + 1, []
    return [*found, *rest, *waiting]


def _digests(messages: Iterable[BaseMessage]) -> dict[str, int]:
    return {str(message.id): _digest(message) for message in messages}


def _digest(message: BaseMessage) -> int:
    content, calls = message.content, message.__dict__.get("tool_calls")
    if type(content) is str and not calls:  # most messages, in a fraction of the time
        return crc32(content.encode(errors="surrogatepass"))
    return crc32(repr((content, calls)).encode())
