"""What must hold at the end, conversation by conversation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from redis_history.demo.plan import Plan
from redis_history.demo.watcher import Heard
from redis_history.formats import to_anthropic, to_openai_chat
from redis_history.importers import Transcript
from redis_history.model import Message

__all__ = ["Findings", "check"]

_TOLD = 10  # problems


class Findings(msgspec.Struct):
    """Sums over all conversations. `equal`: messages that read back as they were given; `equal_form`: provider dicts
    that come out as they came in, of `of_form`. `compacted`: conversations with `summaries`, for which messages were
    `archived`; `late_results`: those that were sent when their calls had left; `held`: those that stay long
    because nothing more may leave, mostly because a call would be torn from its result. The rest counts what must not
    be; `problems` tells the first of it."""

    stored: int = 0
    equal: int = 0
    equal_form: int = 0
    of_form: int = 0
    duplicates: int = 0
    delivered: int = 0
    events: int = 0
    gaps: int = 0
    order_violations: int = 0
    compacted: int = 0
    summaries: int = 0
    archived: int = 0
    compacted_wrongly: int = 0
    torn: int = 0
    late_results: int = 0
    too_long: int = 0
    held: int = 0
    problems: list[str] = msgspec.field(default_factory=list)

    def tell(self, conversation_id: str, count: int, what: str) -> int:
        """Note a problem if there is one; gives `count` back."""
        if count and len(self.problems) < _TOLD:
            self.problems.append(f"{conversation_id}: {count} {what}")
        return count


def check(
    findings: Findings, plan: Plan, transcript: Transcript, stored: Sequence[Message], heard: list[Heard], revision: int
) -> None:
    """Compare one conversation: the input, what `get` returns with archived messages and without summaries, what the
    subscriber was told up to `revision`."""
    name = transcript.conversation_id
    _check_content(findings, transcript, stored)
    _check_order(findings, name, plan.owners[name], transcript, stored)
    _check_events(findings, name, stored, heard, revision)


def _check_content(findings: Findings, transcript: Transcript, stored: Sequence[Message]) -> None:
    name = transcript.conversation_id
    by_id = {message.id: message for message in stored}
    given = {message.id: message for message in transcript.messages}
    findings.stored += len(stored)
    findings.duplicates += findings.tell(name, len(stored) - len(by_id), "messages stored twice")
    findings.tell(name, len(given.keys() - by_id.keys()), "messages missing")
    findings.tell(name, len(by_id.keys() - given.keys()), "messages that nobody sent")
    equal = sum(id_ in by_id and _same(by_id[id_], message) for id_, message in given.items())
    findings.equal += equal
    findings.tell(name, len(given) - equal, "messages that do not read back equal")
    if transcript.form is not None:
        in_order = [by_id[id_] for id_ in given if id_ in by_id]
        to_form = to_openai_chat if transcript.form == "openai_chat" else to_anthropic
        back: list[Any] = to_form(in_order, shape="original")
        same = sum(one == other for one, other in zip(back, transcript.originals, strict=False))
        findings.of_form += len(transcript.originals)
        findings.equal_form += same
        findings.tell(name, len(transcript.originals) - same, f"messages that differ in the form of {transcript.form}")


def _same(stored: Message, given: Message) -> bool:
    """Equal in all that the store does not set: sequence, and the timestamp where none was given."""
    timestamp = None if given.timestamp is None else stored.timestamp
    return msgspec.structs.replace(stored, sequence=None, timestamp=timestamp) == given


def _check_order(
    findings: Findings, name: str, owners: dict[str, int], transcript: Transcript, stored: Sequence[Message]
) -> None:
    """`get` is by time, ties by arrival; arrival numbers are 1 to n; each agent's messages arrived in its order."""
    wrong = sum(not _ascending(one, other) for one, other in pairwise(stored))
    findings.order_violations += findings.tell(name, wrong, "messages out of the order of time and arrival")
    sequences = {message.id: message.sequence or 0 for message in stored}
    if sorted(sequences.values()) != list(range(1, len(stored) + 1)):
        findings.gaps += findings.tell(name, 1, "run of arrival numbers that is not 1 to n")
    if stored and all(message.timestamp is None for message in transcript.messages):
        wrong = sum(sequences[one.id] > sequences[other.id] for one, other in pairwise(stored))
        findings.order_violations += findings.tell(name, wrong, "messages that the server's clock put out of arrival")
    newest: dict[int, int] = {}
    wrong = 0
    for message in transcript.messages:
        agent, sequence = owners[message.id], sequences.get(message.id, 0)
        wrong += sequence < newest.get(agent, 0)
        newest[agent] = max(sequence, newest.get(agent, 0))
    findings.order_violations += findings.tell(name, wrong, "messages that overtook one of the same agent")


def _ascending(one: Message, other: Message) -> bool:
    return one.position is not None and other.position is not None and one.position < other.position


def _check_events(findings: Findings, name: str, stored: Sequence[Message], heard: list[Heard], revision: int) -> None:
    """Revisions 1 to the last, each once and in order; every message in one of them, in the order of arrival."""
    findings.events += len(heard)
    changes = [event for event in heard if event.reset is None]
    others = findings.tell(name, len(heard) - len(changes), "events other than appended messages")
    revisions = [event.revision for event in changes]
    missing = findings.tell(name, len(set(range(1, revision + 1)) - set(revisions)), "changes that were not told")
    findings.gaps += others + missing
    wrong = sum(later <= earlier for earlier, later in pairwise(revisions))
    told = [item for event in changes for item in event.messages]
    wrong += sum((later[1] or 0) <= (earlier[1] or 0) for earlier, later in pairwise(told))
    findings.order_violations += findings.tell(name, wrong, "events out of order")
    findings.duplicates += findings.tell(name, len(told) - len({id_ for id_, _ in told}), "messages told twice")
    right = {(message.id, message.sequence) for message in stored}
    findings.delivered += len(right & set(told))
    findings.tell(name, len(right - set(told)), "stored messages that were not told")
    findings.tell(name, len(set(told) - right), "messages told that are not stored so")
