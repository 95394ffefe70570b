"""Who appends what: the transcripts dealt out to the agents, the same way for the same seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from redis_history.compaction import Policy
from redis_history.errors import InvalidInputError
from redis_history.importers import OnError, Transcript, read_transcripts
from redis_history.model import Message

__all__ = ["SAMPLE", "Bounds", "Plan", "Step", "load", "make_plan"]

SAMPLE = Path(__file__).with_name("sample.jsonl")

_OPEN = 6  # conversations under way at the same time
_BATCHED = 0.25  # of the turns: several messages by one append_many
_LARGEST_BATCH = 6
_REPEATED = 0.08  # of the steps: sent again at once, as after a lost reply
_LATE = 0.04  # of the steps: followed by an earlier one sent again
_SHOWN_SECONDS = 3.0  # a small sample is slowed down to last so long, so that there is something to see
_LONGEST_PAUSE = 0.3
_SMALL = 500  # messages
_LEAST_BOUND = 6  # messages


class Step(msgspec.Struct, frozen=True):
    """One call of an agent: `append` of one message, `append_many` of more. `again`: it was made before."""

    conversation_id: str
    messages: tuple[Message, ...]
    again: bool = False


class Bounds(msgspec.Struct, frozen=True):
    """A conversation of more than `max_entries` messages is too long; the newest `keep_recent` stay."""

    max_entries: int
    keep_recent: int

    @property
    def policy(self) -> Policy:
        return Policy(max_entries=self.max_entries, keep_recent=self.keep_recent)


class Plan(msgspec.Struct, frozen=True):
    """`shares[n]` are the steps of agent n, in its order; `owners[conversation][message]` is the agent it falls to.
    `pause` is the mean of the seconds an agent thinks between two steps; `bounds` are what the compressor keeps to."""

    transcripts: tuple[Transcript, ...]
    shares: tuple[tuple[Step, ...], ...]
    owners: dict[str, dict[str, int]]
    pause: float
    bounds: Bounds

    @property
    def messages(self) -> int:
        return sum(len(transcript.messages) for transcript in self.transcripts)

    @property
    def too_long(self) -> int:
        """How many conversations are longer than the compressor allows."""
        return sum(len(transcript.messages) > self.bounds.max_entries for transcript in self.transcripts)

    @property
    def longest(self) -> int:
        return max(len(transcript.messages) for transcript in self.transcripts)


def load(path: Path, limit: int | None, on_error: OnError) -> list[Transcript]:
    """The first `limit` conversations of a file. Raises InvalidInputError for a file without any."""
    found: list[Transcript] = []
    for transcript in read_transcripts(path, on_error=on_error):
        if transcript.messages:
            found.append(transcript)
        if limit is not None and len(found) >= limit:
            break
    if not found:
        raise InvalidInputError(f"{path} holds no conversation that could be read")
    return found


def make_plan(transcripts: Sequence[Transcript], agents: int, seed: int) -> Plan:
    """Deal runs of one to six messages to random agents, several conversations side by side.

    An agent makes its steps one after the other, so its own messages of a conversation keep their order; between
    agents there is none, as they all write at once.
    """
    random = Random(seed)  # noqa: S311 -- repeatable, not secret
    shares: list[list[Step]] = [[] for _ in range(agents)]
    owners: dict[str, dict[str, int]] = {transcript.conversation_id: {} for transcript in transcripts}
    waiting = deque((t.conversation_id, deque(t.messages)) for t in transcripts)
    active: list[tuple[str, deque[Message]]] = []
    while waiting or active:
        while waiting and len(active) < _OPEN:
            active.append(waiting.popleft())
        conversation_id, left = active[random.randrange(len(active))]
        wanted = random.randint(2, _LARGEST_BATCH) if random.random() < _BATCHED else 1
        messages = tuple(left.popleft() for _ in range(min(wanted, len(left))))
        agent = random.randrange(agents)
        owners[conversation_id].update((message.id, agent) for message in messages)
        _add(shares[agent], Step(conversation_id, messages), random)
        if not left:
            active = [item for item in active if item[1]]
    total = sum(len(transcript.messages) for transcript in transcripts)
    pause = min(_LONGEST_PAUSE, _SHOWN_SECONDS / max(map(len, shares))) if total < _SMALL else 0.0
    return Plan(tuple(transcripts), tuple(map(tuple, shares)), owners, pause, _bounds(transcripts))


def _bounds(transcripts: Sequence[Transcript]) -> Bounds:
    """Such that most conversations are compressed, and long ones more than once."""
    middle = int(median(len(transcript.messages) for transcript in transcripts))
    most = max(_LEAST_BOUND, middle // 3)
    return Bounds(most, max(2, min(10, most // 4)))


def _add(share: list[Step], step: Step, random: Random) -> None:
    share.append(step)
    if random.random() < _REPEATED:
        share.append(msgspec.structs.replace(step, again=True))
    if random.random() < _LATE:
        share.append(msgspec.structs.replace(share[random.randrange(len(share))], again=True))
