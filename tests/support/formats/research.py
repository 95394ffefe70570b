"""Importers of research data sets: runs of agent benchmarks, and conversations between people.

Tests use them as an installed package would bring them, by the entry points in `research.dist-info`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.formats import from_anthropic, from_openai_chat
from redis_history.importers import Importer, Source, Transcript, Turn, build
from redis_history.importers.source import each
from redis_history.importers.transcript import need, rest, scalar
from redis_history.model import AttachmentPart, Message, Part, Participant, TextPart, ToolResultPart, ToolUsePart

_SESSION = re.compile(r"session_(\d+)")
_LOCOMO_TIME = re.compile(r"\s*(\d{1,2}):(\d\d)\s*([ap])m on (\d{1,2}) ([A-Za-z]+),? (\d{4})\s*", re.IGNORECASE)
_MONTHS: tuple[str, ...] = ("january", "february", "march", "april", "may", "june", "july")
_MONTHS += ("august", "september", "october", "november", "december")


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


def tau2(source: Source) -> Iterator[Transcript]:
    """Simulations in tau2's own message format: records, or the `simulations` of a results file."""
    for line, record in source.records():
        inner = record.get("simulations") if isinstance(record, dict) else None
        for one in inner if isinstance(inner, list) else [record]:
            try:
                found = _simulation(source, line, one)
            except InvalidInputError as error:
                source.problem(line, str(error))
            else:
                yield found


def _simulation(source: Source, line: int, record: Any) -> Transcript:
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


def irc(source: Source) -> Iterator[Transcript]:
    """Import lines `{channel, file, n, date, time, kind, speaker, text}`: one conversation per channel and file.

    All lines are held until the end of the file, because the lines of several channels may alternate. Times wrap at
    midnight (or at noon) and joins have no time; such a conversation keeps the order of its lines.
    """
    found: dict[tuple[str, str], list[Turn]] = {}
    for line, record in source.of_one_conversation():
        try:
            key, turn = _irc_turn(record)
        except InvalidInputError as error:
            source.problem(line, str(error))
        else:
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


def _irc_turn(record: Any) -> tuple[tuple[str, str], Turn]:
    channel, file, number = need(record, "channel", str), need(record, "file", str), need(record, "n", int)
    kind, text = record.get("kind") or "message", need(record, "text", str)
    speaker = scalar(record.get("speaker"))
    metadata: dict[str, Any] = {} if kind == "message" else {"kind": kind}
    if isinstance(replies := record.get("replies_to"), list) and replies:
        metadata["replies_to"] = [f"{channel}/{file}/{other}" for other in replies]
    known = ("channel", "file", "n", "date", "time", "kind", "speaker", "text", "replies_to")
    message = Message(
        role="system" if kind == "system" else "user",
        parts=(TextPart(text=text),) if text else (),
        participant=None if speaker is None else Participant(kind="user", id=speaker, display_name=speaker),
        metadata={**rest(record, *known), **metadata},
    )
    date, time = scalar(record.get("date")), scalar(record.get("time"))
    said = " ".join(filter(None, (date, time))) or None
    at = f"{date}T{time}" if date and time else None
    return (channel, file), Turn(message, id=f"{channel}/{file}/{number}", time=said, at=at)


def kdconv(source: Source, line: int, record: Any) -> Transcript:
    """Import a dialogue of two people who take turns, plain or wrapped as `{domain, split, i, dialogue}`."""
    dialogue = record["dialogue"] if isinstance(record, dict) and isinstance(record.get("dialogue"), dict) else record
    turns = []
    for index, item in enumerate(need(dialogue, "messages", list)):
        speaker = "AB"[index % 2]
        message = Message(
            role="user",
            parts=(TextPart(text=need(item, "message", str)),),
            participant=Participant(kind="user", id=speaker),
            metadata=rest(item, "message"),
        )
        turns.append(Turn(message))
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
    """Import a conversation of many sessions; each turn gets the time of its session."""
    conversation = need(record, "conversation", dict)
    turns: list[Turn] = []
    for number in sorted(int(match[1]) for name in conversation if (match := _SESSION.fullmatch(name))):
        said = conversation.get(f"session_{number}_date_time")
        at = _locomo_time(said) if isinstance(said, str) else None
        session = need(conversation, f"session_{number}", list)
        turns.extend(_locomo_turn(item, number)._replace(time=said, at=at) for item in session)
    speakers = [name for key in ("speaker_a", "speaker_b") if (name := scalar(conversation.get(key)))]
    return build(
        turns,
        format="locomo",
        key=scalar(record.get("sample_id")) or f"{source.name}:{line}",
        on_bad_line=source.problem,
        title=" and ".join(speakers) or None,
        metadata={"speakers": speakers},
    )


def _locomo_turn(item: Any, session: int) -> Turn:
    speaker, text = need(item, "speaker", str), need(item, "text", str)
    urls = item.get("img_url")
    images = urls if isinstance(urls, list) else [urls] if isinstance(urls, str) else []
    parts: list[Part] = [TextPart(text=text)] if text else []
    parts += [AttachmentPart(modality="image", reference=url) for url in images if isinstance(url, str)]
    message = Message(
        role="user",
        parts=tuple(parts),
        participant=Participant(kind="user", id=speaker, display_name=speaker),
        metadata={"session": session, **rest(item, "speaker", "text", "img_url")},
    )
    return Turn(message, id=scalar(item.get("dia_id")))


def _locomo_time(text: str) -> datetime | None:
    """Parse a time such as "1:56 pm on 8 May, 2023". Month names are English in every locale."""
    match = _LOCOMO_TIME.fullmatch(text)
    if match is None or match[5].lower() not in _MONTHS:
        return None
    hour = int(match[1]) % 12 + (12 if match[3].lower() == "p" else 0)
    try:
        return datetime(
            int(match[6]), _MONTHS.index(match[5].lower()) + 1, int(match[4]), hour, int(match[2]), tzinfo=UTC
        )
    except ValueError:
        return None


def _has(record: Any, **kinds: type) -> bool:
    return isinstance(record, dict) and all(isinstance(record.get(key), kind) for key, kind in kinds.items())


def _inner(record: Any, key: str) -> Any:
    return record[key] if _has(record, **{key: dict}) else record


def _first_item(record: Any) -> Any:
    messages = record.get("messages") if isinstance(record, dict) else None
    return messages[0] if isinstance(messages, list) and messages else None


def _is_tau2(record: Any) -> bool:
    simulations = record.get("simulations") if isinstance(record, dict) else None
    if isinstance(simulations, list) and simulations:
        return _is_tau2(simulations[0])
    return isinstance(record, dict) and "task_id" in record and _has(_first_item(record), turn_idx=int)


TAUBENCH = Importer(lambda r: _has(r, traj=list) and "task_id" in r, partial(each, convert=taubench))
SWEAGENT = Importer(lambda r: _has(_inner(r, "traj"), history=list), partial(each, convert=sweagent))
MINISWE = Importer(
    lambda r: _has(_inner(r, "traj"), messages=list) and ("traj" in r or _has(r, trajectory_format=str)),
    partial(each, convert=miniswe),
)
TAU2 = Importer(_is_tau2, tau2)
IRC = Importer(lambda r: _has(r, channel=str, file=str, n=int, text=str), irc)
LOCOMO = Importer(
    lambda r: _has(r, conversation=dict) and any(key.startswith("session_") for key in r["conversation"]),
    partial(each, convert=locomo),
)
KDCONV = Importer(lambda r: _has(_first_item(_inner(r, "dialogue")), message=str), partial(each, convert=kdconv))
