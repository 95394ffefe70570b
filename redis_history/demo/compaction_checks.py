"""What must hold of the compactions of a conversation, told by its events one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from redis_history.demo.checks import Findings
from redis_history.demo.plan import Bounds
from redis_history.demo.watcher import Heard
from redis_history.model import Message, Position, ToolResultPart, ToolUsePart
from redis_history.model.calls import OpenCalls

__all__ = ["check_compactions", "originals_of"]


def originals_of(everything: Sequence[Message]) -> list[Message]:
    """What was sent, of what is stored: all but the summaries."""
    return [message for message in everything if not message.is_summary]


def check_compactions(
    findings: Findings,
    name: str,
    bounds: Bounds,
    live: Sequence[Message],
    everything: Sequence[Message],
    heard: Sequence[Heard],
) -> None:
    """Compare what `get` returns without and with archived messages, and what the subscriber was told."""
    by_id = {message.id: message for message in everything}
    summaries = [message.id for message in everything if message.is_summary]
    told = [event.compaction.summary_id for event in heard if event.compaction is not None]
    archived = by_id.keys() - {message.id for message in live}
    findings.compacted += bool(summaries)
    findings.summaries += len(summaries)
    findings.archived += sum(not by_id[id_].is_summary for id_ in archived)
    wrong = findings.tell(name, len(set(told) ^ set(summaries)), "summaries that are stored and not told, or told only")
    wrong += findings.tell(name, max(0, sum(message.is_summary for message in live) - 1), "summaries too many")
    wrong += findings.tell(name, sum(by_id.get(one.id) != one for one in live), "live messages that are not among all")
    replayed = _replay(findings, name, by_id, heard)
    wrong += findings.tell(name, len(replayed ^ {message.id for message in live}), "messages live, and told otherwise")
    findings.compacted_wrongly += wrong
    findings.late_results += len(_answers(originals_of(everything), archived))
    if len(live) > bounds.max_entries:
        left = bounds.policy.plan(live) is not None
        findings.held += not left
        findings.too_long += findings.tell(name, int(left), "conversation that is too long")


def _replay(findings: Findings, name: str, by_id: dict[str, Message], heard: Sequence[Heard]) -> set[str]:
    """The ids that are live after all events; each compaction must take what was there, and tear nothing."""
    live: dict[str, Message] = {}
    for event in heard:
        live.update((id_, by_id[id_]) for id_, _ in event.messages if id_ in by_id)
        compaction = event.compaction
        if compaction is not None and compaction.summary_id in by_id:
            leaving = {id_ for id_, one in live.items() if _place(one) <= compaction.through and _may_leave(one)}
            torn = _answers(sorted(live.values(), key=_place), leaving)
            findings.torn += findings.tell(name, len(torn), "results torn from their calls")
            count = abs(len(leaving) - compaction.count)
            findings.compacted_wrongly += findings.tell(name, count, "messages more or less than a compaction took")
            live = {id_: one for id_, one in live.items() if id_ not in leaving}
            live[compaction.summary_id] = by_id[compaction.summary_id]
    return set(live)


def _answers(messages: Sequence[Message], gone: set[str]) -> list[str]:
    """The results in messages that are not gone, of calls in messages that are."""
    calls: OpenCalls[bool] = OpenCalls()
    found = []
    for message in messages:
        for part in message.parts if _may_leave(message) else ():
            if isinstance(part, ToolUsePart):
                calls.call(part.id, message.participant, message.id in gone)
            elif isinstance(part, ToolResultPart):
                of_gone = calls.answer(part.tool_use_id, message.participant)
                if of_gone and message.id not in gone:
                    found.append(part.tool_use_id)
    return found


def _may_leave(message: Message) -> bool:
    return message.role != "system"


def _place(message: Message) -> Position:
    return message.position or Position(0, 0)
