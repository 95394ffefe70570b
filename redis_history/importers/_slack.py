"""Import a Slack export: a folder or archive with `users.json` and a folder of daily files per channel.

A channel is one conversation, in the order of its timestamps. Replies in a thread have the scope `thread` and
`metadata["thread_id"]`. Slack's markup is made readable (`<@U1>` becomes `@ann`); the original is kept in
`provider_meta["slack"]`. Messages of a channel never get the role `system`, whatever their subtype.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.importers._bundle import Bundle
from redis_history.importers.transcript import Transcript, Turn, build, need, rest, scalar, size_of
from redis_history.model import AttachmentPart, Message, Modality, Part, Participant, Scope, TextPart

#: The files that list conversations, and the `channel_type` of these conversations.
_LISTS = {"channels.json": "channel", "groups.json": "group", "mpims.json": "mpim", "dms.json": "dm"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")
_STAMP = re.compile(r"(\d{1,11})\.(\d{1,6})")
_MARK = re.compile(r"<([@#!])?([^<>|]*)(?:\|([^<>]*))?>")
_MODALITIES: dict[str, Modality] = {"image": "image", "audio": "audio", "video": "video", "text": "text"}


def is_slack(bundle: Bundle) -> bool:
    """Whether the files of the bundle are a Slack export."""
    return any(_DAY.fullmatch(name) for name in bundle.names) and any(
        name in bundle.names for name in ("users.json", *_LISTS)
    )


def slack(bundle: Bundle) -> Iterator[Transcript]:
    """Import the channels that have messages, in the order of their names."""
    users = _users(bundle)
    known = _channels(bundle)
    folders: dict[str, list[str]] = {}
    for path in bundle.paths:
        folder, _, name = path.rpartition("/")
        if folder and _DAY.fullmatch(name):
            folders.setdefault(folder, []).append(path)
    for folder, days in sorted(folders.items()):
        name = folder.rpartition("/")[2]
        kind, channel = known.get(name, ("channel", {"name": name}))
        identity = scalar(channel.get("id")) or name
        yield from _channel(bundle, sorted(days), users, name, identity, kind, channel)


def _channel(
    bundle: Bundle, days: list[str], users: Mapping[str, str], name: str, identity: str, kind: str, channel: Any
) -> Iterator[Transcript]:
    turns: list[tuple[int, Turn]] = []
    size = 0
    seen: set[tuple[str, Any, Any]] = set()
    for source in bundle.sources(days):
        for line, record in source.records():
            size += source.size
            if size > source.limits.max_conversation_bytes:
                source.problem(line, source.limits.refusal("max_conversation_bytes", f"the channel {name[:80]!r}"))
                return
            try:
                at, turn = _turn(record, users, name, identity, kind)
            except InvalidInputError as error:
                source.problem(line, str(error))
                continue
            mark = (str(turn.time), record.get("user"), record.get("text"))
            if mark not in seen:  # a reply that was also sent to the channel can occur twice
                seen.add(mark)
                turns.append((at, turn))
    turns.sort(key=lambda item: item[0])
    title = f"#{name}" if kind in ("channel", "group") else name
    yield build(
        [turn for _, turn in turns],
        format="slack",
        key=f"{bundle.name}:{identity}",
        on_bad_line=lambda line, reason: bundle.problem(line, reason),
        title=title,
        metadata={"channel_type": kind, "channel_name": name, "channel_id": identity, "channel": channel},
    )


def _turn(record: Any, users: Mapping[str, str], name: str, identity: str, kind: str) -> tuple[int, Turn]:
    stamp = need(record, "ts", str)
    at, microseconds = _instant(stamp)
    raw = record.get("text") or ""
    if not isinstance(raw, str):
        raise InvalidMessageError("'text' must be a string")
    text, mentions = _readable(raw, users)
    thread = record.get("thread_ts")
    inside = isinstance(thread, str) and thread != stamp
    scope: Scope = "thread" if inside else "dm" if kind in ("dm", "mpim") else "channel"
    metadata: dict[str, Any] = {
        "channel_type": kind,
        "channel_name": name,
        "channel_id": identity,
        "platform_message_id": stamp,
    }
    if isinstance(thread, str):
        metadata["thread_id"] = thread
    if mentions:
        metadata["mentions"] = mentions
    if subtype := scalar(record.get("subtype")):
        metadata["kind"] = subtype
    parts: list[Part] = [TextPart(text=text)] if text else []
    files = record.get("files")
    parts += [part for file in files if (part := _file(file))] if isinstance(files, list) else []
    kept = rest(record, "ts") if text != raw else rest(record, "ts", "text")
    message = Message(
        role="assistant" if _is_bot(record) else "user",
        parts=tuple(parts),
        participant=_who(record, users),
        scope=scope,
        metadata=metadata,
        provider_meta={"slack": kept},
    )
    return microseconds, Turn(message, id=f"{identity}-{stamp}", time=stamp, at=at)


def _instant(stamp: str) -> tuple[datetime, int]:
    match = _STAMP.fullmatch(stamp)
    if match is None:
        raise InvalidMessageError(f"'ts' must be a timestamp, not {stamp[:40]!r}")
    microseconds = int(match[1]) * 1_000_000 + int(match[2].ljust(6, "0"))
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds), microseconds


def _is_bot(record: Mapping[str, Any]) -> bool:
    return record.get("subtype") == "bot_message" or (scalar(record.get("bot_id")) is not None)


def _who(record: Mapping[str, Any], users: Mapping[str, str]) -> Participant | None:
    bot = _is_bot(record)
    identity = scalar(record.get("user")) or scalar(record.get("bot_id")) or scalar(record.get("username"))
    if identity is None:
        return None
    profile = record.get("user_profile") or record.get("bot_profile")
    own = profile if isinstance(profile, Mapping) else {}
    shown = scalar(own.get("display_name")) or scalar(own.get("real_name")) or scalar(own.get("name"))
    name = users.get(identity) or scalar(record.get("username")) or shown
    return Participant(kind="agent" if bot else "user", id=identity, display_name=name)


def _readable(text: str, users: Mapping[str, str]) -> tuple[str, list[str]]:
    mentions: list[str] = []

    def said(match: re.Match[str]) -> str:
        mark, target, label = match[1], match[2], match[3]
        if mark == "@":
            if target not in mentions:
                mentions.append(target)
            return f"@{users.get(target) or label or target}"
        if mark == "#":
            return f"#{label or target}"
        if mark == "!":
            return label or f"@{target.partition('^')[0]}"
        shown = target.removeprefix("mailto:")
        return shown if not label or label in (target, shown) else f"{label} ({target})"

    return html.unescape(_MARK.sub(said, text)), mentions


def _file(file: Any) -> AttachmentPart | None:
    if not isinstance(file, Mapping) or not any(scalar(file.get(key)) for key in ("id", "name", "url_private")):
        return None
    mime = scalar(file.get("mimetype"))
    return AttachmentPart(
        id=scalar(file.get("id")),
        name=scalar(file.get("name")) or scalar(file.get("title")),
        size=size_of(file.get("size")),
        modality=_MODALITIES.get((mime or "").partition("/")[0], "file"),
        mime_type=mime,
        reference=scalar(file.get("url_private")) or scalar(file.get("permalink")),
    )


def _users(bundle: Bundle) -> dict[str, str]:
    found: dict[str, str] = {}
    for user in _listed(bundle, "users.json"):
        profile = user.get("profile")
        profile = profile if isinstance(profile, Mapping) else {}
        names = (profile.get("display_name"), profile.get("real_name"), user.get("real_name"), user.get("name"))
        name = next((shown for name in names if (shown := scalar(name))), None)
        if (identity := scalar(user.get("id"))) and name:
            found[identity] = name
    return found


def _channels(bundle: Bundle) -> dict[str, tuple[str, Any]]:
    """The conversations by folder name: the channel name, or the id for direct messages, which have no name."""
    found: dict[str, tuple[str, Any]] = {}
    for listed, kind in _LISTS.items():
        for channel in _listed(bundle, listed):
            folder = scalar(channel.get("name")) or scalar(channel.get("id"))
            if folder is not None:
                found[folder] = (kind, channel)
    return found


def _listed(bundle: Bundle, name: str) -> Iterator[Mapping[str, Any]]:
    found = [path for path in bundle.paths if path.rpartition("/")[2] == name]
    for source in bundle.sources(found[:1]):
        for line, record in source.records():
            if isinstance(record, Mapping):
                yield record
            else:
                source.problem(line, "the record must be an object")
