"""Import runs of agent benchmarks: tau-bench, tau2-bench, mini-swe-agent, SWE-agent."""

from __future__ import annotations

from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats import from_anthropic, from_openai_chat
from redis_history.importers._convert import need, rest, scalar
from redis_history.importers.source import Source
from redis_history.importers.transcript import Transcript, Turn, build
from redis_history.model import Message, Part, TextPart, ToolResultPart, ToolUsePart

__all__ = ["miniswe", "sweagent", "tau2", "taubench"]


def taubench(source: Source, line: int, record: Any) -> Transcript:
    """`{task_id, trial, traj}`: one attempt of a task."""
    traj = need(record, "traj", list)
    task, trial = record.get("task_id"), record.get("trial")
    return build(
        _chat_turns(traj),
        format="taubench",
        key=f"{source.name}:{task}:{trial}",
        on_bad_line=source.problem,
        title=f"task {task}, trial {trial}",
        metadata=rest(record, "traj"),
        form="openai_chat",
    )


def miniswe(source: Source, line: int, record: Any) -> Transcript:
    """A `.traj.json` document, plain or wrapped as `{path, traj}`. Its role `exit` becomes `user`."""
    traj = record["traj"] if isinstance(record, dict) and isinstance(record.get("traj"), dict) else record
    messages = need(traj, "messages", list)
    instance = scalar(traj.get("instance_id"))
    return build(
        _chat_turns(messages),
        format="miniswe",
        key=scalar(record.get("path")) or f"{source.name}:{instance or line}",
        on_bad_line=source.problem,
        title=instance,
        metadata=rest(traj, "messages"),
        form="openai_chat",
    )


def sweagent(source: Source, line: int, record: Any) -> Transcript:
    """A `.traj` document, plain or wrapped as `{path, traj}`. Imports `history`; `trajectory` repeats its content."""
    traj = record["traj"] if isinstance(record, dict) and isinstance(record.get("traj"), dict) else record
    history = need(traj, "history", list)
    return build(
        _chat_turns(history),
        format="sweagent",
        key=scalar(record.get("path")) or f"{source.name}:{line}",
        on_bad_line=source.problem,
        title=scalar(traj.get("environment")),
        metadata=rest(traj, "history", "trajectory"),
        form="openai_chat",
    )


def tau2(source: Source, line: int, record: Any) -> Transcript:
    """One simulation, in tau2's own message format."""
    messages = need(record, "messages", list)
    key = scalar(record.get("id")) or f"{source.name}:{record.get('task_id')}:{record.get('trial')}"
    return build(
        [
            Turn(_tau2_message(item, index), time=item.get("timestamp"), at=item.get("timestamp"))
            for index, item in enumerate(messages)
        ],
        format="tau2",
        key=key,
        on_bad_line=source.problem,
        metadata=rest(record, "messages"),
    )


def _tau2_message(item: Any, index: int) -> Message:
    role = need(item, "role", str)
    if role not in ("user", "assistant", "system", "tool"):
        raise InvalidMessageError(f"message {index}: role must be user, assistant, system or tool, not {role!r}")
    known = {"role", "content", "tool_calls"}
    thought = False
    if role == "tool":
        known |= {"id", "error"}
        wrong = item.get("error") is True
        parts: list[Part] = [
            ToolResultPart(tool_use_id=need(item, "id", str), content=item.get("content"), is_error=wrong)
        ]
    else:
        parts = list(_thinking(item))
        thought = bool(parts)
        if text := item.get("content"):
            parts.append(TextPart(text=need(item, "content", str) and text))
        if item.get("tool_calls") is not None:
            parts.extend(map(_tau2_call, need(item, "tool_calls", list)))
    left = rest(item, *known)
    if thought:
        left["raw_data"] = rest(left["raw_data"], "thinking_blocks")
    return Message(role=role, parts=tuple(parts), provider_meta={"tau2": left})  # type: ignore[arg-type]


def _tau2_call(call: Any) -> ToolUsePart:
    asked = {"tau2": {"requestor": call["requestor"]}} if isinstance(call, dict) and "requestor" in call else None
    given = call.get("arguments") if isinstance(call, dict) else None
    return ToolUsePart(id=need(call, "id", str), name=need(call, "name", str), input=given, provider_meta=asked)


def _thinking(item: dict[str, Any]) -> tuple[Part, ...]:
    """The signed thinking of Anthropic's models. tau2 stores it separately, in the provider's reply."""
    raw = item.get("raw_data")
    blocks = raw.get("thinking_blocks") if isinstance(raw, dict) else None
    return from_anthropic([{"role": "assistant", "content": blocks}])[0].parts if isinstance(blocks, list) else ()


def _chat_turns(messages: list[Any]) -> list[Turn]:
    turns = []
    for raw, message in zip(messages, from_openai_chat(messages), strict=True):
        extra = raw.get("extra")
        time = extra.get("timestamp") if isinstance(extra, dict) else None
        turns.append(Turn(message, time=time, at=time, original=raw))
    return turns
