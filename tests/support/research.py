"""Readers of research data sets: runs of agent benchmarks, and conversations between people."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from redis_history.formats import from_anthropic, from_openai_chat
from redis_history.importers import Transcript, Turn, build, read_transcripts
from redis_history.importers.transcript import scalar, unique_id
from redis_history.model import AttachmentPart, Message, Part, Participant, TextPart, ToolResultPart, ToolUsePart
from tests.support.transcripts import opened

T = TypeVar("T")


def need(record: Any, key: str, kind: type[T]) -> T:
    value = record[key]
    assert isinstance(value, kind), f"{key!r} is not a {kind.__name__}"
    return value


def rest(record: dict[str, Any], *without: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in without}


def has(record: Any, **kinds: type) -> bool:
    return isinstance(record, dict) and all(isinstance(record.get(key), kind) for key, kind in kinds.items())


def first_message(record: Any) -> Any:
    return next(iter(record["messages"]), None) if has(record, messages=list) else None


def inner(record: Any, key: str) -> Any:
    """The object at `key`, or else the record."""
    return record[key] if has(record, **{key: dict}) else record


class Source:
    """The records of a file: of each line, or the items of a list."""

    def __init__(self, path: Path) -> None:
        self.name = path.name.partition(".")[0]
        with opened(path) as stream:
            text = stream.read().decode()
        found = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
        self.records = list(enumerate(found, 1))

    def problem(self, line: int, reason: str) -> None:
        raise ValueError(f"{self.name}:{line}: {reason}")


def each(source: Source, convert: Callable[[Source, int, Any], Transcript]) -> Iterator[Transcript]:
    seen: dict[str, int] = {}
    for line, record in source.records:
        transcript = convert(source, line, record)
        yield replace(transcript, conversation_id=unique_id(transcript.conversation_id, seen))


# Runs of agents in the form of OpenAI: the list of messages at `key`


def chats(format: str, key: str, name: Callable[[Any, Any], tuple[Any, Any]], *without: str) -> Any:
    """A reader of records, plain or as `{path, traj}`. `name` gives the key and the title of a conversation."""

    def convert(source: Source, line: int, record: Any) -> Transcript:
        run = record if format == "taubench" else inner(record, "traj")
        messages = need(run, key, list)
        turns = []
        for raw, message in zip(messages, from_openai_chat(messages), strict=True):
            time = raw["extra"].get("timestamp") if has(raw, extra=dict) else None
            turns.append(Turn(message, time=time, at=time))
        id_, title = name(record, run)
        return build(
            turns,
            format=format,
            key=scalar(record.get("path")) or f"{source.name}:{id_ or line}",
            on_bad_line=source.problem,
            title=title,
            metadata=rest(run, key, *without),
        )

    return partial(each, convert=convert)


def name_of_attempt(record: Any, run: Any) -> tuple[str, str]:
    task, trial = record.get("task_id"), record.get("trial")
    return f"{task}:{trial}", f"task {task}, trial {trial}"


# tau2: simulations in its own message format


def tau2(source: Source) -> Iterator[Transcript]:
    """Records, or the `simulations` of a results file."""
    for line, record in source.records:
        for run in record["simulations"] if has(record, simulations=list) else [record]:
            messages = need(run, "messages", list)
            yield build(
                [Turn(tau2_message(item), time=item.get("timestamp"), at=item.get("timestamp")) for item in messages],
                format="tau2",
                key=scalar(run.get("id")) or f"{source.name}:{line}",
                on_bad_line=source.problem,
                metadata=rest(run, "messages"),
            )


def tau2_message(item: Any) -> Message:
    role = need(item, "role", str)
    left = rest(item, "role", "content", "tool_calls")
    parts: list[Part] = []
    if role == "tool":
        left = rest(left, "id", "error")
        wrong = item.get("error") is True
        parts.append(ToolResultPart(tool_use_id=need(item, "id", str), content=item.get("content"), is_error=wrong))
    else:
        # The signed thinking of Anthropic's models is in the provider's reply.
        if has(raw := item.get("raw_data"), thinking_blocks=list):
            parts += from_anthropic([{"role": "assistant", "content": raw["thinking_blocks"]}])[0].parts
            left["raw_data"] = rest(raw, "thinking_blocks") if parts else raw
        parts += [TextPart(text=item["content"])] if item.get("content") else []
        parts += map(tau2_call, item.get("tool_calls") or ())
    return Message(role=role, parts=tuple(parts), provider_meta={"tau2": left})  # type: ignore[arg-type]


def tau2_call(call: Any) -> ToolUsePart:
    meta = {"tau2": {"requestor": call["requestor"]}} if "requestor" in call else None
    return ToolUsePart(
        id=need(call, "id", str), name=need(call, "name", str), input=call.get("arguments"), provider_meta=meta
    )


def is_tau2(record: Any) -> bool:
    run = record["simulations"][0] if has(record, simulations=list) and record["simulations"] else record
    return isinstance(run, dict) and "task_id" in run and has(first_message(run), turn_idx=int)


# Conversations between people


def irc(source: Source) -> Iterator[Transcript]:
    """Lines `{channel, file, n, date, time, kind, speaker, text}`: one conversation per channel and file.

    All lines are held until the end of the file, because the lines of several channels may alternate. Times wrap at
    midnight (or at noon) and joins have no time. Such a conversation keeps the order of its lines.
    """
    found: dict[tuple[str, str], list[Turn]] = {}
    for line, record in source.records:
        key, turn = irc_turn(record)
        found.setdefault(key, []).append(turn._replace(line=line))
    for (channel, file), turns in found.items():
        yield build(
            turns,
            format="irc",
            key=f"{channel}:{file}",
            on_bad_line=source.problem,
            title=f"#{channel} {file}",
            metadata={"channel_type": "irc", "channel_name": channel, "file": file},
        )


def irc_turn(record: Any) -> tuple[tuple[str, str], Turn]:
    channel, file, number = need(record, "channel", str), need(record, "file", str), need(record, "n", int)
    kind, text = record.get("kind") or "message", need(record, "text", str)
    speaker, date, time = (scalar(record.get(name)) for name in ("speaker", "date", "time"))
    known = ("channel", "file", "n", "date", "time", "kind", "speaker", "text", "replies_to")
    metadata = rest(record, *known) if kind == "message" else {**rest(record, *known), "kind": kind}
    if has(record, replies_to=list) and record["replies_to"]:
        metadata["replies_to"] = [f"{channel}/{file}/{other}" for other in record["replies_to"]]
    message = Message(
        role="system" if kind == "system" else "user",
        parts=(TextPart(text=text),) if text else (),
        participant=None if speaker is None else Participant(kind="user", id=speaker, display_name=speaker),
        metadata=metadata,
    )
    text_of_time = " ".join(filter(None, (date, time))) or None
    at = f"{date}T{time}" if date and time else None
    return (channel, file), Turn(message, id=f"{channel}/{file}/{number}", time=text_of_time, at=at)


def kdconv(source: Source, line: int, record: Any) -> Transcript:
    """A dialogue of two people who take turns, plain or as `{domain, split, i, dialogue}`."""
    dialogue = inner(record, "dialogue")
    turns = []
    for index, item in enumerate(need(dialogue, "messages", list)):
        part, speaker = TextPart(text=need(item, "message", str)), Participant(kind="user", id="AB"[index % 2])
        turns.append(Turn(Message(role="user", parts=(part,), participant=speaker, metadata=rest(item, "message"))))
    names = (scalar(record.get(name)) for name in ("domain", "split", "i"))
    return build(
        turns,
        format="kdconv",
        key=":".join(filter(None, names)) or f"{source.name}:{line}",
        on_bad_line=source.problem,
        title=scalar(dialogue.get("name")),
        metadata={**rest(record, "dialogue", "messages"), **rest(dialogue, "messages")},
    )


def locomo(source: Source, line: int, record: Any) -> Transcript:
    """A conversation of many sessions; each turn gets the time of its session, such as "1:56 pm on 8 May, 2023"."""
    conversation = need(record, "conversation", dict)
    turns: list[Turn] = []
    for number in sorted(int(match[1]) for name in conversation if (match := re.fullmatch(r"session_(\d+)", name))):
        time = conversation.get(f"session_{number}_date_time")
        at = datetime.strptime(time, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC) if time else None
        for item in need(conversation, f"session_{number}", list):
            speaker, text, images = need(item, "speaker", str), need(item, "text", str), item.get("img_url") or ()
            parts: list[Part] = [TextPart(text=text)] if text else []
            parts += [AttachmentPart(modality="image", reference=url) for url in images]
            message = Message(
                role="user",
                parts=tuple(parts),
                participant=Participant(kind="user", id=speaker, display_name=speaker),
                metadata={"session": number, **rest(item, "speaker", "text", "img_url")},
            )
            turns.append(Turn(message, id=scalar(item.get("dia_id")), time=time, at=at))
    speakers = [name for key in ("speaker_a", "speaker_b") if (name := scalar(conversation.get(key)))]
    return build(
        turns,
        format="locomo",
        key=scalar(record.get("sample_id")) or f"{source.name}:{line}",
        on_bad_line=source.problem,
        title=" and ".join(speakers) or None,
        metadata={"speakers": speakers},
    )


#: For each data set: whether a record is of it, and what reads its conversations.
READERS: tuple[tuple[Callable[[Any], bool], Callable[[Source], Iterator[Transcript]]], ...] = (
    (lambda r: has(r, traj=list) and "task_id" in r, chats("taubench", "traj", name_of_attempt)),
    (
        lambda r: has(inner(r, "traj"), history=list),
        chats("sweagent", "history", lambda record, run: (None, scalar(run.get("environment"))), "trajectory"),
    ),
    (
        lambda r: has(inner(r, "traj"), messages=list) and ("traj" in r or has(r, trajectory_format=str)),
        chats("miniswe", "messages", lambda record, run: (scalar(run.get("instance_id")),) * 2),
    ),
    (is_tau2, tau2),
    (lambda r: has(r, channel=str, file=str, n=int, text=str), irc),
    (
        lambda r: has(r, conversation=dict) and any(key.startswith("session_") for key in r["conversation"]),
        partial(each, convert=locomo),
    ),
    (lambda r: has(first_message(inner(r, "dialogue")), message=str), partial(each, convert=kdconv)),
)


def read(path: Path) -> list[Transcript]:
    """The conversations of a file, of these data sets or of a format that the package imports."""
    source = Source(path)
    _, first = source.records[0]
    reads = next((reads for is_of, reads in READERS if is_of(first)), None)
    return list(read_transcripts(path) if reads is None else reads(source))
