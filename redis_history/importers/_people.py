"""Import conversations between people: IRC channels, KdConv dialogues, LoCoMo's long conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from redis_history.errors import InvalidInputError
from redis_history.importers._convert import need, rest, scalar
from redis_history.importers.source import Source
from redis_history.importers.transcript import Transcript, Turn, build
from redis_history.model import AttachmentPart, Message, Part, Participant, TextPart

__all__ = ["irc", "kdconv", "locomo"]

_SESSION = re.compile(r"session_(\d+)")
_LOCOMO_TIME = re.compile(r"\s*(\d{1,2}):(\d\d)\s*([ap])m on (\d{1,2}) ([A-Za-z]+),? (\d{4})\s*", re.IGNORECASE)
_MONTHS: tuple[str, ...] = ("january", "february", "march", "april", "may", "june", "july")
_MONTHS += ("august", "september", "october", "november", "december")


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
